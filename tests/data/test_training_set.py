"""Training prompts: the same order whatever the method and the number of steps; OpenThoughts' math
rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from orchestrator.config import Data, DataFile, Setup
from orchestrator.data.training_set import TrainingSet, load_training_set
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_setup
from orchestrator.grading.gold import Gold
from orchestrator.models.recipes import make_tokenizer

DATA_DIR = os.environ.get("TRB_DATA_DIR")
needs_data = pytest.mark.skipif(
    not DATA_DIR, reason="TRB_DATA_DIR is not set: no training files to read"
)


@pytest.fixture(scope="module")
def characters() -> PreTrainedTokenizerBase:
    return make_tokenizer("characters")


@pytest.fixture(scope="module")
def utf8() -> PreTrainedTokenizerBase:
    return make_tokenizer("bytes")


def sized(setup: Setup, steps: int, prompts: int, **changes: Any) -> Setup:
    """`setup` with so many steps and prompts, one update of its supervised stage, and other
    training keys.
    """
    sft = dataclasses.replace(setup.training.sft, updates=1, checkpoints=[1])
    training = dataclasses.replace(
        setup.training, steps=steps, prompts_per_step=prompts, sft=sft, **changes
    )
    return dataclasses.replace(setup, training=training)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def local(
    folder: Path,
    texts: list[str],
    steps: int = 2,
    prompts: int = 3,
    order_seed: int = 0,
    **changes: Any,
) -> Setup:
    """A setup that reads `texts` from a file of its own below `folder`."""
    path = folder / "train.jsonl"
    rows = [{"id": f"row-{i}", "problem": text, "answer": str(i)} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Data(
        source="jsonl", files=[DataFile("train.jsonl", sha256(path))], order_seed=order_seed
    )
    return sized(
        dataclasses.replace(load_setup("arithmetic"), data=data), steps, prompts, **changes
    )


def texts(chosen: TrainingSet) -> list[str]:
    return [prompt.problem.text for prompt in chosen.prompts]


TEXTS = [f"{i}+{j}=?" for i in range(1, 7) for j in range(1, 4)]

Loader = Callable[[Setup], TrainingSet]


@pytest.fixture
def load(tmp_path: Path, characters: PreTrainedTokenizerBase) -> Loader:
    return lambda setup: load_training_set(setup, str(tmp_path), characters)


# --- order ---


def test_exactly_the_prompts_of_all_steps(tmp_path: Path, load: Loader) -> None:
    chosen = load(local(tmp_path, TEXTS, steps=4, prompts=3))
    assert len(chosen.prompts) == len(set(texts(chosen))) == 12
    assert set(texts(chosen)) <= set(TEXTS)
    assert texts(chosen) != TEXTS[:12]


def test_the_order_is_deterministic(tmp_path: Path, load: Loader) -> None:
    assert load(local(tmp_path, TEXTS)) == load(local(tmp_path, TEXTS))
    assert texts(load(local(tmp_path, TEXTS))) != texts(load(local(tmp_path, TEXTS, order_seed=1)))


@pytest.mark.parametrize("name", ["local", "arithmetic", "smollm"])
def test_each_seed_may_have_an_order_of_its_own(
    name: str, utf8: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """By default all seeds read the same prompts; without a seed the order is the setup's."""
    setup = local(tmp_path, TEXTS) if name == "local" else sized(load_setup(name), 2, 8)

    def read(per_seed: bool, seed: int | None) -> list[str]:
        training = dataclasses.replace(setup.training, order_per_seed=per_seed)
        changed = dataclasses.replace(setup, training=training)
        return texts(load_training_set(changed, str(tmp_path), utf8, seed=seed))

    shared = read(False, None)
    assert read(False, 0) == read(False, 1) == read(True, None) == shared
    assert read(True, 0) == read(True, 0)
    assert len({tuple(read(True, seed)) for seed in range(3)} | {tuple(shared)}) == 4


def test_the_order_does_not_depend_on_how_many_steps_are_run(tmp_path: Path, load: Loader) -> None:
    whole = load(local(tmp_path, TEXTS, steps=6))
    for steps in (1, 3, 5):
        assert texts(load(local(tmp_path, TEXTS, steps=steps))) == texts(whole)[: 3 * steps]
    assert whole.batch(1, 3) == list(enumerate(whole.prompts))[3:6]


