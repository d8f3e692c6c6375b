"""Every figure of an experiment that its run directories can fill, and why the others cannot be drawn yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.figures import (
    continuation,
    curves,
    diagnostics,
    entropy,
    overview,
    support,
    sweep,
    tradeoff,
    trajectories,
)
from analysis.figures.curves import Series, Setting
from analysis.figures.style import WIDTH
from analysis.labels import setup_title
from analysis.probe import gains as probe
from analysis.scores.candidates import Candidate, Selected
from analysis.table import build
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.selection.study import Study

COMPARED = (REFERENCE, PROPOSED)
# Of SKD the diagnostics show the replaced tokens alone: its law is another one, and so are its numbers.
INJECTION = "skd"


@dataclass(frozen=True)
class Picture:
    """A figure of one setup by its file name, or the reason why there is none.

    `basis` says in a sentence how many seeds it rests on and what its bars and bands are.
    """

    name: str
    figure: Figure | None = None
    missing: str = ""
    basis: str = ""


@dataclass(frozen=True)
class SetupRuns:
    """What the figures of one setup are drawn from; `best` is the chosen setting of each method family."""

    name: str
    title: str
    study: Study
    settings: list[Setting]
    chosen: list[Selected]
    best: dict[str, Setting]
    untrained: float | None
    width: float = WIDTH

    def family(self, method: str) -> list[Setting]:
        return [setting for setting in self.settings if setting.method == method]

    def candidates(self, method: str) -> tuple[Candidate, ...]:
        return next((selected.pool for selected in self.chosen if selected.best.method == method), ())

    def best_of(self, methods: Sequence[str]) -> list[Setting]:
        return [self.best[method] for method in methods if method in self.best]


def pictures(study: Study, width: float = WIDTH) -> Iterator[Picture]:
    """The figures of each setup, `width` inches wide, drawn one by one."""
    for data in _setups(study, width):
        for draw in (draw_trajectories, draw_entropy, draw_sweep, draw_tradeoff, draw_diagnostics):
            yield draw(data)
        yield from draw_probe(study, data.name, width)


def trajectory_pictures(study: Study) -> Iterator[Picture]:
    """The trajectories of each setup alone, which take a second and not several."""
    return map(draw_trajectories, _setups(study, WIDTH))


def _setups(study: Study, width: float) -> Iterator[SetupRuns]:
    chosen = build.select(study)
    untrained = build.base_scores(study)
    for name in study.experiment.setups:
        settings = curves.read_settings(study, name)
        own = [selected for selected in chosen if selected.setup == name]
        best = curves.best_settings(settings, own)
        title = setup_title(name, study.experiment.setups)
        yield SetupRuns(name, title, study, settings, own, best, untrained.get(name), width)


def scores_basis(series: Sequence[Series], chosen: Sequence[Selected]) -> str:
    """How many seeds lines of scores are means over, and how far one seed's may be off."""
    counts = sorted({line.seeds for line in series if line.seeds})
    if not counts:
        return ""
    if counts[-1] == 1:
        margins = [margin for selected in chosen if (margin := curves.problem_margin(selected.best)) is not None]
        text = "One seed each: another one moves a line by several points."
        return text + (f" 95 % over problems: up to ±{100 * max(margins):.1f} points." if margins else "")
    if len(counts) == 1:
        return f"Means over {counts[0]} seeds; bands: ±1 standard deviation over seeds."
    return f"Means over {counts[0]} to {counts[-1]} seeds; bands: ±1 standard deviation over seeds."


def draw_trajectories(data: SetupRuns) -> Picture:
    """The best setting of each family, vanilla among them."""
    name = f"trajectories-{data.name}"
    series = [curves.score_series(setting, data.untrained) for setting in data.best.values()]
    if not any(line.curve for line in series):
        return Picture(name, missing="no checkpoint has been evaluated on all benchmarks yet")
    basis = scores_basis(series, data.chosen)
    return Picture(name, trajectories.draw(series, data.title, basis, data.width), basis=basis)


