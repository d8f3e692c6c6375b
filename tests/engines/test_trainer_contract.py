"""What every trainer promises: torch's, in small micro-batches, and verl's over one rank and two,
padded and packed.

The reference is the torch trainer with the whole batch in one pass, which `torch.test_trainer`
compares with a plain implementation in float64. Models are opened anew in each test, the ranks
once.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from orchestrator.config import Optimizer
from orchestrator.engines.common.passes import Passes
from orchestrator.engines.interface import Job, Limits, Trainer, WeightsRef
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.engines.verl.engine import OneRank, Ranks, SeveralRanks, VerlEngine
from orchestrator.policy.spec import (
    Bridge,
    ForwardKL,
    Objective,
    Proximal,
    SampledToken,
    TeacherKeeps,
    TeacherUncertain,
    Term,
    TrustRegion,
)
from orchestrator.rollouts import Rollouts
from orchestrator.workers.members import job_of
from tests import tiny
from tests.engines.installed import skip_without
from tests.engines.peak import MORE_LOGITS_BYTES
from tests.sweeps import ROOT

STEPS, TOP_K, WHOLE = 5, 4, 10_000
# AdamW divides by the size of the gradient: the larger eps keeps rounding of near-zero gradients
# from growing.
OPTIMIZER = Optimizer(
    lr=1e-2, weight_decay=0.05, clip=0.3, warmup_steps=3, decay="linear", eps=1e-4
)
GOALS = [
    Objective(name) for name in ("renormalized", "tail", "surrogate", "truncated", "full", "nll")
]
GOALS += [
    Objective(name, Bridge(0.4)) for name in ("renormalized", "surrogate", "truncated", "full")
]
GOALS += [  # losses that weigh tokens by what was recorded with them
    Objective("renormalized", terms=(Term(), Term(ForwardKL(), TeacherUncertain(1.0)))),
    Objective("tail", Proximal(0.5), (Term(SampledToken(1.0), TeacherKeeps()),)),
]


@dataclass(frozen=True)
class Kind:
    """A trainer: of torch where it has no ranks. `takes_turns`: its state is elsewhere while it
    does not work.
    """

    ranks: int
    packed: bool = False
    takes_turns: bool = False


WITH_VERL = (
    pytest.mark.engines,
    pytest.mark.skipif(
        importlib.util.find_spec("verl") is None, reason="verl is not installed (make test-engines)"
    ),
)
TORCH = [
    pytest.param(Kind(0), id="torch"),
    # Beside verl's; that its bytes are those of the other stands in `torch.test_trainer`.
    pytest.param(Kind(0, takes_turns=True), id="torch-in-turns", marks=WITH_VERL),
]
VERL = [
    pytest.param(Kind(1), id="verl-1-padded", marks=WITH_VERL),
    pytest.param(
        Kind(1, packed=True, takes_turns=True), id="verl-1-packed-in-turns", marks=WITH_VERL
    ),
    pytest.param(Kind(2, takes_turns=True), id="verl-2-padded-in-turns", marks=WITH_VERL),
    pytest.param(Kind(2, packed=True), id="verl-2-packed", marks=WITH_VERL),
]
each_trainer = pytest.mark.parametrize("kind", [*TORCH, *VERL])


class Engines:
    """Opens engines of all kinds on the same ranks."""

    def __init__(self) -> None:
        self._ranks: dict[int, Ranks] = {}

    def open(self, kind: Kind, job: Job) -> TorchEngine | VerlEngine:
        job = replace(job, takes_turns=kind.takes_turns)
        if not kind.ranks:
            return TorchEngine(job)
        if kind.ranks not in self._ranks:
            self._ranks[kind.ranks] = OneRank() if kind.ranks == 1 else SeveralRanks(kind.ranks)
        # Packed passes are those of GPUs in all else, too, so that both ways are compared.
        passes = Passes(packed=kind.packed, checkpointing=kind.packed, lean=kind.packed)
        return VerlEngine(job, passes, self._ranks[kind.ranks])

    def close(self) -> None:
        for ranks in self._ranks.values():
            ranks.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def any_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a pair whose student's embeddings are one matrix, or two."""
    return saved_pair(tmp_path_factory.mktemp("pair"), request.param)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_pair(tmp_path_factory.mktemp("pair"), True)


