"""The commands of `trb` with their arguments, options and help. `cli` runs them."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.commands.arguments import Parser, metric, positive_number, whole_number

OVERRIDES = "OmegaConf dotlist, for example training.steps=20 methods.skd=null"
EXPERIMENT = "an experiment file, a results folder, or the name of a shipped experiment: quickstart"
ONLY_RESULTS = "default: the only one in the runs folder"
JSON = "print JSON instead of text"
EXAMPLES = """\
examples:
  trb plan quickstart                           what would run and what it costs
  trb submit quickstart                         run it; again, it goes on
  trb status quickstart --methods vanilla,TRB   how far these two are
  trb table quickstart --compare TRB,Vanilla    two methods on the same problems

`trb COMMAND --help` says more of a command, `trb config` of every key."""

Commands = argparse._SubParsersAction


def trb_parser() -> Parser:
    """The parser of `trb`. Its namespace has the command's name in `command`, a probe's in `probe`."""
    parser = Parser(
        prog="trb",
        description="On-policy distillation sweeps: plan, run, judge.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    text = "version and, in a checkout, commit"
    parser.add_argument("--version", action=_Version, nargs=0, help=text)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_sweep_commands(commands)
    _add_machine_commands(commands)
    _add_result_commands(commands)
    _add_archive_commands(commands)
    _add_model_commands(commands)
    _add_reference_commands(commands)
    return parser


class _Version(argparse.Action):
    """Like argparse's own `version`, which would ask git for the text at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from orchestrator.records.provenance import version_line

        print(version_line())
        parser.exit()


def _add_sweep_commands(commands: Commands) -> None:
    text = "units, dependencies, memory, tokens, GPU-hours; runs nothing"
    plan = _experiment(commands, "plan", text)
    plan.option("--gpus", "N", "how long it takes on N GPUs (default: 1)", whole_number)
    kinds = "H100-80GB (default), H200, B200, A100-80GB, A100-40GB, L40S"
    own = "name=GiB,TB/s,TFLOP/s as MI=190,5.3,1300"
    plan.option("--gpu", "KIND", f"kind of these GPUs: {kinds}, or {own}")
    plan.flag("--why", "why each unit would run, and what the costs assume")
    plan.flag(
        "--pins", "the lines that pin the sha256 of local files which the experiment leaves out"
    )
    plan.flag("--json", JSON)

    text = "run what is missing, then print the results table"
    submit = _experiment(commands, "submit", text)
    submit.option(
        "--address", None, "Ray cluster to join; without it a private one on this machine"
    )
    text = "begin nothing that would take the experiment past H GPU-hours (core-hours without GPUs)"
    submit.option("--max-gpu-hours", "H", text, positive_number)
    submit.flag("--yes", "spend more than 1,000 planned GPU-hours without a question")
    submit.flag("--report", "write the report and all figures, too, when every unit is done")
    text = "go on in the background; with --address http://HEAD:8265 as a job of Ray's job server"
    submit.flag("--detach", text)

    text = "stop the submits of an experiment, wherever they run; what is committed stays"
    _experiment(commands, "cancel", text)

    status = _experiment(commands, "status", "the state of every unit, also while it runs")
    shown = status.add_mutually_exclusive_group()
    text = "go on looking until every unit is done or Ctrl-C; in a pipe a line for each event"
    shown.add_argument("--watch", action="store_true", help=text)
    shown.add_argument("--json", action="store_true", help=JSON)
    status.flag("--all", "every unit, also of a large sweep")
    orders = ("score", "name", "state", "left")
    status.option("--sort", None, "order of the units (default: plan)", choices=orders)

    text = "look inside a sweep, full-screen: scores, units, curves, logs, samples; changes no run"
    _experiment(commands, "view", text, without=ONLY_RESULTS)

    logs = _command(commands, "logs", "the log of a unit, or of every unit of an experiment")
    text = f"id of a unit, its beginning, a label as of `trb status`: 'TRB K=12', or {EXPERIMENT}"
    logs.add_argument("unit", metavar="UNIT | EXP.yaml", help=text)
    _add_differences(logs)
    _add_runs(logs)
    text = "go on printing what is added, until Ctrl-C"
    logs.add_argument("-f", "--follow", action="store_true", help=text)


def _add_machine_commands(commands: Commands) -> None:
    probe = _command(commands, "probe", "measurements of the untrained student")
    probes = probe.add_subparsers(dest="probe", metavar="PROBE", required=True)
    text = "success of vanilla and trust-region prefixes when student and teacher continue them"
    continuation = _experiment(probes, "continuation", text)
    shown = continuation.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help=JSON)
    text = "measure only; the report has the numbers and a picture of them"
    shown.add_argument("--quiet", action="store_true", help=text)

    text = "preflight of this machine and an experiment"
    doctor = _experiment(commands, "doctor", text, without="without one: the machine alone")
    doctor.flag("--json", JSON)
    text = "minutes of real work on this machine's GPU: engines, memory, an update, a switch"
    doctor.flag("--gpu", text)
    text = "with --gpu: tiny models of random weights, on CPUs if the machine has no GPU"
    doctor.flag("--small", text)

    text = "measure this machine's GPU with the experiment's engines and models, for its plan"
    calibrate = _experiment(commands, "calibrate", text)
    text = "how long it may take (default: 10), all setups together"
    calibrate.option("--minutes", "M", text, positive_number, default=10.0)


