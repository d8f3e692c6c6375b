"""Writes a unit's run directory, so that any kill leaves either the last commit or the next one.

Rows are appended freely, and checkpoints and documents are written whole. All of it counts only
from the next `commit` on, which replaces `state.json` in one step. Opening for writing takes back
what was not committed, so the files of a unit that was killed any number of times go on as if
nothing had happened, and end equal to those of an undisturbed run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from orchestrator.errors import UserError
from orchestrator.liveness.leases import Lease
from orchestrator.records.files import (
    compressed,
    file_sha256,
    give_usual_mode,
    naming,
    pretty,
    sealed_lines,
    sync,
    write_atomically,
    write_once,
    write_sealed,
)
from orchestrator.records.log import FOLDER, HELD_OUT, RolloutSample, RunLog, samples_name
from orchestrator.records.rundir import (
    ATTEMPTS,
    CHECKPOINTS,
    CONFIG,
    DATA,
    DONE,
    ERROR,
    LEARNER_FOLDER,
    LEARNER_STATE,
    METRICS,
    PROVENANCE,
    ROLLOUTS,
    SAVED,
    STATE,
    TIMING,
    TRACEBACK,
    RunReader,
    committed_bytes,
    without_learner,
)
from orchestrator.records.slices import ProblemRecord, ResponseText, Slice, identity, write_texts

LOGS = (METRICS, ROLLOUTS)
ON_DEMAND = (HELD_OUT,)  # logs that begin with their first row, so that other units have none


class RecordWriter(RunReader):
    """Drops checkpoints of a unit that no process trains; holds its lease until `close`.

    It changes nothing else in the directory, neither the logs nor the note of a failure. Raises
    LeaseHeld.
    """

    def __init__(self, runs: Path, unit_id: str):
        super().__init__(runs, unit_id)
        self._lease = Lease(self._lock)

    def drop_checkpoints(self, keep: set[int]) -> None:
        """Remove all checkpoints but those of the steps in `keep`.

        Their entries in `state.json` go first. A kill in between leaves folders without an entry,
        which the next opening for training or the next call removes. In the other order it would
        leave an entry without its folder, which is damage.
        """
        state = self._state()
        named = state.get("checkpoints", {})
        kept = {step: files for step, files in named.items() if int(step) in keep}
        if kept != named:
            write_sealed(self.path / STATE, state | {"checkpoints": kept})
        for step, folder in self.checkpoints().items():
            if step not in keep:
                shutil.rmtree(folder)

    def close(self) -> None:
        """Let go of the lease."""
        self._lease.release()


class RunWriter(RunReader):
    """The one writer of a unit's directory with its `logs`; holds the unit's lease until `close`.

    Opening it takes back what was not committed. Raises LeaseHeld, and Damaged where something that
    was committed is not there.
    """

    def __init__(self, runs: Path, unit_id: str, logs: Sequence[str] = LOGS):
        super().__init__(runs, unit_id)
        self._lease = Lease(self._lock)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for note in (ERROR, TRACEBACK):
                (self.path / note).unlink(missing_ok=True)
            state = self._state()
            begun = [
                name
                for name in ON_DEMAND
                if committed_bytes(state, name) or (self.path / name).exists()
            ]
            self._committed = {name: self._cut_to_committed(name) for name in [*logs, *begun]}
            for name in (ATTEMPTS, TIMING):
                _drop_torn_line(self.path / name)
            self._remove_uncommitted_checkpoints()
        except BaseException:
            self._lease.release()
            raise
        self.log = RunLog(self.path)
        self._logs = {name: self._opened(name) for name in self._committed}
        state = self._state()
        self._models: Mapping[str, Any] = state.get("models", {})
        self._checkpoints: dict[str, dict[str, str]] = state.get("checkpoints", {})
        self._saved: dict[str, dict[str, str]] = state.get("saved", {})
        self._documents: dict[str, str] = state.get("documents", {})

    def close(self) -> None:
        """Let go of the files and the lease."""
        for file in self._logs.values():
            # Rows that a full disk did not take are tried again here; their failure is known.
            with suppress(OSError):
                file.close()
        self._lease.release()

    # --- what the unit is made with ---

    def describe(
        self,
        config: dict[str, Any],
        provenance: Callable[[], dict[str, Any]],
        models: Mapping[str, Any] | None = None,
    ) -> None:
        """Write `config.json` and `provenance.json` once, and a row of `attempts.jsonl`.

        The latter two name the engines of the attempt, with the dtypes of passes and logits.
        `models` are those that the unit is trained from. Raises UserError if earlier attempts
        trained it from others and committed that.
        """
        self._models = models or self.models
        for role, model in self.models.items():
            if model != self._models.get(role):
                raise UserError(
                    f"{self.path}: trained from another {role} than the one that is here; {self.remedy}"
                )
        now = provenance() | {"models": self._models}
        engine = config.get("setup", {}).get("engine")
        if engine is not None:  # its dtypes decide which numbers may be compared with which
            now["engine"] = engine
        if not self.started:
            # `started` looks for the configuration, which thus comes last: after a kill between the
            # two files the next attempt writes both.
            write_atomically(self.path / PROVENANCE, pretty(now))
            write_atomically(self.path / CONFIG, pretty(config))
        started = datetime.now(UTC).isoformat(timespec="seconds")
        _append(self.path / ATTEMPTS, {"started": started} | now)

    def describe_data(self, counts: dict[str, Any]) -> None:
        """Write `data.json` once: training data, rows that were left out, origins of the golds."""
        if self.document(DATA) is None:
            self.write_document(DATA, counts)
        else:
            # An earlier attempt wrote it, and may have ended before a commit vouched for it.
            self._documents[DATA] = file_sha256(self.path / DATA)

    # --- rows and documents ---

    def append(self, log: str, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows to one of the logs; numbers that are not finite become null."""
        if log in ON_DEMAND and log not in self._logs:
            self._committed[log] = self._cut_to_committed(log)
            self._logs[log] = self._opened(log)
        with naming(self.path / log):
            self._logs[log].writelines(_line(row) for row in rows)
            self._logs[log].flush()

    def append_timing(self, row: dict[str, Any]) -> None:
        """Append to the wall-clock log, with the time."""
        append_timing(self, row)

    def write_document(self, name: str, value: Any) -> None:
        """Write `value` into the JSON file `name`, in place of an earlier value."""
        self._write(name, pretty(_finite(value)).encode())

    def write_samples(self, step: int, samples: Sequence[RolloutSample]) -> None:
        """Write rollouts of a training step token by token, replacing those of a killed attempt."""
        (self.path / FOLDER).mkdir(exist_ok=True)
        lines = "".join(_line(vars(sample)) for sample in samples)
        self._write(samples_name(step), compressed(lines))

    def _write(self, name: str, data: bytes) -> None:
        """Replace a document; the next commit vouches for it."""
        write_atomically(self.path / name, data)
        self._documents[name] = hashlib.sha256(data).hexdigest()

    # --- checkpoints and commits ---

    def new_checkpoint(self, step: int, save: Callable[[Path], None]) -> None:
        """Make a checkpoint, whole or not at all: `save` fills a scratch folder, renamed last.

        It counts from the next `commit` on. A kill leaves a `.tmp` folder before the rename, and
        after it a folder that `state.json` does not name; the next opening removes either, and the
        steps since the last commit are repeated.
        """
        self._checkpoints[str(step)] = _made(self.checkpoint_path(step), save)

    def new_save(self, step: int, save: Callable[[Path], None]) -> None:
        """Save the learner's state after a step between two checkpoints, made as a checkpoint is.

        It is no checkpoint: training alone reads it, and the next commit removes it.
        """
        self._saved[str(step)] = _made(self.saved_path(step), save)

    def commit(self, next_step: int) -> None:
        """Commit everything written so far; training goes on at `next_step`.

        A kill before `state.json` is replaced leaves the previous commit: its learner's state still
        exists, and the next opening removes later rows and checkpoints. A kill afterwards leaves
        this commit. It may leave earlier learner's states, too, which nothing reads and the next
        commit removes. If those states were removed first, a kill could leave no learner's state
        from which to go on.
        """
        for name, file in self._logs.items():
            with naming(self.path / name):
                file.flush()
                os.fsync(file.fileno())
            self._committed[name].extend(self.path / name, file.tell())
        for step in self._checkpoints:
            if int(step) != next_step:
                self._checkpoints[step] = without_learner(self._checkpoints[step])
        self._saved = {step: files for step, files in self._saved.items() if int(step) == next_step}
        self._write_state(next_step)
        for step, folder in self.checkpoints().items():
            if step != next_step:
                _remove_learner_state(folder)
        self._remove_other_saves()

    def finish(self) -> None:
        """Note that training is complete, after removing the learner's state.

        `DONE` comes last. A kill before it leaves a unit whose steps are all committed: the next
        attempt trains nothing, needs no learner's state, and calls `finish` again.
        """
        for folder in self.checkpoints().values():
            _remove_learner_state(folder)
        write_atomically(self.path / DONE, f"{self.next_step}\n")

    def fail(self, reason: str, traceback: str) -> None:
        """Leave a line for `status` and the traceback beside it. The next attempt removes both."""
        write_atomically(self.path / TRACEBACK, traceback)
        write_atomically(self.path / ERROR, reason)

    def _write_state(self, next_step: int) -> None:
        state = {
            "next_step": next_step,
            "offsets": {name: part.size for name, part in self._committed.items()},
            "log_sha256": {name: part.sha256.hexdigest() for name, part in self._committed.items()},
            "checkpoints": self._checkpoints,
            "documents": self._documents,
            "models": self._models,
        }
        if self._saved:  # a unit that ended says nothing of its saves
            state["saved"] = self._saved
        write_sealed(self.path / STATE, state)

    def _opened(self, log: str) -> TextIO:
        return (self.path / log).open("a", encoding="utf-8")

    # --- taking back what was not committed ---

    def _cut_to_committed(self, log: str) -> _CommittedPart:
        """Truncate a log to its committed bytes. Raises Damaged if these are not as written."""
        path, state = self.path / log, self._state()
        part = _CommittedPart()
        path.touch()
        part.extend(path, committed_bytes(state, log))
        self._verify_log(state, log, part.size, part.sha256.hexdigest())
        with path.open("ab") as file:
            file.truncate(part.size)
        return part

    def _remove_uncommitted_checkpoints(self) -> None:
        for scratch in (self.path / CHECKPOINTS).glob("*.tmp"):
            shutil.rmtree(scratch)
        committed = self.committed_checkpoints()
        for step, folder in self.checkpoints().items():
            if step not in committed:
                shutil.rmtree(folder)
        self._remove_other_saves()

    def _remove_other_saves(self) -> None:
        """Remove every save, or what a kill left of one, but the one that `state.json` names."""
        named = {self.saved_path(int(step)) for step in self._state().get("saved", {})}
        folder = self.path / SAVED
        if not named and folder.exists():
            shutil.rmtree(folder)
        for saved in set(folder.glob("*")) - named:
            shutil.rmtree(saved)


