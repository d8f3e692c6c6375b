"""Which rules of the mathematical judge fire over stored answers: `python -m benchmarks.grader_rules
PATH…`.

A PATH is one of
- a results folder `RUNS/results/EXPERIMENT`: the kept answers of all its evaluations,
- `.jsonl` with rows `{gold, answer}`, or a benchmark's rows `{answer}`: each gold judges itself,
  `as_models_write` it, the next row's gold, and the box of its solution if the row has one,
- `.yaml` in the form of `tests/grading/verdicts.yaml`.

A rule is a regular expression of a module of `orchestrator.grading`, a character of its `_UNICODE`,
or a function of `judge._RULES` that decides. The table has, for each rule, the pairs in which it
fired, and the pairs (of at most MOST of them) whose verdict is another one without it. A rule that
fires on generations and changes no verdict is not needed for them. `grader-rules.json` holds the
same, with an example of each rule.
"""

from __future__ import annotations

import importlib
import json
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from orchestrator.data.benchmarks import load_benchmark
from orchestrator.grading import algebra, judge, notation
from orchestrator.grading.gold import Gold
from orchestrator.selection.loading import load_study

ROOMS = ("algebra", "judge", "meanings", "notation")
MOST = 300  # pairs of a rule that are judged again without it
DEADLINE_S = 5
Pair = tuple[Gold, str]


class Rules:
    """The rules by name: those that fired since `fired` was cleared, and the one that is off."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.fired: set[str] = set()
        self.off = ""

    def fires(self, name: str) -> bool:
        """Note that a rule fires; False if it is off."""
        self.fired.add(name)
        return name != self.off


class CountedPattern:
    """A compiled pattern that notes its matches, and has none while it is off."""

    def __init__(self, name: str, compiled: re.Pattern[str], rules: Rules) -> None:
        self.name, self.compiled, self.rules = name, compiled, rules
        self.pattern = compiled.pattern
        rules.names.add(name)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        plain = getattr(self.compiled, method)

        def counted(*arguments: Any, **options: Any) -> Any:
            text = next(word for word in reversed(arguments) if isinstance(word, str))
            if self.compiled.search(text) is None:
                return plain(*arguments, **options)
            found = plain(*arguments, **options)
            if method == "sub":
                return found if found == text or self.rules.fires(self.name) else text
            if method in ("search", "match", "fullmatch"):
                return found if found is None or self.rules.fires(self.name) else None
            self.rules.fires(self.name)  # lists and iterators of matches stay
            return found

        return counted


def count_rules() -> Rules:
    """Replace the rules of all modules by counted ones, in this process."""
    rules = Rules()
    for room in ROOMS:
        module = importlib.import_module(f"orchestrator.grading.{room}")
        for name, value in vars(module).copy().items():
            if isinstance(value, re.Pattern):
                setattr(module, name, CountedPattern(f"{room}.{name}", value, rules))
            elif isinstance(value, tuple) and value and isinstance(value[0], re.Pattern):
                counted = [CountedPattern(f"{room}.{name}: {p.pattern}", p, rules) for p in value]
                setattr(module, name, tuple(counted))
    synonyms = []
    for pattern, replacement in notation._SYNONYMS:
        name = f"notation._SYNONYMS: {pattern.pattern}"
        synonyms.append((CountedPattern(name, pattern, rules), replacement))
    notation._SYNONYMS = tuple(synonyms)  # pyright: ignore[reportAttributeAccessIssue]
    judge._RULES = tuple(_counted_rule(rule, at, rules) for at, rule in enumerate(judge._RULES))
    return rules


def _counted_rule(rule: judge.Rule, at: int, rules: Rules) -> judge.Rule:
    name = f"judge._RULES[{at}]: {rule.__name__}"
    rules.names.add(name)

    def counted(gold: str, answer: str, tolerance: float | None) -> bool | None:
        verdict = rule(gold, answer, tolerance)
        return verdict if verdict is None or rules.fires(name) else None

    return counted


def pairs_of(path: Path) -> Iterator[Pair]:
    """All pairs of a path, as the docstring of this file says."""
    if path.is_dir():
        yield from _kept_answers(path)
    elif path.suffix == ".yaml":
        for cases in yaml.safe_load(path.read_text(encoding="utf-8")).values():
            for case in cases:
                for answer in [*case["right"], *case["wrong"]]:
                    yield _gold(case["gold"]), answer
    else:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row, following in zip(rows, [*rows[1:], rows[0]], strict=True):
            yield from _row_pairs(row, following)


def _gold(value: str | dict[str, Any]) -> Gold:
    return Gold(**value) if isinstance(value, dict) else Gold(value)


def _row_pairs(row: dict[str, Any], following: dict[str, Any]) -> Iterator[Pair]:
    """The pair of a row with a gold, or the pairs of a benchmark's row."""
    if "gold" in row:
        yield _gold(row["gold"]), row["answer"]
        return
    error = float(row["error"]) if row.get("error") else None
    gold = Gold(row["answer"], bool(row.get("is_multiple_answer")), row.get("unit"), error)
    yield gold, row["answer"]
    yield gold, following["answer"]
    for variant in as_models_write(row["answer"]):
        yield gold, variant
    if "answer_675" in row:
        yield gold, row["answer_675"]
    boxed = notation.extract(gold, row.get("solution") or "")
    if boxed is not None:
        yield gold, boxed


