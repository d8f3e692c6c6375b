"""The options that commands share, and the study that they name.

Each command's file has `add(parser)`, its own arguments, and `run(options)`, which returns the exit
code. `cli` lists the commands.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator.errors import UserError, did_you_mean, refuse

if TYPE_CHECKING:
    from orchestrator.selection.study import Study

OVERRIDES = "OmegaConf dotlist, for example training.steps=20 methods.skd=null"
EXPERIMENT = "an experiment file, a results folder, or the name of a shipped experiment: quickstart"
ONLY_RESULTS = "default: the only one in the runs folder"
JSON = "print JSON instead of text"


class Parser(argparse.ArgumentParser):
    """argparse's parser with the project's errors; `namespace.parser` is that of the command.

    `fill` adds the arguments of a command, whose modules are imported only when it is typed.
    """

    def __init__(self, *args: Any, fill: Callable[[Parser], None] | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._fill = fill

    def fill(self) -> None:
        """Add the arguments, if that was not done before."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

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
        self.fill()
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


# --- arguments that commands share ---


def add_experiment(parser: Parser, without: str | None = None) -> None:
    """The experiment, its differences and its runs folder.

    `without` says what the command does where no experiment is given; None if it needs one.
    """
    nargs, text = None, EXPERIMENT
    if without is not None:
        nargs, text = "?", f"{EXPERIMENT} ({without})"
    parser.add_argument("experiment", type=Path, metavar="EXP.yaml", nargs=nargs, help=text)
    add_differences(parser)
    add_runs(parser)


def add_differences(parser: Parser) -> None:
    """Options that change an experiment: overrides of its keys, and a choice of its methods."""
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=OVERRIDES)
    parser.option("--methods", "A,B", "only these of its methods, by key or label: vanilla,TRB")
    text = "with --confirm: add seeds until each difference is settled, to ± POINTS or from zero"
    parser.option("--until", "POINTS", text, positive_number)
    text = "confirm each method's choice on N more seeds, which take no part in choosing"
    parser.option("--confirm", "N", text, whole_number)


def add_runs(
    parser: Parser, default: str = "that of a results folder, $TRB_RUNS, else runs"
) -> None:
    parser.option("--runs", "DIR", f"folder of the run directories (default: {default})", Path)


def whole_number(text: str) -> int:
    """The type of an option that takes a whole number ≥ 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number ≥ 0")
    return int(text)


def positive_number(text: str) -> float:
    """The type of an option that takes a number > 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number > 0")
    return number


def refuse_folder(out: Path | None) -> None:
    """Raise UserError if the value of --out, which names a file, is a folder."""
    if out is not None and out.is_dir():
        raise refuse("--out", str(out), "a file; this is a folder")


# --- the study that they name; its modules take a third of a second to import ---


def free_experiment(options: argparse.Namespace) -> None:
    """Leave no experiment in `options` where the user gave none.

    argparse then takes the first override for the experiment; here it becomes an override again.
    """
    if options.experiment is not None and "=" in options.experiment.name:
        options.overrides = [str(options.experiment), *options.overrides]
        options.experiment = None


def load(options: argparse.Namespace, announce: bool = False) -> Study:
    """The experiment over its runs folder, which `options.runs` then names.

    With `announce` the file of a shipped experiment is named on stderr.
    """
    from orchestrator.experiment.load import find_experiment
    from orchestrator.experiment.reading import from_here
    from orchestrator.selection.loading import load_study

    asked = {name: getattr(options, name) for name in ("methods", "confirm", "until")}
    study = load_study(options.experiment, options.overrides, runs=options.runs, **asked)
    options.runs = options.runs or Path(from_here(study.runs))
    path = find_experiment(options.experiment)
    if announce and path != options.experiment:
        print(f"experiment: {from_here(path)}", file=sys.stderr)
    return study


def load_sound(options: argparse.Namespace) -> Study:
    """The experiment for one look at all of its files. Raises Damaged if a file was changed."""
    from orchestrator.selection.loading import refuse_damaged

    study = load(options).snapshot()
    refuse_damaged(study)
    return study


def load_to_run(options: argparse.Namespace) -> Study:
    """The announced experiment, if its local models are whole and all of its engines installed."""
    from orchestrator.engines.catalog import require_all
    from orchestrator.experiment.local_files import check_local

    study = load(options, announce=True)
    for name, setup in study.experiment.setups.items():
        if study.experiment.notes:
            check_local(name, setup)
        require_all(setup.engine)
    return study


def say_pins(study: Study) -> None:
    """Print the lines that pin the local files which an experiment leaves open."""
    for note in study.experiment.notes:
        print(f"trb: {note}", file=sys.stderr)


def lacks_runs(options: argparse.Namespace) -> bool:
    """Whether the runs folder is missing, which is printed: results then come from nowhere."""
    if options.runs.exists():
        return False
    hint = f"trb submit {options.experiment} makes it, --runs names another"
    print(f"runs: {options.runs} (does not exist; {hint})", file=sys.stderr)
    return True
