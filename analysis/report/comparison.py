"""The section `compare`: any two methods, compared from the counts of their checkpoints.

`comparison.js` computes from these counts the numbers of `analysis.table.compare`: scores, t
intervals and p-values over seeds, and the bootstrap over problems with the same random numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.labels import AVERAGE, BASE, benchmark_label, method_label, order_methods, setup_title
from analysis.report.html import Html, code, data, element, paragraph, section
from analysis.scores.candidates import Candidate, Selected
from analysis.scores.confirmed import confirmed_candidates
from analysis.scores.counts import score_matrices
from analysis.scores.uncertainty import CONFIDENCE, FLAT, REPLICATES, Draws, generator
from analysis.table.captions import FEW
from analysis.table.compare import DIFFERENCE, OVER_PROBLEMS, OVER_SEEDS
from analysis.table.evidence_formats import LIMITS, PROBLEMS_ONLY, UNEQUAL, P
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study

TITLE = "Compare two methods"
WITHOUT = "A browser that runs scripts compares any two methods here. Everywhere "
WORDS = {
    "gap": DIFFERENCE,
    "limits": LIMITS,
    "p": P,
    "problemsOnly": PROBLEMS_ONLY,
    "unequal": UNEQUAL,
    "overSeeds": OVER_SEEDS,
    "overProblems": OVER_PROBLEMS,
}


def comparison_section(study: Study, chosen: Sequence[Selected]) -> Html:
    """The counts of all setups and the place in which the script compares them."""
    study = with_confirmation(study)
    setups = []
    for name in study.experiment.setups:
        own = [selected for selected in chosen if selected.setup == name]
        if len(own) > 1:
            setups.append(_setup(study, name, own))
    if not setups:
        return section(TITLE, "compare", paragraph("Fewer than two methods have scores yet."))
    document = {
        "base": BASE,
        "pair": [PROPOSED, REFERENCE],
        "confidence": CONFIDENCE,
        "replicates": REPLICATES,
        "few": FEW,
        "words": WORDS,
        "setups": setups,
    }
    command = code("trb table EXP --compare FIRST,SECOND")
    return section(
        TITLE,
        "compare",
        paragraph(WITHOUT, command, " prints the same numbers.", class_="unscripted"),
        element("div", class_="live", id="comparison"),
        data("comparison-data", document),
    )


def _setup(study: Study, setup: str, chosen: Sequence[Selected]) -> dict[str, Any]:
    """The checkpoints of a setup by method, and the state from which benchmarks are resampled."""
    best: dict[str, Candidate] = {}
    sizes: dict[str, int] = {}
    for selected in chosen:
        best[selected.best.method] = selected.best
        sizes[selected.best.method] = selected.candidates
    benchmarks = []
    for key, run in study.experiment.setups[setup].evaluation.benchmarks.items():
        state = generator(key).bit_generator.state["state"]
        # Texts, since a browser would round the state's 128-bit numbers.
        start = {name: str(number) for name, number in state.items()}
        benchmarks.append({"key": key, "label": benchmark_label(key, run), "draws": start})
    return {
        "title": setup_title(setup, study.experiment.setups),
        "average": benchmark_label(AVERAGE),
        "benchmarks": benchmarks,
        "selected": _checkpoints(best, sizes),
        "confirmed": _checkpoints(confirmed_candidates(study, setup), {}),
    }


def _checkpoints(
    candidates: Mapping[str, Candidate], sizes: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Method → its checkpoint: the number of candidates, and the counts of each seed by benchmark.

    `flat` has finished replicates for each benchmark whose problems all score the same. `Draws`
    takes them from beta distributions, which the script would need many lines to sample.
    """
    found: dict[str, dict[str, Any]] = {}
    for method in order_methods(candidates):
        candidate = candidates[method]
        found[method] = {
            "label": method_label(method),
            "title": candidate.title,
            "candidates": sizes.get(method),
            "counts": {},
            "flat": {},
        }
        for key, of_seeds in candidate.counts.items():
            seeds = []
            for counts in of_seeds:
                seeds.append({"correct": counts.correct.tolist(), "n": _same(counts.n.tolist())})
            found[method]["counts"][key] = seeds
            scores = score_matrices({method: candidate}, key)[method]
            if np.ptp(scores) <= FLAT:
                replicates = Draws(key, len(scores)).mean(scores, method).astype("<f4")
                found[method]["flat"][key] = base64.b64encode(replicates.tobytes()).decode()
    return found


def _same(values: list[int]) -> int | list[int]:
    """One number if all are the same, which keeps the page small."""
    return values[0] if len(set(values)) == 1 else values
