"""Parts of `make gpu-proof`: one engine as a trial opens it, roles that take turns, and torch alone.

Each part is a generator of numbers: those that it has yielded are kept when it fails later on.
"""

from __future__ import annotations

import functools
import json
import shutil
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml
from safetensors.torch import load_file

from benchmarks.bench import bisection
from benchmarks.decoding import CPU, EPSILON, TOP_K, Workload, once, random_model, ratios
from benchmarks.gpu_phases import Phases, share_of_arithmetic, share_of_bound
from benchmarks.gpu_scale import (
    OWNERS,
    SMALL,
    SMALL_VOCABULARY,
    Scale,
    job,
    made_up,
    requests,
    spec,
    tokens_of,
)
from orchestrator.config import Optimizer, Setup
from orchestrator.engines import memory
from orchestrator.engines.budget import Situation
from orchestrator.engines.catalog import open_engine
from orchestrator.engines.common.causal import CausalModel, best_device
from orchestrator.engines.common.passes import attention_for
from orchestrator.engines.device import free_gib
from orchestrator.engines.interface import Job, Limits, Sampler, Trainer, WeightsRef
from orchestrator.engines.torch.trainer import TorchTrainer
from orchestrator.models.recipes import make_tokenizer
from orchestrator.policy import laws
from orchestrator.policy.spec import Behavior, Objective, Student, TrustRegion
from orchestrator.records.log import LEARN, ROLLOUT, SCORE
from orchestrator.rollouts import Rollouts, TeacherScores, concatenate
from orchestrator.rules import EngineName, TrainerName
from orchestrator.workers.canary import canary_ids
from orchestrator.workers.members import Engines, job_of
from tests.sweeps import ROOT, TRB, environment

Numbers = Iterator[dict[str, float]]
SWAPS = 3
OBJECTIVE = Objective("renormalized")
BYTES = 259  # ids of the tokenizer of bytes


def models(size: Scale) -> Numbers:
    """Student and teacher of random weights, in the folders that the other parts read; with the
    tokenizer of bytes.
    """
    with Phases() as phases:
        for owner in OWNERS:
            causal = size.model(owner)
            yield phases.over(f"make_{owner}")
            causal.model.save_pretrained(size.models / owner)
            make_tokenizer("bytes").save_pretrained(size.models / owner)
            yield phases.over(f"save_{owner}")
            del causal


def first_start(size: Scale) -> Numbers:
    """SGLang's first start on this machine, which compiles kernels: the starts of other parts find
    them.
    """
    engine = open_engine("sglang", job(size, "sglang", "torch"))
    with Phases() as phases:
        sampler = engine.sampler()
        sampler.start(teacher=False)
        yield phases.over("start")
        list(sampler.sample(requests(size)[:2], Student(), Limits(2, TOP_K)))
        yield phases.over("responses")
        engine.close()
        yield phases.over("end")


def plain(size: Scale, name: EngineName) -> Numbers:
    """Tokens/s of the student alone, also as a share of what the memory's bandwidth allows."""
    opened = job(size, name, "torch")
    engine = open_engine(name, opened)
    with Phases(opened) as phases:
        sampler = engine.sampler()
        sampler.start(teacher=False)
        yield phases.over("start")
        list(sampler.sample(requests(size), Student(), Limits(2, TOP_K)))
        yield phases.over("warm_up")
        rollouts = concatenate(
            list(sampler.sample(requests(size), Student(), Limits(size.new_tokens, TOP_K)))
        )
        taken = phases.over("rollout", "decoding")
    speed = int(rollouts.lengths_B.sum()) / taken["rollout_s"]
    context = size.prompt + size.new_tokens / 2
    yield {**taken, "tokens_per_s": speed, **share_of_bound(speed, opened, size.rows, context)}
    engine.close()


