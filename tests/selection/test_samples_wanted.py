"""What a sweep asks for, carried out by the loop of a unit with an evaluator that draws from known rates."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.config import Experiment
from orchestrator.engines.interface import ModelFolder
from orchestrator.experiment import evaluations
from orchestrator.experiment.evaluations import Sampling
from orchestrator.experiment.units import Unit, families
from orchestrator.monitor import status
from orchestrator.records.problem_record import ProblemRecord
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RecordWriter, RunWriter
from orchestrator.selection import retention, scores
from orchestrator.selection.samples_wanted import Wants, wants
from orchestrator.selection.study import Study
from orchestrator.trial.assignment import Assignment
from orchestrator.trial.loop import Trial
from orchestrator.workers.evaluator import EvaluatorWorker
from orchestrator.workers.placement import RoleName
from orchestrator.workers.roles import Here, Roles
from orchestrator.workers.spec import WorkerSpec
from tests.fake_runs import quickstart, record, units_of, write_run

N, PROBLEMS, STEPS = 64, 40, (20, 40, 60)
SHORT, LONG = "arithmetic_short", "arithmetic_long"
SIZES = [f"evaluation.benchmarks.{name}.{key}" for name in (SHORT, LONG) for key in (f"n={N}", f"limit={PROBLEMS}")]
FIRST = {Sampling(name, step, 0): 2 for name in (SHORT, LONG) for step in STEPS}
NOWHERE = ModelFolder("nowhere")


class Killed(Exception):
    """The process ended here."""


@dataclass
class World:
    """An experiment whose every sample is fixed by unit, benchmark, step, draw, problem and index."""

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
            write_run(runs, self.experiment, unit, {step: [None, None] for step in steps}, steps=unit.steps)

    def wave(self, runs: Path) -> Wants:
        """One wave of evaluations; what it was asked for."""
        asked = wants(self.study(runs))
        for unit in self.units:
            if unit.id in asked:
                with closing(RunWriter(runs, unit.id)) as run:
                    trial = Trial(self.assignment(unit, asked[unit.id]), run, self.roles(unit))
                    list(trial.catch_up())
        return asked

    def finish(self, runs: Path) -> None:
        while self.wave(runs):
            pass

    def assignment(self, unit: Unit, asked: Mapping[Sampling, int]) -> Assignment:
        setup = self.experiment.setups[unit.setup]
        prunes = not scores.decided_by_family(self.experiment, unit)
        runtime = self.experiment.runtime
        spec = WorkerSpec(unit, setup, runtime, NOWHERE, NOWHERE, NOWHERE, None)
        return Assignment(spec, asked, prunes)

    def roles(self, unit: Unit) -> Roles:
        return Roles(MadeUp(self, unit))

    def evaluate(
        self, unit: Unit, benchmark: str, samples: range, step: int, draw: int, notes: Path
    ) -> list[ProblemRecord]:
        assert notes.name == unit.id
        if self.calls_left <= 0:
            raise Killed
        self.calls_left -= 1
        self.taken += len(samples) * PROBLEMS
        self.log.append((unit.id, Sampling(benchmark, step, draw)))
        key = [zlib.crc32(f"{unit.label} {unit.seed} {benchmark}".encode()), step, draw]
        right = np.random.default_rng(key).random((PROBLEMS, 2 * N)) < self.rates.get((unit.label, step), 0.2)
        counts = right[:, samples.start : samples.stop].sum(axis=1)
        return [record(int(count), len(samples), f"p{index}") for index, count in enumerate(counts)]


@dataclass
class MadeUp:
    """Roles of a unit whose evaluator makes its samples up; it has no others."""

    world: World
    unit: Unit

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        assert role == "evaluator"
        if method is EvaluatorWorker.start:
            return Here(None)
        assert method is EvaluatorWorker.evaluate
        return Here(self.world.evaluate(self.unit, *arguments[1:]))

    def call_for_two(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Any:
        raise AssertionError(f"{role} is not asked for anything")

    def close(self) -> None:
        pass


def world(*overrides: str, rates: Mapping[tuple[str, int], float] | None = None) -> World:
    """Trust region in two settings: the second is better, and its last two checkpoints are alike."""
    experiment, units = quickstart("evaluation.budget=adaptive", "evaluation.rescore=true", *SIZES, *overrides)
    units = [unit for unit in units if unit.kind == "base_eval" or unit.method in ("trust_region", "vanilla")]
    better = next(unit.label for unit in reversed(units) if unit.method == "trust_region")
    return World(experiment, units, rates or {(better, 20): 0.35, (better, 40): 0.62, (better, 60): 0.6})


def evaluation_files(runs: Path) -> dict[str, bytes]:
    """Every file below an `evals` folder, by path."""
    return {str(p.relative_to(runs)): p.read_bytes() for p in sorted(runs.glob("*/evals/*/*")) if p.is_file()}


def full_steps(world: World, runs: Path, unit: Unit) -> set[int]:
    """Checkpoints with all n samples on all benchmarks."""
    ids, run = evaluations.evaluation_ids(world.experiment.setups[unit.setup]).values(), RunReader(runs, unit.id)
    tallies = {step: [scores.tally(run, evaluation_id, step) for evaluation_id in ids] for step in STEPS}
    return {step for step, found in tallies.items() if all(t is not None and t.samples == N for t in found)}


def chosen(world: World, runs: Path, name: str = "trust_region") -> tuple[str, int]:
    """Label and step of a family's selected checkpoint."""
    [family] = families(world.family(name))
    best = scores.best_of(scores.candidates(world.study(runs), family))
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
    assert {sampling.draw for sampling in asked[second.id]} == {0}


