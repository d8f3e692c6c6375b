"""The shipped models are those of the shipped setups' recipes, whole, and made again they follow
the same law.

`python -m tests.models.test_shipped_models` makes them anew in `experiments/models/` and writes
`made.json`.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from orchestrator.data import arithmetic
from orchestrator.experiment.load import load_setup
from orchestrator.liveness.children import Child, Result, messages
from orchestrator.models import made_models
from orchestrator.models.identity import model_identity
from orchestrator.models.making import make, must_make
from orchestrator.models.shipped import MODELS, shipped_model
from orchestrator.records.files import file_sha256, verify_files

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
    shipped = shipped_model(made_models.recipe_of(getattr(setup, role), setup))
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
        folder = made_models.folder_of(model, setup, tmp_path)
        assert folder.parent == tmp_path.resolve() / "models"
        assert not must_make(model, setup, tmp_path)
        shipped = shipped_model(folder.name)
        assert shipped is not None
        assert made_models.recorded(folder) == shipped.files
    assert made_models.models_of(setup, tmp_path) == made_models.models_of(setup, None)
    assert made_models.models_of(setup, None)[1]
    make(other, ["student"], tmp_path, lambda *_: None)
    folder = made_models.folder_of(other.student, other, tmp_path)
    assert made_models.recorded(folder) == {
        path.name: file_sha256(path) for path in folder.iterdir()
    }
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
        folders[role] = parent / made_models.recipe_of(model, setup)
        children.append(Child("orchestrator.models.making", role))
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
                made[source.name] = {"folder": target.name, "files": made_models.recorded(source)}
    (MODELS / "made.json").write_text(
        json.dumps(made, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
