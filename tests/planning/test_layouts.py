"""Trials on several GPUs: their time worked out here by hand, and which layout the plan calls the least."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.cli import main
from orchestrator.config import Placement, RoleGpus
from orchestrator.experiment.load import load_experiment
from orchestrator.planning import as_json, layouts, plan, view
from orchestrator.planning.costs import BLENDED, OTHER, PLAIN, SUPERVISED, SetupCosts
from orchestrator.planning.layouts import LAYOUTS, ONE, LaidOut, Layouts, layouts_of
from orchestrator.planning.ranges import SCENARIOS, Range, Scenario
from orchestrator.planning.rates import RATES
from orchestrator.planning.totals import hours_on_gpus, longest_unit_hours, total_gpu_hours
from orchestrator.records.columns import EVALUATE, LEARN, ROLLOUT, SCORE
from tests.sweeps import ROOT

PAPER = ROOT / "experiments" / "paper.yaml"
ENGINES = ("engine.sampler=sglang", "engine.trainer=verl")
SPLIT = Placement("split", 4, RoleGpus(2, 1, 1))
SPLIT_GIVEN = ("runtime.placement.mode=split", "runtime.placement.role_gpus.rollout=2")


def costs(placement: Placement, setup: str = "qwen3-1.7b") -> SetupCosts:
    experiment = load_experiment(PAPER, ENGINES)
    return SetupCosts(experiment.setups[setup], experiment.runtime, "sglang").on(placement)


def planned(*overrides: str) -> plan.Plan:
    return plan.make_plan(load_experiment(PAPER, overrides))


# --- time ---


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_decoding_on_two_gpus_is_half_the_reading_and_all_the_waiting(scenario: Scenario) -> None:
    """A step of 256 responses: weights and caches over twice the bandwidth, then 2 × 28 all-reduces a decode step."""
    made = costs(Placement(gpus=2))
    lengths = made.training_lengths(scenario)
    steps = lengths.tokens  # two such GPUs hold all 256 rows at once
    reads = steps * 2 * 1_720_574_976 + 112 * 1024 * 256 * lengths.reads
    eta = {"low": 0.6, "mid": 0.55, "high": 0.5}[scenario]
    all_reduce = {"low": 10e-6, "mid": 20e-6, "high": 40e-6}[scenario]
    expected = reads / (2 * eta * 3.35e12) + steps * 2 * 28 * all_reduce
    assert made.step(PLAIN)[ROLLOUT].at(scenario) == pytest.approx(expected, rel=1e-9)


def test_scoring_and_learning_keep_a_part_of_their_speed() -> None:
    one, four = costs(Placement(gpus=1)).step(PLAIN), costs(Placement(gpus=4)).step(PLAIN)
    for phase in (SCORE, LEARN):
        for scenario, kept in zip(SCENARIOS, (0.95, 0.90, 0.80), strict=True):
            assert four[phase].at(scenario) == pytest.approx(one[phase].at(scenario) / (4 * kept))
    assert four[OTHER] == one[OTHER], "nothing of it is shared out"


def test_roles_apart_take_the_time_of_their_own_gpus() -> None:
    one, two = (costs(Placement(gpus=count)).step(PLAIN) for count in (1, 2))
    apart = costs(SPLIT)
    assert apart.step(PLAIN)[SCORE] == one[SCORE]
    assert apart.step(PLAIN)[LEARN] == one[LEARN]
    assert apart.step(PLAIN)[ROLLOUT].mid <= two[ROLLOUT].mid, "no teacher lies beside the caches"
    assert apart.step(BLENDED)[ROLLOUT] == costs(Placement(gpus=2)).step(BLENDED)[ROLLOUT]
    answering = costs(Placement("split", 4, RoleGpus(1, 2, 1))).step(SUPERVISED)[ROLLOUT]
    assert answering.mid < apart.step(SUPERVISED)[ROLLOUT].mid, "the teacher answers on its own GPUs"


def test_gpu_hours_are_all_gpus_times_the_clock_and_evaluators_have_one() -> None:
    made, one = planned(*ENGINES, *SPLIT_GIVEN), planned(*ENGINES)
    unit, alone = made.units[2], one.units[2]
    assert unit.resources.gpus == 4
    assert unit.resources.gpu_hours is not None
    assert alone.resources.gpu_hours is not None
    clock = plan.training_seconds(unit.unit, made.costs[unit.unit.setup])
    for phase, seconds in clock.items():
        if phase != EVALUATE:
            assert unit.resources.gpu_hours[phase].mid == pytest.approx(4 * seconds.mid / 3600)
    assert unit.resources.gpu_hours[EVALUATE] == alone.resources.gpu_hours[EVALUATE]
    longest, total = longest_unit_hours(made), total_gpu_hours(made)
    assert longest is not None
    assert total is not None
    assert longest.mid < total["total"].mid
    assert hours_on_gpus(made, 8) == total["total"] / 8


def test_methods_may_have_other_gpus_than_the_rest() -> None:
    own = ("methods.vanilla.placement.mode=split", "methods.vanilla.placement.role_gpus.rollout=2")
    mixed, one, split = planned(*ENGINES, *own), planned(*ENGINES), planned(*ENGINES, *SPLIT_GIVEN)
    for found, plain, four in zip(mixed.units, one.units, split.units, strict=True):
        as_planned = four if found.unit.method == "vanilla" else plain
        assert found.resources == as_planned.resources
    assert mixed.units != one.units


def test_engines_of_one_device_are_not_compared_where_trials_have_several() -> None:
    assert set(as_json.totals(planned(*ENGINES, "runtime.placement.gpus=2"))["engines"]) == {"sglang"}
    assert set(as_json.totals(planned(*ENGINES))["engines"]) == {"torch", "sglang"}


def test_assumptions_name_what_several_gpus_rest_on() -> None:
    names = ("wait for an all-reduce", "speed that sharding keeps")
    assert {a.name for a in planned(*ENGINES, "runtime.placement.gpus=2").assumptions} >= set(names)
    assert not {a.name for a in planned(*ENGINES).assumptions} & set(names)


# --- layouts ---


def laid_out(*overrides: str) -> Layouts:
    found = layouts_of(planned(*overrides))
    assert found is not None
    return found


def row(found: Layouts, setup: str, gpu: str, layout: str) -> LaidOut:
    [one] = [r for r in found.rows if (r.setup, r.gpu, r.layout) == (setup, gpu, layout)]
    return one


def test_every_setup_is_laid_out_on_both_kinds_of_node() -> None:
    found = laid_out()
    assert len(found.rows) == 2 * 2 * len(LAYOUTS)
    assert found.engines == "sglang sampling, verl scoring and training", "torch, as configured, uses one device"
    fitting = {(r.setup, r.gpu, r.layout) for r in found.rows if r.fits}
    tight = {
        ("qwen3-1.7b", "H100-80GB", "half a GPU, packed"),
        ("qwen3-1.7b", "A100-40GB", ONE),
        ("qwen3-1.7b", "A100-40GB", "half a GPU, packed"),
        ("qwen3-0.6b", "A100-40GB", "half a GPU, packed"),
    }
    assert {(r.setup, r.gpu, r.layout) for r in found.rows} - fitting == tight
    large = row(found, "qwen3-1.7b", "A100-40GB", ONE)
    assert large.reason == "learning takes 58.4 of 39.3 GiB"
    assert (large.trial_hours, large.sweep_days, large.trials_at_once) == (None, None, 0)
    at_once = {r.layout: r.trials_at_once for r in found.rows if r.setup == "qwen3-0.6b" and r.gpu == "H100-80GB"}
    assert list(at_once.values()) == [8, 16, 4, 2, 2]


def test_a_layout_is_what_the_plan_says_of_such_an_experiment() -> None:
    """Hours of the typical trial and days of the sweep, against a plan that is made with this placement."""
    for layout, given in (
        (ONE, ()),
        ("2 GPUs in turns", ("runtime.placement.gpus=2",)),
        ("split 2 + 1 + 1", SPLIT_GIVEN),
    ):
        made = planned(*ENGINES, "setups=[qwen3-0.6b]", *given)
        one = row(laid_out(*ENGINES), "qwen3-0.6b", "H100-80GB", layout)
        trials = sorted(
            (sum(h.mid for phase, h in hours.items() if phase != EVALUATE), planned_.unit.id)
            for planned_ in made.units
            if planned_.unit.is_trial and (hours := planned_.resources.gpu_hours)
        )
        assert one.trial_hours is not None
        assert one.sweep_hours is not None
        assert trials[0][0] <= one.trial_hours.mid <= trials[-1][0]
        assert any(one.trial_hours.mid == pytest.approx(hours) for hours, _ in trials)
        total = total_gpu_hours(made)
        assert total is not None
        # All trials count as the typical one, and the supervised stage is left out.
        assert one.sweep_hours.mid == pytest.approx(total["total"].mid, rel=0.05)


def test_the_verdict_on_the_papers_pairs() -> None:
    default, exception = laid_out().verdict
    assert default.startswith(
        "One GPU a trial is the default: wherever a trial fits on one, training it on more takes 8 "
    )
    assert exception == (
        "qwen3-1.7b does not fit on one A100-40GB (learning takes 58.4 of 39.3 GiB): 2 GPUs in turns cost least."
    )


def test_the_verdict_follows_from_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing had to be waited for and a step had no idle seconds, several GPUs would be no dearer."""
    free = replace(RATES["sglang"], step_s=Range.exactly(0.0), start_s=Range.exactly(0.0))
    monkeypatch.setattr("orchestrator.planning.costs.RATES", {**RATES, "sglang": free})
    monkeypatch.setattr("orchestrator.planning.costs.ALL_REDUCE_US", Range.exactly(0.0))
    monkeypatch.setattr("orchestrator.planning.costs.SHARDED", Range.exactly(1.0))
    [first, *_] = laid_out(*ENGINES).verdict
    assert first.startswith(
        "More than one GPU a trial would take no more GPU-hours than the default of one: qwen3-1.7b on"
    )


