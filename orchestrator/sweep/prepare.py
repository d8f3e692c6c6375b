"""Prepares a sweep: fetches data, makes missing models, and checks both against the setups.

Loads no weights, so that mistakes are named within a second. Embedded models are made in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from orchestrator.config import Experiment, Model, Setup
from orchestrator.data.benchmarks import benchmark_of, lacking, load_benchmark
from orchestrator.data.files import check_hub_id
from orchestrator.data.openthoughts import load_thoughts
from orchestrator.data.problems import check_rows, check_system
from orchestrator.data.sources import SOURCES, fetch
from orchestrator.engines.interface import ModelFolder
from orchestrator.errors import UserError, one_line
from orchestrator.experiment.methods import supervised_updates
from orchestrator.experiment.units import Unit, batches_of
from orchestrator.liveness.children import Child, ChildFailed, Parent, serve
from orchestrator.models import locate
from orchestrator.models.folders import check_folder, local_folder
from orchestrator.models.locate import (
    check_config,
    check_passes,
    check_same_tokens,
    checkpoint_of,
    lies_here,
)
from orchestrator.models.make import (
    Reporter,
    check_package,
    make,
    must_make,
    tokenizer_of,
    verify_made,
)
from orchestrator.records.rundir import RunReader
from orchestrator.workers.spec import Pairs, WorkerSpec

SOME_PROBLEM = "1+1=?"


def fetch_data(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Fetch the declared data files that the data folder lacks and `data.sources` knows.

    `say` gets a line for each. Never replaces a file of the user. Raises UserError if a file cannot
    be fetched.
    """
    if experiment.data_dir is None:
        return
    folder = Path(experiment.data_dir)
    absent = lacking(experiment.setups.values(), folder)
    keys = [key for key, source in SOURCES.items() if absent.get(source.file) == source.sha256]
    for line in fetch(folder, keys):
        say(line)


def check(experiment: Experiment, units: Sequence[Unit], runs: Path) -> None:
    """UserError on data or models that cannot be used; quick, and makes nothing."""
    for name, setup in experiment.setups.items():
        check_data(name, setup, experiment.data_dir, batches_of(units, name))
        check_models(name, setup, runs)
        check_prompt(name, setup, experiment.data_dir, runs)


def check_prompt(name: str, setup: Setup, data_dir: str | None, runs: Path) -> None:
    """Raise UserError if the teacher's tokenizer cannot render the first problem of a benchmark.

    Template and system message meet here, before Ray starts. A teacher that is not on this machine
    yet is not tried. Embedded tokenizers read plain prompts alike, and take no seconds to import.
    Without the benchmark's file, which a plan may lack, another problem is rendered.
    """
    made = setup.teacher.recipe is not None
    if made and setup.prompt.kind == "plain":
        return
    folder = None if made else lies_here(setup.teacher, setup, runs)
    if not made and folder is None:
        return
    from orchestrator.data.prompts import check_rendering

    try:
        tokenizer = tokenizer_of(setup.teacher, setup, str(folder))
    except Exception as error:  # of a library that reads a file of the user
        raise UserError(
            f"{name}.teacher: {folder}: its tokenizer cannot be opened ({one_line(error)})"
        ) from None
    benchmark, run = next(iter(setup.evaluation.benchmarks.items()))
    try:
        problem = load_benchmark(benchmark, data_dir, run)[0].text
    except UserError:  # `check_data` says so
        problem = SOME_PROBLEM
    check_rendering(name, problem, setup.prompt, tokenizer)


def check_prompts_apart(experiment: Experiment, runs: Path) -> None:
    """Call `check_prompt` in a child process, since tokenizers take seconds to import.

    Only setups with a chat template and a teacher in a local folder are tried. Raises UserError.
    """
    tried = {}
    for name, setup in experiment.setups.items():
        if setup.prompt.kind == "chat" and local_folder(setup.teacher) is not None:
            tried[name] = setup
    if not tried:
        return
    with TemporaryFile() as log:
        child = Child(__name__, "the process that renders a prompt", output=log)
        try:
            child.ask((tried, experiment.data_dir, runs))
        except ChildFailed as failed:
            raise failed.error from None
        finally:
            child.end()


def _answer(call: tuple[Mapping[str, Setup], str | None, Path], parent: Parent) -> None:
    setups, data_dir, runs = call
    for name, setup in setups.items():
        check_prompt(name, setup, data_dir, runs)