def blended(size: Scale, name: EngineName, drafted: int) -> Numbers:
    """Tokens/s of trust-region rollouts in rounds of `drafted` drafts, with the teacher's scores."""
    opened, behavior = job(size, name, "torch", drafted), TrustRegion(EPSILON)
    engine = open_engine(name, opened)
    with Phases(opened) as phases:
        sampler = engine.sampler()
        sampler.start(teacher=True)
        yield phases.over("start")
        list(sampler.sample(requests(size), behavior, Limits(2, TOP_K)))
        yield phases.over("warm_up")
        rollouts = concatenate(
            list(sampler.sample(requests(size), behavior, Limits(size.new_tokens, TOP_K)))
        )
        taken = phases.over("rollout", "blending")
    tokens = int(rollouts.lengths_B.sum())
    yield {
        **taken,
        "tokens_per_s": tokens / taken["rollout_s"],
        "acceptance": float(rollouts.measured["acceptance"][rollouts.mask_BT].mean()),
        "rounds_per_token": float(rollouts.speculation["rounds"].sum()) / tokens,
    }
    engine.close()


def swap(size: Scale, name: EngineName) -> Numbers:
    """Seconds of a change of weights, from a checkpoint's folder and from tensors as a learner
    publishes them.
    """
    engine = open_engine(name, job(size, name, "torch"))
    sampler = engine.sampler()
    sampler.start(teacher=False)
    folder = size.models / "student"
    tensors = {
        key: value
        for file in folder.glob("model*.safetensors")
        for key, value in load_file(file).items()
    }
    for kind, place in (("folder", folder), ("tensors", tensors)):
        loads = [
            functools.partial(sampler.load, WeightsRef(step, place)) for step in range(1, SWAPS + 1)
        ]
        yield {f"swap_{kind}_s": statistics.median(once(load) for load in loads)}
    engine.close()


def scoring(size: Scale, name: TrainerName) -> Numbers:
    """The teacher over as many rollouts as the parts of decoding sample; 2 FLOPs for each parameter
    and token.
    """
    opened = job(size, "sglang", name)
    engine = open_engine(name, opened)
    rollouts, _ = made_up(size)
    with Phases(opened) as phases:
        scorer = engine.scorer()
        scorer.start()
        yield phases.over("start")
        scorer.score(rollouts)
        yield phases.over("warm_up")
        scorer.score(rollouts)
        taken = phases.over("scoring", "scoring")
    speed = tokens_of(rollouts) / taken["scoring_s"]
    teacher = memory.decoder(opened.setup.teacher, opened.setup)
    yield {**taken, "tokens_per_s": speed, **share_of_arithmetic(2 * teacher.parameters * speed)}
    engine.close()


def learning(size: Scale, name: TrainerName, **changed: bool) -> Numbers:
    """Updates on two rows of the paper's full length; 6 FLOPs for each parameter and token."""
    opened = job(size, "sglang", name, **changed)
    engine = open_engine(name, opened)
    rollouts, scores = made_up(replace(size, rows=2, new_tokens=size.longest))
    with Phases(opened) as phases:
        trainer = engine.trainer()
        yield phases.over("start")
        trainer.step(rollouts, scores, Objective("renormalized"), 0)
        yield phases.over("first_update", "learning")
        trainer.step(rollouts, scores, Objective("renormalized"), 1)
        taken = phases.over("update", "learning")
        speed = tokens_of(rollouts) / taken["update_s"]
        student = memory.decoder(opened.setup.student, opened.setup)
        yield {
            **taken,
            "tokens_per_s": speed,
            **share_of_arithmetic(6 * student.parameters * speed),
        }
        trainer.publish(2)
        yield phases.over("publish")
    engine.close()


# --- the configuration that people use: roles that take turns on one GPU, and a sweep ---
#
# SGLang samples, torch or verl scores and trains, as `workers.members` opens them for a trial: the KV
# cache is given back after each call, and the learner's state lies in page-locked memory while others
# work.


def turns(size: Scale, trainer_name: TrainerName, **changed: bool) -> Numbers:
    """Two steps of a trial; between them the teacher and the learner work on rows of the paper's
    full length. The paper's pair moves its learner and its cache, unless `resident` forbids it.
    """
    trial = spec(size, "sglang", trainer_name, **changed)
    engines = Engines(trial)
    full, made_up_scores = made_up(replace(size, rows=2, new_tokens=size.longest))
    with Phases(job_of(trial)) as phases:
        trainer = engines.trainer()
        yield phases.over("trainer_start")
        sampler = engines.sampler(engines.sampler_name(Student()))
        sampler.start(teacher=False)
        yield phases.over("sampler_start")
        scorer = engines.scorer()
        for step in range(2):
            sampler.load(trainer.publish(step))
            yield phases.over(f"weights_{step}")
            sampled = concatenate(
                list(sampler.sample(requests(size), Student(), Limits(size.new_tokens, TOP_K)))
            )
            yield phases.over(f"sampling_{step}", "decoding")
            scorer.start()  # as in a trial: with the first step that it scores
            scores = scorer.score(sampled)
            yield phases.over(f"scoring_{step}", "scoring")
            trainer.step(sampled, scores, OBJECTIVE, 2 * step)
            yield phases.over(f"learning_{step}", "learning")
            if step == 0:
                scorer.score(full)
                yield phases.over("scoring_full_length", "scoring")
                trainer.step(full, made_up_scores, OBJECTIVE, 1)
                yield phases.over("learning_full_length", "learning")
        sampler.load(trainer.publish(2))
        yield {"canary_nats": apart(sampler, trainer, trial.setup), **free("at_rest")}
    engines.close()