def as_models_write(answer: str) -> Iterator[str]:
    """A gold in spellings that language models are fond of."""
    bare = answer.strip("$ ")
    yield f"${bare}$."
    yield rf"\({bare}\)"
    yield f"x = {bare}"
    yield rf"\text{{{bare}}}"
    yield rf"\mathbf{{{bare}}}"
    yield rf"{bare} \text{{ units}}"
    yield rf"{bare} meters"
    yield bare.replace(r"\frac", r"\dfrac").replace("(", r"\left(").replace(")", r"\right)")
    yield bare.replace(r"\dfrac", r"\frac").replace(r"\left", "").replace(r"\right", "")
    yield bare.replace(" ", "").replace(r"\!", "")
    yield re.sub(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", bare)
    yield re.sub(r"\^\{?\\circ\}?", "°", bare)
    yield re.sub(r"\s*\\(?:text|mbox)\s*\{[^{}]*\}", "", bare)
    yield ", ".join(reversed(bare.split(",")))


def _kept_answers(results: Path) -> Iterator[Pair]:
    """Every answer that an evaluation kept, once for each problem."""
    study, seen = load_study(results), set[tuple[str, str, str]]()
    for unit in study.units:
        setup, run = study.setup_of(unit), study.reader(unit)
        for key, evaluation_id in study.evaluation_ids(unit.setup).items():
            problems = load_benchmark(
                key, study.experiment.data_dir, setup.evaluation.benchmarks[key]
            )
            golds = {problem.id: problem.gold for problem in problems}
            for step in run.evaluated_steps(evaluation_id):
                for record in run.evaluation(evaluation_id, step) or ():
                    for answer in record.answers:
                        gold = golds[record.problem]
                        if gold is not None and (key, record.problem, answer) not in seen:
                            seen.add((key, record.problem, answer))
                            yield gold, answer


def verdict_of(pair: Pair) -> bool | None:
    """The verdict on a pair; None where it takes longer than the deadline, or fails."""
    signal.alarm(DEADLINE_S)
    try:
        return judge.judge(*pair)
    except Exception:
        return None
    finally:
        signal.alarm(0)


def main() -> None:
    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    rules = count_rules()
    hits: dict[str, dict[str, list[Pair]]] = defaultdict(lambda: defaultdict(list))
    verdicts: dict[Pair, bool | None] = {}
    counts: dict[str, int] = {}
    for path in map(Path, sys.argv[1:]):
        pairs = list(dict.fromkeys(pairs_of(path)))
        counts[path.name] = len(pairs)
        for pair in pairs:
            algebra.parsed.cache_clear()
            rules.fired.clear()
            verdicts[pair] = verdict_of(pair)
            for name in rules.fired:
                hits[name][path.name].append(pair)
        print(f"{path.name}: {len(pairs)} pairs", file=sys.stderr, flush=True)
    document = {}
    for name in sorted(rules.names):
        rules.off, needed, example = name, {}, None
        for source, pairs in hits[name].items():
            changed = []
            for pair in pairs[:MOST]:
                algebra.parsed.cache_clear()
                if verdict_of(pair) != verdicts[pair]:
                    changed.append(pair)
            needed[source] = len(changed)
            shown = (changed or pairs)[0]
            example = example or [shown[0].answer, shown[1], verdicts[shown]]
        fired = {source: len(pairs) for source, pairs in hits[name].items()}
        document[name] = {"fired": fired, "needed": needed, "example": example}
        print(f"{sum(fired.values()):6} {sum(needed.values()):5}  {name[:100]}", flush=True)
    Path("grader-rules.json").write_text(
        json.dumps({"pairs": counts, "rules": document}, indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
