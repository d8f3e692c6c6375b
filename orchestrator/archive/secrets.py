"""Finds keys and tokens in what is about to be published.

A dirty diff, a traceback or a log can hold one. Searched are the shapes of the usual ones, and
the values that this process's own environment gives to variables such as `WANDB_API_KEY`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SHAPES = (
    rb"hf_[A-Za-z0-9]{30,}",
    rb"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{32,}",
    rb"gh[pousr]_[A-Za-z0-9]{36}",
    rb"github_pat_[A-Za-z0-9_]{40,}",
    rb"AKIA[0-9A-Z]{16}",
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
)
SECRET_NAMES = re.compile("TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY")
SHORTEST = 12  # characters of a secret; a shorter value could stand anywhere by chance


class SecretSearch:
    """One pattern for all secrets that are looked for; `environment` is that of this process."""

    def __init__(self, environment: Mapping[str, str] = os.environ):
        shapes = [*SHAPES]
        for name, value in environment.items():
            if SECRET_NAMES.search(name.upper()) and len(value) >= SHORTEST:
                shapes.append(re.escape(value.encode("utf-8", "surrogateescape")))
        self._pattern = re.compile(b"|".join(shapes))

    def line_of(self, data: bytes) -> int | None:
        """The number of the first line of `data` that holds a secret; None without one."""
        match = self._pattern.search(data)
        return None if match is None else data.count(b"\n", 0, match.start()) + 1
