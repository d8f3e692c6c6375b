"""Models made by recipes, shipped ones, and models that lie elsewhere."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from orchestrator.data import arithmetic
from orchestrator.experiment.load import load_experiment, load_setup
from orchestrator.experiment.units import expand
from orchestrator.liveness.children import Child, Result, messages
from orchestrator.models import locate
from orchestrator.models.identity import model_identity
from orchestrator.models.locate import MODELS, shipped_model, trained_from
from orchestrator.models.make import make, must_make, put_in_place
from orchestrator.records.files import file_sha256, verify_files
from orchestrator.records.writer import RunWriter
from tests.fake_runs import fake_models
from tests.sweeps import write_experiment


@pytest.mark.parametrize("damaged", [False, True])
def test_run_directories_that_were_copied_without_the_models_keep_their_ids(
    tmp_path: Path, damaged: bool
) -> None:
    """A recipe of one's own, which is not shipped; a damaged directory is passed over."""
    runs = tmp_path / "runs"
    experiment = load_experiment(write_experiment(tmp_path, {"vanilla": {}}))
    assert all(unit.provisional for unit in expand(experiment, runs))
    fake_models(experiment, runs)
    units = expand(experiment, runs)
    assert not any(unit.provisional for unit in units)
    for unit in units:
        with closing(RunWriter(runs, unit.id)) as run:
            run.describe(
                {"unit": {"identity": unit.identity}},
                dict,
                trained_from(experiment.setups[unit.setup], runs),
            )
            run.commit(0)
    shutil.rmtree(runs / "models")
    if damaged:
        (runs / units[0].id / "config.json").write_text("{")
    assert [unit.id for unit in expand(experiment, runs)] == [unit.id for unit in units]
    assert all(unit.provisional for unit in expand(experiment, tmp_path / "other"))


def test_of_two_processes_that_make_a_model_the_first_one_puts_it_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
        put_in_place(tmp_path / name, folder)
    assert (folder / "model.safetensors").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "gone", tmp_path / "other")


# --- shipped models ---


ROLES = ("student", "teacher")
SETUPS = ("arithmetic", "derailing")
EXAMPLES = 512  # problems that neither recipe draws
# Mean KL in nats a token. Made with other instruction sets (ATEN_CPU_CAPABILITY), which round
# differently, students were 0.002 to 0.011 apart and teachers 0.0001 to 0.0015.
SAME_LAW = {"student": 0.03, "teacher": 0.003}


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("role", ROLES)
def test_the_embedded_setups_have_their_models_shipped(name: str, role: str) -> None:
    setup = load_setup(name)
    shipped = shipped_model(locate.recipe_of(getattr(setup, role), setup))
    assert shipped is not None
    assert shipped.folder == MODELS / f"{name}-{role}"
    verify_files(shipped.folder, shipped.files, "")
    assert sorted(shipped.files) == sorted(path.name for path in shipped.folder.iterdir())


def test_shipped_models_are_copied_and_other_recipes_made(tmp_path: Path) -> None:
    setup = load_setup("arithmetic")
    other = load_setup("arithmetic", overrides=["student.recipe.updates=0"])
    made: list[str] = []
    make(setup, list(ROLES), tmp_path, lambda role, _: made.append(role))
    assert not made
    for role in ROLES:
        model = getattr(setup, role)
        folder = locate.folder_of(model, setup, tmp_path)
        assert folder.parent == tmp_path.resolve() / "models"
        assert not must_make(model, setup, tmp_path)
        shipped = shipped_model(folder.name)
        assert shipped is not None
        assert locate.recorded(folder) == shipped.files
    assert locate.models_of(setup, tmp_path) == locate.models_of(setup, None)
    assert locate.models_of(setup, None)[1]
    make(other, ["student"], tmp_path, lambda *_: None)
    folder = locate.folder_of(other.student, other, tmp_path)
    assert locate.recorded(folder) == {path.name: file_sha256(path) for path in folder.iterdir()}
    assert shipped_model(folder.name) is None


@pytest.mark.models
@pytest.mark.parametrize("name", SETUPS)
def test_made_again_they_follow_the_same_law(name: str, tmp_path: Path) -> None:
    for role, again in make_again(name, tmp_path).items():
        assert mean_kl(MODELS / f"{name}-{role}", again) < SAME_LAW[role], role


def make_again(name: str, parent: Path) -> dict[str, Path]:
    """Both models of a setup, made side by side by their recipes; the folder of each."""
    setup, folders, children = load_setup(name), {}, []
    for role in ROLES:
        model = getattr(setup, role)
        folders[role] = parent / locate.recipe_of(model, setup)
        children.append(Child("orchestrator.models.make", role))
        children[-1].send(model_identity(model, setup) | {"folder": str(folders[role])})
    for _, message in messages(children):
        assert isinstance(message, dict | Result), message
    for child in children:
        child.end()
    return folders


def mean_kl(first: Path, second: Path) -> float:
    """KL of two models' next-token laws in nats, the mean over the tokens of correct solutions."""
    tokenizer, rng = AutoTokenizer.from_pretrained(first), random.Random("problems of no recipe")
    one, other = (Qwen3ForCausalLM.from_pretrained(folder).eval() for folder in (first, second))
    summed, tokens = 0.0, 0
    for _ in range(EXAMPLES):
        terms = arithmetic.draw_terms(rng)
        prompt = tokenizer.encode(arithmetic.question(terms) + "\n")
        ids = torch.tensor([prompt + tokenizer.encode(arithmetic.solution(terms))])
        with torch.no_grad():
            here, there = (
                model(ids).logits[0, len(prompt) - 1 :].double().log_softmax(-1)
                for model in (one, other)
            )
        summed += float((here.exp() * (here - there)).sum())
        tokens += len(here)
    return summed / tokens


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = {}
        for name in SETUPS:
            for role, source in make_again(name, Path(folder)).items():
                target = MODELS / f"{name}-{role}"
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(source, target)
                made[source.name] = {"folder": target.name, "files": locate.recorded(source)}
    (MODELS / "made.json").write_text(
        json.dumps(made, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
