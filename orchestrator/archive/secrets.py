"""Finds keys and tokens in what is about to be published.

A dirty diff, a traceback or a log can hold one. Searched are the shapes of the usual ones, and
the values that this process's own environment gives to variables such as `WANDB_API_KEY`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

# Each begins with letters that `re` can look for at once: in one pattern of alternatives, or with
# a condition in front, the search takes a hundred times as long.
SHAPES = (
    rb"hf_[A-Za-z0-9]{30,}",
    rb"sk-(?<![A-Za-z0-9_-]sk-)[A-Za-z0-9_-]{32,}",
    rb"gh[pousr]_[A-Za-z0-9]{36}",
    rb"github_pat_[A-Za-z0-9_]{40,}",
    rb"AKIA[0-9A-Z]{16}",
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
)
SECRET_NAMES = re.compile("TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY")
SHORTEST = 12  # characters of a secret; a shorter value could stand anywhere by chance


class SecretSearch:
    """The patterns of all secrets that are looked for; `environment` is that of this process."""

    def __init__(self, environment: Mapping[str, str] = os.environ):
        shapes = [*SHAPES]
        for name, value in environment.items():
            if SECRET_NAMES.search(name.upper()) and len(value) >= SHORTEST:
                shapes.append(re.escape(value.encode("utf-8", "surrogateescape")))
        self._patterns = [re.compile(shape) for shape in shapes]

    def line_of(self, data: bytes) -> int | None:
        """The number of a line of `data` that holds a secret; None without one."""
        for pattern in self._patterns:
            match = pattern.search(data)
            if match is not None:
                return data.count(b"\n", 0, match.start()) + 1
        return None
