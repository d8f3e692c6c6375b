r"""One notation for an answer, and finds the answer that a generation states.

An answer has one spelling for the many ways to write it, and a structure. Both change its notation,
never its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, pairwise

from orchestrator.grading.gold import Gold

_UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "°": r"^\circ ",
    "º": r"^\circ ", "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "≈": r"\approx ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}",
    "∅": r"\emptyset ", "√": r"\sqrt ", "，": ",", "；": ";", "（": "(", "）": ")", "％": "%", "\u00a0": " ",
    "\u2009": " ", "\u202f": " ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "²": "^{2}",
    "³": "^{3}", "⁄": "/", "’": "'", "“": '"', "”": '"',
}  # fmt: skip
TEXT = (
    r"\\(?:text|textbf|textit|textrm|textnormal|textsf|texttt|textup|mbox|hbox|mathrm|mathbf|mathit|mathsf|"
    r"boldsymbol|operatorname)"
)
# Between two groups of digits these marks are thousands separators, not commas of a list.
_THOUSANDS_MARK = re.compile(r"(?<=\d)(?:,\\!\s*|\{,\}\s*|\\,|\\;|\\ |\\!|~)(?=\d{3}(?!\d))")
_THOUSANDS_SPACE = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_SPACING = re.compile(
    r"\\(?:left|right|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|big|Big|bigg|Bigg|displaystyle|textstyle|quad|qquad|"
    r"limits|hspace\*?\{[^{}]*\})(?![A-Za-z])\.?|(?<!\\)\\[,;:!> ]|(?<!\\)\\$|~|"
    r"\\h?phantom\s*(?:\{[^{}]*\}|.)|\{\}(?=\^)"
)
_DEGREES = re.compile(
    rf"\s*(?:\^\s*\{{?\s*\\circ\s*\}}?|\\degrees?(?![A-Za-z])|(?<=\d)\s*\^\s*(?:\{{\s*)?(?:o(?![A-Za-z])|{TEXT}\s*\{{\s*o\s*\}})"
    r"(?:\s*\})?)"
)
_TRIG = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_PERCENT = re.compile(
    rf"\s*(?:\\?%|{TEXT}\s*\{{\s*(?:percent|\\?%)\s*\}}|(?<![A-Za-z\\])percent(?![A-Za-z]))"
)
CURRENCY = re.compile(
    rf"{TEXT}\s*\{{\s*(?:US)?\\?\$\s*\}}|(?:US)?\\?\$|[£€¥]|\\(?:pounds|euro|textdollar|mathdollar)(?![A-Za-z])"
)
_MATRIX = re.compile(
    r"\\(begin|end)\s*\{(?:[bBpvV]|small|psmall|bsmall)?matrix\}|\\(begin|end)\s*\{array\}(?:\s*\{[^{}]*\})?"
)
_IN_BRACKETS = re.compile(
    r"[(\[]\s*(\\begin\{pmatrix\}(?:(?!\\begin).)*?\\end\{pmatrix\})\s*[)\]]", re.DOTALL
)
_SYNONYMS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\frac\s*(\\pi)\s*([A-Za-z0-9])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s+(\d)(?![\d.])", r"\\frac{\1}{\2}"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s+(\d+)", r"\\sqrt{\1}"),
        (r"\\(?:leqslant|leq)(?![A-Za-z])|<=|=<|≦", r"\\le "),
        (r"\\(?:geqslant|geq)(?![A-Za-z])|>=|≧", r"\\ge "),
        (r"\\equiv(?![A-Za-z])", "="),
        (rf"\s*(?:\\pmod\s*\{{[^{{}}]*\}}|\(\s*(?:\\b?mod|{TEXT}\s*\{{\s*mod\s*\}})[^()]*\))$", ""),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\(?:R|reals)(?![A-Za-z])|\\mathbb\s+R|\\mathbf\s*\{R\}", r"\\mathbb{R}"),
        (r"\+\s*\\infty", r"\\infty"),
        (r"\{:\}|\\colon(?![A-Za-z])", ":"),
        (r"(?<=\d)[eE]([+-]?\d{1,4})(?![\d.])", r"\\times 10^{\1}"),
        (r"([A-Za-z0-9]|\([^()]*\))!\s*\^", r"(\1!)^"),
        (rf"(?<=\d)\s*{TEXT}\s*\{{\s*to\s*\}}\s*(?=\d)", ":"),
        (rf"^{TEXT}\s*\{{\s*(\d[\d.,]*)\s+([A-Za-z][^{{}}]*)\}}$", r"\1 \\text{\2}"),
        # A mixed number as typed: without this only its whole part would be read.
        (r"(?<![\d.^_/}])(\d+) +(\d+)/(\d+)(?![\d.])", r"\1\\frac{\2}{\3}"),
        (r"\\mathrm\s*\{\s*([ied])\s*\}", r"\1"),
    )
)
_REPEATING = (
    re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{\s*(\d{1,50})\s*\}|(\d))"),
    re.compile(r"(\d*)\.(\d{0,9}?)(\d{1,6}?)\3{2,9}(?:\\[lc]?dots|\.\.\.|…)"),
)
# Decoration around an answer, or after it.
_DECORATION = re.compile(r"\\(?:color|textcolor)\s*\{[^{}]*\}|\\underline(?=\s*\{)|(?:\\\\\s*)+$")
_ORDINAL = re.compile(
    rf"(?<=\d)\s*(?:\^\s*\{{?\s*)?(?:{TEXT}\s*\{{\s*(?:st|nd|rd|th)\s*\}}\s*\}}?|(?<!\^)(?:st|nd|rd|th)(?=\s*\}}?$))(?=\s*\}}?$)"
)
# Bold or text around something without words is mathematics in another font.
_FONT = re.compile(TEXT + r"\s*\{([^{}A-Za-z]*[\d∞][^{}A-Za-z]*)\}")
_MATH_DELIMITERS = ((r"\(", r"\)"), (r"\[", r"\]"))
_AND_OR = re.compile(
    TEXT
    + r"\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:lor|land|vee)\b"
)
# Equations below each other: `\\begin{cases} x = 1 \\\\ y = 2 \\end{cases}`.
_LINES = re.compile(
    r"\\begin\s*\{(aligned|cases|gathered|align\*?)\}(.*?)\\end\s*\{\1\}", re.DOTALL
)
# `for all real x` after a function.
_FOR_ALL = re.compile(
    rf"(?:,|\s)*\(?(?:{TEXT}\s*\{{\s*,?\s*for (?:all|every|any|each)\b[^{{}}]*\}}|\bfor (?:all|every|any|each)\b|"
    r"\\forall).{0,40}$"
)
# `where n is an integer` after a family of solutions.
_CLAUSE = re.compile(
    rf",?\s*\(?(?:{TEXT}\s*\{{[^{{}}]*\b(?:where|for|with)\b[^{{}}]{{0,20}}\}}|\b(?:where|for)\b).{{0,30}}"
    rf"(?:\bintegers?\b|\\mathbb\s*\{{Z\}}|[a-z]\s*(?:[<>]|\\(?:le|ge|ne)(?![a-z]))\s*\d+).{{0,3}}$"
)
# Markdown inside of a box: `**73**`, `*73*`. A power, `2**3`, has no blank before its stars.
_MARKDOWN = (
    re.compile(r"(?<![\w)}\]*])(\*\*\*?|__)(?=[^\s*_])(.+?)(?<=[^\s*_])\1(?![\w({\\*])", re.DOTALL),
    re.compile(r"^\s*([*_`])(?=[^\s*_`])([^*`]+)\1\s*$"),
)
_TEXT_LIST = re.compile(TEXT + r"\s*\{(?P<inner>[^{}]*,[^{}]*)\}")


def spelled(text: str) -> str:
    r"""Remove currency, math delimiters, spacing commands, degree signs and variants of spelling.

    The order of the steps matters: a later pattern expects the text that the earlier steps leave.
    For example ``$\dfrac{1}{2}\,\text{cm}$`` becomes ``\frac{1}{2} \text{cm}``.
    """
    for symbol, command in _UNICODE.items():
        text = text.replace(symbol, command)
    for emphasis in _MARKDOWN:
        text = emphasis.sub(r"\2", text)
    text = CURRENCY.sub("", text).strip()
    for opening, closing in _MATH_DELIMITERS:
        if text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)].strip()
    text = _LINES.sub(lambda lines: re.sub(r"\\\\", ", ", lines[2].replace("&", "")), text)
    text = _ORDINAL.sub("", _DECORATION.sub("", text))
    text = _SPACING.sub(" ", _THOUSANDS_MARK.sub("", re.sub(r"\\\\\s*\[[^\[\]]*\]", r"\\\\", text)))
    # Inside a sine the degree sign is a factor of π/180; elsewhere it is a unit, which `meanings`
    # has read before.
    text = _DEGREES.sub(r"\\cdot\\frac{\\pi}{180}" if _TRIG.search(text) else "", text)
    text = _FONT.sub(r"\1", _PERCENT.sub(r"\\%", text))
    text = _MATRIX.sub(lambda matrix: rf"\{matrix[1] or matrix[2]}{{pmatrix}}", text)
    for pattern in _REPEATING:
        text = pattern.sub(_repeating_fraction, text)
    text = re.sub(r"\s+", " ", _IN_BRACKETS.sub(r"\1", text)).strip().rstrip(".,;").strip()
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = re.sub(r"\s+", " ", _CLAUSE.sub("", _FOR_ALL.sub("", text))).strip()
    return text.replace(" ", "") if _THOUSANDS_SPACE.fullmatch(text) else text


def listed(text: str) -> str:
    r"""Turn "and" and "or" of a spelled answer into commas, ``\text{A, B}`` into a list of texts."""

    def as_texts(texts: re.Match[str]) -> str:
        return ",".join(rf"\text{{{part}}}" for part in texts["inner"].split(","))

    text = re.sub(r"\s+", " ", _AND_OR.sub(",", text)).strip().strip(",;").strip()
    return _TEXT_LIST.sub(as_texts, text)


def _repeating_fraction(decimal: re.Match[str]) -> str:
    r"""Turn ``1.2\overline{3}`` into an exact fraction."""
    whole, fixed, period = decimal[1], decimal[2], decimal[3] or decimal[4]
    shift = 10 ** len(fixed)
    value = Fraction(int((whole or "0") + fixed), shift)
    # A period of n digits repeats as period ÷ (10ⁿ − 1): 0.333… = 3/9.
    value += Fraction(int(period), shift * (10 ** len(period) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


# --- structure: brackets, elements, sides of an equation, names ---


_OPEN, _CLOSE = "([{", ")]}"
_PARAMETER = re.compile(
    r"\(?(?:\\text\s*\{[^{}]*\}\s*)?[a-z]\s*(?:,\s*[a-z]\s*)*(?:\\in\s*\\math(?:bb|bf|rm|cal)\s*\{?[ZNQR]\}?|"
    r"\\text\s*\{\s*(?:is|be|an|any|are)\b[^{}]*integers?[^{}]*\}).*"
)
_SOLUTION_SET = re.compile(
    r"(?P<name>[^=<>]*?)(?:\\in(?![A-Za-z])\s*(?=[\[(\\])|=\s*(?=\\\{))(?P<set>.*)", re.DOTALL
)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_MOST_SIGNS = 4
_THOUSANDS_COMMA = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_SPACED_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:, ?\d{3})+(?:\.\d+)?")
EQUALS = r"(?<![<>!:\\])="
RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|neq|lt|gt)(?![A-Za-z])")
_NAME = re.compile(r"[A-Za-z\\|][A-Za-z\\_{}(), 0-9'|]*")
# An inverse or a transpose is named by its exponent; any other power is computed.
_MATRIX_POWER = re.compile(r"(?<=[A-Z}])\s*\^\s*\{?\s*(?:-1|T)\s*\}?$")
_NOT_NAMES = re.compile(
    r"\\(?:frac|sqrt|cdot|times|pm|mp|le|ge|in|cup|sin|cos|tan|log|ln|pi|infty|binom)(?![A-Za-z])"
)


def split_top(text: str, separator: str) -> list[str]:
    """Split at a separator, a regular expression, outside all brackets.

    At commas `1,(2,3)` becomes `1` and `(2,3)`. Parts are stripped, and empty ones left out.
    """
    parts: list[str] = []
    depth = start = at = 0
    pattern = re.compile(separator)
    while at < len(text):
        match = pattern.match(text, at) if depth == 0 else None
        if match:
            parts.append(text[start:at])
            at = start = match.end()
            continue
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        at += 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def enclosed(text: str) -> tuple[str, str, str] | None:
    r"""(opening, content, closing) if one pair of ``( [ \{`` spans the whole text, else None."""
    opening = "\\{" if text.startswith("\\{") else text[:1]
    closing = "\\}" if text.endswith("\\}") else text[-1:]
    if opening not in ("(", "[", "\\{") or closing not in (")", "]", "\\}") or len(text) < 3:
        return None
    depth = 0
    for at in range(len(opening) - 1, len(text)):
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        if depth == 0 and at < len(text) - 1:
            return None
    if depth != 0:
        return None
    return opening, text[len(opening) : len(text) - len(closing)].strip(), closing


def is_name(text: str) -> bool:
    r"""Whether text only names a quantity: ``x``, ``m_{\max}``, ``f(x)``, ``\angle ABC``."""
    text = _MATRIX_POWER.sub("", text.strip())
    brackets = enclosed(text)
    if brackets and brackets[0] == "(":
        return all(is_name(part) for part in split_top(brackets[1], ","))
    return bool(_NAME.fullmatch(text)) and len(text) <= 40 and not _NOT_NAMES.search(text)


def named(text: str) -> tuple[str, str] | None:
    """(name, value) of ``name = ... = value`` or ``value = name``; None for other texts."""
    if RELATION.search(text):
        return None
    sides = split_top(text, EQUALS)
    if len(sides) < 2:
        return None
    if is_name(sides[0]):
        return sides[0], sides[-1]
    return (sides[1], sides[0]) if len(sides) == 2 and is_name(sides[1]) else None


def both_signs(part: str) -> list[str]:
    r"""Split ``a \pm b`` into its two values; all signs of one element move together."""
    if not _PLUS_MINUS.search(part):
        return [part]
    upper = _PLUS_MINUS.sub(lambda sign: "+" if sign[1] == "pm" else "-", part)
    lower = _PLUS_MINUS.sub(lambda sign: "-" if sign[1] == "pm" else "+", part)
    return [upper, lower]


def free_signs(part: str) -> list[str]:
    r"""Split ``(\pm a, \pm b)`` into its four values."""
    if not _PLUS_MINUS.search(part):
        return [part]
    plus, minus = (_PLUS_MINUS.sub(sign, part, count=1) for sign in "+-")
    return free_signs(plus) + free_signs(minus)


def elements(text: str, signs: Callable[[str], list[str]] = both_signs) -> list[str]:
    r"""The elements of an answer, without set braces and clauses such as ``k \in \mathbb{Z}``.

    `signs` writes out ``\pm``.
    """
    parts = split_top(text, "[,;]")
    if len(parts) == 1:
        member = _SOLUTION_SET.fullmatch(parts[0])
        if member and is_name(member["name"]):
            return elements(member["set"], signs)
        brackets = enclosed(parts[0])
        if brackets and brackets[0] == "\\{" and brackets[2] == "\\}":
            return elements(brackets[1], signs)
    kept = [part for part in parts if not _PARAMETER.fullmatch(part)] or parts
    return list(chain.from_iterable(map(signs, kept)))


def readings(text: str, *, is_list: bool) -> list[list[str]]:
    r"""The ways to read an answer.

    ``58,500`` is a list and a number; with ``is_list`` the benchmark says that it's a list, so only
    that reading is right. ``(\pm 1, \pm 2)`` is two pairs or four. ``a = b = 2`` is one chain and
    two values.
    """
    ways = [elements(text)]
    if "(" in text and 1 < len(_PLUS_MINUS.findall(text)) <= _MOST_SIGNS:
        ways.append(elements(text, free_signs))
    if is_list:
        return ways
    bracketed = any(mark in text for mark in ("(", "[", "\\{"))
    if _SPACED_THOUSANDS.fullmatch(text):
        ways.append([re.sub(", ?", "", text)])
    elif not bracketed and _THOUSANDS_COMMA.search(text):
        ways.append(elements(_THOUSANDS_COMMA.sub(lambda number: number[0].replace(",", ""), text)))
    sides = split_top(text, EQUALS)
    if len(sides) > 2 and len(ways[0]) == 1 and all(is_name(side) for side in sides[:-1]):
        ways.append([f"{name}={sides[-1]}" for name in sides[:-1]])
    return ways


# --- the answer that a generation states: its last box, or several as one list ---
#
# Thoughts (``<think>…</think>``) are no answer, and neither is a box that the text only mentions:
# ``as asked, in \boxed{}``, ``in \boxed at the end``, ``\boxed{your answer}``.


_BOX = r"\\+(?:boxed|fbox)(?![A-Za-z])"
_TOKEN = re.compile(_BOX + r"\s*(?P<brace>\{)?|\\[\\{}]|[{}]")
# Content of a box that has no braces (`\boxed 5`). It begins like mathematics: in `\boxed at the
# end` or `in \boxed a` the text only mentions the command.
_BARE = re.compile(
    r"[ \t]*(?:[-+−±(\[][ \t]*|\*\*)*(?:\.?\d|\\(?:[A-Za-z]{2}|\{)|(?![aI]\s+[A-Za-z])[A-Za-z](?![A-Za-z]))"
    r"[^$\n]{0,200}?(?=\$|\\\)|\\\]|\n|$|\s[a-z]{2}|[.;]\s)"
)
# Content of a box that was never closed (`\boxed{5$`).
_UNCLOSED = re.compile(r"[^$\n]{1,200}(?=\$)")
# Text between two boxes that joins them to one list: `$\boxed{2}$ and $x = \boxed{3}$`.
_BLANK = r"\s|\$|\\[()\[\],;! ]|\\q?quad(?![A-Za-z])|~|&"
_AND = r"[,;]|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b"
_JOINS = re.compile(
    rf"(?:{_BLANK})*(?:{_AND})(?:{_BLANK}|{_AND})*(?:[A-Za-z](?:_\{{?\w{{1,4}}\}}?)?\s*=\s*\$?\s*)?"
)
_MAX_JOIN = 60
# A box to be filled in: `...`, `\ldots`, `?`, `___`.
_BLANKS = re.compile(
    rf"(?:{TEXT}(?![A-Za-z])|\\(?:[lc]?dots|dots[bcimo]|q?quad|square|Box)(?![A-Za-z])|\\[,;:!> _]|"
    r"[\s{}$.…?_~□])*"
)
# Words in place of an answer: `answer`, `your final answer`, `<insert the result here>`.
_AROUND_WORDS = re.compile(rf"{TEXT}(?![A-Za-z])|\\[lc]?dots|\\_|[\s{{}}()\[\]<>*_`'\"$.…:~-]+")
_PLACEHOLDER = re.compile(
    r"(?:(?:insert|put|write|place|enter|give|state|the|my|a|an|this|final|correct|exact|numerical|numeric|"
    r"simplified) )*(?:answers?|ans|results?|solutions?|response)(?: goes)?(?: here)?|"
    r"(?:(?:insert|put|write|place|enter) )?your(?: [a-z]+){1,5}|(?:你的|最终|正确)*答案",
    re.IGNORECASE,
)
_MAX_PLACEHOLDER = 80
# Where a thought begins or ends. In quotation marks, or before the word "tag", it is a mention.
_THOUGHT = re.compile(
    r"(?<![`\"'“])(?:<(?P<end>/)?(?i:think|thinking|thought|reasoning)>|\[(?P<END>/)?THINK\]|"
    r"<\|(?:begin|(?P<over>end))_of_thought\|>)(?!\s+tags?\b)"
)
# No gold is a tenth as long. Longer answers are derivations or degenerate repetition; parsing them
# is slow and useless.
MAX_ANSWER_CHARS = 2000
# A box with one of several answers is short. This process would count longer texts without any
# deadline.
_MAX_PART = 200


def without_thoughts(text: str) -> str:
    """The text after the last thought; nothing if it ends within a thought.

    The first tag may be missing, because some chat templates end with it (`open_thought`).
    """
    last = None
    for tag in _THOUGHT.finditer(text):
        last = tag
    if last is None:
        return text
    return text[last.end() :] if last["end"] or last["END"] or last["over"] else ""


def open_thought(prompt: str) -> str:
    """The tag with which a prompt ends, so that its response begins within a thought; else empty."""
    last = None
    for tag in _THOUGHT.finditer(prompt):
        last = tag
    if last is None or prompt[last.end() :].strip():
        return ""
    return "" if last["end"] or last["END"] or last["over"] else last[0]


def _is_mention(content: str) -> bool:
    """Whether a box only stands for an answer: its content is blank, or such as `your answer`."""
    if len(content) > _MAX_PLACEHOLDER:
        return False
    words = _AROUND_WORDS.sub(" ", content).strip()
    return bool(_BLANKS.fullmatch(content) or _PLACEHOLDER.fullmatch(words))


@dataclass(frozen=True)
class _Box:
    """Content of one box, the start of its command and the end of its braces."""

    content: str
    start: int
    end: int


def _boxes(text: str) -> list[_Box]:
    r"""Complete boxes with an answer, in the order of their start; of nested ones only the innermost.

    A box without braces reaches to the end of its formula or line. A box that is never closed
    counts if its formula ends (``\boxed{5$``), but not if the text ends with it, since the answer
    may then be cut off. One forward pass with a stack keeps the time linear even for thousands of
    unclosed boxes.
    """
    # For a box the starts of its command and content, for other braces None.
    open_braces: list[tuple[int, int] | None] = []
    boxes: list[_Box] = []
    for token in _TOKEN.finditer(text):
        kind = token.group()
        is_command = len(kind) > 2
        if is_command and token["brace"]:
            open_braces.append((token.start(), token.end()))
        elif is_command:
            bare = _BARE.match(text, token.end())
            if bare:
                boxes.append(_Box(bare[0].strip().rstrip(".").strip(), token.start(), bare.end()))
        elif kind == "{":
            open_braces.append(None)
        elif kind == "}" and open_braces:
            opened = open_braces.pop()
            if opened:
                boxes.append(_Box(text[opened[1] : token.start()].strip(), opened[0], token.end()))
    last = max((opened for opened in open_braces if opened), default=None)
    unclosed = _UNCLOSED.match(text, last[1]) if last else None
    if last and unclosed and all(box.start < last[0] for box in boxes):
        boxes.append(_Box(unclosed[0].strip(), last[0], unclosed.end()))
    boxes = [box for box in boxes if not _is_mention(box.content)]
    boxes.sort(key=lambda box: box.start)
    # Of nested boxes the innermost stays: one that holds another ends after the other starts.
    inner = [box for box, after in pairwise(boxes) if after.start >= box.end]
    return inner + boxes[-1:]


def last_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}`` or ``\fbox{...}``, stripped; None if no box has an answer.

    Boxes joined only by "and", "or" or a comma are one answer, a comma-separated list. Boxes within
    thoughts do not count.
    """
    text = without_thoughts(text)
    boxes = _boxes(text)
    joined = boxes[-1:]
    for box in reversed(boxes[:-1]):
        between = text[box.end : joined[0].start]
        if len(between) > _MAX_JOIN or not _JOINS.fullmatch(between):
            break
        joined.insert(0, box)
    return ", ".join(dict.fromkeys(box.content for box in joined)) or None


def extract(gold: Gold, text: str) -> str | None:
    """The answer a generation puts in a box; None without a box.

    It is the one of `last_boxed`, unless the gold has several answers and the text exactly as many
    different boxes with one answer each. Then these are the list, as in "Alice gets \\boxed{1}. Bob
    is left with \\boxed{2}."
    """
    text = without_thoughts(text)
    parts = _count(gold.answer) if len(gold.answer) <= MAX_ANSWER_CHARS else 1
    if parts > 1 and text.count("box") >= parts:
        contents = list(dict.fromkeys(box.content for box in _boxes(text)))
        if len(contents) == parts and all(map(_is_one_answer, contents)):
            return ", ".join(contents)
    return last_boxed(text)


def _is_one_answer(content: str) -> bool:
    return len(content) <= _MAX_PART and _count(content) == 1


@lru_cache(maxsize=10_000)
def _count(answer: str) -> int:
    """Number of answers in a text; of two readings (``58,500``) the one with fewer."""
    return min(len(reading) for reading in readings(listed(spelled(answer)), is_list=False))
