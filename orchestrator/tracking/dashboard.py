"""`trb dashboard`: a W&B workspace over the runs of one experiment, grouped by method and setup.

Saving it again replaces it: its name and its panels' ids follow from the experiment's name.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # wandb's dependencies deprecate each other, wandb-workspaces itself
    import wandb
    from wandb_workspaces import expr
    from wandb_workspaces import workspaces as ws
    from wandb_workspaces.reports import v2 as wr

from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.units import digest
from orchestrator.selection.study import Study
from orchestrator.tracking.login import leet_command, logged_in, server_url
from orchestrator.tracking.projection import results_id

SOLVED = ("trust_region", "fixed_epsilon")
BLENDED = (*SOLVED, "skd")
COLUMNS = 3
REASON_CHARACTERS = 160


@dataclass(frozen=True)
class Panel:
    """One plot of metrics over steps; `methods` are those that log them, empty for all."""

    title: str
    metrics: tuple[str, ...]
    methods: tuple[str, ...] = ()


TRUST_REGION = (
    Panel("share of the teacher β*", ("train/beta",), SOLVED),
    Panel("prefixes where the teacher itself is in the ball", ("train/teacher_feasible",), SOLVED),
    Panel("KL(μ‖p) at a prefix, nats", ("train/behavior_kl",), BLENDED),
    Panel("KL(μ‖p) of a sequence, nats", ("train/sequence_kl",), BLENDED),
    Panel("probability that a draft survives", ("train/acceptance",), BLENDED),
    Panel("replaced tokens", ("train/replaced",), ("skd",)),
    Panel("AUROC of log q − log p for the reward", ("train/support_auroc",)),
    Panel("entropy of the teacher at visited prefixes, nats", ("train/teacher_entropy",)),
    Panel("log-probability of sampled tokens", ("train/teacher_log_prob", "train/student_log_prob")),
)
OBJECTIVE = (
    Panel("loss", ("train/loss",)),
    Panel("mass of the support, student M and teacher Q", ("train/support_mass_student", "train/support_mass_teacher")),
    Panel("overlap of both supports", ("train/support_overlap",)),
    Panel("norm of the gradient", ("train/grad_norm",)),
    Panel("learning rate", ("train/lr",)),
)
COST = (
    Panel("response tokens of a step", ("train/response_tokens",)),
    Panel("response length", ("train/response_length",)),
    Panel("truncated responses", ("train/truncated",)),
    Panel("teacher passes for a token", ("train/rounds_per_token",), BLENDED),
    Panel("positions the teacher judged in a step", ("train/teacher_positions",), BLENDED),
    Panel("accepted drafts, and their length", ("train/draft_acceptance", "train/draft_length"), BLENDED),
    Panel("seconds of a rollout", ("time/rollout",)),
    Panel("seconds of the teacher's scoring", ("time/score",)),
    Panel("seconds of an update", ("time/learn",)),
)


def dashboard(study: Study, entity: str | None, project: str | None, dry_run: bool) -> str:
    """The saved workspace's URL; under `dry_run` its specification as JSON, without network.

    UserError without a login, without the project, or where the server refuses.
    """
    wandb.setup(wandb.Settings(silent=True))
    project = project or study.experiment.runtime.wandb_project
    if dry_run:
        view = workspace(study, entity or "", project)._to_model()
        specification = view.model_dump(by_alias=True, exclude_none=True) | {"entity": entity}
        return json.dumps(specification, indent=2, ensure_ascii=False)
    offline = f"offline runs are shown by: {leet_command(study.runs)}"
    if not logged_in():
        raise UserError(
            f"dashboard: no key for {server_url()} — `wandb login`, or WANDB_API_KEY in the environment; {offline}"
        )
    try:
        return _save(study, entity or wandb.Api().default_entity or "", project)
    except UserError:
        raise
    except Exception as error:  # refusals come as wandb's errors, its service's and GraphQL's
        reason = " ".join(str(error).split())[:REASON_CHARACTERS]
        raise UserError(f"dashboard: {server_url()}: {reason} — {offline}") from error


def workspace(study: Study, entity: str, project: str) -> ws.Workspace:
    """The workspace as it would be saved."""
    experiment = study.experiment
    runs = [unit.id for unit in study.units] + [results_id(experiment)]
    made = ws.Workspace(
        entity=entity,
        project=project,
        name=f"trb {experiment.name}",
        sections=list(_sections(experiment)),
        settings=ws.WorkspaceSettings(max_runs=max(10, len(runs))),
        runset_settings=ws.RunsetSettings(
            filters=f"Metric('ID') in [{', '.join(map(_quoted, runs))}]",
            groupby=[expr.Config("method"), expr.Config("setup")],
            pinned_columns=["summary:state", "summary:best_score", "summary:best_step", "summary:candidates"],
        ),
    )
    made._internal_name = f"nw-{_view_id(experiment)}-v"
    made._internal_runset_id = digest([experiment.name, "runs"])
    for section in made.sections:
        for position, panel in enumerate(cast(list[Any], section.panels)):
            panel._id = digest([experiment.name, section.name, position])
    return made


def _sections(experiment: Experiment) -> Iterator[ws.Section]:
    benchmarks = dict.fromkeys(key for setup in experiment.setups.values() for key in setup.evaluation.benchmarks)
    accuracy = (
        Panel("mean pass@1", ("eval/mean",)),
        *(Panel(f"pass@1 on {key}", (f"eval/{key}",)) for key in benchmarks),
        Panel("reward of training rollouts", ("train/reward",)),
    )
    best = wr.BarPlot(
        title="best checkpoint, mean pass@1",
        metrics=["best_score"],
        groupby=wr.Config("method"),
        groupby_aggfunc="max",
    )
    table = wr.WeavePanelSummaryTable(table_name="results")
    yield _section("accuracy", [table, best, *_plots(experiment, accuracy)])
    yield _section("trust region", _plots(experiment, TRUST_REGION))
    yield _section("objective", _plots(experiment, OBJECTIVE))
    yield _section("cost", _plots(experiment, COST))


def _section(name: str, panels: list[Any]) -> ws.Section:
    rows = -(-len(panels) // COLUMNS)
    layout = ws.SectionLayoutSettings(columns=COLUMNS, rows=rows)
    return ws.Section(name=name, panels=panels, is_open=True, layout_settings=layout)


def _plots(experiment: Experiment, panels: tuple[Panel, ...]) -> list[Any]:
    """Those that a method of the experiment fills."""
    return [
        wr.LinePlot(title=panel.title, y=list(panel.metrics))
        for panel in panels
        if not panel.methods or set(panel.methods) & set(experiment.methods)
    ]


def _save(study: Study, entity: str, project: str) -> str:
    made = workspace(study, entity, project)
    made._internal_id = _existing(entity, project, _view_id(study.experiment))
    made.save()
    return f"{wandb.setup().settings.app_url}/{entity}/{project}?nw={_view_id(study.experiment)}"


def _existing(entity: str, project: str, view: str) -> str:
    """The server's id of the workspace that is to be replaced, empty if there is none."""
    try:
        # Only path and query of this address are read; the server is the configured one.
        return ws.Workspace.from_url(f"https://wandb.ai/{entity}/{project}?nw={view}")._internal_id
    except ValueError as error:
        if "not found in project" in str(error):
            return ""
        if "not found" in str(error):
            raise UserError(f"--project: {entity}/{project} is not there — `trb submit` online makes it") from None
        raise


def _quoted(run_id: str) -> str:
    """A run's id as a literal of W&B's filters, whose reader doubles a plain `=` even within quotes."""
    return repr(run_id).replace("=", "\\x3d")


def _view_id(experiment: Experiment) -> str:
    return f"trb{digest(experiment.name)}"
