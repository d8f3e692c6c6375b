"""Which part of a generation is its answer."""

import time

import pytest

from orchestrator.grading.gold import Gold
from orchestrator.grading.notation import extract, last_boxed, open_thought


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
    "mention",
    [
        r"\boxed at the end", r"\boxed.", r"`\boxed`. The 2", r"\boxed, with 2 of", r"\boxed in step 2.",
        r"\boxed a box", r"\boxed I was", r"\(\boxed\) so 5", r"\boxed notation for 2 answers", "\\boxed\nNow 5",
        r"\boxed{}", r"\boxed{...}", r"\boxed{…}", r"\boxed{\ldots}", r"\boxed{\text{...}}", r"\boxed{$\dots$}",
        r"\boxed{?}", r"\boxed{___}", r"\boxed{\_\_}", r"\boxed{\,}", r"\boxed{\square}", r"\fbox{ }",
        r"\boxed{answer}", r"\boxed{ANSWER}", r"\boxed{the answer}", r"\boxed{Your Answer Here}",
        r"\boxed{your_answer}",
        r"\boxed{<your answer>}", r"\boxed{[answer]}", r"\boxed{\text{final answer}}", r"\boxed{final\_answer}",
        r"\boxed{insert answer here}", r"\boxed{**answer**}", r"\boxed{result}", r"\boxed{your choice}",
        r"\boxed{answer}, such as \boxed{...}",
    ],
)  # fmt: skip
def test_a_mentioned_box_is_no_answer(mention: str) -> None:
    assert last_boxed(rf"The sum is \boxed{{42}}. It stands, as asked, in {mention}") == "42"
    assert last_boxed(rf"I have not put it in {mention}") is None


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\{\}}", r"\{\}"),
        (r"\boxed{<}", "<"),
        (r"\boxed{-}", "-"),
        (r"\boxed{no solution}", "no solution"),
        (r"\boxed{\text{Monday}}", r"\text{Monday}"),
        (r"\boxed{\emptyset}", r"\emptyset"),
        (r"\boxed x is it", "x"),
        (r"$\boxed a$", "a"),
        (r"\boxed 5. The rest follows", "5"),
        (r"\boxed -5", "-5"),
        (r"\boxed .5", ".5"),
        (r"\boxed (2,3) is it", "(2,3)"),
    ],
)
def test_short_answers_are_no_mentions(text: str, content: str) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"<think>It is \boxed{9}. No: 7.</think> The sum is 7.", None),
        (r"<think>It is \boxed{9}. No.</think> The sum is \boxed{7}.", "7"),
        (r"<think>It is \boxed{9}. Let me check", None),
        # The template of some models ends with the first tag.
        (r"It is \boxed{9}. No.</think> The sum is \boxed{7}.", "7"),
        (r"It is \boxed{9}. No.</think> The sum is 7.", None),
        ("<think>\n\n</think>\n\n\\boxed{7}", "7"),
        (r"<think>\boxed{9}</think> Wait. <think>\boxed{8}</think> \boxed{7}", "7"),
        (r"<think>\boxed{9}</think> \boxed{7} <think>Or", None),
        (r"<Thinking>\boxed{9}</Thinking>7", None),
        (r"<reasoning>\boxed{9}</reasoning><answer>\boxed{7}</answer>", "7"),
        (r"<|begin_of_thought|>\boxed{9}<|end_of_thought|> \boxed{7}", "7"),
        (r"<|begin_of_thought|>\boxed{9}", None),
        (r"[THINK]\boxed{9}[/THINK]7", None),
        # A tag that is only mentioned.
        (r"Without `<think>` it is \boxed{7}", "7"),
        (r"Without <think> tags it is \boxed{7}", "7"),
    ],
)
def test_thoughts_are_no_answer(text: str, content: str | None) -> None:
    assert last_boxed(text) == extract(Gold("1,2"), text) == content


@pytest.mark.parametrize(
    ("prompt", "tag"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("Think within <think> and </think>.\nassistant: ", ""),
        ("1+1=?\n", ""),
    ],
)
def test_a_prompt_may_open_a_thought(prompt: str, tag: str) -> None:
    assert open_thought(prompt) == tag
    assert last_boxed(open_thought(prompt) + r"Perhaps \boxed{9}") == (None if tag else "9")


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
    "piece",
    [
        r"\boxed{",
        r"\boxed ",
        r"\boxed{1}, ",
        r"\boxed{1}\,",
        "{",
        "}",
        r"\boxed{1",
        r"\,",
        "<think>",
        "</think> ",
    ],
)
def test_degenerate_texts_take_linear_time(piece: str) -> None:
    start = time.process_time()
    extract(Gold("1,2"), piece * 50_000)
    assert (
        time.process_time() - start < 10
    )  # CPU seconds, of which it needs one; in quadratic time, some hundred
