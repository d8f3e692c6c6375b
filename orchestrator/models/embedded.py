"""Makes embedded models deterministically, instead of loading them from a hub.

`models.making` runs `build` in a child process.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from orchestrator.config import Recipe, Shape
from orchestrator.data import arithmetic
from orchestrator.models.random_weights import qwen3_config, write_random_model
from orchestrator.models.supervised import Example, Report, train

STUDENT_EOS, TEACHER_EOS = "<|endoftext|>", "<|im_end|>"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


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
