"""Checks the engines on a bench's pair: its models, the sampler, an update, and that both agree."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file

from orchestrator.checks import experiment
from orchestrator.checks.bench import Bench
from orchestrator.checks.check import Found
from orchestrator.checks.experiment import CheckedSetup
from orchestrator.checks.measures import (
    Gauge,
    UsageWatch,
    gauge_here,
    measured_beside,
    requests,
    rollouts,
    seconds_until,
    who_holds,
)
from orchestrator.checks.timing import row_of
from orchestrator.engines import memory
from orchestrator.engines.budget import Situation
from orchestrator.engines.catalog import ENGINES, open_engine, require, sampler_of
from orchestrator.engines.device import card_gib, granted, pass_tokens
from orchestrator.engines.interface import Limits, Sampler, Trainer, WeightsRef
from orchestrator.engines.memory import GIB, sequences_per_step
from orchestrator.planning.calibrated import Card, gpu_of_card
from orchestrator.planning.costs import BLENDED, PLAIN, SetupCosts
from orchestrator.policy.spec import Behavior, Objective, Student, TrustRegion
from orchestrator.rollouts import Rollouts, concatenate
from orchestrator.workers.canary import MOST_ON_ODD_IDS, Apart, apart, canary_ids
from orchestrator.workers.members import support_size

# Parts of the budget that sampler and scorer keep while the student learns.
STAYING = ("student", "teacher")
UPDATES = 3  # the first sets up buffers and kernels for the others

NEW_TOKENS = 32
# Of the batch that tells the speed: tokens of its prompts, of a short and of a longer call.
PROMPT_TOKENS, SHORT_TOKENS, LONG_TOKENS = 512, 8, 136
SMALL_ROWS, SMALL_TOKENS = 4, 24  # of that batch without a GPU
EPSILON = 0.01  # nats; the middle of the paper's budgets
# Above the use before, since other programs may take some. More counts as not given back.
SLACK_GIB = 0.5
BACK_WITHIN_S = 60.0
LEAST_CACHE_GIB = 1.0  # of a GPU's KV cache: less than that is noise

LEARNER, SAMPLER = "learner", "sampler"
DRAWN, APART = "drawn.json", "drawn_apart.json"
DRAWN_ROWS = 8  # responses of the sampler that the trainer reads
# Measured on random weights of SmolLM2-135M's shape: see `docs/engines.md`.
MOST_ON_RANDOM_WEIGHTS = {"float32": Apart(1e-3, 1e-3), "bfloat16": Apart(0.05, 0.05)}


# --- the models, and how they are asked ---


def models(bench: Bench) -> Found:
    """Check the folders of student and teacher; write missing models with random weights."""
    from orchestrator.models.recipes import write_random_model

    words: list[str] = []
    wanted = 0.0
    for owner in bench.made:
        wanted += memory.decoder(bench.model(owner), bench.setup).weight_bytes / GIB
    free = shutil.disk_usage(bench.folder).free / GIB
    if wanted > free:
        found = f"{wanted:.1f} GiB of random weights, and {free:.1f} GiB free in {bench.folder}"
        remedy = "--runs on a larger disk, or the real models in this machine's cache"
        return Found("fail", found, remedy)
    for owner, folder in bench.folders.items():
        model = bench.model(owner)
        if owner not in bench.made:
            words.append(f"{owner}: {folder}")
            continue
        began = time.monotonic()
        seed = 1 if owner == "student" else 2
        dtype = bench.setup.engine.dtype
        write_random_model(folder, model.shape, bench.setup.vocabulary.size, model.eos, dtype, seed)
        gib = memory.decoder(model, bench.setup).weight_bytes / GIB
        taken = time.monotonic() - began
        words.append(
            f"{owner}: random weights, {model.shape.layers} layers, {gib:.2g} GiB in {taken:.1f} s"
        )
    return Found("ok", "; ".join(words))


def _with_own_models(check: Callable[[CheckedSetup], Found], bench: Bench) -> Found:
    """Make a check of the setup's own models; random weights have no template, and end by chance."""
    if bench.made:
        stands = f"random weights stand for {' and '.join(bench.made)} in this check"
        return Found("skipped", stands)
    return check(bench.of)


template = partial(_with_own_models, experiment.template)  # the cost of the prompt to the teacher
endings = partial(_with_own_models, experiment.endings)  # the share of answers that end


# --- the sampler: its start, its memory between calls, its speed ---


