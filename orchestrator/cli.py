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

from orchestrator.commands.arguments import free_experiment, parse
from orchestrator.commands.parser import trb_parser
from orchestrator.errors import UNWRITABLE, UserError, one_line, refuse
from orchestrator.start_up import default_runs

if TYPE_CHECKING:
    from orchestrator.selection.study import Study

JOB_SERVERS = ("http://", "https://")  # what the addresses of Ray's job servers begin with


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits 0 when it did all it was asked, 2 with one line on a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # "?" for letters that its encoding lacks
    writes_there = False
    try:
        options = parse(trb_parser(), arguments)
        writes_there = options.command in ("report", "figures") and options.out is None
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
        print(f"trb: {one_line(_of_files(error, writes_there))}", file=sys.stderr)
        code = 2
    sys.exit(code)


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


def _load(options: argparse.Namespace, notes: bool = False) -> Study:
    """The experiment over its runs folder, which `options.runs` then names.

    With `notes` the file of the experiment is printed, and for `trb doctor` and `trb plan --pins`
    the lines that pin its local files.
    """
    from orchestrator.experiment.local_files import check_local
    from orchestrator.experiment.reading import from_here
    from orchestrator.experiment.shipped import find_experiment
    from orchestrator.selection.loading import load_study

    asked = {name: getattr(options, name, None) for name in ("methods", "confirm", "until")}
    study = load_study(options.experiment, options.overrides, runs=options.runs, **asked)
    options.runs = options.runs or Path(from_here(study.runs))
    if not notes:
        return study
    path = find_experiment(options.experiment)
    if path != options.experiment:
        print(f"experiment: {from_here(path)}", file=sys.stderr)
    # `trb doctor` reports on models in its own form.
    if study.experiment.notes and options.command != "doctor":
        for name, setup in study.experiment.setups.items():
            check_local(name, setup)
    if options.command == "doctor" or getattr(options, "pins", False):
        for note in study.experiment.notes:
            print(f"trb: {note}", file=sys.stderr)
    return study


def _list(options: argparse.Namespace) -> int:
    from orchestrator.commands.listing import show_list

    return show_list(options.kind, (options.runs or default_runs()).resolve(), _console())


def _plan(options: argparse.Namespace) -> int:
    from orchestrator.commands.plan import plan
    from orchestrator.planning.rates import gpu_of

    if options.gpus is not None and options.gpus < 1:
        raise refuse("--gpus", options.gpus, "1 or more")
    gpu = None if options.gpu is None else gpu_of(options.gpu)
    study = _load(options, notes=True)
    return plan(study, options.gpus or 1, gpu, _console(), options.why, options.json)


def _calibrate(options: argparse.Namespace) -> int:
    from orchestrator.commands.calibrate import calibrate

    return calibrate(_to_run(options), options.minutes, _console())


def _submit(options: argparse.Namespace) -> int:
    from orchestrator.commands.detach import detach, detach_as_job
    from orchestrator.commands.spending import confirm
    from orchestrator.commands.submit import submit

    study, address, limit = _to_run(options), options.address, options.max_gpu_hours
    confirm(study, options.yes, limit)
    is_job = (address or "").startswith(JOB_SERVERS)
    if is_job and not options.detach:
        expected = "--detach beside the address of a job server, else auto or HOST:PORT"
        raise refuse("--address", address, expected)
    again = ["--report"] if options.report else []
    again += ["--address", address] if address is not None and not is_job else []
    if not options.detach:
        typed = study.invocation.command("submit", *(["--yes"] if options.yes else []), *again)
        return submit(study, address, typed, limit, options.report)
    again += ["--yes"]  # the question was asked before
    again += [] if limit is None else ["--max-gpu-hours", repr(limit)]
    if address is not None and is_job:
        return detach_as_job(study, address, again, print)
    return detach(study, again, print)


def _to_run(options: argparse.Namespace) -> Study:
    """The experiment with its notes, if all of its engines are installed."""
    from orchestrator.engines.catalog import require_all

    study = _load(options, notes=True)
    for setup in study.experiment.setups.values():
        require_all(setup.engine)
    return study


def _cancel(options: argparse.Namespace) -> int:
    from orchestrator.commands.detach import cancel

    return cancel(_load(options), print)


def _status(options: argparse.Namespace) -> int:
    from orchestrator.commands.status import show_status, watch_status

    study = _load(options)
    if options.watch:
        return watch_status(study, _console(), options.all, options.sort)
    return show_status(study, _console(), options.json, options.all, options.sort)


def _view(options: argparse.Namespace) -> int:
    from orchestrator.view.opening import open_view

    return open_view(options, _load)


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
        expected = (
            f"an experiment before it, and {options.unit!r} is none; trb logs EXP.yaml {given}"
        )
        raise UserError(f"{given}: expected {expected}")
    else:
        folder = logs.run_directory(Path(options.unit))
        runs = (options.runs or default_runs()).resolve() if folder is None else folder.parent
        unit_ids = logs.find_units(options.unit, runs) if folder is None else [folder.name]
    show = logs.follow_logs if options.follow else logs.show_logs
    show(unit_ids, runs, functools.partial(print, flush=True))
    return 0


