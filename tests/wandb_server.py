"""A stand-in for the W&B server on 127.0.0.1: keeps what clients send, and answers what they need
to go on.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "team"
HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


@dataclass
class Bucket:
    """A run as the server has it; `inputs` are what its upserts said."""

    inputs: dict[str, Any] = field(default_factory=dict)
    history: dict[int, str] = field(default_factory=dict)  # line number → JSON
    summary: dict[str, Any] = field(default_factory=dict)
    finished: int = 0
    exit_codes: list[int] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Logged rows in the order of their lines: their steps, and none of W&B's other own fields."""
        return [_own(json.loads(self.history[line])) for line in sorted(self.history)]


@dataclass
class WandbServer:
    """`hold` makes it take requests and never answer; `seen` has every request's line and body,
    headers apart.

    An operation it does not know breaks the connection, so no test passes by an empty answer.
    """

    url: str = ""
    runs: dict[str, Bucket] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)  # operation → message
    hold: bool = False
    released: threading.Event = field(default_factory=threading.Event)
    _last: str | None = None

    def hold_after(self, operation: str) -> None:
        """Stop answering once `operation` was answered."""
        self._last = operation

    def recover(self) -> None:
        """Drop what is held, and answer again."""
        self._last, self.hold = None, False
        self.released.set()

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """What a POST gets back."""
        request = json.loads(body)
        if path.endswith("/file_stream"):
            return self._stream(path.split("/")[-2], request)
        named = re.search(r"(?:query|mutation) (\w+)", request["query"])
        assert named, request["query"]
        if named[1] in self.refusals:
            return {"data": None, "errors": [{"message": self.refusals[named[1]]}]}
        self.hold = self.hold or named[1] == self._last
        return {"data": getattr(self, f"_{named[1]}")(request.get("variables") or {})}

    def _stream(self, run: str, request: dict[str, Any]) -> dict[str, Any]:
        bucket = self.runs[run]
        for name, part in request.get("files", {}).items():
            if name == HISTORY:
                bucket.history.update(enumerate(part["content"], part["offset"]))
            elif name == SUMMARY:
                bucket.summary = json.loads(part["content"][-1])
        bucket.finished += bool(request.get("complete"))
        bucket.exit_codes += [request["exitcode"]] if request.get("exitcode") is not None else []
        return {"exitcode": None, "limits": {}}

    def _Viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        viewer = {
            "id": "viewer",
            "entity": ENTITY,
            "username": ENTITY,
            "email": "",
            "flags": "{}",
            "teams": teams,
        }
        return {"viewer": viewer}

    _GetDefaultEntity = _Viewer

    def _ServerFeaturesQuery(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def _RunResumeStatus(self, asked: dict[str, Any]) -> dict[str, Any]:
        bucket = self.runs.get(asked["name"])
        if bucket is None:
            return {"model": None}
        lines = [bucket.history[max(bucket.history)]] if bucket.history else []
        found = {
            "id": asked["name"], "name": asked["name"], "displayName": asked["name"],
            "summaryMetrics": json.dumps(bucket.summary), "logLineCount": 0,
            "historyLineCount": len(bucket.history), "eventsLineCount": 0,
            "historyTail": json.dumps(lines), "eventsTail": "[]",
            "config": bucket.inputs["config"], "tags": bucket.inputs["tags"], "notes": None, "wandbConfig": '{"t": 1}',
        }  # fmt: skip
        return {
            "model": {
                "id": "project",
                "name": asked["project"],
                "entity": _named(ENTITY),
                "bucket": found,
            }
        }

    def _UpsertBucket(self, given: dict[str, Any]) -> dict[str, Any]:
        inserted = given["name"] not in self.runs
        bucket = self.runs.setdefault(given["name"], Bucket())
        bucket.inputs |= {key: value for key, value in given.items() if value is not None}
        project = {"id": "project", "name": given["project"], "entity": _named(ENTITY)}
        # A client that resumes a run names its id here. One that does not begins at line 0, and its
        # lines take the place of those that are there, which stay until then: so users of W&B's
        # servers report in wandb/wandb#3424, #5865 and #12269.
        lines = len(bucket.history) if given.get("id") else 0
        made = {
            "id": given["name"], "name": given["name"], "displayName": given["name"], "description": None,
            "config": given["config"], "sweepName": None, "project": project, "historyLineCount": lines,
        }  # fmt: skip
        return {"upsertBucket": {"bucket": made, "inserted": inserted}}

    def _ArtifactType(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"project": None}

    def _CreateArtifact(self, given: dict[str, Any]) -> dict[str, Any]:
        """Already there: its files need no upload."""
        sequence = {"latestArtifact": {"id": "artifact"}}
        return {
            "createArtifact": {
                "artifact": {"id": "artifact", "state": "COMMITTED", "artifactSequence": sequence}
            }
        }

    def _View(self, asked: dict[str, Any]) -> dict[str, Any]:
        if not self.runs:
            return {"project": None}
        found = [view for view in self.views.values() if view["name"] == asked["viewName"]]
        nodes = [
            {"node": {"id": v["id"], "displayName": v["displayName"], "spec": v["spec"]}}
            for v in found
        ]
        return {"project": {"allViews": {"edges": nodes}}}

    def _UpsertView2(self, given: dict[str, Any]) -> dict[str, Any]:
        identity = given.get("id") or f"view-{len(self.views)}"
        self.views[identity] = given | {"id": identity}
        return {
            "upsertView": {
                "view": {"id": identity, "name": given["name"]},
                "inserted": "id" not in given,
            }
        }

    def _CreateRunFiles(self, given: dict[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/storage/{given['run']}/{name}"}
            for name in given["files"]
        ]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}


def _named(name: str) -> dict[str, str]:
    return {"id": name, "name": name}


def _own(row: dict[str, Any]) -> dict[str, Any]:
    return {"step": row["_step"]} | {
        key: value for key, value in row.items() if not key.startswith("_")
    }


@contextmanager
def serving() -> Iterator[WandbServer]:
    """A server of its own on a free port, until the body ends."""
    state = WandbServer()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    state.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def _handler(state: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._respond(lambda path, body: json.dumps(state.answer(path, body)).encode())

        def do_PUT(self) -> None:
            self._respond(self._keep)

        def do_GET(self) -> None:
            self._respond(lambda path, body: b"{}")

        def _keep(self, path: str, body: bytes) -> bytes:
            state.files[path.removeprefix("/storage/")] = body
            return b""

        def _respond(self, make: Callable[[str, bytes], bytes]) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.seen.append(f"{self.command} {self.path} {body.decode(errors='replace')}")
            if state.hold:
                state.released.wait()
                self.close_connection = True
                return
            answer = make(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