def draw_entropy(data: SetupRuns) -> Picture:
    """Teacher entropy and pass@1 of vanilla and the best trust-region setting."""
    name = f"entropy-{data.name}"
    settings = data.best_of(COMPARED)
    columns = [curves.metric_series(data.study, setting, ["teacher_entropy"]) for setting in settings]
    found = [column["teacher_entropy"] for column in columns if column]
    if not found:
        return Picture(name, missing="no step of vanilla or of the chosen trust_region run has a teacher entropy yet")
    scores = [curves.score_series(setting, data.untrained) for setting in settings if setting.scores]
    warmup = data.best[PROPOSED].warmup if PROPOSED in data.best else None
    basis = scores_basis(scores or found, [selected for selected in data.chosen if selected.best.method in COMPARED])
    return Picture(name, entropy.draw(found, scores, warmup, data.title, basis, data.width), basis=basis)


def draw_sweep(data: SetupRuns) -> Picture:
    """Best-over-training scores over the grids of all methods; those of a single setting share a panel."""
    name = f"sweep-{data.name}"
    methods = dict.fromkeys(setting.method for setting in data.settings if setting.method != REFERENCE)
    grids = [curves.method_grid(data.family(method), data.candidates(method)) for method in methods]
    scored = [grid for grid in grids if grid.scored]
    if not any(grid.x for grid in scored):
        return Picture(name, missing="no method that has several settings has been evaluated yet")
    vanilla = curves.best_over_training(data.candidates(REFERENCE), {})
    basis = "Bars of several seeds: ±1 standard deviation; of one seed: 95 % interval over the problems, normal."
    return Picture(name, sweep.draw(scored, vanilla, data.title, data.width), basis=basis)


def draw_tradeoff(data: SetupRuns) -> Picture:
    """Support against separability of the first rollouts, a point for each run."""
    name = f"tradeoff-{data.name}"
    points = support.support_points(data.study, data.settings)
    if not points:
        wanted = f"{support.POOLED_STEPS} steps done with correct and incorrect rollouts"
        return Picture(name, missing=f"no run of {', '.join(support.budgets())} has its first {wanted}")
    basis = f"A point is one run; crosses: 95 % intervals over its first {support.POOLED_STEPS} steps, by jackknife."
    return Picture(name, tradeoff.draw(points, data.title, data.width), basis=basis)


def draw_diagnostics(data: SetupRuns) -> Picture:
    """What the steps of vanilla, the best trust-region setting and the best SKD setting logged."""
    name = f"diagnostics-{data.name}"
    rows = [curves.metric_series(data.study, setting, list(diagnostics.PANELS)) for setting in data.best_of(COMPARED)]
    rows += [curves.metric_series(data.study, setting, [diagnostics.REPLACED]) for setting in data.best_of([INJECTION])]
    if not any(rows):
        return Picture(name, missing="no step of vanilla, skd or the chosen trust_region run has been logged yet")
    columns = {key: [row[key] for row in rows if key in row] for key in diagnostics.PANELS}
    seeds = max(line.seeds for lines in columns.values() for line in lines)
    basis = f"Means over {seeds} seeds with bands of ±1 standard deviation." if seeds > 1 else "One seed each."
    return Picture(name, diagnostics.draw(columns, data.title, data.width), basis=basis)


def draw_probe(study: Study, setup: str, width: float) -> Iterator[Picture]:
    """What the continuation probe of a setup found: gains, and one prefix with its trust regions."""
    title = setup_title(setup, study.experiment.setups)
    missing = "no continuation probe has been completed; `trb probe continuation` runs it"
    gains = probe.continuation_gains(study, setup)
    example = probe.example(study, setup)
    drawn = continuation.draw(gains, f"{title}, step 0", width) if gains else None
    basis = "Untrained student; intervals: 95 % bootstrap over prompts." if drawn else ""
    yield Picture(f"continuation-{setup}", drawn, "" if drawn else missing, basis)
    drawn = overview.draw(example, title, width) if example else None
    yield Picture(f"overview-{setup}", drawn, "" if drawn else missing)
