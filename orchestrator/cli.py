"""The command `trb`: the table of its commands, and errors to exit codes.

`trb --help` imports no command. The file of one, with `add(parser)` and `run(options)`, is imported
when it is typed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.commands.arguments import Parser
from orchestrator.errors import UNWRITABLE, UserError, did_you_mean, one_line, refuse

# Purpose → name → the module that has its `add` and `run`, and what the command does. A module with
# two commands has `add_NAME` and `run_NAME` for the second one, which is written `module:NAME`.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "run a sweep": {
        "plan": ("commands.plan", "what would run and what it costs; runs nothing"),
        "submit": ("commands.submit", "run what is missing, then print the results table"),
        "cancel": (
            "commands.detach:cancel",
            "stop an experiment, wherever it runs; what is committed stays",
        ),
    },
    "look": {
        "status": ("commands.status", "the state of every unit, also while it runs"),
        "view": (
            "view.opening",
            "look inside, full-screen: scores, units, curves, logs, samples",
        ),
        "logs": ("commands.logs", "the log of a unit, or of every unit of an experiment"),
        "dashboard": ("commands.dashboard", "a W&B workspace over the runs of an experiment"),
    },
    "judge": {
        "table": ("commands.table", "the results table, all settings, or two of them compared"),
        "report": ("commands.report", "one HTML page: verdict, tables, figures, responses, cost"),
        "figures": ("commands.report:figures", "the figures, as PNG and PDF"),
        "power": ("commands.power", "how many seeds find a difference, and what these find"),
        "probe": ("commands.probe", "measurements of the untrained student"),
    },
    "share": {
        "pack": ("commands.pack", "a finished sweep as one file to cite, without weights"),
        "open": ("commands.open_pack", "verify a packed sweep, unpack it and print its table"),
        "rerun": (
            "commands.rerun",
            "train again what a cell of a packed table rests on",
        ),
        "export": ("commands.export", "a checkpoint as a Hugging Face folder with a model card"),
    },
    "check": {
        "doctor": ("commands.doctor", "preflight of this machine and an experiment"),
        "calibrate": ("commands.calibrate", "time this machine's GPU with the models, for plans"),
        "eval": ("commands.evaluate", "pass@1 of any checkpoint with the sweep's evaluator"),
        "grade": ("commands.grade", "grade a file of rows {gold, generation} with the one grader"),
        "regrade": ("commands.regrade", "recount all scores with the present grader"),
    },
    "look up": {
        "config": ("commands.config_reference", "every key with its type, default and meaning"),
        "list": ("commands.listing", "shipped experiments, methods, setups, benchmarks; results"),
        "data": ("commands.data", "where the data files come from; with fetch, get them"),
    },
}
COMMANDS = {name: row for group in GROUPS.values() for name, row in group.items()}
EXAMPLES = """\
examples:
  trb plan quickstart                           what would run and what it costs
  trb submit quickstart                         run it; again, it goes on
  trb status quickstart --methods vanilla,TRB   how far these two are
  trb table quickstart --compare TRB,Vanilla    two methods on the same problems

`trb COMMAND --help` says more of a command, `trb config` of every key."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits 0 when it did all it was asked, 2 with one line on a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # "?" for letters that its encoding lacks
    writes_there = False
    try:
        options = parse(trb_parser(), arguments)
        writes_there = options.command in ("report", "figures") and options.out is None
        code = _function("run", options.command)(options)
    except UserError as error:
        print(f"trb: {one_line(error)}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("trb: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # the reader of a pipe is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        print(f"trb: {one_line(_of_files(error, writes_there))}", file=sys.stderr)
        code = 2
    sys.exit(code)


def trb_parser() -> Parser:
    """The parser of `trb`. Its namespace has the command's name in `command`, a probe's in `probe`."""
    parser = Parser(
        prog="trb",
        usage="trb [-h] [--version] COMMAND …",
        description="On-policy distillation sweeps: plan, run, judge.",
        epilog=f"{_groups()}\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = "version and, in a checkout, commit"
    parser.add_argument("--version", action=_Version, nargs=0, help=text)
    hidden = argparse.SUPPRESS  # argparse has no groups of commands; the epilog lists them
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, help=hidden, prog="trb"
    )
    for name, (_, text) in COMMANDS.items():
        fill = functools.partial(_fill, name)
        commands.add_parser(name, description=text, fill=fill)
    return parser


def _groups() -> str:
    """The commands by purpose, a line each."""
    lines: list[str] = []
    for purpose, group in GROUPS.items():
        lines.append(f"{purpose}:")
        lines += [f"  {name:<11}{text}" for name, (_, text) in group.items()]
    return "\n".join(lines) + "\n"


def parse(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options; overrides may follow flags, while argparse alone wants them before the first."""
    words = sys.argv[1:] if arguments is None else arguments
    for word in words:
        # Such a word would fail later, where it names a file or is printed.
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise refuse("argument", word, "text in UTF-8")
    options, late = parser.parse_known_args(words)
    command: Parser = options.parser
    for word in late:
        if word.startswith("-"):
            raise _unknown_option(word, late[late.index(word) + 1 :], command)
        if "=" not in word or not hasattr(options, "overrides"):
            raise refuse("argument", word, f"words as in: {command.one_line_usage()}")
    if late:
        options.overrides = [*options.overrides, *late]
    return options


class _Version(argparse.Action):
    """Like argparse's own `version`, which would ask git for the text at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from orchestrator.records.provenance import version_line

        print(version_line())
        parser.exit()


def _fill(name: str, parser: Parser) -> None:
    _function("add", name)(parser)


def _function(verb: str, name: str) -> Callable[[Any], Any]:
    """`add` or `run` of a command."""
    module, _, second = COMMANDS[name][0].partition(":")
    verb = f"{verb}_{second}" if second else verb
    return getattr(importlib.import_module(f"orchestrator.{module}"), verb)


def _unknown_option(word: str, after: Sequence[str], command: Parser) -> UserError:
    """For `--seeds 3` the override that was meant, for `--run` the nearest option."""
    from orchestrator.config import ExperimentFile  # which takes a fifth of a second

    flag, _, value = word.partition("=")
    key = flag.lstrip("-").replace("-", "_")
    if key.partition(".")[0] in {field.name for field in dataclasses.fields(ExperimentFile)}:
        value = value or next(iter(after), "VALUE")
        if key == "seeds" and value.isascii() and value.isdigit() and 0 < int(value[:3]) <= 10:
            value = "[" + ",".join(map(str, range(int(value)))) + "]"
        return UserError(
            f"{flag}: unknown option; a key of the experiment is set without dashes: {key}={value}"
        )
    flags = command.flags()
    expected = f"expected one of {', '.join(flags)}{did_you_mean(flag, flags)}"
    return UserError(f"{flag}: unknown option: {expected}")


def _of_files(error: OSError, writes_there: bool) -> UserError:
    """An error of the file system. A file that cannot be written names its folder.

    A command that `writes_there` alone without --out can be told another place.
    """
    path, reason = Path(error.filename or "file system"), error.strerror or str(error)
    # Unlike `Path.exists`, `os.access` takes names of any length.
    unreadable = os.access(path, os.F_OK) and not os.access(path, os.R_OK)
    if error.errno not in UNWRITABLE or error.filename is None or unreadable:
        return UserError(f"{path}: {reason}")
    folder = path if path.is_dir() else path.parent
    elsewhere = "; --out writes elsewhere" if writes_there else ""
    return refuse("folder", str(folder), f"a folder that can be written to ({reason}){elsewhere}")