def _table(options: argparse.Namespace) -> int:
    from analysis.table import build, compare, model, terminal
    from orchestrator.selection.scores import PASS_AT_1

    form = options.format or ("text" if sys.stdout.isatty() else "md")
    _check_table(options, form)
    if options.results is not None:
        try:
            table = model.make_table(model.read_results(options.results))
        except ValueError as error:
            raise UserError(str(error)) from None
    elif options.compare is not None:
        write = compare.format_of(form)
        compared = compare.compare(_sound(options), options.compare)
        if _lack_runs(options):
            return 1
        print(write(compared), end="")
        _say_beside(form, compare.verdict_of(compared).lines())
        return 0
    else:
        study = _sound(options)
        if _lack_runs(options):
            return 1
        table = build.results_table(study, options.metric or PASS_AT_1, options.cost or "updates")
    if form == "text":
        _console().print(terminal.to_rich(table), crop=False)
    elif form == "parquet":
        from analysis.frames import evidence

        evidence(table).to_parquet(sys.stdout.buffer)
    else:
        from analysis.table.formats import FORMATS

        print(FORMATS[form](table), end="")
    _say_beside(form, table.verdict.lines())
    return 0


def _check_table(options: argparse.Namespace, form: str) -> None:
    """Refuse options of `trb table` that exclude each other."""
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
    for option, value in {"--metric": options.metric, "--cost": options.cost}.items():
        if beside and value is not None:
            raise refuse(option, str(value), f"the table of an experiment, without {beside}")


def _sound(options: argparse.Namespace) -> Study:
    """The experiment for one look at all of its files. Raises Damaged if a file was changed."""
    from orchestrator.selection.loading import refuse_damaged

    study = _load(options).snapshot()
    refuse_damaged(study)
    return study


def _say_beside(form: str, verdict: Sequence[str]) -> None:
    """Print the verdict to stderr if the written form has no place for it."""
    for line in verdict if form == "csv" else ():
        print(line, file=sys.stderr)


def _lack_runs(options: argparse.Namespace) -> bool:
    """Whether the runs folder is missing, which is printed: results then come from nowhere."""
    if options.runs.exists():
        return False
    hint = f"trb submit {options.experiment} makes it, --runs names another"
    print(f"runs: {options.runs} (does not exist; {hint})", file=sys.stderr)
    return True


def _refuse_folder(out: Path | None) -> None:
    if out is not None and out.is_dir():
        raise refuse("--out", str(out), "a file; this is a folder")


def _figures(options: argparse.Namespace) -> int:
    from analysis.results import write_figures

    study = _sound(options)
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise refuse("--out", str(options.out), "a folder; this is a file")
    if options.width is not None and not 3 <= options.width <= 12:
        raise refuse("--width", options.width, "inches from 3 to 12")
    if _lack_runs(options):
        return 1
    written = write_figures(study, options.out, options.width)
    if not written.paths:
        nothing = f"nothing to draw of {study.experiment.name} yet"
        raise UserError(f"{study.runs}: {nothing}; begin with: trb submit {options.experiment}")
    print(*written.paths, sep="\n")
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
    _refuse_folder(options.out)
    if _lack_runs(options):
        return 1
    report = write_report(study, options.out.resolve() if options.out else None)
    if options.figures:
        write_figures(study, report.path.parent)
    lead = "All of it on one page, open it in a browser:"
    print(*report.verdict.sentences, "", lead, sep="\n", file=sys.stderr)
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


def _pack(options: argparse.Namespace) -> int:
    from orchestrator.commands.pack import pack

    study = _sound(options)
    if _lack_runs(options):
        return 1
    return pack(study, options.output, not options.no_texts)


def _open(options: argparse.Namespace) -> int:
    from orchestrator.commands.open_pack import open_and_show

    return open_and_show(options.file, options.to, _console())


def _rerun(options: argparse.Namespace) -> int:
    from orchestrator.commands.rerun import rerun

    return rerun(options)


def _export(options: argparse.Namespace) -> int:
    from orchestrator.commands.export import export
    from orchestrator.selection.results_folder import only_results

    free_experiment(options)
    if options.experiment is None:
        options.experiment = only_results(options.runs or default_runs())
    study = _sound(options)
    if _lack_runs(options):
        return 1
    print(export(study, options.method, options.output, options.setup, options.seed))
    return 0


def _eval(options: argparse.Namespace) -> int:
    from orchestrator.commands.evaluate import evaluate_model

    return evaluate_model(options)


def _grade(options: argparse.Namespace) -> int:
    from orchestrator.commands.grade import grade_file

    _refuse_folder(options.out)
    counts = grade_file(options.file, options.out, options.grader)
    rest = f"{counts.no_answer} without an answer, {counts.timed_out} timed out"
    print(f"{counts.n} graded: {counts.correct} correct, {rest}")
    return 0


def _regrade(options: argparse.Namespace) -> int:
    if options.audit and options.texts:
        raise UserError("--texts: expected without --audit, which reads texts by itself")
    if options.audit:
        from orchestrator.commands.audit import audit

        return audit(_load(options), options.json)
    if options.json:
        raise UserError("--json: expected --audit beside it")
    from orchestrator.commands.regrade import regrade

    return regrade(_load(options), options.texts)


def _dashboard(options: argparse.Namespace) -> int:
    from orchestrator.tracking.dashboard import dashboard  # wandb takes a second to import

    print(dashboard(_load(options), options.entity, options.project, options.dry_run))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    if options.gpu:
        from orchestrator.commands.doctor_gpu import PAIR, check_gpu

        free_experiment(options)
        options.experiment = options.experiment or PAIR
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

    keys = data.chosen(options.only.split(",") if options.only else [])
    if options.action == "sources":
        print(data.table(keys))
        return 0
    folder = options.folder or Path(data_folder(None))
    for line in fetch(folder, keys, options.mirror):
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
    "view": _view,
    "logs": _logs,
    "probe": _probe_continuation,
    "doctor": _doctor,
    "table": _table,
    "figures": _figures,
    "report": _report,
    "regrade": _regrade,
    "dashboard": _dashboard,
    "pack": _pack,
    "open": _open,
    "rerun": _rerun,
    "export": _export,
    "eval": _eval,
    "grade": _grade,
    "config": _config,
    "list": _list,
    "data": _data,
}
