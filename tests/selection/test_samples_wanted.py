"""What a sweep asks for, carried out by evaluators that draw from known rates instead of sampling a
model.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.config import Experiment
from orchestrator.engines.interface import WeightsRef
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import Sampling
from orchestrator.experiment.units import Unit, families
from orchestrator.monitor import status
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord
from orchestrator.records.writer import RecordWriter, RunWriter
from orchestrator.selection import retention, scores
from orchestrator.selection.confirmation import missing_units, with_confirmation
from orchestrator.selection.pending_slices import PendingSlice, pending_slices
from orchestrator.selection.samples_wanted import Wants, wants
from orchestrator.selection.study import Study
from orchestrator.trial.evaluation_loop import EvaluationLoop
from orchestrator.workers.graded_sampling import GradedSamples, Samples
from tests.fake_runs import quickstart, record, units_of, write_evaluation, write_run

N, PROBLEMS, STEPS = 64, 40, (20, 40, 60)
SHORT, LONG = "arithmetic_short", "arithmetic_long"
SIZES = [
    f"evaluation.benchmarks.{name}.{key}"
    for name in (SHORT, LONG)
    for key in (f"n={N}", f"limit={PROBLEMS}")
]
FIRST = {Sampling(name, step, 0): 2 for name in (SHORT, LONG) for step in STEPS}


class Killed(Exception):
    """The process ended here."""


@dataclass
class World:
    """An experiment whose every sample is fixed by unit, benchmark, step, repetition, problem and index."""

    experiment: Experiment
    units: list[Unit]
    rates: Mapping[tuple[str, int], float]  # (label, step) → success rate
    calls_left: float = float("inf")
    taken: int = 0
    log: list[tuple[str, Sampling]] = field(default_factory=list)

    def study(self, runs: Path) -> Study:
        return Study(self.experiment, self.units, runs)

    def family(self, name: str) -> list[Unit]:
        return units_of(self.units, name)

    def train(self, runs: Path, *names: str) -> None:
        for unit in (unit for name in names for unit in self.family(name)):
            steps = [] if unit.kind == "base_eval" else STEPS
            write_run(
                runs,
                self.experiment,
                unit,
                {step: [None, None] for step in steps},
                steps=unit.steps,
            )

    def wave(self, runs: Path) -> Wants:
        """Sample what is wanted now, and not what that makes wanted; what it was."""
        study = self.study(runs)
        asked, slices = wants(study), list(pending_slices(study))
        evaluator = self.evaluator(study)
        for wanted in slices:
            evaluator.sample(wanted)
        return asked

    def finish(self, runs: Path) -> None:
        for _ in self.evaluator(self.study(runs)).slices():
            pass

    def evaluator(self, study: Study) -> EvaluationLoop:
        def pending() -> list[PendingSlice]:
            return list(pending_slices(study.snapshot()))

        def open_worker(_: str) -> Any:
            return MadeUp(self, study)

        return EvaluationLoop(study.runs, pending, open_worker, attempts=1)

    def samples(self, unit: Unit, wanted: Samples) -> list[ProblemRecord]:
        if self.calls_left <= 0:
            raise Killed
        self.calls_left -= 1
        self.taken += len(wanted.samples) * len(wanted.problems)
        self.log.append((unit.id, Sampling(wanted.benchmark, wanted.step, wanted.repetition)))
        assert wanted.seed == unit.seed
        key = [
            zlib.crc32(f"{unit.label} {unit.seed} {wanted.benchmark}".encode()),
            wanted.step,
            wanted.repetition,
        ]
        right = np.random.default_rng(key).random((PROBLEMS, 2 * N)) < self.rates.get(
            (unit.label, wanted.step), 0.2
        )
        n, samples = len(wanted.samples), slice(wanted.samples.start, wanted.samples.stop)
        return [
            record(int(right[index, samples].sum()), n, f"p{index}") for index in wanted.problems
        ]


@dataclass
class MadeUp:
    """What an evaluator holds, without models: it makes its samples up."""

    world: World
    study: Study
    unit_id: str | None = None  # of the loaded checkpoint; None for the untrained student

    def start(self) -> None:
        pass

    def load(self, weights: WeightsRef, canary: dict[str, Any] | None) -> None:
        assert isinstance(weights.place, Path)
        self.unit_id = weights.place.parents[1].name

    def evaluate(self, wanted: Samples) -> GradedSamples:
        units = with_confirmation(self.study).units
        (unit,) = [u for u in units if (u.id == self.unit_id if self.unit_id else u.is_untrained)]
        return GradedSamples(self.world.samples(unit, wanted), [])

    def close(self) -> None:
        pass


def world(*overrides: str, rates: Mapping[tuple[str, int], float] | None = None) -> World:
    """Trust region in two settings: the second is better, and its last two checkpoints are alike."""
    experiment, units = quickstart(
        "evaluation.budget=adaptive", "evaluation.rescore=true", *SIZES, *overrides
    )
    units = [
        unit
        for unit in units
        if unit.kind == "base_eval" or unit.method in ("trust_region", "vanilla")
    ]
    better = next(unit.label for unit in reversed(units) if unit.method == "trust_region")
    return World(
        experiment, units, rates or {(better, 20): 0.35, (better, 40): 0.62, (better, 60): 0.6}
    )


def evaluation_files(runs: Path) -> dict[str, bytes]:
    """Every file below an `evals` folder, by path."""
    return {str(p.relative_to(runs)): p.read_bytes() for p in sorted(runs.glob("*/evals/*/*/*"))}


def full_steps(world: World, runs: Path, unit: Unit) -> set[int]:
    """Checkpoints with all n samples on all benchmarks."""
    ids = evaluation_protocol.evaluation_ids(world.experiment.setups[unit.setup]).values()
    run = RunReader(runs, unit.id)
    tallies = {
        step: [scores.tally(run, evaluation_id, step) for evaluation_id in ids] for step in STEPS
    }
    return {
        step
        for step, found in tallies.items()
        if all(t is not None and t.samples == N for t in found)
    }


def chosen(world: World, runs: Path, name: str = "trust_region") -> tuple[str, int]:
    """Label and step of a family's selected checkpoint."""
    [family] = families(world.family(name))
    best = scores.best_of(scores.scored_checkpoints(world.study(runs), family))
    assert best is not None
    return best.setting[0].label, best.step


