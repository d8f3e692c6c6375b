"""W&B as a tracker: when a unit is sent, how, and where W&B shows it.

Runs in W&B are a projection of the run directories that can be made again at any time. Offline, an
upload removes the earlier files of a run and writes the run anew. Online, it resumes the run and
appends rows while those before are as they were sent. After a kill that took rows back, or a late
score, it opens the run by its id without `resume`, and all rows replace the server's, line by line;
W&B's rewinding is a private preview. Every call has a time limit. Importing wandb takes half a second.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # wandb's dependencies deprecate each other
    import wandb
    from wandb.sdk.lib.wbauth import read_netrc_auth

from orchestrator.errors import UserError
from orchestrator.experiment.methods import method_label
from orchestrator.experiment.reading import from_here
from orchestrator.experiment.units import digest
from orchestrator.records.files import write_atomically
from orchestrator.selection.study import Study
from orchestrator.tracking.projection import FAILED, FINISHED, OPEN, Projection, Results

HEARTBEAT_S = 120.0  # W&B marks a run that is silent for some minutes as crashed
ASKING_S = 5.0  # longest wait for the server to name the project's page
INIT_TIMEOUT_S = 20.0
FINISH_TIMEOUT_S = 40.0  # of one run's rows
PROJECT_NOTE = "project.json"


def open_tracker(study: Study) -> WandbTracker | None:
    """W&B in the mode that the experiment, the environment or the login chooses; None if disabled."""
    mode = chosen_mode(study.experiment.runtime.wandb)
    return None if mode == "disabled" else WandbTracker(study, mode)


@dataclass(frozen=True)
class WandbTracker:
    """Sends runs that W&B shows out of date; `mode` is online or offline."""

    study: Study
    mode: str

    @property
    def name(self) -> str:
        return "W&B"

    @property
    def project(self) -> str:
        return self.study.experiment.runtime.wandb_project

    @property
    def destination(self) -> Destination:
        return Destination(self.study.runs, self.mode, self.project)

    @property
    def shows_progress(self) -> bool:
        """Offline, a run cannot stay open."""
        return self.mode == "online"

    @property
    def place(self) -> str:
        return server_url() if self.mode == "online" else str(mirror_folder(self.study.runs))

    def announcement(self) -> str:
        """The page of the project, or the command that shows offline runs."""
        if self.mode == "online":
            return f"W&B: {self._page() or f'online at {server_url()}'}"
        shown_by = leet_command(self.study.runs)
        return f"W&B: offline (`wandb login` puts runs online); shown by: {shown_by}"

    def conclusion(self) -> str:
        """The page that the server named, or the command that sends offline runs to one."""
        if self.mode == "online":
            page = noted_project(self.project, self.study.runs)
            return f"W&B: {page or f'online at {server_url()}'}"
        return f"W&B is offline; to a server: {sync_command(self.study.runs)}"

    def show(self, projection: Projection) -> None:
        """Send a unit if it is out of date. Raises wandb.Error or TimeoutError, as `send`."""
        if self.is_stale(projection):
            self._require_login()
            self.send(projection)

    def show_results(self, results: Results) -> None:
        """Send what is out of date of tables, progress and machines; raises as `show` does."""
        within = HEARTBEAT_S if results.goes_on else math.inf
        if not was_given(results.id, results.content, self.destination, within):
            self._require_login()
            self.send_results(results)
        for host, measured in results.machines.items():
            run_id = machine_id(results.experiment.name, host)
            content = [host, list(measured.items()), results.goes_on]
            if not was_given(run_id, content, self.destination, within):
                self._require_login()
                rows = {}
                for number, row in enumerate(measured.values()):
                    rows[number] = {f"system/{name}": value for name, value in row.items()}
                self._send(
                    *(run_id, content, rows, dict(enumerate(measured)), {}),
                    OPEN if results.goes_on else FINISHED,
                    name=f"Machine · {host}",
                    job_type="machine",
                    tags=["machine"],
                    config={"method": "machine", "setup": host},
                )

    def is_stale(self, projection: Projection) -> bool:
        """Whether W&B shows a unit out of date.

        Offline, a run cannot stay open, so a unit counts as stale only once it is done or the sweep
        has ended. Online, open runs are sent every HEARTBEAT_S even without new rows, so that W&B
        does not mark them as crashed.
        """
        is_open = projection.outcome == OPEN
        if is_open and self.mode == "offline":
            return False
        within = HEARTBEAT_S if is_open else math.inf
        unit_id, content = projection.unit.id, projection.content
        return not was_given(unit_id, content, self.destination, within)

    def send(self, projection: Projection) -> None:
        """Give W&B every row of a unit, its configuration and its state.

        Raises wandb.Error or TimeoutError if the server does not take them.
        """
        unit = projection.unit
        self._send(
            *(unit.id, projection.content, projection.rows, projection.clock()),
            *(projection.summary, projection.outcome),
            name=projection.name,
            job_type=method_label(unit.method) if unit.method else unit.kind,
            tags=projection.tags,
            config=projection.config,
        )

    def send_results(self, results: Results) -> None:
        """Give W&B tables and progress as a run of their own; raises as `send` does.

        The tables are in the run's summary. Sending them again replaces them and doubles nothing.
        Progress is a row each time, since no record of it is kept.
        """
        setups = list(self.study.experiment.setups)
        summary: dict[str, Any] = dict(results.progress)
        for name, (headings, rows) in results.tables.items():
            summary[name] = wandb.Table(columns=headings, data=rows)
        with _service(self.mode):
            run = self._open(
                results.id,
                resumes=True,
                goes_on=results.goes_on,
                name=results.name,
                job_type="results",
                tags=setups,
                # The workspace groups runs by method, so the results count as one of their own.
                config={"method": "results", "setup": ", ".join(setups)},
                notes="\n".join(results.notes),
            )
            if results.progress and self.mode == "online":
                run.log(results.progress)
            self._end(run, summary)
        remember(results.id, results.content, self.destination)

    def _send(
        self,
        run_id: str,
        content: list[Any],
        rows: dict[int, dict[str, Any]],
        times: Mapping[int, float],
        summary: dict[str, Any],
        outcome: str,
        **about: Any,
    ) -> None:
        """Give W&B the rows that it lacks of a run, or all if one has changed; `times` are theirs."""
        given = rows_given(run_id, rows, self.destination)
        # A send that fails leaves no note, since some rows may have arrived.
        self.destination.marker(run_id).unlink(missing_ok=True)
        about["goes_on"] = outcome == OPEN
        with _service(self.mode):
            run = self._open(run_id, resumes=given is not None, **about)
            first = run.starting_step if given is not None and self.mode == "online" else 0
            if first > (given or 0):  # lines of a longer history are left, which a kill took back
                self._end(run, {})
                run, first = self._open(run_id, resumes=False, **about), 0
            for step, row in rows.items():
                if step >= first:
                    at = {"_timestamp": times[step]} if step in times else {}
                    run.log(row | at, step=step, commit=True)
            self._end(run, summary, outcome)
        remember(run_id, content, self.destination, rows)

    def _open(self, run_id: str, resumes: bool, goes_on: bool, **about: Any) -> Any:
        """Open a W&B run; one that `goes_on` stays running on the server after its end here.

        Where it `resumes`, rows come after those of the server, else in their place.
        """
        runs, is_online = self.study.runs, self.mode == "online"
        folder = mirror_folder(runs)
        folder.mkdir(parents=True, exist_ok=True)
        if not is_online:
            for fragment in (folder / "wandb").glob(f"offline-run-????????_??????-{run_id}"):
                shutil.rmtree(fragment)
        wandb.setup(wandb.Settings(silent=True))  # before the login, which wandb would announce
        run = wandb.init(
            id=run_id,
            project=self.project,
            group=self.study.experiment.name,
            dir=str(folder),
            mode="online" if is_online else "offline",
            resume="allow" if is_online and resumes else None,
            reinit="finish_previous",
            # Rows only: no console, code or packages, and no statistics, which the driver's would be.
            settings=wandb.Settings(
                console="off",
                silent=True,
                symlink=not is_online,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
                x_save_requirements=False,
                x_update_finish_state=not goes_on,
                init_timeout=INIT_TIMEOUT_S,
                finish_timeout=FINISH_TIMEOUT_S,
                finish_timeout_raises=True,
            ),
            **about,
        )
        if is_online and run.project_url:
            note_project(self.project, run.project_url, runs)
        return run

    def _end(self, run: Any, summary: dict[str, Any], outcome: str = FINISHED) -> None:
        """Give the run its summary, and end it."""
        run.summary.update(summary)
        run.finish(exit_code=int(outcome == FAILED))
        # The server has all rows now, and the folders of repeated uploads would pile up.
        if self.mode == "online":
            shutil.rmtree(run.settings.sync_dir)

    def _require_login(self) -> None:
        """Raise UserError where the server would ask for a key."""
        if self.mode == "online" and not logged_in():
            raise UserError("no key: `wandb login`, or WANDB_API_KEY in the environment")

    def _page(self) -> str | None:
        """The project's page: as noted, or from the server if it answers within seconds."""
        known = noted_project(self.project, self.study.runs)
        if known or not logged_in():
            return known
        pages: list[str] = []

        def ask() -> None:
            # Errors are left out here: they come again, and are reported, when runs are sent.
            with suppress(Exception):
                wandb.setup(wandb.Settings(silent=True))
                asked = wandb.Api(timeout=int(ASKING_S)).default_entity
                if entity := os.environ.get("WANDB_ENTITY") or asked:
                    pages.append(f"{wandb.setup().settings.app_url}/{entity}/{self.project}")

        asking = threading.Thread(target=ask, daemon=True, name="page")
        asking.start()
        asking.join(ASKING_S)
        return pages[0] if pages else None


