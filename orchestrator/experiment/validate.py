"""Ranges and agreements that types cannot express; each failure is one line."""

from __future__ import annotations

import math
import re
from pathlib import Path

from orchestrator import config
from orchestrator.config import Experiment, Model, Placement, Probe, Recipe, Setup, Training
from orchestrator.data.benchmarks import check_source
from orchestrator.errors import UserError, one_of, refuse
from orchestrator.experiment.grids import check_seeds
from orchestrator.experiment.methods import METHODS

_READ_OFF = "; only of a model in a local folder can it be left out"
MOST = 10**9  # of anything that is counted
MOST_STEPS = 10**6
MOST_SAMPLES = 10**5  # of one problem
MOST_TRIALS = 10_000  # of one method


def check_experiment(experiment: Experiment) -> None:
    """Raise UserError on the first thing in `experiment` that cannot be run as written."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,79}", experiment.name):
        raise refuse("name", experiment.name, "at most 80 lower-case letters, digits, '.', '_' and '-'")
    if not experiment.methods:
        raise refuse("methods", {}, f"at least one of {', '.join(METHODS)}")
    check_seeds("seeds", experiment.seeds)
    for method, grid in experiment.methods.items():
        trials = math.prod(map(len, grid.values())) * len(experiment.seeds_of(method))
        if trials > MOST_TRIALS:
            raise UserError(f"methods.{method}: {trials} trials — at most {MOST_TRIALS} of one method")
    _check_runtime(experiment)
    for name, setup in experiment.setups.items():
        check_setup(name, setup)
        for method, grid in experiment.methods.items():
            METHODS[method].fits(grid, name, setup)


def check_setup(name: str, setup: Setup) -> None:
    """Raise UserError on the first thing in `setup` that contradicts itself."""
    _check_model(f"{name}.student", setup.student, setup)
    _check_model(f"{name}.teacher", setup.teacher, setup)
    _check_vocabulary(name, setup)
    one_of("prompt.kind", setup.prompt.kind, config.PROMPT_KINDS)
    one_of("data.source", setup.data.source, config.DATA_SOURCES)
    one_of("engine.rollout", setup.engine.rollout, config.ENGINES)
    one_of("engine.learner", setup.engine.learner, config.ENGINES)
    one_of("engine.dtype", setup.engine.dtype, config.DTYPES)
    _check_training(setup.training)
    _check_evaluation(setup)
    _check_probe(setup.probe)
    if setup.training.top_k > setup.vocabulary.valid:
        raise refuse("training.top_k", setup.training.top_k, f"≤ the vocabulary of {setup.vocabulary.valid} ids")


def check_name(key: str, name: str) -> None:
    """UserError unless a setup's or a benchmark's name can be a part of a file name, and of nothing but one."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}", name):
        raise refuse(key, name, "a name of at most 80 letters, digits, '.', '_' and '-', not starting with '.'")


def _check_runtime(experiment: Experiment) -> None:
    runtime = experiment.runtime
    if runtime.rollout_batch is not None:
        _at_least("runtime.rollout_batch", runtime.rollout_batch, 1)
    if runtime.draft_length is not None:
        _at_least("runtime.draft_length", runtime.draft_length, 1)
    _at_least("runtime.micro_batch_tokens", runtime.micro_batch_tokens, 1)
    _at_least("runtime.rollout_texts", runtime.rollout_texts, 0)
    _positive("runtime.worker_timeout_s", runtime.worker_timeout_s)
    _positive("runtime.grader_deadline_s", runtime.grader_deadline_s)
    one_of("runtime.keep", runtime.keep, config.KEPT)
    one_of("runtime.wandb", runtime.wandb, config.WANDB_MODES)
    for key, placement in [("runtime.placement", runtime.placement), *_method_placements(experiment)]:
        _check_placement(key, placement)


def _method_placements(experiment: Experiment) -> list[tuple[str, Placement]]:
    return [(f"methods.{name}.placement", value) for name, value in experiment.placements.items()]


def _check_placement(key: str, placement: Placement) -> None:
    one_of(f"{key}.mode", placement.mode, config.PLACEMENTS)
    if placement.gpus not in (0, 1):
        raise refuse(f"{key}.gpus", placement.gpus, "0 or 1: a trial of the torch engines runs on one GPU")
    _positive(f"{key}.cpus", placement.cpus)
    if placement.mode == "split" and placement.gpus:
        raise refuse(f"{key}.mode", "split", "inline or colocated: with one GPU the roles share it")


def _check_model(key: str, model: Model, setup: Setup) -> None:
    if (model.path is None) == (model.recipe is None):
        raise UserError(f"{key}: exactly one of path (with revision) and recipe")
    if model.path is not None and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", model.revision or ""):
        raise refuse(f"{key}.revision", model.revision, _revision_expected(model.path))
    if model.recipe is not None:
        one_of(f"{key.rsplit('.', 1)[0]}.tokenizer", setup.tokenizer, config.TOKENIZERS)
        _check_recipe(f"{key}.recipe", model.recipe)
    for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn"):
        if getattr(model.shape, field) < 1:
            raise refuse(f"{key}.shape.{field}", getattr(model.shape, field), f"≥ 1{_READ_OFF}")


