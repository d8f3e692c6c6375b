"""Parts of `make gpu-proof` that open engines as a trial does: a job over models in folders, and its roles.

All engines get the same jobs, so that their rows of the table compare. Lengths are those of the proof's scale; the
models' weights are random, so that next to no response ends before its limit.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from orchestrator.config import Engine, EngineName, Model, Runtime, TrainerName, Vocabulary
from orchestrator.engines import memory
from orchestrator.engines.catalog import open_engine
from orchestrator.engines.interface import Job, Limits, ModelFolder, Owner, Sampler, WeightsRef
from orchestrator.experiment.load import load_experiment
from orchestrator.planning.rates import GPUS
from orchestrator.policy.randomness import SequenceKey
from orchestrator.policy.spec import Behavior, Objective, Student, TrustRegion
from orchestrator.rollouts import Request, Rollouts, TeacherScores, concatenate
from tests.benchmarks.decoding import EPSILON, TOP_K, once
from tests.benchmarks.gpu_scale import Scale
from tests.sweeps import TRB

BANDWIDTH = {"H100": GPUS["H100-80GB"].bytes_per_s, "H200": 4.8e12, "A100": GPUS["A100-40GB"].bytes_per_s}
FLOPS = {"H100": GPUS["H100-80GB"].flops, "H200": GPUS["H100-80GB"].flops, "A100": GPUS["A100-40GB"].flops}
DRAFTED = (3, 5, 8)
SWAPS = 3
UPDATES = 3


def models(size: Scale) -> dict[str, float]:
    """Student and teacher of random weights, in the folders that the other parts read."""
    owners: tuple[Owner, ...] = ("student", "teacher")
    taken = {}
    for owner in owners:
        causal = size.model(owner)
        taken[f"save_{owner}_s"] = once(functools.partial(causal.model.save_pretrained, size.models / owner))
    return taken


def sampling(size: Scale, name: EngineName) -> dict[str, float]:
    """Tokens/s of the student alone, also as a share of what the memory's bandwidth allows, and what blending costs."""
    measured: dict[str, float] = {}
    with_scores = _vanilla(size, name, measured)
    for drafted in DRAFTED:
        engine = open_engine(name, job(size, name, "torch", drafted))
        sampler = engine.sampler()
        sampler.start(teacher=True)
        taken, rollouts = _timed(sampler, size, TrustRegion(EPSILON))
        measured[f"{name}_blended_{drafted}_tokens_per_s"] = int(rollouts.lengths_B.sum()) / taken
        measured[f"{name}_blended_{drafted}_vs_vanilla"] = taken / with_scores
        engine.close()
    return measured


def learning(size: Scale, name: TrainerName) -> dict[str, float]:
    """Model FLOPs utilisation of updates on packed sequences: 6 FLOPs for each parameter and token."""
    opened = job(size, "torch", name)
    engine = open_engine(name, opened)
    trainer = engine.trainer()
    rollouts, scores = made_up(size)
    prompts = sum(len(request.prompt_ids) for request in rollouts.requests)
    tokens = prompts + int(rollouts.lengths_B.sum())
    objective = Objective("renormalized")
    trainer.step(rollouts, scores, objective, 0)
    steps = (functools.partial(trainer.step, rollouts, scores, objective, update) for update in range(1, UPDATES + 1))
    taken = statistics.median(once(step) for step in steps)
    publishing = once(lambda: trainer.publish(1))
    engine.close()
    student = memory.decoder(opened.setup.student, opened.setup)
    return {
        f"{name}_learner_tokens_per_s": tokens / taken,
        f"{name}_learner_mfu": 6 * student.parameters * tokens / taken / _of_this_gpu(FLOPS),
        f"{name}_publish_s": publishing,
    }


def training(size: Scale) -> dict[str, float]:
    """Seconds of the quickstart's sweep, from `trb submit` to its table."""
    gpus = f"runtime.placement.gpus={int(torch.cuda.is_available())}"
    with tempfile.TemporaryDirectory() as folder:
        submit = [*TRB, "submit", "experiments/quickstart.yaml", gpus, *size.quickstart, "--runs", folder]
        taken = once(lambda: _run(submit))
    return {"quickstart_s": taken}


