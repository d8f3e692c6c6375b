"""Tests of the grader: what is right, what is wrong, what hangs, and what a file may hold."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tasks.grade_file import Counts, grade_file
from orchestrator.tasks.grader import Gold, Grade, Grader, decide_plain, last_boxed, plain_number

RIGHT: list[tuple[Gold | str, str]] = [
    ("025", "25"),
    ("25", "025"),
    ("27.0", "27"),
    ("2,125", "2125"),
    ("2125", "2,125"),
    (r"11,\! 111,\! 111,\! 100", "11111111100"),
    (r"11,\! 111,\! 111,\! 100", "11,111,111,100"),
    (r"\$32,\!348", "32348"),
    (r"\$32,\!348", r"\$32{,}348"),
    ("58,500", "58500"),
    ("58,500", "58, 500"),
    ("10080", r"10\,080"),
    ("10080", "10 080"),
    (r"864 \mbox{ inches}^2", "864"),
    (r"864 \mbox{ inches}^2", r"864 \text{ square inches}"),
    (r"864 \mbox{ inches}^2", r"864\,\text{in}^2"),
    (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}^\circ"),
    (r"\frac{270}7\text{ degrees}", r"\dfrac{270}{7}"),
    (r"90^\circ", "90"),
    ("90", r"90^{\circ}"),
    ("90", "90°"),
    (r"90^\circ", r"90\text{ degrees}"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{Evelyn}", r"\textbf{Evelyn}"),
    (r"\text{(C)}", "C"),
    (r"\text{(C)}", "(C)"),
    (r"\text{(C)}", r"\text{C}"),
    (r"\text{(C)}", r"\textbf{(C)}\ 12"),
    (r"\text{ellipse}", "an ellipse"),
    (r"\text{even}", r"\mathrm{even}"),
    (r"\text{A, B}", "B,A"),
    (r"\text{A,B,E}", r"\text{A}, \text{B}, \text{E}"),
    (r"5.4 \text{ cents}", "5.4"),
    (r"5.4 \text{ cents}", "5.4 cents"),
    ("8 m", "8m"),
    (Gold("1,3,5", multiple=True), "5, 3, 1"),
    (Gold("1,3,5", multiple=True), r"\{1,3,5\}"),
    (Gold("1,3,5", multiple=True), r"1, 3,\text{ and }5"),
    ("3, 5, 7", "x=3, x=5, x=7"),
    ("3, 5, 7", "x = 3, 5, 7"),
    ("1,-2", "-2,1"),
    ("1,-2", r"x=1 \text{ or } x=-2"),
    (Gold("$69$,$84$", multiple=True), "84, 69"),
    (Gold("$(6,3),(9,3),(9,5),(54,5)$", multiple=True), "(54,5), (9,5), (9, 3), (6,3)"),
    (Gold("$(6,3),(9,3),(9,5),(54,5)$", multiple=True), r"(x,y)\in\{(6,3),(9,3),(9,5),(54,5)\}"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
    (r"1 \pm \sqrt{19}", r"x = 1 \pm \sqrt{19}"),
    (r"\{1\pm\sqrt{5},-2\}", r"-2, 1+\sqrt5, 1-\sqrt5"),
    ("(-2,1)", "(-2, 1)"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    (r"x \in [-2,7]", "[-2,7]"),
    (r"x \in [-2,7]", r"-2 \le x \le 7"),
    (r"(2,\infty)", "x>2"),
    ("(3,4]", r"\left(3,4\right]"),
    ("(2,4)", "2,4"),
    ("(2,4)", "x=2, y=4"),
    ("(3,2)", "(m,n)=(3,2)"),
    ("1,3", "(a,b)=(1,3)"),
    (r"(0,9) \cup (9,36)", r"(9,36)\cup(0,9)"),
    ("$t(0,4]$", "(0,4]"),
    ("$t(0,4]$", r"t \in (0,4]"),
    ("$t(0,4]$", r"0<t\le 4"),
    (r"$(-\infty, 0) \cup\{1\}$.", r"(-\infty,0)\cup\{1\}"),
    (r"$(-\infty, 0) \cup\{1\}$.", r"\{1\}\cup(-\infty,0)"),
    (r"$\angle B E A_{1}=90$,$\angle A E B_{1}=90$", r"90^\circ, 90^\circ"),
    (r"$\angle B E A_{1}=90$,$\angle A E B_{1}=90$", r"\angle BEA_1 = 90^\circ, \angle AEB_1 = 90^\circ"),
    ("$f(n)=n$, $g(n)=1$", r"f(n) = n \text{ and } g(n) = 1"),
    ("$f(x)=2 x$", "2x"),
    ("$f(x)=2 x$", "f(x)=2x"),
    ("$f(n)=n^{2}$", "f(x)=x^2"),
    (r"$m_{\max }=n^{2}-n-1$", "n^2-n-1"),
    (r"$m_{\max }=n^{2}-n-1$", "m = n^2 - n - 1"),
    (r"$k \geqslant 2$", r"k \ge 2"),
    (r"$k \geqslant 2$", r"[2,\infty)"),
    ("$k=1$", "1"),
    ("x=5", "5"),
    ("5", "x=5"),
    ("y = 2x + 3", "2x-y+3=0"),
    ("5x - 7y + 11z + 4 = 0", "-5x+7y-11z-4=0"),
    ("62.5%", "62.5"),
    ("62.5%", r"62.5\%"),
    ("62.5%", "0.625"),
    ("62.5%", r"\frac{5}{8}"),
    (r"$8 \%$", "8"),
    (r"$8 \%$", r"8\%"),
    ("10", r"10\%"),
    ("0.15", r"15\%"),
    (Gold("4.2", unit="%", tolerance=0.1), "4.2"),
    (Gold("4.2", unit="%", tolerance=0.1), r"4.2\%"),
    (Gold("4.2", unit="%", tolerance=0.1), "4.3"),
    (Gold("4.2", tolerance=0.1), r"\frac{17}{4}"),
    (Gold(r"$\frac{600}{7}$", unit="km/h"), r"\frac{600}{7} \text{ km/h}"),
    (Gold(r"$\frac{600}{7}$", unit="km/h"), r"\frac{600}{7} km/h"),
    (Gold("45", unit="minute"), "45 minutes"),
    (Gold("$166$", unit="$cm^2$"), r"166 \mathrm{~cm}^2"),
    (Gold("$166$", unit="$cm^2$"), "166 cm^2"),
    (Gold("8", unit="min"), "8 min"),
    ("52_8", "52_{8}"),
    ("52_8", "52"),
    ("52_8", "(52)_8"),
    ("4210_{5}", "4210_5"),
    (r"\text{A5}_{11}", "A5_{11}"),
    (r"1\frac{4}{5}", r"\frac95"),
    (r"137 \frac{1}{2}", "137.5"),
    (".35625", "0.35625"),
    ("1/3", "0.333333"),
    ("6 - 5i", "6-5i"),
    ("6+9i", "9i+6"),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\frac15\begin{pmatrix}1\\-18\end{pmatrix}"),
    (r"\frac43", r"1.\overline{3}"),
    ("p - q", "-q+p"),
    (r"\frac{20000}{\pi}", r"20000/\pi"),
    ("$2^{1009}$", "2^{1009}"),
    ("$2^{1009}$", "2^1009"),
    (r"$\binom{2n}{n}$", r"\frac{(2n)!}{(n!)^2}"),
    (r"$2021 \cdot 505 \cdot 337$", "343943885"),
    ("$10^{100}$,$10^{1 / 100}$", "10^{100}, 10^{0.01}"),
    ("$221,$8$", "221, 8"),
    ("2500,7500", "7500, 2,500"),
    (Gold("2400, 1350, 864", multiple=True), "2,400, 1,350, 864"),
    (r"$\quad(2+\sqrt{2}, 1+\sqrt{2})$", r"(2+\sqrt2,1+\sqrt2)"),
    (
        r"$x=\frac{1}{6} \pi+\pi k, \frac{1}{3} \pi+\pi k, \frac{2}{3} \pi+\pi k, \frac{5}{6} \pi+\pi k$",
        r"x = \frac{\pi}{6}+k\pi, \frac{\pi}{3}+k\pi, \frac{2\pi}{3}+k\pi, \frac{5\pi}{6}+k\pi, k\in\mathbb{Z}",
    ),
    (r"18.8^{\circ}", r"\approx 18.8^\circ"),
    (r"\sqrt{51}", r"\sqrt{51} \approx 7.14"),
    ("36", "$36"),
    ("36", r"\(36\)"),
    ("36", "36."),
    ("36", r"\text{36}"),
    ("36", r"\textbf{36}"),
    (r"3\sqrt{13}", r"3 \sqrt {13}"),
    ("2k+2", "2(k+1)"),
    ("$-2,-2$", "a=-2, b=-2"),
    (r"15\mbox{ cm}^2", r"15\ \text{cm}^2"),
    ("6r^2-4r-24", "2(3r^2-2r-12)"),
    (r"$(45^{\circ}, 60^{\circ}),(135^{\circ}, 60^{\circ})$", r"(135^\circ,60^\circ),(45^\circ,60^\circ)"),
    ("$1/3$", r"\frac13"),
    (r"\text{odd}", "Odd"),
    ("5", r"5\text{ ways}"),
    ("10", r"10 \text{ distinct integers}"),
    ("1000000", "10^6"),
    ("(2,4)", r"\begin{pmatrix}2\\4\end{pmatrix}"),
    ("3.5", r"3\frac12"),
    (r"\frac{1}{2}", "0.5"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    ("12", r"\frac{24}{2} = 12"),
    ("2", "|AB| = 2"),
    ("$f(n)=1$", "f(x)=1"),
    ("$f(n)=n+c$", "f(x)=x+c"),
    (r"05\!:\!00", "5:00"),
    (r"\frac{1}{3}", r"0.\overline{3}"),
    (r"0.\overline{36}", r"\frac{4}{11}"),
    ("3:2", "3:2"),
    (r"\approx 8.24 \text{ mph}", "8.24"),
    (r"\frac\pi 2", r"\frac{\pi}{2}"),
    ("1,2,3", r"\left\{1,2,3\right\}"),
]

WRONG: list[tuple[Gold | str, str]] = [
    (Gold("1,3,5", multiple=True), "135"),
    ("1,3,5", "135"),
    ("135", "1,3,5"),
    ("(1,2)", "(2,1)"),
    ("[0,1)", "(0,1)"),
    ("(0,1)", "[0,1]"),
    ("0.5", "5"),
    ("12", "12.5"),
    (r"\frac12", r"\frac13"),
    ("6m", "6"),
    ("6", "6m"),
    (".0000672", "0.0000671"),
    (".0000672", "0"),
    ("1/3", "0.33"),
    ("52_8", "52_9"),
    ("52_8", "42"),
    ("52_8", "25_8"),
    (Gold("1,3,5", multiple=True), "1,3"),
    (Gold("1,3", multiple=True), "1,3,5"),
    (Gold("-2,-2", multiple=True), "2,-2"),
    ("3, 5, 7", "3,5,8"),
    (r"\text{east}", "seat"),
    (r"\text{east}", r"\text{west}"),
    (r"\text{(C)}", "(D)"),
    (r"\text{(C)}", "C, D"),
    (r"\text{even}", "odd"),
    ("x=5", "y=5"),
    ("x=5", "x=-5"),
    ("62.5%", "6.25"),
    ("0.5", r"0.5\%"),
    ("62.5%", r"0.625\%"),
    (Gold("4.2", unit="%", tolerance=0.1), "4.31"),
    ("$f(n)=n$, $g(n)=1$", "f(n)=1, g(n)=n"),
    ("(2,4)", "4,2"),
    ("(2,4)", "(2,4]"),
    (Gold("(1,2),(3,4)", multiple=True), "(2,1),(4,3)"),
    (Gold("(1,2),(3,4)", multiple=True), "1,2,3,4"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}"),
    (r"\{1\pm\sqrt{5},-2\}", r"1\pm\sqrt5"),
    ("2^{1009}", "2"),
    ("2^{-100}", "0"),
    ("5", "-5"),
    ("5", "5i"),
    (r"7 \text{ p.m.}", r"7\text{ a.m.}"),
    ("5", r"5 \text{ million}"),
    ("100", "1,00"),
    ("1234", "1,2,3,4"),
    ("(3,4]", "[3,4)"),
    ("p - q", "q - p"),
    ("n^{2}-n-1", "n^2-n+1"),
    (r"\frac{100!}{2^{50}}", r"\frac{100!}{2^{50}}+1"),
    ("5", "5, 6"),
    ("2n", "2m"),
    ("$f(x)=2 x$", "f(x)=3x"),
    ("$f(n)=n^{2}$", "f(x)=x^3"),
    ("$f(n)=n^{2}$", "f(x)=n^2"),
    ("90", "9"),
    ("x>2", "x<2"),
    (r"(2,\infty)", r"x \ge 2"),
    ("$t(0,4]$", "(0,4)"),
    ("10", "12"),
    ("6+9i", "6-9i"),
    ("36", r"\text{thirty}"),
    ("0", "1e-9"),
    ("0", "0.0000001"),
    ("58,500", "58.500"),
    ("2,125", "2.125"),
    ("10080", "10, 80"),
    ("1.5", "15"),
    ("-1", "1"),
    (r"\frac{1}{4}", r"\frac{1}{2}^2 x"),
    ("3", "three apples 3 or 4"),
    ("2", "2x"),
    ("2x", "2"),
    (r"(0,9) \cup (9,36)", "(0,36)"),
    (r"\sqrt{2}", "1.41"),
    ("5", "5!"),
    ("5", r"\{5,5,6\}"),
    ("1,3", "(3,1)"),
    ("$f(n)=n+x$", "f(x)=x+n"),
    ("3:2", "2:3"),
    ("$f(n)=n$", "f(x)=1"),
    ("(2,4)", r"\begin{pmatrix}4\\2\end{pmatrix}"),
    (r"\text{A, B}", "A, C"),
    ("(1,2)", r"\{1,2\}"),
    ("[1,2]", r"\{1,2\}"),
]

EVAL_FILES = ("math500", "olympiadbench", "olympiadbench_674", "amc23", "amc22_23", "aime24", "aime25", "gsm8k_test")
# Parses to an integer of 370 million digits, which no timeout inside Python can interrupt.
HANGS = r"9^{9^{9}}"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """One grader for the quick tests, with a deadline that a loaded machine keeps too."""
    with Grader(deadline_s=30.0) as quick:
        yield quick


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right_answers_are_correct(grader: Grader, gold: Gold | str, answer: str) -> None:
    assert grader.grade(gold, rf"so the answer is $\boxed{{{answer}}}$.") == Grade(True, answer)


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong_answers_stay_incorrect(grader: Grader, gold: Gold | str, answer: str) -> None:
    assert grader.grade(gold, rf"so the answer is $\boxed{{{answer}}}$.") == Grade(False, answer)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"\boxed{1}\boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\\boxed{7}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{x = \boxed{5}}", "5"),
        (r"stray } and { then \boxed{5}", "5"),
        (r"done: \boxed{5}, or else \boxed{6", "5"),
        (r"\boxed{ 5 }", "5"),
        (r"\boxed{}", ""),
        (r"\boxed{5", None),
        (r"the answer is 5", None),
        (r"\boxed", None),
        ("", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_last_boxed_takes_linear_time_on_unclosed_boxes() -> None:
    start = time.monotonic()
    assert last_boxed(r"\boxed{" * 50_000) is None
    assert time.monotonic() - start < 5


def test_last_box_wins_in_a_long_text(grader: Grader) -> None:
    text = r"Let \boxed{3} be a guess. " * 500 + r"Therefore \boxed{\frac{14}{3}}. I checked 3 and 7."
    assert grader.grade(r"\frac{14}{3}", text).correct
    assert not grader.grade("3", text).correct


def test_without_a_box_there_is_no_answer(grader: Grader) -> None:
    assert grader.grade("5", "The answer is $5$.") == Grade(False, None)
    assert grader.grade_answer("5", None) == Grade(False, None)
    assert grader.grade("5", r"\boxed{}") == Grade(False, "")


def test_stored_answer_grades_like_the_generation(grader: Grader) -> None:
    for gold, answer in [(r"\frac12", "0.5"), ("5", "6")]:
        assert grader.grade_answer(gold, answer) == grader.grade(gold, rf"\boxed{{{answer}}}")


def test_grade_many_keeps_order(grader: Grader) -> None:
    pairs: list[tuple[Gold | str, str]] = [("1", r"\boxed{1}"), (r"2\pi", r"\boxed{3\pi}"), ("3", "none")]
    assert [grade.correct for grade in grader.grade_many(pairs)] == [True, False, False]


def test_strange_answers_are_graded_not_raised(grader: Grader) -> None:
    for answer in [
        "\n",
        "\x00",
        "\ud800",
        "{}" * 10,
        "\\",
        r"\frac",
        "x" * 5000,
        "((((",
        "))))",
        "=",
        ",",
        r"\%",
        "^_",
    ]:
        assert not grader.grade_answer("$2x$", answer).correct


@pytest.mark.parametrize("text", ["5", "-5", "+5", "05", "5.0", "5.", ".5"])
def test_plain_numerals_have_exact_values(text: str) -> None:
    value = plain_number(f" {text} ")
    assert value is not None
    assert float(value) == float(text)


@pytest.mark.parametrize("text", ["", "5,0", "1/2", "5e3", "1_000", "٣", "5 5", "--5", "9" * 2000])
def test_other_texts_are_not_plain_numerals(text: str) -> None:
    assert plain_number(text) is None


def test_fast_path_agrees_with_the_worker() -> None:
    from orchestrator.tasks.grader_worker import judge

    for gold, answer in [("025", "25"), ("27.0", "27"), ("12", "12.5"), ("-4.0", "4")]:
        fast = decide_plain(Gold(gold), answer)
        assert fast == judge(Gold(gold), answer)
        # Dollar signs bar the fast path, so this is the full comparison.
        assert fast == judge(Gold(f"${gold}$"), answer)


def test_hanging_answer_costs_its_deadline_and_the_next_grade_works() -> None:
    with Grader(deadline_s=1.0) as grader:
        assert grader.grade("$2x$", r"\boxed{x+x}").correct
        start = time.monotonic()
        assert grader.grade("$2x$", rf"\boxed{{{HANGS}}}") == Grade(False, HANGS, timed_out=True)
        assert 0.9 < time.monotonic() - start < 5
        assert grader.grade("$2x$", rf"\boxed{{{HANGS}}}").timed_out
        assert grader.grade("$2x$", r"\boxed{9^9^9^9}").correct is False
        assert grader.grade_answer("$3x$", "x+2x").correct


def test_worker_killed_between_answers_is_replaced() -> None:
    with Grader(deadline_s=30.0) as grader:
        assert grader.grade_answer("$2x$", "x+x").correct
        assert grader._worker is not None
        grader._worker._process.kill()
        grader._worker._process.wait()
        assert grader.grade_answer("$3x$", "x+2x").correct


def test_closed_grader_leaves_no_process_and_can_start_again() -> None:
    grader = Grader(deadline_s=30.0)
    assert grader._worker is None
    assert grader.grade_answer("$2x$", "x+x").correct
    assert grader._worker is not None
    process = grader._worker._process
    grader.close()
    assert process.returncode == 0
    assert grader.grade_answer("$3x$", "x+2x").correct
    grader.close()
    grader.close()


def test_cache_answers_repeats_and_stays_bounded(grader: Grader) -> None:
    with Grader(deadline_s=30.0, cache_size=2) as small:
        for answer in ["x+x", "x+2x", "x+3x"]:
            small.grade_answer("$2x$", answer)
        assert [key[1] for key in small._cache] == ["x+2x", "x+3x"]
        small.close()
        assert not small.grade_answer("$2x$", "x+2x").correct
        assert small._worker is None
        # Used last, so the other one goes first.
        assert [key[1] for key in small._cache] == ["x+3x", "x+2x"]


def test_worker_starts_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sympy.py").write_text("raise ImportError('the wrong sympy')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with Grader(deadline_s=30.0) as grader:
        assert grader.grade_answer("$2x$", "x+x").correct


def test_worker_that_cannot_start_says_how_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.tasks.grader._WORKER_MODULE", "orchestrator.tasks.no_such_worker")
    with (
        Grader() as grader,
        pytest.raises(RuntimeError, match=r"did not start: it exited at once; try: .*no_such_worker"),
    ):
        grader.grade_answer("$2x$", "x+x")


def test_worker_ends_when_its_stdin_closes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.tasks.grader_worker"],
        input='{"gold": {"answer": "$2x$"}, "answer": "x+x", "deadline_s": 30}\n',
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"ready": True}, {"correct": True}]


@pytest.mark.parametrize("heavy", ["torch", "ray", "math_verify", "sympy"])
def test_grader_module_stays_light(heavy: str) -> None:
    code = f"import sys, orchestrator.tasks.grader; sys.exit({heavy!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answer": ""}, "'answer' is ''; expected a non-empty string"),
        ({"answer": "5", "multiple": 1}, "'multiple' is 1; expected true or false"),
        ({"answer": "5", "unit": 3}, "'unit' is 3; expected a string or null"),
        ({"answer": "5", "tolerance": -1}, "'tolerance' is -1; expected a finite number >= 0 or null"),
        ({"answer": "5", "tolerance": float("nan")}, "'tolerance' is nan; expected a finite number"),
    ],
)
def test_gold_refuses_wrong_fields(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gold(**arguments)


@pytest.mark.parametrize("arguments", [{"deadline_s": 0}, {"deadline_s": float("inf")}, {"cache_size": -1}])
def test_grader_refuses_wrong_settings(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Grader(**arguments)


def _write(path: Path, rows: list[Any]) -> Path:
    """A JSON Lines file of the rows; a string row is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_grade_file_adds_grades_and_keeps_fields(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "gold": "025", "generation": r"\boxed{25}", "timed_out": True},
        {"id": "é", "gold": {"answer": "1,3", "multiple": True}, "generation": r"\boxed{3, 1}"},
        "",
        {"id": "c", "gold": "5", "generation": "no box"},
    ]
    path = _write(tmp_path / "in.jsonl", rows)
    assert grade_file(path, None) == Counts(n=3, correct=2, no_answer=1, timed_out=0)
    assert list(tmp_path.iterdir()) == [path]
    assert grade_file(path, path) == Counts(n=3, correct=2, no_answer=1, timed_out=0)
    assert list(tmp_path.iterdir()) == [path]
    graded = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert graded[0] == {"id": "a", "gold": "025", "generation": r"\boxed{25}", "correct": True, "extracted": "25"}
    assert [row["id"] for row in graded] == ["a", "é", "c"]
    assert [row["correct"] for row in graded] == [True, True, False]
    assert graded[2]["extracted"] is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{broken", r"in\.jsonl:2: not JSON \(.*\); expected one object per line"),
        ([1], r"in\.jsonl:2: found \[1\]; expected an object with 'gold' and 'generation'"),
        ({"gold": "5"}, r"in\.jsonl:2: key 'generation' is missing; the row has \['gold'\]"),
        ({"generation": "5"}, r"in\.jsonl:2: key 'gold' is missing"),
        ({"gold": "5", "generation": 5}, r"in\.jsonl:2: key 'generation' is 5; expected a string"),
        (
            {"gold": 5, "generation": "5"},
            r"in\.jsonl:2: key 'gold' is 5; expected a string or an object with \['answer'",
        ),
        ({"gold": {"unit": "km"}, "generation": "5"}, r"in\.jsonl:2: key 'gold' lacks the field 'answer'"),
        ({"gold": {"answer": "5", "x": 1}, "generation": "5"}, r"in\.jsonl:2: key 'gold' has unknown fields \['x'\]"),
        ({"gold": {"answer": 5}, "generation": "5"}, r"in\.jsonl:2: key 'gold': gold field 'answer' is 5"),
    ],
)
def test_grade_file_names_the_line_at_fault(tmp_path: Path, row: Any, message: str) -> None:
    path = _write(tmp_path / "in.jsonl", [{"gold": "5", "generation": "5"}, row])
    with pytest.raises(ValueError, match=message) as caught:
        grade_file(path, tmp_path / "out.jsonl")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()