class _CommittedPart:
    """The committed bytes of a log with a running sha256, so that a commit reads only new ones."""

    def __init__(self) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()

    def extend(self, path: Path, size: int) -> None:
        """Take in the file's bytes from the present end up to `size`."""
        with path.open("rb") as file:
            file.seek(self.size)
            data = file.read(size - self.size)
        self.sha256.update(data)
        self.size += len(data)


def write_slice(
    run: RunReader,
    evaluation_id: str,
    step: int,
    part: Slice,
    records: Sequence[ProblemRecord],
    texts: Sequence[ResponseText] = (),
    replace: bool = False,
) -> bool:
    """Write the records of a slice, one for each of its problems, and the `texts` that are kept.

    Returns False if the slice exists already; with `replace` its records get other grades. The file
    is whole or absent, and the first evaluator to write it wins. Writing needs no lease: all
    evaluators take the same samples of a slice, or samples of the same law, and only grades of a
    slice ever change.

    The texts come first. A kill between the two files leaves texts without a slice, which no reader
    opens and the next writer of the slice replaces. In the other order a slice could lack its texts
    for good.
    """
    assert [record.n for record in records] == [part.samples] * part.width
    folder = run.evaluation_path(evaluation_id, step)
    if not replace and (folder / part.name).exists():
        return False  # and keep its texts, which are of the same responses
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(folder, part, texts)
    lines = "".join(_line(record.to_row()) for record in records)
    content = sealed_lines(lines, identity(folder, part))
    if not replace:
        return write_once(folder / part.name, content)
    write_atomically(folder / part.name, content, shared=True)
    return True


