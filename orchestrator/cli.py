"""The command `trb`. Start-up is light: each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.commands.arguments import parse
from orchestrator.commands.parser import trb_parser
from orchestrator.commands.plain_text import suit
from orchestrator.errors import UserError, one_line, refuse
from orchestrator.start_up import default_runs

if TYPE_CHECKING:
    from orchestrator.selection.study import Study

JOB_SERVERS = ("http://", "https://")  # what the addresses of Ray's job servers begin with


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits 0 when it did all it was asked, 2 with one line on a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            suit(stream)
    try:
        options = parse(trb_parser(), arguments)
        code = COMMANDS[options.command](options)
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
        print(f"trb: {one_line(_of_files(error))}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _of_files(error: OSError) -> UserError:
    """An error of the file system: a file that cannot be written in a read-only folder names the
    folder.
    """
    path, reason = Path(error.filename or "file system"), error.strerror or str(error)
    if isinstance(error, PermissionError) and path.suffix == ".tmp":
        return refuse("folder", str(path.parent), f"a folder that can be written to ({reason})")
    return UserError(f"{path}: {reason}")


def _load(options: argparse.Namespace, notes: bool = False) -> Study:
    """The experiment over its runs folder, which `options.runs` then names; its notes are shown if
    asked for.
    """
    from orchestrator.experiment.local_models import check_local
    from orchestrator.experiment.reading import from_here
    from orchestrator.experiment.shipped import find_experiment
    from orchestrator.selection.loading import load_study

    asked = {name: getattr(options, name, None) for name in ("methods", "confirm", "until")}
    study = load_study(options.experiment, options.overrides, runs=options.runs, **asked)
    path = find_experiment(options.experiment)
    if notes and path != options.experiment:
        print(f"experiment: {from_here(path)}", file=sys.stderr)
    if (
        notes and study.experiment.notes and options.command != "doctor"
    ):  # which reports on models in its own form
        for name, setup in study.experiment.setups.items():
            check_local(name, setup)
    for note in study.experiment.notes if notes else ():
        print(f"trb: {note}", file=sys.stderr)
    options.runs = options.runs or Path(from_here(study.runs))
    return study


def _list(options: argparse.Namespace) -> int:
    from orchestrator.commands.listing import check_kind, show_list

    check_kind(options.kind)
    return show_list(options.kind, (options.runs or default_runs()).resolve(), _console())


def _plan(options: argparse.Namespace) -> int:
    from orchestrator.commands.plan import plan
    from orchestrator.planning.rates import gpu_of

    if options.gpus is not None and options.gpus < 1:
        raise UserError(f"--gpus: {options.gpus}: expected 1 or more")
    gpu = None if options.gpu is None else gpu_of(options.gpu)
    study = _load(options, notes=True)
    return plan(study, options.gpus or 1, gpu, _console(), options.why, options.json)


def _calibrate(options: argparse.Namespace) -> int:
    from orchestrator.commands.calibrate import calibrate
    from orchestrator.engines.catalog import require_all

    study = _load(options, notes=True)
    for setup in study.experiment.setups.values():
        require_all(setup.engine)
    return calibrate(study, options.minutes, _console())


def _submit(options: argparse.Namespace) -> int:
    from orchestrator.commands.spending import confirm
    from orchestrator.commands.submit import submit
    from orchestrator.engines.catalog import require_all

    study = _load(options, notes=True)
    for setup in study.experiment.setups.values():
        require_all(setup.engine)
    confirm(study, options.yes, options.max_gpu_hours)
    own = ["--yes"] if options.yes else []
    own += ["--report"] if options.report else []
    own += [] if options.address is None else ["--address", options.address]
    again = study.experiment.command("submit", *own)
    if options.detach or (options.address or "").startswith(JOB_SERVERS):
        return _detach(study, options)
    return submit(study, options.address, again, options.max_gpu_hours, options.report)


def _detach(study: Study, options: argparse.Namespace) -> int:
    from orchestrator.commands.detach import detach, detach_as_job

    address, more = options.address, ["--yes"]  # the question was asked before
    if options.max_gpu_hours is not None:
        more += ["--max-gpu-hours", repr(options.max_gpu_hours)]
    if options.report:
        more.append("--report")
    if (address or "").startswith(JOB_SERVERS):
        if not options.detach:
            raise refuse(
                "--address",
                address,
                "--detach beside the address of a job server, else auto or HOST:PORT",
            )
        return detach_as_job(study, address, more, print)
    return detach(study, more + ([] if address is None else ["--address", address]), print)


def _cancel(options: argparse.Namespace) -> int:
    from orchestrator.commands.detach import cancel

    return cancel(_load(options), print)


def _status(options: argparse.Namespace) -> int:
    from orchestrator.commands.status import show_status, watch_status

    if options.watch:
        return watch_status(_load(options), _console(), options.all, options.sort)
    return show_status(_load(options), _console(), options.json, options.all, options.sort)


def _logs(options: argparse.Namespace) -> int:
    from orchestrator.commands import logs
    from orchestrator.experiment.shipped import names_experiment

    if names_experiment(options.unit):
        options.experiment = Path(options.unit)
        study = _load(options)
        runs, unit_ids = study.runs, logs.started_units(study)
        if not unit_ids:
            raise UserError(
                f"{options.unit}: none of its {len(study.units)} units has a log in {runs}"
            )
    elif options.overrides or options.methods is not None:
        given = options.overrides[0] if options.overrides else f"--methods {options.methods}"
        raise UserError(
            f"{given}: beside an experiment, and {options.unit!r} is none; trb logs EXP.yaml {given}"
        )
    else:
        runs = (options.runs or default_runs()).resolve()
        unit_ids = logs.find_units(options.unit, runs)
    show = logs.follow_logs if options.follow else logs.show_logs
    show(unit_ids, runs, functools.partial(print, flush=True))
    return 0


def _table(options: argparse.Namespace) -> int:
    from analysis.table import build, compare, model, terminal

    if (options.experiment is None) == (options.results is None):
        raise UserError("table: either EXP.yaml or --results FILE.csv")
    form = options.format or ("text" if sys.stdout.isatty() else "md")
    if form == "parquet" and sys.stdout.isatty():
        raise refuse(
            "--format", form, "output into a file: trb table EXP --format parquet > table.parquet"
        )
    if options.compare is not None and options.results is not None:
        raise UserError(
            f"--compare: {options.compare!r}: expected an EXP.yaml, since --results has no records per problem"
        )
    beside = (
        "--compare"
        if options.compare is not None
        else "--results"
        if options.results is not None
        else ""
    )
    for option, value in {"--metric": options.metric, "--cost": options.cost}.items():
        if beside and value is not None:
            shown = f"pass@{value}" if option == "--metric" else value
            raise refuse(option, shown, f"the table of an experiment, without {beside}")
    if options.results is not None:
        try:
            made = model.make_table(model.read_results(options.results))
        except ValueError as error:
            raise UserError(str(error)) from None
    else:
        study = _sound(options)
        if options.compare is not None:
            write = compare.format_of(form)
            compared = compare.compare(study, options.compare)
            if _lack_runs(options):
                return 1
            print(write(compared), end="")
            _say_beside(form, compare.verdict_of(compared).lines())
            return 0
        if _lack_runs(options):
            return 1
        made = build.results_table(study, options.metric or 1, options.cost or "updates")
    if form == "text":
        _console().print(terminal.to_rich(made), crop=False)
    elif form == "parquet":
        from analysis.frames import evidence

        evidence(made).to_parquet(sys.stdout.buffer)
    else:
        from analysis.table.formats import FORMATS

        print(FORMATS[form](made), end="")
    _say_beside(form, made.verdict.lines())
    return 0


def _sound(options: argparse.Namespace) -> Study:
    """The experiment for one look at all of its files. Raises Damaged where one is not what was
    written.
    """
    from orchestrator.selection.damage import refuse_damaged

    study = _load(options).snapshot()
    refuse_damaged(study)
    return study


def _say_beside(form: str, verdict: Sequence[str]) -> None:
    """The verdict where the form that was written has no place for it."""
    for line in verdict if form == "csv" else ():
        print(line, file=sys.stderr)


def _lack_runs(options: argparse.Namespace) -> bool:
    """Whether the runs folder is not there, which is said: results then come from nowhere."""
    if options.runs.exists():
        return False
    hint = f"trb submit {options.experiment} makes it, --runs names another"
    print(f"runs: {options.runs} (does not exist; {hint})", file=sys.stderr)
    return True


def _figures(options: argparse.Namespace) -> int:
    from analysis.results import write_figures

    study = _sound(options)
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise UserError(f"--out: {options.out} is a file: expected a folder")
    if options.width is not None and not 3 <= options.width <= 12:
        raise UserError(f"--width: {options.width:g}: expected inches from 3 to 12")
    if _lack_runs(options):
        return 1
    written = write_figures(study, options.out, options.width)
    if not written.paths:
        raise UserError(
            f"{study.runs}: nothing to draw of {study.experiment.name} yet; begin with: trb submit {options.experiment}"
        )
    print("\n".join(map(str, written.paths)))
    for line in written.missing:
        print(f"not drawn: {line}", file=sys.stderr)
    return 0


def _report(options: argparse.Namespace) -> int:
    """The page's path goes to stdout; for people the verdict stands before it, and the next command
    after it.
    """
    from analysis.report.page import write_report
    from analysis.results import write_figures

    study = _sound(options)
    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out: {options.out} is a folder: expected a file")
    if _lack_runs(options):
        return 1
    report = write_report(study, options.out.resolve() if options.out else None)
    if options.figures:
        write_figures(study, report.path.parent)
    print(
        *report.verdict.sentences,
        "",
        "All of it on one page, open it in a browser:",
        sep="\n",
        file=sys.stderr,
    )
    print(report.path, flush=True)
    advice = report.verdict.advice
    if advice is not None:
        print("", advice.reason, advice.command, sep="\n", file=sys.stderr)
    return 0


def _probe_continuation(options: argparse.Namespace) -> int:
    from analysis.probe import view
    from orchestrator.commands.probe import run_probes

    study = _load(options)
    run_probes(study, _console(stderr=options.json))
    if options.json:
        print(json.dumps(view.to_json(study), indent=2))
    elif not options.quiet:
        for setup in study.experiment.setups:
            _console().print(view.to_rich(study, setup))
    return 0


def _eval(options: argparse.Namespace) -> int:
    from orchestrator.commands.evaluate import evaluate_model

    return evaluate_model(options)


def _grade(options: argparse.Namespace) -> int:
    from orchestrator.commands.grade import grade_file

    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out: {options.out} is a folder: expected a file")
    try:
        counts = grade_file(options.file, options.out, options.grader)
    except ValueError as error:
        raise UserError(str(error)) from None
    rest = f"{counts.no_answer} without an answer, {counts.timed_out} timed out"
    print(f"{counts.n} graded: {counts.correct} correct, {rest}")
    return 0


def _regrade(options: argparse.Namespace) -> int:
    if options.audit:
        from orchestrator.commands.audit import audit

        return audit(_load(options), options.json)
    if options.json:
        raise UserError("--json: expected --audit beside it")
    from orchestrator.commands.regrade import regrade

    return regrade(_load(options))


def _dashboard(options: argparse.Namespace) -> int:
    from orchestrator.tracking.dashboard import dashboard  # wandb takes a second to import

    print(dashboard(_load(options), options.entity, options.project, options.dry_run))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    if options.gpu:
        from orchestrator.commands.doctor_gpu import PAIR, check_gpu

        if (
            options.experiment is None or "=" in options.experiment.name
        ):  # which is the first override
            options.overrides = [*filter(None, [str(options.experiment or "")]), *options.overrides]
            options.experiment = PAIR
        return check_gpu(_load(options), options.small, options.json)
    if options.small:
        raise UserError("--small: not without --gpu: expected trb doctor --gpu --small")
    from orchestrator.commands.doctor import examine

    return examine(_load(options, notes=True) if options.experiment else None, options.json)


def _config(options: argparse.Namespace) -> int:
    from shutil import get_terminal_size

    from orchestrator.commands.config_reference import show
    from orchestrator.experiment.load import load_experiment
    from orchestrator.experiment.methods import null_overrides
    from orchestrator.experiment.shipped import find_experiment

    overrides = list(options.overrides)
    if options.methods is not None:
        if options.what is None:
            raise UserError(f"--methods: {options.methods!r}: expected an EXP.yaml before it")
        path = find_experiment(Path(options.what))
        overrides += null_overrides(options.methods, load_experiment(path, overrides).methods)
    print(show(options.what, overrides, options.json, get_terminal_size().columns))
    return 0


def _data(options: argparse.Namespace) -> int:
    from orchestrator.commands import data
    from orchestrator.data.fetching import fetch
    from orchestrator.experiment.load import data_folder

    only = options.only.split(",") if options.only else []
    if options.action == "sources":
        print(data.table(only))
        return 0
    folder = options.folder or Path(data_folder(None))
    for line in fetch(folder, data.chosen(only), options.mirror):
        print(line, flush=True)
    print(f"use them with data_dir={folder}, or TRB_DATA_DIR={folder.resolve()}")
    return 0


def _console(stderr: bool = False):
    from rich.console import Console

    return Console(stderr=stderr)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "plan": _plan,
    "calibrate": _calibrate,
    "submit": _submit,
    "status": _status,
    "cancel": _cancel,
    "logs": _logs,
    "probe": _probe_continuation,
    "doctor": _doctor,
    "table": _table,
    "figures": _figures,
    "report": _report,
    "regrade": _regrade,
    "dashboard": _dashboard,
    "eval": _eval,
    "grade": _grade,
    "config": _config,
    "list": _list,
    "data": _data,
}