def sampler(bench: Bench) -> Found:
    """Check the plain engine by two calls of two prompts, with weights loaded between them.

    The engine must give its cache back after each call, and all memory at its end. A batch of the
    sweep's size tells its speed, and the trainer reads some of its responses later (`canary`).
    """
    name = bench.setup.engine.sampler
    require("engine.sampler", name)
    engine = open_engine(name, bench.job())
    gauge = gauge_here()
    before = gauge()
    began = time.monotonic()
    student = engine.sampler()
    student.start(teacher=False)
    numbers = {"start_s": time.monotonic() - began}
    given_back: list[float] = []
    with UsageWatch(gauge) as whole:
        for call in range(2):
            began = time.monotonic()
            _two_prompts(student, bench, Student())
            given_back.append(whole.peak_since(began) - gauge())
            if call == 0:
                numbers["load_s"] = _load(student, bench)
        speed, drawn = _decode(student, bench, Student(), "decoding")
    write_drawn(bench, drawn)
    write_canary(bench, SAMPLER, student.log_probs(canary_ids(bench.setup)))
    who, processes = who_holds(granted(bench.job(), "decoding"))
    engine.close()
    del student, engine
    numbers |= speed | processes
    words = f"{name} up in {numbers['start_s']:.0f} s; two prompts, weights put in, two prompts"
    words += f"; weights in within {numbers['load_s']:.2g} s{_in_words(speed)}{who}"
    # On CPUs the engine only marks the cache as given back.
    if torch.cuda.is_available() and ENGINES[name].pooled:
        numbers["given_back_gib"] = min(given_back)
        words += f"; {min(given_back):.1f} GiB given back after each two"
        if min(given_back) < LEAST_CACHE_GIB:
            change = "torch_memory_saver, which `make setup-engines TORCH=cuda` installs"
            return Found("fail", words, change, numbers)
    return _closed(bench, "decoding", words, numbers, gauge, before, whole)


def switch(bench: Bench) -> Found:
    """Check the end of a warmup: memory before and while blending, between, and with one model."""
    if not bench.blends:
        return Found("skipped", "no method of this experiment asks the teacher while it decodes")
    name = sampler_of(bench.setup.engine.sampler, teacher_decodes=True)
    require("engine.sampler", name)
    engine = open_engine(name, bench.job())
    gauge = gauge_here()
    before = gauge()
    student = engine.sampler()
    student.start(teacher=True)
    with UsageWatch(gauge) as blending:
        _two_prompts(student, bench, TrustRegion(EPSILON))
        speed, _ = _decode(student, bench, TrustRegion(EPSILON), "blending")
    who, processes = who_holds(granted(bench.job(), "blending"))
    with UsageWatch(gauge) as changing:
        _two_prompts(student, bench, Student())
    after = gauge()
    engine.close()
    del student, engine
    words = (
        f"{before:.1f} GiB used before, {blending.peak_gib:.1f} while blending, "
        f"{changing.lowest_gib:.1f} between, {after:.1f} with the student alone"
        f"{_in_words(speed)}{who}"
    )
    numbers = {
        **speed,
        **processes,
        "before_gib": before,
        "blending_gib": blending.peak_gib,
        "between_gib": changing.lowest_gib,
        "after_gib": after,
    }
    if ENGINES[name].pooled:  # its own processes end, so the system takes their memory back
        between = changing.seconds_to(before + SLACK_GIB)
        if between is None:
            words += "; the second engine came up before the memory of the first one was back"
            return Found("fail", words, numbers=numbers)
        numbers["between_s"] = between
        words += f"; all memory back {between:.1f} s after blending"
    return _closed(bench, "blending", words, numbers, gauge, before, blending)