def test_the_supervised_stage_reads_the_same_prompts(tmp_path: Path, load: Loader) -> None:
    setup = local(tmp_path, TEXTS, steps=2)
    longer = dataclasses.replace(
        setup.training, sft=dataclasses.replace(setup.training.sft, updates=4)
    )
    chosen = load(dataclasses.replace(setup, training=longer))
    assert len(chosen.prompts) == 12
    assert texts(chosen)[:6] == texts(load(setup))


def test_the_embedded_stream_does_not_depend_on_steps(load: Loader) -> None:
    setup = load_setup("arithmetic")
    short, long = (load(sized(setup, steps, 8)) for steps in (2, 5))
    assert texts(short) == texts(long)[:16]
    assert len(long.prompts) == 40


# --- what is left out ---


def test_repeats_are_removed(tmp_path: Path, load: Loader) -> None:
    chosen = load(local(tmp_path, [*TEXTS[:6], *TEXTS[:6]]))
    assert sorted(texts(chosen)) == sorted(TEXTS[:6])
    assert {prompt.problem.id for prompt in chosen.prompts} == {f"row-{i}" for i in range(6)}


def test_repeats_do_not_change_the_order(tmp_path: Path, load: Loader) -> None:
    assert texts(load(local(tmp_path, TEXTS[:6] * 3))) == texts(load(local(tmp_path, TEXTS[:6])))


def test_a_repeated_problem_stands_where_its_last_row_stands(tmp_path: Path, load: Loader) -> None:
    """The order before the shuffle decides every run: a change would train on other prompts under
    the same unit id.
    """
    repeated = load(local(tmp_path, [*TEXTS[:6], TEXTS[0]]))
    assert texts(repeated) == texts(load(local(tmp_path, [*TEXTS[1:6], TEXTS[0]])))
    assert {prompt.problem.id for prompt in repeated.prompts} == {f"row-{i}" for i in range(6)}


def test_over_long_prompts_are_passed_over(tmp_path: Path, load: Loader) -> None:
    long = [f"{text}{'0' * 12}" for text in TEXTS[:6]]
    chosen = load(local(tmp_path, TEXTS[:6] + long, max_prompt_tokens=10))
    assert sorted(texts(chosen)) == sorted(TEXTS[:6])
    assert 0 < chosen.too_long <= 6
    assert all(len(prompt.ids) <= 10 for prompt in chosen.prompts)


def test_a_prompt_of_exactly_the_limit_is_kept(tmp_path: Path, load: Loader) -> None:
    length = len("1+1=?\n")
    assert len(load(local(tmp_path, TEXTS[:6], max_prompt_tokens=length)).prompts) == 6
    with pytest.raises(UserError, match="0 usable prompts"):
        load(local(tmp_path, TEXTS[:6], max_prompt_tokens=length - 1))


def test_too_few_prompts(tmp_path: Path, load: Loader) -> None:
    with pytest.raises(
        UserError, match=r"5 usable prompts \(1 too long\): expected 6 for 2 steps of 3"
    ):
        load(local(tmp_path, [*TEXTS[:5], "0" * 20], max_prompt_tokens=10))


# --- golds and prompts ---


def with_rows(setup: Setup, folder: Path, rows: list[dict[str, Any]]) -> Setup:
    """The setup with these rows as its training file."""
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = dataclasses.replace(setup.data, files=[DataFile("train.jsonl", sha256(path))])
    return dataclasses.replace(setup, data=data)


@pytest.mark.parametrize(
    ("golds", "gold"),
    [
        (["9", "9.0", 9], "9"),
        ([None, "9"], "9"),
        (["\\frac12", "0.5", "\\dfrac{1}{2}", "1/2"], "\\frac12"),
        (["58,500", "58500"], "58,500"),
        (["$(1, 2)$", "(1,2)"], "$(1, 2)$"),
        (["10", "9", "9"], None),
        (["\\frac12", "\\frac13"], None),
        (["12", "1/2"], None),
        (["1/0", "2/0"], None),
    ],
)
def test_golds_of_one_text(
    golds: list[Any], gold: str | None, tmp_path: Path, load: Loader
) -> None:
    rows = [{"problem": "1+1=?", "answer": answer} for answer in golds]
    setup = with_rows(local(tmp_path, TEXTS[:1], steps=1, prompts=2), tmp_path, rows)
    chosen = load(with_rows(setup, tmp_path, [*rows, {"problem": "1+2=?", "answer": "3"}]))
    found = {prompt.problem.text: prompt.problem.gold for prompt in chosen.prompts}
    assert found == {"1+1=?": gold and Gold(gold), "1+2=?": Gold("3")}
    if gold is None:
        assert chosen.golds == {"given": 1, "none": 0, "differing": 1}
        assert list(chosen.differing) == ["1+1=?"]
    else:
        assert chosen.golds == {"given": 2, "none": 0}


