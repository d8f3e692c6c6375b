"""Makes real models: those that a Python package holds as GGUF, and students cut out of a teacher.

A GGUF file has whole numbers with a scale for each block of them. Reading it multiplies and adds
single float32 numbers, so that every CPU comes to the same weights, and a recipe pins their sha256.
The supervised updates after it differ from one kind of CPU to another in their last digits.
`models.making` runs `build` in a child process.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from orchestrator.config import Model, Recipe, Setup, Sft
from orchestrator.data import word_problems
from orchestrator.data.prompts import render
from orchestrator.data.training_set import load_training_set
from orchestrator.errors import refuse
from orchestrator.models.made_models import WEIGHTS
from orchestrator.models.supervised import Example, Report, train
from orchestrator.records.files import file_sha256

THREADS = 1  # the last digits of sums depend on it; more would wait on a busy machine
WARMUP_UPDATES = 5
REPORT_EVERY = 2  # updates of several seconds each
ANSWERED_AT_ONCE = 64  # prompts


def build(spec: dict[str, Any], folder: Path, report: Report = lambda _: None) -> None:
    """Make the model of `spec["role"]` in `spec["setup"]`, and its tokenizer, in `folder`.

    `spec["source"]` is the GGUF file, or the teacher's folder; `report` gets the progress of the
    updates, see `supervised.train`.
    """
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    setup: Setup = spec["setup"]
    maker: Model = getattr(setup, spec["role"])
    recipe = maker.recipe
    assert recipe is not None
    torch.manual_seed(recipe.seed)
    source = Path(spec["source"])
    if recipe.package is not None:
        model, tokenizer = _unpacked(source, maker, folder)
        draw = _solved(setup, maker, tokenizer)
    else:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source)
        draw = _answered(setup, recipe, model, tokenizer, spec["data_dir"])
        model = without_layers(model, recipe.without_layers)
        model.config.eos_token_id = maker.eos
    if recipe.updates:
        train(model, draw, recipe, maker.closing_id, report, WARMUP_UPDATES, REPORT_EVERY)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unpacked(
    file: Path, maker: Model, folder: Path
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of a GGUF file in float32, and its tokenizer; `folder` is left with the weights.

    Raises UserError if they are not those that the recipe pins.
    """
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # The file's own word for it is lost on the way.
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(maker.closing_id)
    model.save_pretrained(folder)
    sha256, pinned = file_sha256(folder / WEIGHTS), maker.recipe and maker.recipe.weights
    if pinned not in (None, sha256):
        raise refuse("recipe.weights", pinned, f"{sha256}, which {file.name} becomes here")
    return model, tokenizer


def without_layers(model: PreTrainedModel, left_out: list[int]) -> PreTrainedModel:
    """A copy of the model without some of its layers, which are counted from 0."""
    config = deepcopy(model.config)
    kept = [number for number in range(config.num_hidden_layers) if number not in left_out]
    if getattr(config, "layer_types", None) is not None:  # one for each layer
        config.layer_types = [config.layer_types[number] for number in kept]
    config.num_hidden_layers = len(kept)
    places = {str(number): str(place) for place, number in enumerate(kept)}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        # The first number in a name is that of its layer: `model.layers.12.mlp.up_proj.weight`.
        before, number, after = re.fullmatch(r"(.*?)(?:\.(\d+)(\..*))?", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
        if number is None:
            tensors[name] = tensor
        elif number in places:
            tensors[f"{before}.{places[number]}{after}"] = tensor
    cut = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    cut.load_state_dict(tensors)
    return cut


def _solved(
    setup: Setup, maker: Model, tokenizer: PreTrainedTokenizerBase
) -> Callable[[], list[Example]]:
    """Worked solutions of word problems, asked as the setup asks."""
    recipe = maker.recipe
    assert recipe is not None
    rng = random.Random(f"word-problems-recipe-{recipe.seed}")

    def draw() -> list[Example]:
        examples: list[Example] = []
        for _ in range(recipe.batch):
            story = word_problems.draw_training(rng)
            prompt = render(story.text, setup.prompt, tokenizer)
            solution = tokenizer.encode(story.solution, add_special_tokens=False)
            examples.append((list(prompt), [*solution, maker.closing_id]))
        return examples

    return draw


def _answered(
    setup: Setup,
    recipe: Recipe,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data_dir: str | None,
) -> Callable[[], list[Example]]:
    """The teacher's answers to the first training prompts, sampled now: the student is cut out of
    the same layers afterwards.
    """
    if not recipe.updates:
        return list
    wanted = replace(
        setup.training, steps=recipe.updates, prompts_per_step=recipe.batch, sft=Sft(1, [1])
    )
    prompts = load_training_set(replace(setup, training=wanted), data_dir, tokenizer).prompts
    examples: list[Example] = []
    for start in range(0, len(prompts), ANSWERED_AT_ONCE):
        asked = [list(prompt.ids) for prompt in prompts[start : start + ANSWERED_AT_ONCE]]
        examples += _answers(teacher, asked, setup)
    stream = cycle(examples)  # fewer than asked for where generated prompts are too long
    return lambda: list(islice(stream, recipe.batch))


def _answers(teacher: PreTrainedModel, prompts: list[list[int]], setup: Setup) -> list[Example]:
    """Prompts with answers sampled at T = 1; one that is cut off ends without the stop token."""
    stops, width = setup.teacher.stop_ids, max(map(len, prompts))
    ids = torch.full((len(prompts), width), stops[0])
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):  # padded on the left: all answers begin at `width`
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    decoding = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=setup.training.max_response_tokens,
        eos_token_id=list(stops),
        pad_token_id=stops[0],
    )
    with torch.no_grad():
        sampled = teacher.generate(  # pyright: ignore[reportCallIssue]
            input_ids=ids, attention_mask=mask, generation_config=decoding
        )
    examples: list[Example] = []
    for prompt, row in zip(prompts, sampled[:, width:].tolist(), strict=True):
        answer: list[int] = []
        for token in row:
            if token in stops:  # the student's own takes the place of the teacher's
                answer.append(setup.student.closing_id)
                break
            answer.append(token)
        examples.append((prompt, answer))
    return examples
