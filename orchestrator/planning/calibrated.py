"""Measurements of `trb calibrate` on a card before any run is finished.

The runs folder has a file for each card. A row of it is one measurement: so many responses took so
many seconds in one phase. Measured ÷ planned seconds of the same work become a factor, as they do
for finished runs (`planning.seconds`). A row holds for the same kind of card, the same engines and
models of the same shapes, whatever their weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.config import Placement, Setup
from orchestrator.planning.costs import BLENDED, PASSING, PLAIN, SetupCosts
from orchestrator.planning.lengths import Lengths
from orchestrator.planning.rates import DEFAULT_GPU, GPUS, Gpu
from orchestrator.planning.work import StepWork
from orchestrator.records.files import Damaged, read_sealed, write_sealed
from orchestrator.records.log import EVALUATE, LEARN, ROLLOUT, SCORE

FOLDER = ".calibration"  # of the runs folder
REMEDY = "remove it and run trb calibrate again"
SAME_MEMORY = 0.05  # a card's drivers differ by less; cards of one name, such as A100, by far more
# Shorter measurements replace no rate, unless they are all of the work that a sweep does at once:
# what a phase takes at its beginning and end is a part of theirs.
SHORTEST_S = 5.0
LEAST_SHARE = 0.5  # of the longest measurement of its kind: shorter ones are left out
ONE_GPU = Placement(gpus=1)  # of all that is measured
MEASURED_WORDS = {  # the keys of rows, as people read them
    PLAIN: "decoding",
    BLENDED: "blending",
    EVALUATE: "evaluating",
    SCORE: "scoring",
    LEARN: "learning",
    PASSING: "weight change and offload",
}
SAMPLED, TRAINED = (ROLLOUT, EVALUATE), (SCORE, LEARN)


@dataclass(frozen=True)
class Card:
    """A GPU as torch names it, such as `NVIDIA H100 80GB HBM3`, and its memory in GiB."""

    name: str
    gib: float

    def is_a(self, gpu: Gpu) -> bool:
        """Whether it is a whole GPU of a kind that plans know."""
        model = gpu.name.partition("-")[0]
        same_size = abs(self.gib / gpu.gib - 1) <= SAME_MEMORY
        named = re.search(rf"\b{re.escape(model)}\b", self.name) is not None
        return named and same_size and gpu.share == 1


@dataclass(frozen=True)
class CalibrationRow:
    """`responses` of a setup, each of `tokens` tokens after a context of `prompt`, took `seconds`.

    `key` names the measured work: a phase, PLAIN or BLENDED for rollouts of that kind, or PASSING,
    which has no responses. `whole` tells whether it is all that a sweep does at once, such as the
    responses of a step. `shapes` are the sizes of the models, and `random` tells whether their
    weights were made up. `about` says more for people, such as the parts of its seconds and
    versions; `day` is as 2026-11-23.
    """

    setup: str
    shapes: Mapping[str, Any]
    sampler: str
    trainer: str
    random: bool
    key: str
    seconds: float
    day: str
    responses: int = 0
    prompt: float = 0.0
    tokens: float = 0.0
    about: Mapping[str, Any] | None = None
    whole: bool = False

    @property
    def counts(self) -> bool:
        """Whether it is long enough to replace a rate."""
        return self.whole or self.key == PASSING or self.seconds >= SHORTEST_S

    @property
    def phase(self) -> str:
        """The phase of a plan that it belongs to; PASSING is a part of one."""
        return ROLLOUT if self.key in (PLAIN, BLENDED) else self.key

    def holds_for(self, setup: Setup, sampler: str) -> bool:
        """Whether a setup has the engines of this phase and models of the same shapes."""
        # Passing on weights is work of both engines.
        if self.phase not in TRAINED and self.sampler != sampler:
            return False
        if self.phase not in SAMPLED and self.trainer != setup.engine.trainer:
            return False
        return self.shapes == shapes_of(setup)

    def planned_seconds(self, costs: SetupCosts) -> float:
        """Seconds of the same work by the plan's middle rates, for a trial on one GPU."""
        if self.key == PASSING:
            return costs.passing.mid
        limit = max(1, round(self.tokens))
        # All responses are as long as their limit.
        lengths = Lengths(self.tokens, 1.0, limit, self.prompt)
        setup, training = costs.setup, costs.setup.training
        longest = training.max_response_tokens
        if self.phase == EVALUATE:
            longest = setup.evaluation.max_response_tokens
        # The engine's memory was granted for prompts and responses of full length.
        others = max(1, training.max_prompt_tokens + longest - limit)
        training = replace(training, max_prompt_tokens=others, max_response_tokens=limit)
        runtime = replace(costs.runtime, placement=ONE_GPU)
        costs = replace(costs, setup=replace(setup, training=training), runtime=runtime)
        if self.phase == EVALUATE:
            return costs.evaluating_seconds(self.responses, lengths, "mid")
        kind = self.key if self.phase == ROLLOUT else PLAIN
        return costs.phase_seconds(self.phase, StepWork(kind), self.responses, lengths, "mid")