def _add_result_commands(commands: Commands) -> None:
    table = _experiment(commands, "table", "the results table", without="none with --results")
    text = "default: text on a terminal, md in a pipe or file"
    forms = ("text", "md", "tex", "csv", "json", "parquet")
    table.option("--format", None, text, choices=forms)
    text = "CSV method,setup,benchmark,pass_at_1 instead of an experiment"
    table.option("--results", None, text, Path)
    table.option("--compare", "FIRST,SECOND", "two methods on the same problems, not the table")
    text = "default: pass@1, which selects; maj@K: the most frequent of K answers is right"
    table.option("--metric", "pass@K|maj@K", text, metric)
    text = "unit of cost, where methods are compared at equal cost (default: updates)"
    measures = ("updates", "time")
    table.option("--cost", None, text, choices=measures)

    figures = _experiment(commands, "figures", "the figures, as PNG and PDF")
    figures.option("--out", "FOLDER", "default: the results folder", Path)
    text = "default 7.2; 5.5 fits a page of text at 8 pt"
    figures.option("--width", "INCHES", text, float)

    text = "one HTML page: table, evidence, comparison, figures, responses, cost, provenance"
    report = _experiment(commands, "report", text)
    report.option("--out", "FILE.html", "default: report.html in the results folder", Path)
    report.flag("--figures", "write the figures beside it, too, as PNG and PDF")

    text = "recount all scores with the present grader; no generation"
    regrade = _experiment(commands, "regrade", text)
    text = "compare with math-verify alone instead: disagreements by benchmark, also in the report"
    regrade.flag("--audit", text)
    regrade.flag("--json", "with --audit: a JSON document")
    text = "extract answers anew, in evaluations that keep the texts of all their responses"
    regrade.flag("--texts", text)
    regrade.description = (
        "Count correct answers again, from the extracted answers that evaluations keep, with the "
        "present grader. Scores of an older grader's version are carried over to the present one, "
        "and their files stay. Extracted answers stay too unless --texts is given, and so do the rewards "
        "of training."
    )

    text = "a W&B workspace over the runs of an experiment"
    dashboard = _experiment(commands, "dashboard", text)
    dashboard.option("--entity", None, "W&B user or team (default: your own)")
    dashboard.option("--project", None, "W&B project (default: runtime.wandb_project)")
    dashboard.flag("--dry-run", "print the specification as JSON; no network")


def _add_archive_commands(commands: Commands) -> None:
    text = "a finished sweep as one file to cite: runs without weights, experiment, table, digests"
    pack = _experiment(commands, "pack", text)
    text = "default: NAME.tar.gz in this folder, by the experiment's name"
    pack.option("--output", "FILE.tar.gz", text, Path)
    pack.flag("--no-texts", "leave out the texts of evaluated responses")

    text = "verify a packed sweep, unpack it and print its table; then it is a runs folder"
    opened = _command(commands, "open", text)
    opened.add_argument("file", type=Path, metavar="FILE.tar.gz", help="a file that trb pack wrote")
    opened.option(
        "--to",
        "DIR",
        "folder to unpack to (default: NAME in this folder, by the sweep's name)",
        Path,
    )

    text = (
        "train again what a cell of a packed table rests on, and say whether it came out the same"
    )
    again = _command(commands, "rerun", text)
    again.description = (
        "Train the runs again that a cell of a packed table rests on. Exit code 0: the same bytes; "
        "4: other bytes, and a score within the interval of the cell; 1: a score outside of it. Where "
        "the training stops early, the exit code is that of trb submit."
    )
    again.add_argument("file", type=Path, metavar="FILE.tar.gz", help="a file that trb pack wrote")
    text = "OmegaConf dotlist that leaves the training alone, for example runtime.keep=best"
    again.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)
    text = "the cell, as the table prints it: 'TRB,Short sums'; SETUP where several have the column"
    again.option("--cell", "METHOD,COLUMN[,SETUP]", text, required=True)
    text = "new folder of the run directories (default: NAME-rerun in this folder)"
    again.option("--runs", "DIR", text, Path)
    again.option("--address", None, "Ray cluster to join; without it a private one on this machine")
    again.flag("--yes", "spend more than 1,000 planned GPU-hours without a question")

    text = "the selected checkpoint of a method as a Hugging Face folder with a model card"
    export = _command(commands, "export", text)
    export.add_argument("method", metavar="METHOD", help="a method, by key or label")
    _add_experiment(export, without=ONLY_RESULTS)
    export.option("--output", "DIR", "folder to write, which must not exist", Path, required=True)
    export.option("--setup", "NAME", "needed where the experiment has several setups")
    export.option("--seed", "N", "of several training runs (default: the first)", whole_number)