def test_golds_that_differ_keep_the_order(tmp_path: Path, load: Loader) -> None:
    setup = local(tmp_path, TEXTS)
    alike = [{"problem": text, "answer": "1"} for text in TEXTS * 2]
    first = load(with_rows(setup, tmp_path, alike))
    differing = [row | {"answer": str(number)} for number, row in enumerate(alike)]
    second = load(with_rows(setup, tmp_path, differing))
    assert texts(first) == texts(second)
    assert [prompt.problem.id for prompt in first.prompts] == [
        prompt.problem.id for prompt in second.prompts
    ]
    assert all(prompt.problem.gold is None for prompt in second.prompts)


def test_rows_with_another_system_turn_are_refused(tmp_path: Path, load: Loader) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"}]
    setup = local(tmp_path, TEXTS[:1], steps=1, prompts=1)
    asked = with_rows(setup, tmp_path, [{"messages": turns}])
    with pytest.raises(UserError, match=r"prompt\.system: None: expected 'Be brief\.', the system"):
        load(asked)
    prompt = dataclasses.replace(asked.prompt, system="Be brief.")
    assert texts(load(dataclasses.replace(asked, prompt=prompt, training=asked.training))) == [
        "1+1=?"
    ]


def test_prompts_are_rendered_as_the_setup_says(
    tmp_path: Path, load: Loader, characters: PreTrainedTokenizerBase
) -> None:
    for prompt in load(local(tmp_path, TEXTS)).prompts:
        assert characters.decode(list(prompt.ids)) == f"{prompt.problem.text}\n"


def test_chat_prompts_hold_system_and_problem(
    tmp_path: Path, utf8: PreTrainedTokenizerBase
) -> None:
    setup = local(tmp_path, ["¿1+1?"], steps=1, prompts=1, max_prompt_tokens=200)
    prompt = dataclasses.replace(setup.prompt, kind="chat", system="Think.")
    (only,) = load_training_set(
        dataclasses.replace(setup, prompt=prompt), str(tmp_path), utf8
    ).prompts
    expected = "<|im_start|>system\nThink.<|im_end|>\n<|im_start|>user\n¿1+1?<|im_end|>\n<|im_start|>assistant\n"
    assert utf8.decode(list(only.ids)) == expected


# --- prompts that no step takes ---


def held_out(chosen: TrainingSet) -> list[str]:
    return [prompt.problem.text for _, prompt in chosen.held_out]


@pytest.mark.parametrize("source", ["jsonl", "arithmetic", "word_problems"])
def test_held_out_prompts_are_the_next_ones_and_change_nothing(
    source: Any, tmp_path: Path, characters: PreTrainedTokenizerBase, utf8: PreTrainedTokenizerBase
) -> None:
    setup = local(tmp_path, TEXTS)
    if source != "jsonl":
        setup = dataclasses.replace(setup, data=Data(source=source))
        setup = sized(setup, 2, 3, max_prompt_tokens=400)
    tokenizer = utf8 if source == "word_problems" else characters
    without, chosen, longer = (
        load_training_set(
            sized(setup, steps, 3, max_prompt_tokens=400), str(tmp_path), tokenizer, None, more
        )
        for steps, more in ((2, 0), (2, 5), (4, 0))
    )
    assert without == dataclasses.replace(chosen, held_out=[])
    assert chosen.counts() == without.counts()
    assert [index for index, _ in chosen.held_out] == list(range(6, 11))
    assert len({*held_out(chosen), *texts(chosen)}) == len(texts(chosen)) + 5
    # The next six prompts of a longer training, but for those that repeat.
    following = [text for text in dict.fromkeys(texts(longer)[6:]) if text not in texts(chosen)]
    shared = min(5, len(following))
    assert held_out(chosen)[:shared] == following[:shared]
    assert shared >= 4