def test_layouts_that_no_layer_can_be_shared_out_over_are_none() -> None:
    made = planned(*ENGINES, "setups=[qwen3-0.6b]")
    [setup] = made.experiment.setups.values()
    odd = replace(setup, student=replace(setup.student, shape=replace(setup.student.shape, kv_heads=2)))
    found = layouts_of(replace(made, experiment=replace(made.experiment, setups={"qwen3-0.6b": odd})))
    assert found is not None
    reasons = {one.layout: one.reason for one in found.rows if one.gpu == "H100-80GB"}
    assert reasons["4 GPUs in turns"] == "heads do not divide by 4"
    assert [reasons[name] for name in (ONE, "2 GPUs in turns", "split 2 + 1 + 1")] == ["", "", ""]


def test_packing_is_named_where_it_pays() -> None:
    """Short responses leave GPUs idle between steps, which packed trials use."""
    small = plan.make_plan(load_experiment(ROOT / "experiments" / "paper-small.yaml"))
    found = layouts_of(small)
    assert found is not None
    packed, one = (row(found, "qwen3-0.6b", "H100-80GB", name) for name in ("half a GPU, packed", ONE))
    assert packed.sweep_hours is not None
    assert one.sweep_hours is not None
    less = 100 * (1 - packed.sweep_hours.mid / one.sweep_hours.mid)
    assert less > 0
    assert any(f"two trials packed on a GPU take {less:.2g} % fewer GPU-hours" in line for line in found.verdict)