def saved_pair(folder: Path, tied: bool) -> Path:
    tiny.student(tied=tied).model.save_pretrained(folder / "student")
    return folder


def job(pair: Path, micro_batch_tokens: int = 40, dtype: Any = "float32") -> Job:
    opened = job_of(
        tiny.worker_spec(pair, optimizer=OPTIMIZER, micro_batch_tokens=micro_batch_tokens)
    )
    setup = replace(opened.setup, engine=replace(opened.setup.engine, dtype=dtype))
    return replace(opened, setup=setup, steps=STEPS)


def sampled(pair: Path, samples: int = 3, support: int = TOP_K) -> Rollouts:
    """Rollouts that carry their teacher scores."""
    sampler = TorchEngine(job(pair)).sampler()
    (rollouts,) = sampler.sample(
        tiny.requests(samples, seed=5), TrustRegion(0.1), Limits(6, support)
    )
    return rollouts


def weights(trainer: Trainer) -> dict[str, Tensor]:
    place = trainer.publish(STEPS).place
    assert not isinstance(place, Path)
    return dict(place)


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=tolerance, rtol=0)


def train(
    trainer: Trainer, rollouts: Rollouts, goal: Objective, steps: range
) -> list[dict[str, float]]:
    scores = rollouts.teacher if goal.needs_teacher else None
    return [trainer.step(rollouts, scores, goal, step) for step in steps]


def assert_trains_as_the_reference(
    engines: Engines, kind: Kind, pair: Path, goal: Objective
) -> None:
    rollouts = sampled(pair, support=tiny.VALID if goal.name == "full" else TOP_K)
    reference, trainer = (
        TorchEngine(job(pair, WHOLE)).trainer(),
        engines.open(kind, job(pair)).trainer(),
    )
    expected = train(reference, rollouts, goal, range(STEPS))
    for ours, theirs in zip(train(trainer, rollouts, goal, range(STEPS)), expected, strict=True):
        assert list(ours) == list(theirs)
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert_close(weights(trainer), weights(reference), 1e-5)


@each_trainer
@pytest.mark.parametrize("goal", GOALS, ids=str)
def test_five_steps_towards_any_objective(
    engines: Engines, kind: Kind, pair: Path, goal: Objective
) -> None:
    assert_trains_as_the_reference(engines, kind, pair, goal)


@each_trainer
def test_scores_change_nothing_of_a_loss_that_needs_none(
    engines: Engines, kind: Kind, pair: Path
) -> None:
    rollouts = sampled(pair)
    updated = []
    for scores in (rollouts.teacher, None):
        trainer = engines.open(kind, job(pair)).trainer()
        updated.append((trainer.step(rollouts, scores, Objective("nll"), 0), weights(trainer)))
    (scored, with_scores), (unscored, without) = updated
    assert unscored == {name: scored[name] for name in ("loss", "grad_norm", "lr")}
    assert_close(without, with_scores, 0)


@each_trainer
@pytest.mark.parametrize("name", ["renormalized", "tail"])
def test_five_steps_of_tied_and_untied_embeddings(
    engines: Engines, kind: Kind, any_pair: Path, name: str
) -> None:
    assert_trains_as_the_reference(engines, kind, any_pair, Objective(name))


