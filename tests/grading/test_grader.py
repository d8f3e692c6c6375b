"""The grader's processes: what hangs, what dies, what is remembered, and what runs at once."""

import os
import queue
import re
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.grading.gold import Gold, decide_plain, plain_number
from orchestrator.grading.grader import LATE, Grade, Grader
from orchestrator.grading.judge import judge
from orchestrator.grading.notation import MAX_ANSWER_CHARS
from orchestrator.liveness.children import Child
from orchestrator.liveness.processes import group_members

# A greatest common divisor of numbers with a million digits, one call into C that no timeout inside
# Python can interrupt.
HANGS = r"\frac{7^{1000000}}{3^{1000000}}"
# Answers that a model's repetition or a malicious reward hunter could produce.
PATHOLOGICAL = {
    "tower": r"10^{10^{10^{10}}}",
    "factorial": r"\frac{99999999!}{2}",
    "nested fractions": r"\frac{1}{" * 200 + "x" + "}" * 200,
    "nested brackets": "(" * 900 + "x" + ")" * 900,
    "nested roots": r"\sqrt{" * 150 + "2" + "}" * 150,
    "long sum": "+".join(f"x^{{{power}}}" for power in range(200)),
    "long list": ",".join(map(str, range(400))),
    "large matrix": r"\begin{pmatrix}" + r"\\".join(["&".join("1" * 20)] * 20) + r"\end{pmatrix}",
    "large determinant": r"\det\begin{pmatrix}"
    + r"\\".join(["&".join("abcdefgh")] * 8)
    + r"\end{pmatrix}",
    "spacing": r"\," * 900,
    "signs": r"\pm 1 " * 300,
    "sum": r"\sum_{n=1}^{10^{12}} \frac{1}{n^{2}}",
    "integral": r"\int_0^1 \sin(x^{x^{x}}) dx",
    "too long": "9" * (MAX_ANSWER_CHARS + 1),
}


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """One grader for the quick tests, with a deadline that a loaded machine keeps too."""
    with Grader(deadline_s=30.0) as quick:
        yield quick


@pytest.fixture(scope="module")
def brief() -> Iterator[Grader]:
    """One grader that waits two seconds and forgets every answer."""
    with Grader(deadline_s=2.0, cache_size=0) as impatient:
        yield impatient


def process_of(grader: Grader) -> Child | None:
    """The process of a grader with one worker, None if it runs none."""
    (slot,) = grader._idle.queue
    return slot.worker


def test_stored_answer_grades_like_the_generation(grader: Grader) -> None:
    for gold, answer in [(r"\frac12", "0.5"), ("5", "6")]:
        assert grader.grade_answer(gold, answer) == grader.grade(gold, rf"\boxed{{{answer}}}")


def test_without_a_box_there_is_no_answer(grader: Grader) -> None:
    assert grader.grade("5", "The answer is $5$.") == Grade(False, None)
    assert grader.grade("5", r"\boxed{}") == Grade(False, None)
    assert grader.grade_answer("5", None) == Grade(False, None)


def test_grade_many_keeps_order() -> None:
    golds = [f"${number}x$" for number in range(120)]
    pairs: list[tuple[Gold | str, str]] = [
        (gold, rf"\boxed{{{index % 7}x}}") for index, gold in enumerate(golds)
    ]
    with Grader(deadline_s=30.0, workers=2) as many:
        grades = many.grade_many(pairs + pairs)
        started = [slot.worker for slot in many._idle.queue if slot.worker is not None]
    assert [grade.correct for grade in grades] == [index % 7 == index for index in range(120)] * 2
    assert len(started) == 2


def test_strange_answers_are_graded_not_raised(grader: Grader) -> None:
    strange = [
        "\n",
        "\x00",
        "\ud800",
        "{}" * 10,
        "\\",
        r"\frac",
        "((((",
        "))))",
        "=",
        ",",
        r"\%",
        "^_",
        r"\text{",
        "x=",
        "[,]",
    ]
    for answer in strange:
        assert not grader.grade_answer("$2x$", answer).correct


@pytest.mark.parametrize("kind", PATHOLOGICAL)
def test_pathological_answers_are_wrong_within_the_deadline(brief: Grader, kind: str) -> None:
    assert not brief.grade_answer("$2x$", PATHOLOGICAL[kind]).correct
    assert brief.grade_answer("$3x$", "x+2x").correct


