"""Checks the engine that samples: its start, its memory between calls, the end of a warmup."""

from __future__ import annotations

import time

import torch
from safetensors.torch import load_file

from orchestrator.engines.budget import Situation
from orchestrator.engines.catalog import ENGINES, open_engine, require, sampler_of
from orchestrator.engines.device import card_gib, granted
from orchestrator.engines.interface import Limits, Sampler, WeightsRef
from orchestrator.engines.memory import sequences_per_step
from orchestrator.planning.calibrated import CalibrationRow, Card, gpu_of_card
from orchestrator.planning.costs import BLENDED, PLAIN, SetupCosts
from orchestrator.planning.rates import Gpu
from orchestrator.policy.spec import Behavior, Student, TrustRegion
from orchestrator.rollouts import Rollouts, concatenate
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.canary import SAMPLER, write_canary, write_drawn
from orchestrator.selftest.pair import requests
from orchestrator.selftest.runner import Found
from orchestrator.selftest.usage import (
    Gauge,
    UsageWatch,
    came_back,
    gauge_here,
    measured_beside,
    seconds_until,
    who_holds,
)
from orchestrator.workers.canary import canary_ids
from orchestrator.workers.members import support_size

NEW_TOKENS = 32
# Of the batch that tells the speed: tokens of its prompts, of a short and of a longer call.
PROMPT_TOKENS, SHORT_TOKENS, LONG_TOKENS = 512, 8, 136
SMALL_ROWS, SMALL_TOKENS = 4, 24  # of that batch without a GPU
EPSILON = 0.01  # nats; the middle of the paper's budgets
# Above the use before, since other programs may take some. More counts as not given back.
SLACK_GIB = 0.5
BACK_WITHIN_S = 60.0
LEAST_CACHE_GIB = 1.0  # of a GPU's KV cache: less than that is noise


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
    if drawn is not None:
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
    }
    if ENGINES[name].pooled:  # its own processes end, so the system takes their memory back
        between = came_back(changing.readings, before + SLACK_GIB)
        if between is None:
            words += "; the second engine came up before the memory of the first one was back"
            return Found("fail", words, numbers=numbers)
        numbers["between_s"] = between
        words += f"; all memory back {between:.1f} s after blending"
    return _closed(
        bench, "blending", words, numbers | {"after_gib": after}, gauge, before, blending
    )


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
) -> tuple[dict[str, float], Rollouts | None]:
    """Tokens a second of as many responses as a step has at once, and these responses.

    The tokens between a short and a longer call are counted, so that prompts and starts are not.
    Without such tokens there is no speed.
    """
    budget = granted(bench.job(), situation)
    rows, longest = SMALL_ROWS, SMALL_TOKENS
    if budget is not None:
        rows = min(budget.requests, sequences_per_step(bench.setup.training))
        longest = min(LONG_TOKENS, bench.setup.training.max_response_tokens)
    asked = requests(bench, (min(PROMPT_TOKENS, bench.setup.training.max_prompt_tokens),) * rows)
    seconds: list[float] = []
    counts: list[int] = []
    drawn = None
    # The first call compiles kernels and captures graphs.
    for tokens in (SHORT_TOKENS, SHORT_TOKENS, longest):
        began = time.perf_counter()
        parts = list(student.sample(asked, behavior, Limits(tokens, support_size(bench.setup))))
        seconds.append(time.perf_counter() - began)
        drawn = concatenate(parts)
        counts.append(int(drawn.lengths_B.sum()))
    taken, between = seconds[2] - seconds[1], counts[2] - counts[1]
    if taken <= 0 or between <= 0:
        return {}, drawn
    speed = {"rows": float(rows), "decoded_per_s": between / taken}
    card = card_gib()
    if card is not None:
        context = len(asked[0].prompt_ids) + SHORT_TOKENS
        gpu = gpu_of_card(Card(torch.cuda.get_device_name(), card))
        speed["planned_per_s"] = _planned(bench, situation, gpu, rows, context, between / rows)
    return speed, drawn


def _planned(
    bench: Bench, situation: Situation, gpu: Gpu, rows: int, context: int, tokens: float
) -> float:
    """Tokens a second that a plan assumes for the same work before any measurement."""
    engine = bench.setup.engine
    row = CalibrationRow(
        setup=bench.name,
        shapes={},
        sampler=engine.sampler,
        trainer=engine.trainer,
        random=bool(bench.made),
        key=BLENDED if situation == "blending" else PLAIN,
        seconds=0.0,
        day="",
        responses=rows,
        prompt=context,
        tokens=tokens,
    )
    name = sampler_of(engine.sampler, teacher_decodes=situation == "blending")
    return rows * tokens / row.planned_seconds(SetupCosts(bench.setup, bench.runtime, name, gpu))


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
    asked = requests(bench, (longest, max(1, longest // 4)))
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
        words += (
            f"; {gauge() - before:.1f} GiB have not come back {BACK_WITHIN_S:.0f} s after its end"
        )
        return Found(
            "fail",
            words,
            "the processes that are left (nvidia-smi), and then this check again",
            numbers,
        )
    words += f"; all memory back {back:.1f} s after its end"
    return measured_beside(
        words, numbers | {"all_back_s": back}, watch, granted(bench.job(), situation)
    )
