"""Run directories made up through `RunWriter`, for the units of a small experiment: no model, no
training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from orchestrator.config import Experiment
from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.models import locate
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord, Slice
from orchestrator.records.writer import RunWriter, write_slice
from orchestrator.selection.study import Invocation, Study

SHIPPED = Path(__file__).resolve().parents[1] / "experiments"
# The tests' own quickstart, on `arithmetic`.
QUICKSTART = Path(__file__).resolve().parent / "experiments" / "quickstart.yaml"
SAMPLES = 4  # as quickstart asks for
# Overrides that leave the trust region alone.
TRUST_REGION_ALONE = [
    f"methods.{method}=null"
    for method in ("vanilla", "fixed_epsilon", "veto", "skd", "temperature_warmup", "sft_warmup")
]

Scores = Mapping[
    int, Sequence[int | None]
]  # step → correct out of SAMPLES for each benchmark; None: not evaluated


def quickstart(*overrides: str) -> tuple[Experiment, list[Unit]]:
    """The tests' quickstart and its units; of two overrides of one key the later counts.

    Selected checkpoints are not evaluated again unless asked for.
    """
    study = quickstart_study(Path("runs"), *overrides)
    return study.experiment, list(study.units)


def quickstart_study(runs: Path, *overrides: str) -> Study:
    """The same as `trb` would load it from its command line."""
    by_key = {}
    for override in ("evaluation.rescore=false", *overrides):
        by_key[override.partition("=")[0]] = override
    words = list(by_key.values())
    experiment = load_experiment(QUICKSTART, words)
    typed = Invocation((str(QUICKSTART), *words))
    return Study(experiment, expand(experiment), runs, invocation=typed)


def fake_models(experiment: Experiment, runs: Path) -> None:
    """Files in the place of the embedded models, with the record that makes ids final."""
    for setup in experiment.setups.values():
        for role in locate.ROLES:
            if getattr(setup, role).recipe is not None:
                folder = locate.folder_of(getattr(setup, role), setup, runs)
                folder.mkdir(parents=True, exist_ok=True)
                for name in locate.NEEDED:
                    (folder / name).write_text(f"{role}'s {name}")
                locate.record(folder)


def units_of(units: Sequence[Unit], name: str) -> list[Unit]:
    """Units by method, or by kind where they have none."""
    return [unit for unit in units if (unit.method or unit.kind) == name]


def record(correct: int, n: int = SAMPLES, problem: str = "p") -> ProblemRecord:
    """One problem with `correct` right answers out of n."""
    answers = {"right": correct, "wrong": n - correct}
    return ProblemRecord(
        problem,
        n,
        correct,
        0,
        0,
        0,
        10 * n,
        {key: count for key, count in answers.items() if count},
    )


def write_run(
    runs: Path,
    experiment: Experiment,
    unit: Unit,
    scores: Scores,
    steps: int = 0,
    done: bool = True,
) -> None:
    """A run with `steps` committed rows and the given scores, one problem for each benchmark."""
    ids = list(evaluation_ids(experiment.setups[unit.setup]).values())
    with closing(RunWriter(runs, unit.id)) as run:
        run.describe({}, dict)
        run.append("metrics.jsonl", [metrics(step) for step in range(run.next_step, steps)])
        for step in scores:
            run.new_checkpoint(step, lambda folder: (folder / "model.safetensors").touch())
        run.commit(max([steps, run.next_step, *scores]))
        for step, row in scores.items():
            for evaluation_id, correct in zip(ids, row, strict=True):
                if correct is not None:
                    write_evaluation(run, evaluation_id, step, [record(correct)])
        if done:
            run.finish()


def write_evaluation(
    run: RunReader, evaluation_id: str, step: int, records: Sequence[ProblemRecord], sample: int = 0
) -> None:
    """Records of all problems of a checkpoint in one slice, whose samples have numbers from
    `sample` on.

    What was there of these samples or later ones is taken away.
    """
    for part in run.slices(evaluation_id, step):
        if part.sample_end > sample:
            (run.evaluation_path(evaluation_id, step) / part.name).unlink()
    (n,) = {record.n for record in records}
    write_slice(
        run, evaluation_id, step, Slice(sample, sample + n, 0, len(records), len(records)), records
    )


def metrics(step: int) -> dict[str, float | int]:
    """The made-up row of one step."""
    return {"step": step, "loss": 1 / (step + 1), "tokens": 100 + step}