def switch(size: Scale) -> Numbers:
    """The end of a warmup: the engine of the student alone takes the place of the one that blends.

    The GPU's free memory is measured before and after, with the learner's state on the host.
    """
    trial = spec(size, "sglang", "torch")
    engines = Engines(trial)
    trainer = engines.trainer()
    sampler = engines.sampler(engines.sampler_name(TrustRegion(EPSILON)))
    with Phases(job_of(trial)) as phases:
        yield free("before_blending")
        sampler.start(teacher=True)
        yield phases.over("blending_start") | free("blending_at_rest")
        sampler.load(trainer.publish(0))
        yield phases.over("weights")
        phases_of: dict[Situation, Behavior] = {
            "blending": TrustRegion(EPSILON),
            "decoding": Student(),
        }
        for name, behavior in phases_of.items():
            # The first call without the teacher is the one that changes the engine.
            list(sampler.sample(requests(size)[:2], behavior, Limits(2, TOP_K)))
            yield phases.over(f"{name}_first_call")
            list(sampler.sample(requests(size), behavior, Limits(size.new_tokens, TOP_K)))
            yield phases.over(f"{name}_sampling", name)
            yield {
                f"{name}_canary_nats": apart(sampler, trainer, trial.setup),
                **free(f"{name}_at_rest"),
            }
    engines.close()
    yield free("after")


def evaluator(size: Scale) -> Numbers:
    """An evaluator with as many responses waiting as a slice has, its engine sized for the
    protocol's lengths.
    """
    trial = spec(size, "sglang", "torch")
    opened = Job(trial.setup, trial.runtime, trial.student, trains=False)
    engine = open_engine("sglang", opened)
    waiting = replace(size, rows=size.waiting)
    with Phases(opened) as phases:
        sampler = engine.sampler()
        sampler.start(teacher=False)
        yield phases.over("start")
        sampled = concatenate(
            list(sampler.sample(requests(waiting), Student(), Limits(size.evaluated)))
        )
        taken = phases.over("slice", "evaluating")
    speed = int(sampled.lengths_B.sum()) / taken["slice_s"]
    yield {**taken, "responses": float(len(sampled.requests)), "tokens_per_s": speed}
    yield share_of_bound(speed, opened, size.waiting, size.prompt + size.evaluated / 2)
    engine.close()


def trial(size: Scale, trainer: TrainerName) -> Numbers:
    """A sweep through Ray, from `trb submit` to its table: a trial that blends once and then does
    not, evaluated.

    Its run directories stay beside the models where it fails.
    """
    folder = size.models.parent / f"trial_{trainer}"
    shutil.rmtree(folder, ignore_errors=True)
    experiment, runs = write_trial(folder, size, trainer), folder / "runs"
    with Phases() as phases:
        submit = [*TRB, "submit", str(experiment), "--runs", str(runs)]
        done = subprocess.run(submit, cwd=ROOT, env=environment(), check=False)
        taken = phases.over("trial")
    for log in sorted(runs.glob("*/log.txt")):
        print(f"--- {log.parent.name}\n{log.read_text(encoding='utf-8')}", flush=True)
    yield phase_seconds(runs)
    if done.returncode:
        raise RuntimeError(f"trb submit ended with exit status {done.returncode}: {runs}")
    yield taken
    shutil.rmtree(folder)