def test_grade_file_refuses_unusable_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.jsonl: cannot be read \(No such file or directory\)"):
        grade_file(tmp_path / "absent.jsonl", None)
    (tmp_path / "latin.jsonl").write_bytes(b'{"gold": "\xe9"}\n')
    with pytest.raises(ValueError, match="is not UTF-8"):
        grade_file(tmp_path / "latin.jsonl", None)
    path = _write(tmp_path / "in.jsonl", [{"gold": "5", "generation": "5"}])
    with pytest.raises(ValueError, match=r"the folder .* does not exist"):
        grade_file(path, tmp_path / "absent" / "out.jsonl")


def _benchmark(name: str) -> list[tuple[dict[str, Any], Gold]]:
    """(row, gold) of an evaluation file under TRB_DATA_DIR; skips the test if that is unset."""
    folder = os.environ.get("TRB_DATA_DIR")
    if not folder:
        pytest.skip("TRB_DATA_DIR is unset: set it to the folder that holds eval/*.jsonl to check the published golds")
    path = Path(folder) / "eval" / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row, _gold(row)) for row in rows]


def _gold(row: dict[str, Any]) -> Gold:
    """A benchmark row's gold."""
    tolerance = float(row["error"]) if row.get("error") else None
    return Gold(row["answer"], bool(row.get("is_multiple_answer")), row.get("unit"), tolerance)