def test_where_no_gpu_is_used_nothing_is_laid_out() -> None:
    small = plan.make_plan(load_experiment(ROOT / "experiments" / "quickstart.yaml"))
    assert layouts_of(small) is None
    assert as_json.to_json(small)["layouts"] is None
    assert layouts.layouts_of(planned("methods={vanilla: {}}")) is not None


def test_layouts_on_a_terminal_and_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(view.render_layouts(laid_out()))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("8 × H100-80GB", "4 × A100-40GB", "one GPU", "58 of 39.3", "does not fit", "One GPU a trial is the"):
        assert words in text
    for options, there in ((["--layouts"], True), ([], False)):
        with pytest.raises(SystemExit):
            main(["plan", str(PAPER), *options, "--runs", str(tmp_path)])
        out = capsys.readouterr().out
        assert ("4 × A100-40GB" in out) == there
        assert "--layouts: the same on other numbers of GPUs" in " ".join(out.split())
    with pytest.raises(SystemExit):
        main(["plan", str(PAPER), "--json", "--runs", str(tmp_path)])
    document = json.loads(capsys.readouterr().out)["layouts"]
    assert len(document["rows"]) == 20
    assert document["verdict"] == list(laid_out().verdict)
    first, tight = document["rows"][0], document["rows"][5]
    assert (first["fits"], first["trials_at_once"]) == (True, 8)
    assert first["trial_hours"]["low"] < first["trial_hours"]["high"]
    assert (tight["fits"], tight["trial_hours"]) == (False, None)