def test_worker_may_not_fill_the_memory(grader: Grader) -> None:
    assert grader.grade_answer("$2x$", "x+x").correct
    process = process_of(grader)
    assert process is not None
    assert 0 < resource.prlimit(process.pid, resource.RLIMIT_AS)[0] <= 2 << 30


def test_hanging_answer_costs_its_deadline_and_the_next_grade_works() -> None:
    with Grader(deadline_s=1.0) as waiting:
        assert waiting.grade("$2x$", r"\boxed{x+x}").correct
        start = time.monotonic()
        assert waiting.grade("$2x$", rf"\boxed{{{HANGS}}}") == Grade(False, HANGS, timed_out=True)
        assert time.monotonic() - start > 0.9
        process = process_of(waiting)
        assert process is not None
        assert waiting.grade("$3x$", r"\boxed{x+2x}").correct
        assert process_of(waiting) is process, "no answer pays for the start of another one"
        waiting.close()
        assert waiting.grade("$2x$", rf"\boxed{{{HANGS}}}").timed_out
        assert process_of(waiting) is None, "remembered: a closed grader could begin again"
    assert not group_members(process.pid)


class FakeSlot:
    """Judges by name: `quick`, `slow` answers are right, a `bomb` never ends. Counts whole deadlines."""

    def __init__(self) -> None:
        self.whole = 0

    def ask(self, request: dict[str, Any], deadline_s: float, cpu_s: float | None) -> bool | None:
        self.whole += cpu_s is None
        kind = request["answer"].split()[0]
        return True if kind == "quick" or (kind == "slow" and cpu_s is None) else None

    def close(self) -> None:
        """Nothing to end."""


def fake_grader(workers: int) -> tuple[Grader, list[FakeSlot]]:
    grader, slots = Grader(workers=workers), [FakeSlot() for _ in range(workers)]
    grader._idle = queue.LifoQueue()
    for slot in slots:
        grader._idle.put(slot)  # pyright: ignore[reportArgumentType]
    return grader, slots


def grades_of(grader: Grader, answers: list[str]) -> list[str]:
    """For each answer `right`, `wrong` or `timed out`."""
    words = []
    for grade in grader.grade_answers([(Gold("gold"), answer) for answer in answers]):
        words.append("timed out" if grade.timed_out else "right" if grade.correct else "wrong")
    return words


@pytest.mark.parametrize("workers", [1, 3])
def test_many_hanging_answers_leave_quick_ones_their_grades(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    bombs = [f"bomb {at}" for at in range(100)]
    quick = [f"quick {at}" for at in range(100)]
    mixed = [answer for pair in zip(bombs, quick, strict=True) for answer in pair]
    mixed = ["slow early", *mixed, "slow late"]
    grader, slots = fake_grader(workers)
    grades = grades_of(grader, mixed)
    assert grades == ["right", *["timed out", "right"] * 100, "timed out"]
    assert sum(slot.whole for slot in slots) <= LATE + workers
    assert f"{LATE} answers missed 5 s; 93 more" in caplog.text
    # What an earlier call remembers changes nothing, so that a resumed run has the same rewards.
    remembering, _ = fake_grader(workers)
    assert grades_of(remembering, ["slow late", *bombs[:3]]) == ["right", *["timed out"] * 3]
    assert grades_of(remembering, mixed) == grades


def test_a_few_slow_answers_all_get_their_time() -> None:
    grader, _ = fake_grader(1)
    bombs = [f"bomb {at}" for at in range(LATE - 1)]
    slow = [f"slow {at}" for at in range(50)]
    assert grades_of(grader, [*bombs, *slow]) == [*["timed out"] * (LATE - 1), *["right"] * 50]
    assert grader.grade_answer("gold", "slow") == Grade(True, "slow")


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" + "(" * 500_000 + r"5" + ")" * 500_000 + "}",
        r"\boxed{" + "9" * 1_000_000 + "}",
        r"\boxed{" * 100_000,
        r"\boxed{" + r"\text{a} " * 100_000 + "}",
        r"\boxed{\frac{" + "\ud800" + "}{\x00}}",
        "\ud800\udfff" * 100_000 + r" \boxed{\udcff}",
        "<think>" * 100_000,
    ],
    ids=["brackets", "digits", "unclosed", "words", "surrogate", "surrogates", "thoughts"],
)
def test_degenerate_generations_are_wrong(grader: Grader, text: str) -> None:
    for gold in ("5", "1, 2", "\ud800", "\x00", "1, 2" * 100_000):
        assert not grader.grade(gold, text).correct
    assert grader.grade("\ud800", "\\boxed{\ud800}").correct