# --- what is asked for, and when ---


def test_at_first_a_checkpoint_gets_the_first_rung(tmp_path: Path) -> None:
    sweep = world()
    sweep.train(tmp_path, "vanilla")
    [vanilla] = sweep.family("vanilla")
    assert wants(sweep.study(tmp_path))[vanilla.id] == FIRST


def test_the_untrained_student_has_no_rivals_and_gets_all_at_once(tmp_path: Path) -> None:
    sweep = world()
    [base] = sweep.family("base_eval")
    assert wants(sweep.study(tmp_path)) == {base.id: {Sampling(b, 0, 0): N for b in (SHORT, LONG)}}


def test_a_race_begins_when_its_whole_family_is_trained(tmp_path: Path) -> None:
    sweep = world()
    first, second = sweep.family("trust_region")
    write_run(tmp_path, sweep.experiment, first, {step: [None, None] for step in STEPS}, steps=60)
    sweep.wave(tmp_path)
    assert first.id not in wants(sweep.study(tmp_path))
    write_run(tmp_path, sweep.experiment, second, {step: [None, None] for step in STEPS}, steps=60)
    assert sweep.wave(tmp_path)[second.id] == FIRST
    asked = sweep.wave(tmp_path)
    assert set(asked[second.id].values()) == {4}
    assert {sampling.repetition for sampling in asked[second.id]} == {0}


def test_full_asks_for_everything_at_once(tmp_path: Path) -> None:
    sweep = world("evaluation.budget=full", "evaluation.rescore=false")
    sweep.train(tmp_path, "vanilla")
    [vanilla] = sweep.family("vanilla")
    assert sweep.wave(tmp_path)[vanilla.id] == dict.fromkeys(FIRST, N)
    assert vanilla.id not in wants(sweep.study(tmp_path))


def test_what_is_wanted_is_missing_and_what_is_not_is_done(tmp_path: Path) -> None:
    sweep = world()
    sweep.train(tmp_path, "base_eval", "vanilla", "trust_region")
    missing = missing_units(sweep.study(tmp_path))
    assert missing == sweep.units
    assert {s.state for s in status.collect(sweep.study(tmp_path))} == {"queued"}
    sweep.finish(tmp_path)
    assert missing_units(sweep.study(tmp_path)) == []
    assert {s.state for s in status.collect(sweep.study(tmp_path))} == {"done"}