def _add_model_commands(commands: Commands) -> None:
    text = "pass@1 of any checkpoint with the sweep's evaluator"
    evaluate = _command(commands, "eval", text)
    evaluate.add_argument("model", help="model folder, or hub id with --revision")
    text = "comma-separated, each KEY, KEY:n or FILE.jsonl:n, e.g. math500:64,aime24:512"
    evaluate.option("--benchmarks", None, text, required=True)
    text = "gives prompt, vocabulary and decoding: a shipped setup, or the path of a setup file"
    evaluate.option("--setup", "NAME", text, required=True)
    evaluate.option("--setups-from", "EXP.yaml", "find the setup beside this experiment", Path)
    evaluate.option("--revision", None, "commit of a hub model")
    owners = ("student", "teacher")
    evaluate.option("--stops-as", None, "whose EOS it emits", choices=owners, default="student")
    text = "of the samples; a sweep uses the unit's seed"
    evaluate.option("--seed", None, text, whole_number, default=0)
    text = "of the samples; a sweep uses the checkpoint's step"
    evaluate.option("--step", None, text, whole_number, default=0)
    text = "processes that sample at once (default: one for each visible GPU, else one)"
    evaluate.option("--evaluators", "N", text, whole_number)
    evaluate.option("--limit", None, "only the first problems of each benchmark", whole_number)
    text = "folder of the benchmark files (default: TRB_DATA_DIR, else data)"
    evaluate.option("--data-dir", "DIR", text)
    _add_runs(evaluate, "$TRB_RUNS, else runs")
    evaluate.option("--out", "FILE.json", "default: results/eval/ in the runs folder", Path)
    evaluate.flag("--json", "print the result as JSON")

    grade = _command(
        commands, "grade", "grade a file of rows {gold, generation} with the one grader"
    )
    text = "rows {gold, generation}; - reads standard input"
    grade.add_argument("file", type=Path, metavar="FILE.jsonl", help=text)
    grade.option("--grader", None, "the judge: math (default), or module:function", default="math")
    grade.option("--out", "OUT.jsonl", "write the rows with their grades", Path)


def _add_reference_commands(commands: Commands) -> None:
    text = (
        "every key with its type, rule, default and meaning, or an experiment's values and origins"
    )
    config = _command(commands, "config", text)
    text = f"a key, the beginning of one, a method, or {EXPERIMENT}"
    config.add_argument("what", nargs="?", metavar="KEY | EXP.yaml", help=text)
    _add_differences(config)
    config.flag("--json", JSON)

    text = "shipped experiments, methods with their knobs, setups, benchmarks, and results"
    lists = _command(commands, "list", text)
    kinds = "experiments | methods | setups | benchmarks | results"
    lists.add_argument("kind", nargs="?", metavar=kinds, help="one of these lists (default: all)")
    _add_runs(lists, "$TRB_RUNS, else runs")

    text = "sources of the data files: repository, commit, licence, sha256; with fetch, get them"
    data = _command(commands, "data", text)
    actions, text = ("sources", "fetch"), "default: sources"
    data.add_argument("action", nargs="?", choices=actions, default="sources", help=text)
    text = "where to put them (default: TRB_DATA_DIR, else data)"
    data.add_argument("folder", nargs="?", type=Path, help=text)
    data.option("--only", "KEY,…", "some of the files, for example math500,gsm8k")
    text = "URL or folder of owner/name/commit/path files (default: TRB_DATA_MIRROR, else GitHub)"
    data.option("--from", "MIRROR", text, dest="mirror")


def _command(commands: Commands, name: str, text: str) -> Parser:
    return commands.add_parser(name, help=text, description=text)


def _experiment(commands: Commands, name: str, text: str, without: str | None = None) -> Parser:
    """A command over an experiment; see `_add_experiment`."""
    parser = _command(commands, name, text)
    _add_experiment(parser, without)
    return parser


def _add_experiment(parser: Parser, without: str | None) -> None:
    """The experiment, its differences and its runs folder.

    `without` says what the command does where no experiment is given; None if it needs one.
    """
    nargs, text = None, EXPERIMENT
    if without is not None:
        nargs, text = "?", f"{EXPERIMENT} ({without})"
    parser.add_argument("experiment", type=Path, metavar="EXP.yaml", nargs=nargs, help=text)
    _add_differences(parser)
    _add_runs(parser)


def _add_differences(parser: Parser) -> None:
    """Options that change an experiment: overrides of its keys, and a choice of its methods."""
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=OVERRIDES)
    parser.option("--methods", "A,B", "only these of its methods, by key or label: vanilla,TRB")
    text = "with --confirm: add seeds until each difference is settled, to ± POINTS or from zero"
    parser.option("--until", "POINTS", text, positive_number)
    text = "confirm each method's choice on N more seeds, which take no part in choosing"
    parser.option("--confirm", "N", text, whole_number)


def _add_runs(
    parser: Parser, default: str = "that of a results folder, $TRB_RUNS, else runs"
) -> None:
    parser.option("--runs", "DIR", f"folder of the run directories (default: {default})", Path)
