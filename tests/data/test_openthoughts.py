"""OpenThoughts: its distinct problems, and the majority of their answers."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from orchestrator.config import Data, Setup
from orchestrator.data import openthoughts
from orchestrator.data import openthoughts as module
from orchestrator.data.files import folder_sha256
from orchestrator.data.openthoughts import (
    CONTEXT_CHARS,
    MATH_SOURCE,
    MAX_COMPARED,
    Majority,
    Thought,
    last_answer,
    load_thoughts,
    majorities,
    majority,
    needs_scan,
)
from orchestrator.data.training_set import load_training_set
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_setup
from orchestrator.grading.gold import Gold
from orchestrator.grading.notation import MAX_ANSWER_CHARS, last_boxed
from orchestrator.models.recipes import make_tokenizer

TOWER = "9^{9^{9^{9^{9}}}}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trb"


def thought(
    text: str, answer: str | None = None, domain: str = "math", source: str = MATH_SOURCE
) -> dict[str, Any]:
    said = "<think>so" + (f"</think> it is \\boxed{{{answer}}}." if answer is not None else " …")
    turns = [{"from": "human", "value": text}, {"from": "gpt", "value": said}]
    return {"difficulty": None, "source": source, "domain": domain, "conversations": turns}


def thoughts(answers: dict[str, list[str | None]]) -> list[dict[str, Any]]:
    """A row for each answer of each problem, the problems interleaved as in the data set."""
    longest = max(map(len, answers.values()))
    return [
        thought(text, each[turn])
        for turn in range(longest)
        for text, each in answers.items()
        if turn < len(each)
    ]


MIXED = [
    thought("1+1=?", "2"),
    thought("Write a loop.", None, "code", "stackexchange_codegolf"),
    thought("1+2=?", "3"),
    thought("Name an acid.", None, "science", "organic-chemistry-questions"),
    thought("1+1=?", "2"),
    thought("1+1=?"),
    thought("1+1=?", "3"),
    thought("1+3=?"),
]


def write(
    folder: Path, rows: list[dict[str, Any]], suffix: str = ".jsonl", name: str = "thoughts"
) -> Data:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=3)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Data(
        source="openthoughts",
        path=str(path),
        revision=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def setup_of(data: Data, prompts: int, **changes: Any) -> Setup:
    setup = load_setup("arithmetic")
    sft = dataclasses.replace(setup.training.sft, updates=1, checkpoints=[1])
    training = dataclasses.replace(
        setup.training, steps=1, prompts_per_step=prompts, sft=sft, **changes
    )
    return dataclasses.replace(setup, data=data, training=training)


@pytest.fixture(scope="module")
def characters() -> PreTrainedTokenizerBase:
    return make_tokenizer("characters")


# --- rows ---


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_distinct_math_problems_with_their_answers(suffix: str, tmp_path: Path) -> None:
    found = load_thoughts(write(tmp_path, MIXED, suffix))
    assert found.problems == [
        Thought(0, "1+1=?", {"2": 2, "3": 1}),
        Thought(2, "1+2=?", {"3": 1}),
        Thought(7, "1+3=?"),
    ]
    assert found.counts == {"rows": 8, "not_math": 2, "malformed": 0, "repeats": 3}


def test_shards_of_a_folder_are_one_data_set(tmp_path: Path) -> None:
    write(tmp_path / "shards", MIXED[:3], ".parquet", "train-00000")
    write(tmp_path / "shards", MIXED[3:], ".parquet", "train-00001")
    folder = tmp_path / "shards"
    data = Data(source="openthoughts", path=str(folder), revision=folder_sha256(folder))
    assert load_thoughts(data) == load_thoughts(write(tmp_path, MIXED))
    (folder / "train-00001.parquet").unlink()
    with pytest.raises(
        UserError,
        match=r"shards: sha256 [0-9a-f]{64}: expected .*, as declared; its files were changed",
    ):
        load_thoughts(data)


@pytest.mark.parametrize(
    "conversations",
    [
        None,
        [],
        [{"from": "gpt", "value": "1+1=?"}],
        [{"from": "human"}],
        ["1+1=?"],
        [{"from": "human", "value": " "}],
    ],
)
def test_rows_that_do_not_open_with_a_question_are_counted(
    conversations: Any, tmp_path: Path
) -> None:
    broken = thought("") | {"conversations": conversations}
    found = load_thoughts(write(tmp_path, [broken, thought("1+1=?", "2")]))
    assert [problem.row for problem in found.problems] == [1]
    assert found.counts["malformed"] == 1
    with pytest.raises(
        UserError, match="none of 2 math rows has a problem: expected conversations"
    ):
        load_thoughts(write(tmp_path, [broken, broken]))


def test_data_without_math(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of 2 rows is math: expected domain 'math' or source"):
        load_thoughts(write(tmp_path, [MIXED[1], MIXED[3]]))


def test_a_question_without_a_response_has_no_answer(tmp_path: Path) -> None:
    row = thought("1+1=?") | {"conversations": [{"from": "human", "value": "1+1=?"}]}
    assert load_thoughts(write(tmp_path, [row])).problems == [Thought(0, "1+1=?")]


@pytest.mark.parametrize("answer", ["", "  ", "9" * (MAX_ANSWER_CHARS + 1)])
def test_answers_that_no_gold_could_be_are_none(answer: str, tmp_path: Path) -> None:
    assert load_thoughts(write(tmp_path, [thought("1+1=?", answer)])).problems == [
        Thought(0, "1+1=?")
    ]


FILLER = "so " * (CONTEXT_CHARS // 2)
PIECES = [
    r"\boxed{7}",
    r"\boxed{\frac{1}{2}}",
    r"\fbox{x=7}",
    r"\boxed{\{1\}}",
    r"\boxed{}",
    r"\boxed{\fbox{3}}",
    FILLER,
    "<think>",
    "</think>",
]
PIECES += ["$", " and ", ", ", r"\\", r"{a}", r"\{", r"\}", "a box", "\n", "unboxed", "."]
ENDS = ["", r"\boxed{", r"\boxed{\frac{1", FILLER]


def test_the_last_answer_is_what_the_grader_extracts() -> None:
    rng = random.Random(0)
    answers = set()
    for _ in range(2000):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 25))) + rng.choice(ENDS)
        answers.add(last_answer(text))
        assert last_answer(text) == (last_boxed(text) or None), text.replace(FILLER, "…")
    assert len(answers) >= 5


def test_an_answer_far_before_unclosed_boxes_is_found() -> None:
    filler = "so " * CONTEXT_CHARS
    for rest in (r"\boxed{" * 50, "a box", r"\boxed{7"):
        assert last_answer(rf"\boxed{{7}} {filler} {rest} {filler}") == "7"


# --- where the data come from ---


@pytest.mark.parametrize(
    ("path", "revision", "words"),
    [
        (None, None, "data.path: not set"),
        (
            "/nowhere/thoughts.parquet",
            "0" * 64,
            "data.path: '/nowhere/thoughts.parquet': expected a file or folder",
        ),
        ("open-thoughts/OpenThoughts3-1.2M", None, "data.revision: None: expected the commit"),
        ("open-thoughts/OpenThoughts3-1.2M", "main", "data.revision: 'main': expected the commit"),
    ],
)
def test_where_thoughts_cannot_be(path: str | None, revision: str | None, words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_thoughts(Data(source="openthoughts", path=path, revision=revision))
    assert words in str(caught.value)


def test_rows_are_read_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, MIXED, ".parquet")
    assert needs_scan(data)
    first = load_thoughts(data)
    assert not needs_scan(data)
    (kept,) = cache.glob("openthoughts-*.jsonl")
    text = kept.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(openthoughts, "scan", lambda *_: pytest.fail("the rows were read again"))
        assert load_thoughts(data) == first
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    load_thoughts(data)
    (again,) = (tmp_path / "another" / "trb").glob("openthoughts-*.jsonl")
    assert again.read_text() == text


def test_a_new_grader_reads_the_rows_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, MIXED)
    load_thoughts(data)
    monkeypatch.setattr(openthoughts, "GRADER_VERSION", "later")
    assert needs_scan(data)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path, MIXED)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        UserError,
        match=r"file/trb: Not a directory: expected a folder that can be written, as XDG_CACHE_HOME",
    ):
        load_thoughts(data)


# --- golds of the prompts ---

ANSWERS: dict[str, list[str | None]] = {
    "1+1=?": ["2", "2", "3", None],
    "1+2=?": [r"\frac12", "0.5", r"\dfrac{1}{2}", "7", "7"],
    "1+3=?": ["4", "5"],
    "1+4=?": [None, None],
    "1+5=?": [TOWER, "6", None],
    "1+6=?": ["7", "x=7", "8", "8", "7.0"],
}


def test_prompts_have_the_majority_of_the_answers(
    tmp_path: Path, characters: PreTrainedTokenizerBase
) -> None:
    data = write(tmp_path, thoughts(ANSWERS))
    chosen = load_training_set(setup_of(data, 6), None, characters)
    golds = {prompt.problem.text: prompt.problem.gold for prompt in chosen.prompts}
    assert golds == {
        "1+1=?": Gold("2"),
        "1+2=?": Gold("0.5"),
        "1+3=?": None,
        "1+4=?": None,
        "1+5=?": None,
        "1+6=?": Gold("7"),
    }
    assert chosen.counts() == {
        "rows": 21,
        "not_math": 0,
        "malformed": 0,
        "repeats": 15,
        "too_long": 0,
        "prompts": 6,
        "golds": {"majority": 3, "tied": 2, "no_box": 1},
        "overlap": {
            "arithmetic_short": {"problems": 0, "of": 6, "used": 0},
            "arithmetic_long": {"problems": 0, "of": 6, "used": 0},
        },
    }


def test_golds_do_not_change_the_order(tmp_path: Path, characters: PreTrainedTokenizerBase) -> None:
    rows = [row for row in thoughts(ANSWERS) if TOWER not in row["conversations"][1]["value"]]
    with_answers = load_training_set(setup_of(write(tmp_path, rows), 6), None, characters)
    bare = [thought(row["conversations"][0]["value"]) for row in rows]
    without = load_training_set(setup_of(write(tmp_path, bare), 6), None, characters)
    assert [(p.problem.id, p.ids) for p in with_answers.prompts] == [
        (p.problem.id, p.ids) for p in without.prompts
    ]
    assert {prompt.problem.gold for prompt in without.prompts} == {None}


def test_only_selected_prompts_get_a_gold(
    tmp_path: Path, cache: Path, characters: PreTrainedTokenizerBase
) -> None:
    chosen = load_training_set(setup_of(write(tmp_path, thoughts(ANSWERS)), 2), None, characters)
    (kept,) = cache.glob("majorities-*.json")
    assert len(json.loads(kept.read_text())) == len(chosen.prompts) == 2


# --- majorities ---


def same_first_letter(gold: str, answer: str) -> bool:
    return gold[0] == answer[0]


def never(gold: str, answer: str) -> bool:
    pytest.fail(f"{gold} and {answer} were compared")


def test_no_answers() -> None:
    assert majority({}, never) == Majority(None, "no_box")


@pytest.mark.parametrize("answers", [{"7": 1}, {"7": 3, "8": 2}, {"7": 5, "8": 1, "9": 1}])
def test_more_than_half_needs_no_comparison(answers: dict[str, int]) -> None:
    assert majority(answers, never) == Majority("7", "majority")


def test_equal_answers_vote_together() -> None:
    assert majority({"b": 2, "a1": 1, "a2": 1, "a3": 1}, same_first_letter) == Majority(
        "a1", "majority"
    )


def test_the_most_frequent_spelling_is_the_gold() -> None:
    assert majority({"a1": 1, "a2": 2, "b": 2, "a3": 2}, same_first_letter) == Majority(
        "a2", "majority"
    )


@pytest.mark.parametrize(
    "answers", [{"a": 1, "b": 1}, {"a": 2, "b1": 1, "b2": 1}, {"a": 1, "b": 1, "c": 1}]
)
def test_ties_have_no_gold(answers: dict[str, int]) -> None:
    assert majority(answers, same_first_letter) == Majority(None, "tied")


def test_the_order_of_the_rows_does_not_matter() -> None:
    answers = {"a1": 2, "b1": 2, "a2": 1, "b2": 1, "c": 1, "a3": 1}
    found = {
        majority(dict(order), same_first_letter)
        for order in itertools.permutations(answers.items())
    }
    assert found == {Majority("a1", "majority")}


def by_classes(answers: Mapping[str, int]) -> str | None:
    """The first letter with most votes, counted in full; None if two have as many."""
    votes = {
        letter: sum(n for a, n in answers.items() if a[0] == letter)
        for letter in {a[0] for a in answers}
    }
    best = [letter for letter, count in votes.items() if count == max(votes.values())]
    return best[0] if len(best) == 1 else None


def test_stopping_early_changes_no_outcome() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        answers = {f"{rng.choice('abcd')}{i}": rng.randint(1, 4) for i in range(rng.randint(1, 8))}
        found = majority(answers, same_first_letter)
        assert (found.answer[0] if found.answer else None) == by_classes(answers)
        assert found.outcome == ("majority" if found.answer else "tied")


def test_a_problem_of_many_answers_costs_a_bounded_number_of_comparisons() -> None:
    asked = []
    found = majority(
        {f"{i:04}": 1 for i in range(3000)},
        lambda gold, answer: asked.append((gold, answer)) or False,
    )
    assert found == Majority(None, "tied")
    assert len(asked) == MAX_COMPARED * (MAX_COMPARED - 1) // 2


COUNTED: list[dict[str, int]] = [
    {r"\frac{1}{2}": 1, "0.5": 1, "2": 1},
    {r"\frac{": 1, r"\sqrt{2}": 1, r"\sqrt 2": 1},
    {"4": 1, "5": 1},
    {},
    {r"\text{(C)}": 2, "C": 1, "A": 2},
]
PLAIN: list[dict[str, int]] = [{"4": 1, "5": 1, "4.0": 1}, {"4": 1, "5": 1}, {}]


def test_the_grader_decides_what_is_equal(cache: Path) -> None:
    found = majorities(COUNTED)
    assert [each.outcome for each in found] == [
        "majority",
        "majority",
        "tied",
        "no_box",
        "majority",
    ]
    assert [each.answer for each in found] == ["0.5", r"\sqrt 2", None, None, r"\text{(C)}"]


def test_problems_are_shared_out_and_come_back_in_order(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = majorities(PLAIN * 5)
    monkeypatch.setattr(module, "PROBLEMS_PER_GRADER", 2)
    monkeypatch.setattr(module, "cores_here", lambda: 4)
    next(cache.glob("majorities-*.json")).unlink()
    assert majorities(PLAIN * 5) == alone
    assert [each.answer for each in alone[:3]] == ["4", None, None]


def test_majorities_are_computed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = majorities(PLAIN)
    (kept,) = cache.glob("majorities-*.json")
    text = kept.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(module, "Grader", lambda **_: pytest.fail("computed again"))
        assert majorities(PLAIN) == first
    kept.unlink()
    majorities(PLAIN)
    assert kept.read_text() == text


def test_what_a_majority_depends_on_names_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    majorities(PLAIN)
    majorities(PLAIN[:2])
    monkeypatch.setattr(module, "GRADER_VERSION", "later")
    majorities(PLAIN)
    assert len(list(cache.glob("majorities-*.json"))) == 3


def test_thoughts_are_pinned_by_content(tmp_path: Path) -> None:
    data = write(tmp_path, MIXED)
    load_thoughts(data)
    write(tmp_path, MIXED[:-1])
    with pytest.raises(UserError, match=r"thoughts\.jsonl: sha256 .* the file was changed"):
        load_thoughts(data)


def test_files_of_another_kind_or_broken(tmp_path: Path) -> None:
    for name, words in (
        ("rows.csv", "unknown kind of file"),
        ("rows.parquet", "not a readable parquet file"),
    ):
        path = tmp_path / name
        path.write_text("a,b\n")
        revision = hashlib.sha256(path.read_bytes()).hexdigest()
        with pytest.raises(UserError, match=words):
            load_thoughts(Data(source="openthoughts", path=str(path), revision=revision))


def test_too_few_problems(tmp_path: Path, characters: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UserError, match=r"6 usable prompts \(0 too long\): expected 7 for"):
        load_training_set(setup_of(write(tmp_path, thoughts(ANSWERS)), 7), None, characters)