def _load(student: Sampler, bench: Bench) -> float:
    """Put the student's weights in as a step does, from tensors; seconds."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(bench.folders["student"].glob("*.safetensors")):
        tensors |= load_file(file)
    began = time.monotonic()
    student.load(WeightsRef(1, tensors))
    return time.monotonic() - began


def _decode(
    student: Sampler, bench: Bench, behavior: Behavior, situation: Situation
) -> tuple[dict[str, float], Rollouts]:
    """Tokens a second of as many responses as a step has at once, and these responses.

    The tokens between a short and a longer call are counted, so that prompts and starts are not.
    Without such tokens there is no speed.
    """
    setup = bench.setup
    budget = granted(bench.job(), situation)
    rows, longest = SMALL_ROWS, SMALL_TOKENS
    if budget is not None:
        rows = min(budget.requests, sequences_per_step(setup.training))
        longest = min(LONG_TOKENS, setup.training.max_response_tokens)
    prompt = min(PROMPT_TOKENS, setup.training.max_prompt_tokens)
    asked = requests(setup, [prompt] * rows)

    def call(tokens: int) -> tuple[float, Rollouts]:
        began = time.perf_counter()
        parts = list(student.sample(asked, behavior, Limits(tokens, support_size(setup))))
        return time.perf_counter() - began, concatenate(parts)

    call(SHORT_TOKENS)  # compiles kernels and captures graphs
    short_s, short = call(SHORT_TOKENS)
    long_s, drawn = call(longest)
    taken, between = long_s - short_s, int(drawn.lengths_B.sum() - short.lengths_B.sum())
    if taken <= 0 or between <= 0:
        return {}, drawn
    speed = {"rows": float(rows), "decoded_per_s": between / taken}
    if card_gib() is not None:
        prompt += SHORT_TOKENS
        speed["planned_per_s"] = _planned(bench, situation, rows, prompt, between / rows)
    return speed, drawn


def _planned(
    bench: Bench, situation: Situation, responses: int, prompt: int, tokens: float
) -> float:
    """Tokens a second that a plan assumes for the same work before any measurement."""
    blends = situation == "blending"
    gpu = gpu_of_card(Card(torch.cuda.get_device_name(), card_gib() or 0.0))
    name = sampler_of(bench.setup.engine.sampler, teacher_decodes=blends)
    costs = SetupCosts(bench.setup, bench.runtime, name, gpu)
    key = BLENDED if blends else PLAIN
    row = row_of(bench, key, responses=responses, prompt=prompt, tokens=tokens)
    return responses * tokens / row.planned_seconds(costs)


def _in_words(speed: dict[str, float]) -> str:
    """A measured speed in words after a sentence; nothing without one."""
    if not speed:
        return ""
    words = f"; {speed['decoded_per_s']:,.0f} tokens/s at {speed['rows']:.0f} rows"
    if "planned_per_s" in speed:
        words += f", where the plan assumes {speed['planned_per_s']:,.0f}"
    return words


def _two_prompts(student: Sampler, bench: Bench, behavior: Behavior) -> None:
    """Continue a long and a short prompt by some tokens. Raises RuntimeError for unsound answers."""
    training = bench.setup.training
    longest = training.max_prompt_tokens
    limits = Limits(min(NEW_TOKENS, training.max_response_tokens), support_size(bench.setup))
    asked = requests(bench.setup, [longest, max(1, longest // 4)])
    sampled = concatenate(list(student.sample(asked, behavior, limits)))
    log_probs = torch.cat(
        [sampled.student_BT[sampled.mask_BT], sampled.behavior_BT[sampled.mask_BT]]
    )
    if len(sampled.requests) != len(asked) or not bool(torch.isfinite(log_probs).all()):
        raise RuntimeError(
            f"{len(sampled.requests)} answers to {len(asked)} prompts, "
            f"log-probabilities {log_probs}"
        )


def _closed(
    bench: Bench,
    situation: Situation,
    words: str,
    numbers: dict[str, float],
    gauge: Gauge,
    before: float,
    watch: UsageWatch,
) -> Found:
    """The finding about an engine that has just been closed: all its memory must come back."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    back = seconds_until(gauge, before + SLACK_GIB, BACK_WITHIN_S)
    if back is None:
        held = gauge() - before
        words += f"; {held:.1f} GiB have not come back {BACK_WITHIN_S:.0f} s after its end"
        remedy = "the processes that are left (nvidia-smi), and then this check again"
        return Found("fail", words, remedy, numbers)
    words += f"; all memory back {back:.1f} s after its end"
    numbers = numbers | {"all_back_s": back}
    return measured_beside(words, numbers, watch, granted(bench.job(), situation))


# --- an update at full length ---