@each_trainer
def test_a_single_rollout_is_enough(engines: Engines, kind: Kind, pair: Path) -> None:
    """With two ranks one of them has nothing to do."""
    sampler, goal = TorchEngine(job(pair)).sampler(), Objective("tail")
    (rollouts,) = sampler.sample(
        tiny.requests(1, tiny.PROMPTS[:1]), TrustRegion(0.1), Limits(6, TOP_K)
    )
    reference, trainer = TorchEngine(job(pair)).trainer(), engines.open(kind, job(pair)).trainer()
    expected = train(reference, rollouts, goal, range(2))
    for ours, theirs in zip(train(trainer, rollouts, goal, range(2)), expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert_close(weights(trainer), weights(reference), 1e-5)


@each_trainer
@pytest.mark.parametrize("done", [0, 2])
def test_a_restored_trainer_goes_on_bitwise(
    engines: Engines, kind: Kind, any_pair: Path, tmp_path: Path, done: int
) -> None:
    rollouts, goal = sampled(any_pair), Objective("renormalized")
    first = engines.open(kind, job(any_pair)).trainer()
    train(first, rollouts, goal, range(done))
    first.save(tmp_path)
    undisturbed = train(first, rollouts, goal, range(done, STEPS)), weights(first)
    second = engines.open(kind, job(any_pair)).trainer()
    train(second, rollouts, Objective("nll"), range(1))  # whatever it did before is forgotten
    second.restore(tmp_path)
    assert train(second, rollouts, goal, range(done, STEPS)) == undisturbed[0]
    assert_close(weights(second), undisturbed[1], 0)


@each_trainer
def test_a_student_scores_by_the_weights_that_it_publishes(
    engines: Engines, kind: Kind, any_pair: Path
) -> None:
    """Beside a plain pass over these weights in float64; scoring changes nothing of the training."""
    rollouts, goal = sampled(any_pair), Objective("renormalized")
    undisturbed = engines.open(kind, job(any_pair)).trainer()
    expected = train(undisturbed, rollouts, goal, range(STEPS)), weights(undisturbed)
    trainer = engines.open(kind, job(any_pair)).trainer()  # on the same ranks, which begin anew
    rows = train(trainer, rollouts, goal, range(2))
    scores = trainer.score(rollouts)
    values = weights(trainer)
    published = tiny.student(torch.float64, tied="lm_head.weight" not in values)
    published.model.load_state_dict(values, strict=False)
    for row, visited in enumerate(tiny.visited_rows(published, rollouts)):
        for t, token in enumerate(rollouts.response(row)):
            support = rollouts.support_ids_BTK[row, t].numpy()
            log_p = visited[t]
            assert scores.support_BTK[row, t].numpy() == pytest.approx(log_p[support], abs=1e-4)
            assert float(scores.token_BT[row, t]) == pytest.approx(log_p[token], abs=1e-4)
            entropy = -sum(math.exp(value) * value for value in log_p if value > -math.inf)
            assert float(scores.entropy_BT[row, t]) == pytest.approx(entropy, abs=1e-4)
    rows += train(trainer, rollouts, goal, range(2, STEPS))
    assert rows == expected[0]
    assert_close(weights(trainer), expected[1], 0)


@pytest.mark.parametrize(
    ("before", "after"), [pytest.param(1, 2, marks=WITH_VERL), pytest.param(2, 1, marks=WITH_VERL)]
)
def test_a_trainer_is_restored_on_another_number_of_ranks(
    engines: Engines, any_pair: Path, tmp_path: Path, before: int, after: int
) -> None:
    rollouts, goal = sampled(any_pair), Objective("tail")
    first = engines.open(Kind(before), job(any_pair)).trainer()
    train(first, rollouts, goal, range(2))
    first.save(tmp_path)
    saved = weights(first)
    undisturbed = train(first, rollouts, goal, range(2, STEPS)), weights(first)
    second = engines.open(Kind(after), job(any_pair)).trainer()
    second.restore(tmp_path)
    assert_close(weights(second), saved, 0)
    for ours, theirs in zip(
        train(second, rollouts, goal, range(2, STEPS)), undisturbed[0], strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert_close(weights(second), undisturbed[1], 1e-5)


@each_trainer
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exported_model_is_the_published_one(
    engines: Engines, kind: Kind, any_pair: Path, tmp_path: Path, dtype: str
) -> None:
    trainer = engines.open(kind, job(any_pair, dtype=dtype)).trainer()
    train(trainer, sampled(any_pair), Objective("renormalized"), range(1))
    trainer.export(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    published = weights(trainer)
    assert_close({name: p.detach() for name, p in loaded.named_parameters()}, published, 0)
    assert {tensor.dtype for tensor in published.values()} == {getattr(torch, dtype)}
    reference = tmp_path / "reference"
    TorchEngine(job(any_pair, dtype=dtype)).trainer().export(reference)
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / name).read_bytes() == (reference / name).read_bytes()


@each_trainer
def test_master_weights_are_float32_where_passes_are_bfloat16(
    engines: Engines, kind: Kind, pair: Path, tmp_path: Path
) -> None:
    rollouts, goal = sampled(pair), Objective("renormalized")
    trainer = engines.open(kind, job(pair, dtype="bfloat16")).trainer()
    exact = TorchEngine(job(pair)).trainer()
    for ours, theirs in zip(
        train(trainer, rollouts, goal, range(STEPS)),
        train(exact, rollouts, goal, range(STEPS)),
        strict=True,
    ):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.03)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.1)
    trainer.save(tmp_path)
    parts = [load_file(file) for file in sorted(tmp_path.rglob("*.safetensors"))]
    for name, published in weights(trainer).items():
        master = torch.cat([part[f"weight/{name}"] for part in parts])
        assert master.dtype == torch.float32
        assert not torch.equal(master, master.bfloat16().float())
        assert torch.equal(master.bfloat16(), published)


