"""Weights that are not those of the checkpoint are noticed before anything is sampled from them."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import pytest
import torch

from orchestrator.engines.interface import WeightsRef
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.errors import WrongWeights
from orchestrator.records.rundir import CANARY
from orchestrator.records.writer import RunWriter
from orchestrator.workers.canary import canary, canary_ids, check_canary
from orchestrator.workers.engines import Engines, job_of
from orchestrator.workers.graded_sampling import GradedSampler
from orchestrator.workers.learner import LearnerWorker
from orchestrator.workers.spec import WorkerSpec
from tests import tiny


def evaluator(spec: WorkerSpec) -> GradedSampler:
    return GradedSampler(spec.setup, spec.teacher, TorchEngine(job_of(spec)).sampler(), None, 5.0)


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


def test_a_checkpoint_tells_its_own_weights_from_others(tmp_path: Path) -> None:
    spec = tiny.worker_spec(tmp_path)
    learner = LearnerWorker(spec, Engines(spec))
    with closing(RunWriter(tmp_path / "runs", spec.unit.id)) as run:
        run.new_checkpoint(1, lambda folder: learner.save(str(folder)))
        run.commit(1)
    assert CANARY in run.checkpoint_files(1)
    folder, worker = run.checkpoint_path(1), evaluator(spec)
    worker.load(WeightsRef(1, folder), run.canary(1))
    weights = learner.publish(1).place
    assert not isinstance(weights, Path)
    others = {name: tensor * 1.1 for name, tensor in weights.items()}
    with pytest.raises(WrongWeights, match="nats apart on the canary"):
        worker.load(WeightsRef(1, others), run.canary(1))
    worker.load(WeightsRef(1, others), None)
    worker.close()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.1])
def test_one_wrong_number_is_enough(wrong: float) -> None:
    expected = canary([1, 2, 3], [-1.0, -2.0])
    check_canary(expected, [-1.0, -2.0005], "float32")
    check_canary(expected, [-1.0, -2.05], "bfloat16")
    with pytest.raises(WrongWeights):
        check_canary(expected, [wrong, -2.0], "float32")