def check_models(name: str, setup: Setup, runs: Path) -> None:
    """Raise UserError unless the existing models are the declared ones and agree with the setup."""
    existing: dict[str, ModelFolder] = {}
    for role in ("student", "teacher"):
        model: Model = getattr(setup, role)
        if must_make(model, setup, runs):
            assert model.recipe is not None
            check_package(f"{name}.{role}", model.recipe)
        else:
            verify_made(model, setup, runs)
            existing[role] = checkpoint_of(model, setup, runs)
            check_config(f"{name}.{role}", model, existing[role], setup)
    for role, checkpoint in existing.items():
        if getattr(setup, role).recipe is None:  # all bytes of a made model were compared
            check_folder(f"{name}.{role}", Path(checkpoint.path), tokenizer=role == "teacher")
    if len(existing) == 2:
        check_same_tokens(name, existing["student"], existing["teacher"])
    for role, checkpoint in existing.items():
        _check_passes(name, role, setup, checkpoint)


def _check_passes(name: str, role: str, setup: Setup, checkpoint: ModelFolder) -> None:
    """Check the passes of any model but those of the embedded world, which tests compare."""
    recipe = getattr(setup, role).recipe
    if recipe is None or not recipe.is_embedded:
        check_passes(f"{name}.{role}", Path(checkpoint.path), setup.context)


def prepare(
    setups: Mapping[str, Setup], runs: Path, report: Reporter, data_dir: str | None = None
) -> Pairs:
    """Make missing models; return student and teacher of each setup.

    `report` gets a role and its progress, see `make.make`.
    """
    pairs: dict[str, tuple[ModelFolder, ModelFolder]] = {}
    for name, setup in setups.items():
        missing: list[str] = []
        for role in ("student", "teacher"):
            if must_make(getattr(setup, role), setup, runs):
                missing.append(role)
        make(setup, missing, runs, report, data_dir)
        locate.check_trained_from(setup, runs)
        pairs[name] = (
            checkpoint_of(setup.student, setup, runs),
            checkpoint_of(setup.teacher, setup, runs),
        )
        if missing:  # then `check_models` had no pair to compare
            check_same_tokens(name, *pairs[name])
        for role in missing:
            _check_passes(name, role, setup, checkpoint_of(getattr(setup, role), setup, runs))
    return pairs


def worker_spec(
    unit: Unit,
    experiment: Experiment,
    runs: Path,
    pair: tuple[ModelFolder, ModelFolder],
) -> WorkerSpec:
    """Spec of a unit's roles; a trial after supervised updates starts from its stage's checkpoint."""
    student, teacher = pair
    initial = student
    updates = supervised_updates(unit.method, unit.knobs)
    if updates is not None:
        stage = RunReader(runs, unit.depends_on[0])
        initial = ModelFolder(
            str(stage.checkpoint_path(updates)), stage.checkpoint_files(updates), stage.remedy
        )
    setup = experiment.setups[unit.setup]
    return WorkerSpec(
        unit, setup, experiment.runtime, student, teacher, initial, experiment.data_dir
    )


def check_data(name: str, setup: Setup, data_dir: str | None, batches: int = 0) -> None:
    """UserError unless every file the setup reads is there and is the declared one."""
    check_training_data(name, setup, data_dir, batches)
    check_benchmarks(setup, data_dir)


def check_benchmarks(setup: Setup, data_dir: str | None) -> None:
    """UserError unless the files of the setup's benchmarks are there and are the declared ones."""
    for benchmark, run in setup.evaluation.benchmarks.items():
        if not benchmark_of(benchmark, run).is_generated:
            check_system(load_benchmark(benchmark, data_dir, run), setup.prompt.system)


def check_training_data(name: str, setup: Setup, data_dir: str | None, batches: int = 0) -> None:
    """UserError unless the training prompts can be read and local files have enough for `batches`.

    Data of a hub are checked when loaded.
    """
    data = setup.data
    if data.source == "jsonl":
        if not data.files:
            raise UserError(f"{name}.data.files: empty: expected at least one {{file, sha256}}")
        check_rows(setup, data_dir, batches)
    elif data.source == "openthoughts":
        if not data.path:
            raise UserError(
                f"{name}.data.path: not set: "
                "expected a hub id, or a local parquet or JSON Lines file"
            )
        if Path(data.path).exists():
            load_thoughts(data)
        else:
            check_hub_id(f"{name}.data", data.path, data.revision)


if __name__ == "__main__":
    serve(_answer)
