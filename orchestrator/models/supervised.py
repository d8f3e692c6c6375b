"""Supervised updates of a model that a recipe makes, in one process on CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from orchestrator.config import Recipe

REPORT_EVERY = 20
WARMUP_UPDATES = 20
IGNORED = -100  # cross_entropy's label of positions without loss

Example = tuple[list[int], list[int]]  # ids without loss, ids with loss
Report = Callable[[dict[str, Any]], None]


def train(
    model: PreTrainedModel,
    draw: Callable[[], list[Example]],
    recipe: Recipe,
    eos: int,
    report: Report,
    warmup: int = WARMUP_UPDATES,
    report_every: int = REPORT_EVERY,
) -> None:
    """Train on the examples that `draw` gives for each update, by their loss on responses only.

    The learning rate rises over `warmup` updates and falls along a cosine to zero. `report` gets
    the progress, `{"update": 20, "of": 600, "loss": 1.2}`.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(0.9, 0.95), weight_decay=0.01
    )
    model.train()
    for update in range(recipe.updates):
        for group in optimizer.param_groups:
            share = min(1.0, (update + 1) / warmup)
            cosine = 1 + math.cos(math.pi * update / recipe.updates)
            group["lr"] = recipe.lr * share * 0.5 * cosine
        examples = sorted(draw(), key=lambda example: len(example[0]) + len(example[1]))
        total = sum(len(response) for _, response in examples)
        optimizer.zero_grad()
        half = len(examples) // 2
        # Two passes, shorter examples first, to compute little padding.
        loss = 0.0
        for part in (examples[:half], examples[half:]):
            if part:
                loss += _backward(model, part, total, eos)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % report_every == 0 or update + 1 == recipe.updates:
            report({"update": update + 1, "of": recipe.updates, "loss": loss})


def _backward(model: PreTrainedModel, examples: list[Example], total: int, eos: int) -> float:
    """Add these examples' gradient of a mean over `total` response tokens; returns their loss."""
    sequences: list[torch.Tensor] = []
    responses: list[torch.Tensor] = []  # with the prompt's positions ignored
    for prompt, response in examples:
        sequences.append(torch.tensor(prompt + response))
        responses.append(torch.tensor([IGNORED] * len(prompt) + response))
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad(sequences, batch_first=True, padding_value=eos)
    labels = pad(responses, batch_first=True, padding_value=IGNORED)
    logits = model(input_ids=ids[:, :-1]).logits
    summed = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )
    (summed / total).backward()
    return float(summed.detach()) / total