def parity(size: Scale) -> dict[str, float]:
    """How many of the engines' tests pass, and do not, on this device."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", f"--junitxml={report}", *size.tests]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        return counts(report)


def counts(report: Path) -> dict[str, float]:
    """Tests by outcome in a report of pytest. Raises FileNotFoundError where none was written."""
    (suite,) = ElementTree.parse(report).getroot()
    found = {name: float(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = found["failures"] + found["errors"]
    return {
        "tests_passed": found["tests"] - failed - found["skipped"],
        "tests_failed": failed,
        "tests_skipped": found["skipped"],
    }


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])


# --- jobs ---


def job(size: Scale, sampler: EngineName, trainer: TrainerName, drafted: int | None = None) -> Job:
    """Training of the paper's pair, at the proof's shapes and lengths, from the folders that `models` wrote."""
    setup = load_experiment(Path("experiments/paper.yaml"), []).setups["qwen3-1.7b"]
    if size.vocabulary != setup.vocabulary.size:
        setup = replace(
            setup,
            student=Model(eos=size.vocabulary - 2, shape=size.student),
            teacher=Model(eos=size.vocabulary - 1, shape=size.teacher),
            vocabulary=Vocabulary(size.vocabulary, size.vocabulary),
        )
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    lengths = {"max_prompt_tokens": size.prompt, "max_response_tokens": size.new_tokens}
    setup = replace(
        setup,
        engine=Engine(dtype=dtype, sampler=sampler, trainer=trainer),
        training=replace(setup.training, top_k=TOP_K, **lengths),
        evaluation=replace(setup.evaluation, max_response_tokens=size.new_tokens),
    )
    runtime = Runtime(rollout_batch=size.rows, micro_batch_tokens=size.sequence, draft_length=drafted)
    student, teacher = (ModelFolder(str(size.models / owner)) for owner in ("student", "teacher"))
    return Job(setup, runtime, student, teacher, steps=100)


def requests(size: Scale) -> list[Request]:
    return [Request(tuple(range(row, row + size.prompt)), SequenceKey(0, 0, 0, row, 0)) for row in range(size.rows)]


def made_up(size: Scale) -> tuple[Rollouts, TeacherScores]:
    """Finished rollouts of full length, as many as fill the token budget, with made-up teacher scores."""
    asked = requests(size)[: max(1, size.sequence // (size.prompt + size.new_tokens))]
    shape = (len(asked), size.new_tokens)
    support = torch.randint(0, size.vocabulary - 2, (*shape, TOP_K))
    nothing = torch.zeros(shape)
    rollouts = Rollouts(
        requests=asked,
        tokens_BT=support[..., 0],
        lengths_B=torch.full((len(asked),), size.new_tokens),
        truncated_B=torch.ones(len(asked), dtype=torch.bool),
        student_BT=nothing,
        behavior_BT=nothing,
        support_ids_BTK=support,
    )
    log_q = torch.randn(*shape, TOP_K).log_softmax(-1) - 0.01
    return rollouts, TeacherScores(support_BTK=log_q, token_BT=nothing, entropy_BT=nothing, overlap_BT=nothing)


# --- measuring ---


def _vanilla(size: Scale, name: EngineName, measured: dict[str, float]) -> float:
    """Fill in what the student alone reaches; seconds of its rollouts and their scores."""
    opened = job(size, name, "torch")
    engine = open_engine(name, opened)
    sampler = engine.sampler()
    sampler.start(teacher=False)
    taken, rollouts = _timed(sampler, size, Student())
    speed = int(rollouts.lengths_B.sum()) / taken
    measured |= {f"{name}_tokens_per_s": speed, f"{name}_share_of_bound": speed / bound(opened, size)}
    weights = WeightsRef(1, size.models / "student")
    measured[f"{name}_swap_s"] = statistics.median(once(lambda: sampler.load(weights)) for _ in range(SWAPS))
    engine.close()
    scoring = open_engine("torch", opened)
    scorer = scoring.scorer()
    scorer.start()
    scorer.score(rollouts)
    scored = once(lambda: scorer.score(rollouts))
    measured["torch_scoring_s"] = scored
    scoring.close()
    return taken + scored


def _timed(sampler: Sampler, size: Scale, behavior: Behavior) -> tuple[float, Rollouts]:
    """Seconds of rollouts, after a short call that warms the engine up, and the rollouts."""
    asked, sampled = requests(size), list[Rollouts]()
    list(sampler.sample(asked, behavior, Limits(2, TOP_K)))
    taken = once(lambda: sampled.extend(sampler.sample(asked, behavior, Limits(size.new_tokens, TOP_K))))
    return taken, concatenate(sampled)


def bound(opened: Job, size: Scale) -> float:
    """Tokens/s of the student at which reading its KV cache and weights fills the bandwidth; NaN on other devices."""
    student = memory.decoder(opened.setup.student, opened.setup)
    context = size.prompt + size.new_tokens / 2
    return _of_this_gpu(BANDWIDTH) / (student.kv_bytes * context + student.weight_bytes / size.rows)


def _of_this_gpu(figures: dict[str, float]) -> float:
    """The figure of the kind of GPU that is here; NaN, dropped from the results, where it is none of them."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((figure for kind, figure in figures.items() if kind in name), float("nan"))


def engine_parts() -> dict[str, Callable[[Scale], dict[str, float]]]:
    """Part → what measures it, in the order that they run."""
    return {
        "models": models,
        "torch_sampling": lambda size: sampling(size, "torch"),
        "sglang_sampling": lambda size: sampling(size, "sglang"),
        "torch_learning": lambda size: learning(size, "torch"),
        "verl_learning": lambda size: learning(size, "verl"),
        "training": training,
        "parity": parity,
    }