# --- races ---


def test_a_race_picks_what_the_full_protocol_picks_with_fewer_samples(tmp_path: Path) -> None:
    full, adaptive = (
        world(f"evaluation.budget={budget}", "evaluation.rescore=false")
        for budget in ("full", "adaptive")
    )
    for sweep, runs in ((full, tmp_path / "full"), (adaptive, tmp_path / "adaptive")):
        sweep.train(runs, "trust_region")
        sweep.finish(runs)
    assert chosen(full, tmp_path / "full") == chosen(adaptive, tmp_path / "adaptive")
    assert adaptive.taken < 0.6 * full.taken
    worse, better = adaptive.family("trust_region")
    assert full_steps(adaptive, tmp_path / "adaptive", worse) == set()
    assert full_steps(adaptive, tmp_path / "adaptive", better) >= {
        chosen(full, tmp_path / "full")[1]
    }


def test_what_a_race_takes_to_the_end_are_the_counts_of_the_full_protocol(tmp_path: Path) -> None:
    full, adaptive = world("evaluation.budget=full"), world()
    for sweep, runs in ((full, tmp_path / "full"), (adaptive, tmp_path / "adaptive")):
        sweep.train(runs, "trust_region")
        sweep.finish(runs)
    better = adaptive.family("trust_region")[1]
    reference, raced = (RunReader(tmp_path / budget, better.id) for budget in ("full", "adaptive"))
    complete = full_steps(adaptive, tmp_path / "adaptive", better)
    assert complete
    for step in complete:
        for evaluation_id in evaluation_protocol.evaluation_ids(
            adaptive.experiment.setups["arithmetic"]
        ).values():
            assert raced.evaluation(evaluation_id, step) == reference.evaluation(
                evaluation_id, step
            )


@pytest.mark.parametrize(("calls", "zone"), [(1, 0), (4, 0), (4, 10)])
def test_kills_at_any_moment_change_no_decision(tmp_path: Path, calls: int, zone: int) -> None:
    """Every few evaluations the process ends; the next one finds only the run directories."""
    undisturbed, killed = (world(f"evaluation.indifference={zone}") for _ in range(2))
    for sweep, runs in ((undisturbed, tmp_path / "a"), (killed, tmp_path / "b")):
        sweep.train(runs, "base_eval", "vanilla", "trust_region")
    undisturbed.finish(tmp_path / "a")
    kills = 0
    while wants(Study(killed.experiment, killed.units, tmp_path / "b")):
        killed.calls_left = calls
        try:
            killed.wave(tmp_path / "b")
        except Killed:
            kills += 1
    assert kills > 3
    assert killed.taken == undisturbed.taken
    assert evaluation_files(tmp_path / "b") == evaluation_files(tmp_path / "a")


@pytest.mark.parametrize("responses", [23, 100])
def test_how_slices_are_cut_changes_no_decision(tmp_path: Path, responses: int) -> None:
    whole, cut = world(), world(f"runtime.slice_responses={responses}")
    for sweep, runs in ((whole, tmp_path / "whole"), (cut, tmp_path / "cut")):
        sweep.train(runs, "trust_region")
        sweep.finish(runs)
    assert chosen(whole, tmp_path / "whole") == chosen(cut, tmp_path / "cut")
    assert cut.taken == whole.taken
    assert len(evaluation_files(tmp_path / "cut")) > 2 * len(evaluation_files(tmp_path / "whole"))


def test_several_evaluators_share_the_work_and_none_does_it_twice(tmp_path: Path) -> None:
    alone, together = world(), world("runtime.slice_responses=90")
    for sweep, runs in ((alone, tmp_path / "alone"), (together, tmp_path / "together")):
        sweep.train(runs, "base_eval", "vanilla", "trust_region")
    alone.finish(tmp_path / "alone")
    study = together.study(tmp_path / "together")
    evaluators = [together.evaluator(study).slices() for _ in range(3)]
    while evaluators:  # each in turn samples a slice, and ends where the others leave it none
        evaluators = [each for each in evaluators if next(each, None) is not None]
    assert wants(study) == {}
    assert together.taken == alone.taken
    assert chosen(together, tmp_path / "together") == chosen(alone, tmp_path / "alone")


