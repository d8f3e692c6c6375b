"""What counts as right: for each gold, answers that a careful reader accepts and answers that one rejects, and why."""

from collections.abc import Iterator

import pytest

from orchestrator.grading.grader import Gold, Grade, Grader

FAMILY = r"$x=\frac{1}{6} \pi+\pi k, \frac{1}{3} \pi+\pi k, \frac{2}{3} \pi+\pi k, \frac{5}{6} \pi+\pi k$"
TWO_BY_TWO = r"\begin{pmatrix} -2 & 1 \\ -14 & 4 \end{pmatrix}"
THIRDS = r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}"
FOUR_PAIRS = Gold("$(3,2),(-3,2),(3,-2),(-3,-2)$", multiple=True)
PUNCTURED = r"(-\infty,3) \cup (3,\infty)"
TWO_RAYS = r"(-\infty, 2) \cup (3, \infty)"
PERCENT_WITHIN = Gold("4.2", unit="%", tolerance=0.1)

# (why, gold, right, wrong)
CASES: list[tuple[str, Gold | str, list[str], list[str]]] = [
    # --- numbers ---
    ("leading zeros", "025", ["25", "025", "25.0"], ["250", "205"]),
    ("trailing .0", "27.0", ["27", "27.", "027"], ["270", "2.7", "-27"]),
    ("sign", "-4.0", ["-4", "−4"], ["4"]),
    ("thousands", "2,125", ["2125", "2,125", "2{,}125", r"\$2,125.00", "x=2125"], ["2.125", "2,125,000", "2,1,2,5"]),
    ("thousands", "10080", [r"10\,080", "10 080", "10, 080", r"10{,}080", "10~080"], ["10, 80", "1,0080"]),
    ("thousands", r"11,\! 111,\! 111,\! 100", ["11111111100", "11,111,111,100", "11, 111, 111, 100"],
     ["11,111,111,10"]),
    ("thousands inside a fraction", r"\dfrac{2469}{20,\!000}", ["0.12345", r"\frac{2469}{20000}"],
     [r"\frac{2469}{20}"]),
    ("no thousands mark", "100", ["100.00"], ["1,00", "1 0 0"]),
    ("no thousands mark", "864", ["864.0"], ["0, 864", "864, 0"]),
    ("digits apart are not a number", "12", [r"\frac{24}{2} = 12", "12."], ["1 2", "1, 2", "12.5", "12i", "12:30"]),
    ("currency", r"\$32,\!348", ["32348", r"\$32{,}348", r"32{,}348 \text{ dollars}", r"\text{\$}32348"], ["3234.8"]),
    ("currency", r"\$23.40", ["23.4", r"\textdollar 23.40", "$23.40$", r"23.40 \text{ USD}"], ["23.04", "2340"]),
    ("decimal and fraction", r"\frac{3}{8}", ["3/8", "0.375", r"\tfrac38", r"\frac 3 8", "{3}/{8}"], ["8/3", "0.38"]),
    ("negative fraction", r"-\frac{1}{2}", [r"\frac{-1}{2}", r"\frac{1}{-2}", "-.5"], [r"\frac12"]),
    ("malformed fraction", r"\frac{270}7\text{ degrees}", [r"\frac{270}{7}^\circ", r"\dfrac{270}{7}"],
     [r"\frac{27}{7}"]),
    ("mixed number", r"1\frac{4}{5}", [r"\frac95", "1.8", "1 4/5"], ["1", r"\frac45", "14/5"]),
    ("mixed number", r"-15\frac{3}{5}", [r"-\frac{78}{5}", "-15.6"], ["-14.4"]),
    ("product, not mixed number", "1.5", ["3(0.5)", r"3\left(\frac{1}{2}\right)"], ["3.5"]),
    ("a rounded value is not exact", r"\frac{14}{3}", [r"4.\overline{6}", r"4\frac23"],
     ["4.67", "4.6667", r"\approx 4.67"]),
    ("six right decimals are taken as exact", "1/3", ["0.333333", "0.3333333"], ["0.33", "0.33333", "0.3333334"]),
    ("close is not equal", r"\frac{1}{2}", ["0.5", "0.50"], ["0.4999998", "0.500001", "0.49"]),
    ("close is not equal", r"2\sqrt{113}", [r"\sqrt{452}"], ["21.26", "21.2603", "21.260293"]),
    ("small numbers", ".0000672", [r"6.72 \times 10^{-5}", "6.72e-5"], ["0.0000671", "0"]),
    ("zero", "0", ["0.0", "-0"], ["1e-9", "0.0000001"]),
    ("repeating decimal", r"\frac43", [r"1.\overline{3}", r"1.\bar{3}", "1.333..."], [r"1.\overline{4}"]),
    ("stated rounding", r"\approx 8.24 \text{ mph}", ["8.24", "8.246", r"\approx 8.24"], ["8.25", "8.2"]),
    ("exact beside rounded", r"\sqrt{51}", [r"\sqrt{51} \approx 7.14", "√51"], ["7.14"]),
    ("a gold in two spellings", r"0.56 = 56\%", [r"56\%", "0.56", r"\frac{14}{25}"], [r"57\%", "0.57"]),
    ("a gold in two spellings", r"\$\dfrac23 \approx \$0.67", [r"\frac23", r"\$0.67"], ["0.66", r"\frac32"]),
    ("number words", r"\mbox{four}", ["4", "four"], ["5", r"\text{fourteen}"]),
    ("number words", "4", [r"\text{four}", "4"], [r"\text{fourteen}", r"\text{forty}"]),
    ("ordinals", "3", ["3rd", r"\text{3rd}", r"3^{\text{rd}}"], ["4th"]),
    ("several spellings of one answer", r"\frac{1}{2}", [r"\frac12 \text{ or } 0.5", "1/2 = 0.5"], ["0.5, 0.6"]),
    ("a derivation ends in its answer", "24", ["4! = 24", "12+12=24"], ["24 = 4! + 1 = 25", "24+1"]),
    ("no number", "5", ["5"], ["5x", "5!", "5i", "-5", "5, 6", "x>5", r"\text{no}", "(5,6)", r"\{5,6\}", "5e", "5π"]),
    ("text around the number", "5", [r"\text{The answer is } 5", r"\text{Area: } 5", r"\mathbf{5}"],
     [r"\text{not } 5"]),
    ("text around the number", "7", [r"\text{7 people}", r"\text{7}", r"\textcolor{red}{7}"], [r"\text{7 or 8}"]),
    ("text that changes the number", "18", ["18"], ["18 thousand", r"18 \text{ million}", r"18\text{ to }20"]),
    ("label of a choice", "27.0", [r"\textbf{(C)}\ 27", "(C) 27", r"\text{(C) }27"], [r"\textbf{(C)}", r"(C) 28", "C"]),
    # --- units ---
    ("counted things", "18", ["18 eggs", r"18 \text{ eggs per day}", "18 dollars/day", "18 a day"], ["19 eggs"]),
    ("units", r"864 \mbox{ inches}^2", ["864", r"864 \text{ square inches}", r"864\,\text{in}^2"], ["86.4"]),
    ("units", Gold("$166$", unit="$cm^2$"), [r"166 \mathrm{~cm}^2", "166 cm^2", r"166 \text{ cm^2}"], ["16.6"]),
    ("units", Gold(r"$\frac{600}{7}$", unit="km/h"), [r"\frac{600}{7} \text{ km/h}", r"\frac{600}{7} km/h"], ["600"]),
    ("units", "60", ["60 mph", r"60\text{ miles per hour}", r"60 \frac{\text{km}}{\text{h}}", "60 m/s"], ["6 mph"]),
    ("converted units", r"80\text{ cents}", [r"\$0.80", "80", r"80 \text{ cents}"], [r"\$80", r"80 \text{ dollars}"]),
    ("converted units", r"4 \text{ feet}", ["4", r"48 \text{ inches}", "4 ft"],
     [r"4 \text{ inches}", r"4 \text{ hours}"]),
    ("no unit but a letter", "6m", ["6m", "6 m"], ["6", "m6+1"]),
    ("no unit but a letter", "6", ["6.0"], ["6m", "6 x"]),
    ("degrees", r"90^\circ", ["90", r"90^{\circ}", "90°", "90 degrees", r"90^{\text{o}}", r"\angle A = 90^\circ"],
     ["9"]),
    ("radians for degrees", r"90^\circ", [r"\frac{\pi}{2}", r"\pi/2"], [r"\frac{\pi}{3}", "1.57"]),
    ("degrees for radians", r"\frac{\pi}{6}", [r"30^\circ"], ["30", r"60^\circ"]),
    ("radians need a sign on the other side", "90", [r"90^\circ"], [r"\frac{\pi}{2}"]),
    ("degrees inside a function", r"\tan 15^\circ", [r"2-\sqrt3", r"\tan(15^\circ)"], [r"\tan 15"]),
    ("percent", "62.5%", ["62.5", r"62.5\%", "0.625", r"\frac58", r"62.5 \text{ percent}"], ["6.25", r"0.625\%"]),
    ("percent for a plain number", "10", [r"10\%"], [r"0.1\%"]),
    ("percent for a proportion", "0.15", [r"15\%"], [r"0.15\%", "15"]),
    ("tolerance", PERCENT_WITHIN, ["4.2", r"4.2\%", "4.3", r"\frac{17}{4}"], ["4.31", "4.0"]),
    # --- words ---
    ("names", r"\text{Evelyn}", ["Evelyn", r"x = \text{Evelyn}"], [r"\text{Navin}", "Evelyn or Navin"]),
    ("letters are no product", r"\text{east}", ["East", r"\text{due east}"], ["seat", r"\text{northeast}", "west"]),
    ("words", r"\text{even}", [r"\mathrm{even}", r"\text{even function}"], ["odd", r"\text{neither even nor odd}"]),
    ("words", r"\text{neither}", ["Neither", r"\text{neither even nor odd}"], [r"\text{even}"]),
    ("words", r"\text{ellipse}", ["an ellipse", r"\text{An ellipse.}"], ["circle"]),
    ("dates", r"\text{October 30}", ["October 30th", r"\text{October 30}"], ["October 31"]),
    ("choices", r"\text{(C)}", ["C", "(C)", r"\text{C}", r"\textbf{(C)}\ 12", "C. 12", r"\text{Option C}"],
     ["D", "C, D"]),
    ("choices in free order", r"\text{A,B,E}", [r"\text{B}, \text{A}, \text{E}", "A, B, and E"], ["A, B", "A,B,C"]),
    ("clock times", r"8\!:\!34 \text{ p.m.}", ["8:34 PM", "8:34"], ["8:34 a.m.", "8:43 p.m."]),
    ("clock times", r"05\!:\!00", ["5:00"], ["5:30", "0:05"]),
    ("ratios", "3:1", ["3 : 1", r"3\text{ to }1", "3{:}1"], ["1:3", "3:2"]),
    ("bases", "52_8", ["52_{8}", "(52)_8", r"52 \text{ base } 8", r"\overline{52}_8"], ["52_9", "42", "25_8"]),
    ("a question that asks for a base names it", "52_8", ["52"], ["53"]),
    ("bases", "-37_8", ["(-37)_8", "-37"], ["-37_9", "37_8"]),
    ("bases", r"\text{A5}_{11}", ["A5_{11}"], ["A5_{12}"]),
    # --- lists, tuples ---
    ("free order", Gold("1,3,5", multiple=True), ["5, 3, 1", r"\{1,3,5\}", r"1, 3,\text{ and }5"],
     ["135", "1,3", "1,3,5,7"]),
    ("not a thousand", Gold("2500,7500", multiple=True), ["7500, 2,500"], ["2500", "7500"]),
    ("named values", "3, 5, 7", ["x=3, x=5, x=7", "x = 3, 5, 7", "x_1=5, x_2=3, x_3=7"], ["3,5,8"]),
    ("and, or", "1,-2", ["-2,1", r"x=1 \text{ or } x=-2", r"x \in \{-2,1\}"], ["-1,2", "1", "(-2,1)"]),
    ("both signs", r"1 \pm \sqrt{19}", [r"1+\sqrt{19}, 1-\sqrt{19}", r"x = 1 \pm \sqrt{19}"], [r"1+\sqrt{19}"]),
    ("both signs", r"\{1\pm\sqrt{5},-2\}", [r"-2, 1+\sqrt5, 1-\sqrt5"], [r"1\pm\sqrt5"]),
    ("both signs of each coordinate", FOUR_PAIRS, [r"(\pm 3, \pm 2)"], ["(3,2), (-3,-2)", r"(\pm 2, \pm 3)"]),
    ("pairs", Gold("(1,2),(3,4)", multiple=True), ["(3,4),(1,2)", r"(x,y)\in\{(1,2),(3,4)\}"],
     ["(2,1),(4,3)", "1,2,3,4"]),
    ("twice the same value", Gold("-2,-2", multiple=True), ["a=-2, b=-2", "a=b=-2"], ["2,-2", "-2"]),
    ("stray dollars", "$221,$8$", ["221, 8", "8 and 221"], ["2218"]),
    ("a tuple keeps its order", "(2,4)", ["(2, 4)", r"\langle 2,4\rangle", "2,4", "(m,n)=(2,4)"],
     ["(4,2)", "4,2", "(2,4]"]),
    ("coordinates by name", "(5,3)", ["x=5, y=3", "y=3, x=5", r"x=5 \text{ and } y=3"], ["y=5, x=3", "x=3, y=5"]),
    ("a sign before a tuple counts", r"(-\frac37, \frac{10}7)", [r"\left(-\frac{3}{7},\frac{10}{7}\right)"],
     [r"-(-\frac37, \frac{10}7)"]),
    ("a set is not a tuple", "(1,2)", ["1, 2"], [r"\{1,2\}", "[1,2]"]),
    ("a named set", r"\{4,5,7\}", ["x = 4,5,7", r"A=\{7,5,4\}"], ["4,5"]),
    ("polar coordinates", r"\left( 3, \frac{\pi}{2} \right)", [r"(3, \pi/2)"], [r"(3, \pi)"]),
    ("column vector", THIRDS,
     [r"\frac13\begin{bmatrix} -1 \\[2pt] 2 \\ 5 \end{bmatrix}", r"(-\frac13,\frac23,\frac53)"], ["(2,-1,5)"]),
    ("matrix", TWO_BY_TWO, [r"\left[\begin{array}{rr} -2&1\\-14&4 \end{array}\right]", f"A^{{-1}} = {TWO_BY_TWO}"], []),
    ("matrix", TWO_BY_TWO, [], [r"\begin{pmatrix} -2 & -14 \\ 1 & 4 \end{pmatrix}", "-" + TWO_BY_TWO]),
    # --- sets of reals ---
    ("open and closed ends", "(3,4]", [r"\left(3,4\right]", r"3 < x \le 4", r"\{x \mid 3<x\leq 4\}", "]3,4]"],
     ["[3,4)", "(3,4)"]),
    ("outward brackets", "(2,5)", ["]2,5[", "2<x<5"], ["]2,5]", "[2,5]"]),
    ("half-lines", r"(2,\infty)", ["x>2", r"2<x<\infty", r"(2,+\infty)"], [r"x \ge 2", "x<2"]),
    ("half-lines", r"$k \geqslant 2$", [r"k \ge 2", r"[2,\infty)", "k>=2"], ["k>2"]),
    ("member of", r"x \in [-2,7]", ["[-2,7]", r"-2 \le x \le 7"], ["(-2,7)"]),
    ("a lost symbol", "$t(0,4]$", ["(0,4]", r"t \in (0,4]", r"0<t\le 4"], ["(0,4)"]),
    ("unions", TWO_RAYS, [r"x<2\quad\text{or}\quad x>3", r"(3,\infty)\cup(-\infty,2)"], ["2<x<3", "x<2"]),
    ("a point left out", PUNCTURED,
     [r"x \neq 3", r"\mathbb{R} \setminus \{3\}", r"\text{all real numbers except }3"], [r"x \ne 4"]),
    ("a point left out", PUNCTURED, [r"\{x \in \mathbb{R} : x \neq 3\}", r"x<3 \text{ or } x>3"], [r"\mathbb{R}"]),
    ("all numbers", r"(-\infty,\infty)", [r"\mathbb{R}", r"\text{all real numbers}"], [r"(0,\infty)"]),
    ("a point added", r"$(-\infty, 0) \cup\{1\}$.", [r"\{1\}\cup(-\infty,0)", r"x<0 \text{ or } x=1"], [r"x \le 0"]),
    ("size", "[-2,2]", [r"|x| \le 2"], ["|x|<2", r"|x| \ge 2"]),
    ("a joined union is another set", r"(0,9) \cup (9,36)", [r"(9,36)\cup(0,9)", r"0<x<36, x \ne 9"], ["(0,36)"]),
    ("not a set of points", "3", ["x=3"], ["x>3", r"x \ge 3"]),
    # --- expressions ---
    ("factored and expanded", "6r^2-4r-24", ["2(3r^2-2r-12)"], ["6r^2-4r+24", "6r^2-4r"]),
    ("order of terms", "p - q", ["-q+p", "-(q-p)"], ["q - p"]),
    ("roots", r"\frac{10}{\sqrt3}", [r"\frac{10\sqrt{3}}{3}", r"10/\sqrt{3}"], [r"\frac{\sqrt3}{10}"]),
    ("roots of a square", "x", ["x"], ["|x|", r"\sqrt{x^2}", "y"]),
    ("powers", "12^{1/7}", [r"\sqrt[7]{12}"], ["12/7"]),
    ("powers", "$10^{100}$,$10^{1 / 100}$", ["10^{100}, 10^{0.01}", r"\sqrt[100]{10}, 10^{100}"], ["10^{100}, 10"]),
    ("large numbers exactly", "$2^{1009}$", ["2^{1009}", "2^1009"], ["2", "2^{1009}+1"]),
    ("large numbers exactly", r"\frac{100!}{2^{50}}", [r"100!\cdot 2^{-50}"], [r"\frac{100!}{2^{50}}+1"]),
    ("decimals in expressions", r"\frac{2\pi}{5}", [r"0.4\pi", r"\frac25\pi"], ["0.4", r"0.41\pi"]),
    ("complex numbers", "1+2i", ["2 i + 1", "1+2i"], ["1-2i", "3", "2+i"]),
    ("complex numbers", "1,-1,i,-i", [r"\pm1, \pm i"], [r"\pm 1"]),
    ("logarithms", r"$\frac{\log 2}{\log 2-\log 3}$", [r"\frac{\ln 2}{\ln 2-\ln 3}"], [r"\frac{\ln 2}{\ln 3-\ln 2}"]),
    ("logarithms", r"$(4, \log _{10} 2)$", [r"(4,\log_{10}2)"], [r"(4,\log_{10}3)"]),
    ("trigonometry", r"\cos^2\alpha", [r"1-\sin^2\alpha", r"(\cos\alpha)^2"], [r"\cos 2\alpha"]),
    ("binomials", r"$\binom{2n}{n}$", [r"\frac{(2n)!}{(n!)^2}", r"\frac{(2n)!}{n!^2}"], [r"\binom{2n}{n-1}"]),
    ("factorials", r"$\frac{d !}{2 k(d-k) !}$", [r"\frac{1}{2k}\cdot\frac{d!}{(d-k)!}"], [r"\frac{d!}{2k(d-k)!}+1"]),
    ("factorials", "n!", [r"n \cdot (n-1)!"], ["(n-1)!", "(n+1)!"]),
    ("rounding", r"$\lceil n / 2\rceil+1$", [r"\lfloor\frac{n+1}{2}\rfloor+1"], [r"\lfloor\frac{n}{2}\rfloor+1"]),
    ("signs that alternate", "(-1)^n", ["(-1)^{n+2}"], ["1", "-1", "(-1)^{n+1}"]),
    ("geometric sum", "x^3+x^2+x+1", [r"\frac{x^4-1}{x-1}"], [r"\frac{x^3-1}{x-1}"]),
    ("letters matter", "2n", ["2n", "n+n"], ["2m", "2"]),
    # --- equations, functions ---
    ("a name is no part of the answer", "x=5", ["5", "x=5.0", "5=x"], ["y=5", "x=-5"]),
    ("a name is no part of the answer", r"$m_{\max }=n^{2}-n-1$", ["n^2-n-1", "m = n^2 - n - 1"], ["n^2-n+1"]),
    ("same name, other value", "$N=n$", ["N=n", "n"], ["N=n+1"]),
    ("scale and sides", "y = 2x + 3", ["2x-y+3=0", "4x+6=2y", "2x+3"], ["y=2x-3", "2x+y+3=0"]),
    ("denominators", r"y = -\frac52 x - \frac{29}{4}", ["10x+4y+29=0"], ["10x+4y-29=0"]),
    ("transcendental", r"\tan \theta = 2\theta", [r"\tan\theta=2\theta"], [r"\tan\theta=3\theta"]),
    ("renamed argument", "$f(n)=n^{2}$", ["f(x)=x^2", "f(n)=n^2"], ["f(x)=x^3", "f(x)=n^2"]),
    ("renamed arguments", "$f(x)=x$,$f(x)=2-x$", ["f(t)=t, f(t)=2-t", "2-x, x", r"f(x)=x \text{ or } f(x)=2-x"],
     ["f(t)=t"]),
    ("for all arguments", "$f(x)=x+1$", [r"f(x)=x+1 \text{ for all } x \in \mathbb{R}", r"f(x)=x+1, \forall x"],
     ["f(x)=x"]),
    ("residues", "8", [r"8 \pmod{11}", r"x \equiv 8 \pmod{11}"], [r"9 \pmod{11}"]),
    ("lines", "(1,2)", [r"\begin{cases} x = 1 \\ y = 2 \end{cases}", r"\begin{aligned} x&=1, \\ y&=2 \end{aligned}"],
     ["x = 2, y = 1"]),
    ("each function by its name", "$f(n)=n$, $g(n)=1$", ["f(x)=x, g(x)=1"], ["f(n)=1, g(n)=n"]),
    ("both signs of a function", "$f(x)=x,f(x)=-x$", [r"f(x)=\pm x"], ["f(x)=x"]),
    ("angles by their names", r"$\angle B E A_{1}=90$,$\angle A E B_{1}=90$", [r"90^\circ, 90^\circ"], [r"90^\circ"]),
    ("renamed parameter", FAMILY,
     [r"x = \frac{\pi}{6}+n\pi, \frac{\pi}{3}+n\pi, \frac{2\pi}{3}+n\pi, \frac{5\pi}{6}+n\pi"], []),
    ("the same angles", FAMILY, [r"x = \pm\frac{\pi}{6}+k\pi, \pm\frac{\pi}{3}+k\pi, k\in\mathbb{Z}"],
     [r"\pm\frac{\pi}{6}+k\pi"]),
    ("another period", r"\frac{\pi}{6}+2\pi k", [r"\frac{\pi}{6}+2n\pi", r"\frac{13\pi}{6}+2\pi k"],
     [r"\frac{\pi}{6}+\pi k"]),
    ("no family without π", "2k+2", ["2(k+1)"], ["2k", "2n+2"]),
    ("a clause about the parameter", "2k+2", [r"2k+2 \text{ for } k \ge 1"], [r"2k+3 \text{ for } k \ge 1"]),
    ("what can't be parsed compares as written", r"\frac{1}{7}\triangle ABC", [r"\frac17 \triangle ABC"],
     [r"\triangle ABC"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """One grader for the table, with a deadline that a loaded machine keeps too."""
    with Grader(deadline_s=60.0) as quick:
        yield quick


@pytest.mark.parametrize(("why", "gold", "right", "wrong"), CASES)
def test_verdicts(grader: Grader, why: str, gold: Gold | str, right: list[str], wrong: list[str]) -> None:
    for answer in right:
        assert grader.grade(gold, rf"so it is $\boxed{{{answer}}}$.") == Grade(True, answer), f"{why}: {answer}"
    for answer in wrong:
        assert grader.grade(gold, rf"so it is $\boxed{{{answer}}}$.") == Grade(False, answer), f"{why}: {answer}"