def test_full_asks_for_everything_at_once(tmp_path: Path) -> None:
    sweep = world("evaluation.budget=full", "evaluation.rescore=false")
    sweep.train(tmp_path, "vanilla")
    [vanilla] = sweep.family("vanilla")
    assert sweep.wave(tmp_path)[vanilla.id] == dict.fromkeys(FIRST, N)
    assert vanilla.id not in wants(sweep.study(tmp_path))
    assert not list(tmp_path.glob("*/evals/*/*.rungs"))


def test_what_is_wanted_is_missing_and_what_is_not_is_done(tmp_path: Path) -> None:
    sweep = world()
    sweep.train(tmp_path, "base_eval", "vanilla", "trust_region")
    missing = status.missing_units(sweep.study(tmp_path))
    assert missing == sweep.units
    assert {s.state for s in status.collect(sweep.study(tmp_path))} == {"queued"}
    sweep.finish(tmp_path)
    assert status.missing_units(sweep.study(tmp_path)) == []
    assert {s.state for s in status.collect(sweep.study(tmp_path))} == {"done"}


# --- races ---


def test_a_race_picks_what_the_full_protocol_picks_with_fewer_samples(tmp_path: Path) -> None:
    full, adaptive = (
        world(f"evaluation.budget={budget}", "evaluation.rescore=false") for budget in ("full", "adaptive")
    )
    for sweep, runs in ((full, tmp_path / "full"), (adaptive, tmp_path / "adaptive")):
        sweep.train(runs, "trust_region")
        sweep.finish(runs)
    assert chosen(full, tmp_path / "full") == chosen(adaptive, tmp_path / "adaptive")
    assert adaptive.taken < 0.6 * full.taken
    worse, better = adaptive.family("trust_region")
    assert full_steps(adaptive, tmp_path / "adaptive", worse) == set()
    assert full_steps(adaptive, tmp_path / "adaptive", better) >= {chosen(full, tmp_path / "full")[1]}


def test_what_a_race_takes_to_the_end_are_the_bytes_of_the_full_protocol(tmp_path: Path) -> None:
    full, adaptive = world("evaluation.budget=full"), world()
    for sweep, runs in ((full, tmp_path / "full"), (adaptive, tmp_path / "adaptive")):
        sweep.train(runs, "trust_region")
        sweep.finish(runs)
    better = adaptive.family("trust_region")[1]
    reference, found = evaluation_files(tmp_path / "full"), evaluation_files(tmp_path / "adaptive")
    complete = [f"step_{step:06d}.jsonl" for step in full_steps(adaptive, tmp_path / "adaptive", better)]
    paths = [path for path in found if path.startswith(better.id) and path.endswith(tuple(complete))]
    assert len(paths) >= 2
    assert {path: found[path] for path in paths} == {path: reference[path] for path in paths}


@pytest.mark.parametrize("calls", [1, 4])
def test_kills_at_any_moment_change_no_decision(tmp_path: Path, calls: int) -> None:
    """Every few evaluations the process ends; the next one finds only the run directories."""
    undisturbed, killed = world(), world()
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


def test_a_kill_between_noting_a_rung_and_replacing_the_record(tmp_path: Path) -> None:
    sweep = world()
    sweep.train(tmp_path, "trust_region")
    sweep.wave(tmp_path)
    unit, before = sweep.family("trust_region")[1], wants(sweep.study(tmp_path))
    evaluation_id = evaluations.evaluation_ids(sweep.experiment.setups["arithmetic"])[SHORT]
    with closing(RunWriter(tmp_path, unit.id)) as run:
        run.note_rung(evaluation_id, 20)
        noted = run.noted_rungs(evaluation_id, 20)
        run.note_rung(evaluation_id, 20)
        assert run.noted_rungs(evaluation_id, 20) == noted
    assert [n for n, _ in noted] == [2]
    assert wants(sweep.study(tmp_path)) == before


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
    full, adaptive = world("evaluation.budget=full", "evaluation.rescore=false"), world("evaluation.rescore=false")
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


# --- fresh samples ---