@contextmanager
def _service(mode: str) -> Iterator[None]:
    """Provide wandb's service for one run.

    It ends after a failed run, whose id it would keep in use; wandb then starts another one.
    Offline it ends with each run: it would close the file of a finished run only some time later,
    and a kill before that would lose rows that are noted as sent.
    """
    try:
        yield
    except BaseException:
        with suppress(OSError):  # a crashed service cannot be ended
            _end_service()
        raise
    if mode == "offline":
        _end_service()


def _end_service() -> None:
    """End wandb's service, which first writes its pending data. OSError if it fails."""
    try:
        wandb.teardown()
    except SystemExit as ended:
        raise OSError(f"wandb's service ended with exit code {ended.code}") from None


# --- mode, server and login ---


def chosen_mode(configured: str) -> str:
    """`online`, `offline` or `disabled`; `auto`: WANDB_MODE, else online for a logged-in user."""
    if configured != "auto":
        return configured
    match os.environ.get("WANDB_MODE"):
        case "online" | "offline" as forced:
            return forced
        case "dryrun":
            return "offline"
        case "disabled":
            return "disabled"
    return "online" if logged_in() else "offline"


def logged_in() -> bool:
    """Whether W&B's client finds a key: in the environment, or in the file of `wandb login`.

    `wandb.login(prompt=False)` would send the key to the server, and fail if it does not answer.
    """
    named = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    if named:
        return True
    try:
        return read_netrc_auth(host=server_url()) is not None
    except wandb.Error:  # a key of another form
        return False


