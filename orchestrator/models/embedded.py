"""Makes embedded models deterministically, instead of loading them from a hub.

Each model is made by a child process (`liveness.children`), so that student and teacher are made in
parallel. Its only call is the specification of the model; messages tell the progress.
"""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from orchestrator.config import Recipe, Shape
from orchestrator.data import arithmetic
from orchestrator.errors import UserError
from orchestrator.liveness.children import Parent, serve
from orchestrator.models import made_models
from orchestrator.models.random_weights import qwen3_config, write_random_model
from orchestrator.records.files import give_usual_mode

STUDENT_EOS, TEACHER_EOS = "<|endoftext|>", "<|im_end|>"
REPORT_EVERY = 20
WARMUP_UPDATES = 20
IGNORED = -100  # cross_entropy's label of positions without loss
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


Report = Callable[[dict[str, Any]], None]


def build(spec: dict[str, Any], folder: Path, report: Report = lambda _: None) -> None:
    """Make the model and tokenizer of a `spec` (`identity.model_identity`) in `folder`.

    `report` gets the progress, `{"update": 20, "of": 600, "loss": 1.2}`.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recipe = Recipe(**spec["recipe"])
    torch.manual_seed(recipe.seed)
    tokenizer = make_tokenizer(spec["tokenizer"])
    shape, vocabulary, eos = Shape(**spec["shape"]), spec["vocabulary"]["size"], spec["eos"]
    if recipe.dtype == "bfloat16":  # billions of parameters
        write_random_model(folder, shape, vocabulary, eos, recipe.dtype, recipe.seed, one_file=True)
    else:
        model = Qwen3ForCausalLM(qwen3_config(shape, vocabulary, eos))
        if recipe.updates:
            _train(model, tokenizer, recipe, eos if isinstance(eos, int) else eos[0], report)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """`characters`: one token per character of the arithmetic world; `bytes`: one per UTF-8 byte.

    After the alphabet follow the student's EOS, the teacher's, and for bytes ChatML's opening.
    """
    alphabet = list(arithmetic.CHARACTERS)
    if kind != "characters":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=alphabet[0]))
    pieces = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if kind == "characters":
        tokenizer.pre_tokenizer = pieces
        tokenizer.decoder = decoders.Fuse()
    else:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([byte_level, pieces])
        tokenizer.decoder = decoders.ByteLevel()
    special = [STUDENT_EOS, TEACHER_EOS]
    if kind == "bytes":
        special.append("<|im_start|>")
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STUDENT_EOS,
        pad_token=STUDENT_EOS,
        chat_template=CHATML if kind == "bytes" else None,
    )


def _train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    eos: int,
    report: Report,
) -> None:
    """Train on arithmetic solutions: loss on responses only, warmup, then cosine decay to zero."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(0.9, 0.95), weight_decay=0.01
    )
    rng = random.Random(f"arithmetic-recipe-{recipe.seed}")
    model.train()
    for update in range(recipe.updates):
        for group in optimizer.param_groups:
            warmup = min(1.0, (update + 1) / WARMUP_UPDATES)
            cosine = 1 + math.cos(math.pi * update / recipe.updates)
            group["lr"] = recipe.lr * warmup * 0.5 * cosine
        examples = _examples(tokenizer, recipe, rng, eos)
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
        if (update + 1) % REPORT_EVERY == 0 or update + 1 == recipe.updates:
            report({"update": update + 1, "of": recipe.updates, "loss": loss})


def _examples(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe, rng: random.Random, eos: int
) -> list[tuple[list[int], list[int]]]:
    """The examples of one update, (ids without loss, ids with loss), sorted by length."""
    examples: list[tuple[list[int], list[int]]] = []
    mistaken = recipe.recovers + recipe.derails
    for _ in range(recipe.batch):
        terms = arithmetic.draw_terms(rng, recipe.longest)
        given = arithmetic.question(terms) + "\n"
        # Recipes without mistakes take no random number here, so that shipped models keep their bytes.
        if mistaken and rng.random() < mistaken:
            start, response = arithmetic.after_a_mistake(terms, recipe, rng)
            given += start
        else:
            response = arithmetic.corrupted_solution(terms, recipe, rng)
        examples.append((tokenizer.encode(given), [*tokenizer.encode(response), eos]))
    return sorted(examples, key=lambda example: len(example[0]) + len(example[1]))


def _backward(
    model: Qwen3ForCausalLM, examples: list[tuple[list[int], list[int]]], total: int, eos: int
) -> float:
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


def make(spec: dict[str, Any], parent: Parent) -> None:
    """Build in a scratch folder, record its files, and rename: a kill leaves no half-made model."""
    target = Path(spec["folder"])
    scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    build(spec, scratch, parent.send)
    give_usual_mode(scratch)
    try:
        made_models.record(target, files_in=scratch)
    except UserError:
        shutil.rmtree(scratch)
        raise
    os.replace(scratch, target)


if __name__ == "__main__":
    serve(make)
