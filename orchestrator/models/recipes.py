"""Makes models by their recipes: those of the embedded worlds, and real ones.

`models.make` runs `build_embedded` or `build_real` in a child process. Real models are those that a
Python package holds as GGUF, and students cut out of a teacher. Both kinds are trained by `train`,
in one process on CPUs.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from orchestrator.config import Setup, Sft
from orchestrator.data import arithmetic, word_problems
from orchestrator.data.prompts import render
from orchestrator.data.training_set import load_training_set
from orchestrator.engines.memory import BYTES
from orchestrator.errors import refuse
from orchestrator.models.locate import WEIGHTS
from orchestrator.pair import Model, Recipe, Shape
from orchestrator.records.files import file_sha256
from orchestrator.rules import Dtype

# --- models of the embedded worlds: the same bytes on every run ---


STUDENT_EOS, TEACHER_EOS = "<|endoftext|>", "<|im_end|>"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def build_embedded(spec: dict[str, Any], folder: Path, report: StepReport = lambda _: None) -> None:
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
            rng = random.Random(f"arithmetic-recipe-{recipe.seed}")
            end = eos if isinstance(eos, int) else eos[0]
            train(model, lambda: _examples(tokenizer, recipe, rng, end), recipe, end, report)
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


def _examples(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe, rng: random.Random, eos: int
) -> list[Example]:
    """The examples of one update."""
    examples: list[Example] = []
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
    return examples


# --- Qwen3 models with random weights in any shape, to measure memory and speed without a hub ---
#
# The disk alone limits the speed, also for eight billion parameters. POOL normal numbers are drawn
# once, and each matrix is cut from them at its own offset. POOL is a prime, so that no two rows of a
# matrix are equal.


POOL = 16_777_213  # the largest prime below 2²⁴
SHARD_BYTES = 2**31  # of one file, which is in memory while it is written
SPREAD = 0.02  # standard deviation of the weights, as Qwen3 is initialised


def write_random_model(
    folder: Path,
    shape: Shape,
    vocabulary: int,
    eos: int | list[int],
    dtype: Dtype,
    seed: int = 0,
    spread: float = SPREAD,
    one_file: bool = False,
) -> None:
    """Write a model in Hugging Face layout, without a tokenizer, into a new folder.

    The same arguments give the same bytes. Norms are one; other weights are normal with standard
    deviation `spread`. With `one_file` all weights go into `model.safetensors` and are in memory
    together.
    """
    folder.mkdir(parents=True)
    config = qwen3_config(shape, vocabulary, eos)
    config.architectures = [Qwen3ForCausalLM.__name__]
    config.dtype = dtype
    config.save_pretrained(folder)
    # On the meta device shapes take no memory. Tied embeddings are among the names once.
    with torch.device("meta"):
        parameters = dict(Qwen3ForCausalLM(config).named_parameters())
    generator = torch.Generator().manual_seed(seed)
    pool = (spread * torch.randn(POOL, generator=generator)).to(getattr(torch, dtype))
    shards = [list(parameters)] if one_file else _shards(parameters, BYTES[dtype])
    files: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors"
        if len(shards) > 1:
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors: dict[str, Tensor] = {}
        for name in names:
            size = parameters[name].shape
            drawn = _cut(pool, size.numel(), generator).view(size)
            tensors[name] = torch.ones_like(drawn) if len(size) == 1 else drawn
            files[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        total = sum(parameter.numel() for parameter in parameters.values()) * BYTES[dtype]
        index = {"metadata": {"total_size": total}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2), encoding="utf-8"
        )


def qwen3_config(shape: Shape, vocabulary: int, eos: int | list[int]) -> Qwen3Config:
    """The configuration of a Qwen3 decoder."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32768,
        eos_token_id=eos,
        pad_token_id=eos if isinstance(eos, int) else eos[0],
    )


def _shards(parameters: dict[str, torch.nn.Parameter], value_bytes: int) -> list[list[str]]:
    """Tensor names by file, in the model's order; a tensor over SHARD_BYTES has its own file."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, parameter in parameters.items():
        size = parameter.numel() * value_bytes
        if shards[-1] and filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _cut(pool: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Cut `count` numbers from the pool at a random offset, starting over where it ends."""
    start = int(torch.randint(len(pool), (), generator=generator))
    cut = torch.empty(count, dtype=pool.dtype)
    filled = 0
    while filled < count:
        part = pool[start : start + count - filled]
        cut[filled : filled + len(part)] = part
        filled += len(part)
        start = 0
    return cut


# --- real models: of a package's GGUF file, or cut out of a teacher ---
#
# A GGUF file has whole numbers with a scale for each block of them. Reading it multiplies and adds
# single float32 numbers, so that every CPU comes to the same weights, and a recipe pins their
# sha256. The supervised updates after it differ from one kind of CPU to another in their last
# digits.


THREADS = 1  # the last digits of sums depend on it; more would wait on a busy machine
FEW_UPDATES = {"warmup": 5, "report_every": 2}  # of several seconds each
ANSWERED_AT_ONCE = 64  # prompts


def build_real(spec: dict[str, Any], folder: Path, report: StepReport = lambda _: None) -> None:
    """Make the model of `spec["role"]` in `spec["setup"]`, and its tokenizer, in `folder`.

    `spec["source"]` is the GGUF file, or the teacher's folder; `report` gets the progress of the
    updates, see `train`.
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
        train(model, draw, recipe, maker.closing_id, report, **FEW_UPDATES)
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


# --- supervised updates of a model that a recipe makes ---


REPORT_EVERY = 20
WARMUP_UPDATES = 20
IGNORED = -100  # cross_entropy's label of positions without loss

Example = tuple[list[int], list[int]]  # ids without loss, ids with loss
StepReport = Callable[[dict[str, Any]], None]


def train(
    model: PreTrainedModel,
    draw: Callable[[], list[Example]],
    recipe: Recipe,
    eos: int,
    report: StepReport,
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
