"""The budgets of a trial's roles in a plan, against figures worked out here by hand."""

from __future__ import annotations

from orchestrator.config import Placement, RoleGpus, Runtime
from orchestrator.experiment.load import load_experiment
from orchestrator.planning.plan import Budgets, full_length, memory
from tests.planning.plans import PAPER, known

SETUP = load_experiment(PAPER).setups["qwen3-1.7b"]
SPLIT = Placement("split", 4, RoleGpus(2, 1, 1))


def of_trial(gib: float, placement: Placement | None = None) -> Budgets:
    return memory(SETUP, Runtime(), gib, placement or Placement(gpus=1))


def test_each_role_has_its_budget_and_sequences_of_full_length_are_counted() -> None:
    """Pools of 55.2 and 52.6 GiB (`tests/engines/test_budget.py`): ÷ 0.875 = 63.1 and ÷ (0.875 +
    1.125) = 26.3.
    """
    found = of_trial(79.1)
    counts = [full_length(known(found[situation]), SETUP) for situation in ("decoding", "blending")]
    assert counts == [63, 26]
    assert known(found["learning"]).tokens == 8192
    assert all(known(granted).total_gib <= 79.1 for granted in found.values())


def test_what_does_not_fit_has_no_budget() -> None:
    found = of_trial(39.3)
    assert [name for name, granted in found.items() if granted is None] == ["learning"]


def test_roles_apart_hold_what_they_need_themselves() -> None:
    apart, whole = of_trial(79.1, SPLIT), of_trial(79.1)
    assert known(apart["scoring"]).total_gib < known(whole["scoring"]).total_gib - 3.2
    tokens = [known(found["learning"]).tokens for found in (apart, whole)]
    assert tokens == [16_384, 8192]
    caches = [known(found["blending"]).kv_tokens for found in (apart, whole)]
    assert caches[0] > 2 * caches[1]
