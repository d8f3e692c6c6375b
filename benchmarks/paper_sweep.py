"""A finished sweep of `paper.yaml` with races, made up through the writers: no model, no training,
no benchmark files.

Rows and records have the sizes of the paper's protocol: 256 rollouts a step, every problem of every
benchmark with its counts, answers and response lengths. A `race_world`
gives the true success rates, and `selection` decides which checkpoint gets more samples, as in a
real sweep.
"""

from __future__ import annotations

import json
import shutil
import zlib
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.config import Experiment
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.methods import behavior_at
from orchestrator.experiment.units import Unit, checkpoint_steps, expand
from orchestrator.records.log import (
    EVALUATE,
    LEARN,
    REWARD,
    ROLLOUT,
    SCORE,
    START,
    STEP_PARTS,
    TRAIN,
    columns_of_step,
)
from orchestrator.records.provenance import provenance
from orchestrator.records.rundir import ATTEMPTS, METRICS, ROLLOUTS, TIMING, RunReader
from orchestrator.records.slices import ProblemRecord, Slice
from orchestrator.records.writer import RunWriter, write_slice
from orchestrator.selection import retention
from orchestrator.selection.pending_slices import PendingSlice, pending_slices
from orchestrator.selection.study import Study
from tests.race_world import WORLDS, Floats, Suite, rates

PAPER = Path(__file__).resolve().parents[1] / "experiments" / "paper.yaml"
# Races are where an evaluation has many parts; 200 steps give each trial ten checkpoints.
OVERRIDES = ("evaluation.budget=adaptive", "training.steps=200")
ROLLOUT_STEPS = 30  # steps whose rollouts are written: the report reads the first 25 of them
# Mean success rates at the end of training, by benchmark.
SUCCESS = {
    "gsm8k": 0.8,
    "math500": 0.69,
    "olympiadbench_674": 0.34,
    "amc23": 0.44,
    "aime24": 0.095,
    "aime25": 0.07,
}
WRONG_ANSWERS = 12  # of a problem, each half as frequent as the one before
LENGTH_BINS = tuple(ceil(2 ** (j / 8)) for j in range(56, 105))  # lower edges, 128 to 8,192 tokens
LIMIT = 8192  # tokens of a response
FIRST, GPUS_OF_A_NODE = 1_790_000_000.0, 8  # when the first unit began (seconds since 1970)


class Gpus:
    """The clocks of a node: each piece of work goes to the GPU that is free first."""

    def __init__(self) -> None:
        self._free = [FIRST] * GPUS_OF_A_NODE

    def work(self, run: RunReader, rows: list[dict[str, Any]]) -> float:
        """Write rows of `timing.jsonl` as if one GPU had done them one after the other; when it
        began.
        """
        gpu = self._free.index(min(self._free))
        begun = now = self._free[gpu]
        lines = []
        for row in rows:
            now += row["seconds"] if "seconds" in row else sum(row[part] for part in STEP_PARTS)
            lines.append(
                json.dumps(
                    row
                    | {"host": "node-1", "process": 100 + gpu, "gpu": str(gpu), "at": round(now, 1)}
                )
            )
        self._free[gpu] = now
        with (run.path / TIMING).open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        return begun


@dataclass(frozen=True)
class World:
    """True success rates (candidates, problems) of each family, by benchmark; `places` finds a
    unit's rows.
    """

    rates: dict[tuple[str, str | None], dict[str, Floats]]
    places: dict[tuple[str, int], int]

    def of(self, unit: Unit, benchmark: str, step: int) -> Floats:
        """Success rates (problems,) of one checkpoint."""
        return self.rates[unit.setup, unit.method][benchmark][self.places[unit.id, step]]


def make(runs: Path) -> Study:
    """Make the sweep in an empty folder."""
    experiment = load_experiment(PAPER, list(OVERRIDES))
    study = Study(experiment, expand(experiment, runs), runs)
    made_with, world, gpus = provenance(), make_world(study), Gpus()
    for unit in study.units:
        if unit.is_supervised:
            _train(study, unit, made_with, gpus)
    for family in study.families():
        own = study.with_units([unit for setting in family for unit in setting])
        units = {unit.id: unit for unit in own.units}
        for unit in own.units:
            _train(study, unit, made_with, gpus)
        while lacking := list(pending_slices(own)):
            for wanted in lacking:
                _evaluate(study, units[wanted.unit_id], wanted, world, gpus)
    retention.prune(study)
    return study


def forget_looks(runs: Path) -> None:
    """Remove the cached results of earlier commands from a runs folder."""
    shutil.rmtree(runs / ".index", ignore_errors=True)


def make_world(study: Study) -> World:
    """Draw the success rates of every checkpoint of the sweep."""
    drawn: dict[tuple[str, str | None], dict[str, Floats]] = {}
    places: dict[tuple[str, int], int] = {}
    for family in study.families():
        first, setup = family[0][0], study.setup_of(family[0][0])
        steps = _evaluated_steps(first, study.experiment)
        suites = tuple(
            Suite(evaluation_protocol.problems_wanted(setup.evaluation, key), run.n, SUCCESS[key])
            for key, run in setup.evaluation.benchmarks.items()
        )
        rng = np.random.default_rng(_seed(first.setup, first.method))
        found = rates(rng, suites, WORLDS["middle"], len(family), len(steps))
        drawn[first.setup, first.method] = dict(
            zip(setup.evaluation.benchmarks, found, strict=True)
        )
        places |= {
            (unit.id, step): run * len(steps) + index
            for run, setting in enumerate(family)
            for unit in setting
            for index, step in enumerate(steps)
        }
    return World(drawn, places)


