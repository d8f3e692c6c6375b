"""Scores per problem of several checkpoints, on the same problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.facts.candidates import Candidate
from analysis.facts.uncertainty import Array
from orchestrator.errors import UserError


def score_matrices(checkpoints: Mapping[str, Candidate], benchmark: str) -> dict[str, Array]:
    """Name → score of each problem, (P,), a mean over the seeds of the checkpoint.

    UserError that names two runs whose problems are not the same in the same order.
    """
    scores: dict[str, Array] = {}
    first: tuple[str, Sequence[str]] | None = None  # a run and its problems
    for name, checkpoint in checkpoints.items():
        shares = []
        for unit, counts in zip(checkpoint.units, checkpoint.counts[benchmark], strict=True):
            run = f"{name} {unit} {benchmark}"
            first = first or (run, counts.problems)
            if counts.problems != first[1]:
                raise UserError(
                    f"{run}: {_difference(first[1], counts.problems)} compared with {first[0]}; "
                    "scores are compared on the same problems; evaluate one of the two again"
                )
            shares.append(counts.shares(checkpoint.metric))
        scores[name] = np.mean(shares, axis=0)
    return scores


def _difference(first: Sequence[str], second: Sequence[str]) -> str:
    """Describe how the problems of the second differ."""
    lacking, added = set(first) - set(second), set(second) - set(first)
    if lacking or added:
        return f"{len(lacking)} problems lacking, {len(added)} added"
    return "problems in another order"