def test_one_rival_is_taken_to_the_end_at_once(tmp_path: Path) -> None:
    alone = world(rates={("Vanilla", 20): 0.1, ("Vanilla", 40): 0.1, ("Vanilla", 60): 0.9})
    alone.train(tmp_path, "vanilla")
    alone.wave(tmp_path)
    [vanilla] = alone.family("vanilla")
    assert alone.wave(tmp_path)[vanilla.id] == {Sampling(b, 60, 0): N for b in (SHORT, LONG)}


def test_a_new_setting_opens_the_race_again(tmp_path: Path) -> None:
    sweep = world()
    sweep.train(tmp_path, "trust_region")
    sweep.finish(tmp_path)
    wider = world("methods.trust_region.epsilon0=[0.01,0.05,0.5]")
    wider.rates = {**sweep.rates, (wider.family("trust_region")[2].label, 60): 0.8}
    added = wider.family("trust_region")[2]
    write_run(tmp_path, wider.experiment, added, {step: [None, None] for step in STEPS}, steps=60)
    asked = wants(wider.study(tmp_path))
    assert asked[added.id] == FIRST
    wider.finish(tmp_path)
    assert chosen(wider, tmp_path) == (added.label, 60)


def test_records_of_the_full_protocol_are_not_taken_again(tmp_path: Path) -> None:
    full, adaptive = (
        world("evaluation.budget=full", "evaluation.rescore=false"),
        world("evaluation.rescore=false"),
    )
    full.train(tmp_path, "vanilla", "trust_region", "base_eval")
    full.finish(tmp_path)
    assert wants(adaptive.study(tmp_path)) == {}
    assert chosen(adaptive, tmp_path) == chosen(full, tmp_path)


def test_seeds_race_together(tmp_path: Path) -> None:
    sweep = world("seeds=[0,1]")
    sweep.train(tmp_path, "trust_region")
    sweep.finish(tmp_path)
    label, step = chosen(sweep, tmp_path)
    members = [unit for unit in sweep.family("trust_region") if unit.label == label]
    assert len(members) == 2
    assert all(step in full_steps(sweep, tmp_path, unit) for unit in members)


# --- races with an indifference zone ---

ZONE = "evaluation.indifference=10"


def test_the_winner_of_a_race_with_a_zone_gets_its_full_samples_from_fresh_draws_only(
    tmp_path: Path,
) -> None:
    sweep = world(ZONE)
    sweep.train(tmp_path, "trust_region")
    sweep.finish(tmp_path)
    worse, better = sweep.family("trust_region")
    assert full_steps(sweep, tmp_path, worse) == full_steps(sweep, tmp_path, better) == set()
    label, step = chosen(sweep, tmp_path)
    assert label == better.label
    fresh = {(unit_id, sampling.step) for unit_id, sampling in sweep.log if sampling.repetition}
    assert {each for each in fresh if each[1]} == {(better.id, step)}


def test_without_fresh_samples_the_winner_gets_all_of_the_others(tmp_path: Path) -> None:
    sweep = world(ZONE, "evaluation.rescore=false")
    sweep.train(tmp_path, "trust_region")
    sweep.finish(tmp_path)
    assert full_steps(sweep, tmp_path, sweep.family("trust_region")[1]) == {
        chosen(sweep, tmp_path)[1]
    }


def test_a_winner_with_fewer_samples_than_another_checkpoint_gets_all(tmp_path: Path) -> None:
    """The worse setting was evaluated in full before: its checkpoints would come first."""
    full, zone = world("evaluation.budget=full", "evaluation.rescore=false"), world(ZONE)
    worse, better = zone.family("trust_region")
    full.units = [worse]
    full.train(tmp_path, "trust_region")
    full.finish(tmp_path)
    zone.train(tmp_path, "trust_region")
    zone.finish(tmp_path)
    label, step = chosen(zone, tmp_path)
    assert label == better.label
    assert step in full_steps(zone, tmp_path, better)


# --- fresh samples ---


