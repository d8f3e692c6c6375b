"""Weights that are not those of the checkpoint are noticed before anything is sampled from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from orchestrator.config import Setup, Training
from orchestrator.engines.interface import WeightsRef
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.errors import WrongWeights
from orchestrator.models.recipes import make_tokenizer
from orchestrator.pair import Model, Vocabulary
from orchestrator.records.rundir import CANARY
from orchestrator.records.writer import RunWriter
from orchestrator.workers.canary import (
    LENGTH,
    SEQUENCES,
    canary_ids,
    canary_sequences,
    check_numbers,
    check_tensors,
)
from orchestrator.workers.graded_sampling import GradedSampler
from orchestrator.workers.members import Engines, LearnerWorker, job_of
from orchestrator.workers.spec import WorkerSpec
from tests import tiny

Weights = dict[str, torch.Tensor]


def evaluator(spec: WorkerSpec) -> GradedSampler:
    return GradedSampler(spec.setup, spec.teacher, TorchEngine(job_of(spec)).sampler(), None, 5.0)


def with_dtype(spec: WorkerSpec, dtype: Any) -> WorkerSpec:
    engine = replace(spec.setup.engine, dtype=dtype)
    return replace(spec, setup=replace(spec.setup, engine=engine))


@pytest.fixture(params=["float32", "bfloat16"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> WorkerSpec:
    """A pair whose tokenizer writes more ids than the pair has: its canary has odd ids."""
    spec = with_dtype(tiny.worker_spec(tmp_path), request.param)
    make_tokenizer("characters").save_pretrained(spec.teacher.path)
    return spec


def test_log_probs_are_those_of_a_plain_reading(tmp_path: Path) -> None:
    engine = tiny.torch_engine(tmp_path)
    ids = canary_ids(tiny.worker_spec(tmp_path).setup)
    assert set(ids) == set(range(tiny.VALID)) - {tiny.STUDENT_EOS, tiny.TEACHER_EOS}
    model = tiny.student().model
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    reference = tiny.SPACE.student_log_prob(logits.double()).gather(
        -1, torch.tensor(ids[1:])[:, None]
    )[:, 0]
    for reader in (engine.sampler(), engine.trainer()):
        assert reader.log_probs(ids) == pytest.approx(reference.tolist(), abs=1e-5)
    sampler = engine.sampler()
    turned = ids[::-1]
    for read, plain in zip(
        sampler.log_probs_each([ids, turned]),
        (sampler.log_probs(ids), sampler.log_probs(turned)),
        strict=True,
    ):
        assert read == pytest.approx(plain, abs=1e-5)


def committed(spec: WorkerSpec, folder: Path) -> tuple[LearnerWorker, RunWriter]:
    """A learner, and the run that has its first checkpoint."""
    learner = LearnerWorker(spec, Engines(spec))
    with closing(RunWriter(folder / "runs", spec.unit.id)) as run:
        run.new_checkpoint(1, lambda saved: learner.save(str(saved)))
        run.commit(1)
    return learner, run


def test_a_checkpoint_tells_its_own_weights_from_others(spec: WorkerSpec, tmp_path: Path) -> None:
    learner, run = committed(spec, tmp_path)
    assert CANARY in run.checkpoint_files(1)
    folder, worker = run.checkpoint_path(1), evaluator(spec)
    worker.load(WeightsRef(1, folder), run.canary(1))
    weights = learner.publish(1).place
    assert not isinstance(weights, Path)
    worker.load(WeightsRef(1, weights), run.canary(1))
    others = {name: tensor * 1.1 for name, tensor in weights.items()}
    with pytest.raises(WrongWeights, match="not the checkpoint's"):
        worker.load(WeightsRef(1, others), run.canary(1))
    worker.load(WeightsRef(1, others), None)
    worker.close()


def one_bit(weights: Weights) -> Weights:
    name = "model.layers.1.mlp.up_proj.weight"
    changed = weights[name].clone()
    bits = changed.view(torch.int16 if changed.dtype == torch.bfloat16 else torch.int32)
    bits[3, 2] ^= 1
    return weights | {name: changed}


def half_stale(weights: Weights) -> Weights:
    stale = {name: tensor * 1.0001 + 1e-3 for name, tensor in weights.items()}
    return {name: (stale if ".layers.1." in name else weights)[name] for name in weights}


def two_swapped(weights: Weights) -> Weights:
    one, other = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
    return weights | {one: weights[other], other: weights[one]}


@pytest.mark.parametrize("change", [one_bit, half_stale, two_swapped])
def test_bytes_tell_the_smallest_change_in_any_dtype(
    spec: WorkerSpec, tmp_path: Path, change: Callable[[Weights], Weights]
) -> None:
    _, run = committed(spec, tmp_path)
    file = run.checkpoint_path(1) / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(WrongWeights, match=r"model\.layers\.[01]\..* differs, as do \d+ of \d+"):
        evaluator(spec).load(WeightsRef(1, file.parent), run.canary(1))


def test_the_canary_of_an_earlier_version_is_still_read(spec: WorkerSpec, tmp_path: Path) -> None:
    learner, run = committed(spec, tmp_path)
    ids = list(canary_ids(spec.setup))
    earlier = {"ids": ids, "log_probs": learner._trainer.log_probs(ids)}
    (run.checkpoint_path(1) / CANARY).write_text(json.dumps(earlier))
    evaluator(spec).load(WeightsRef(1, run.checkpoint_path(1)), run.canary(1))
    earlier["log_probs"] = [value - 1 for value in earlier["log_probs"]]
    with pytest.raises(WrongWeights, match="does not compute the checkpoint's numbers"):
        evaluator(spec).load(WeightsRef(1, run.checkpoint_path(1)), earlier)


@pytest.mark.parametrize(
    ("found", "dtype", "passes"),
    [
        ([[-1.0, -2.0], [-3.0, -4.0]], "float32", True),
        ([[-1.0, -2.0005], [-3.0, -4.0]], "float32", True),
        ([[-1.0, -2.01], [-3.0, -4.0]], "float32", False),
        ([[-1.1, -1.9], [-3.1, -3.9]], "bfloat16", True),  # noise without bias
        ([[-1.06, -2.06], [-3.06, -4.06]], "bfloat16", False),  # bias, though smaller
        ([[-1.6, -1.4], [-3.6, -3.4]], "bfloat16", False),
        ([[math.nan, -2.0], [-3.0, -4.0]], "bfloat16", False),
        ([[-math.inf, -2.0], [-3.0, -4.0]], "float32", False),
    ],
)
def test_noise_passes_and_a_bias_does_not(
    found: list[list[float]], dtype: str, passes: bool
) -> None:
    expected = {"sequences": [[1, 2, 3], [4, 5, 6]], "log_probs": [[-1.0, -2.0], [-3.0, -4.0]]}
    if passes:
        check_numbers(expected, found, dtype)
    else:
        with pytest.raises(WrongWeights, match=f"expected at most .* in {dtype}"):
            check_numbers(expected, found, dtype)


def test_tensors_that_an_engine_keeps_otherwise_are_left_to_the_numbers() -> None:
    expected = {"tensors": {"a": "00", "b": "11"}}
    check_tensors(expected, {"b": "11", "fused": "22"})
    check_tensors({}, {"b": "11"})
    with pytest.raises(WrongWeights, match="b differs, as do 1 of 1 tensors"):
        check_tensors(expected, {"b": "12", "fused": "22"})


def test_the_canary_is_a_text_that_the_tokenizer_can_write() -> None:
    setup = Setup(
        student=Model(eos=300), teacher=Model(eos=301), vocabulary=Vocabulary(400, valid=390)
    )
    for kind, starts in (
        ("bytes", "A train leaves the station"),
        ("characters", "7+1+5+9+8=?\n7+1=8"),
    ):
        tokenizer = make_tokenizer(kind)
        sequences = canary_sequences(setup, tokenizer)
        assert [len(ids) for ids in sequences] == [LENGTH] * SEQUENCES
        assert SEQUENCES * (LENGTH - 1) >= 1024
        assert str(tokenizer.decode(sequences[0])).startswith(starts)
        assert len({tuple(ids) for ids in sequences}) == SEQUENCES
    # No longer than the sequences for which the setup's engines have room.
    short = replace(setup, training=Training(max_prompt_tokens=8, max_response_tokens=12))
    assert {len(ids) for ids in canary_sequences(short, make_tokenizer("bytes"))} == {20}
    few = replace(setup, vocabulary=Vocabulary(400, valid=40))
    assert canary_sequences(few, make_tokenizer("bytes")) == [list(canary_ids(few))]
