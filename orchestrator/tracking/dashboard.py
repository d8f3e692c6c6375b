"""`trb dashboard`: a W&B workspace over the runs of one experiment, grouped by method and setup.

Saving it again replaces it: its name and its panels' ids follow from the experiment's name.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

with warnings.catch_warnings():
    # wandb's dependencies deprecate each other, and wandb-workspaces itself.
    warnings.simplefilter("ignore")
    import wandb
    from wandb_workspaces import expr
    from wandb_workspaces import workspaces as ws
    from wandb_workspaces.reports import v2 as wr
    from wandb_workspaces.reports.v2.interface import ParallelCoordinatesPlotColumn

from analysis.facts.units import machines_now
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import held_out_prompts
from orchestrator.experiment.methods import behavior_at
from orchestrator.experiment.units import Unit, digest
from orchestrator.records.log import (
    COLUMNS,
    LEARN,
    ROLLOUT,
    SCORE,
    STEP_PARTS,
    Steps,
    columns_of_step,
)
from orchestrator.selection.study import Study
from orchestrator.tracking.projection import results_id
from orchestrator.tracking.wandb_tracker import leet_command, logged_in, machine_id, server_url

PANELS_ACROSS = 3
REASON_CHARACTERS = 160

# Sections below `accuracy`, and the steps that log their columns (`records.log`).
SECTIONS = {
    "trust region": (Steps.MEASURED, Steps.BLENDED),
    "teacher": (Steps.SCORED,),
    "training": (Steps.ALL,),
}
SECONDS = (ROLLOUT, SCORE, LEARN)


@dataclass(frozen=True)
class Panel:
    """One plot over steps, and the W&B names of its metrics."""

    title: str
    metrics: tuple[str, ...]


CLOCK = "WallTime"  # x axis of what has no steps
HOURS = [
    f"progress/{device}_hours_{part}" for device in ("gpu", "core") for part in ("spent", "left")
]
PROGRESS = (
    Panel("units that are done, of all", ("progress/units_done", "progress/units")),
    Panel("hours left", ("progress/hours_left",)),
    Panel("device-hours, spent and left", tuple(HOURS)),
)
MACHINES = {  # title → pattern of names
    "tokens a second": "tokens_per_s",
    "CPU use, %": "cpu",
    "memory, GiB": "memory_gib",
    "GPU use, %": r"gpu\.\d+\.use",
    "GPU memory, GiB": r"gpu\.\d+\.memory_gib",
}


def dashboard(study: Study, entity: str | None, project: str | None, dry_run: bool) -> str:
    """Save the workspace and return its URL; under `dry_run` return its specification as JSON.

    UserError without a login, without the project, or if the server refuses.
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
            f"dashboard: no key for {server_url()}; `wandb login`, or WANDB_API_KEY in the environment; {offline}"
        )
    try:
        return _save(study, entity or wandb.Api().default_entity or "", project)
    except UserError:
        raise
    except Exception as error:  # refusals come as wandb's errors, its service's and GraphQL's
        reason = " ".join(str(error).split())[:REASON_CHARACTERS]
        raise UserError(f"dashboard: {server_url()}: {reason}; {offline}") from error


def workspace(study: Study, entity: str, project: str) -> ws.Workspace:
    """The workspace as `dashboard` saves it."""
    experiment = study.experiment
    runs = [unit.id for unit in study.units] + [results_id(experiment)]
    runs += [machine_id(experiment.name, host) for host in machines_now(study)]
    made = ws.Workspace(
        entity=entity,
        project=project,
        name=f"trb {experiment.name}",
        sections=list(_sections(study)),
        settings=ws.WorkspaceSettings(max_runs=max(10, len(runs))),
        runset_settings=ws.RunsetSettings(
            filters=f"Metric('ID') in [{', '.join(map(_quoted, runs))}]",
            groupby=[expr.Config("method"), expr.Config("setup")],
            pinned_columns=[
                "summary:state",
                "summary:best_score",
                "summary:best_step",
                "summary:candidates",
                "summary:selected",
            ],
        ),
    )
    # Fixed names in place of random ones let a second save replace the workspace and its panels.
    # The library has no public way to set them.
    made._internal_name = f"nw-{_view_id(experiment)}-v"
    made._internal_runset_id = digest([experiment.name, "runs"])
    for section in made.sections:
        for position, panel in enumerate(cast(list[Any], section.panels)):
            panel._id = digest([experiment.name, section.name, position])
    return made