def records(
    rng: np.random.Generator, success: Floats, part: Slice, benchmark: str
) -> list[ProblemRecord]:
    """One record for each problem of a slice, whose true success rates (problems of the slice,) are
    given.
    """
    samples = part.samples
    correct = rng.binomial(samples, success)
    no_answer = rng.binomial(samples - correct, 0.1)
    share = 0.5 ** np.arange(1, WRONG_ANSWERS + 1)
    wrong = rng.multinomial(samples - correct - no_answer, share / share.sum())
    middle = np.exp(-(((np.arange(len(LENGTH_BINS)) - 28) / 9) ** 2))
    lengths = rng.multinomial(np.full(len(success), samples), middle / middle.sum())
    tokens = (lengths * np.array(LENGTH_BINS) * 1.04).sum(axis=1)
    made = []
    for row, (right, none) in enumerate(zip(correct.tolist(), no_answer.tolist(), strict=True)):
        problem = part.problem + row
        answers = {
            f"\\frac{{{problem}}}{{{place + 2}}}": n
            for place, n in enumerate(wrong[row].tolist())
            if n
        }
        bins = {LENGTH_BINS[place]: n for place, n in enumerate(lengths[row].tolist()) if n}
        right_answers = {str(17 * problem): right} if right else {}
        cut = bins.get(LIMIT, 0)
        made.append(
            ProblemRecord(
                f"{benchmark}-{problem}",
                samples,
                right,
                cut,
                none,
                0,
                int(tokens[row]),
                answers | right_answers,
                bins,
                right_answers,
                int(tokens[row]) * right // samples,
            )
        )
    return made


def _train(study: Study, unit: Unit, made_with: dict[str, Any], gpus: Gpus) -> None:
    """Write all files that a unit's training leaves."""
    experiment, setup, rng = (
        study.experiment,
        study.setup_of(unit),
        np.random.default_rng(_seed(unit.id)),
    )
    config = {"unit": asdict(unit), "setup": asdict(setup), "runtime": asdict(experiment.runtime)}
    with closing(RunWriter(study.runs, unit.id)) as run:
        run.describe(config, lambda: made_with)
        rows = [
            {"step": 0, "phase": START, "role": role, "seconds": 21.5}
            for role in ("rollout", "teacher", "learner")
        ]
        for step in range(unit.steps):
            run.append(METRICS, [_metrics(rng, unit, step)])
            if step < ROLLOUT_STEPS:
                run.append(ROLLOUTS, _rollouts(rng, step, setup.training.prompts_per_step))
            laps = {ROLLOUT: 61.25, SCORE: 8.5, REWARD: 0.75, LEARN: 30.125}
            rows.append({"step": step, "phase": TRAIN, **laps})
            if step + 1 in checkpoint_steps(unit, setup):
                run.new_checkpoint(step + 1, _save)
                run.commit(step + 1)
                run.log.line(f"checkpoint of step {step + 1} of {unit.steps}")
        if not unit.trains:
            run.commit(0)
        begun = gpus.work(run, rows) if unit.trains else FIRST
        started = datetime.fromtimestamp(begun, UTC).isoformat(timespec="seconds")
        (run.path / ATTEMPTS).write_text(
            json.dumps({"started": started} | made_with) + "\n", encoding="utf-8"
        )
        run.finish()


def _save(folder: Path) -> None:
    """The files of a checkpoint, all but empty."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name, encoding="utf-8")


def _metrics(rng: np.random.Generator, unit: Unit, step: int) -> dict[str, Any]:
    """A row with every column that such a step logs."""
    if unit.is_supervised:
        keys = {
            "student_log_prob",
            "response_tokens",
            "response_length",
            "truncated",
            "reward",
            "loss",
            "grad_norm",
        }
    else:
        behavior = behavior_at(unit.method, unit.knobs, step)
        keys = columns_of_step(behavior.needs_teacher, behavior.measures)
    values = rng.random(len(keys)).tolist()
    return (
        {"step": step, "lr": 1e-6}
        | dict(zip(sorted(keys), values, strict=True))
        | {"response_tokens": 400_000}
    )


def _rollouts(rng: np.random.Generator, step: int, prompts: int) -> list[dict[str, Any]]:
    """Four rollouts of each prompt."""
    lengths, values = (
        rng.integers(100, 7168, (prompts, 4)).tolist(),
        rng.random((prompts, 4, 3)).tolist(),
    )
    return [
        {
            "step": step,
            "prompt": prompt,
            "sample": sample,
            "length": lengths[prompt][sample],
            "truncated": lengths[prompt][sample] > 7000,
            "reward": float(values[prompt][sample][0] < 0.4),
            "teacher_log_prob": -values[prompt][sample][1],
            "log_ratio": values[prompt][sample][2] - 0.5,
        }
        for prompt in range(prompts)
        for sample in range(4)
    ]


def _evaluate(study: Study, unit: Unit, wanted: PendingSlice, world: World, gpus: Gpus) -> None:
    """Write one slice, as an evaluator does."""
    part, run = wanted.part, study.reader(unit)
    benchmark, step, repetition = wanted.sampling
    rng = np.random.default_rng(_seed(unit.id, benchmark, step, repetition, part.name))
    success = world.of(unit, benchmark, step)[part.problem : part.problem_end]
    write_slice(run, wanted.evaluation_id, step, part, records(rng, success, part, benchmark))
    row = {
        "step": step,
        "phase": EVALUATE,
        "benchmark": benchmark,
        "draw": repetition,
        "responses": part.responses,
    }
    gpus.work(run, [row | {"seconds": 0.07 * part.responses}])


def _evaluated_steps(unit: Unit, experiment: Experiment) -> list[int]:
    return [0] if unit.is_untrained else checkpoint_steps(unit, experiment.setups[unit.setup])


def _seed(*parts: Any) -> int:
    return zlib.crc32(repr(parts).encode())
