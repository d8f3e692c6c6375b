"""Which part of a generation is its answer."""

import time

import pytest

from orchestrator.grading.boxes import extract, last_boxed
from orchestrator.grading.gold import Gold


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"\boxed{1}\boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{7}, which is prime. Check: 2 + 5 = 7.", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\\boxed{7}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{x = \boxed{5}}", "5"),
        (r"stray } and { then \boxed{5}", "5"),
        (r"done: \boxed{5}, or else \boxed{6", "5"),
        (r"\boxed{ 5 }", "5"),
        # Without braces: to the end of the formula or the line, or to the next word.
        (r"so $\boxed 12$ it is", "12"),
        (r"\boxed 5", "5"),
        (r"\boxed 5 is the answer", "5"),
        (r"\boxed \frac{1}{2}" + "\n and more", r"\frac{1}{2}"),
        # Never closed, but its formula is over.
        (r"first \boxed{3}, at last $\boxed{\frac{1}{2}$.", r"\frac{1}{2}"),
        # Joined boxes.
        (r"$x = \boxed{2}$ or $x = \boxed{3}$", "2, 3"),
        (r"\boxed{1}, \boxed{2}, \text{ and } \boxed{3}", "1, 2, 3"),
        (r"\boxed{4}. So it is \boxed{1} and \boxed{2}", "1, 2"),
        (r"\boxed{5}, \boxed{5}", "5"),
        # Nothing in them.
        (r"\boxed{5}, as asked in a \boxed{}", "5"),
        (r"\boxed{}", None),
        (r"\boxed{5", None),
        (r"\boxedtext{5}", None),
        (r"the answer is 5", None),
        (r"\boxed", None),
        ("", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("gold", "text", "content"),
    [
        ("1,2", r"Alice gets \boxed{1}. Bob is left with \boxed{2}.", "1, 2"),
        # As many boxes as answers, or the last one speaks for all.
        ("1,2", r"Step 1 gives \boxed{7}, Alice gets \boxed{1}. Bob gets \boxed{2}.", "2"),
        ("1,2", r"With \boxed{7} we get \boxed{1 \text{ and } 2}", r"1 \text{ and } 2"),
        ("2", r"Alice gets \boxed{1}. Bob gets \boxed{2}.", "2"),
        # One number in spite of its comma.
        ("58,500", r"Twice that is \boxed{117000}, so \boxed{58500}", "58500"),
        ("(1,2)", r"$x=\boxed{1}$, $y=\boxed{2}$", "1, 2"),
    ],
)
def test_answers_spread_over_boxes(gold: str, text: str, content: str) -> None:
    assert extract(Gold(gold), text) == content


@pytest.mark.parametrize(
    "piece", [r"\boxed{", r"\boxed ", r"\boxed{1}, ", r"\boxed{1}\,", "{", "}", r"\boxed{1", r"\,"]
)
def test_degenerate_texts_take_linear_time(piece: str) -> None:
    start = time.process_time()
    extract(Gold("1,2"), piece * 50_000)
    assert (
        time.process_time() - start < 10
    )  # CPU seconds, of which it needs one; in quadratic time, some hundred