def server_url() -> str:
    """The server of W&B's client: `WANDB_BASE_URL`, that of `wandb login --host`, or the cloud."""
    settings = wandb.Settings(silent=True)
    folder = os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    settings.settings_system = str(Path(folder).expanduser() / "settings")
    settings.update_from_system_settings()
    return (os.environ.get("WANDB_BASE_URL") or settings.base_url).rstrip("/")


# --- the folder of offline runs, and notes of what W&B was given ---


def mirror_folder(runs: Path) -> Path:
    """Folder of the offline runs and the markers."""
    return runs / ".wandb"


def machine_id(experiment: str, host: str) -> str:
    """Id of the run of a machine."""
    return f"machine-{experiment}-{host}"


@dataclass(frozen=True)
class Destination:
    """The place that runs are sent to: a project in the folder of offline runs, or on a server.

    A run goes to each destination once. So a renamed project gets all runs, and two experiments
    that share units and have projects of their own do not send them in turns for ever.
    """

    runs: Path
    mode: str
    project: str

    @property
    def place(self) -> dict[str, str]:
        """Its name: without WANDB_ENTITY the server takes the entity of the login."""
        server = {"server": server_url()} if self.mode == "online" else {}
        entity = os.environ.get("WANDB_ENTITY", "")
        return {"mode": self.mode, **server, "entity": entity, "project": self.project}

    def holding(self, content: Any) -> dict[str, str]:
        """The note of a run: where its `content` went, and a digest of it."""
        return self.place | {"rows": digest(content)}

    def marker(self, run_id: str) -> Path:
        """The note of a run. The folder holds one offline run of each unit, whatever its project."""
        name = f"{run_id}-{digest(self.place)}" if self.mode == "online" else run_id
        return mirror_folder(self.runs) / f"{name}.json"


