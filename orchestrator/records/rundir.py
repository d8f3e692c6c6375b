"""The run directory of a unit: the only truth. This module alone reads and writes it.

Rows are appended freely; `commit` records how far the files are valid together with the next step, atomically.
Opening for writing truncates to what was committed, so after any kill the files continue as if nothing happened.
`state.json` holds the sha256 of what was committed, evaluations their own: a file that is not what was written raises
`files.Damaged` wherever it is read, and never gives another number.
Clocks live in `attempts.jsonl` and `timing.jsonl`, which are logs and not part of that promise.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.records.files import (
    Damaged,
    damaged,
    file_sha256,
    list_folder,
    parse_json,
    parse_rows,
    pretty,
    read_bytes,
    read_object,
    read_sealed,
    read_text,
    sealed_lines,
    sync,
    unsealed_lines,
    verify_files,
    write_atomically,
    write_sealed,
)
from orchestrator.records.lease import Holder, Lease, holder_of
from orchestrator.records.log import Phase, RunLog, read_log, read_phase
from orchestrator.records.problem_record import ProblemRecord

LOGS = ("metrics.jsonl", "rollouts.jsonl")
CLOCKS = ("attempts.jsonl", "timing.jsonl")
LEARNER_STATE = "learner.safetensors"
REEVALUATE = "remove it; trb submit evaluates the checkpoint again"
# How a line of `ProblemRecord.to_row` begins.
_COUNTS = re.compile(rb'^\{"problem": "([^"\\]*)", "n": ([0-9]+), "correct": ([0-9]+), .*\n', re.MULTILINE)


class RunReader:
    """A unit's directory, read only; safe while another process writes."""

    def __init__(self, runs: Path, unit_id: str):
        self.unit_id = unit_id
        self.path = runs / unit_id
        self._lock = runs / ".locks" / f"{unit_id}.lock"
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise damaged(self.path, "is not a folder", "remove it; trb submit trains the unit again")

    @property
    def next_step(self) -> int:
        """The step that comes next after the last commit; 0 for a fresh unit."""
        return self._state().get("next_step", 0)

    @property
    def trained(self) -> bool:
        """Whether training is complete (evaluations may still be missing): DONE names the step that was committed."""
        done = read_text(self.path / "DONE", self.remedy)
        return done is not None and done.strip() == str(self.next_step)

    @property
    def started(self) -> bool:
        return (self.path / "config.json").exists()

    @property
    def running(self) -> bool:
        """Whether a process works on the unit now."""
        return self.holder is not None

    @property
    def holder(self) -> Holder | None:
        """The process that works on the unit now, if any."""
        return holder_of(self._lock)

    @property
    def error(self) -> str | None:
        """Why the unit failed, if it did."""
        return read_text(self.path / "error.txt", "remove it")

    @property
    def traceback(self) -> str | None:
        """The traceback of that failure."""
        return read_text(self.path / "traceback.txt", "remove it")

    def config(self) -> dict[str, Any]:
        """The resolved configuration the unit was started with."""
        return self._described("config.json")

    def provenance(self) -> dict[str, Any]:
        """Commit, dirty diff, versions and host of the first attempt, and the models that the unit is trained from."""
        return self._described("provenance.json")

    def attempts(self) -> list[dict[str, Any]]:
        """A row for each attempt at the unit: when it `started`, with what code, versions and machine."""
        return self._clock("attempts.jsonl", {"started": str})

    def metrics(self) -> list[dict[str, Any]]:
        """A row for each step, the not yet committed ones included."""
        return list(self._rows("metrics.jsonl"))

    def committed_metrics(self) -> list[dict[str, Any]]:
        """Rows that no later truncation can take back."""
        return self.committed("metrics.jsonl")

    def rollouts(self) -> Iterator[dict[str, Any]]:
        """A row for each training rollout."""
        return self._rows("rollouts.jsonl")

    def committed(self, log: str) -> list[dict[str, Any]]:
        """Rows of a log that no later truncation can take back."""
        return list(self._rows(log, committed=True))

    def document(self, name: str) -> Any:
        """What a JSON file of its own holds; None if it was not written."""
        path = self.path / name
        data = read_bytes(path, self.remedy)
        known = self._state().get("documents", {}).get(name)
        if known is not None and (data is None or hashlib.sha256(data).hexdigest() != known):
            raise damaged(path, "is not what was written", self.remedy)
        return None if data is None else parse_json(data, path, self.remedy)

    def timing(self) -> list[dict[str, Any]]:
        """Wall-clock rows, each with the time `at` which it was written (UTC, seconds since 1970).

        It is a log in which steps that were repeated after a kill appear again.
        """
        return self._clock("timing.jsonl", {"phase": str, "step": int})

    def timing_stamp(self) -> tuple[int, int] | None:
        """What changes whenever there are more wall-clock rows; None if there are none."""
        try:
            found = (self.path / "timing.jsonl").stat()
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns

    def log_text(self) -> str | None:
        """The log for people; None if the unit has not started."""
        return read_log(self.path)

    def phase(self) -> Phase | None:
        """What the unit noted last of what it does; None where it noted nothing."""
        return read_phase(self.path)

    def checkpoints(self) -> dict[int, Path]:
        """Checkpoints that are there, by step."""
        return {step: self.checkpoint_path(step) for step in self._steps(self.path / "checkpoints", "")}

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step lies, if it is there."""
        return self.path / "checkpoints" / f"step_{step:06d}"

    def committed_checkpoints(self) -> list[int]:
        """Steps of the checkpoints that were committed and not dropped; one that is not there was lost."""
        return sorted(map(int, self._state().get("checkpoints", {})))

    def checkpoint_files(self, step: int) -> dict[str, str]:
        """sha256 of the files of a committed checkpoint by name, without the learner's state."""
        files = self._state().get("checkpoints", {}).get(str(step), {})
        return {name: sha256 for name, sha256 in files.items() if name != LEARNER_STATE}

    def verify_checkpoint(self, step: int, learner: bool = False) -> None:
        """Raise Damaged unless a committed checkpoint is what was written, with the `learner`'s state or without."""
        known = self._state().get("checkpoints", {}).get(str(step))
        if known is None:
            raise damaged(self.checkpoint_path(step), "was never committed", self.remedy)
        verify_files(self.checkpoint_path(step), known if learner else self.checkpoint_files(step), self.remedy)

    def evaluation(self, evaluation_id: str, step: int) -> list[ProblemRecord] | None:
        """Records of a checkpoint, a row per problem; None if it was not evaluated."""
        path = self._evaluation_path(evaluation_id, step)
        data = self._sealed(path)
        return None if data is None else [ProblemRecord.from_row(row) for row in parse_rows(data, path, REEVALUATE)]

    def counts(self, evaluation_id: str, step: int) -> list[tuple[str, int, int]] | None:
        """(problem, n, correct) of each record: `evaluation` at a tenth of its time, for tables over many runs."""
        data = self._sealed(self._evaluation_path(evaluation_id, step))
        if data is None:
            return None
        found = _COUNTS.findall(data)
        if len(found) != data.count(b"\n"):  # rows of another layout, or names with escapes
            return [(r.problem, r.n, r.correct) for r in self.evaluation(evaluation_id, step) or []]
        return [(problem.decode(), int(n), int(correct)) for problem, n, correct in found]

    def evaluation_stamp(self, evaluation_id: str, step: int) -> tuple[int, int] | None:
        """What changes whenever a checkpoint's records are written again; None if it was not evaluated."""
        try:
            found = self._evaluation_path(evaluation_id, step).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            path = self._evaluation_path(evaluation_id, step)
            raise damaged(path, f"cannot be read ({error.strerror or error})", REEVALUATE) from None
        return found.st_ino, found.st_mtime_ns

    def rungs(self, evaluation_id: str, step: int) -> list[tuple[int, list[int]]]:
        """(n, correct of each problem) as they were whenever a race took more samples, fewest first."""
        path = self._rungs_path(evaluation_id, step)
        rows = parse_rows(self._sealed(path) or b"", path, REEVALUATE)
        return [(row["n"], row["correct"]) for row in rows]

    def evaluated_steps(self, evaluation_id: str) -> list[int]:
        """Steps with records of this evaluation."""
        return self._steps(self.path / "evals" / evaluation_id, ".jsonl")

    def _steps(self, folder: Path, suffix: str) -> list[int]:
        """Steps of the entries `step_000020` + suffix of a folder."""
        names = list_folder(folder, self.remedy)
        found = (re.fullmatch(rf"step_([0-9]{{6,}}){re.escape(suffix)}", name) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def _evaluation_path(self, evaluation_id: str, step: int) -> Path:
        return self.path / "evals" / evaluation_id / f"step_{step:06d}.jsonl"

    def _rungs_path(self, evaluation_id: str, step: int) -> Path:
        return self._evaluation_path(evaluation_id, step).with_suffix(".rungs")

    def _described(self, name: str) -> dict[str, Any]:
        value = read_object(self.path / name, self.remedy)
        if value is None:
            raise damaged(self.path / name, "is missing", self.remedy)
        return value

    def _sealed(self, path: Path) -> bytes | None:
        """Lines of an evaluation's file; None if there is no file."""
        data = read_bytes(path, REEVALUATE)
        return None if data is None else unsealed_lines(data, path, REEVALUATE)

    def _rows(self, log: str, committed: bool = False) -> Iterator[dict[str, Any]]:
        """Rows of a log, of which what was committed is verified; the others are left out once training is complete."""
        path = self.path / log
        committed = committed or self.trained
        state = self._state()  # once, and before the log: a writer may commit at any moment
        size = _committed_bytes(state, log)
        data = read_bytes(path, self.remedy) or b""
        self._verify_log(state, log, len(data), hashlib.sha256(data[:size]).hexdigest())
        return parse_rows(data[:size] if committed else data, path, self.remedy)

    def _verify_log(self, state: dict[str, Any], log: str, size: int, sha256: str) -> None:
        """Raise Damaged unless a log of `size` bytes, whose committed ones have this sha256, is what `state` says."""
        wanted = _committed_bytes(state, log)
        if size < wanted:
            what = f"has {size:,} of the {wanted:,} bytes that were committed"
            raise damaged(self.path / log, what, self.remedy)
        if wanted and sha256 != state.get("log_sha256", {}).get(log):
            raise damaged(self.path / log, "is not what was committed", self.remedy)

    def _clock(self, name: str, columns: dict[str, type]) -> list[dict[str, Any]]:
        """Rows of a wall-clock log. Raises Damaged where one lacks a column or has it of another type."""
        path, remedy = self.path / name, "remove it; only clock times are lost"
        rows = list(parse_rows(read_bytes(path, remedy) or b"", path, remedy))
        for number, row in enumerate(rows, 1):
            for column, kind in columns.items():
                if not isinstance(row.get(column), kind):
                    raise damaged(path, f"line {number} has no {column}", remedy)
        return rows

    @property
    def models(self) -> dict[str, dict[str, str | None]]:
        """What the unit was trained from, as far as it was committed: see `made_models.trained_from`."""
        return self._state().get("models", {})

    @property
    def remedy(self) -> str:
        """What to do about a damaged file of the unit."""
        return f"remove the folder {self.path}; trb submit trains the unit again"

    def _state(self) -> dict[str, Any]:
        return read_sealed(self.path / "state.json", self.remedy) or {}


class RecordWriter(RunReader):
    """Writes evaluations and nothing else; holds the unit's lease until `close`. Raises LeaseHeld."""

    def __init__(self, runs: Path, unit_id: str):
        super().__init__(runs, unit_id)
        self._lease = Lease(self._lock)

    def write_evaluation(self, evaluation_id: str, step: int, records: list[ProblemRecord]) -> None:
        """Records of a checkpoint, replacing what was there: fewer samples of the same, or older grades."""
        path = self._evaluation_path(evaluation_id, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, sealed_lines("".join(_line(record.to_row()) for record in records)))

    def close(self) -> None:
        """Let go of the lease."""
        self._lease.release()


class RunWriter(RecordWriter):
    """The one writer of a unit's directory with its `logs`; holds its lease until `close`."""

    def __init__(self, runs: Path, unit_id: str, logs: Sequence[str] = LOGS):
        super().__init__(runs, unit_id)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for note in ("error.txt", "traceback.txt"):
                (self.path / note).unlink(missing_ok=True)
            self._committed = self._discard_uncommitted(logs)
        except BaseException:
            self._lease.release()
            raise
        self.log = RunLog(self.path)
        self._logs = {name: (self.path / name).open("a", encoding="utf-8") for name in logs}
        state = self._state()
        self._models: Mapping[str, Any] = state.get("models", {})
        self._checkpoints: dict[str, dict[str, str]] = state.get("checkpoints", {})
        self._documents: dict[str, str] = state.get("documents", {})

    def describe(
        self,
        config: dict[str, Any],
        provenance: Callable[[], dict[str, Any]],
        models: Mapping[str, Any] | None = None,
    ) -> None:
        """Write `config.json` and `provenance.json` once, when the unit starts, and a row of `attempts.jsonl`.

        `models` is what the unit is trained from. Raises UserError if what was committed was trained from others.
        """
        self._models = models or self.models
        for role, model in self.models.items():
            if model != self._models.get(role):
                raise UserError(f"{self.path}: trained from another {role} than the one that is here — {self.remedy}")
        now = provenance() | {"models": self._models}
        if not self.started:
            write_atomically(self.path / "provenance.json", pretty(now))
            write_atomically(self.path / "config.json", pretty(config))
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._append_log("attempts.jsonl", {"started": started} | now)

    def describe_data(self, counts: dict[str, Any]) -> None:
        """Write `data.json` once: what the training data hold, what was left out, where the golds come from."""
        name = "data.json"
        if self.document(name) is None:
            self.write_document(name, counts)
        else:  # by an attempt that may have ended before its first commit
            self._documents[name] = file_sha256(self.path / name)

    def append(self, log: str, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows to one of the logs; numbers that are not finite become null."""
        self._logs[log].writelines(_line(row) for row in rows)
        self._logs[log].flush()

    def write_document(self, name: str, value: Any) -> None:
        """Write `name`, a JSON file of its own, replacing what was there."""
        text = pretty(_finite(value))
        write_atomically(self.path / name, text)
        self._documents[name] = hashlib.sha256(text.encode()).hexdigest()

    def append_timing(self, row: dict[str, Any]) -> None:
        """Append to the wall-clock log, with the time."""
        self._append_log("timing.jsonl", row | {"at": round(time.time(), 1)})

    def new_checkpoint(self, step: int, save: Callable[[Path], None]) -> None:
        """Make a checkpoint complete or not at all: `save` fills a scratch folder that is then renamed."""
        target = self.checkpoint_path(step)
        scratch = target.with_name(f"{target.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        save(scratch)
        for path in scratch.rglob("*"):
            sync(path)
        files = {path.relative_to(scratch).as_posix(): path for path in scratch.rglob("*") if path.is_file()}
        self._checkpoints[str(step)] = {name: file_sha256(path) for name, path in sorted(files.items())}
        shutil.rmtree(target, ignore_errors=True)
        os.replace(scratch, target)
        sync(target.parent)

    def commit(self, next_step: int) -> None:
        """Everything written so far is valid and training goes on at `next_step`."""
        for name, file in self._logs.items():
            file.flush()
            os.fsync(file.fileno())
            self._committed[name].extend(self.path / name, file.tell())
        for step, files in self._checkpoints.items():
            if int(step) != next_step:
                files.pop(LEARNER_STATE, None)
        self._write_state(next_step)
        for step, folder in self.checkpoints().items():
            if step != next_step:
                (folder / LEARNER_STATE).unlink(missing_ok=True)

    def note_rung(self, evaluation_id: str, step: int) -> None:
        """Keep the counts that a race rests on before its next rung adds to them; noting them again changes nothing."""
        counts = self.counts(evaluation_id, step)
        assert counts, "only what was evaluated is extended"
        now = (counts[0][1], [correct for _, _, correct in counts])
        rungs = [*(rung for rung in self.rungs(evaluation_id, step) if rung != now), now]
        lines = [_line({"n": n, "correct": correct}) for n, correct in rungs]
        write_atomically(self._rungs_path(evaluation_id, step), sealed_lines("".join(lines)))

    def drop_checkpoints(self, keep: set[int]) -> None:
        """Remove all checkpoints but those of the steps in `keep`; what is meant to go is noted before it goes."""
        dropped = [step for step in self._checkpoints if int(step) not in keep]
        if dropped:
            for step in dropped:
                del self._checkpoints[step]
            self._write_state(self.next_step)
        for step, folder in self.checkpoints().items():
            if step not in keep:
                shutil.rmtree(folder)

    def finish(self) -> None:
        """Training is complete: the learner's state is no longer needed."""
        for folder in self.checkpoints().values():
            (folder / LEARNER_STATE).unlink(missing_ok=True)
        write_atomically(self.path / "DONE", f"{self.next_step}\n")

    def fail(self, reason: str, traceback: str) -> None:
        """Leave a line for `status`, and the whole story beside it; the next attempt removes both."""
        write_atomically(self.path / "traceback.txt", traceback)
        write_atomically(self.path / "error.txt", reason)

    def close(self) -> None:
        """Let go of the files and the lease."""
        for file in self._logs.values():
            file.close()
        super().close()

    def _append_log(self, name: str, row: dict[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def _write_state(self, next_step: int) -> None:
        logs = self._committed.items()
        state = {
            "next_step": next_step,
            "offsets": {name: part.size for name, part in logs},
            "log_sha256": {name: part.sha256.hexdigest() for name, part in logs},
            "checkpoints": self._checkpoints,
            "documents": self._documents,
            "models": self._models,
        }
        write_sealed(self.path / "state.json", state)

    def _discard_uncommitted(self, logs: Sequence[str]) -> dict[str, _CommittedPart]:
        """Truncate the logs to what was committed, and remove what was not committed of the checkpoints."""
        committed = {name: self._open_log(name) for name in logs}
        for name in CLOCKS:
            _drop_torn_line(self.path / name)
        for scratch in (self.path / "checkpoints").glob("*.tmp"):
            shutil.rmtree(scratch)
        kept = self.committed_checkpoints()
        for step, folder in self.checkpoints().items():
            if step not in kept:
                shutil.rmtree(folder)
        return committed

    def _open_log(self, name: str) -> _CommittedPart:
        """Truncate a log to what was committed. Raises Damaged if that is not what was written."""
        path, state, part = self.path / name, self._state(), _CommittedPart()
        path.touch()
        part.extend(path, _committed_bytes(state, name))
        self._verify_log(state, name, part.size, part.sha256.hexdigest())
        with path.open("ab") as file:
            file.truncate(part.size)
        return part


class _CommittedPart:
    """The committed first bytes of a log, with their running sha256."""

    def __init__(self) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()

    def extend(self, path: Path, size: int) -> None:
        """Take in what the file holds from the present end up to `size` bytes."""
        with path.open("rb") as file:
            file.seek(self.size)
            data = file.read(size - self.size)
        self.sha256.update(data)
        self.size += len(data)


def _committed_bytes(state: dict[str, Any], log: str) -> int:
    return state.get("offsets", {}).get(log, 0)


def noted_models(runs: Path) -> list[tuple[str, dict[str, dict[str, str | None]]]]:
    """(unit id, models it was trained from) of every unit that has committed; damaged ones are left out."""
    noted = []
    for state in sorted(runs.glob("*/state.json")):
        run = RunReader(runs, state.parent.name)
        with suppress(Damaged):
            noted.append((run.unit_id, run.models))
    return noted


def _drop_torn_line(path: Path) -> None:
    """Cut off what a kill left of a last line, so that the next row starts on its own."""
    if path.exists():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _line(row: dict[str, Any]) -> str:
    return json.dumps(_finite(row), ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """NaN and infinities are missing numbers: null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