def test_the_selected_checkpoint_alone_gets_fresh_samples(tmp_path: Path) -> None:
    sweep = world()
    sweep.train(tmp_path, "base_eval", "vanilla", "trust_region")
    sweep.finish(tmp_path)
    fresh = {(unit_id, sampling.step) for unit_id, sampling in sweep.log if sampling.repetition}
    expected = set()
    for name in ("base_eval", "vanilla", "trust_region"):
        label, step = chosen(sweep, tmp_path, name)
        expected |= {(unit.id, step) for unit in sweep.family(name) if unit.label == label}
    assert fresh == expected
    ids = evaluation_protocol.fresh_evaluation_ids(sweep.experiment.setups["arithmetic"])
    for unit_id, step in fresh:
        for evaluation_id in ids.values():
            found = scores.tally(RunReader(tmp_path, unit_id), evaluation_id, step)
            assert found is not None
            assert found.samples == N


def test_fresh_samples_are_others_and_select_nothing(tmp_path: Path) -> None:
    sweep = world("evaluation.budget=full")
    setup = sweep.experiment.setups["arithmetic"]
    ids, fresh_ids = (
        evaluation_protocol.evaluation_ids(setup),
        evaluation_protocol.fresh_evaluation_ids(setup),
    )
    assert set(ids) == set(fresh_ids)
    assert not set(ids.values()) & set(fresh_ids.values())
    sweep.train(tmp_path, "vanilla")
    sweep.finish(tmp_path)
    [vanilla], (_, step) = sweep.family("vanilla"), chosen(sweep, tmp_path, "vanilla")
    with closing(RunWriter(tmp_path, vanilla.id)) as run:
        assert run.evaluation(ids[SHORT], step) != run.evaluation(fresh_ids[SHORT], step)
        for evaluation_id in fresh_ids.values():
            for other in STEPS:
                right = 0 if other == step else N
                write_evaluation(
                    run, evaluation_id, other, [record(right, N, f"p{i}") for i in range(PROBLEMS)]
                )
    assert chosen(sweep, tmp_path, "vanilla")[1] == step


def test_without_rescoring_selection_is_the_end(tmp_path: Path) -> None:
    sweep = world("evaluation.rescore=false")
    sweep.train(tmp_path, "vanilla")
    sweep.finish(tmp_path)
    assert {sampling.repetition for _, sampling in sweep.log} == {0}


def test_how_much_is_sampled_is_in_no_id() -> None:
    setup = world().experiment.setups["arithmetic"]
    for other in ("evaluation.budget=full", "evaluation.error=0.2", ZONE):
        changed = world(other).experiment.setups["arithmetic"]
        assert evaluation_protocol.evaluation_ids(changed) == evaluation_protocol.evaluation_ids(
            setup
        )
    reseeded = world("evaluation.seed=1").experiment.setups["arithmetic"]
    assert evaluation_protocol.evaluation_ids(reseeded) == evaluation_protocol.fresh_evaluation_ids(
        setup
    )


# --- checkpoints that are kept ---


def kept(world: World, runs: Path, name: str) -> list[list[int]]:
    return [list(RunReader(runs, unit.id).checkpoints()) for unit in world.family(name)]


def test_checkpoints_stay_until_the_family_is_decided(tmp_path: Path) -> None:
    sweep = world("runtime.keep=best")
    sweep.train(tmp_path, "trust_region")
    while sweep.wave(tmp_path):
        if wants(sweep.study(tmp_path)):
            retention.prune(sweep.study(tmp_path))
            assert kept(sweep, tmp_path, "trust_region") == [list(STEPS)] * 2
    retention.prune(sweep.study(tmp_path))
    (worse,), (better,) = kept(sweep, tmp_path, "trust_region")
    assert worse in STEPS
    assert better == chosen(sweep, tmp_path)[1]
    assert wants(sweep.study(tmp_path)) == {}


def test_a_trial_of_the_full_protocol_keeps_its_own_best(tmp_path: Path) -> None:
    sweep = world("runtime.keep=best", "evaluation.budget=full")
    sweep.train(tmp_path, "trust_region")
    sweep.wave(tmp_path)
    retention.prune(sweep.study(tmp_path))
    assert [len(steps) for steps in kept(sweep, tmp_path, "trust_region")] == [1, 1]
    sweep.finish(tmp_path)
    assert {sampling.step for _, sampling in sweep.log if sampling.repetition} == {
        0,
        chosen(sweep, tmp_path)[1],
    }


