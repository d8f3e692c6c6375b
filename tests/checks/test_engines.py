"""The checks of the engines: on tiny models with the torch engine, then what is made of an engine
whose memory comes back, late, in part or never. Engines and gauges of the second part are made up.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from orchestrator.checks import engines
from orchestrator.checks.bench import Bench
from orchestrator.checks.measures import UsageWatch, measured_beside
from orchestrator.engines.budget import Budget
from orchestrator.engines.interface import Job, Limits, WeightsRef
from orchestrator.engines.memory import GIB
from orchestrator.engines.torch import trainer as trainers
from orchestrator.errors import UserError
from orchestrator.policy.spec import Behavior
from orchestrator.rollouts import Request, Rollouts
from orchestrator.workers.canary import LENGTH
from tests.checks.benches import small_bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench whose models are written."""
    made = small_bench(tmp_path_factory.mktemp("bench"))
    found = engines.models(made)
    assert found.verdict == "ok"
    assert found.detail.startswith("student: random weights, 2 layers, ")
    return made


def teacher_as_student(bench: Bench) -> Bench:
    """A bench with the teacher's folder for the student's: another model of the same vocabulary."""
    folders = dict.fromkeys(bench.folders, bench.folders["teacher"])
    student = replace(bench.setup.teacher, eos=510)
    return replace(bench, folders=folders, setup=replace(bench.setup, student=student))


def test_sampler_and_learner_say_the_same_of_the_ids(bench: Bench) -> None:
    learned = engines.learner(bench)
    assert learned.verdict == "ok", learned
    assert learned.detail.startswith("4 × 64 tokens in ")
    assert learned.numbers["tokens_per_s"] == pytest.approx(4 * 64 / learned.numbers["seconds"])
    sampled = engines.sampler(bench)
    assert sampled.verdict == "ok", sampled
    found = engines.same_weights(bench)
    assert (found.verdict, found.numbers["nats"]) == ("ok", pytest.approx(0, abs=1e-5))


def test_the_trainer_reads_what_the_sampler_drew(bench: Bench) -> None:
    """The same weights have one law, and other weights another."""
    bench = replace(bench, folder=bench.folder / "drawn")
    bench.folder.mkdir()
    assert engines.sampler(bench).verdict == "ok"
    rows = json.loads((bench.folder / engines.DRAWN).read_text())
    assert len(rows) == 4
    assert {len(row["ids"]) - len(row["log_probs"]) for row in rows} == {16}
    learned = engines.learner(bench)
    assert learned.numbers["publish_s"] > 0
    found = engines.same_weights(bench)
    assert found.numbers["kl"] == pytest.approx(0, abs=1e-9)
    assert "KL of the sampler's law from the trainer's" in found.detail
    engines.learner(teacher_as_student(bench))
    assert (engines.divergence(bench) or 0) > 1e-4


def test_other_weights_are_seen(bench: Bench) -> None:
    """The sampler has the teacher's folder for the student's: another model of the same vocabulary."""
    engines.learner(bench)
    assert engines.sampler(teacher_as_student(bench)).verdict == "ok"
    found = engines.same_weights(bench)
    assert found.verdict == "fail"
    assert found.numbers["nats"] > 0.001


def test_blending_and_then_the_student_alone(bench: Bench) -> None:
    assert engines.switch(bench).verdict == "ok"


def test_an_update_that_gives_no_number_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = trainers.TorchTrainer.step

    def broken(self: trainers.TorchTrainer, *arguments: object) -> dict[str, float]:
        return step(self, *arguments) | {"loss": float("nan")}  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(trainers.TorchTrainer, "step", broken)
    found = engines.learner(bench)
    assert found.verdict == "fail"
    assert "not finite" in found.detail


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small_bench(tmp_path)
    monkeypatch.setattr(
        engines.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000})()
    )
    found = engines.models(made)
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
        engines.sampler(broken)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


# --- an engine on a GPU that does as it is told ---

