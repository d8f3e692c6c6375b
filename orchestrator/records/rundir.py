"""Reads the run directory of a unit, `runs/<unit id>/`, the only truth. `records.writer` writes it.

| file | holds | written |
|---|---|---|
| `config.json`, `provenance.json` | the resolved configuration; code, host and models of the first attempt | once |
| `data.json` and other documents | one JSON value each | whole |
| `metrics.jsonl`, `rollouts.jsonl` | a row per step; a row per rollout | appended |
| `held_out.jsonl` | a row per checkpoint of a trial: KL(p‖q) on held-out prompts (`log.HeldOut`) | appended |
| `samples/step_000019.jsonl.gz` | some rollouts of that step token by token (`log.RolloutSample`) | whole |
| `checkpoints/step_000020/` | a Hugging Face model folder; beside the last one, the learner's state | whole |
| `saved/step_000013/` | the learner's state alone, after a step between two checkpoints | whole |
| `evals/<evaluation id>/step_000020/` | a file for each slice (`slices`), in it a row per problem | whole |
| beside them | `….texts.gz` for each slice (`slices`): responses with prompt and grade | whole, before the slice |
| `state.json` | the next step, and sizes and sha256 of all of the above that was committed | whole, by each commit |
| `DONE` | the step at which training was complete | once, last |
| `attempts.jsonl`, `timing.jsonl`, `log.txt` | clock times and notes, which recovery does not reproduce | appended |
| `phase.json` | the present work of the unit (`log`) | whole |
| `error.txt`, `traceback.txt` | why the last attempt failed | whole; removed by the next |

`state.json` vouches for everything that was committed, and evaluations carry seals of their own.
Reading a file that is not what was written raises `files.Damaged`, and never gives another number.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.liveness.leases import Holder, holder_of
from orchestrator.records.files import (
    Damaged,
    damaged,
    decompressed,
    list_folder,
    parse_json,
    parse_rows,
    read_bytes,
    read_object,
    read_sealed,
    read_text,
    verify_files,
)
from orchestrator.records.log import (
    FOLDER,
    HELD_OUT,
    HeldOut,
    Phase,
    RolloutSample,
    read_log,
    read_phase,
    samples_name,
)
from orchestrator.records.slices import (
    ProblemRecord,
    ResponseText,
    Slice,
    SliceCounts,
    complete_samples,
    disjoint,
    merge,
    parse,
    read_counts,
    read_records,
    read_texts,
    stamp_of_slice,
)

CONFIG, PROVENANCE, STATE, DONE = "config.json", "provenance.json", "state.json", "DONE"
METRICS, ROLLOUTS, DATA = "metrics.jsonl", "rollouts.jsonl", "data.json"
ATTEMPTS, TIMING = "attempts.jsonl", "timing.jsonl"
ERROR, TRACEBACK = "error.txt", "traceback.txt"
CHECKPOINTS, SAVED = "checkpoints", "saved"
LEARNER_STATE, LEARNER_FOLDER, CANARY = "learner.safetensors", "learner", "canary.json"
T = TypeVar("T")


def without_learner(files: Mapping[str, str]) -> dict[str, str]:
    """Files of a checkpoint (name → sha256), but for the learner's state: a file, or a folder's."""
    return {
        name: sha256
        for name, sha256 in files.items()
        if name != LEARNER_STATE and not name.startswith(f"{LEARNER_FOLDER}/")
    }


def started_units(runs: Path) -> list[str]:
    """Ids of all units that have a directory in a runs folder, in alphabetical order."""
    return sorted(path.parent.name for path in runs.glob(f"*/{CONFIG}"))


class RunReader:
    """A unit's directory, safe to read while a process writes it; Damaged where it is no folder."""

    def __init__(self, runs: Path, unit_id: str):
        self.unit_id = unit_id
        self.path = runs / unit_id
        self._lock = runs / ".locks" / f"{unit_id}.lock"
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise damaged(
                self.path, "is not a folder", "remove it; trb submit trains the unit again"
            )

    # --- how far the unit is ---

    @property
    def next_step(self) -> int:
        """The step that comes next after the last commit; 0 for a fresh unit."""
        return self._state().get("next_step", 0)

    @property
    def started(self) -> bool:
        """Whether the unit has its `config.json`, which the first attempt writes at its start."""
        return self.once("started", (self.path / CONFIG).exists)

    @property
    def trained(self) -> bool:
        """Whether training is complete: DONE names the committed step. Evaluations may be missing."""
        done = self.once("done", lambda: read_text(self.path / DONE, self.remedy))
        return done is not None and done.strip() == str(self.next_step)

    @property
    def running(self) -> bool:
        """Whether a process works on the unit now."""
        return self.holder is not None

    @property
    def holder(self) -> Holder | None:
        """The process that works on the unit now, if any."""
        return self.once("holder", lambda: holder_of(self._lock))

    @property
    def error(self) -> str | None:
        """Why the unit failed, if it did."""
        return self.once("error", lambda: read_text(self.path / ERROR, "remove it"))

    @property
    def traceback(self) -> str | None:
        """The traceback of that failure."""
        return read_text(self.path / TRACEBACK, "remove it")

    @property
    def remedy(self) -> str:
        """The remedy for a damaged file of the unit, as messages give it."""
        return f"remove the folder {self.path}; trb submit trains the unit again"

    # --- what it was made with ---

    def config(self) -> dict[str, Any]:
        """The resolved configuration the unit was started with."""
        return self._described(CONFIG)

    def provenance(self) -> dict[str, Any]:
        """Commit, dirty diff, versions and host of the first attempt, and the unit's models."""
        return self._described(PROVENANCE)

    @property
    def models(self) -> dict[str, dict[str, str | None]]:
        """The models that the unit was trained from, as committed: see `locate.trained_from`."""
        return self._state().get("models", {})

    # --- logs and documents ---

    def metrics(self) -> list[dict[str, Any]]:
        """A row for each step, the not yet committed ones included."""
        return list(self._rows(METRICS))

    def last_metrics(self) -> tuple[int, dict[str, Any] | None]:
        """How many rows `metrics` has, and the last of them."""

        def read() -> tuple[int, dict[str, Any] | None]:
            rows = self.metrics()
            return len(rows), rows[-1] if rows else None

        count, last = self.derived(METRICS, "number of rows and the last", read)
        return count, last

    def committed_metrics(self) -> list[dict[str, Any]]:
        """The rows for each step that no later truncation can take back."""
        return self.committed(METRICS)

    def rollouts(self) -> Iterator[dict[str, Any]]:
        """A row for each training rollout."""
        return self._rows(ROLLOUTS)

    def held_out(self) -> list[HeldOut]:
        """The committed measurements on held-out prompts, by step; none of an older run."""
        size = committed_bytes(self._state(), HELD_OUT)
        if not size:
            return []
        rows = self.derived(HELD_OUT, f"rows in {size} bytes", lambda: self.committed(HELD_OUT))
        return [HeldOut(**row) for row in rows]

    def held_out_at(self, step: int) -> HeldOut | None:
        """The measurement after `step` steps of the unit; None without one.

        It needs no evaluation, so that a race could read it as a rung of its own.
        """
        return next((row for row in self.held_out() if row.step == step), None)

    def committed(self, log: str) -> list[dict[str, Any]]:
        """Rows of a log that no later truncation can take back."""
        return list(self._rows(log, committed=True))

    def document(self, name: str) -> Any:
        """Read a JSON file of its own, such as `data.json`; None if it was not written."""
        data = self._verified(name)
        return None if data is None else parse_json(data, self.path / name, self.remedy)

    def sampled_steps(self) -> list[int]:
        """Training steps whose rollouts were kept token by token, and committed."""
        steps = []
        for name in self._state().get("documents", {}):
            if match := re.fullmatch(rf"{FOLDER}/step_([0-9]{{6,}})\.jsonl\.gz", name):
                steps.append(int(match[1]))
        return sorted(steps)

    def rollout_samples(self, step: int) -> list[RolloutSample]:
        """The first rollouts of a training step token by token; none of a step that keeps none."""
        name = samples_name(step)
        data = self._verified(name)
        if data is None:
            return []
        lines = decompressed(data, self.path / name, self.remedy)
        rows = parse_rows(lines, self.path / name, self.remedy)
        return [RolloutSample(**row) for row in rows]

    def attempts(self) -> list[dict[str, Any]]:
        """A row for each attempt: when it `started`, with its code, versions and machine."""
        return self._clock(ATTEMPTS, {"started": str})

    def timing(self) -> list[dict[str, Any]]:
        """Wall-clock rows; `at` is the time at which a row was written (UTC, seconds since 1970).

        A step that was repeated after a kill has several rows.
        """
        return self._clock(TIMING, {"phase": str, "step": int})

    def check_documents(self) -> None:
        """Raise Damaged unless clocks and documents of the unit are as they were written."""
        documents = {
            TIMING: self.timing,
            ATTEMPTS: self.attempts,
            DATA: lambda: self.document(DATA),
        }
        if self.started:
            documents |= {CONFIG: self.config, PROVENANCE: self.provenance}
        for name, read in documents.items():
            self.derived(name, "sound", lambda read=read: read() is not None)

    def log_text(self) -> str | None:
        """The log for people; None if the unit has not started."""
        return read_log(self.path)

    def phase(self) -> Phase | None:
        """The unit's last note of its work; None without one."""
        return read_phase(self.path)

    # --- checkpoints ---

    def checkpoints(self) -> dict[int, Path]:
        """Step → folder of each checkpoint that exists."""
        return {step: self.checkpoint_path(step) for step in self._steps(self.path / CHECKPOINTS)}

    def checkpoint_path(self, step: int) -> Path:
        """The folder of a step's checkpoint, which need not exist."""
        return self.path / CHECKPOINTS / f"step_{step:06d}"

    def saved_path(self, step: int) -> Path:
        """The folder of a learner's state that was saved after `step`, which need not exist."""
        return self.path / SAVED / f"step_{step:06d}"

    def committed_checkpoints(self) -> list[int]:
        """Steps whose checkpoints were committed and not dropped; one without a folder was lost."""
        return sorted(map(int, self._state().get("checkpoints", {})))

    def checkpoint_files(self, step: int) -> dict[str, str]:
        """sha256 of the files of a committed checkpoint by name, without the learner's state."""
        return without_learner(self._state().get("checkpoints", {}).get(str(step), {}))

    def canary(self, step: int) -> dict[str, Any] | None:
        """The canary of a checkpoint's weights (`workers.canary`); None without one."""
        return read_object(self.checkpoint_path(step) / CANARY, self.remedy)

    def verify_checkpoint(self, step: int, learner: bool = False) -> None:
        """Raise Damaged unless a committed checkpoint is as it was written.

        With `learner` that includes the learner's state.
        """
        with_learner = self._state().get("checkpoints", {}).get(str(step))
        if with_learner is None:
            raise damaged(self.checkpoint_path(step), "was never committed", self.remedy)
        files = with_learner if learner else self.checkpoint_files(step)
        verify_files(self.checkpoint_path(step), files, self.remedy)

    def verified_state(self) -> Path:
        """The folder with the learner's state of `next_step`: of a checkpoint, or of a save.

        Raises Damaged unless its files are as they were written.
        """
        step = self.next_step
        saved = self._state().get("saved", {}).get(str(step))
        if saved is None:
            self.verify_checkpoint(step, learner=True)
            return self.checkpoint_path(step)
        verify_files(self.saved_path(step), saved, self.remedy)
        return self.saved_path(step)

    # --- evaluations ---

    def slices(self, evaluation_id: str, step: int) -> list[Slice]:
        """The existing slices of an evaluation of a checkpoint; see `slices.disjoint`."""
        names = list_folder(self.evaluation_path(evaluation_id, step), self.remedy)
        return disjoint(part for name in names if (part := parse(name)) is not None)

    def counted_slices(self, evaluation_id: str, step: int) -> list[Slice]:
        """The slices of an evaluation that count: of samples that all problems have.

        Samples that only some problems have are left out, because their number depends on which
        slices came first.
        """
        slices = self.slices(evaluation_id, step)
        counted = []
        complete = complete_samples(slices)
        for part in slices:
            if complete and part.sample_end <= complete[-1]:
                counted.append(part)
        return counted

    def evaluation(self, evaluation_id: str, step: int) -> list[ProblemRecord] | None:
        """Records of a checkpoint, a row per problem, over the slices that count; None without."""
        by_problem: dict[int, list[ProblemRecord]] = defaultdict(list)
        for part in self.counted_slices(evaluation_id, step):
            records = self.slice_records(evaluation_id, step, part)
            for index, record in enumerate(records, part.problem):
                by_problem[index].append(record)
        return [merge(by_problem[index]) for index in sorted(by_problem)] or None

    def slice_records(self, evaluation_id: str, step: int, part: Slice) -> list[ProblemRecord]:
        """Records of one slice that is there, a row per problem."""
        return read_records(self.evaluation_path(evaluation_id, step), part)

    def slice_counts(self, evaluation_id: str, step: int, part: Slice) -> SliceCounts:
        """Sums over the records of a slice, in a tenth of the time that the records take to read."""
        return read_counts(self.evaluation_path(evaluation_id, step), part)

    def evaluation_tokens(self, evaluation_id: str, step: int) -> int:
        """Tokens of all responses of a checkpoint that `evaluation` counts."""
        tokens = 0
        for part in self.counted_slices(evaluation_id, step):
            tokens += self.slice_counts(evaluation_id, step, part).tokens
        return tokens

    def slice_stamp(self, evaluation_id: str, step: int, part: Slice) -> tuple[int, ...]:
        """Numbers that change when a slice is written again."""
        return stamp_of_slice(self.evaluation_path(evaluation_id, step), part)

    def texts(self, evaluation_id: str, step: int) -> list[ResponseText]:
        """Responses of a checkpoint whose texts were kept, by problem and sample.

        Only texts of slices that count are among them; `evaluation.keep_texts` sets their number.
        """
        by_problem: dict[int, list[ResponseText]] = defaultdict(list)
        for part in self.counted_slices(evaluation_id, step):
            texts = self.slice_texts(evaluation_id, step, part)
            for position, text in enumerate(texts):
                # All problems of a slice have the same number of texts, as `read_texts` checks.
                by_problem[part.problem + position * part.width // len(texts)].append(text)
        ordered: list[ResponseText] = []
        for index in sorted(by_problem):
            ordered += by_problem[index]
        return ordered

    def slice_texts(self, evaluation_id: str, step: int, part: Slice) -> list[ResponseText]:
        """Responses of one slice whose texts were kept, by problem and sample."""
        return read_texts(self.evaluation_path(evaluation_id, step), part)

    def evaluated_steps(self, evaluation_id: str) -> list[int]:
        """Steps whose checkpoint has samples of every problem of this evaluation."""

        def evaluated() -> list[int]:
            steps = []
            for step in self._steps(self.path / "evals" / evaluation_id):
                if complete_samples(self.slices(evaluation_id, step)):
                    steps.append(step)
            return steps

        return self.once(("evaluated", evaluation_id), evaluated)

    def evaluation_error(self, evaluation_id: str, step: int) -> str | None:
        """Why samples of a checkpoint could not be taken; None without such a failure."""
        return read_text(self.evaluation_path(evaluation_id, step) / ERROR, "remove it")

    def evaluation_path(self, evaluation_id: str, step: int) -> Path:
        """The folder with the slices of an evaluation of a checkpoint, which need not exist."""
        return Path(self.path, "evals", evaluation_id, f"step_{step:06d}")

    # --- reading once ---

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Call `compute`; a reader of one moment (`records.snapshot`) calls it once for a key."""
        return compute()

    def derived(self, file: str, name: str, compute: Callable[[], T]) -> T:
        """The JSON value that `compute` makes of one file of the unit alone.

        A snapshot remembers it under its `name` while the file is the same. If the meaning of a
        value changes, change its name, too.
        """
        return compute()

    # --- reading and verifying files ---

    def _state(self) -> dict[str, Any]:
        """The last commit; empty for a fresh unit."""
        return self.once("state", lambda: read_sealed(self.path / STATE, self.remedy) or {})

    def _verified(self, name: str) -> bytes | None:
        """The content of a document, None without one; Damaged if it is not as committed."""
        data = read_bytes(self.path / name, self.remedy)
        committed = self._state().get("documents", {}).get(name)
        if committed is not None and (
            data is None or hashlib.sha256(data).hexdigest() != committed
        ):
            raise damaged(self.path / name, "is not what was written", self.remedy)
        return data

    def _steps(self, folder: Path) -> list[int]:
        """Steps of the entries of a folder that are named as `step_000020` is."""

        def listed() -> list[int]:
            steps = []
            for name in list_folder(folder, self.remedy):
                if match := re.fullmatch(r"step_([0-9]{6,})", name):
                    steps.append(int(match[1]))
            return sorted(steps)

        return self.once(("steps", folder), listed)

    def _described(self, name: str) -> dict[str, Any]:
        value = read_object(self.path / name, self.remedy)
        if value is None:
            raise damaged(self.path / name, "is missing", self.remedy)
        return value

    def _rows(self, log: str, committed: bool = False) -> Iterator[dict[str, Any]]:
        """Rows of a log, the committed ones verified; a trained unit has no others."""
        path = self.path / log
        committed = committed or self.trained
        # The state is read once and before the log. A writer may append and commit between the two,
        # so the log may be longer than the state says, which is no damage; read the other way round
        # it could seem too short.
        state = self._state()
        size = committed_bytes(state, log)
        data = read_bytes(path, self.remedy) or b""
        self._verify_log(state, log, len(data), hashlib.sha256(data[:size]).hexdigest())
        return parse_rows(data[:size] if committed else data, path, self.remedy)

    def _verify_log(self, state: dict[str, Any], log: str, size: int, sha256: str) -> None:
        """Raise Damaged unless `state` vouches for a log.

        The log has `size` bytes, and its committed ones have this sha256.
        """
        committed = committed_bytes(state, log)
        if size < committed:
            what = f"has {size:,} of the {committed:,} bytes that were committed"
            raise damaged(self.path / log, what, self.remedy)
        if committed and sha256 != state.get("log_sha256", {}).get(log):
            raise damaged(self.path / log, "is not what was committed", self.remedy)

    def _clock(self, name: str, columns: dict[str, type]) -> list[dict[str, Any]]:
        """Rows of a wall-clock log. Raises Damaged if one lacks a column, or its type is another."""
        path, remedy = self.path / name, "remove it; only clock times are lost"
        rows = list(parse_rows(read_bytes(path, remedy) or b"", path, remedy))
        for number, row in enumerate(rows, 1):
            for column, kind in columns.items():
                if not isinstance(row.get(column), kind):
                    raise damaged(path, f"line {number} has no {column}", remedy)
        return rows


def committed_bytes(state: dict[str, Any], log: str) -> int:
    """How many bytes of a log the last commit covers, by the content of `state.json`."""
    return state.get("offsets", {}).get(log, 0)


def noted_models(runs: Path) -> list[tuple[str, dict[str, dict[str, str | None]]]]:
    """(unit id, models it was trained from) of every sound unit that has committed."""
    noted = []
    for state in sorted(runs.glob(f"*/{STATE}")):
        run = RunReader(runs, state.parent.name)
        with suppress(Damaged):
            noted.append((run.unit_id, run.models))
    return noted
