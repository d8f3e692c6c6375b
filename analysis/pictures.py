"""Every figure of an experiment that its run directories can fill, and why the others cannot be drawn yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from analysis import curves, load, probe, support
from analysis.candidates import Candidate, Selected
from analysis.curves import Setting
from analysis.figures import continuation, diagnostics, entropy, overview, sweep, tradeoff, trajectories
from orchestrator.config import Experiment
from orchestrator.grid import Unit

COMPARED = ("vanilla", "trust_region")
# Of SKD the diagnostics show this alone: its law is another one, and so are its numbers.
REPLACED = "replaced"
# Method, title, and the knobs that are an axis and a line each.
GRIDS = (
    ("trust_region", "TRB", "K", "epsilon0"),
    ("skd", "SKD", "K", "tau_T"),
    ("fixed_epsilon", "Fixed ε", "epsilon", None),
)


@dataclass(frozen=True)
class Picture:
    """A figure of one setup by its file name, or the reason why there is none."""

    name: str
    figure: Figure | None = None
    missing: str = ""


@dataclass(frozen=True)
class SetupRuns:
    """What the figures of one setup are drawn from; `best` is the chosen setting of each method family."""

    name: str
    title: str
    runs: Path
    settings: list[Setting]
    chosen: list[Selected]
    best: dict[str, Setting]
    untrained: float | None

    def family(self, method: str) -> list[Setting]:
        return [setting for setting in self.settings if setting.method == method]

    def candidates(self, method: str) -> tuple[Candidate, ...]:
        return next((selected.pool for selected in self.chosen if selected.best.method == method), ())

    def best_of(self, methods: Sequence[str]) -> list[Setting]:
        return [self.best[method] for method in methods if method in self.best]


def pictures(experiment: Experiment, units: list[Unit], runs: Path) -> Iterator[Picture]:
    """The figures of each setup, drawn one by one."""
    for data in _setups(experiment, units, runs):
        for draw in (draw_trajectories, draw_entropy, draw_sweep, draw_tradeoff, draw_diagnostics):
            yield draw(data)
        yield from draw_probe(experiment, data.name, runs)


def trajectory_pictures(experiment: Experiment, units: list[Unit], runs: Path) -> Iterator[Picture]:
    """The trajectories of each setup alone, which take a second and not several."""
    return map(draw_trajectories, _setups(experiment, units, runs))


def _setups(experiment: Experiment, units: list[Unit], runs: Path) -> Iterator[SetupRuns]:
    chosen = load.select(experiment, units, runs)
    untrained = load.base_scores(experiment, units, runs)
    for name, setup in experiment.setups.items():
        settings = curves.read_settings(experiment, units, runs, name)
        own = [selected for selected in chosen if selected.setup == name]
        best = curves.best_settings(settings, own)
        yield SetupRuns(name, setup.title, runs, settings, own, best, untrained.get(name))


def draw_trajectories(data: SetupRuns) -> Picture:
    """The best setting of each family, vanilla among them."""
    name = f"trajectories-{data.name}"
    series = [curves.score_series(setting, data.untrained) for setting in data.best.values()]
    if not any(line.curve for line in series):
        return Picture(name, missing="no checkpoint has been evaluated on all benchmarks yet")
    return Picture(name, trajectories.draw(series, data.title))


def draw_entropy(data: SetupRuns) -> Picture:
    """Teacher entropy and pass@1 of vanilla and the best trust-region setting."""
    name = f"entropy-{data.name}"
    settings = data.best_of(COMPARED)
    columns = [curves.metric_series(setting, data.runs, ["teacher_entropy"]) for setting in settings]
    found = [column["teacher_entropy"] for column in columns if column]
    if not found:
        return Picture(name, missing="no step of vanilla or of the chosen trust_region run has a teacher entropy yet")
    scores = [curves.score_series(setting, data.untrained) for setting in settings if setting.scores]
    warmup = next((setting.knobs["K"] for setting in settings if "K" in setting.knobs), None)
    return Picture(name, entropy.draw(found, scores, warmup, data.title))


def draw_sweep(data: SetupRuns) -> Picture:
    """Best-over-training scores over the grids of trust region, SKD and fixed ε."""
    name = f"sweep-{data.name}"
    panels = [
        sweep.Panel(method, title, x, line, curves.sweep_lines(data.family(method), data.candidates(method), x, line))
        for method, title, x, line in GRIDS
    ]
    scored = [panel for panel in panels if any(any(scores.values()) for scores in panel.lines.values())]
    if not scored:
        return Picture(name, missing="no trust_region, skd or fixed_epsilon run has been evaluated yet")
    return Picture(name, sweep.draw(scored, curves.best_over_training(data.candidates("vanilla"), {}), data.title))


def draw_tradeoff(data: SetupRuns) -> Picture:
    """Support against separability of the first rollouts, a point for each run."""
    name = f"tradeoff-{data.name}"
    points = support.support_points(data.settings, data.runs)
    if not points:
        wanted = f"{support.POOLED_STEPS} steps done with correct and incorrect rollouts"
        return Picture(name, missing=f"no run of {', '.join(support.BUDGETS)} has its first {wanted}")
    return Picture(name, tradeoff.draw(points, data.title))


def draw_diagnostics(data: SetupRuns) -> Picture:
    """What the steps of vanilla, the best trust-region setting and the best SKD setting logged."""
    name = f"diagnostics-{data.name}"
    rows = [curves.metric_series(setting, data.runs, list(diagnostics.PANELS)) for setting in data.best_of(COMPARED)]
    rows += [curves.metric_series(setting, data.runs, [REPLACED]) for setting in data.best_of(["skd"])]
    if not any(rows):
        return Picture(name, missing="no step of vanilla, skd or the chosen trust_region run has been logged yet")
    columns = {key: [row[key] for row in rows if key in row] for key in diagnostics.PANELS}
    return Picture(name, diagnostics.draw(columns, data.title))


def draw_probe(experiment: Experiment, setup: str, runs: Path) -> Iterator[Picture]:
    """What the continuation probe of a setup found: gains, and one prefix with its trust regions."""
    title = experiment.setups[setup].title
    missing = "no continuation probe has been completed; `trb probe continuation` runs it"
    gains = probe.continuation_gains(runs, experiment, setup)
    example = probe.example(runs, experiment, setup)
    drawn = continuation.draw(gains, f"{title}, step 0") if gains else None
    yield Picture(f"continuation-{setup}", drawn, "" if drawn else missing)
    drawn = overview.draw(example, title) if example else None
    yield Picture(f"overview-{setup}", drawn, "" if drawn else missing)