def test_works_in_a_thread(brief: Grader) -> None:
    """No alarm outside the worker: signals work in a process's main thread only."""
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(brief.grade_answer("$2x$", "x+x").correct)
    )
    thread.start()
    thread.join()
    assert found == [True]


def test_worker_killed_between_answers_is_replaced_and_a_closed_grader_leaves_none() -> None:
    grader = Grader(deadline_s=30.0)
    assert process_of(grader) is None
    assert grader.grade_answer("$2x$", "x+x").correct
    killed = process_of(grader)
    assert killed is not None
    os.kill(killed.pid, signal.SIGKILL)
    while killed.alive():
        time.sleep(0.01)
    assert grader.grade_answer("$3x$", "x+2x").correct
    closed = process_of(grader)
    assert closed is not None
    grader.close()
    assert not closed.alive()
    grader.close()


def test_cache_answers_repeats_and_stays_bounded() -> None:
    with Grader(deadline_s=30.0, cache_size=2) as small:
        for answer in ["x+x", "x+2x", "x+3x"]:
            small.grade_answer("$2x$", answer)
        assert [key[1] for key in small._cache] == ["x+2x", "x+3x"]
        small.close()
        assert not small.grade_answer("$2x$", "x+2x").correct
        assert process_of(small) is None, "remembered: a closed grader could begin again"
        # Used last, so the other one goes first.
        assert [key[1] for key in small._cache] == ["x+3x", "x+2x"]


def test_worker_starts_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sympy.py").write_text("raise ImportError('the wrong sympy')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with Grader(deadline_s=30.0) as elsewhere:
        assert elsewhere.grade_answer("$2x$", "x+x").correct


def test_worker_that_cannot_start_says_how_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "orchestrator.grading.grader._WORKER_MODULE", "orchestrator.grading.no_such_worker"
    )
    message = r"did not start: the grading worker died; try: .*no_such_worker"
    with Grader() as broken, pytest.raises(RuntimeError, match=message):
        broken.grade_answer("$2x$", "x+x")


@pytest.mark.parametrize("text", ["5", "-5", "+5", "05", "5.0", "5.", ".5"])
def test_plain_numerals_have_exact_values(text: str) -> None:
    value = plain_number(f" {text} ")
    assert value is not None
    assert float(value) == float(text)


@pytest.mark.parametrize("text", ["", "5,0", "1/2", "5e3", "1_000", "٣", "5 5", "--5", "9" * 2000])
def test_other_texts_are_not_plain_numerals(text: str) -> None:
    assert plain_number(text) is None


def test_fast_path_agrees_with_the_worker() -> None:
    for gold, answer in [("025", "25"), ("27.0", "27"), ("12", "12.5"), ("-4.0", "4")]:
        fast = decide_plain(Gold(gold), answer)
        assert fast == judge(Gold(gold), answer)
        # Dollar signs bar the fast path, so this is the full comparison.
        assert fast == judge(Gold(f"${gold}$"), answer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answer": ""}, "'answer' is '': expected a non-empty string"),
        ({"answer": "5", "multiple": 1}, "'multiple' is 1: expected true or false"),
        ({"answer": "5", "unit": 3}, "'unit' is 3: expected a string or null"),
        (
            {"answer": "5", "tolerance": -1},
            "'tolerance' is -1: expected a finite number >= 0 or null",
        ),
        (
            {"answer": "5", "tolerance": float("nan")},
            "'tolerance' is nan: expected a finite number",
        ),
    ],
)
def test_gold_refuses_wrong_fields(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Gold(**arguments)


def test_last_box_wins_in_a_long_text(grader: Grader) -> None:
    text = (
        r"Let \boxed{3} be a guess. " * 500 + r"Therefore \boxed{\frac{14}{3}}. I checked 3 and 7."
    )
    assert grader.grade(r"\frac{14}{3}", text).correct
    assert not grader.grade("3", text).correct


def test_several_boxes_are_one_answer(grader: Grader) -> None:
    text = r"Thus $x = \boxed{2}$ or $x = \boxed{-3}$."
    assert grader.grade("2,-3", text) == Grade(True, "2, -3")
    assert grader.grade("2", text) == Grade(False, "2, -3")
