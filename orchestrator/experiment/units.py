"""Expands an experiment into units of work, each with an id that fixes the result of its training.

Same id ⇒ same training, so units are shared between experiments and only missing units run.
`identity` lists the parts of an id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.config import Experiment, Placement, Setup
from orchestrator.experiment.axes import (
    axes_of,
    own_knobs,
    setting_text,
    setup_at,
    value_of,
)
from orchestrator.experiment.identity import (
    OF_TRIALS,
    base_identity,
    sft_identity,
    trial_identity,
)
from orchestrator.experiment.methods import (
    BASE,
    METHODS,
    adapters,
    method_label,
    supervised_updates,
)
from orchestrator.models.identity import Models, digest
from orchestrator.models.locate import models_of

Kind = Literal["base_eval", "sft", "trial", "probe"]

# In the order in which they are counted; a probe is no unit of a sweep.
KIND_NAMES: dict[Kind, str] = {
    "trial": "trial",
    "sft": "supervised stage",
    "base_eval": "untrained student",
}
SUPERVISED_STAGE = "Supervised stage"  # name of its units; trials are named by their methods


class OfKind:
    """Properties that follow from the `kind` of a unit, or of a statement about one."""

    kind: Kind

    @property
    def is_trial(self) -> bool:
        """Whether it is a run of a method: it distils on rollouts, and its checkpoints compete."""
        return self.kind == "trial"

    @property
    def is_supervised(self) -> bool:
        """Whether it is the supervised stage, which learns the teacher's answers first."""
        return self.kind == "sft"

    @property
    def is_untrained(self) -> bool:
        """Whether it is the evaluation of the untrained student, which has no rivals."""
        return self.kind == "base_eval"

    @property
    def trains(self) -> bool:
        """Whether it updates weights."""
        return self.is_trial or self.is_supervised

    @property
    def has_scores(self) -> bool:
        """Whether its checkpoints are evaluated on the benchmarks."""
        return self.is_trial or self.is_untrained


@dataclass(frozen=True)
class Unit(OfKind):
    """One run directory. `identity` holds everything that can change the result of training."""

    id: str
    kind: Kind
    setup: str
    seed: int
    steps: int
    identity: dict[str, Any] = field(repr=False)
    method: str | None = None
    knobs: dict[str, Any] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    first_batch: int = 0  # prompt batch of step 0 (K under `after: continue`)
    placement: Placement = field(default_factory=Placement)
    provisional: bool = False  # the id rests on recipes of models not made yet, and will change

    @property
    def label(self) -> str:
        """Method and knobs for people: `TRB epsilon0=0.05 K=12`."""
        return label_of(self.kind, self.method, self.knobs)


def label_of(kind: str, method: str | None, knobs: Mapping[str, Any]) -> str:
    """The label of a unit, which its run directory notes as well."""
    names = {"base_eval": method_label(BASE), "sft": SUPERVISED_STAGE}
    label = names.get(kind, method_label(method or kind))
    return f"{label} {setting_text(knobs)}".rstrip()


Setting = list[Unit]  # units that differ in nothing but the seed
Family = list[Setting]  # the settings of one method in one setup, or of its untrained student


@dataclass(frozen=True)
class _Pair:
    """A setup with the identities of its models."""

    name: str
    setup: Setup
    models: Models
    final: bool

    def at(self, knobs: Mapping[str, Any]) -> _Pair:
        """The pair with the setup at the axes among `knobs`."""
        return replace(self, setup=setup_at(self.setup, knobs))


def expand(experiment: Experiment, runs: Path | None = None) -> list[Unit]:
    """Make all units of `experiment`; each unit comes after the units that it depends on.

    `runs` is the folder in which embedded models are made, whose weights are a part of the ids.
    Without it, and before these models are made, units of such setups are `provisional`.
    """
    units: list[Unit] = []
    for name, setup in experiment.setups.items():
        pair = _Pair(name, setup, *models_of(setup, runs))
        base_placement = experiment.runtime.placement
        units.append(_base_eval(pair, base_placement))
        stages: dict[str, Unit] = {}  # methods and settings of one seed share a stage
        trials: list[Unit] = []
        for method in experiment.methods:
            for knobs in experiment.settings_of(method):
                for stage, trial in _trials(experiment, pair, method, knobs):
                    if stage is not None:
                        stages[stage.id] = stage
                    trials.append(trial)
        units += [*stages.values(), *trials]
    return units


def units_at(
    experiment: Experiment, name: str, method: str, knobs: dict[str, Any], runs: Path
) -> list[Unit]:
    """The trials of a setting in the setup `name`, each after the supervised stage that it needs."""
    setup, units = experiment.setups[name], list[Unit]()
    pair = _Pair(name, setup, *models_of(setup, runs))
    for stage, trial in _trials(experiment, pair, method, knobs):
        units += [trial] if stage is None else [stage, trial]
    return units


def _trials(
    experiment: Experiment, pair: _Pair, method: str, knobs: dict[str, Any]
) -> Iterator[tuple[Unit | None, Unit]]:
    """A setting's trials, each with the supervised stage that it starts from, if any."""
    shared = experiment.runtime.placement
    placement = experiment.placements.get(method, shared)
    for seed in experiment.seeds_of(method):
        stage = None
        if METHODS[method].updates_before is not None:
            stage = _sft(pair, method, knobs, seed, shared)
        yield stage, _trial(pair, method, knobs, seed, placement)


def setup_of(unit: Unit, experiment: Experiment) -> Setup:
    """The setup with which a unit trains: that of its name, at its axes."""
    return setup_at(experiment.setups[unit.setup], unit.knobs)


