"""The commands of `trb` with their arguments, options and help. `cli` runs them."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.commands.arguments import Parser, pass_at, positive_number, whole_number

OVERRIDES = "OmegaConf dotlist, for example training.steps=20 methods.skd=null"

EXPERIMENT = "an experiment file, a results folder, or the name of a shipped experiment: quickstart"
JSON = "print JSON instead of text"
EXAMPLES = """\
examples:
  trb plan quickstart                           what would run and what it costs
  trb submit quickstart                         run it; again, it goes on
  trb status quickstart --methods vanilla,TRB   where these two stand
  trb table quickstart --compare TRB,Vanilla    two methods on the same problems

`trb COMMAND --help` says more of a command, `trb config` of every key."""


def trb_parser() -> Parser:
    """The parser of `trb`. What it parses has the name of the command in `command`, and `probe`
    names the probe.
    """
    parser = Parser(
        prog="trb",
        description="On-policy distillation sweeps: plan, run, judge.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="version and, in a checkout, commit"
    )
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
    plan = _experiment(
        commands, "plan", "units, dependencies, memory, tokens, GPU-hours; runs nothing"
    )
    plan.add_argument(
        "--gpus", type=whole_number, metavar="N", help="how long it takes on N GPUs (default: 1)"
    )
    kinds = "H100-80GB (default), H200, B200, A100-80GB, A100-40GB, L40S, or name=GiB,TB/s,TFLOP/s as MI=190,5.3,1300"
    plan.add_argument("--gpu", metavar="KIND", help=f"kind of these GPUs: {kinds}")
    plan.add_argument(
        "--why", action="store_true", help="why each unit would run, and what the costs assume"
    )
    plan.add_argument("--json", action="store_true", help=JSON)
    submit = _experiment(commands, "submit", "run what is missing, then print the results table")
    submit.add_argument(
        "--address", help="Ray cluster to join; without it a private one on this machine"
    )
    text = "begin nothing that would take the experiment past H GPU-hours (core-hours where no unit uses a GPU)"
    submit.add_argument("--max-gpu-hours", type=positive_number, metavar="H", help=text)
    submit.add_argument(
        "--yes",
        action="store_true",
        help="spend more than 1,000 planned GPU-hours without a question",
    )
    text = "write the report and all figures, too, when every unit is done"
    submit.add_argument("--report", action="store_true", help=text)
    text = "go on in the background; with --address http://HEAD:8265 as a job of Ray's job server"
    submit.add_argument("--detach", action="store_true", help=text)
    _experiment(
        commands,
        "cancel",
        "stop the submits of an experiment, wherever they run; what is committed stays",
    )
    status = _experiment(commands, "status", "where every unit stands, also while it runs")
    text = "go on looking until every unit is done or Ctrl-C; in a pipe a line for each event"
    shown = status.add_mutually_exclusive_group()
    shown.add_argument("--watch", action="store_true", help=text)
    shown.add_argument("--json", action="store_true", help=JSON)
    status.add_argument("--all", action="store_true", help="every unit, also of a large sweep")
    status.add_argument(
        "--sort",
        choices=("score", "name", "state", "left"),
        help="order of the units (default: plan)",
    )
    text = "the log of a unit, or of every unit of an experiment"
    logs = commands.add_parser("logs", help=text, description=text)
    text = f"id of a unit, its beginning, a label as of `trb status`: 'TRB K=12', or {EXPERIMENT}"
    logs.add_argument("unit", metavar="UNIT | EXP.yaml", help=text)
    _add_differences(logs)
    _add_runs(logs)
    logs.add_argument(
        "-f", "--follow", action="store_true", help="go on printing what is added, until Ctrl-C"
    )
    text = "measurements of the untrained student"
    probe = commands.add_parser("probe", help=text, description=text)
    probes = probe.add_subparsers(dest="probe", metavar="PROBE", required=True)
    text = "success of vanilla and trust-region prefixes when student and teacher continue them"
    continuation = _experiment(probes, "continuation", text)
    shown = continuation.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help=JSON)
    text = "measure only; the report has the numbers and a picture of them"
    shown.add_argument("--quiet", action="store_true", help=text)
    doctor = _experiment(
        commands, "doctor", "preflight of this machine and an experiment", optional=True
    )
    doctor.add_argument("--json", action="store_true", help=JSON)
    text = "minutes of real work on this machine's GPU instead, piece by piece: engines, memory, an update, a switch"
    doctor.add_argument("--gpu", action="store_true", help=text)
    text = "with --gpu: tiny models of random weights, on CPUs where there is no GPU"
    doctor.add_argument("--small", action="store_true", help=text)
    text = "measure this machine's GPU with the experiment's engines and models, for the plan of the rest"
    calibrate = _experiment(commands, "calibrate", text)
    text = "how long it may take (default: 10), all setups together"
    calibrate.add_argument("--minutes", type=positive_number, metavar="M", default=10.0, help=text)


def _add_result_commands(commands: argparse._SubParsersAction) -> None:
    model = _experiment(commands, "table", "the results table", optional=True)
    model.add_argument(
        "--format",
        choices=("text", "md", "tex", "csv", "json", "parquet"),
        help="default: text on a terminal, md in a pipe or file",
    )
    model.add_argument(
        "--results", type=Path, help="CSV method,setup,benchmark,pass_at_1 instead of an experiment"
    )
    model.add_argument(
        "--compare", metavar="FIRST,SECOND", help="two methods on the same problems, not the table"
    )
    model.add_argument(
        "--metric", metavar="pass@K", type=pass_at, help="default: pass@1, which selects"
    )
    text = "what cost is counted in, where methods are compared at equal cost (default: updates)"
    model.add_argument(
        "--cost", choices=("updates", "time", "student_tokens", "teacher_tokens"), help=text
    )
    figures = _experiment(commands, "figures", "the figures, as PNG and PDF")
    figures.add_argument("--out", type=Path, metavar="FOLDER", help="default: the results folder")
    figures.add_argument(
        "--width", type=float, metavar="INCHES", help="default 7.2; 5.5 fits a page of text at 8 pt"
    )
    report = _experiment(
        commands, "report", "one HTML page: table, figures, rollouts, cost, provenance"
    )
    report.add_argument(
        "--out", type=Path, metavar="FILE.html", help="default: report.html in the results folder"
    )
    report.add_argument(
        "--figures", action="store_true", help="write the figures beside it, too, as PNG and PDF"
    )
    regrade = _experiment(
        commands, "regrade", "recount all scores with the present grader; no generation"
    )
    regrade.description = (
        "Count again what was right, from the extracted answers that evaluations keep, with the present grader. "
        "Scores of an older grader's version are carried over to the present one, their files stay. What was "
        "extracted stays as it was, and so do the rewards of training, which are history."
    )
    regrade.add_argument(
        "--audit",
        action="store_true",
        help="compare with math-verify alone instead: disagreements by benchmark, with examples",
    )
    regrade.add_argument("--json", action="store_true", help="with --audit: a JSON document")
    dashboard = _experiment(commands, "dashboard", "a W&B workspace over the runs of an experiment")
    dashboard.add_argument("--entity", help="W&B user or team (default: your own)")
    dashboard.add_argument("--project", help="W&B project (default: runtime.wandb_project)")
    dashboard.add_argument(
        "--dry-run", action="store_true", help="print the specification as JSON; no network"
    )


def _add_model_commands(commands: argparse._SubParsersAction) -> None:
    text = "pass@1 of any checkpoint with the sweep's evaluator"
    evaluate = commands.add_parser("eval", help=text, description=text)
    evaluate.add_argument("model", help="model folder, or hub id with --revision")
    evaluate.add_argument(
        "--benchmarks",
        required=True,
        help="comma-separated, each KEY, KEY:n or FILE.jsonl:n, e.g. math500:64,aime24:512",
    )
    text = "setup that gives prompt, vocabulary and decoding: a shipped one, or the path of a setup file"
    evaluate.add_argument("--setup", required=True, metavar="NAME", help=text)
    evaluate.add_argument(
        "--setups-from", type=Path, metavar="EXP.yaml", help="find the setup beside this experiment"
    )
    evaluate.add_argument("--revision", help="commit of a hub model")
    evaluate.add_argument(
        "--stops-as", choices=("student", "teacher"), default="student", help="whose EOS it emits"
    )
    evaluate.add_argument(
        "--seed", type=whole_number, default=0, help="of the samples; a sweep uses the unit's seed"
    )
    evaluate.add_argument(
        "--step",
        type=whole_number,
        default=0,
        help="of the samples; a sweep uses the checkpoint's step",
    )
    text = "processes that sample at once (default: one for each visible GPU, else one)"
    evaluate.add_argument("--evaluators", type=whole_number, metavar="N", help=text)
    evaluate.add_argument(
        "--limit", type=whole_number, help="only the first problems of each benchmark"
    )
    evaluate.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the benchmark files (default: TRB_DATA_DIR, else data)",
    )
    _add_runs(evaluate)
    evaluate.add_argument(
        "--out", type=Path, metavar="FILE.json", help="default: results/eval/ in the runs folder"
    )
    evaluate.add_argument("--json", action="store_true", help="print the result as JSON")
    text = "grade a file of rows {gold, generation} with the one grader"
    grade = commands.add_parser("grade", help=text, description=text)
    grade.add_argument(
        "file",
        type=Path,
        metavar="FILE.jsonl",
        help="rows {gold, generation}; - reads standard input",
    )
    grade.add_argument(
        "--grader", default="math", help="what judges: math (default), or module:function"
    )
    grade.add_argument(
        "--out", type=Path, metavar="OUT.jsonl", help="write the rows with their grades"
    )


def _add_reference_commands(commands: argparse._SubParsersAction) -> None:
    text = "every key with its type, rule, default and meaning; of an experiment, its values and where they come from"
    reference = commands.add_parser("config", help=text, description=text)
    text = f"a key, the beginning of one, a method, or {EXPERIMENT}"
    reference.add_argument("what", nargs="?", metavar="KEY | EXP.yaml", help=text)
    _add_differences(reference)
    reference.add_argument("--json", action="store_true", help=JSON)
    text = "shipped experiments, methods with their knobs, setups, benchmarks, and the results in a runs folder"
    lists = commands.add_parser("list", help=text, description=text)
    kinds = "experiments | methods | setups | benchmarks | results"
    lists.add_argument("kind", nargs="?", metavar=kinds, help="one of these lists (default: all)")
    _add_runs(lists)
    text = (
        "where the data files come from: repository, commit, licence, sha256; with fetch, get them"
    )
    data = commands.add_parser("data", help=text, description=text)
    data.add_argument(
        "action",
        nargs="?",
        choices=("sources", "fetch"),
        default="sources",
        help="default: sources",
    )
    data.add_argument(
        "folder", nargs="?", type=Path, help="where to put them (default: TRB_DATA_DIR, else data)"
    )
    data.add_argument(
        "--only", metavar="KEY,…", help="some of the files, for example math500,gsm8k"
    )
    text = "URL or folder of owner/name/commit/path files (default: TRB_DATA_MIRROR, else GitHub)"
    data.add_argument("--from", dest="mirror", metavar="MIRROR", help=text)


def _experiment(
    commands: argparse._SubParsersAction, name: str, text: str, optional: bool = False
) -> argparse.ArgumentParser:
    """A command over an experiment, which need not be given where it is `optional`."""
    parser = commands.add_parser(name, help=text, description=text)
    parser.add_argument(
        "experiment",
        type=Path,
        metavar="EXP.yaml",
        nargs="?" if optional else None,
        help=EXPERIMENT,
    )
    _add_differences(parser)
    _add_runs(parser)
    return parser


def _add_differences(parser: argparse.ArgumentParser) -> None:
    """Options that change an experiment: overrides of its keys, and a choice of its methods."""
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=OVERRIDES)
    parser.add_argument(
        "--methods", metavar="A,B", help="only these of its methods, by key or label: vanilla,TRB"
    )
    text = "confirm each method's choice on N more seeds, which take no part in choosing"
    until = "with --confirm: add seeds until each difference is settled, to ± so many points or from zero"
    parser.add_argument("--until", type=positive_number, metavar="POINTS", help=until)
    parser.add_argument("--confirm", type=whole_number, metavar="N", help=text)


def _add_runs(parser: argparse.ArgumentParser) -> None:
    text = "folder of the run directories (default: that of a results folder, $TRB_RUNS, else runs)"
    parser.add_argument("--runs", type=Path, metavar="DIR", help=text)
