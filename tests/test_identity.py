"""Ids are decisions: those of everything shipped are pinned, and a new key of a configuration leaves them as they are.

`golden_ids.json` holds the ids. `python -m tests.test_identity` writes it anew. Do that where a shipped experiment
or setup was changed on purpose. Where the code changed them, everybody's runs are trained again: only with a new
`identity.SCHEMA` and a line in CHANGELOG.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import identity
from orchestrator.config import Experiment, Optimizer
from orchestrator.grid import evaluation_ids, expand, fresh_evaluation_ids
from orchestrator.load import load_experiment
from orchestrator.probe_unit import probe_unit
from tests.sweeps import ROOT

GOLDEN = Path(__file__).with_name("golden_ids.json")
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


def all_ids(experiment: Experiment) -> dict[str, Any]:
    """Every id that an experiment gives out, before any model was made."""
    return {
        "units": [unit.id for unit in expand(experiment)],
        "probes": [probe_unit(experiment, name).id for name in experiment.setups],
        "evaluations": {name: list(evaluation_ids(setup).values()) for name, setup in experiment.setups.items()},
        "fresh": {name: list(fresh_evaluation_ids(setup).values()) for name, setup in experiment.setups.items()},
    }


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_ids_of_what_is_shipped_are_pinned(path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert set(golden) == {path.stem for path in EXPERIMENTS}, "see the docstring of this file"
    assert all_ids(load_experiment(path)) == golden[path.stem], "see the docstring of this file"


# --- a new key with a default ---


def grown(value: Any) -> Any:
    """A copy in which every configuration object has one more key, at its default."""
    if isinstance(value, dict):
        return {key: grown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [grown(item) for item in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    kind = dataclasses.make_dataclass(type(value).__name__, [("new_key", int, 0)], bases=(type(value),), frozen=True)
    return kind(**{field.name: grown(getattr(value, field.name)) for field in dataclasses.fields(value)})


def test_the_copies_really_have_another_key() -> None:
    experiment = load_experiment(EXPERIMENTS[0])
    setup = next(iter(grown(experiment).setups.values()))
    assert setup.new_key == setup.training.optimizer.new_key == setup.student.shape.new_key == 0
    assert "new_key" in dataclasses.asdict(setup.training.sft)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_a_new_key_with_a_default_changes_no_id(path: Path) -> None:
    experiment = load_experiment(path)
    assert all_ids(grown(experiment)) == all_ids(experiment)


def test_a_later_key_counts_where_it_is_not_at_its_default() -> None:
    first = identity.part(Optimizer(), identity.OPTIMIZER)
    assert "decay" not in first
    assert identity.part(Optimizer(decay="constant"), identity.OPTIMIZER) == first
    assert identity.part(Optimizer(decay="linear"), identity.OPTIMIZER) == first | {"decay": "linear"}


if __name__ == "__main__":
    ids = {path.stem: all_ids(load_experiment(path)) for path in EXPERIMENTS}
    GOLDEN.write_text(json.dumps(ids, indent=1) + "\n", encoding="utf-8")
