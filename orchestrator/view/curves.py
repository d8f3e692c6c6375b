"""The curves over training steps: scores of checkpoints, logged columns and the budget ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.facts.curves import ScoredSetting, base_scores, read_settings
from analysis.facts.evidence import Facts
from analysis.labels import method_label
from orchestrator.experiment.methods import REFERENCE, behavior_at
from orchestrator.experiment.units import Unit
from orchestrator.records.log import COLUMNS
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study

SCORE, LEAD, EPSILON = "score", "lead", "epsilon"
FIRST = ("loss", EPSILON, "acceptance")  # after the scores; then the other columns as they stand

Points = Mapping[float, float]  # step → mean over seeds


@dataclass(frozen=True)
class Quantity:
    """A quantity that can be drawn over steps; `factor` leads from its values to what is shown."""

    key: str
    title: str
    factor: float = 1.0


@dataclass(frozen=True)
class MethodCurve:
    """A method's line in one setup: means over the seeds of one setting."""

    setup: str
    method: str
    label: str
    points: Points

    @property
    def key(self) -> str:
        """A name of the line that stays the same while the sweep goes on."""
        return f"{self.setup}/{self.method}"


def quantities() -> list[Quantity]:
    """All quantities: the score first, then those of FIRST."""
    found = {
        SCORE: Quantity(SCORE, "pass@1 of checkpoints (%)", 100.0),
        LEAD: Quantity(LEAD, "pass@1 of checkpoints minus vanilla's (points)", 100.0),
    }
    for key in (*FIRST, *COLUMNS):
        # Keys of FIRST come again among the columns, and keep their first place.
        if key == EPSILON:
            found.setdefault(key, Quantity(key, "ε, the budget of the trust region (nats)"))
            continue
        column = COLUMNS[key]
        unit = "%" if column.unit == "share" else column.unit
        title = column.meaning.removesuffix(".") + (f" ({unit})" if unit else "")
        found.setdefault(key, Quantity(key, title, column.factor))
    return list(found.values())


@dataclass
class CurveReader:
    """Reads curves, and the rows of a run's metrics once for each number of them."""

    _columns: dict[str, tuple[int, dict[str, list[float | None]]]] = field(default_factory=dict)

    def curves(self, study: Study, evidence: Facts | None, quantity: Quantity) -> list[MethodCurve]:
        """The line of each method in each setup; methods without a value have none.

        A method's setting is the selected one of the `evidence`, and before that its first one.
        """
        found = []
        untrained = base_scores(study) if quantity.key in (SCORE, LEAD) else {}
        for setup in study.experiment.setups:
            lines: dict[str, Points] = {}
            for setting in shown_settings(read_settings(study, setup), setup, evidence):
                points = self._points(study, setting, quantity, untrained.get(setup))
                if points:
                    lines[setting.method] = points
            if quantity.key == LEAD:
                lines = minus(lines, lines.get(REFERENCE, {}))
            for method, points in lines.items():
                found.append(MethodCurve(setup, method, method_label(method), points))
        return found

    def of_unit(self, study: Study, unit: Unit, key: str) -> Points:
        """A logged column of one unit."""
        means = {}
        for step, value in enumerate(self._column(study.reader(unit), key)):
            if value is not None:
                means[unit.first_batch + step] = value
        return means

    def _points(
        self, study: Study, setting: ScoredSetting, quantity: Quantity, untrained: float | None
    ) -> Points:
        values: dict[float, list[float]] = {}
        if quantity.key in (SCORE, LEAD):
            for step, scores in setting.scores.items():
                values[step] = list(scores)
            if values and untrained is not None and not setting.from_supervised:
                # At step 0 a method from a supervised checkpoint is another student.
                values.setdefault(0, [untrained])
        elif quantity.key == EPSILON:
            # The schedule is that of the setting, the same for all seeds.
            for step, epsilon in budgets(setting.units[0]).items():
                values[step] = [epsilon]
        else:
            for unit in setting.units:
                for step, value in self.of_unit(study, unit, quantity.key).items():
                    values.setdefault(step, []).append(value)
        means = {}
        for step in sorted(values):
            means[step] = quantity.factor * sum(values[step]) / len(values[step])
        return means

    def _column(self, run: RunReader, key: str) -> list[float | None]:
        count, _ = run.last_metrics()
        known, columns = self._columns.get(run.unit_id, (-1, {}))
        if known != count:
            columns = {}
            for place, row in enumerate(run.metrics()):
                for name, value in row.items():
                    columns.setdefault(name, [None] * place).append(value)
                # A row may lack columns of earlier rows; the place in a column is the step.
                for name in columns:
                    if name not in row:
                        columns[name].append(None)
            self._columns[run.unit_id] = count, columns
        return columns.get(key, [])


def shown_settings(
    settings: Sequence[ScoredSetting], setup: str, evidence: Facts | None
) -> list[ScoredSetting]:
    """One setting of each method: the selected one, or the first one before a selection."""
    shown: dict[str, ScoredSetting] = {}
    for setting in settings:
        chosen = evidence.find(setup, setting.method) if evidence else None
        if setting.method not in shown or (chosen and chosen.knobs == setting.knobs):
            shown[setting.method] = setting
    return list(shown.values())


def minus(lines: Mapping[str, Points], reference: Points) -> dict[str, Points]:
    """The lines minus the reference, at the steps of both."""
    found: dict[str, Points] = {}
    for method, points in lines.items():
        common = {
            step: value - reference[step] for step, value in points.items() if step in reference
        }
        if common:
            found[method] = common
    return found


def budgets(unit: Unit) -> dict[int, float]:
    """Step → ε of the steps whose behavior has such a budget, by the method's schedule."""
    found = {}
    for step in range(unit.steps):
        epsilon = getattr(behavior_at(unit.method, unit.knobs, step), "epsilon", None)
        if epsilon is not None:
            found[unit.first_batch + step] = float(epsilon)
    return found