def test_where_seeds_are_averaged_the_setting_decides_what_is_kept(tmp_path: Path) -> None:
    """Each seed's own best may be another checkpoint than that of their mean."""
    sweep = world("runtime.keep=best", "evaluation.budget=full", "seeds=[0,1]")
    sweep.train(tmp_path, "vanilla")
    sweep.finish(tmp_path)
    assert kept(sweep, tmp_path, "vanilla") == [list(STEPS)] * 2
    retention.prune(sweep.study(tmp_path))
    assert kept(sweep, tmp_path, "vanilla") == [[chosen(sweep, tmp_path, "vanilla")[1]]] * 2


def test_dropping_checkpoints_touches_nothing_else(tmp_path: Path) -> None:
    sweep = world("runtime.keep=best")
    sweep.train(tmp_path, "trust_region")
    sweep.finish(tmp_path)
    first, second = sweep.family("trust_region")
    with closing(RunWriter(tmp_path, first.id)) as run:
        run.fail("out of memory", "its traceback")
    with (tmp_path / first.id / "metrics.jsonl").open("a") as log:
        log.write("not committed\n")
    before = files_beside_checkpoints(tmp_path)
    with closing(RecordWriter(tmp_path, second.id)):  # as a process that works on it
        retention.prune(sweep.study(tmp_path))
    mine, held = kept(sweep, tmp_path, "trust_region")
    assert len(mine) == 1
    assert held == list(STEPS)
    assert RunReader(tmp_path, first.id).committed_checkpoints() == mine
    after = files_beside_checkpoints(tmp_path)
    assert before.keys() == after.keys()
    assert {path for path in after if after[path] != before[path]} == {f"{first.id}/state.json"}


def files_beside_checkpoints(runs: Path) -> dict[str, bytes]:
    """Every file of the run directories but checkpoints and leases, by path."""
    files = (
        path
        for path in runs.rglob("*")
        if path.is_file() and not {".locks", "checkpoints"} & {*path.parts}
    )
    return {str(path.relative_to(runs)): path.read_bytes() for path in files}


def test_a_checkpoint_that_was_dropped_with_fewer_samples_is_not_the_best_any_more(
    tmp_path: Path,
) -> None:
    """Step 40 scored higher, on fewer samples, and is gone: the trial keeps what it has."""
    sweep = world("runtime.keep=best", "evaluation.budget=full")
    [vanilla] = sweep.family("vanilla")
    write_run(tmp_path, sweep.experiment, vanilla, {20: [None, None], 60: [None, None]}, steps=60)
    with closing(RunWriter(tmp_path, vanilla.id)) as run:
        for evaluation_id in evaluation_protocol.evaluation_ids(
            sweep.experiment.setups["arithmetic"]
        ).values():
            write_evaluation(
                run, evaluation_id, 40, [record(4, 4, f"p{index}") for index in range(PROBLEMS)]
            )
    sweep.rates = {("Vanilla", 20): 0.9, ("Vanilla", 60): 0.1}
    sweep.finish(tmp_path)
    retention.prune(sweep.study(tmp_path))
    assert kept(sweep, tmp_path, "vanilla") == [[20]]
    [found] = [s for s in status.collect(sweep.study(tmp_path)) if s.id == vanilla.id]
    assert found.best_step == 20
    assert found.score == pytest.approx(0.9, abs=0.05)


def test_keep_all_keeps_all(tmp_path: Path) -> None:
    sweep = world("runtime.keep=all")
    sweep.train(tmp_path, "vanilla")
    sweep.finish(tmp_path)
    retention.prune(sweep.study(tmp_path))
    assert kept(sweep, tmp_path, "vanilla") == [list(STEPS)]


def test_rivals_whose_checkpoint_is_gone_leave_the_race(tmp_path: Path) -> None:
    sweep = world("runtime.keep=best", "evaluation.rescore=false")
    sweep.train(tmp_path, "trust_region")
    sweep.finish(tmp_path)
    retention.prune(sweep.study(tmp_path))
    more = world(
        f"evaluation.benchmarks.{SHORT}.n={N + 8}", "runtime.keep=best", "evaluation.rescore=false"
    )
    selected, left = chosen(sweep, tmp_path), kept(sweep, tmp_path, "trust_region")
    more.rates = sweep.rates
    more.finish(tmp_path)
    (worse,), (better,) = left
    assert {(unit_id, sampling.step) for unit_id, sampling in more.log if sampling.step} == {
        (more.family("trust_region")[0].id, worse),
        (more.family("trust_region")[1].id, better),
    }
    assert chosen(more, tmp_path) == selected == (more.family("trust_region")[1].label, better)
