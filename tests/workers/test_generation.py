"""The rollout role chooses the engine by the behavior."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.engines import catalog
from orchestrator.engines.catalog import ENGINES
from orchestrator.engines.interface import Limits
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.policy.spec import Behavior, Fusion, Student, TeacherSequences, TrustRegion
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.rules import EngineName
from orchestrator.workers.members import Engines, RolloutWorker, by_behavior
from tests import tiny


class Opened:
    """Engines that a process has opened, by name; `sampled` is what they were asked for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.engines: dict[str, TorchEngine] = {}
        self.sampled: list[tuple[str, Behavior]] = []
        # Today's words of the configuration name one engine that blends and one that does not.
        plain = replace(ENGINES["torch"], blends=False)
        monkeypatch.setattr(catalog, "ENGINES", {"sglang": plain, "torch": ENGINES["torch"]})
        monkeypatch.setattr("orchestrator.workers.members.open_engine", self.open)

    def open(self, name: str, job: object) -> TorchEngine:
        engine = self.engines[name] = TorchEngine(job)  # pyright: ignore[reportArgumentType]
        sampler_of_engine = engine.sampler

        def sampler(*arguments: object) -> object:
            made = sampler_of_engine(*arguments)  # pyright: ignore[reportArgumentType]
            sample = made.sample

            def noted(requests: object, behavior: Behavior, limits: object) -> object:
                self.sampled.append((name, behavior))
                return sample(requests, behavior, limits)  # pyright: ignore[reportArgumentType]

            made.sample = noted  # pyright: ignore[reportAttributeAccessIssue]
            return made

        engine.sampler = sampler  # pyright: ignore[reportAttributeAccessIssue]
        return engine


def worker(folder: Path, name: EngineName) -> tuple[RolloutWorker, Engines]:
    spec = tiny.worker_spec(folder)
    setup = replace(spec.setup, engine=replace(spec.setup.engine, sampler=name))
    engines = Engines(replace(spec, setup=setup))
    return RolloutWorker(replace(spec, setup=setup), engines), engines


def test_a_trial_goes_from_the_engine_that_blends_to_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    rollout, engines = worker(tmp_path, "sglang")
    trained = engines.trainer().publish(1)
    requests = tiny.requests(2)
    rollout.load(trained)
    rollout.sample(requests, TrustRegion(0.1))
    store = opened.engines["torch"].store
    assert store._student is not None
    rollout.sample(requests, Student())
    assert opened.sampled == [("torch", TrustRegion(0.1)), ("sglang", Student())]
    assert store._student is None, "what only sampling needed was given back"
    assert store._teacher is not None, "it goes on scoring"
    # The other engine has the weights that the first one was told, and its samples are keyed as
    # here.
    expected, _ = worker(tmp_path, "torch")[0].sample(requests, Student())
    found, _ = rollout.sample(requests, Student())
    assert found.tokens_BT.tolist() == expected.tokens_BT.tolist()


def test_an_engine_that_blends_keeps_all_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    rollout, _ = worker(tmp_path, "torch")
    for behavior in (TrustRegion(0.1), Student()):
        rollout.sample(tiny.requests(1), behavior)
    assert [name for name, _ in opened.sampled] == ["torch", "torch"]
    assert list(opened.engines) == ["torch"]


def test_each_engine_gets_the_weights_when_it_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    rollout, engines = worker(tmp_path, "sglang")
    trainer = engines.trainer()
    for step, behavior in enumerate((TrustRegion(0.1), Student(), Student())):
        weights = trainer.publish(step)
        tensors = {name: tensor + step for name, tensor in dict(weights.place).items()}  # pyright: ignore
        rollout.load(replace(weights, place=tensors))
        rollout.sample(tiny.requests(1), behavior)
        engine = opened.engines[opened.sampled[-1][0]]
        name, parameter = next(iter(engine.store.student.model.named_parameters()))
        assert parameter.tolist() == tensors[name].tolist()


def test_closing_lets_go_of_all_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch)
    rollout, engines = worker(tmp_path, "torch")
    rollout.sample(tiny.requests(1), TrustRegion(0.1))
    store = opened.engines["torch"].store
    engines.close()
    assert store._student is None
    assert store._teacher is None


