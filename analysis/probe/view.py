"""The probe for people and for programs: a terminal table and stable JSON."""

from __future__ import annotations

from typing import Any

from analysis.probe import gains
from analysis.probe.gains import COUNTS, PrefixComparison, ProbeCounts
from orchestrator import sheet
from orchestrator.experiment.methods import PROPOSED, REFERENCE, method_label
from orchestrator.experiment.probe import probe_unit
from orchestrator.selection.study import Study

HEADINGS = (
    "by",
    "t",
    REFERENCE,
    "%",
    method_label(PROPOSED),
    "%",
    "ended",
    "gain %",
    "interval",
)


def to_json(study: Study) -> dict[str, Any]:
    """Every probe of an experiment with its counts; gains are fractions, null where missing."""
    probes = []
    for setup in study.experiment.setups:
        unit = probe_unit(study.experiment, setup, study.runs)
        probe = {"setup": setup, "unit": unit.id, "seed": unit.seed}
        rows = [_row_json(row) for row in gains.comparisons(study, setup)]
        probes.append(probe | {"epsilon": unit.knobs["epsilon"], "rows": rows})
    return {"probes": probes}


def _row_json(row: PrefixComparison) -> dict[str, Any]:
    value, low, high = row.gain or (None, None, None)
    return {
        "continuer": row.continuer,
        "t": row.t,
        REFERENCE: _counts_json(row.vanilla),
        PROPOSED: _counts_json(row.trust_region),
        "gain": value,
        "gain_low": low,
        "gain_high": high,
    }


def _counts_json(counts: ProbeCounts) -> dict[str, Any]:
    totals = {name: counts.totals[name] for name in COUNTS}
    return {"prompts": len(counts.prompts)} | totals | {"success": counts.success}


def to_rich(study: Study, setup: str) -> Any:
    """A rich table, a row for each continuer and truncation length."""
    from rich import box

    rows = gains.comparisons(study, setup)
    epsilon = probe_unit(study.experiment, setup, study.runs).knobs["epsilon"]
    sizes = study.experiment.setups[setup].probe
    counted = (
        f"{sizes.prompts} prompts × {sizes.prefixes} rollouts × {sizes.continuations} continuations"
    )
    notes = [
        f"Untrained student, ε = {epsilon:g}; {counted}.",
        "vanilla, TRB: correct/graded, with its share in per cent.",
        "ended: per cent of the rollouts (vanilla, TRB) over within t tokens; they keep their grade.",
        "gain: (TRB − vanilla) ÷ vanilla, with its 95 % interval over prompts.",
    ]
    table = sheet.to_rich(
        sheet.Sheet.of(HEADINGS, map(_texts, rows)),
        title=f"Continued prefixes, {study.experiment.setups[setup].title}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        caption="\n".join(notes),
        caption_justify="left",
    )
    for place, row in enumerate(rows[1:]):
        table.rows[place].end_section = rows[place].continuer != row.continuer
    return table


def _texts(row: PrefixComparison) -> list[str]:
    """A row's cells. Gain and interval are empty where the comparison lacks them."""
    texts = [row.continuer, str(row.t)]
    for counts in (row.vanilla, row.trust_region):
        texts.append(f"{sum(counts.correct)}/{sum(counts.n)}")
        texts.append(f"{100 * counts.success:.1f}")
    vanilla, trust_region = row.vanilla.finished_share, row.trust_region.finished_share
    texts.append(f"{100 * vanilla:.0f}, {100 * trust_region:.0f}")
    value, low, high = row.gain or (None, None, None)
    texts.append("" if value is None else f"{100 * value:+.1f}")
    interval = "" if low is None or high is None else f"{100 * low:+.1f} … {100 * high:+.1f}"
    return [*texts, interval]