def widest_setup(experiment: Experiment, name: str) -> Setup:
    """A setup at the largest value of each axis that counts something: the most of any unit."""
    setup = experiment.setups[name]
    grids = [axes_of(grid) for grid in experiment.methods.values()]
    values_of: dict[str, list[Any]] = {}
    for axis in {axis for grid in grids for axis in grid}:
        values_of[axis] = [v for grid in grids for v in grid.get(axis, [value_of(setup, axis)])]
    largest: dict[str, Any] = {}
    for axis, values in values_of.items():
        if all(type(value) is int for value in values):
            largest[axis] = max(values)
    return setup_at(setup, largest)


def with_seed(
    unit: Unit, seed: int, experiment: Experiment, runs: Path | None = None
) -> list[Unit]:
    """The trial of a setting with another seed, after the supervised stage that it starts from."""
    setup = experiment.setups[unit.setup]
    pair = _Pair(unit.setup, setup, *models_of(setup, runs))
    assert unit.method is not None, "only trials have settings"
    stage = []
    if unit.depends_on:
        stage = [_sft(pair, unit.method, unit.knobs, seed, experiment.runtime.placement)]
    return [*stage, _trial(pair, unit.method, unit.knobs, seed, unit.placement)]


def families(units: Iterable[Unit]) -> list[Family]:
    """The settings of each setup and method, and of the untrained student, in the grid's order.

    Selection takes one checkpoint of a family. The supervised stage and the probe offer no choice.
    """
    settings_of: dict[tuple[str, str | None], dict[str, Setting]] = defaultdict(
        lambda: defaultdict(list)
    )
    for unit in units:
        if unit.has_scores:
            settings_of[unit.setup, unit.method][unit.label].append(unit)
    return [list(settings.values()) for settings in settings_of.values()]


def batches_of(units: Iterable[Unit], setup: str) -> int:
    """How many batches of prompts the longest unit of a setup reads, from the first one on."""
    return max((u.first_batch + u.steps for u in units if u.setup == setup), default=0)


def checkpoint_steps(unit: Unit, setup: Setup) -> list[int]:
    """Numbers of steps after which a unit makes a checkpoint, ascending; always after the last one.

    With `checkpoint_every: 20` a trial of 50 steps makes them after 20, 40 and 50. The supervised
    stage makes the ones from which trials start; the untrained student trains nothing and makes
    none.
    """
    if unit.is_supervised:
        steps = {*setup.training.sft.checkpoints, unit.steps}
    else:
        every = setup.training.checkpoint_every
        steps = {*range(every, unit.steps + 1, every), unit.steps} - {0}
    return sorted(steps)


def sampled_steps(unit: Unit, setup: Setup) -> set[int]:
    """Training steps whose rollouts are kept: the first, and the last before each checkpoint.

    The first is among them, since a behavior that fades asks the teacher most at its beginning.
    """
    steps = {0}
    for checkpoint in checkpoint_steps(unit, setup):
        steps.add(checkpoint - 1)
    return steps


def _base_eval(pair: _Pair, placement: Placement) -> Unit:
    identity = base_identity(pair.setup, pair.models)
    return Unit(
        id=f"{pair.name}-base_eval-{digest(identity)}",
        kind="base_eval",
        setup=pair.name,
        seed=0,
        steps=0,
        identity=identity,
        placement=placement,
        provisional=not pair.final,
    )


def _sft(pair: _Pair, method: str, knobs: dict[str, Any], seed: int, placement: Placement) -> Unit:
    """The supervised stage of a setting, at those of its axes that count for the stage."""
    of_adapters = adapters(method, knobs)
    point = {name: value for name, value in axes_of(knobs).items() if name not in OF_TRIALS}
    pair = pair.at(point)
    identity = sft_identity(pair.setup, pair.models, seed, of_adapters)
    return Unit(
        id=_id([pair.name, "sft"], of_adapters, seed, identity),
        kind="sft",
        setup=pair.name,
        knobs=of_adapters | point,
        seed=seed,
        steps=pair.setup.training.sft.updates,
        identity=identity,
        placement=placement,
        provisional=not pair.final,
    )


def _trial(
    pair: _Pair, method: str, knobs: dict[str, Any], seed: int, placement: Placement
) -> Unit:
    depends_on: tuple[str, ...] = ()
    updates = supervised_updates(method, knobs)
    if updates is not None:
        depends_on = (_sft(pair, method, knobs, seed, placement).id,)
    pair = pair.at(knobs)
    steps, first_batch = pair.setup.training.steps, 0
    if updates is not None and pair.setup.training.sft.after == "continue":
        steps, first_batch = steps - updates, updates
    stage = depends_on[0] if depends_on else None
    # Axes count where the setup has them, so that equal trainings have equal ids.
    own = own_knobs(knobs)
    identity = trial_identity(pair.setup, pair.models, method, own, seed, stage)
    return Unit(
        id=_id([pair.name, method], own, seed, identity),
        kind="trial",
        setup=pair.name,
        method=method,
        knobs=knobs,
        seed=seed,
        depends_on=depends_on,
        steps=steps,
        first_batch=first_batch,
        identity=identity,
        placement=placement,
        provisional=not pair.final,
    )


def _id(words: list[str], knobs: dict[str, Any], seed: int, identity: dict[str, Any]) -> str:
    parts = list(words)
    for knob, value in knobs.items():
        parts.append(f"{knob}={value:g}")
    return "-".join([*parts, f"s{seed}", digest(identity)])
