"""The checks of the pair on tiny models, on the torch engine: all but the processes and the GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.engines.torch import trainer as trainers
from orchestrator.errors import UserError
from orchestrator.selftest import canary, pair, sampling
from orchestrator.selftest.bench import Bench
from tests.selftest.benches import small_bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench whose models are written."""
    made = small_bench(tmp_path_factory.mktemp("bench"))
    found = pair.models(made)
    assert found.verdict == "ok"
    assert found.detail.startswith("student: random weights, 2 layers, ")
    return made


def test_sampler_and_learner_say_the_same_of_the_ids(bench: Bench) -> None:
    learned = pair.learner(bench)
    assert learned.verdict == "ok", learned
    assert learned.detail.startswith("4 × 64 tokens in ")
    assert learned.numbers["tokens_per_s"] == pytest.approx(4 * 64 / learned.numbers["seconds"])
    sampled = sampling.sampler(bench)
    assert sampled.verdict == "ok", sampled
    found = canary.same_weights(bench)
    assert (found.verdict, found.numbers["nats"]) == ("ok", pytest.approx(0, abs=1e-5))


def test_the_trainer_reads_what_the_sampler_drew(bench: Bench) -> None:
    """The same weights have one law, and other weights another."""
    bench = replace(bench, folder=bench.folder / "drawn")
    bench.folder.mkdir()
    assert sampling.sampler(bench).verdict == "ok"
    rows = json.loads((bench.folder / canary.DRAWN).read_text())
    assert len(rows) == 4
    assert {len(row["ids"]) - len(row["log_probs"]) for row in rows} == {16}
    learned = pair.learner(bench)
    assert learned.numbers["publish_s"] > 0
    found = canary.same_weights(bench)
    assert found.numbers["kl"] == pytest.approx(0, abs=1e-9)
    assert "KL of the sampler's law from the trainer's" in found.detail
    teacher = replace(bench, folders=dict.fromkeys(bench.folders, bench.folders["teacher"]))
    setup = replace(bench.setup, student=replace(bench.setup.teacher, eos=510))
    pair.learner(replace(teacher, setup=setup))
    assert (canary.divergence(bench) or 0) > 1e-4


def test_other_weights_are_seen(bench: Bench) -> None:
    """The sampler has the teacher's folder for the student's: another model of the same vocabulary."""
    pair.learner(bench)
    other = replace(bench, folders=dict.fromkeys(bench.folders, bench.folders["teacher"]))
    other = replace(
        other, setup=replace(bench.setup, student=replace(bench.setup.teacher, eos=510))
    )
    assert sampling.sampler(other).verdict == "ok"
    found = canary.same_weights(bench)
    assert found.verdict == "fail"
    assert found.numbers["nats"] > 0.001


def test_blending_and_then_the_student_alone(bench: Bench) -> None:
    assert sampling.switch(bench).verdict == "ok"


def test_a_micro_batch_is_filled_by_rows_of_full_length(bench: Bench) -> None:
    rollouts, scores = pair.full_length(bench, 256)
    assert rollouts.tokens_BT.shape == (4, 48)
    assert {len(request.prompt_ids) for request in rollouts.requests} == {16}
    assert bool((rollouts.lengths_B == 48).all())
    assert int(rollouts.support_ids_BTK.max()) < bench.setup.vocabulary.valid
    for support in rollouts.support_ids_BTK.flatten(0, 1)[:20]:
        assert len(support.unique()) == bench.setup.training.top_k
    assert bool((scores.support_BTK.exp().sum(-1) < 1.001).all())
    assert pair.full_length(bench, 1)[0].tokens_BT.shape == (1, 48), "one row at least"


def test_an_update_that_gives_no_number_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = trainers.TorchTrainer.step

    def broken(self: trainers.TorchTrainer, *arguments: object) -> dict[str, float]:
        return step(self, *arguments) | {"loss": float("nan")}  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(trainers.TorchTrainer, "step", broken)
    found = pair.learner(bench)
    assert found.verdict == "fail"
    assert "not finite" in found.detail


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small_bench(tmp_path)
    monkeypatch.setattr(
        pair.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000})()
    )
    found = pair.models(made)
    assert found.verdict == "fail"
    assert not (tmp_path / "models").exists()


def test_weights_that_are_not_finite_are_an_error(bench: Bench, tmp_path: Path) -> None:
    """A student whose last norm is NaN."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "broken"
    folder.mkdir()
    for path in bench.folders["student"].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"].fill_(torch.nan)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    broken = replace(bench, folders={**bench.folders, "student": folder})
    with pytest.raises(UserError, match=r"model.norm.weight has NaN or infinity"):
        sampling.sampler(broken)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