def note_evaluation_error(
    run: RunReader, evaluation_id: str, step: int, reason: str, traceback: str = ""
) -> None:
    """Note why samples of a checkpoint cannot be taken; none are taken until the note is removed."""
    folder = run.evaluation_path(evaluation_id, step)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / TRACEBACK, traceback, shared=True)
    write_atomically(folder / ERROR, reason, shared=True)


def forget_evaluation_errors(run: RunReader) -> None:
    """Remove the notes of failed evaluations, so that evaluators try them again."""
    for name in (ERROR, TRACEBACK):
        for path in run.path.glob(f"evals/*/*/{name}"):
            path.unlink(missing_ok=True)


def append_timing(run: RunReader, row: dict[str, Any]) -> None:
    """Append a row to the wall-clock log of a unit, with the time; needs no lease."""
    # An evaluator may be the first to work at an untrained student.
    run.path.mkdir(parents=True, exist_ok=True)
    _append(run.path / TIMING, row | {"at": round(time.time(), 1)})


def _made(target: Path, save: Callable[[Path], None]) -> dict[str, str]:
    """Make a folder whole or not at all: `save` fills a scratch folder, renamed last.

    Returns the sha256 of its files by name.
    """
    scratch = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    save(scratch)
    give_usual_mode(scratch)
    files = {}
    for path in sorted(scratch.rglob("*")):
        sync(path)
        if path.is_file():
            files[path.relative_to(scratch).as_posix()] = file_sha256(path)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(scratch, target)
    sync(target.parent)
    return files


def _remove_learner_state(checkpoint: Path) -> None:
    """Remove the learner's state. A kill may leave a part of it, which no reader opens."""
    (checkpoint / LEARNER_STATE).unlink(missing_ok=True)
    if (checkpoint / LEARNER_FOLDER).exists():
        shutil.rmtree(checkpoint / LEARNER_FOLDER)


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line that a kill left incomplete, so that the next row gets its own line.

    A file that ends in a whole line is left alone: an evaluator may append a row in this instant.
    """
    if path.exists():
        with path.open("rb+") as file:
            data = file.read()
            if not data.endswith(b"\n"):
                file.truncate(data.rfind(b"\n") + 1)


def _append(path: Path, row: dict[str, Any]) -> None:
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(_line(row))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(_finite(row), ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """`value` with null for NaN and infinities, which count as missing numbers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
