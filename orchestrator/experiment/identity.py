"""Identities of units and evaluations: the configuration keys whose digest is their id.

Each key is named here; keys of models, and keys that came later, in `models.identity`. `units` puts
the readable part of an id, setup, method and knobs, before the digest.

Same identity ⇒ same training, so a key belongs here if it can change the result of training (or,
for an evaluation, the samples and their grades). A new key of a configuration class changes no id
until it is named. Name it under `models.identity.LATER`, and it counts only if it differs from its
default, so that earlier ids stay. Any other change to an identity gives every unit another id: bump
SCHEMA and say so in CHANGELOG.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config import EngineConfig, Setup
from orchestrator.data.benchmarks import benchmark_of
from orchestrator.grading.gold import MATH, version_of
from orchestrator.models.identity import PROMPT, VOCABULARY, Models, data_identity, part, stops

SCHEMA = 2

TRAINING = ("prompts_per_step", "samples_per_prompt", "max_prompt_tokens", "max_response_tokens")
# `decay` is missing here since it came later: it counts by `models.identity.LATER`.
OPTIMIZER = ("lr", "beta1", "beta2", "eps", "weight_decay", "clip", "warmup_steps")
OBJECTIVE = ("objective", "top_k", "steps", "checkpoint_every")
SFT = ("updates", "checkpoints")
# Keys that count for a trial and not for the supervised stage before it.
OF_TRIALS = tuple(f"training.{key}" for key in (*OBJECTIVE, "sft.after"))
DECODING = ("max_response_tokens", "temperature", "seed")
PROBE = ("prompts", "prefixes", "continuations")


def pair_identity(setup: Setup, models: Models) -> dict[str, Any]:
    """The keys that fix both models, their prompts and the problems."""
    return {
        "student": models["student"],
        "teacher": models["teacher"],
        "eos": stops(setup),
        "vocabulary": part(setup.vocabulary, VOCABULARY),
        "prompt": part(setup.prompt, PROMPT),
        "data": data_identity(setup.data),
    }


def base_identity(setup: Setup, models: Models) -> dict[str, Any]:
    """Identity of the untrained student."""
    return {
        "kind": "base_eval",
        "student": models["student"],
        "eos": stops(setup),
        "vocabulary": part(setup.vocabulary, VOCABULARY),
        "engine": setup.engine.sampler,
        "dtype": setup.engine.dtype,
        "schema": SCHEMA,
    } | part(setup.engine, ())


def sft_identity(
    setup: Setup, models: Models, seed: int, adapters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Identity of the supervised stage.

    A stage that trains adapters has their knobs in its identity. The checkpoint from which a trial
    starts is no part of it: the trial's own knobs choose that.
    """
    identity = _training_identity("sft", setup, models, seed)
    identity |= {"sft": part(setup.training.sft, SFT)}
    return identity | {"adapters": dict(adapters)} if adapters else identity


def trial_identity(
    setup: Setup, models: Models, method: str, knobs: dict[str, Any], seed: int, stage: str | None
) -> dict[str, Any]:
    """Identity of a distillation run; `stage` is the id of the supervised stage before it."""
    identity = _training_identity("trial", setup, models, seed) | part(setup.training, OBJECTIVE)
    identity |= {"method": method, "knobs": knobs}
    if stage is not None:
        identity |= {"sft": stage, "after_sft": setup.training.sft.after}
    return identity


def training_keys(setup: Setup, supervised: bool) -> dict[str, Any]:
    """The keys of a setup, but for its models, on which trials depend; also their stage if any."""
    keys = trial_identity(setup, {"student": {}, "teacher": {}}, "", {}, 0, None)
    return keys | ({"sft": part(setup.training.sft, (*SFT, "after"))} if supervised else {})


def evaluation_identity(setup: Setup, benchmark: str, grader: str | None = None) -> dict[str, Any]:
    """Identity of an evaluation: the benchmark's content, prompt, decoding and grader.

    The number of samples is not in it: more samples extend a record, they do not replace it.
    `grader` is a version of the benchmark's grader; None takes the present one.
    """
    run = setup.evaluation.benchmarks[benchmark]
    version = grader or version_of(run.grader)
    return {
        "benchmark": benchmark_of(benchmark, run).identity(run) | {"limit": run.limit},
        "prompt": part(setup.prompt, PROMPT),
        "decoding": part(setup.evaluation, DECODING),
        "grader": version if run.grader == MATH else {"judge": run.grader, "version": version},
        "schema": SCHEMA,
    }


def _training_identity(kind: str, setup: Setup, models: Models, seed: int) -> dict[str, Any]:
    """The keys that every kind of training depends on."""
    training = part(setup.training, TRAINING) | {
        "optimizer": part(setup.training.optimizer, OPTIMIZER)
    }
    identity = pair_identity(setup, models) | {
        "kind": kind,
        "seed": seed,
        "training": training,
        "engine": _engine_identity(setup.engine),
        "schema": SCHEMA,
    }
    # Here and not under `models.identity.LATER`: models made from a setup's prompts have no seed.
    return identity | {"order": "per seed"} if setup.training.order_per_seed else identity


def _engine_identity(engine: EngineConfig) -> dict[str, Any]:
    """The engines that sample and train, under the key names of the first ids."""
    names = {"rollout": engine.sampler, "learner": engine.trainer, "dtype": engine.dtype}
    return names | part(engine, ())
