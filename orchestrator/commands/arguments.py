"""Parses command lines; a mistake is a `UserError` with the word and what would be right."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.selection.scores import Metric

MOST_DIGITS = 18  # of a whole number on the command line


class Parser(argparse.ArgumentParser):
    """argparse's parser with the project's errors; `namespace.parser` is that of the command."""

    def error(self, message: str) -> NoReturn:
        """Called by argparse with its own wording."""
        missing = re.match(r"the following arguments are required: (.*)", message)
        if missing and missing[1] in ("COMMAND", "PROBE"):
            words: list[str] = []
            for action in self._actions:
                words += action.choices or ()
            expected = f"expected one of {', '.join(words)}; see {self.prog} --help"
            raise UserError(f"no {missing[1]} given: {expected}")
        if missing:
            raise UserError(f"{missing[1]} is missing; {self.one_line_usage()}")
        raise UserError(message.removeprefix("argument "))

    def one_line_usage(self) -> str:
        """`trb plan EXP.yaml [key=value ...] [--runs RUNS]`."""
        return " ".join(self.format_usage().replace("[-h]", "").split()).removeprefix("usage: ")

    def flag(self, name: str, text: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=text)

    def option(
        self,
        name: str,
        metavar: str | None,
        text: str,
        of_type: Callable[[str], object] = str,
        **more: Any,
    ) -> None:
        """Add an option with a value, which the usage calls `metavar`."""
        self.add_argument(name, metavar=metavar, type=of_type, help=text, **more)

    def flags(self) -> list[str]:
        """Options of this command, for example `--runs`."""
        flags: list[str] = []
        for action in self._actions:
            flags += action.option_strings
        return [flag for flag in flags if flag.startswith("--")]

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        found, rest = super().parse_known_args(args, namespace)
        if not hasattr(found, "parser"):  # a command's own parser comes before that of `trb`
            found.parser = self
        return found, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or action.metavar
            known = list(action.choices)
            expected = f"one of {', '.join(known)}{did_you_mean(str(value), known)}"
            raise refuse(str(name), value, expected)


def is_whole_number(text: str) -> bool:
    """Whether a word of the command line is a whole number ≥ 0 of at most MOST_DIGITS digits."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def whole_number(text: str) -> int:
    """The type of an option that takes a whole number ≥ 0."""
    if not is_whole_number(text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a whole number ≥ 0 of at most {MOST_DIGITS} digits"
        )
    return int(text)


def metric(text: str) -> Metric:
    """The type of an option that takes `pass@K` or `maj@K`: K, at least 1."""
    match = re.fullmatch(rf"(pass|maj)@0*([1-9][0-9]{{0,{MOST_DIGITS - 1}}})", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected pass@K or maj@K with a whole number K ≥ 1, for example pass@8"
        )
    return Metric("maj" if match[1] == "maj" else "pass", int(match[2]))


def positive_number(text: str) -> float:
    """The type of an option that takes a number > 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number > 0")
    return number


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


def free_experiment(options: argparse.Namespace) -> None:
    """Leave no experiment in `options` where the user gave none.

    argparse then takes the first override for the experiment; here it becomes an override again.
    """
    if options.experiment is not None and "=" in options.experiment.name:
        options.overrides = [str(options.experiment), *options.overrides]
        options.experiment = None


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
