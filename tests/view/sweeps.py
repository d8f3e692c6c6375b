"""A made-up sweep for the view: vanilla, the trust region and the untrained student."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.units import Unit
from orchestrator.records.problem_record import ProblemRecord
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart_study, record, units_of, write_evaluation

ONLY = [
    *("methods.fixed_epsilon=null", "methods.veto=null", "methods.skd=null"),
    *("methods.temperature_warmup=null", "methods.sft_warmup=null"),
    *("methods.trust_region.epsilon0=[0.05]", "training.checkpoint_every=20"),
]


def small_sweep(runs: Path) -> Study:
    """Vanilla and TRB after 40 of 60 steps, with scores of steps 20 and 40; the untrained student
    done.
    """
    study = quickstart_study(runs, *ONLY)
    write_unit(study, units_of(study.units, "base_eval")[0], {0: (1, 0, 1, 0)}, 0)
    write_unit(study, units_of(study.units, "vanilla")[0], {20: (2, 1, 2, 1), 40: (3, 2, 2, 1)}, 40)
    scores = {20: (2, 2, 2, 1), 40: (4, 3, 2, 3)}
    write_unit(study, units_of(study.units, "trust_region")[0], scores, 40)
    return study


def write_unit(
    study: Study, unit: Unit, scores: Mapping[int, Sequence[int]], steps: int, done: bool = False
) -> None:
    """Commit steps with a loss, blended ones with an acceptance, and checkpoints with so many right
    answers to each problem of both benchmarks.
    """
    with closing(RunWriter(study.runs, unit.id)) as run:
        run.describe({}, dict)
        rows = []
        for step in range(steps):
            row = {"step": step, "loss": 1 / (step + 1)}
            rows.append(row | ({"acceptance": 0.9} if unit.method == "trust_region" else {}))
        run.append("metrics.jsonl", rows)
        for step in scores:
            run.new_checkpoint(step, lambda folder: (folder / "model.safetensors").touch())
        run.commit(steps)
        for step, right in scores.items():
            for evaluation_id in evaluation_ids(study.setup_of(unit)).values():
                write_evaluation(run, evaluation_id, step, _records(right))
        run.log.line(f"checkpoint of step {steps}")
        if done or not unit.trains:
            run.finish()


def _records(right: Sequence[int]) -> list[ProblemRecord]:
    return [record(correct, problem=f"p{place}") for place, correct in enumerate(right)]
