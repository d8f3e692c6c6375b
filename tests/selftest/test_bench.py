"""What the checks are made on: which pair, which models, and what is made of those that are not
here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestrator.config import Model, Setup
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.shipped import SETUPS
from orchestrator.experiment.units import expand
from orchestrator.models.locate import lies_here
from orchestrator.models.recipes import write_random_model
from orchestrator.selection.study import Study
from orchestrator.selftest.bench import MADE_TEACHER_LAYERS, SMALL, bench_of
from tests.selftest.benches import small_bench, study


@pytest.fixture
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    return cache


def in_cache(cache: Path, model: Model, **files: str) -> Path:
    """A hub model's folder with these files in a cache of the hub's library."""
    assert model.path is not None
    assert model.revision is not None
    folder = cache / f"models--{model.path.replace('/', '--')}" / "snapshots" / model.revision
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.usefixtures("empty_hub")
def test_the_largest_pair_with_a_short_teacher_where_no_model_is_here(tmp_path: Path) -> None:
    bench = bench_of(study(tmp_path), tmp_path, gpu=True, small=False)
    assert bench.name == "qwen3-1.7b"
    assert bench.made == ("student", "teacher")
    assert bench.folders == {owner: tmp_path / "models" / owner for owner in bench.made}
    assert bench.setup.student == bench.declared.student, "the update is at full depth"
    assert bench.declared.teacher.shape.layers == 36
    assert bench.setup.teacher.shape == replace(
        bench.declared.teacher.shape, layers=MADE_TEACHER_LAYERS
    )
    assert bench.blends
    job = bench.job()
    assert job.takes_turns
    assert (job.ranks, job.on.count) == (1, 1)
    plain = [f"methods.{name}=null" for name in ("trust_region", "fixed_epsilon", "skd")]
    assert not bench_of(study(tmp_path, *plain), tmp_path, True, False).blends


def test_models_of_the_cache_are_taken_whole_or_not_at_all(tmp_path: Path, empty_hub: Path) -> None:
    setup = study(tmp_path).experiment.setups["qwen3-1.7b"]
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    student = in_cache(empty_hub, setup.student, **{"config.json": "{}", "model.safetensors": ""})
    teacher = in_cache(
        empty_hub,
        setup.teacher,
        **{"config.json": "{}", "model.safetensors.index.json": index, "one.safetensors": ""},
    )
    bench = bench_of(study(tmp_path), tmp_path, True, False)
    assert bench.made == ("teacher",), "a file of it is missing"
    assert bench.folders["student"] == student
    (teacher / "two.safetensors").touch()
    bench = bench_of(study(tmp_path), tmp_path, True, False)
    assert bench.made == ()
    assert bench.folders["teacher"] == teacher
    assert bench.setup == bench.declared


def test_a_model_in_a_folder_is_taken_where_it_lies(tmp_path: Path) -> None:
    write_random_model(tmp_path / "mine", SMALL, 64, 62, "float32")
    model = Model(path=str(tmp_path / "mine"))
    assert lies_here(model, Setup(), tmp_path) == tmp_path / "mine"
    (tmp_path / "mine" / "model.safetensors").unlink()
    assert lies_here(model, Setup(), tmp_path) is None


def test_a_recipe_that_was_not_followed_yet_is_no_model(tmp_path: Path) -> None:
    arithmetic = yaml.safe_load((SETUPS / "arithmetic.yaml").read_text())
    assert arithmetic["student"]["recipe"]
    loaded = load_experiment(SETUPS.parent / "quickstart.yaml", [])
    bench = bench_of(Study(loaded, expand(loaded, tmp_path), tmp_path), tmp_path, False, False)
    assert bench.made == ("student", "teacher")
    assert bench.setup == bench.declared, "its teacher is short already"


def test_a_small_bench_keeps_the_engines(tmp_path: Path) -> None:
    bench = small_bench(tmp_path, "engine.sampler=torch", "engine.trainer=verl")
    assert (bench.setup.engine.sampler, bench.setup.engine.trainer) == ("torch", "verl")
    assert bench.setup.engine.dtype == "float32"
    assert bench.setup.student.shape == SMALL
    assert bench.declared == bench.setup
    assert (
        bench_of(study(tmp_path), tmp_path, gpu=True, small=True).setup.engine.dtype == "bfloat16"
    )