def _sections(study: Study) -> Iterator[ws.Section]:
    """Yield the sections from top to bottom; a column that no trial logs has no panel."""
    board = wr.WeavePanelSummaryTable(table_name="leaderboard")
    yield _section("sweep", [board, *_plots(PROGRESS, CLOCK)])
    logged = logged_columns(study.units)
    benchmarks: dict[str, Panel] = {}
    for setup in study.experiment.setups.values():
        for key in setup.evaluation.benchmarks:
            benchmarks[key] = Panel(f"pass@1 on {key}", (f"eval/{key}",))
    accuracy = [
        Panel("mean pass@1", ("eval/mean",)),
        *benchmarks.values(),
        *panels(["reward"]),
    ]
    if any(map(held_out_prompts, study.experiment.setups.values())):
        accuracy.append(Panel("KL(p‖q) on held-out prompts, nats a token", ("held_out/kl",)))
    best = wr.BarPlot(
        title="best checkpoint, mean pass@1",
        metrics=["best_score"],
        groupby=wr.Config("method"),
        groupby_aggfunc="max",
    )
    table = wr.WeavePanelSummaryTable(table_name="results")
    yield _section("accuracy", [table, best, *_plots(accuracy)])
    if varied := _varied(study.units):
        keys = [_Key(metric=wr.Config(name), display_name=name) for name in ("method", *varied)]
        scored = ParallelCoordinatesPlotColumn(metric="best_score")
        importance = wr.ParameterImportancePlot(with_respect_to="best_score")
        plot = wr.ParallelCoordinatesPlot(title="settings", columns=[*keys, scored])
        yield _section("settings", [plot, importance])
    for name, steps in SECTIONS.items():
        columns = [key for key in COLUMNS if key in logged - {"reward"}]
        shown = panels([key for key in columns if COLUMNS[key].logged in steps])
        if name == "trust region" and "beta" in logged:
            spent = ("train/sequence_kl", "train/sequence_budget")
            shown.append(Panel("KL(μ‖p) of a sequence and its budget ε·T, nats", spent))
        if name == "training":
            shown += [Panel(STEP_PARTS[part], (f"time/{part}",)) for part in SECONDS]
            shown.append(Panel("tokens a second of a rollout", ("time/tokens_per_s",)))
        yield _section(name, _plots(shown))
    plots: list[Any] = []
    for title, name in MACHINES.items():
        plots.append(wr.LinePlot(title=title, x=CLOCK, metric_regex=f"^system/{name}$"))
    yield _section("machines", plots)


class _Key(ParallelCoordinatesPlotColumn):
    """A key of the configuration, whose dotted name is one name and no path as the library has it."""

    def _to_model(self) -> Any:
        column = super()._to_model()
        column.accessor = f"config:{self.display_name}.value"
        return column


def _varied(units: Sequence[Unit]) -> list[str]:
    """Knobs and axes of which the trials have several values."""
    grid: dict[str, set[Any]] = {}
    for unit in units:
        for name, value in unit.knobs.items() if unit.is_trial else ():
            grid.setdefault(name, set()).add(value)
    return [name for name in grid if len(grid[name]) > 1]


def logged_columns(units: Sequence[Unit]) -> set[str]:
    """Columns of `metrics.jsonl` that some training step of the trials logs."""
    behaviors = set()
    for unit in units:
        if unit.is_trial:
            for step in range(unit.steps):
                behaviors.add(behavior_at(unit.method, unit.knobs, step))
    columns: set[str] = set()
    for behavior in behaviors:
        columns |= columns_of_step(behavior.needs_teacher, behavior.measures)
    return columns


def panels(columns: Iterable[str]) -> list[Panel]:
    """Make the panels of columns that have one; columns with one title share a panel."""
    metrics: dict[str, tuple[str, ...]] = {}
    for key in columns:
        if title := COLUMNS[key].panel:
            metrics[title] = (*metrics.get(title, ()), f"train/{key}")
    return [Panel(title, names) for title, names in metrics.items()]


def _section(name: str, plots: list[Any]) -> ws.Section:
    rows = -(-len(plots) // PANELS_ACROSS)
    layout = ws.SectionLayoutSettings(columns=PANELS_ACROSS, rows=rows)
    return ws.Section(name=name, panels=plots, is_open=True, layout_settings=layout)


def _plots(shown: Sequence[Panel], x: str = "Step") -> list[Any]:
    return [wr.LinePlot(title=panel.title, x=x, y=list(panel.metrics)) for panel in shown]


def _save(study: Study, entity: str, project: str) -> str:
    made = workspace(study, entity, project)
    made._internal_id = _existing(entity, project, _view_id(study.experiment))
    made.save()
    return f"{wandb.setup().settings.app_url}/{entity}/{project}?nw={_view_id(study.experiment)}"


def _existing(entity: str, project: str, view: str) -> str:
    """The server's id of the workspace to replace, empty without one."""
    try:
        # Only path and query of this address are read; the server is the configured one.
        return ws.Workspace.from_url(f"https://wandb.ai/{entity}/{project}?nw={view}")._internal_id
    except ValueError as error:
        if "not found in project" in str(error):
            return ""
        if "not found" in str(error):
            raise UserError(
                f"--project: {entity}/{project} is not there; `trb submit` online makes it"
            ) from None
        raise


def _quoted(run_id: str) -> str:
    """A run's id as a literal of W&B's filters, which double a plain `=` even within quotes."""
    return repr(run_id).replace("=", "\\x3d")


def _view_id(experiment: Experiment) -> str:
    return f"trb{digest(experiment.name)}"