CONTEXT, PLAIN, BLENDING, WEIGHTS = 0.6, 66.0, 70.0, 5.0  # GiB
# nvidia-smi as it lists the processes of a node with two GPUs.
SMI = """\
#!/bin/sh
[ "$1" = --query-compute-apps=gpu_uuid,pid,process_name,used_memory ] || exit 1
cat <<END
GPU-aaaa, 4711, sglang::scheduler, 67084
GPU-aaaa, 4712, /usr/bin/python3, 514
GPU-bbbb, 4713, /usr/bin/other, 100
GPU-aaaa, 4714, sglang::detokenizer, [N/A]
END
"""
ON_THE_CARD = (
    "on the card sglang::scheduler (process 4711) 67,084 MiB, python3 (process 4712) 514 MiB, "
    "sglang::detokenizer (process 4714) an unknown part; "
    "the budget counts 2 processes of 512 MiB beside what they hold"
)


class Card:
    """The memory of a GPU, looked at by one watch at a time."""

    def __init__(self) -> None:
        self._used, self._reads = CONTEXT, threading.Condition()
        self._count = 0

    def gauge(self) -> float:
        with self._reads:
            self._count += 1
            self._reads.notify_all()
            return self._used

    def use(self, gib: float) -> None:
        """That much is used from now on, until a watch has noted it: it has when it looks for the
        second time.
        """
        with self._reads:
            self._used, before = gib, self._count
            assert self._reads.wait_for(lambda: self._count > before + 1, 60)

    def leave(self, gib: float) -> None:
        """That much is used from now on."""
        self._used = gib


class FakeEngine:
    """An engine that is its own sampler. `between` is what is used when the second of its engines
    comes up.
    """

    def __init__(self, card: Card, idle: float, between: float, left: float):
        self._card, self._idle, self._between, self._left = card, idle, between, left
        self._blended = False
        self.seconds = 0.0  # a clock, on which a token of all rows takes 10 ms
        self.loaded: list[WeightsRef] = []

    def sampler(self) -> FakeEngine:
        return self

    def start(self, teacher: bool) -> None:
        self._blended = teacher
        self._card.leave(self._idle)

    def load(self, weights: WeightsRef) -> None:
        self.loaded.append(weights)

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        return [-1.0] * (len(ids) - 1)

    def sample(
        self, requests: Sequence[Request], behavior: Behavior, limits: Limits
    ) -> Iterator[Rollouts]:
        if self._blended and not behavior.needs_teacher:
            self._card.use(self._between)
        self._card.use(BLENDING if behavior.needs_teacher else PLAIN)
        self._card.leave(self._idle)
        count, size = len(requests), limits.max_tokens
        self.seconds += 1.0 + 0.01 * size
        nothing = torch.zeros(count, size)
        support = torch.zeros(count, size, limits.support, dtype=torch.long)
        lengths = torch.tensor([size] * count)
        yield Rollouts(
            list(requests), nothing.long(), lengths, lengths > 1, nothing, nothing, support
        )

    def close(self) -> None:
        self._card.leave(self._left)


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """A bench on a GPU whose SGLang does as it is told."""

    def on_a_gpu(idle: float = WEIGHTS, between: float = CONTEXT, left: float = CONTEXT) -> Bench:
        card = Card()
        engine = FakeEngine(card, idle, between, left)

        def opened(name: str, job: Job) -> FakeEngine:
            assert name == "sglang"
            assert job.takes_turns
            return engine

        monkeypatch.setattr(engines, "open_engine", opened)
        monkeypatch.setattr(engines.time, "perf_counter", lambda: engine.seconds)
        monkeypatch.setattr(engines, "require", lambda key, name: None)
        monkeypatch.setattr(engines, "gauge_here", lambda: card.gauge)
        monkeypatch.setattr(engines, "BACK_WITHIN_S", 0.2)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        properties = SimpleNamespace(uuid="aaaa", total_memory=79.1 * GIB)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        smi = tmp_path / "nvidia-smi"
        smi.write_text(SMI)
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr(engines, "granted", lambda job, situation: card_of(79.1))
        return small_bench(tmp_path, "engine.sampler=sglang")

    return on_a_gpu