def _revision_expected(path: str) -> str:
    missing = path.startswith((".", "/", "~")) and not Path(path).expanduser().is_dir()
    where = f"; there is no folder {path}" if missing else ""
    return f"a commit (40 hex digits) or a sha256 of the files (64){where}"


def _check_recipe(key: str, recipe: Recipe) -> None:
    _at_least(f"{key}.updates", recipe.updates, 0, MOST_STEPS)
    _at_least(f"{key}.batch", recipe.batch, 1)
    _positive(f"{key}.lr", recipe.lr)
    for field in ("wrong_step", "off_task", "no_reasoning"):
        if not 0 <= getattr(recipe, field) <= 1:
            raise refuse(f"{key}.{field}", getattr(recipe, field), "a share between 0 and 1")


def _check_vocabulary(name: str, setup: Setup) -> None:
    vocabulary = setup.vocabulary
    if vocabulary.size < 2:
        raise refuse(f"{name}.vocabulary.size", vocabulary.size, f"≥ 2{_READ_OFF}")
    if not 1 <= vocabulary.valid <= vocabulary.size:
        raise refuse(f"{name}.vocabulary.valid", vocabulary.valid, f"between 1 and size {vocabulary.size}")
    for role in ("student", "teacher"):
        eos = getattr(setup, role).eos
        if not 0 <= eos < vocabulary.valid:
            raise refuse(f"{name}.{role}.eos", eos, f"an id between 0 and {vocabulary.valid - 1}")


def _check_training(training: Training) -> None:
    one_of("training.objective", training.objective, config.OBJECTIVES)
    _at_least("training.steps", training.steps, 1, MOST_STEPS)
    for field in ("prompts_per_step", "samples_per_prompt", "max_prompt_tokens", "max_response_tokens",
                  "top_k", "checkpoint_every"):  # fmt: skip
        _at_least(f"training.{field}", getattr(training, field), 1)
    optimizer, sft = training.optimizer, training.sft
    for field in ("lr", "eps", "clip"):
        _positive(f"training.optimizer.{field}", getattr(optimizer, field))
    for field in ("beta1", "beta2"):
        value = getattr(optimizer, field)
        if not 0 <= value < 1:
            raise refuse(f"training.optimizer.{field}", value, "≥ 0 and < 1")
    _at_least("training.optimizer.weight_decay", optimizer.weight_decay, 0)
    _at_least("training.optimizer.warmup_steps", optimizer.warmup_steps, 0)
    one_of("training.optimizer.decay", optimizer.decay, config.DECAYS)
    _at_least("training.sft.updates", sft.updates, 1, MOST_STEPS)
    one_of("training.sft.after", sft.after, config.SFT_AFTER)
    if not sft.checkpoints or any(not 1 <= k <= sft.updates for k in sft.checkpoints):
        raise refuse("training.sft.checkpoints", sft.checkpoints, f"updates between 1 and {sft.updates}")


def _check_evaluation(setup: Setup) -> None:
    evaluation = setup.evaluation
    _at_least("evaluation.max_response_tokens", evaluation.max_response_tokens, 1)
    _positive("evaluation.temperature", evaluation.temperature)
    one_of("evaluation.budget", evaluation.budget, config.BUDGETS)
    if not 0 < evaluation.error < 1:
        raise refuse("evaluation.error", evaluation.error, "a probability > 0 and < 1")
    if not evaluation.benchmarks:
        raise refuse("evaluation.benchmarks", {}, "at least one benchmark")
    for key, run in evaluation.benchmarks.items():
        if run is not None:
            _at_least(f"evaluation.benchmarks.{key}.n", run.n, 1, MOST_SAMPLES)
            if run.limit is not None:
                _at_least(f"evaluation.benchmarks.{key}.limit", run.limit, 1)
            check_source(key, run)
            check_name("evaluation.benchmarks", key)


def _check_probe(probe: Probe) -> None:
    for field in ("prompts", "prefixes", "continuations"):
        _at_least(f"probe.{field}", getattr(probe, field), 1)
    if not probe.lengths or any(not (0 < t < 1 or (t >= 1 and t % 1 == 0)) for t in probe.lengths):
        raise refuse("probe.lengths", probe.lengths, "whole numbers of tokens, or shares between 0 and 1")
    if probe.epsilon is not None:
        _positive("probe.epsilon", probe.epsilon)


def _at_least(key: str, value: float, low: float, high: float = MOST) -> None:
    """Beyond `high` nothing could be meant, and counting up to it would take hours."""
    if not value >= low:
        raise refuse(key, value, f"must be ≥ {low:g}")
    if value > high:
        raise refuse(key, value, f"must be ≤ {high:,.0f}")


def _positive(key: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise refuse(key, value, "> 0 and finite")
