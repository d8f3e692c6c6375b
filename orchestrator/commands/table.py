"""`trb table`: the results table, two methods compared, or the table of a CSV of results."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from analysis.facts.candidates import PASS_AT_1, Metric
from analysis.facts.comparison import setting_rows
from analysis.table import compare, model, settings, terminal
from analysis.table.formats import FORMATS
from orchestrator.commands.arguments import Parser, add_experiment, lacks_runs, load_sound
from orchestrator.errors import UserError, refuse


def add(parser: Parser) -> None:
    add_experiment(parser, without="none with --results")
    text = "default: text on a terminal, md in a pipe or file"
    forms = ("text", "md", "tex", "csv", "json", "parquet")
    parser.option("--format", None, text, choices=forms)
    text = "CSV method,setup,benchmark,pass_at_1 instead of an experiment"
    parser.option("--results", None, text, Path)
    text = "two methods, or settings, on the same problems, not the table"
    parser.option("--compare", "FIRST,SECOND", text)
    text = "all settings of all methods instead of each method's choice"
    parser.option("--by", None, text, choices=("method", "setting"))
    text = "default: pass@1, which selects; maj@K: the most frequent of K answers is right"
    parser.option("--metric", "pass@K|maj@K", text, _metric)
    text = "unit of cost, where methods are compared at equal cost (default: updates)"
    parser.option("--cost", None, text, choices=("updates", "time"))


def run(options: argparse.Namespace) -> int:
    form = options.format or ("text" if sys.stdout.isatty() else "md")
    _check(options, form)
    if options.results is not None:
        try:
            table = model.make_table(model.read_results(options.results))
        except ValueError as error:
            raise UserError(str(error)) from None
    elif options.compare is not None:
        write = compare.format_of(form)
        compared = compare.compare(load_sound(options), options.compare)
        if lacks_runs(options):
            return 1
        print(write(compared), end="")
        _say_beside(form, compare.verdict_of(compared).lines())
        return 0
    elif options.by == "setting":
        study, write = load_sound(options), settings.format_of(form)
        if lacks_runs(options):
            return 1
        print(write(study, setting_rows(study)), end="")
        return 0
    else:
        study = load_sound(options)
        if lacks_runs(options):
            return 1
        table = model.results_table(study, options.metric or PASS_AT_1, options.cost or "updates")
    if form == "text":
        Console().print(terminal.to_rich(table), crop=False)
    elif form == "parquet":
        from analysis.frames import evidence  # with pandas

        evidence(table).to_parquet(sys.stdout.buffer)
    else:
        print(FORMATS[form](table), end="")
    _say_beside(form, table.verdict.lines())
    return 0


def _metric(text: str) -> Metric:
    """The type of an option that takes `pass@K` or `maj@K`: K, at least 1."""
    match = re.fullmatch(r"(pass|maj)@0*([1-9][0-9]*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected pass@K or maj@K with a whole number K ≥ 1, for example pass@8"
        )
    return Metric("maj" if match[1] == "maj" else "pass", int(match[2]))


def _check(options: argparse.Namespace, form: str) -> None:
    """Refuse options that exclude each other."""
    if (options.experiment is None) == (options.results is None):
        raise UserError("table: either EXP.yaml or --results FILE.csv")
    if form == "parquet" and sys.stdout.isatty():
        expected = "output into a file: trb table EXP --format parquet > table.parquet"
        raise refuse("--format", form, expected)
    beside = "--results" if options.results is not None else ""
    if options.compare is not None:
        if beside:
            raise refuse("--compare", options.compare, "EXP.yaml: --results has no single problems")
        beside = "--compare"
    if options.by == "setting":
        if beside:
            raise refuse("--by", options.by, f"the table of an experiment, without {beside}")
        beside = "--by setting"
    for option, value in {"--metric": options.metric, "--cost": options.cost}.items():
        if beside and value is not None:
            raise refuse(option, str(value), f"the table of an experiment, without {beside}")


def _say_beside(form: str, verdict: Sequence[str]) -> None:
    """Print the verdict to stderr if the written form has no place for it."""
    for line in verdict if form == "csv" else ():
        print(line, file=sys.stderr)