def test_an_engine_that_gives_its_cache_back(pretend: Callable[..., Bench]) -> None:
    bench = pretend()
    found = engines.sampler(bench)
    assert found.verdict == "ok", found
    assert "61.0 GiB given back after each two; all memory back " in found.detail
    assert found.detail.endswith("66.0 GiB used at most, 79.1 granted")
    assert ON_THE_CARD in found.detail
    assert (found.numbers["processes"], found.numbers["contexts"]) == (3, 2)
    assert found.numbers["rows"] == 4
    assert found.numbers["decoded_per_s"] == pytest.approx(4 / 0.01)
    assert found.numbers["planned_per_s"] > 0
    assert "; 400 tokens/s at 4 rows, where the plan assumes " in found.detail
    assert found.numbers["given_back_gib"] == pytest.approx(PLAIN - WEIGHTS)
    assert (bench.folder / f"canary_of_{engines.SAMPLER}.json").is_file()


def test_an_engine_that_keeps_its_cache(pretend: Callable[..., Bench]) -> None:
    found = engines.sampler(pretend(idle=PLAIN - 0.4))
    assert (found.verdict, found.numbers["given_back_gib"]) == ("fail", pytest.approx(0.4))
    assert found.change.startswith("torch_memory_saver")


def test_memory_that_does_not_come_back_after_the_end(pretend: Callable[..., Bench]) -> None:
    found = engines.sampler(pretend(left=CONTEXT + 12))
    assert found.verdict == "fail"
    assert "12.0 GiB have not come back" in found.detail


def test_a_switch_after_which_all_memory_was_there(pretend: Callable[..., Bench]) -> None:
    found = engines.switch(pretend())
    assert found.verdict == "ok", found
    words = "0.6 GiB used before, 70.0 while blending, 0.6 between, 5.0 with the student alone; "
    assert found.detail.startswith(words)
    assert f"{ON_THE_CARD}; all memory back " in found.detail
    assert found.numbers["planned_per_s"] > 0
    assert found.numbers["between_s"] >= 0


def test_a_switch_before_the_first_engine_was_gone(pretend: Callable[..., Bench]) -> None:
    found = engines.switch(pretend(between=CONTEXT + 3))
    assert found.verdict == "fail"
    assert found.detail.endswith(
        "the second engine came up before the memory of the first one was back"
    )


def card_of(gib: float) -> Budget:
    return Budget("decoding", 79.1, {"contexts": 1.0, "everything": gib - 1.0}, requests=4)


def test_more_than_the_budget_grants_is_a_warning() -> None:
    with UsageWatch(lambda: 60.0) as watch:
        pass
    assert measured_beside("done", {}, watch, card_of(60.0)).verdict == "ok"
    over = measured_beside("done", {"s": 1.0}, watch, card_of(52.0))
    assert (over.verdict, over.detail) == ("warn", "done; 60.0 GiB used at most, 52.0 granted")
    assert over.numbers == {"s": 1.0, "peak_gib": 60.0, "granted_gib": 52.0}
    assert measured_beside("done", {}, watch, None).numbers == {}, "nothing was measured"


def test_without_blended_methods_there_is_no_switch(tmp_path: Path) -> None:
    plain = [f"methods.{name}=null" for name in ("trust_region", "fixed_epsilon", "skd")]
    assert (
        engines.switch(small_bench(tmp_path, "engine.sampler=torch", *plain)).verdict == "skipped"
    )


@pytest.mark.parametrize(
    ("apart", "verdict"), [(0.0, "ok"), (9e-4, "ok"), (2e-3, "fail"), (float("nan"), "fail")]
)
def test_the_canary_allows_what_evaluators_allow(
    tmp_path: Path, apart: float, verdict: str
) -> None:
    bench = small_bench(tmp_path)
    assert engines.same_weights(bench).verdict == "skipped"
    engines.write_canary(bench, engines.LEARNER, [-2.0] * (LENGTH - 1))
    assert engines.same_weights(bench).verdict == "skipped"
    engines.write_canary(bench, engines.SAMPLER, [-2.0 + apart] * (LENGTH - 1))
    found = engines.same_weights(bench)
    assert found.verdict == verdict
    assert found.numbers["nats"] == pytest.approx(apart, nan_ok=True)