def test_too_long_prompts_are_not_held_out(
    tmp_path: Path, characters: PreTrainedTokenizerBase
) -> None:
    setup = local(tmp_path, ["1+1=?", "1+2+3+4+5+6=?", "2+2=?", "1+3=?"], 1, 1, max_prompt_tokens=7)
    chosen = load_training_set(setup, str(tmp_path), characters, held_out=8)
    assert {*texts(chosen), *held_out(chosen)} == {"1+1=?", "2+2=?", "1+3=?"}


def test_what_the_data_lack_is_not_held_out(
    tmp_path: Path, characters: PreTrainedTokenizerBase
) -> None:
    """All 18 sums are trained on, or all but three; of the 81 sums of two terms 20 are held out by
    the benchmark and most others trained on.
    """
    for steps, left in ((6, 0), (5, 3)):
        setup = local(tmp_path, TEXTS, steps=steps)
        assert len(load_training_set(setup, str(tmp_path), characters, None, 8).held_out) == left
    short = dataclasses.replace(setup, data=Data(source="arithmetic", longest=2))
    chosen = load_training_set(sized(short, 10, 60), None, characters, None, 8)
    assert len({*texts(chosen), *held_out(chosen)}) == len({*texts(chosen)}) + len(held_out(chosen))


@needs_data
def test_the_shipped_training_files(utf8: PreTrainedTokenizerBase) -> None:
    setup = load_setup("math-smoke")
    chosen, longer = (
        load_training_set(sized(setup, steps, 16), DATA_DIR, utf8) for steps in (3, 6)
    )
    assert texts(chosen) == texts(longer)[:48]
    assert len(set(texts(longer))) == 96
    assert all(prompt.problem.gold is not None for prompt in longer.prompts)
    assert all(len(prompt.ids) <= setup.training.max_prompt_tokens for prompt in longer.prompts)


# --- what is told of the data ---


def test_counts_of_files(tmp_path: Path, load: Loader) -> None:
    long = [f"{text}{'0' * 12}" for text in TEXTS[:6]]
    chosen = load(local(tmp_path, [*TEXTS[:6], *TEXTS[:2], *long], max_prompt_tokens=10))
    assert chosen.counts() == {
        "rows": 14,
        "repeats": 2,
        "too_long": chosen.too_long,
        "prompts": 6,
        "golds": {"given": 4, "none": 0, "differing": 2},
        "differing_golds": {"1+1=?": ["0", "6"], "1+2=?": ["1", "7"]},
        "overlap": {
            "arithmetic_short": {"problems": 0, "of": 12, "used": 0},
            "arithmetic_long": {"problems": 0, "of": 12, "used": 0},
        },
    }


def test_counts_of_the_embedded_stream(load: Loader) -> None:
    chosen = load(sized(load_setup("arithmetic"), 2, 8))
    assert chosen.counts() == {"too_long": 0, "prompts": 16, "golds": {"given": 16, "none": 0}}


def test_an_altered_or_broken_file(tmp_path: Path, load: Loader) -> None:
    setup = local(tmp_path, TEXTS)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('{"id": "x", "problem": "1+1=?"}\n')
    with pytest.raises(UserError, match=r"train\.jsonl: sha256"):
        load(setup)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(UserError, match=rf"train\.jsonl line {len(TEXTS) + 2}"):
        load(setup)


def test_a_row_without_an_answer_has_no_gold(tmp_path: Path, load: Loader) -> None:
    setup = local(tmp_path, TEXTS[:1], steps=1, prompts=2)
    path = tmp_path / "train.jsonl"
    rows = [{"id": "a", "problem": "1+1=?", "answer": "2"}, {"id": "b", "problem": "1+2=?"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = dataclasses.replace(setup.data, files=[DataFile("train.jsonl", sha256(path))])
    chosen = load(dataclasses.replace(setup, data=data))
    assert {p.problem.id: p.problem.gold for p in chosen.prompts} == {"a": Gold("2"), "b": None}


def test_chat_prompts_need_a_chat_template(tmp_path: Path, load: Loader) -> None:
    setup = local(tmp_path, TEXTS)
    chat = dataclasses.replace(setup, prompt=dataclasses.replace(setup.prompt, kind="chat"))
    with pytest.raises(UserError, match=r"prompt\.kind"):
        load(chat)