def write_trial(folder: Path, size: Scale, trainer: TrainerName) -> Path:
    """The experiment of `trial`, with its setup beside it: sums, read as bytes, by the pair of
    random weights.
    """
    setup = {
        "title": "Random weights",
        "vocabulary": {"size": size.vocabulary, "valid": BYTES},
        "student": {"path": str(size.models / "student"), "eos": BYTES - 3},
        "teacher": {"path": str(size.models / "teacher"), "eos": BYTES - 2},
        "prompt": {"kind": "plain"},
        "data": {"source": "arithmetic"},
        "training": {
            "steps": 3,
            "prompts_per_step": 8,
            "max_prompt_tokens": 64,
            "max_response_tokens": size.trial_tokens,
            "checkpoint_every": 3,
        },
        "evaluation": {
            "max_response_tokens": size.trial_tokens,
            "rescore": False,
            "benchmarks": {"arithmetic_short": {"n": 1, "limit": 16}},
        },
    }
    gpus = int(torch.cuda.is_available())
    experiment = {
        "setups": ["random"],
        "methods": {"trust_region": {"epsilon0": [EPSILON], "K": [1]}},
        "engine": {
            "sampler": "sglang",
            "trainer": trainer,
            "dtype": "bfloat16" if gpus else "float32",
        },
        "runtime": {"placement": {"gpus": gpus}},
    }
    (folder / "setups").mkdir(parents=True)
    (folder / "setups" / "random.yaml").write_text(yaml.safe_dump(setup), encoding="utf-8")
    path = folder / "proof.yaml"
    path.write_text(yaml.safe_dump(experiment), encoding="utf-8")
    return path


def phase_seconds(runs: Path) -> dict[str, float]:
    """Seconds of each phase of the trial's steps and of its evaluations, as the sweep has noted
    them.
    """
    seconds: dict[str, float] = defaultdict(float)
    for file in runs.glob("*/timing.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "seconds" in row:
                seconds[f"{row.get('role', row['phase'])}_s"] += row["seconds"]
            for lap in (ROLLOUT, SCORE, LEARN):
                if lap in row:
                    seconds[f"{lap}_s"] += row[lap]
    return dict(seconds)


def free(when: str) -> dict[str, float]:
    """GiB of the GPU that no process uses; nothing without one."""
    return {f"{when}_free_gib": free_gib()} if torch.cuda.is_available() else {}


def apart(sampler: Sampler, trainer: Trainer, setup: Setup) -> float:
    """Nats between what sampler and learner make of the canary, on the average of its ids."""
    ids = canary_ids(setup)
    pairs = list(zip(sampler.log_probs(ids), trainer.log_probs(ids), strict=True))
    return sum(abs(here - there) for here, there in pairs) / len(pairs)


# --- inside the torch engine: prices of blending, the loss, GPU against CPU; and the tests ---


def prices(size: Scale) -> Numbers:
    """The cost of blending beside vanilla with scoring, and beside lockstep."""
    yield ratios(size.workload())


def loss(
    size: Scale, step_of: Callable[[CausalModel, Rollouts, TeacherScores], Callable[[], object]]
) -> Numbers:
    """Tokens/s and peak memory of an update on one long sequence."""
    prompt = size.sequence // 8
    batch = made_up(replace(size, rows=1, prompt=prompt, new_tokens=size.sequence - prompt))
    student = size.model("student")
    student.model.float()
    step = step_of(student, *batch)
    step()
    with Phases() as phases:
        step()
        taken = phases.over("update")
    yield {**taken, "tokens_per_s": size.sequence / taken["update_s"]}


def gathered_step(
    student: CausalModel, rollouts: Rollouts, scores: TeacherScores
) -> Callable[[], object]:
    """Our trainer's update: logits of the support alone."""
    micro_batch_tokens = len(rollouts.requests[0].prompt_ids) + int(rollouts.lengths_B[0])
    updating = TorchTrainer(student, Optimizer(), micro_batch_tokens, torch.bfloat16, steps=400)
    return lambda: updating.step(rollouts, scores, Objective("renormalized"), 0)


def plain_step(
    student: CausalModel, rollouts: Rollouts, scores: TeacherScores
) -> Callable[[], object]:
    """All logits at once, the update the same."""
    student.model.train()
    device = student.device
    ids = torch.tensor([[*rollouts.requests[0].prompt_ids, *rollouts.response(0)]], device=device)
    support, log_q = rollouts.support_ids_BTK[0].to(device), scores.support_BTK[0].to(device)
    adamw = torch.optim.AdamW(student.model.parameters(), lr=1e-5)

    def step() -> None:
        adamw.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            logits = student.model(input_ids=ids, use_cache=False).logits[0, -len(support) - 1 : -1]
        log_p = logits.float().log_softmax(-1).gather(-1, support)
        log_p, target = (each - each.logsumexp(-1, keepdim=True) for each in (log_p, log_q))
        (log_p.exp() * (log_p - target)).sum(-1).mean().backward()
        torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
        adamw.step()

    return step


def agreement(size: Scale) -> Numbers:
    """GPU against CPU in float32: tokens of the same keys, and the solver's law and
    log-probabilities.
    """
    device = best_device()
    tokens = [_small_pair(place).blended(5).tokens_BT for place in (device, CPU)]
    width = min(each.shape[1] for each in tokens)
    same = (tokens[0][:, :width] == tokens[1][:, :width]).all(-1)
    yield {"agreeing_rows": float(same.double().mean())}
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(8, size.vocabulary, generator=generator)).log_softmax(-1)
    log_q = (log_p + torch.randn(8, size.vocabulary, generator=generator)).log_softmax(-1)
    there = laws.solve(log_p.to(device), log_q.to(device), EPSILON)
    here = laws.solve(log_p, log_q, EPSILON)
    yield {
        "solver_log_mu_difference": float((there.log_mu.cpu() - here.log_mu).abs().max()),
        "solver_beta_difference": float((there.beta.cpu() - here.beta).abs().max()),
    }
    newton = once(lambda: laws.solve(log_p.to(device), log_q.to(device), EPSILON))
    yield {
        "solver_vs_bisection": newton
        / once(lambda: bisection(log_p.to(device), log_q.to(device), 40))
    }


