"""Checks the pair: its models exist, and an update at full length works."""

from __future__ import annotations

import shutil
import statistics
import time
from dataclasses import replace

import torch

from orchestrator.engines import memory
from orchestrator.engines.catalog import open_engine, require
from orchestrator.engines.device import granted, pass_tokens
from orchestrator.engines.memory import GIB
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Objective
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.canary import LEARNER, read_drawn, write_canary
from orchestrator.selftest.runner import Found
from orchestrator.selftest.usage import UsageWatch, gauge_here, measured_beside, who_holds
from orchestrator.workers.canary import canary_ids
from orchestrator.workers.members import support_size

# Parts of the budget that sampler and scorer keep while the student learns.
STAYING = ("student", "teacher")
UPDATES = 3  # the first sets up buffers and kernels for the others


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
        return Found(
            "fail", found, "--runs on a larger disk, or the real models in this machine's cache"
        )
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
    read_drawn(bench, trainer.log_probs)
    rollouts, scores = full_length(bench, pass_tokens(declared, "learning"))
    tokens = int(rollouts.lengths_B.sum())
    tokens += sum(len(request.prompt_ids) for request in rollouts.requests)
    taken: list[float] = []
    row: dict[str, float] = {}
    with UsageWatch(gauge) as watch:
        for step in range(UPDATES):
            began = time.monotonic()
            row = trainer.step(rollouts, scores, Objective(setup.training.objective), step)
            taken.append(time.monotonic() - began)
        began = time.monotonic()
        trainer.publish(UPDATES)
        published = time.monotonic() - began
    who, processes = who_holds(budget)
    engine.close()
    del held
    seconds = statistics.median(taken[1:])
    rows = len(rollouts.requests)
    words = (
        f"{rows} × {tokens // rows:,} tokens in {seconds:.2g} s ({tokens / seconds:,.0f} tokens/s)"
    )
    words += f"; weights out in {published:.2g} s{who}"
    numbers = {"seconds": seconds, "tokens_per_s": tokens / seconds, "first_s": taken[0]}
    numbers |= {"publish_s": published, **processes}
    if not all(torch.isfinite(torch.tensor(value)) for value in row.values()):
        return Found("fail", f"{words}; its numbers are not finite: {row}", numbers=numbers)
    return measured_beside(words, numbers, watch, budget)


def full_length(bench: Bench, tokens: int) -> tuple[Rollouts, TeacherScores]:
    """Make up rollouts of full length with a teacher's scores, one or as many as `tokens` hold."""
    setup = bench.setup
    generator = torch.Generator().manual_seed(0)
    prompt = setup.training.max_prompt_tokens
    response = setup.training.max_response_tokens
    rows = max(1, tokens // (prompt + response))
    shape = (rows, response)
    size = support_size(setup)
    asked = requests(bench, (prompt,) * rows)
    # Ids of a support differ, so each support is a range of ids, which wraps around at the end.
    first = torch.randint(setup.vocabulary.valid, (*shape, 1), generator=generator)
    support = (first + torch.arange(size)) % setup.vocabulary.valid
    nothing = torch.zeros(shape)
    rollouts = Rollouts(
        requests=asked,
        tokens_BT=support[..., 0],
        lengths_B=torch.full((rows,), response),
        truncated_B=torch.ones(rows, dtype=torch.bool),
        student_BT=nothing,
        behavior_BT=nothing,
        support_ids_BTK=support,
    )
    log_q = torch.randn(*shape, size, generator=generator).log_softmax(-1)
    return rollouts, TeacherScores(
        support_BTK=log_q, token_BT=nothing, entropy_BT=nothing, overlap_BT=nothing
    )


def requests(bench: Bench, lengths: tuple[int, ...]) -> list[Request]:
    """Make requests of ordinary ids, with prompts of these lengths."""
    setup = bench.setup
    ordinary = canary_ids(setup)
    asked = []
    for row, length in enumerate(lengths):
        ids = tuple(ordinary[(row + position) % len(ordinary)] for position in range(length))
        asked.append(Request(ids, SequenceKey(Purpose.EVALUATION, 0, 0, row, 0)))
    return asked
