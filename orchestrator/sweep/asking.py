"""Asks Optuna for the later points of a search, a batch at a time.

The first batch is drawn (`experiment.search`). Once all trials of a family are trained and their
checkpoints have their first samples, the next batch is asked for by the best score of each setting:
Tune's own searcher gets all points so far with their scores, and a seed that is the number of these
points. So an answer depends on the run directories and the version of Optuna alone.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from typing import Any, cast

from orchestrator.config import Experiment
from orchestrator.errors import refuse
from orchestrator.experiment.axes import ValueRange
from orchestrator.experiment.search import PointList, Space, drawn
from orchestrator.experiment.units import Family, Setting
from orchestrator.records.files import write_atomically
from orchestrator.selection import scores
from orchestrator.selection.asking import asked_points, file_of
from orchestrator.selection.samples_wanted import asks_more, family_state
from orchestrator.selection.study import Study

OPTUNA = "optuna"
FAILED = 0.0  # the score that stands for a setting without any


def require_searcher(experiment: Experiment) -> None:
    """Raise UserError where a search asks Optuna and it is not installed."""
    if experiment.spaces and importlib.util.find_spec(OPTUNA) is None:
        remedy = f"`pip install {OPTUNA}` first (it is not installed here), or kind random"
        raise refuse("search.kind", OPTUNA, remedy)


def ask(study: Study) -> bool:
    """Ask for the next batch of each family that has ended the last one; whether any was asked.

    `study` comes from `with_asked`. Only the driver of a sweep asks.
    """
    known, more = asked_points(study), False
    for family in study.families():
        first = family[0][0]
        if not asks_more(study, family) or not _has_ended(study, family):
            continue
        method = cast(str, first.method)
        before = [setting[0].knobs for setting in family]
        points = known.setdefault(first.setup, {}).setdefault(method, [])
        points += _next(study, method, before, [_score(study, setting) for setting in family])
        more = True
    if more:
        file_of(study).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file_of(study), json.dumps(known, indent=1) + "\n")
    return more


def _next(study: Study, method: str, before: PointList, found: Sequence[float]) -> PointList:
    """Points that no setting has yet, as many as a batch; where Optuna repeats itself, drawn ones."""
    experiment = study.experiment
    search, space = experiment.search, experiment.spaces[method]
    trials = cast(int, search.trials)
    wanted = min(search.batch, trials - len(before))
    points: PointList = []
    for point in _suggested(space, before, found, search.seed + len(before), wanted):
        if point not in [*before, *points]:
            points.append(point)
    for point in drawn(method, space, search, trials):
        if len(points) < wanted and point not in [*before, *points]:
            points.append(point)
    return points


def _suggested(
    space: Space, before: PointList, found: Sequence[float], seed: int, count: int
) -> PointList:
    """Suggestions of Tune's searcher after these points with these scores."""
    import optuna
    from optuna import distributions
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    known: dict[str, Any] = {}
    for name, values in space.items():
        if not isinstance(values, ValueRange):
            known[name] = distributions.CategoricalDistribution(values)
        elif values.is_whole:
            ends = int(values.low), int(values.high)
            known[name] = distributions.IntDistribution(*ends, log=values.form == "log")
        else:
            ends = values.low, values.high
            known[name] = distributions.FloatDistribution(*ends, log=values.form == "log")
    searcher = OptunaSearch(
        space=known,
        metric="score",
        mode="max",
        sampler=optuna.samplers.TPESampler(seed=seed),
        points_to_evaluate=[dict(point) for point in before],
        evaluated_rewards=list(found),
    )
    points: PointList = []
    for number in range(count):
        suggested = searcher.suggest(str(number)) or {}
        point: dict[str, Any] = {}
        for name, values in space.items():
            point[name] = suggested[name]
            if isinstance(values, ValueRange):
                point[name] = values.rounded(suggested[name])
        points.append(point)
    return points


def _has_ended(study: Study, family: Family) -> bool:
    """Whether every trial is trained or failed, and has the samples that it wants now."""
    if family_state(study, family).wants:
        return False
    units = [unit for setting in family for unit in setting]
    return all(study.is_trained(u) or study.reader(u).error is not None for u in units)


def _score(study: Study, setting: Setting) -> float:
    best = scores.best_of(scores.scored_checkpoints(study, [setting]))
    return FAILED if best is None else float(best.mean)
