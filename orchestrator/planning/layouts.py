"""What a trial costs on other numbers of GPUs, and why one GPU is the default: `trb plan --layouts`.

Each setup is planned with one typical trial, the middle one by the steps in which the teacher decodes. Its engines are
those of the experiment, or others where these can use one device only. Nothing of it was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.config import Placement, RoleGpus, Setup
from orchestrator.engines import catalog
from orchestrator.engines.memory import Gpus
from orchestrator.errors import UserError
from orchestrator.experiment.methods import needs_teacher
from orchestrator.experiment.units import Unit
from orchestrator.planning.costs import OTHER, SetupCosts
from orchestrator.planning.memory import Memory, memory
from orchestrator.planning.plan import Plan, training_seconds
from orchestrator.planning.ranges import Range
from orchestrator.planning.rates import GPUS
from orchestrator.planning.steps import teacher_online_steps
from orchestrator.planning.totals import evaluation_shares, rescored_units

ONE = "one GPU"
LAYOUTS: Mapping[str, Placement] = {
    ONE: Placement(gpus=1),
    "half a GPU, packed": Placement(gpus=0.5),
    "2 GPUs in turns": Placement(gpus=2),
    "4 GPUs in turns": Placement(gpus=4),
    "split 2 + 1 + 1": Placement("split", 4, RoleGpus(2, 1, 1)),
}
NODES: Mapping[str, int] = {"H100-80GB": 8, "A100-40GB": 4}  # GPUs of the nodes that are compared, by their kind


@dataclass(frozen=True)
class LaidOut:
    """A typical trial of a setup in one layout on one kind of node; what does not fit has a `reason` and no hours.

    `peak_gib` is the most that a GPU holds of `gib`. `trial_hours` are GPU-hours of training it, of which `idle_hours`
    are those in which no GPU works. `sweep_hours` are GPU-hours of all of the setup's training and evaluation, and
    `sweep_days` how long the node takes for that.
    """

    setup: str
    gpu: str
    node_gpus: int
    layout: str
    gpus: float
    takes_turns: bool
    gib: float  # of a GPU, or of the share of one
    peak_gib: float
    sequences_vanilla: int  # of full length, at once
    sequences_blending: int
    reason: str
    trial_hours: Range | None = None
    idle_hours: Range | None = None
    trials_at_once: int = 0
    sweep_hours: Range | None = None
    sweep_days: Range | None = None

    @property
    def fits(self) -> bool:
        return self.trial_hours is not None


@dataclass(frozen=True)
class Layouts:
    """All layouts of all setups, the engines that they are planned with, and what follows from the numbers."""

    rows: tuple[LaidOut, ...]
    engines: str
    verdict: tuple[str, ...]


def layouts_of(plan: Plan) -> Layouts | None:
    """The layouts of the setups of a plan; None where no unit uses a GPU, or nothing is trained."""
    if not any(planned.resources.gpus for planned in plan.units):
        return None
    rows: list[LaidOut] = []
    engines: dict[str, None] = {}
    for name, setup in plan.experiment.setups.items():
        typical = _typical([planned.unit for planned in plan.units if planned.unit.setup == name])
        if typical is None:
            continue
        spreading = _spreading(setup)
        engines[f"{spreading.engine.sampler} sampling, {spreading.engine.trainer} scoring and training"] = None
        work = _Work(name, spreading, *typical, _checkpoints(plan, name), _blends(plan, name))
        for gpu in NODES:
            rows += [_laid_out(plan, work, gpu, layout) for layout in LAYOUTS]
    if not rows:
        return None
    return Layouts(tuple(rows), "; ".join(engines), tuple(_verdict(rows)))


@dataclass(frozen=True)
class _Work:
    """What a setup has to do: `trials` times the `typical` one, and evaluations of some full `checkpoints`."""

    name: str
    setup: Setup
    typical: Unit
    trials: int
    checkpoints: Range
    blends: bool


def _laid_out(plan: Plan, work: _Work, gpu: str, layout: str) -> LaidOut:
    placement, count = LAYOUTS[layout], NODES[gpu]
    part = GPUS[gpu].part(placement.gpu_share)
    runtime = replace(plan.experiment.runtime, placement=placement)
    held = memory(work.setup, runtime, part.gib, placement)
    row = LaidOut(
        setup=work.name,
        gpu=gpu,
        node_gpus=count,
        layout=layout,
        gpus=placement.gpus,
        takes_turns=placement.takes_turns,
        gib=part.gib,
        peak_gib=held.peak_blending if work.blends else held.peak_vanilla,
        sequences_vanilla=held.sequences_at_once_vanilla,
        sequences_blending=held.sequences_at_once_blending,
        reason=_indivisible(work.setup, placement) or _refusal(held, part.gib, work.blends),
    )
    at_once = int(count // placement.gpus)
    if row.reason or not at_once:
        return replace(row, reason=row.reason or f"{placement.gpus:g} GPUs, and the node has {count}")
    costs = plan.measured.costs(work.name, work.setup, runtime, work.setup.engine.sampler, part)
    try:
        hours, idle = _trial_hours(work.typical, costs, placement)
        evaluation = costs.evaluation * work.checkpoints * (placement.of_evaluator.gpus / 3600)
    except UserError as error:  # a rollout batch of one's own does not hide that evaluations find no room
        return replace(row, reason=str(error))
    whole, alone = hours * work.trials + evaluation, hours / placement.gpus
    days = Range.of(lambda scenario: max(whole.at(scenario) / count, alone.at(scenario)) / 24)
    return replace(row, trial_hours=hours, idle_hours=idle, trials_at_once=at_once, sweep_hours=whole, sweep_days=days)


def _trial_hours(unit: Unit, costs: SetupCosts, placement: Placement) -> tuple[Range, Range]:
    """GPU-hours of training a unit, and those of them in which no GPU works."""
    seconds = training_seconds(replace(unit, placement=placement), costs)
    to_hours = placement.gpus / 3600
    return Range.total(seconds.values()) * to_hours, seconds[OTHER] * to_hours


def _indivisible(setup: Setup, placement: Placement) -> str:
    """Why the GPUs that sample cannot share out a layer; empty where they can."""
    count = Gpus.of(placement, "rollout").count
    if all(model.shape.divides_by(count) for model in (setup.student, setup.teacher)):
        return ""
    return f"heads do not divide by {count}"


def _refusal(held: Memory, gib: float, blends: bool) -> str:
    """Why GPUs of that size do not hold a trial; empty where they do."""
    for what, needed in (("learning", held.learning), ("scoring", held.scoring)):
        if needed > gib:
            return f"{what} takes {needed:.1f} of {gib:g} GiB"
    if not (held.sequences_at_once_blending if blends else held.sequences_at_once_vanilla):
        return f"no sequence of full length fits in {gib:g} GiB{' while blending' if blends else ''}"
    return ""


# --- what is laid out ---


def _typical(units: Sequence[Unit]) -> tuple[Unit, int] | None:
    """The middle one of a setup's trials by their steps and those in which the teacher decodes; how many there are."""
    trials = [unit for unit in units if unit.is_trial]
    trials.sort(key=lambda unit: (unit.steps, teacher_online_steps(unit)))
    return (trials[len(trials) // 2], len(trials)) if trials else None


def _blends(plan: Plan, name: str) -> bool:
    """Whether the teacher decodes in some step of some trial of a setup."""
    methods = {planned.unit.method: planned.unit for planned in plan.units if planned.unit.setup == name}
    return any(needs_teacher(unit.method, unit.knobs, 0) for unit in methods.values() if unit.is_trial)


def _checkpoints(plan: Plan, name: str) -> Range:
    """How many full evaluations of a checkpoint the setup's races and fresh samples come to."""
    shares, counts = evaluation_shares(plan), Counter[tuple[Range, int]]()
    for planned in plan.units:
        if planned.unit.setup == name:
            counts[shares[planned.unit.id], planned.resources.checkpoints] += 1
    fresh = sum(unit.setup == name for unit in rescored_units(plan, {}))
    total = Range.total(share * (checkpoints * units) for (share, checkpoints), units in counts.items())
    return total + Range.exactly(float(fresh))


def _spreading(setup: Setup) -> Setup:
    """The setup with engines that can use several GPUs: its own where they can."""
    engine, samplers = setup.engine, catalog.spreading("sampler")
    trainers = catalog.spreading("scorer", "trainer")
    sampler = engine.sampler if engine.sampler in samplers else samplers[0]
    trainer = engine.trainer if engine.trainer in trainers else trainers[0]
    return replace(setup, engine=replace(engine, sampler=sampler, trainer=trainer))


# --- what follows ---


def _verdict(rows: Iterable[LaidOut]) -> list[str]:
    """Why one GPU a trial is the default, or where it should not be, in sentences that follow from the rows."""
    groups: dict[tuple[str, str], dict[str, LaidOut]] = {}
    for row in rows:
        groups.setdefault((row.setup, row.gpu), {})[row.layout] = row
    cheaper = []
    for group in groups.values():
        larger = min((row for row in group.values() if row.fits and row.gpus > 1), key=_hours, default=None)
        if larger is not None and group[ONE].fits and _hours(larger) <= _hours(group[ONE]):
            cheaper.append(larger)
    if cheaper:
        where = "; ".join(f"{row.setup} on {row.gpu}: {row.layout}" for row in cheaper)
        sentences = [f"More than one GPU a trial would take no more GPU-hours than the default of one: {where}."]
    else:
        sentences = _one_is_least([group for group in groups.values() if group[ONE].fits])
    for (setup, gpu), group in groups.items():
        one, least = group[ONE], _least(group)
        if not one.fits:
            instead = f"{least.layout} cost least" if least.fits else "nor do the others"
            sentences.append(f"{setup} does not fit on one {gpu} ({one.reason}): {instead}.")
        elif least.gpus < 1:
            less = 100 * (1 - _hours(least) / _hours(one))
            sentences.append(
                f"{setup} on {gpu}: two trials packed on a GPU take {less:.2g} % fewer GPU-hours, evaluations included "
                f"(runtime.placement.gpus={least.gpus:g})."
            )
    return sentences


def _one_is_least(groups: Sequence[Mapping[str, LaidOut]]) -> list[str]:
    """By how much larger trials cost more, and for what; nothing where no larger one fits beside one GPU."""
    more, idle = [], []
    for group in groups:
        hours, waiting = _of_trial(group[ONE])
        for row in group.values():
            if row.fits and row.gpus > 1:
                larger, larger_waiting = _of_trial(row)
                more.append(100 * (larger / hours - 1))
                if row.takes_turns:
                    idle.append(100 * (larger_waiting - waiting) / (larger - hours))
    if not more:
        return []
    least = min(idle, default=100.0)
    most = "the" if least >= 100 else f"{least:.0f} % or more of that are the"
    return [
        f"One GPU a trial is the default: wherever a trial fits on one, training it on more takes {min(more):.0f} to "
        f"{max(more):.0f} % more GPU-hours. In turns {most} seconds of a step in which no GPU works, which are paid "
        "for on each of them, beside all-reduces and sharding; in split mode roles wait for each other."
    ]


def _least(group: Mapping[str, LaidOut]) -> LaidOut:
    """The layout of the fewest GPU-hours, evaluations included; some other where none fits."""
    fitting = [row for row in group.values() if row.fits]
    return min(fitting, key=_hours, default=group[ONE])


def _hours(row: LaidOut) -> float:
    assert row.sweep_hours is not None
    return row.sweep_hours.mid


def _of_trial(row: LaidOut) -> tuple[float, float]:
    """GPU-hours of training a trial, and those of them in which no GPU works, in the middle estimate."""
    assert row.trial_hours is not None
    assert row.idle_hours is not None
    return row.trial_hours.mid, row.idle_hours.mid