def _value(answer: str) -> float | None:
    """A plainly numeric gold's value."""
    try:
        return float(answer.strip("$").replace(",", ""))
    except ValueError:
        return None


@pytest.mark.parametrize("name", EVAL_FILES)
def test_every_gold_is_right_against_itself_and_wrong_against_its_neighbour(grader: Grader, name: str) -> None:
    rows = _benchmark(name)
    failed = []
    for (row, gold), (other, _) in zip(rows, rows[1:] + rows[:1], strict=True):
        # The other fraction command and the dropped dollars keep this from being a comparison of equal strings.
        said = row["answer"].strip("$").replace(r"\frac", r"\dfrac").replace(", ", ",")
        if not grader.grade(gold, rf"\boxed{{1717171}} hence \boxed{{{said}}}").correct:
            failed.append((row["id"], row["answer"], "not right against itself"))
        mine, theirs = _value(row["answer"]), _value(other["answer"])
        different = mine is not None and theirs is not None and mine != theirs
        if different and grader.grade(gold, rf"\boxed{{{other['answer'].strip('$')}}}").correct:
            failed.append((row["id"], row["answer"], f"right for {other['answer']}"))
    assert failed == []


def test_both_olympiad_editions_agree_where_their_golds_do(grader: Grader) -> None:
    """Only the degree sign of 2817 differs in writing."""
    old = {row["id"]: gold for row, gold in _benchmark("olympiadbench")}
    changed = [row for row, _ in _benchmark("olympiadbench_674") if row["answer"] != row["answer_675"]]
    assert all(grader.grade(old[row["id"]], rf"\boxed{{{row['answer'].strip('$')}}}").correct for row in changed)


def test_published_math_solutions_grade_right(grader: Grader) -> None:
    rows = _benchmark("math500")
    wrong = [row["id"] for row, gold in rows if not grader.grade(gold, row["solution"]).correct]
    assert wrong == []