def learner(bench: Bench) -> Found:
    """Time updates on a micro-batch of full length, beside as much memory as other roles hold."""
    setup = bench.setup
    require("engine.trainer", setup.engine.trainer)
    engine = open_engine(setup.engine.trainer, bench.job())
    gauge = gauge_here()
    declared = replace(bench.job(), setup=bench.declared)  # with the whole teacher
    budget = granted(declared, "learning")
    held = None  # in place of the memory of sampler and scorer
    if budget is not None:
        others = sum(budget.parts.get(name, 0.0) for name in STAYING)
        held = torch.empty(int(others * GIB), dtype=torch.uint8, device="cuda")
    trainer = engine.trainer()
    write_canary(bench, LEARNER, trainer.log_probs(canary_ids(setup)))
    read_drawn(bench, trainer)
    training = setup.training
    length = training.max_prompt_tokens + training.max_response_tokens
    rows = max(1, pass_tokens(declared, "learning") // length)
    batch = rollouts(setup, training.max_prompt_tokens, [training.max_response_tokens] * rows)
    taken: list[float] = []
    row: dict[str, float] = {}
    with UsageWatch(gauge) as watch:
        for step in range(UPDATES):
            began = time.monotonic()
            row = trainer.step(*batch, Objective(training.objective), step)
            taken.append(time.monotonic() - began)
        began = time.monotonic()
        trainer.publish(UPDATES)
        published = time.monotonic() - began
    who, processes = who_holds(budget)
    engine.close()
    del held
    seconds = statistics.median(taken[1:])
    speed = rows * length / seconds
    words = f"{rows} × {length:,} tokens in {seconds:.2g} s ({speed:,.0f} tokens/s)"
    words += f"; weights out in {published:.2g} s{who}"
    numbers = {"seconds": seconds, "tokens_per_s": speed, "first_s": taken[0]}
    numbers |= {"publish_s": published, **processes}
    if not all(math.isfinite(value) for value in row.values()):
        return Found("fail", f"{words}; its numbers are not finite: {row}", numbers=numbers)
    return measured_beside(words, numbers, watch, budget)


# --- trainer and sampler in the same weights: log p of the same ids, and of drawn tokens ---


def _note(bench: Bench, name: str, content: object) -> None:
    """Leave a file in the bench's folder for a later check."""
    (bench.folder / name).write_text(json.dumps(content), encoding="utf-8")


def _noted(bench: Bench, name: str) -> Any:
    """The content that an earlier check left; None if it did not come so far."""
    path = bench.folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def write_canary(bench: Bench, who: str, log_probs: Sequence[float]) -> None:
    """Write the canary of `who`: its log p of the odd ids in the student's first weights."""
    _note(bench, f"canary_of_{who}.json", list(log_probs))


def write_drawn(bench: Bench, drawn: Rollouts) -> None:
    """Write some of the sampler's responses with its log p of their tokens."""
    rows: list[dict[str, list[float]]] = []
    for row, request in enumerate(drawn.requests[:DRAWN_ROWS]):
        log_probs = drawn.student_BT[row, : int(drawn.lengths_B[row])].tolist()
        rows.append({"ids": [*request.prompt_ids, *drawn.response(row)], "log_probs": log_probs})
    _note(bench, DRAWN, rows)


def read_drawn(bench: Bench, trainer: Trainer) -> None:
    """Write how far the trainer's log p of the drawn tokens are from the sampler's, in nats."""
    apart_by: list[float] = []
    drawn = _noted(bench, DRAWN)
    if drawn is None:
        return
    for row in drawn:
        here = trainer.log_probs(row["ids"])[-len(row["log_probs"]) :]
        apart_by += [its - ours for its, ours in zip(here, row["log_probs"], strict=True)]
    _note(bench, APART, apart_by)


def divergence(bench: Bench) -> float | None:
    """KL(sampler‖trainer) of one policy, in nats a token, from the drawn tokens; None without them.

    The mean of exp(d) − 1 − d over the differences d of the two log p: its expectation is the
    divergence, and each of its terms is positive (http://joschu.net/blog/kl-approx.html).
    """
    differences = _noted(bench, APART)
    if differences is None:
        return None
    return sum(math.expm1(each) - each for each in differences) / max(1, len(differences))


def same_weights(bench: Bench) -> Found:
    """Check that both canaries agree, within a bound for what stands for the student here."""
    read: dict[str, list[float]] = {}
    for who in (LEARNER, SAMPLER):
        noted = _noted(bench, f"canary_of_{who}.json")
        if noted is None:
            return Found("skipped", f"the {who} did not come far enough to say anything of the ids")
        read[who] = noted
    dtype = bench.setup.engine.dtype
    # Random weights give almost equal probabilities, which rounding moves little.
    bounds = MOST_ON_RANDOM_WEIGHTS if "student" in bench.made else MOST_ON_ODD_IDS
    spread = apart([read[LEARNER]], [read[SAMPLER]]).spread
    allowed = bounds[dtype].spread
    words = (
        f"{spread:.2g} nats apart on {len(read[LEARNER]) + 1} ids, {allowed:g} allowed in {dtype}"
    )
    numbers = {"nats": spread, "allowed": allowed}
    kl = divergence(bench)
    if kl is not None:
        words += f"; KL of the sampler's law from the trainer's {kl:.2g} nats a token"
        numbers["kl"] = kl
    return Found("ok" if spread <= allowed else "fail", words, numbers=numbers)