@dataclass(frozen=True)
class Calibration:
    """All rows of one card."""

    card: Card
    rows: Sequence[CalibrationRow]

    def source(self, rows: Sequence[CalibrationRow]) -> str:
        """`measured on this card, 2026-11-23, NVIDIA H100 80GB HBM3`, by the latest of `rows`."""
        made_up = ", random weights" if any(row.random for row in rows) else ""
        return f"measured on this card, {max(row.day for row in rows)}, {self.card.name}{made_up}"

    def rows_for(self, setup: Setup, sampler: str) -> dict[str, list[CalibrationRow]]:
        """The rows that hold for a setup by key, without short ones beside longer ones.

        Under ROLLOUT stand the rows of all kinds of steps, for kinds that were not measured.
        """
        by_key: dict[str, list[CalibrationRow]] = {}
        for row in self.rows:
            if row.counts and row.holds_for(setup, sampler):
                by_key.setdefault(row.key, []).append(row)
        for key, rows in by_key.items():
            longest = max(row.seconds for row in rows)
            by_key[key] = [row for row in rows if row.seconds >= LEAST_SHARE * longest]
        rollouts = by_key.get(PLAIN, []) + by_key.get(BLENDED, [])
        if rollouts:
            by_key[ROLLOUT] = rollouts
        return by_key


def shapes_of(setup: Setup) -> dict[str, Any]:
    """The sizes of a setup's models, on which their speed depends, as JSON has them."""
    return {
        "student": asdict(setup.student.shape),
        "teacher": asdict(setup.teacher.shape),
        "vocabulary": setup.vocabulary.size,
        "dtype": setup.engine.dtype,
    }


def read_calibrations(runs: Path) -> tuple[Calibration, ...]:
    """Read the calibrations of a runs folder, one for each card; skip files in another form."""
    calibrations = []
    for path in sorted((runs / FOLDER).glob("*.json")):
        with suppress(Damaged, KeyError, TypeError):
            content = read_sealed(path, REMEDY)
            if content is not None:
                rows = tuple(CalibrationRow(**row) for row in content["rows"])
                calibrations.append(Calibration(Card(**content["card"]), rows))
    return tuple(calibrations)


def calibration_path(runs: Path, card: Card) -> Path:
    """`runs/.calibration/nvidia-h100-80gb-hbm3.json`."""
    return runs / FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', card.name.lower()).strip('-')}.json"


def write_rows(path: Path, card: Card, rows: Sequence[CalibrationRow]) -> None:
    """Replace a card's file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, {"card": asdict(card), "rows": [asdict(row) for row in rows]})


def gpu_of_card(card: Card) -> Gpu:
    """The kind of a card; for an unknown card the default kind with its name and memory."""
    for gpu in GPUS.values():
        if card.is_a(gpu):
            return gpu
    return replace(GPUS[DEFAULT_GPU], name=card.name, gib=card.gib)


def gpu_here(calibrations: Sequence[Calibration]) -> Gpu:
    """The kind of GPU to plan for where none is named: the calibrated one, else DEFAULT_GPU."""
    default, kinds = GPUS[DEFAULT_GPU], set[Gpu]()
    for calibration in calibrations:
        for gpu in GPUS.values():
            if calibration.card.is_a(gpu):
                kinds.add(gpu)
    # Cards of several kinds do not say which of them the sweep will run on.
    return default if default in kinds or len(kinds) != 1 else kinds.pop()
