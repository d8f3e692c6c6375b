"""A made-up sweep for the view: vanilla, the trust region and the untrained student."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.units import Unit
from orchestrator.records.log import RolloutSample
from orchestrator.records.slices import ProblemRecord, ResponseText, Slice
from orchestrator.records.writer import RunWriter, write_slice
from orchestrator.selection.study import Study
from tests.fake_runs import SAMPLES, quickstart_study, record, units_of

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
        if unit.method == "trust_region":
            run.write_samples(0, [ROLLOUT])
        for step in scores:
            run.new_checkpoint(step, lambda folder: (folder / "model.safetensors").touch())
        run.commit(steps)
        for step, right in scores.items():
            for evaluation_id in evaluation_ids(study.setup_of(unit)).values():
                part = Slice(0, SAMPLES, 0, len(right), len(right))
                texts = []
                for place, correct in enumerate(right):
                    texts.append(response(f"p{place}", f"step {step}", correct > 1))
                write_slice(run, evaluation_id, step, part, _records(right), texts)
        run.log.line(f"checkpoint of step {steps}")
        if done or not unit.trains:
            run.finish()


def response(
    problem: str, text: str, right: bool, answer: str | None = "4", sample: int = 0, **more: bool
) -> ResponseText:
    """A response to a sum; it is neither cut off nor slow unless `more` says so."""
    how = {"truncated": False, "timed_out": False} | more
    return ResponseText(problem, sample, "2+2=?\n", "4", text, answer, right, tokens=9, **how)


ROLLOUT = RolloutSample(
    index=3,
    sample=0,
    prompt="1+1=?\n",
    gold="2",
    reward=1.0,
    truncated=False,
    ids=[5, 6, 7, 2],
    tokens=["so ", "it ", "is ", "2"],
    student=[-0.1] * 4,
    behavior=[-0.1] * 4,
    teacher=[-0.1] * 4,
    survived=[True, False, True, True],
    measured={"beta": [0.0, 1.0, 0.5, 0.1], "acceptance": [0.9, 0.9, 0.2, 0.9]},
)


def _records(right: Sequence[int]) -> list[ProblemRecord]:
    return [record(correct, problem=f"p{place}") for place, correct in enumerate(right)]
