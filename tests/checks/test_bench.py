"""What the checks are made on: which pair, which models, what is made of those that are not here;
and how much memory is used.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestrator.checks.bench import MADE_TEACHER_LAYERS, SMALL, largest_pair, small_version
from orchestrator.checks.measures import UsageWatch, gauge_here, rollouts, seconds_until
from orchestrator.config import Setup
from orchestrator.experiment.load import SETUPS, load_experiment
from orchestrator.experiment.units import expand
from orchestrator.models.locate import lies_here
from orchestrator.models.recipes import write_random_model
from orchestrator.pair import Model
from orchestrator.selection.study import Study
from tests.checks.benches import small_bench, study


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
    bench = largest_pair(study(tmp_path), tmp_path)
    assert bench.of.name == "qwen3-1.7b"
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
    assert not largest_pair(study(tmp_path, *plain), tmp_path).blends


def test_models_of_the_cache_are_taken_whole_or_not_at_all(tmp_path: Path, empty_hub: Path) -> None:
    setup = study(tmp_path).experiment.setups["qwen3-1.7b"]
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    student = in_cache(empty_hub, setup.student, **{"config.json": "{}", "model.safetensors": ""})
    teacher = in_cache(
        empty_hub,
        setup.teacher,
        **{"config.json": "{}", "model.safetensors.index.json": index, "one.safetensors": ""},
    )
    bench = largest_pair(study(tmp_path), tmp_path)
    assert bench.made == ("teacher",), "a file of it is missing"
    assert bench.folders["student"] == student
    (teacher / "two.safetensors").touch()
    bench = largest_pair(study(tmp_path), tmp_path)
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
    bench = largest_pair(Study(loaded, expand(loaded, tmp_path), tmp_path), tmp_path)
    assert bench.made == ("student", "teacher")
    assert bench.setup == bench.declared, "its teacher is short already"


def test_a_small_bench_keeps_the_engines(tmp_path: Path) -> None:
    bench = small_bench(tmp_path, "engine.sampler=torch", "engine.trainer=verl")
    assert (bench.setup.engine.sampler, bench.setup.engine.trainer) == ("torch", "verl")
    assert bench.setup.engine.dtype == "float32"
    assert bench.setup.student.shape == SMALL
    assert bench.declared == bench.setup
    on_gpu = small_version(largest_pair(study(tmp_path), tmp_path), gpu=True)
    assert on_gpu.setup.engine.dtype == "bfloat16"


def test_made_up_rollouts_have_the_lengths_and_supports_of_real_ones(tmp_path: Path) -> None:
    setup = small_bench(tmp_path).setup
    finished, scores = rollouts(setup, 16, [48, 20, 48])
    assert finished.tokens_BT.shape == (3, 48)
    assert finished.lengths_B.tolist() == [48, 20, 48]
    assert {len(request.prompt_ids) for request in finished.requests} == {16}
    ends = {*setup.student.stop_ids, *setup.teacher.stop_ids}
    assert not any(ends & set(request.prompt_ids) for request in finished.requests)
    assert int(finished.support_ids_BTK.max()) < setup.vocabulary.valid
    for support in finished.support_ids_BTK.flatten(0, 1)[:20]:
        assert len(support.unique()) == setup.training.top_k
    assert bool((scores.support_BTK.exp().sum(-1) < 1.001).all())


# --- memory in use ---


READINGS = [(10.0, 3.0), (10.5, 8.0), (11.0, 0.4), (12.0, 5.0), (13.0, 0.1)]
HOLD = "import os, time; held = bytearray(256 * 2**20); print(os.getpid(), flush=True); time.sleep(3600)"
HOLDER = f"""
import subprocess, sys
held = bytearray(256 * 2**20)
subprocess.Popen([sys.executable, "-c", {HOLD!r}]).wait()
"""


def test_what_came_back_is_counted_from_the_first_reading() -> None:
    watch = UsageWatch(lambda: 0.0)
    watch.readings = READINGS
    expected = {0.5: 1.0, 0.2: 3.0, 3.0: 0.0, 0.05: None}
    assert {gib: watch.seconds_to(gib) for gib in expected} == expected


def test_a_watch_sees_what_comes_and_goes_while_its_block_runs() -> None:
    used, seen = [1.0], threading.Event()

    def gauge() -> float:
        if used[0] == 7.0:
            seen.set()
        return used[0]

    with UsageWatch(gauge) as watch:
        used[0] = 7.0
        assert seen.wait(60)
        used[0] = 0.5
    assert watch.readings[0][1] == 1.0
    assert (watch.peak_gib, watch.lowest_gib) == (7.0, 0.5)
    assert watch.readings[-1][1] == 0.5
    assert [at for at, _ in watch.readings] == sorted(at for at, _ in watch.readings)


def test_seconds_until_less_is_used() -> None:
    falling = iter([5.0, 4.0, 3.0, 2.0])
    taken = seconds_until(lambda: next(falling), 3.0, 60)
    assert taken is not None
    assert taken > 0
    assert next(falling) == 2.0, "no reading more than it takes"
    assert seconds_until(lambda: 5.0, 3.0, 0.05) is None


def test_without_a_gpu_memory_of_descendants_counts_until_they_end() -> None:
    gauge = gauge_here()
    before = gauge()
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=-1) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            assert gauge() - before == pytest.approx(0.5, abs=0.1), (
                "its own 256 MiB and those of its child"
            )
            holder.kill()
            holder.wait()
            assert gauge() - before == pytest.approx(0.25, abs=0.05), (
                "the child goes on, and is known"
            )
        finally:
            os.kill(child, signal.SIGKILL)
    assert seconds_until(gauge, before + 0.05, 60) is not None
