"""Before anything is scheduled: models are there, are the declared ones, and agree with their setup.

Loads no weights, so that mistakes are named within a second. Embedded models are made here, side by side.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator import made_models
from orchestrator.config import Data, Experiment, Model, Setup
from orchestrator.errors import UserError
from orchestrator.files import verify_files
from orchestrator.grid import Unit
from orchestrator.identity import model_identity
from orchestrator.local_files import CONFIG_KEYS
from orchestrator.rundir import RunReader
from orchestrator.selection import decided_by_family
from orchestrator.tasks.benchmarks import benchmark_of, load_benchmark
from orchestrator.tasks.data_files import folder_sha256
from orchestrator.tasks.hub import check_hub_id
from orchestrator.tasks.openthoughts import load_thoughts
from orchestrator.tasks.problem_files import read_problems
from orchestrator.wants import Sampling
from orchestrator.workers.spec import Checkpoint, WorkerSpec

Report = Callable[[str, dict[str, Any]], None]


def check(experiment: Experiment, runs: Path) -> None:
    """UserError on data or models that cannot be used; quick, and makes nothing."""
    for name, setup in experiment.setups.items():
        check_data(name, setup, experiment.data_dir)
        for role in ("student", "teacher"):
            model: Model = getattr(setup, role)
            if not _must_build(model, setup, runs):
                _verify_made(model, setup, runs)
                check_config(f"{name}.{role}", model, checkpoint_of(model, setup, runs), setup)


def prepare(experiment: Experiment, runs: Path, report: Report) -> dict[str, tuple[Checkpoint, Checkpoint]]:
    """Student and teacher of each setup; `report(model, progress)` is called while missing ones are made."""
    pairs = {}
    for name, setup in experiment.setups.items():
        missing = [role for role in ("student", "teacher") if _must_build(getattr(setup, role), setup, runs)]
        _build(setup, missing, runs, report)
        made_models.check_trained_from(setup, runs)
        pairs[name] = (checkpoint_of(setup.student, setup, runs), checkpoint_of(setup.teacher, setup, runs))
    return pairs


def worker_spec(
    unit: Unit,
    experiment: Experiment,
    runs: Path,
    pair: tuple[Checkpoint, Checkpoint],
    wanted: Mapping[Sampling, int] | None = None,
) -> WorkerSpec:
    """What the roles of `unit` need; an sft_warmup trial starts from its stage's checkpoint."""
    student, teacher = pair
    initial = student
    if unit.depends_on:
        stage, step = RunReader(runs, unit.depends_on[0]), unit.knobs["K"]
        initial = Checkpoint(str(stage.checkpoint_path(step)), None, stage.checkpoint_files(step), stage.remedy)
    setup = experiment.setups[unit.setup]
    prunes = not decided_by_family(experiment, unit)
    runtime, data_dir = experiment.runtime, experiment.data_dir
    return WorkerSpec(unit, setup, runtime, student, teacher, initial, data_dir, wanted or {}, prunes)


def check_data(name: str, setup: Setup, data_dir: str | None) -> None:
    """UserError unless every file the setup reads is there and is the declared one."""
    check_training_data(name, setup.data, data_dir)
    for benchmark, run in setup.evaluation.benchmarks.items():
        if benchmark_of(benchmark, run).terms is None:
            load_benchmark(benchmark, data_dir, run)


def check_training_data(name: str, data: Data, data_dir: str | None) -> None:
    """UserError unless the training prompts can be read; what lies on a hub is left to the loading."""
    if data.source == "jsonl":
        if not data.files:
            raise UserError(f"{name}.data.files: empty — at least one {{file, sha256}}")
        read_problems(data, data_dir)
    elif data.source == "openthoughts":
        if not data.path:
            raise UserError(f"{name}.data.path: not set — a hub id, or a local parquet or JSON Lines file")
        if Path(data.path).exists():
            load_thoughts(data)
        else:
            check_hub_id(f"{name}.data", data.path, data.revision)


