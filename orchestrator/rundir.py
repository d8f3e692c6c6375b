"""The run directory of a unit: the only truth. This module alone reads and writes it.

Rows are appended freely; `commit` records how far the files are valid together with the next step, atomically.
Opening for writing truncates to what was committed, so after any kill the files continue as if nothing happened.
Clocks live in `attempts.jsonl` and `timing.jsonl`, which are logs and not part of that promise.
"""

from __future__ import annotations

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
from orchestrator.files import Damaged, pretty, read_sealed, sync, write_atomically, write_sealed
from orchestrator.lease import Lease, is_held
from orchestrator.records import ProblemRecord
from orchestrator.runlog import Phase, RunLog, read_log, read_phase

LOGS = ("metrics.jsonl", "rollouts.jsonl")
CLOCKS = ("attempts.jsonl", "timing.jsonl")
LEARNER_STATE = "learner.safetensors"
# How a line of `ProblemRecord.to_row` begins.
_COUNTS = re.compile(rb'^\{"problem": "([^"\\]*)", "n": ([0-9]+), "correct": ([0-9]+), .*\n', re.MULTILINE)


class RunReader:
    """A unit's directory, read only; safe while another process writes."""

    def __init__(self, runs: Path, unit_id: str):
        self.unit_id = unit_id
        self.path = runs / unit_id
        self._lock = runs / ".locks" / f"{unit_id}.lock"

    @property
    def next_step(self) -> int:
        """The step that comes next after the last commit; 0 for a fresh unit."""
        return self._state().get("next_step", 0)

    @property
    def trained(self) -> bool:
        """Whether training is complete (evaluations may still be missing)."""
        return (self.path / "DONE").exists()

    @property
    def started(self) -> bool:
        return (self.path / "config.json").exists()

    @property
    def running(self) -> bool:
        """Whether a process works on the unit now."""
        return is_held(self._lock)

    @property
    def error(self) -> str | None:
        """Why the unit failed, if it did."""
        return _read_text(self.path / "error.txt")

    def config(self) -> dict[str, Any]:
        """The resolved configuration the unit was started with."""
        return json.loads((self.path / "config.json").read_text())

    def provenance(self) -> dict[str, Any]:
        """Commit, dirty diff, versions and host of the first attempt."""
        return json.loads((self.path / "provenance.json").read_text())

    def attempts(self) -> list[dict[str, Any]]:
        """A row for each attempt at the unit: when it `started`, with what code, versions and machine."""
        return list(_rows(self.path / "attempts.jsonl"))

    def metrics(self) -> list[dict[str, Any]]:
        """A row for each step, the not yet committed ones included."""
        return list(_rows(self.path / "metrics.jsonl"))

    def committed_metrics(self) -> list[dict[str, Any]]:
        """Rows that no later truncation can take back."""
        return self.committed("metrics.jsonl")

    def rollouts(self) -> Iterator[dict[str, Any]]:
        """A row for each training rollout."""
        return _rows(self.path / "rollouts.jsonl")

    def committed(self, log: str) -> list[dict[str, Any]]:
        """Rows of a log that no later truncation can take back."""
        return list(_rows(self.path / log, self._state().get("offsets", {}).get(log, 0)))

    def document(self, name: str) -> Any:
        """What a JSON file of its own holds; None if it was not written."""
        text = _read_text(self.path / name)
        return None if text is None else json.loads(text)

    def timing(self) -> list[dict[str, Any]]:
        """Wall-clock rows, each with the time `at` which it was written (UTC, seconds since 1970).

        It is a log in which steps that were repeated after a kill appear again.
        """
        return list(_rows(self.path / "timing.jsonl"))

    def log_text(self) -> str | None:
        """The log for people; None if the unit has not started."""
        return read_log(self.path)

    def phase(self) -> Phase | None:
        """What the unit noted last of what it does; None where it noted nothing."""
        return read_phase(self.path)

    def checkpoints(self) -> dict[int, Path]:
        """Kept checkpoints by step."""
        folders = (self.path / "checkpoints").glob("step_??????")
        return {int(folder.name.removeprefix("step_")): folder for folder in sorted(folders)}

    def evaluation(self, evaluation_id: str, step: int) -> list[ProblemRecord] | None:
        """Records of a checkpoint, a row per problem; None if it was not evaluated."""
        path = self._evaluation_path(evaluation_id, step)
        return [ProblemRecord.from_row(row) for row in _rows(path)] if path.exists() else None

    def counts(self, evaluation_id: str, step: int) -> list[tuple[str, int, int]] | None:
        """(problem, n, correct) of each record: `evaluation` at a tenth of its time, for tables over many runs."""
        path = self._evaluation_path(evaluation_id, step)
        if not path.exists():
            return None
        data = path.read_bytes()
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
        return found.st_ino, found.st_mtime_ns

    def rungs(self, evaluation_id: str, step: int) -> list[tuple[int, list[int]]]:
        """(n, correct of each problem) as they were whenever a race took more samples, fewest first."""
        return [(row["n"], row["correct"]) for row in _rows(self._rungs_path(evaluation_id, step))]

    def evaluated_steps(self, evaluation_id: str) -> list[int]:
        """Steps with records of this evaluation."""
        files = (self.path / "evals" / evaluation_id).glob("step_??????.jsonl")
        return sorted(int(file.stem.removeprefix("step_")) for file in files)

    def _evaluation_path(self, evaluation_id: str, step: int) -> Path:
        return self.path / "evals" / evaluation_id / f"step_{step:06d}.jsonl"

    def _rungs_path(self, evaluation_id: str, step: int) -> Path:
        return self._evaluation_path(evaluation_id, step).with_suffix(".rungs")

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
        write_atomically(path, "".join(_line(record.to_row()) for record in records))

    def close(self) -> None:
        """Let go of the lease."""
        self._lease.release()