def remember(run_id: str, content: Any, to: Destination, rows: Mapping[int, Any] = {}) -> None:
    """Note that W&B was given this `content` of a run, any value of JSON, with the `rows` by step."""
    note = to.holding(content) | {"count": len(rows), "of_rows": digest(list(rows.items()))}
    write_atomically(to.marker(run_id), json.dumps(note), durable=False)


def rows_given(run_id: str, rows: Mapping[int, Any], to: Destination) -> int | None:
    """The step after the last row that W&B was given; None if it is not noted, or `rows` changed."""
    with suppress(FileNotFoundError, ValueError, KeyError):  # absent, torn, of an older version
        note = json.loads(to.marker(run_id).read_text())
        same = list(rows.items())[: note["count"]]
        if digest(same) == note["of_rows"]:
            return same[-1][0] + 1 if same else 0
    return None


def was_given(run_id: str, content: Any, to: Destination, within_s: float = math.inf) -> bool:
    """Whether W&B was given exactly `content` of a run, in the last `within_s` seconds."""
    marker = to.marker(run_id)
    try:
        known = to.holding(content).items() <= json.loads(marker.read_text()).items()
        return known and time.time() - marker.stat().st_mtime < within_s
    except (FileNotFoundError, ValueError):  # absent or torn
        return False


def note_project(project: str, url: str, runs: Path) -> None:
    """Remember the page of a project on the present server."""
    folder = mirror_folder(runs)
    folder.mkdir(parents=True, exist_ok=True)
    note = Destination(runs, "online", project).place | {"url": url}
    write_atomically(folder / PROJECT_NOTE, json.dumps(note), durable=False)


def noted_project(project: str, runs: Path) -> str | None:
    """The page of a project that `note_project` noted for the present server, if any."""
    try:
        note = json.loads((mirror_folder(runs) / PROJECT_NOTE).read_text())
    except (FileNotFoundError, ValueError):
        return None
    url = note.pop("url")
    return url if note == Destination(runs, "online", project).place else None


def leet_command(runs: Path) -> str:
    """The command that shows offline runs in the terminal."""
    return f"{_program()} leet {_offline_runs(runs)}"


def sync_command(runs: Path) -> str:
    """The command that sends offline runs to the server; the star is for the shell."""
    return f"{_program()} sync {_offline_runs(runs)}/offline-run-*"


def _program() -> str:
    """W&B's command: the one of this Python's environment if it has one."""
    beside = Path(sys.executable).with_name("wandb")
    return shlex.quote(from_here(beside)) if beside.exists() else "wandb"


def _offline_runs(runs: Path) -> str:
    return shlex.quote(from_here(mirror_folder(runs) / "wandb"))