def checkpoint_of(model: Model, setup: Setup, runs: Path) -> Checkpoint:
    """Where a model lies. UserError if it cannot be had or is not the declared one."""
    if model.recipe is not None:
        folder = made_models.folder_of(model, setup, runs)
        return Checkpoint(str(folder), None, made_models.recorded(folder) or {}, made_models.remedy(folder))
    assert model.path is not None
    assert model.revision is not None
    if Path(model.path).is_dir():
        actual = folder_sha256(Path(model.path))
        if actual != model.revision:
            raise UserError(f"{model.path}: sha256 of its files is {actual} — the setup declares {model.revision}")
        return Checkpoint(str(Path(model.path).resolve()))
    if model.path.startswith((".", "/")):
        raise UserError(f"{model.path}: no such model folder")
    return Checkpoint(download(model.path, model.revision))


def download(path: str, revision: str) -> str:
    """Folder of a hub model at `revision`, fetched if need be. UserError if it cannot be had."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(
            path, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja"]
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, httpx.HTTPError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{path}@{revision[:12]}: not a local folder and not to be had from the hub ({reason})"
        ) from None


def _must_build(model: Model, setup: Setup, runs: Path) -> bool:
    if model.recipe is None:
        return False
    folder = made_models.folder_of(model, setup, runs)
    return not folder.is_dir() or made_models.recorded(folder) is None


def _verify_made(model: Model, setup: Setup, runs: Path) -> None:
    """Raise Damaged unless the files of a model made by a recipe are those that were made."""
    if model.recipe is not None:
        folder = made_models.folder_of(model, setup, runs)
        verify_files(folder, made_models.recorded(folder) or {}, made_models.remedy(folder))


def _build(setup: Setup, roles: list[str], runs: Path, report: Report) -> None:
    """Make the missing models, each in a process of its own; what lies there without a record is taken as it is."""
    processes = {}
    for role in roles:
        model: Model = getattr(setup, role)
        folder = made_models.folder_of(model, setup, runs)
        if folder.is_dir():
            made_models.record(folder)
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        spec = folder.with_suffix(".json")
        spec.write_text(json.dumps(model_identity(model, setup) | {"folder": str(folder)}, indent=2), encoding="utf-8")
        command = [sys.executable, "-m", "orchestrator.engines.build", str(spec)]
        log = folder.with_suffix(".log").open("w+", encoding="utf-8")
        processes[role] = (subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True), log)
    try:
        _follow(processes, report)
    finally:
        for process, log in processes.values():
            process.kill()
            process.communicate()
            log.close()


def _follow(processes: dict[str, Any], report: Report) -> None:
    """Pass progress on until all are done; the lines of a slower process wait in its pipe meanwhile."""
    running = dict(processes)
    while running:
        for role, (process, log) in list(running.items()):
            line = process.stdout.readline()
            if line:
                report(role, json.loads(line))
            elif process.wait() == 0:
                del running[role]
            else:
                log.seek(0)
                reason = log.read().strip().splitlines()
                raise UserError(f"making the {role} model failed: {reason[-1] if reason else process.returncode}")


def are_there(setup: Setup, runs: Path) -> bool:
    """Whether neither model of the setup has to be made first."""
    return not any(_must_build(model, setup, runs) for model in (setup.student, setup.teacher))


def check_config(key: str, model: Model, checkpoint: Checkpoint, setup: Setup) -> None:
    """The model's own config agrees with the vocabulary and shape that the setup declares."""
    file = Path(checkpoint.path) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        shown = {name: config.get(name) for name in ("vocab_size", "tie_word_embeddings", *CONFIG_KEYS.values())}
    except (OSError, ValueError, AttributeError, RecursionError):
        raise UserError(f"{key}: {file} is missing or broken — a Hugging Face model folder") from None
    if shown["vocab_size"] != setup.vocabulary.size:
        raise UserError(
            f"{key}: vocabulary of {shown['vocab_size']} rows — the setup declares {setup.vocabulary.size} "
            "for student and teacher alike"
        )
    for name, value in asdict(model.shape).items():
        actual = shown[CONFIG_KEYS.get(name, "tie_word_embeddings")]
        if actual != value:
            raise UserError(f"{key}.shape.{name}: {value} — the model has {actual}")
