"""`trb logs`: the log of a unit, found by its id, the beginning of one, or its label."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.commands.arguments import EXPERIMENT, Parser, add_differences, add_runs, load
from orchestrator.errors import UserError, did_you_mean
from orchestrator.experiment.axes import RATE, axes_of, setting_text
from orchestrator.experiment.load import names_experiment
from orchestrator.experiment.methods import METHODS, OF_ADAPTERS, folded
from orchestrator.experiment.units import label_of
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study
from orchestrator.start_up import default_runs

FOLLOW_S = 0.5
MOST_NAMED = 6  # units of a message

Say = Callable[[str], None]


def add(parser: Parser) -> None:
    text = f"id of a unit, its beginning, a label as of `trb status`: 'TRB K=12', or {EXPERIMENT}"
    parser.add_argument("unit", metavar="UNIT | EXP.yaml", help=text)
    add_differences(parser)
    add_runs(parser)
    text = "go on printing what is added, until Ctrl-C"
    parser.add_argument("-f", "--follow", action="store_true", help=text)


def run(options: argparse.Namespace) -> int:
    if names_experiment(options.unit):
        options.experiment = Path(options.unit)
        study = load(options)
        runs, unit_ids = study.runs, started_units(study)
        if not unit_ids:
            raise UserError(
                f"{options.unit}: none of its {len(study.units)} units has a log in {runs}"
            )
    elif options.overrides or options.methods is not None:
        given = options.overrides[0] if options.overrides else f"--methods {options.methods}"
        expected = (
            f"an experiment before it, and {options.unit!r} is none; trb logs EXP.yaml {given}"
        )
        raise UserError(f"{given}: expected {expected}")
    else:
        folder = run_directory(Path(options.unit))
        runs = (options.runs or default_runs()).resolve() if folder is None else folder.parent
        unit_ids = find_units(options.unit, runs) if folder is None else [folder.name]
    show = follow_logs if options.follow else show_logs
    show(unit_ids, runs, functools.partial(print, flush=True))
    return 0


def show_logs(unit_ids: Sequence[str], runs: Path, say: Say) -> None:
    """Print the logs of the units in turn, each with the traceback of its last failure."""
    for unit_id in unit_ids:
        run = RunReader(runs, unit_id)
        if len(unit_ids) > 1:
            say(_heading(runs, unit_id))
        text = run.log_text()
        say(text.rstrip("\n") if text else f"{unit_id}: no log yet")
        if run.traceback is not None and run.traceback.strip() not in (text or ""):
            say(f"traceback of the last failure:\n{run.traceback.rstrip()}")


def follow_logs(
    unit_ids: Sequence[str], runs: Path, say: Say, goes_on: Callable[[], bool] = lambda: True
) -> None:
    """Print the logs, and what is added to them until Ctrl-C, as long as it `goes_on`."""
    shown = dict.fromkeys(unit_ids, 0)
    last = None
    while True:
        for unit_id in unit_ids:
            text = RunReader(runs, unit_id).log_text() or ""
            whole = text[: text.rfind("\n") + 1]
            new, shown[unit_id] = whole[shown[unit_id] :], len(whole)
            if not new:
                continue
            if len(unit_ids) > 1 and unit_id != last:
                say(_heading(runs, unit_id))
            last = unit_id
            say(new.rstrip("\n"))
        if not goes_on():
            return
        time.sleep(FOLLOW_S)


def run_directory(path: Path) -> Path | None:
    """The run directory that `path` is, or that it lies in; None if there is none with a log."""
    if path.exists():
        for folder in (path.resolve(), *path.resolve().parents):
            if folder.is_dir() and RunReader(folder.parent, folder.name).log_text() is not None:
                return folder
    return None


def find_units(name: str, runs: Path) -> list[str]:
    """The units that `name` means: one by its id or a part of it, or all with a label.

    A label such as `TRB K=12` means all of its seeds; `TRB K=12 seed 0`, as `trb status` writes it,
    means one of them. The setup may precede the label. UserError if the name means none of the run
    directories in `runs`, or several by their ids.
    """
    if not runs.is_dir():
        raise UserError(f"{name!r}: no such unit; {runs} does not exist, and --runs names another")
    ids = sorted(folder.name for folder in runs.iterdir() if is_unit(folder))
    known, labelled = list(ids), []
    for unit_id in ids:
        labels = _labels(runs / unit_id)
        known += labels
        if folded(name) in map(folded, labels):
            labelled.append(unit_id)
    wanted = name.rstrip("/").rsplit("/", 1)[-1].casefold()
    rules: tuple[Callable[[str], bool], ...] = (
        lambda unit_id: unit_id.casefold() == wanted,
        lambda unit_id: unit_id.casefold().startswith(wanted),
        lambda unit_id: unit_id in labelled,
        lambda unit_id: wanted in unit_id.casefold(),
    )
    for fits in rules:
        found = [unit_id for unit_id in ids if fits(unit_id)]
        if len(found) == 1 or (found and found == labelled):
            return found
        if found:
            raise UserError(f"{name!r} means {len(found)} units; {_named(found)}")
    raise UserError(
        f"{name!r}: no such unit in {runs}: expected one of {_named(ids)}{did_you_mean(name, known)}"
    )


def started_units(study: Study) -> list[str]:
    """Ids of the units that have a log."""
    return [unit.id for unit in study.units if study.reader(unit).log_text() is not None]


def is_unit(folder: Path) -> bool:
    """Whether a folder is a run directory."""
    run = RunReader(folder.parent, folder.name)
    return not folder.name.startswith(".") and (run.started or run.log_text() is not None)


def _heading(runs: Path, unit_id: str) -> str:
    """`==> derailing-vanilla-s0-f7aa… (derailing Vanilla lr=0.0004 seed 0)`."""
    labels = _labels(runs / unit_id)
    return f"==> {unit_id} ({labels[-1]})" if labels else f"==> {unit_id}"


def _named(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return (", ".join(ids[:MOST_NAMED]) or "a unit, of which none has run") + more


def _labels(folder: Path) -> list[str]:
    """Labels of the unit in `folder`, see `find_units`; none if its configuration is unreadable."""
    try:
        unit = RunReader(folder.parent, folder.name).config()["unit"]
        # The file has its keys sorted, and a label has knobs in the order of the method's row.
        order = METHODS[unit["method"]].knobs if unit["method"] else OF_ADAPTERS
        knobs = {name: unit["knobs"][name] for name in order if name in unit["knobs"]}
        knobs |= dict(sorted(axes_of(unit["knobs"]).items()))
        # An experiment that sweeps the learning rate shares the runs of one that does not.
        training = unit.get("identity", {}).get("training")
        rate = {RATE: training["optimizer"]["lr"]} if training and RATE not in knobs else {}
        labels = []
        for settings in (knobs, knobs | rate):
            label = label_of(unit["kind"], unit["method"], settings)
            by_key = f"{unit['method']} {setting_text(settings)}".rstrip()
            for each in (by_key, label) if unit["kind"] == "trial" else (label,):
                seeded = f"{each} seed {unit['seed']}"
                labels += [each, seeded, f"{unit['setup']} {each}", f"{unit['setup']} {seeded}"]
        return labels
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []  # it is damaged, or another version wrote it
