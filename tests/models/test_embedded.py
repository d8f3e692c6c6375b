"""Embedded models: the same recipe gives the same bytes; tokenizers lose nothing."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from orchestrator.config import PromptTemplate
from orchestrator.data import arithmetic
from orchestrator.data.prompts import render, response_text
from orchestrator.liveness.children import Child, Result
from orchestrator.models import recipes
from orchestrator.models.locate import NEEDED, WEIGHTS, recorded
from orchestrator.models.recipes import STUDENT_EOS, TEACHER_EOS, build_embedded, make_tokenizer
from orchestrator.pair import Recipe, Shape
from tests.sweeps import ROOT

SETUPS = ROOT / "experiments" / "setups"
SETUP_OF = {"characters": "arithmetic", "bytes": "math-smoke"}
TEXTS = (
    "",
    " ",
    "\n",
    "a",
    "  two  spaces , and . stops ! do n't ? ",
    "6+9=15;15+1=16 \\boxed{16}",
    "tabs\tand\r\nlines\n\n\x00\x7f",
    "Ελληνικά: αβγ ΑΒΓ ᾧ",
    "e\u0301 is not \u00e9, \ufb01 is not fi",
    "🙂👩‍👩‍👧 🇬🇷",
    "日本語 עברית العربية",
    "\u200b\u2028\ufeff\ufffd\U0010ffff",
    "Ġ Ċ ĉ",
)


def spec(tokenizer: str, updates: int, **overrides: Any) -> dict[str, Any]:
    """A very small model in the shape that `build_embedded` takes."""
    vocabulary, eos = {"characters": (56, 45), "bytes": (264, 256)}[tokenizer]
    shape = Shape(layers=1, hidden=16, heads=2, kv_heads=1, head_dim=8, ffn=32, tied=True)
    recipe = Recipe(
        updates=updates, batch=4, seed=3, wrong_step=0.3, off_task=0.2, no_reasoning=0.2
    )
    return {
        "recipe": asdict(recipe) | overrides,
        "shape": asdict(shape),
        "tokenizer": tokenizer,
        "vocabulary": {"size": vocabulary, "valid": vocabulary - 5},
        "eos": eos,
    }


@pytest.fixture(autouse=True)
def _torch_settings() -> Iterator[None]:
    """`build_embedded` is made for a process of its own: undo what it sets."""
    with torch.random.fork_rng():
        yield
    torch.use_deterministic_algorithms(False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_two_builds_are_byte_identical(tmp_path: Path, tokenizer: str) -> None:
    for name in ("first", "second"):
        torch.manual_seed(len(name))
        build_embedded(spec(tokenizer, updates=3), tmp_path / name)
    assert "model.safetensors" in contents(tmp_path / "first")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_a_build_in_its_own_process_gives_the_same_bytes_and_reports(tmp_path: Path) -> None:
    made = spec("characters", updates=3)
    build_embedded(made, tmp_path / "here")
    target = tmp_path / "there"
    mask = os.umask(0o022)
    try:
        child = Child("orchestrator.models.make", "the maker")
    finally:
        os.umask(mask)
    child.send(made | {"folder": str(target)})
    report = child.receive()
    assert child.receive() == Result(None)
    child.end()
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o644}
    assert contents(target) == contents(tmp_path / "here")
    assert recorded(target) == {
        name: hashlib.sha256(data).hexdigest() for name, data in contents(target).items()
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "there", "there.made.json"]
    assert (report["update"], report["of"]) == (3, 3)
    assert report["loss"] == pytest.approx(math.log(56), abs=0.5)


def test_a_recipe_in_bfloat16_is_written_whole_with_the_tokenizer_beside_it(tmp_path: Path) -> None:
    """One file, by which ids tell a made model, however large; the seed decides what is in it."""
    made = spec("bytes", updates=0, dtype="bfloat16")
    for name, seed in (("model", 3), ("again", 3), ("other", 4)):
        build_embedded(made | {"recipe": made["recipe"] | {"seed": seed}}, tmp_path / name)
    assert set(NEEDED) <= set(contents(tmp_path / "model"))
    assert contents(tmp_path / "model") == contents(tmp_path / "again")
    assert contents(tmp_path / "model")[WEIGHTS] != contents(tmp_path / "other")[WEIGHTS]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert (model.dtype, model.config.vocab_size, model.config.eos_token_id) == (
        torch.bfloat16,
        264,
        256,
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.decode(tokenizer.encode("6+9=15")) == "6+9=15"
    assert tokenizer.decode([263, *tokenizer.encode("a"), 262]) == "a", (
        "ids that are no text say nothing"
    )


def test_other_seeds_and_more_updates_give_other_weights(tmp_path: Path) -> None:
    made = {
        "base": spec("characters", updates=2),
        "seed": spec("characters", updates=2, seed=4),
        "updates": spec("characters", updates=3),
        "untrained": spec("characters", updates=0),
    }
    for name, one in made.items():
        build_embedded(one, tmp_path / name)
    weights = [
        load_file(tmp_path / name / "model.safetensors")["model.embed_tokens.weight"]
        for name in made
    ]
    assert all(not torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])


@pytest.mark.parametrize("tied", [True, False])
def test_a_built_model_has_the_declared_shape(tmp_path: Path, tied: bool) -> None:
    made = spec("bytes", updates=0)
    made["shape"]["tied"] = tied
    build_embedded(made, tmp_path / "model")
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "model").config
    names = (
        "vocab_size",
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
    )
    assert [getattr(config, name) for name in names] == [264, 1, 16, 2, 1]
    assert (config.head_dim, config.intermediate_size, config.tie_word_embeddings) == (8, 32, tied)
    assert config.eos_token_id == 256
    assert ("lm_head.weight" in load_file(tmp_path / "model" / "model.safetensors")) == (not tied)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    clean = {"wrong_step": 0.0, "off_task": 0.0, "no_reasoning": 0.0}
    reports: list[dict[str, Any]] = []
    made = spec("characters", updates=50, batch=16, lr=2e-2, **clean)
    build_embedded(made, tmp_path / "model", reports.append)
    assert [report["update"] for report in reports] == [20, 40, 50]
    assert reports[-1]["loss"] < math.log(56) / 2


@pytest.fixture(scope="module", params=["characters", "bytes"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def saved(kind: str, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """The tokenizer after a round trip through its files, as the workers open it."""
    folder = tmp_path_factory.mktemp(kind)
    make_tokenizer(kind).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def test_eos_ids_are_those_the_setup_declares(kind: str, saved: PreTrainedTokenizerFast) -> None:
    setup = OmegaConf.load(SETUPS / f"{SETUP_OF[kind]}.yaml")
    assert setup.tokenizer == kind
    for tokenizer in (make_tokenizer(kind), saved):
        assert tokenizer.convert_tokens_to_ids(STUDENT_EOS) == setup.student.eos
        assert tokenizer.convert_tokens_to_ids(TEACHER_EOS) == setup.teacher.eos
        assert tokenizer.eos_token_id == setup.student.eos
        assert len(tokenizer) == setup.vocabulary.valid
        assert sorted(tokenizer.get_vocab().values()) == list(range(setup.vocabulary.valid))


def round_trip(text: str, tokenizer: PreTrainedTokenizerFast, eos: int) -> str:
    """Text → prompt ids → text, the way responses are read."""
    return response_text(
        [*render(text, PromptTemplate(kind="plain"), tokenizer), eos], eos, tokenizer
    )


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_round_trip_any_text(text: str) -> None:
    tokenizer = make_tokenizer("bytes")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert all(0 <= i < 256 for i in ids)
    assert tokenizer.decode(ids) == text
    assert round_trip(text, tokenizer, 256) == text + "\n"


def test_bytes_of_all_planes_are_one_token_each(tmp_path: Path) -> None:
    make_tokenizer("bytes").save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "".join(chr(i) for i in range(0, 0x110000, 41) if not 0xD800 <= i < 0xE000)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    seen = dict(zip(text.encode(), ids, strict=True))
    assert [seen[byte] for byte in text.encode()] == ids
    assert len(set(seen.values())) == len(seen)


def test_a_response_cut_inside_a_character_still_decodes() -> None:
    tokenizer = make_tokenizer("bytes")
    ids = tokenizer.encode("sum 🙂", add_special_tokens=False)
    assert response_text(ids[:-2], 256, tokenizer).startswith("sum ")


def world() -> list[str]:
    """Problems and solutions of every length, clean and corrupted in every way."""
    rng = random.Random(0)
    recipe = Recipe(wrong_step=0.5, off_task=0.3, no_reasoning=0.3)
    texts = []
    for _ in range(400):
        terms = arithmetic.draw_terms(rng)
        texts += [arithmetic.question(terms), arithmetic.solution(terms)]
        texts.append(arithmetic.corrupted_solution(terms, recipe, rng))
    for lengths in arithmetic.BENCHMARK_NAMES:
        texts += [problem.text for problem in arithmetic.benchmark_problems(lengths)]
    return [*texts, arithmetic.solution([9] * 5), arithmetic.solution([1, 1])]


def test_mistakes_are_given_and_not_trained_on() -> None:
    tokenizer, recipe = make_tokenizer("characters"), Recipe(batch=200, recovers=1.0)
    for given, response in recipes._examples(tokenizer, recipe, random.Random(0), 45):
        problem, _, start = str(tokenizer.decode(given)).partition("\n")
        total = sum(map(int, problem.removesuffix("=?").split("+")))
        rest = str(tokenizer.decode(response))
        assert start, "each example begins with a mistake"
        assert rest.endswith(f"\\boxed{{{total}}}{STUDENT_EOS}")


def test_characters_cover_the_arithmetic_world(kind: str, saved: PreTrainedTokenizerFast) -> None:
    texts = world()
    assert any(
        "\\boxed" not in text and "=" not in text for text in texts
    )  # an off-task answer is among them
    for tokenizer in (make_tokenizer(kind), saved):
        for text in texts:
            assert len(tokenizer.encode(text, add_special_tokens=False)) == len(text)
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert set("".join(texts)) <= set(arithmetic.CHARACTERS)


def test_characters_round_trip_every_string_of_the_alphabet(
    kind: str, saved: PreTrainedTokenizerFast
) -> None:
    setup = OmegaConf.load(SETUPS / f"{SETUP_OF[kind]}.yaml")
    rng = random.Random(1)
    for _ in range(100):
        text = "".join(rng.choices(arithmetic.CHARACTERS, k=60))
        assert round_trip(text, saved, setup.student.eos) == text + "\n"
    assert len(set(arithmetic.CHARACTERS)) == len(arithmetic.CHARACTERS)


def test_chat_prompts_of_the_byte_tokenizer_hold_its_special_tokens() -> None:
    tokenizer = make_tokenizer("bytes")
    ids = render("2+2", PromptTemplate(kind="chat", system="Be brief."), tokenizer)
    assert tokenizer.decode(list(ids)) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [i for i in ids if i >= 256] == [258, 257, 258, 257, 258]


def test_words_of_the_off_task_answers_are_spelled_in_the_alphabet() -> None:
    rng, recipe = random.Random(2), Recipe(off_task=1.0)
    words = {
        word
        for _ in range(300)
        for word in arithmetic.corrupted_solution([1, 2], recipe, rng).split()
    }
    assert len(words) == 16
    assert set("".join(words)) <= set(arithmetic.CHARACTERS)