def test_responses_that_come_whole_from_the_teacher(tmp_path: Path) -> None:
    """Each response is what its model alone would have given, with the teacher's scores."""
    rollout, _ = worker(tmp_path, "torch")
    requests = tiny.requests(12, seed=3)
    parts = by_behavior(requests, TeacherSequences(0.5))
    assert set(parts) == {Fusion(0.0), Fusion(1.0)}
    mixed, _ = rollout.sample(requests, TeacherSequences(0.5))
    assert mixed.requests == requests
    assert mixed.teacher is not None
    for behavior, some in parts.items():
        alone, _ = rollout.sample(some, behavior)
        for row, request in enumerate(some):
            assert mixed.response(requests.index(request)) == alone.response(row)
    students, _ = rollout.sample(parts[Fusion(0.0)], Student())
    alone, _ = rollout.sample(parts[Fusion(0.0)], Fusion(0.0))
    assert students.tokens_BT.tolist() == alone.tokens_BT.tolist()


def test_the_share_of_the_teacher_is_kept() -> None:
    requests = tiny.requests(2000)
    parts = by_behavior(requests, TeacherSequences(0.3))
    of_teacher, deviation = len(parts[Fusion(1.0)]), (len(requests) * 0.3 * 0.7) ** 0.5
    assert abs(of_teacher - 0.3 * len(requests)) <= 4 * deviation
    assert by_behavior(requests, TeacherSequences(0.3)) == parts
    assert by_behavior(requests, Student()) == {Student(): requests}


def test_a_horizon_cuts_responses_and_changes_no_token(tmp_path: Path) -> None:
    rollout, _ = worker(tmp_path, "torch")
    requests = tiny.requests(6, seed=2)
    whole, _ = rollout.sample(requests, Student())
    cut, _ = rollout.sample(requests, Student(), 2)
    for row in range(len(requests)):
        assert cut.response(row) == whole.response(row)[:2]
        assert bool(cut.truncated_B[row]) == (
            int(whole.lengths_B[row]) > 2 or bool(whole.truncated_B[row])
        )


class Beside:
    """A sampler that hands its responses on two at a time, and a scorer, which note their turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path):
        self.turns: list[str] = []
        engine = tiny.torch_engine(folder)
        self.sampler, self.scorer = engine.sampler(), engine.scorer()
        sample, score = self.sampler.sample, self.scorer.score

        def in_parts(
            requests: Sequence[Request], behavior: Behavior, limits: Limits
        ) -> Iterator[Rollouts]:
            for start in range(0, len(requests), 2):
                yield from sample(requests[start : start + 2], behavior, limits)
                self.turns.append("sampled")

        def noted(rollouts: Rollouts) -> TeacherScores:
            self.turns.append(f"scored {len(rollouts.requests)}")
            return score(rollouts)

        monkeypatch.setattr(self.sampler, "sample", in_parts)
        monkeypatch.setattr(self.scorer, "score", noted)
        monkeypatch.setattr(Engines, "sampler", lambda *_: self.sampler)
        monkeypatch.setattr(Engines, "scorer", lambda *_: self.scorer)


@pytest.mark.parametrize("scored", [True, False])
def test_parts_are_scored_while_others_are_sampled(
    scored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(monkeypatch, tmp_path)
    rollout, _ = worker(tmp_path, "torch")
    requests = tiny.requests(1)
    rollouts, digest = rollout.sample(requests, Student(), scored=scored)
    assert rollouts.requests == requests
    if not scored:
        assert (rollouts.teacher, digest.scores) == (None, None)
        assert beside.turns == ["sampled"] * 3
        return
    assert beside.turns == ["scored 2", "sampled"] * 3
    assert digest.scores is not None
    expected = beside.scorer.score(rollouts)
    assert rollouts.teacher is not None
    mask = rollouts.mask_BT
    for name, value in vars(expected).items():
        found = getattr(rollouts.teacher, name)[mask]
        torch.testing.assert_close(found, value[mask], atol=1e-4, rtol=1e-4)


def test_blended_rollouts_are_not_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(monkeypatch, tmp_path)
    rollout, _ = worker(tmp_path, "torch")
    rollout.sample(tiny.requests(1), TrustRegion(0.1), scored=True)
    assert set(beside.turns) == {"sampled"}
