"""Parts of `make gpu-proof` in the configuration that people use: roles that take turns on one GPU,
and a sweep.

SGLang samples, torch or verl scores and trains, as `workers.members` opens them for a trial: the KV
cache is given back after each call, and the learner's state lies in page-locked memory while others
work.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from benchmarks.decoding import EPSILON, TOP_K
from benchmarks.gpu_engines import Numbers
from benchmarks.gpu_jobs import made_up, requests, spec
from benchmarks.gpu_phases import Phases, share_of_bound
from benchmarks.gpu_scale import Scale
from orchestrator.config import Setup, TrainerName
from orchestrator.engines.budget import Situation
from orchestrator.engines.catalog import open_engine
from orchestrator.engines.device import free_gib
from orchestrator.engines.interface import Job, Limits, Sampler, Trainer
from orchestrator.policy.spec import Behavior, Objective, Student, TrustRegion
from orchestrator.records.log import LEARN, ROLLOUT, SCORE
from orchestrator.rollouts import concatenate
from orchestrator.workers.canary import canary_ids
from orchestrator.workers.members import Engines, job_of
from tests.sweeps import ROOT, TRB, environment

OBJECTIVE = Objective("renormalized")
BYTES = 259  # ids of the tokenizer of bytes


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


def turn_parts() -> dict[str, Callable[[Scale], Numbers]]:
    """Name → part, of the real configuration."""
    return {
        "switch": switch,
        "turns_torch": lambda size: turns(size, "torch"),
        "turns_staying": lambda size: turns(size, "torch", resident=True),
        "turns_verl": lambda size: turns(size, "verl"),
        "evaluator": evaluator,
        "trial_torch": lambda size: trial(size, "torch"),
        "trial_verl": lambda size: trial(size, "verl"),
    }
