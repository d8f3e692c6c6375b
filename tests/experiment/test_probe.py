"""What the continuation probe is: an id over all that changes its results, lengths and budget,
refusals.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.probe import PROMPTS_AT_ONCE, probe_unit, truncation_lengths
from tests.sweeps import ROOT, trb_refuses

SUMS = ROOT / "experiments" / "arithmetic-seeds.yaml"


def sums(*overrides: str) -> Experiment:
    return load_experiment(SUMS, overrides)


def unit_id(*overrides: str) -> str:
    return probe_unit(sums(*overrides), "arithmetic").id


@pytest.mark.parametrize(
    "override",
    [
        "probe.prompts=65",
        "probe.prefixes=2",
        "probe.continuations=2",
        "probe.lengths=[4,8]",
        "probe.epsilon=0.02",
        "methods.trust_region.epsilon0=[0.01,0.1]",
        "methods.trust_region.epsilon0=[0.01,0.05]",
        "seeds=[1]",
        "training.max_response_tokens=40",
        "training.max_prompt_tokens=12",
        "engine.dtype=bfloat16",
        "engine.dtype=bfloat16 engine.head_dtype=bfloat16",
    ],
)
def test_what_changes_results_changes_the_id(override: str) -> None:
    assert unit_id(*override.split()) != unit_id()


@pytest.mark.parametrize(
    "override",
    [
        "training.steps=20",
        "training.optimizer.lr=1e-5",
        "training.samples_per_prompt=2",
        "evaluation.max_response_tokens=40",
        "runtime.placement.mode=split",
        "runtime.draft_length=2",
        "methods.vanilla=null",
        "methods.trust_region.K=[5]",
        "seeds=[0,1]",
        "probe.lengths=[24,16,8,4]",
    ],
)
def test_what_does_not_leaves_it(override: str) -> None:
    assert unit_id(override) == unit_id()


def test_two_setups_have_two_probes() -> None:
    paper = load_experiment(SUMS.with_name("paper.yaml"))
    units = [probe_unit(paper, name) for name in paper.setups]
    assert len({unit.id for unit in units}) == 2
    assert [unit.knobs for unit in units] == [{"epsilon": 0.05}] * 2
    assert [truncation_lengths(setup) for setup in paper.setups.values()] == [
        [1792, 3584, 5376]
    ] * 2


def test_the_budget_is_the_largest_of_the_grid_unless_it_is_set() -> None:
    two = "methods.trust_region.epsilon0=[0.01,0.05]"
    assert probe_unit(sums(two), "arithmetic").identity["budgets"] == [0.01, 0.05]
    chosen = probe_unit(sums(two, "probe.epsilon=0.02"), "arithmetic")
    assert chosen.knobs == {"epsilon": 0.02}
    assert chosen.identity["budgets"] == [0.01, 0.02, 0.05]


@pytest.mark.parametrize(
    "grid", ["methods.trust_region=null", "methods.trust_region.epsilon0=[0.0]"]
)
def test_without_a_budget_there_is_no_probe(grid: str) -> None:
    with pytest.raises(UserError, match=r"probe\.epsilon: not set"):
        unit_id(grid)
    assert "epsilon=0.03" in unit_id(grid, "probe.epsilon=0.03")


def test_lengths_are_tokens_or_shares_of_the_response() -> None:
    setup = sums("probe.lengths=[0.5,3,0.24,24]").setups["arithmetic"]
    assert truncation_lengths(setup) == [3, 12, 24]


@pytest.mark.parametrize("prompts", [1, PROMPTS_AT_ONCE, PROMPTS_AT_ONCE + 1])
def test_a_commit_has_so_many_prompts(prompts: int) -> None:
    unit = probe_unit(sums(f"probe.prompts={prompts}"), "arithmetic")
    assert (unit.steps - 1) * PROMPTS_AT_ONCE < prompts <= unit.steps * PROMPTS_AT_ONCE


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("probe.prompts=0", "probe.prompts: 0: expected a whole number ≥ 1"),
        ("probe.continuations=0", "probe.continuations: 0: expected a whole number ≥ 1"),
        (
            "probe.lengths=[]",
            "probe.lengths: []: expected whole numbers of tokens, or shares between 0 and 1",
        ),
        ("probe.lengths=[2.5]", "probe.lengths: [2.5]: expected whole numbers"),
        ("probe.lengths=[.inf]", "probe.lengths[0]: inf: expected a finite number"),
        ("probe.lengths=[-0.5]", "probe.lengths: [-0.5]: expected whole numbers"),
        ("probe.lengths=[48]", "probe.lengths: 48.0: expected between 1 and 47 tokens"),
        ("probe.lengths=[0.001]", "probe.lengths: 0.001: expected between 1 and 47 tokens"),
        ("probe.epsilon=0", "probe.epsilon: 0: expected a number > 0"),
        ("probe.prompt=3", "probe.prompt: unknown key"),
        ("methods.trust_region=null", "probe.epsilon: not set"),
    ],
)
def test_mistakes_are_one_line(
    override: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["probe", "continuation", SUMS, override, "--runs", tmp_path / "runs"]
    assert trb_refuses(capsys, *asked).startswith(f"trb: {words}")
    assert not (tmp_path / "runs").exists()