class RunWriter(RecordWriter):
    """The one writer of a unit's directory with its `logs`; holds its lease until `close`."""

    def __init__(self, runs: Path, unit_id: str, logs: Sequence[str] = LOGS):
        super().__init__(runs, unit_id)
        self.path.mkdir(parents=True, exist_ok=True)
        for note in ("error.txt", "traceback.txt"):
            (self.path / note).unlink(missing_ok=True)
        self._discard_uncommitted(logs)
        self.log = RunLog(self.path)
        self._logs = {name: (self.path / name).open("a", encoding="utf-8") for name in logs}
        self._models: Mapping[str, Any] = self.models

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
        if not (self.path / "data.json").exists():
            write_atomically(self.path / "data.json", pretty(counts))

    def append(self, log: str, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows to one of the logs; numbers that are not finite become null."""
        self._logs[log].writelines(_line(row) for row in rows)
        self._logs[log].flush()

    def write_document(self, name: str, value: Any) -> None:
        """Write `name`, a JSON file of its own, replacing what was there."""
        write_atomically(self.path / name, pretty(_finite(value)))

    def append_timing(self, row: dict[str, Any]) -> None:
        """Append to the wall-clock log, with the time."""
        self._append_log("timing.jsonl", row | {"at": round(time.time(), 1)})

    def new_checkpoint(self, step: int, save: Callable[[Path], None]) -> None:
        """Make a checkpoint complete or not at all: `save` fills a scratch folder that is then renamed."""
        target = self._checkpoint_path(step)
        scratch = target.with_name(f"{target.name}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        save(scratch)
        for path in scratch.rglob("*"):
            sync(path)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(scratch, target)
        sync(target.parent)

    def commit(self, next_step: int) -> None:
        """Everything written so far is valid and training goes on at `next_step`."""
        offsets = {}
        for name, file in self._logs.items():
            file.flush()
            os.fsync(file.fileno())
            offsets[name] = file.tell()
        state = {"next_step": next_step, "offsets": offsets, "models": self._models}
        write_sealed(self.path / "state.json", state)
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
        write_atomically(self._rungs_path(evaluation_id, step), "".join(lines))

    def drop_checkpoints(self, keep: set[int]) -> None:
        """Remove all checkpoints but those of the steps in `keep`."""
        for step, folder in self.checkpoints().items():
            if step not in keep:
                shutil.rmtree(folder)

    def finish(self) -> None:
        """Training is complete: the learner's state is no longer needed."""
        for folder in self.checkpoints().values():
            (folder / LEARNER_STATE).unlink(missing_ok=True)
        write_atomically(self.path / "DONE", "")

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

    def _discard_uncommitted(self, logs: Sequence[str]) -> None:
        """Truncate the logs to the committed offsets and remove half-made and later checkpoints."""
        state = self._state()
        next_step = state.get("next_step", 0)
        for name in logs:
            with (self.path / name).open("ab") as file:
                file.truncate(state.get("offsets", {}).get(name, 0))
        for name in CLOCKS:
            _drop_torn_line(self.path / name)
        for scratch in (self.path / "checkpoints").glob("*.tmp"):
            shutil.rmtree(scratch)
        for step, folder in self.checkpoints().items():
            if step > next_step:
                shutil.rmtree(folder)

    def _checkpoint_path(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step_{step:06d}"


def noted_models(runs: Path) -> list[tuple[str, dict[str, dict[str, str | None]]]]:
    """(unit id, models it was trained from) of every unit that has committed; damaged ones are left out."""
    noted = []
    for state in sorted(runs.glob("*/state.json")):
        run = RunReader(runs, state.parent.name)
        with suppress(Damaged):
            noted.append((run.unit_id, run.models))
    return noted


def _rows(path: Path, size: int | None = None) -> Iterator[dict[str, Any]]:
    """Complete lines of a JSON Lines file, within its first `size` bytes; a torn last line is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        data = file.read() if size is None else file.read(size)
    for line in data.split(b"\n")[:-1]:
        yield json.loads(line)


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


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
