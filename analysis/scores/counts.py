"""Scores per problem of several checkpoints, on the same problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import UserError
from orchestrator.selection.metric import PASS_AT_1, Metric
from orchestrator.selection.scores import Tally


def score_matrix(rows: Mapping[str, Tally], metric: Metric = PASS_AT_1) -> NDArray[np.float64]:
    """The score of each row and problem, (rows, P); pass@1 is c/n.

    UserError that names two rows whose problems are not the same in the same order.
    """
    first, *others = rows
    for name in others:
        if rows[name].problems != rows[first].problems:
            raise UserError(
                f"{name}: {_difference(rows[first].problems, rows[name].problems)} compared with {first}; "
                "scores are compared on the same problems; evaluate one of the two again"
            )
    return np.stack([row.shares(metric) for row in rows.values()])


def _difference(first: Sequence[str], second: Sequence[str]) -> str:
    """Describe how the problems of the second differ."""
    lacking, added = set(first) - set(second), set(second) - set(first)
    return (
        f"{len(lacking)} problems lacking, {len(added)} added"
        if lacking or added
        else "problems in another order"
    )