def test_the_selected_checkpoint_alone_gets_fresh_samples(tmp_path: Path) -> None:
    sweep = world()
    sweep.train(tmp_path, "base_eval", "vanilla", "trust_region")
    sweep.finish(tmp_path)
    fresh = {(unit_id, sampling.step) for unit_id, sampling in sweep.log if sampling.draw}
    expected = set()
    for name in ("base_eval", "vanilla", "trust_region"):
        label, step = chosen(sweep, tmp_path, name)
        expected |= {(unit.id, step) for unit in sweep.family(name) if unit.label == label}
    assert fresh == expected
    ids = evaluations.fresh_evaluation_ids(sweep.experiment.setups["arithmetic"])
    for unit_id, step in fresh:
        for evaluation_id in ids.values():
            found = scores.tally(RunReader(tmp_path, unit_id), evaluation_id, step)
            assert found is not None
            assert found.samples == N


def test_fresh_samples_are_others_and_select_nothing(tmp_path: Path) -> None:
    sweep = world("evaluation.budget=full")
    setup = sweep.experiment.setups["arithmetic"]
    ids, fresh_ids = evaluations.evaluation_ids(setup), evaluations.fresh_evaluation_ids(setup)
    assert set(ids) == set(fresh_ids)
    assert not set(ids.values()) & set(fresh_ids.values())
    sweep.train(tmp_path, "vanilla")
    sweep.finish(tmp_path)
    [vanilla], (_, step) = sweep.family("vanilla"), chosen(sweep, tmp_path, "vanilla")
    with closing(RunWriter(tmp_path, vanilla.id)) as run:
        assert run.counts(ids[SHORT], step) != run.counts(fresh_ids[SHORT], step)
        for evaluation_id in fresh_ids.values():
            for other in STEPS:
                right = 0 if other == step else N
                run.write_evaluation(evaluation_id, other, [record(right, N, f"p{i}") for i in range(PROBLEMS)])
    assert chosen(sweep, tmp_path, "vanilla")[1] == step


def test_without_rescoring_selection_is_the_end(tmp_path: Path) -> None:
    sweep = world("evaluation.rescore=false")
    sweep.train(tmp_path, "vanilla")
    sweep.finish(tmp_path)
    assert {sampling.draw for _, sampling in sweep.log} == {0}


def test_how_much_is_sampled_is_in_no_id() -> None:
    setup = world().experiment.setups["arithmetic"]
    for other in ("evaluation.budget=full", "evaluation.error=0.2", "evaluation.rescore=true"):
        assert evaluations.evaluation_ids(world(other).experiment.setups["arithmetic"]) == evaluations.evaluation_ids(
            setup
        )
    reseeded = world("evaluation.seed=1").experiment.setups["arithmetic"]
    assert evaluations.evaluation_ids(reseeded) == evaluations.fresh_evaluation_ids(setup)


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


def test_a_trial_of_the_full_protocol_prunes_itself(tmp_path: Path) -> None:
    sweep = world("runtime.keep=best", "evaluation.budget=full")
    sweep.train(tmp_path, "trust_region")
    sweep.wave(tmp_path)
    assert [len(steps) for steps in kept(sweep, tmp_path, "trust_region")] == [1, 1]
    sweep.finish(tmp_path)
    assert {sampling.step for _, sampling in sweep.log if sampling.draw} == {0, chosen(sweep, tmp_path)[1]}


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
    files = (path for path in runs.rglob("*") if path.is_file() and not {".locks", "checkpoints"} & {*path.parts})
    return {str(path.relative_to(runs)): path.read_bytes() for path in files}


def test_a_checkpoint_that_was_dropped_with_fewer_samples_is_not_the_best_any_more(tmp_path: Path) -> None:
    """Step 40 scored higher, on fewer samples, and is gone: the trial keeps what it has."""
    sweep = world("runtime.keep=best", "evaluation.budget=full")
    [vanilla] = sweep.family("vanilla")
    write_run(tmp_path, sweep.experiment, vanilla, {20: [None, None], 60: [None, None]}, steps=60)
    with closing(RunWriter(tmp_path, vanilla.id)) as run:
        for evaluation_id in evaluations.evaluation_ids(sweep.experiment.setups["arithmetic"]).values():
            run.write_evaluation(evaluation_id, 40, [record(4, 4, f"p{index}") for index in range(PROBLEMS)])
    sweep.rates = {("Vanilla", 20): 0.9, ("Vanilla", 60): 0.1}
    sweep.finish(tmp_path)
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
    more = world(f"evaluation.benchmarks.{SHORT}.n={N + 8}", "runtime.keep=best", "evaluation.rescore=false")
    selected, left = chosen(sweep, tmp_path), kept(sweep, tmp_path, "trust_region")
    more.rates = sweep.rates
    more.finish(tmp_path)
    (worse,), (better,) = left
    assert {(unit_id, sampling.step) for unit_id, sampling in more.log if sampling.step} == {
        (more.family("trust_region")[0].id, worse),
        (more.family("trust_region")[1].id, better),
    }
    assert chosen(more, tmp_path) == selected == (more.family("trust_region")[1].label, better)
