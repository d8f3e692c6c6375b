"""The probe for people and for programs: a terminal table and stable JSON."""

from __future__ import annotations

from typing import Any

from analysis.probe import gains
from analysis.probe.gains import COUNTS, PrefixComparison, ProbeCounts
from orchestrator.experiment.methods import PROPOSED, REFERENCE, method_label
from orchestrator.experiment.probe import BEHAVIORS, probe_unit
from orchestrator.selection.study import Study


def to_json(study: Study) -> dict[str, Any]:
    """Every probe of an experiment with its counts; gains are fractions, null where missing."""
    return {"probes": [_probe_json(study, setup) for setup in study.experiment.setups]}


def _probe_json(study: Study, setup: str) -> dict[str, Any]:
    unit = probe_unit(study.experiment, setup, study.runs)
    rows = [_row_json(row) for row in gains.comparisons(study, setup)]
    return {
        "setup": setup,
        "unit": unit.id,
        "seed": unit.seed,
        "epsilon": unit.knobs["epsilon"],
        "rows": rows,
    }


def _row_json(row: PrefixComparison) -> dict[str, Any]:
    value, low, high = row.gain or (None, None, None)
    cells = dict(zip(BEHAVIORS, map(_cell_json, (row.vanilla, row.trust_region)), strict=True))
    return {
        "continuer": row.continuer,
        "t": row.t,
        **cells,
        "gain": value,
        "gain_low": low,
        "gain_high": high,
    }


def _cell_json(cell: ProbeCounts) -> dict[str, Any]:
    return (
        {"prompts": len(cell.prompts)}
        | {name: cell.total(name) for name in COUNTS}
        | {"success": cell.success}
    )


def to_rich(study: Study, setup: str) -> Any:
    """A rich table, a row for each continuer and truncation length."""
    from rich import box
    from rich.table import Table

    unit, rows = probe_unit(study.experiment, setup, study.runs), gains.comparisons(study, setup)
    settings, epsilon = study.experiment.setups[setup].probe, unit.knobs["epsilon"]
    counted = f"{settings.prompts} prompts × {settings.prefixes} rollouts × {settings.continuations} continuations"
    notes = [
        f"Untrained student, ε = {epsilon:g}; {counted}.",
        "vanilla, TRB: correct/graded, with its share in per cent.",
        "ended: per cent of the rollouts (vanilla, TRB) over within t tokens; they keep their grade.",
        "gain: (TRB − vanilla) ÷ vanilla, with its 95 % interval over prompts.",
    ]
    table = Table(
        title=f"Continued prefixes, {study.experiment.setups[setup].title}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        caption="\n".join(notes),
        caption_justify="left",
    )
    table.add_column("by", no_wrap=True)
    for heading in (
        "t",
        REFERENCE,
        "%",
        method_label(PROPOSED),
        "%",
        "ended",
        "gain %",
        "interval",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, row in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1].continuer != row.continuer
        cells = [*_counts(row.vanilla), *_counts(row.trust_region), _ended(row), *_gain(row)]
        table.add_row(row.continuer, str(row.t), *cells, end_section=last)
    return table


def _counts(cell: ProbeCounts) -> tuple[str, str]:
    return f"{cell.total('correct')}/{cell.total('n')}", f"{100 * cell.success:.1f}"


def _ended(row: PrefixComparison) -> str:
    return f"{100 * row.vanilla.finished_share:.0f}, {100 * row.trust_region.finished_share:.0f}"


def _gain(row: PrefixComparison) -> tuple[str, str]:
    """Empty where vanilla never succeeds, and where the interval has no finite upper end."""
    if row.gain is None:
        return "", ""
    value, low, high = row.gain
    interval = "" if low is None or high is None else f"{100 * low:+.1f} … {100 * high:+.1f}"
    return f"{100 * value:+.1f}", interval
