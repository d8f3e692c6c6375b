"""Ids are decisions: those of everything shipped are pinned, and a new key of a configuration
leaves them as they are.

`golden_ids.json` holds the ids. `python -m tests.experiment.test_identity` writes it anew. Do that
where a shipped experiment or setup was changed on purpose. Where the code changed them, everybody's
runs are trained again: only with a new `identity.SCHEMA` and a line in CHANGELOG.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import Experiment, Optimizer
from orchestrator.errors import UserError
from orchestrator.experiment import identity
from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.probe import probe_unit
from orchestrator.experiment.units import Unit, expand
from orchestrator.models import locate
from orchestrator.models.identity import RECIPE, model_identity, part
from orchestrator.pair import Recipe
from orchestrator.records.writer import RunWriter
from tests.fake_runs import QUICKSTART, fake_models, quickstart
from tests.sweeps import ROOT

GOLDEN = ROOT / "tests" / "golden_ids.json"
PAPER = ROOT / "experiments" / "paper.yaml"
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


def all_ids(experiment: Experiment) -> dict[str, Any]:
    """Every id that an experiment gives out, where its embedded models, if any, are those of
    `fake_models`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fake_models(experiment, folder)
        return {
            "units": [unit.id for unit in expand(experiment, folder)],
            "probes": [probe_unit(experiment, name, folder).id for name in experiment.setups],
            "evaluations": {
                name: list(evaluation_ids(setup).values())
                for name, setup in experiment.setups.items()
            },
            "fresh": {
                name: list(fresh_evaluation_ids(setup).values())
                for name, setup in experiment.setups.items()
            },
        }


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_ids_of_what_is_shipped_are_pinned(path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert set(golden) == {path.stem for path in EXPERIMENTS}, "see the docstring of this file"
    assert all_ids(load_experiment(path)) == golden[path.stem], "see the docstring of this file"


# --- models made by a recipe ---


def test_ids_are_provisional_until_the_models_are_made(tmp_path: Path) -> None:
    experiment = quickstart()[0]
    shipped = experiment.setups["arithmetic"]
    recipe = replace(shipped.student.recipe or Recipe(), updates=7)
    own = replace(shipped, student=replace(shipped.student, recipe=recipe))
    experiment = replace(experiment, setups={"arithmetic": own})
    units = expand(experiment)
    assert {unit.provisional for unit in [*units, *expand(experiment, tmp_path)]} == {True}
    assert ids_of(expand(experiment, tmp_path)) == ids_of(units)
    fake_models(experiment, tmp_path)
    made = expand(experiment, tmp_path)
    assert {unit.provisional for unit in made} == {False}
    assert not set(ids_of(made)) & set(ids_of(units))
    for path in (
        PAPER,
        QUICKSTART,
    ):  # the models of one are on a hub, those of the other are shipped
        assert {unit.provisional for unit in expand(load_experiment(path))} == {False}


@pytest.mark.parametrize(
    ("name", "same"),
    [("model.safetensors", False), ("tokenizer.json", False), ("config.json", True)],
)
def test_other_weights_are_another_model(name: str, same: bool, tmp_path: Path) -> None:
    experiment, _ = quickstart()
    before = make_models_with(experiment, tmp_path / "here", {})
    after = make_models_with(experiment, tmp_path / "there", {name: "of another kind of CPU"})
    assert set(before) & set(after) == (set(before) if name == "config.json" else set())


def make_models_with(experiment: Experiment, runs: Path, changed: dict[str, str]) -> list[str]:
    """Unit ids where the student's files are those of `fake_models` but for the changed ones."""
    fake_models(experiment, runs)
    setup = experiment.setups["arithmetic"]
    folder = locate.folder_of(setup.student, setup, runs)
    for name, text in changed.items():
        (folder / name).write_text(text)
    folder.with_name(f"{folder.name}.made.json").unlink()
    locate.record(folder)
    return ids_of(expand(experiment, runs))


def test_the_base_evaluation_does_not_depend_on_a_made_teacher(tmp_path: Path) -> None:
    experiment, _ = quickstart()
    fake_models(experiment, tmp_path)
    setup = experiment.setups["arithmetic"]
    before = expand(experiment, tmp_path)
    folder = locate.folder_of(setup.teacher, setup, tmp_path)
    (folder / "model.safetensors").write_text("another")
    folder.with_name(f"{folder.name}.made.json").unlink()
    locate.record(folder)
    same = set(ids_of(before)) & set(ids_of(expand(experiment, tmp_path)))
    assert same == {unit.id for unit in before if unit.kind == "base_eval"}


def test_a_model_that_comes_out_otherwise_is_refused(tmp_path: Path) -> None:
    experiment, _ = quickstart()
    fake_models(experiment, tmp_path)
    setup = experiment.setups["arithmetic"]
    folder = locate.folder_of(setup.student, setup, tmp_path)
    (folder / "model.safetensors").write_text("another")
    with pytest.raises(UserError, match="another kind of CPU"):
        locate.record(folder)


def test_units_trained_from_another_model_are_named(tmp_path: Path) -> None:
    """All of `models` was removed, and the model was made again elsewhere."""
    experiment, _ = quickstart()
    fake_models(experiment, tmp_path)
    setup = experiment.setups["arithmetic"]
    unit = next(unit for unit in expand(experiment, tmp_path) if unit.kind == "trial")
    with closing(RunWriter(tmp_path, unit.id)) as run:
        run.describe({}, dict, locate.trained_from(setup, tmp_path))
        run.commit(1)
    locate.check_trained_from(setup, tmp_path)
    shutil.rmtree(tmp_path / "models")
    make_models_with(experiment, tmp_path, {"model.safetensors": "of another kind of CPU"})
    with pytest.raises(
        UserError, match=f"{unit.id} was trained from [0-9a-f]{{12}} of the same recipe"
    ):
        locate.check_trained_from(setup, tmp_path)


def test_a_unit_never_goes_on_from_another_model(tmp_path: Path) -> None:
    with closing(RunWriter(tmp_path, "unit")) as run:
        run.describe({}, dict, {"student": {"revision": "a"}, "teacher": {"revision": "b"}})
        run.commit(1)
    with closing(RunWriter(tmp_path, "unit")) as run:
        run.describe({}, dict, {"student": {"revision": "a"}, "teacher": {"revision": "b"}})
        with pytest.raises(UserError, match="trained from another teacher"):
            run.describe({}, dict, {"student": {"revision": "a"}, "teacher": {"revision": "c"}})
    assert run.provenance()["models"]["teacher"] == {"revision": "b"}


def ids_of(units: list[Unit]) -> list[str]:
    return [unit.id for unit in units]


# --- a new key with a default ---


def grown(value: Any) -> Any:
    """A copy in which every configuration object has one more key, at its default."""
    if isinstance(value, dict):
        return {key: grown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [grown(item) for item in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    kind = dataclasses.make_dataclass(
        type(value).__name__, [("new_key", int, 0)], bases=(type(value),), frozen=True
    )
    return kind(
        **{field.name: grown(getattr(value, field.name)) for field in dataclasses.fields(value)}
    )


def test_the_copies_really_have_another_key() -> None:
    experiment = load_experiment(EXPERIMENTS[0])
    setup = next(iter(grown(experiment).setups.values()))
    assert setup.new_key == setup.training.optimizer.new_key == setup.student.shape.new_key == 0
    assert "new_key" in dataclasses.asdict(setup.training.sft)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_a_new_key_with_a_default_changes_no_id(path: Path) -> None:
    experiment = load_experiment(path)
    assert all_ids(grown(experiment)) == all_ids(experiment)


def test_an_order_for_each_seed_gives_trained_units_other_ids_and_models_none() -> None:
    experiment = load_experiment(ROOT / "experiments" / "smollm.yaml")
    setup = experiment.setups["smollm"]
    own = replace(setup, training=replace(setup.training, order_per_seed=True))
    ordered = replace(experiment, setups={"smollm": own})
    assert model_identity(own.student, own) == model_identity(setup.student, setup)
    trained = [
        {unit.id for unit in expand(each) if not unit.is_untrained}
        for each in (experiment, ordered)
    ]
    assert trained[0].isdisjoint(trained[1])
    untrained = [
        {unit.id for unit in expand(each) if unit.is_untrained} for each in (experiment, ordered)
    ]
    assert untrained[0] == untrained[1]


def test_a_later_key_counts_where_it_is_not_at_its_default() -> None:
    first = part(Optimizer(), identity.OPTIMIZER)
    assert "decay" not in first
    assert part(Optimizer(decay="constant"), identity.OPTIMIZER) == first
    assert part(Optimizer(decay="linear"), identity.OPTIMIZER) == first | {"decay": "linear"}
    first = part(Recipe(), RECIPE)
    assert "dtype" not in first
    assert part(Recipe(dtype="bfloat16"), RECIPE) == first | {"dtype": "bfloat16"}


if __name__ == "__main__":
    ids = {path.stem: all_ids(load_experiment(path)) for path in EXPERIMENTS}
    GOLDEN.write_text(json.dumps(ids, indent=1) + "\n", encoding="utf-8")
