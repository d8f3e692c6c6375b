"""The command `trb`. Start-up is light: each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.commands.arguments import Parser, parse, whole_number
from orchestrator.errors import UserError, one_line, one_of

if TYPE_CHECKING:
    from orchestrator.selection.study import Study

OVERRIDES = "OmegaConf dotlist, for example training.steps=20 methods.skd=null"

EXPERIMENT = "an experiment file, or the name of a shipped one: quickstart"
JSON = "print JSON instead of text"
EXAMPLES = """\
examples:
  trb plan quickstart                           what would run and what it costs
  trb submit quickstart                         run it; again, it goes on
  trb status quickstart --methods vanilla,TRB   where these two stand
  trb table quickstart --compare TRB,Vanilla    two methods on the same problems

`trb COMMAND --help` says more of a command, `trb config` of every key."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits 0 when it did all it was asked, 2 with one line on a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without ± or ← shows ? and gets its table all the same
            stream.reconfigure(errors="replace")
    try:
        options = parse(_parser(), arguments)
        code = options.run(options)
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
        problem = UserError(f"{error.filename or 'file system'}: {error.strerror or error}")
        print(f"trb: {one_line(problem)}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _parser() -> Parser:
    parser = Parser(
        prog="trb",
        description="On-policy distillation sweeps: plan, run, judge.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="version and, in a checkout, commit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_sweep_commands(commands)
    _add_result_commands(commands)
    _add_model_commands(commands)
    _add_reference_commands(commands)
    return parser


class _Version(argparse.Action):
    """argparse's own `version` wants the text at every start; this one asks git when it is asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from orchestrator.records.provenance import version_line

        print(version_line())
        parser.exit()


def _add_sweep_commands(commands: argparse._SubParsersAction) -> None:
    plan = _experiment(commands, "plan", _plan, "units, dependencies, memory, tokens, GPU-hours; runs nothing")
    plan.add_argument("--gpus", type=int, metavar="N", help="how long it takes on N GPUs (default: 1)")
    plan.add_argument("--gpu", metavar="KIND", help="kind of these GPUs: H100-80GB (default) or A100-40GB")
    plan.add_argument("--why", action="store_true", help="why each unit would run, and what the costs assume")
    plan.add_argument("--json", action="store_true", help=JSON)
    submit = _experiment(commands, "submit", _submit, "run what is missing, then print the results table")
    submit.add_argument("--address", help="Ray cluster to join; without it a private one on this machine")
    submit.add_argument("--yes", action="store_true", help="spend more than 1,000 planned GPU-hours without a question")
    status = _experiment(commands, "status", _status, "where every unit stands, also while it runs")
    status.add_argument("--json", action="store_true", help=JSON)
    status.add_argument("--all", action="store_true", help="every unit, also of a large sweep")
    status.add_argument("--sort", choices=("score", "name", "state", "left"), help="order of the units (default: plan)")
    text = "the log of a unit, or of every unit of an experiment"
    logs = commands.add_parser("logs", help=text, description=text)
    logs.set_defaults(run=_logs)
    logs.add_argument("unit", metavar="UNIT | EXP.yaml", help="id of a unit, its beginning, or a label: 'TRB K=12'")
    logs.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=OVERRIDES)
    _add_runs(logs)
    logs.add_argument("--follow", action="store_true", help="go on printing what is added, until Ctrl-C")
    text = "measurements of the untrained student"
    probe = commands.add_parser("probe", help=text, description=text)
    probes = probe.add_subparsers(dest="probe", metavar="PROBE", required=True)
    text = "success of vanilla and trust-region prefixes when student and teacher continue them"
    continuation = _experiment(probes, "continuation", _probe_continuation, text)
    continuation.add_argument("--json", action="store_true", help=JSON)
    doctor = _experiment(commands, "doctor", _doctor, "preflight of this machine and an experiment", optional=True)
    doctor.add_argument("--json", action="store_true", help=JSON)


def _add_result_commands(commands: argparse._SubParsersAction) -> None:
    model = _experiment(commands, "table", _table, "the results table", optional=True)
    model.add_argument(
        "--format",
        choices=("text", "md", "tex", "csv", "json"),
        help="default: text on a terminal, md in a pipe or file",
    )
    model.add_argument("--results", type=Path, help="CSV method,setup,benchmark,pass_at_1 instead of an experiment")
    model.add_argument("--compare", metavar="FIRST,SECOND", help="two methods on the same problems, not the table")
    figures = _experiment(commands, "figures", _figures, "the figures, as PNG and PDF")
    figures.add_argument("--out", type=Path, metavar="FOLDER", help="default: the results folder")
    figures.add_argument("--width", type=float, metavar="INCHES", help="default 7.2; 5.5 fits a page of text at 8 pt")
    report = _experiment(commands, "report", _report, "one HTML page: table, figures, rollouts, cost, provenance")
    report.add_argument("--out", type=Path, metavar="FILE.html", help="default: report.html in the results folder")
    regrade = _experiment(commands, "regrade", _regrade, "recount all scores with the present grader; no generation")
    regrade.description = (
        "Count again what was right, from the extracted answers that evaluations keep, with the present grader. "
        "Scores of an older grader's version are carried over to the present one, their files stay. What was "
        "extracted stays as it was, and so do the rewards of training, which are history."
    )
    dashboard = _experiment(commands, "dashboard", _dashboard, "a W&B workspace over the runs of an experiment")
    dashboard.add_argument("--entity", help="W&B user or team (default: your own)")
    dashboard.add_argument("--project", help="W&B project (default: runtime.wandb_project)")
    dashboard.add_argument("--dry-run", action="store_true", help="print the specification as JSON; no network")


def _add_model_commands(commands: argparse._SubParsersAction) -> None:
    text = "pass@1 of any checkpoint with the sweep's evaluator"
    evaluate = commands.add_parser("eval", help=text, description=text)
    evaluate.set_defaults(run=_eval)
    evaluate.add_argument("model", help="model folder, or hub id with --revision")
    evaluate.add_argument(
        "--benchmarks",
        required=True,
        help="comma-separated, each KEY, KEY:n or FILE.jsonl:n, e.g. math500:64,aime24:512",
    )
    text = "setup that gives prompt, vocabulary and decoding: a shipped one, or the path of a setup file"
    evaluate.add_argument("--setup", required=True, metavar="NAME", help=text)
    evaluate.add_argument("--setups-from", type=Path, metavar="EXP.yaml", help="find the setup beside this experiment")
    evaluate.add_argument("--revision", help="commit of a hub model")
    evaluate.add_argument("--stops-as", choices=("student", "teacher"), default="student", help="whose EOS it emits")
    evaluate.add_argument("--seed", type=whole_number, default=0, help="of the samples; a sweep uses the unit's seed")
    evaluate.add_argument(
        "--step", type=whole_number, default=0, help="of the samples; a sweep uses the checkpoint's step"
    )
    evaluate.add_argument("--limit", type=whole_number, help="only the first problems of each benchmark")
    evaluate.add_argument("--data-dir", metavar="DIR", help="folder of the benchmark files (default: TRB_DATA_DIR)")
    _add_runs(evaluate)
    evaluate.add_argument("--out", type=Path, metavar="FILE.json", help="default: results/eval/ in the runs folder")
    evaluate.add_argument("--json", action="store_true", help="print the result as JSON")
    text = "grade a file of rows {gold, generation} with the one grader"
    grade = commands.add_parser("grade", help=text, description=text)
    grade.set_defaults(run=_grade)
    grade.add_argument("file", type=Path, metavar="FILE.jsonl", help="rows {gold, generation}; - reads standard input")
    grade.add_argument("--out", type=Path, metavar="OUT.jsonl", help="write the rows with their grades")


def _add_reference_commands(commands: argparse._SubParsersAction) -> None:
    text = "every key with its type, rule, default and meaning; of an experiment, its values and where they come from"
    reference = commands.add_parser("config", help=text, description=text)
    reference.set_defaults(run=_config)
    reference.add_argument("what", nargs="?", metavar="KEY | EXP.yaml", help="a key, the beginning of one, or a file")
    reference.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=OVERRIDES)
    reference.add_argument("--json", action="store_true", help=JSON)
    text = "shipped experiments, methods with their knobs, setups, benchmarks, and the results in a runs folder"
    lists = commands.add_parser("list", help=text, description=text)
    lists.set_defaults(run=_list)
    kinds = "experiments | methods | setups | benchmarks | results"
    lists.add_argument("kind", nargs="?", metavar=kinds, help="one of these lists (default: all)")
    _add_runs(lists)
    text = "where the data files come from: repository, commit, licence, sha256; with fetch, get them"
    data = commands.add_parser("data", help=text, description=text)
    data.set_defaults(run=_data)
    data.add_argument("action", nargs="?", choices=("sources", "fetch"), default="sources", help="default: sources")
    data.add_argument("folder", nargs="?", type=Path, help="where to put them (default: TRB_DATA_DIR, else data)")
    data.add_argument("--only", metavar="KEY,…", help="some of the files, for example math500,gsm8k")
    data.add_argument("--from", dest="mirror", metavar="MIRROR", help="URL or folder of owner/name/commit/path files")


def _experiment(
    commands: argparse._SubParsersAction, name: str, run: Callable[[argparse.Namespace], int], text: str,
    optional: bool = False,
) -> argparse.ArgumentParser:  # fmt: skip
    parser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("experiment", type=Path, metavar="EXP.yaml", nargs="?" if optional else None, help=EXPERIMENT)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=OVERRIDES)
    parser.add_argument("--methods", metavar="A,B", help="only these of its methods, by key or label: vanilla,TRB")
    _add_runs(parser)
    parser.set_defaults(run=run)
    return parser


def _add_runs(parser: argparse.ArgumentParser) -> None:
    default = Path(os.environ.get("TRB_RUNS") or "runs")
    text = "folder of the run directories (default: $TRB_RUNS, else runs)"
    parser.add_argument("--runs", type=Path, metavar="DIR", default=default, help=text)


def _load(options: argparse.Namespace, notes: bool = False) -> Study:
    """The experiment with its data folder settled, over its runs folder; its notes are shown if asked for."""
    from orchestrator.experiment.load import data_folder, load_experiment
    from orchestrator.experiment.methods import null_overrides
    from orchestrator.experiment.shipped import find_experiment
    from orchestrator.experiment.units import expand
    from orchestrator.selection.results_folder import settled_name
    from orchestrator.selection.study import Study

    path = find_experiment(options.experiment)
    experiment = load_experiment(path, options.overrides)
    if getattr(options, "methods", None) is not None:
        options.overrides = [*options.overrides, *null_overrides(options.methods, experiment.methods)]
        experiment = load_experiment(path, options.overrides)
    for note in experiment.notes if notes else ():
        print(f"trb: {note}", file=sys.stderr)
    folder = data_folder(experiment.data_dir)
    typed = (str(options.experiment), *options.overrides)
    typed += ("--runs", str(options.runs)) if options.runs != Path("runs") else ()
    runs = options.runs.resolve()
    if runs.exists() and not runs.is_dir():
        raise UserError(f"--runs: {options.runs} is a file — a folder")
    experiment = replace(
        experiment,
        name=settled_name(experiment, options.overrides, runs),
        data_dir=str(Path(folder).resolve()) if folder else None,
        arguments=typed,
    )
    return Study(experiment, expand(experiment, runs), runs)


def _list(options: argparse.Namespace) -> int:
    from orchestrator.commands.listing import check_kind, show_list

    check_kind(options.kind)
    return show_list(options.kind, options.runs.resolve(), _console())


def _plan(options: argparse.Namespace) -> int:
    from orchestrator.commands.plan import plan
    from orchestrator.planning.rates import DEFAULT_GPU, GPUS

    if options.gpus is not None and options.gpus < 1:
        raise UserError(f"--gpus: {options.gpus} — 1 or more")
    gpu = options.gpu or DEFAULT_GPU
    one_of("--gpu", gpu, GPUS)
    return plan(_load(options, notes=True), options.gpus or 1, gpu, options.why, options.json, _console())


def _submit(options: argparse.Namespace) -> int:
    from orchestrator.commands.spending import confirm
    from orchestrator.commands.submit import submit
    from orchestrator.engines.catalog import require

    study = _load(options, notes=True)
    for setup in study.experiment.setups.values():
        require(setup.engine.rollout)
    confirm(study, options.yes)
    own = ["--yes"] if options.yes else []
    own += [] if options.address is None else ["--address", options.address]
    return submit(study, options.address, again=study.experiment.command("submit", *own))


def _status(options: argparse.Namespace) -> int:
    from orchestrator.commands.status import show_status

    return show_status(_load(options), _console(), options.json, options.all, options.sort)


def _logs(options: argparse.Namespace) -> int:
    from orchestrator.commands import logs

    runs = options.runs.resolve()
    if options.unit.endswith((".yaml", ".yml")):
        options.experiment = Path(options.unit)
        study = _load(options)
        unit_ids = logs.started_units(study)
        if not unit_ids:
            raise UserError(f"{options.unit}: none of its {len(study.units)} units has a log in {runs}")
    else:
        unit_ids = [logs.find_unit(options.unit, runs)]
    show = logs.follow_logs if options.follow else logs.show_logs
    show(unit_ids, runs, functools.partial(print, flush=True))
    return 0


def _table(options: argparse.Namespace) -> int:
    from analysis.table import build, compare, model, terminal

    if (options.experiment is None) == (options.results is None):
        raise UserError("table: either EXP.yaml or --results FILE.csv")
    form = options.format or ("text" if sys.stdout.isatty() else "md")
    if options.compare is not None:
        if options.results is not None:
            raise UserError(f"--compare: {options.compare!r} — EXP.yaml, since --results has no records per problem")
        write = compare.format_of(form)
        compared = compare.compare(_load(options).snapshot(), options.compare)
        if _lack_runs(options):
            return 1
        print(write(compared), end="")
        _say_beside(form, compare.verdicts(compared))
        return 0
    if options.results is not None:
        try:
            made = model.make_table(model.read_results(options.results))
        except ValueError as error:
            raise UserError(str(error)) from None
    else:
        study = _load(options)
        if _lack_runs(options):
            return 1
        made = build.results_table(study)
    if form == "text":
        _console().print(terminal.to_rich(made))
    else:
        from analysis.table.formats import FORMATS

        print(FORMATS[form](made), end="")
    _say_beside(form, made.verdict)
    return 0


def _say_beside(form: str, verdict: Sequence[str]) -> None:
    """The verdict where the form that was written has no place for it."""
    for line in verdict if form == "csv" else ():
        print(line, file=sys.stderr)


def _lack_runs(options: argparse.Namespace) -> bool:
    """Whether the runs folder is not there, which is said: results then come from nowhere."""
    if options.runs.exists():
        return False
    print(f"runs: {options.runs} (does not exist)", file=sys.stderr)
    return True


def _figures(options: argparse.Namespace) -> int:
    from analysis.results import write_figures

    study = _load(options)
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise UserError(f"--out: {options.out} is a file — a folder")
    if options.width is not None and not 3 <= options.width <= 12:
        raise UserError(f"--width: {options.width:g} — inches from 3 to 12")
    if _lack_runs(options):
        return 1
    written = write_figures(study, options.out, options.width)
    if not written.paths:
        raise UserError(
            f"{study.runs}: nothing to draw of {study.experiment.name} yet — trb submit {options.experiment}"
        )
    print("\n".join(map(str, written.paths)))
    for line in written.missing:
        print(f"not drawn: {line}", file=sys.stderr)
    return 0


def _report(options: argparse.Namespace) -> int:
    from analysis.report.page import write_report
    from orchestrator.selection.damage import refuse_damaged

    study = _load(options).snapshot()
    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out: {options.out} is a folder — a file")
    if _lack_runs(options):
        return 1
    refuse_damaged(study)
    print(write_report(study, options.out.resolve() if options.out else None))
    return 0


def _probe_continuation(options: argparse.Namespace) -> int:
    from analysis.probe import view
    from orchestrator.commands.probe import run_probes

    study = _load(options)
    run_probes(study, _console(stderr=options.json))
    if options.json:
        print(json.dumps(view.to_json(study), indent=2))
    else:
        for setup in study.experiment.setups:
            _console().print(view.to_rich(study, setup))
    return 0


def _eval(options: argparse.Namespace) -> int:
    from orchestrator.commands.evaluate import evaluate_model

    return evaluate_model(options)


def _grade(options: argparse.Namespace) -> int:
    from orchestrator.commands.grade import grade_file

    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out: {options.out} is a folder — a file")
    try:
        counts = grade_file(options.file, options.out)
    except ValueError as error:
        raise UserError(str(error)) from None
    rest = f"{counts.no_answer} without an answer, {counts.timed_out} timed out"
    print(f"{counts.n} graded: {counts.correct} correct, {rest}")
    return 0


def _regrade(options: argparse.Namespace) -> int:
    from orchestrator.commands.regrade import regrade

    return regrade(_load(options))


def _dashboard(options: argparse.Namespace) -> int:
    from orchestrator.tracking.dashboard import dashboard  # wandb takes a second to import

    print(dashboard(_load(options), options.entity, options.project, options.dry_run))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from orchestrator.commands.doctor import examine

    return examine(_load(options, notes=True) if options.experiment else None, options.json)


def _config(options: argparse.Namespace) -> int:
    from shutil import get_terminal_size

    from orchestrator.commands.config_reference import show

    print(show(options.what, options.overrides, options.json, get_terminal_size().columns))
    return 0


def _data(options: argparse.Namespace) -> int:
    from orchestrator.commands import data as data_fetch
    from orchestrator.experiment.load import data_folder

    only = options.only.split(",") if options.only else []
    if options.action == "sources":
        print(data_fetch.table(only))
        return 0
    folder = options.folder or Path(data_folder(None) or "data")
    for line in data_fetch.fetch(folder, only, options.mirror or data_fetch.RAW_FILES):
        print(line, flush=True)
    print(f"use them with data_dir={folder}, or TRB_DATA_DIR={folder.resolve()}")
    return 0


def _console(stderr: bool = False):
    from rich.console import Console

    return Console(stderr=stderr)