def _small_pair(device: torch.device) -> Workload:
    """The same float32 weights on any device."""
    student = random_model(SMALL, SMALL_VOCABULARY, "student", 0)
    teacher = random_model(SMALL, SMALL_VOCABULARY, "teacher", 1)
    for causal in (student, teacher):
        causal.model.set_attn_implementation(attention_for(device))
        causal.model.to(device)
    return Workload(student, teacher, 64, 8, 64, 1)


def tests_of(size: Scale, engine: str) -> Numbers:
    """How many of an engine's tests pass on this device. RuntimeError if any fails; the log names
    it.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-o", "addopts=", "-v", "--durations=5", f"--junitxml={report}"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *size.tests[engine]], check=False)
        outcomes = counts(report)
    yield outcomes
    if outcomes["tests_failed"]:
        raise RuntimeError(f"{outcomes['tests_failed']:.0f} tests failed")


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


PARTS: dict[str, Callable[[Scale], Numbers]] = {
    "models": models,
    "sglang_start": first_start,
    "sglang_plain": lambda size: plain(size, "sglang"),
    "sglang_blended_3": lambda size: blended(size, "sglang", 3),
    "sglang_blended_5": lambda size: blended(size, "sglang", 5),
    "sglang_blended_8": lambda size: blended(size, "sglang", 8),
    "sglang_swap": lambda size: swap(size, "sglang"),
    "torch_learning": lambda size: learning(size, "torch"),
    "torch_learning_again": lambda size: learning(size, "torch", checkpointing=True),
    "verl_learning": lambda size: learning(size, "verl"),
    "torch_scoring": lambda size: scoring(size, "torch"),
    "verl_scoring": lambda size: scoring(size, "verl"),
    "torch_plain": lambda size: plain(size, "torch"),
    "torch_blended_5": lambda size: blended(size, "torch", 5),
    "switch": switch,
    "turns_torch": lambda size: turns(size, "torch"),
    "turns_staying": lambda size: turns(size, "torch", resident=True),
    "turns_verl": lambda size: turns(size, "verl"),
    "evaluator": evaluator,
    "trial_torch": lambda size: trial(size, "torch"),
    "trial_verl": lambda size: trial(size, "verl"),
    "agreement": agreement,
    "loss_gathered": lambda size: loss(size, gathered_step),
    "loss_plain": lambda size: loss(size, plain_step),
    "tests_sglang": lambda size: tests_of(size, "sglang"),
    "tests_trainers": lambda size: tests_of(size, "trainers"),
    "tests_torch": lambda size: tests_of(size, "torch"),
    "torch_prices": prices,
}