@each_trainer
def test_a_sampler_of_the_published_weights_finds_the_same_log_probabilities(
    engines: Engines, kind: Kind, any_pair: Path, tmp_path: Path
) -> None:
    trainer = engines.open(kind, job(any_pair)).trainer()
    train(trainer, sampled(any_pair), Objective("tail"), range(2))
    trainer.export(tmp_path)
    ids = [1, 5, 9, 10, 0, 2]
    for place in (trainer.publish(2).place, tmp_path):
        sampler = TorchEngine(job(any_pair)).sampler()
        sampler.load(WeightsRef(2, place))
        assert trainer.log_probs(ids) == pytest.approx(sampler.log_probs(ids), abs=1e-5)


@pytest.mark.parametrize("kind", VERL)
@pytest.mark.parametrize("support", [1, TOP_K, tiny.VALID])
def test_verl_scores_as_torch_does(engines: Engines, kind: Kind, pair: Path, support: int) -> None:
    rollouts = sampled(pair, support=support)
    expected, scores = (
        TorchEngine(job(pair, WHOLE)).scorer().score(rollouts),
        engines.open(kind, job(pair)).scorer(),
    )
    for name, value in vars(scores.score(rollouts)).items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, vars(expected)[name], atol=1e-5, rtol=0)


@pytest.mark.engines
@pytest.mark.parametrize("name", ["renormalized", "full"])
def test_verl_holds_no_logits_of_all_tokens(tmp_path: Path, name: str) -> None:
    """Four times the tokens take a fifth at most of what the logits of those that are added would."""
    skip_without("verl")
    command = [sys.executable, "-m", "tests.engines.peak", "verl", name, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0 <= int(done.stdout.splitlines()[-1]) < MORE_LOGITS_BYTES / 5


@pytest.mark.engines
@pytest.mark.parametrize("again", [False, True], ids=["closed", "opened-again"])
def test_a_closed_engine_of_verl_leaves_no_model(again: bool, tmp_path: Path) -> None:
    skip_without("verl")
    engine = VerlEngine(job_of(tiny.worker_spec(tmp_path)))
    gc.collect()
    gc.disable()
    try:
        engine.scorer().start()
        engine.trainer()
        assert isinstance(engine._ranks, OneRank)
        rank = engine._ranks._rank
        assert rank is not None
        assert rank._student is not None
        assert rank._teacher is not None
        models = [weakref.ref(each.model.module) for each in (rank._student, rank._teacher)]
        del rank
        if again:
            engine.scorer().start()
            assert models[1]() is None
            engine.trainer()
        else:
            engine.close()
        assert [model() for model in models] == [None, None]
    finally:
        gc.enable()
        engine.close()
