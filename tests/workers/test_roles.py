"""What passes through a trial: digests and metrics. Rollouts, scores and weights go from role to
role.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.engines.interface import WeightsRef
from orchestrator.policy.spec import Objective, Student, TrustRegion
from orchestrator.rollouts import Rollouts
from orchestrator.workers.digests import digest_rollouts, digest_scores
from orchestrator.workers.members import LearnerWorker, RolloutWorker, TeacherWorker
from orchestrator.workers.roles import Host, Inline, refresh
from orchestrator.workers.spec import RoleName
from tests import tiny


class Afar:
    """Workers as if in another process: all that a call takes or a handle brings is pickled, and
    its bytes counted.
    """

    def __init__(self, host: Host):
        self.host = host
        self.bytes_sent = self.bytes_fetched = 0

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Ticket:
        values = [self._arrived(argument) for argument in arguments]
        return Ticket(self, self.host.call(role, method, *values))

    def call_for_two(
        self, role: RoleName, method: Callable[..., Any], *arguments: Any
    ) -> tuple[Ticket, Ticket]:
        first, second = self.call(role, method, *arguments).held
        return Ticket(self, first), Ticket(self, second)

    def close(self) -> None:
        pass

    def _arrived(self, argument: Any) -> Any:
        if isinstance(argument, Ticket):
            return argument.held
        sent = pickle.dumps(argument)
        self.bytes_sent += len(sent)
        return pickle.loads(sent)  # noqa: S301 - written two lines above


class Ticket:
    """A handle to what lies on the other side."""

    def __init__(self, transport: Afar, held: Any):
        self.transport, self.held = transport, held

    def get(self) -> Any:
        stream = io.BytesIO()
        WithoutTensors(stream).dump(self.held)
        self.transport.bytes_fetched += len(stream.getvalue())
        return pickle.loads(stream.getvalue())  # noqa: S301 - written above


class WithoutTensors(pickle.Pickler):
    """Refuses to bring tensors."""

    def persistent_id(self, obj: Any) -> None:
        assert not isinstance(obj, torch.Tensor), "a tensor passes through the trial"


@pytest.fixture
def afar(tmp_path: Path) -> Afar:
    return Afar(Host(tiny.worker_spec(tmp_path)))


@pytest.mark.parametrize("blended", [True, False])
def test_a_step_brings_no_tensor_to_the_trial(afar: Afar, blended: bool) -> None:
    roles, requests = afar, tiny.requests(4)
    refresh(roles, 0)
    rollouts, sampled = roles.call_for_two(
        "rollout", RolloutWorker.sample, requests, TrustRegion(0.1) if blended else Student()
    )
    digest = sampled.get()
    assert (digest.scores is not None) == blended
    scores = None
    if not blended:
        scores, scored = roles.call_for_two("teacher", TeacherWorker.score, rollouts)
        assert len(scored.get().log_probs) == len(requests)
    learned = roles.call(
        "learner", LearnerWorker.step, rollouts, scores, Objective("renormalized"), 0
    ).get()
    assert learned["loss"] > 0
    tokens = sum(map(len, digest.responses))
    # Token ids, a few numbers for each rollout and for the step; the requests go the other way.
    assert afar.bytes_fetched < 8 * tokens + 64 * len(requests) + 3000
    assert afar.bytes_sent < 2000 + sum(len(pickle.dumps(request)) for request in requests)


def test_what_a_trial_fetches_does_not_grow_with_support_or_vocabulary(afar: Afar) -> None:
    """One token is at most 9 bytes of a digest, where its rollouts hold a hundred."""
    rollouts = tiny_rollouts(rows=64, width=200, support=16)
    fetched = len(pickle.dumps(digest_rollouts(rollouts)))
    held = sum(value.nbytes for value in vars(rollouts).values() if isinstance(value, torch.Tensor))
    assert fetched < 9 * 64 * 200
    assert fetched < held / 10


def tiny_rollouts(rows: int, width: int, support: int) -> Rollouts:
    """Made-up rollouts of full length."""
    generator = torch.Generator().manual_seed(0)
    return Rollouts(
        requests=tiny.requests(1)[:1] * rows,
        tokens_BT=torch.randint(0, 150_000, (rows, width), generator=generator),
        lengths_B=torch.full((rows,), width),
        truncated_B=torch.zeros(rows, dtype=torch.bool),
        student_BT=-torch.rand(rows, width, generator=generator),
        behavior_BT=-torch.rand(rows, width, generator=generator),
        support_ids_BTK=torch.randint(0, 150_000, (rows, width, support), generator=generator),
    )


def test_roles_afar_do_the_same_as_roles_here(tmp_path: Path) -> None:
    spec, requests = tiny.worker_spec(tmp_path), tiny.requests(2)
    found = []
    for roles in (Inline(spec), Afar(Host(spec))):
        refresh(roles, 0)
        rollouts, sampled = roles.call_for_two("rollout", RolloutWorker.sample, requests, Student())
        scores, scored = roles.call_for_two("teacher", TeacherWorker.score, rollouts)
        learned = roles.call(
            "learner", LearnerWorker.step, rollouts, scores, Objective("renormalized"), 0
        ).get()
        found.append((sampled.get(), scored.get(), learned))
        roles.close()
    assert found[0] == found[1]


def test_a_learner_trains_towards_the_scores_that_came_with_the_rollouts(tmp_path: Path) -> None:
    engine = tiny.torch_engine(tmp_path)
    host = Host(tiny.worker_spec(tmp_path))
    roles = Afar(host)
    rollouts, sampled = roles.call_for_two(
        "rollout", RolloutWorker.sample, tiny.requests(2), TrustRegion(0.1)
    )
    held: Any = rollouts
    assert sampled.get().scores == digest_scores(held.held, held.held.teacher)
    expected = engine.trainer().step(held.held, held.held.teacher, Objective("renormalized"), 0)
    assert (
        roles.call(
            "learner", LearnerWorker.step, rollouts, None, Objective("renormalized"), 0
        ).get()
        == expected
    )


def test_weights_travel_as_a_reference_that_says_their_step(tmp_path: Path) -> None:
    engine = tiny.torch_engine(tmp_path)
    trainer = engine.trainer()
    published = trainer.publish(7)
    assert published.step == 7
    trainer.export(tmp_path / "exported")
    sampler = engine.sampler()
    for weights in (published, WeightsRef(7, tmp_path / "exported")):
        sampler.load(weights)
        own = dict(engine.store.student.model.named_parameters())
        assert not isinstance(published.place, Path)
        assert all(torch.equal(own[name], tensor) for name, tensor in published.place.items())
