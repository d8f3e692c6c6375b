"""What engines and their users agree on; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Owner = Literal["student", "teacher"]  # of a model: whose stop id it uses


@dataclass(frozen=True)
class ModelFolder:
    """A model in a folder in Hugging Face layout.

    `files` is the sha256 of those of the folder's files that are known. They are verified when the model is opened;
    `remedy` is what to do about a wrong one.
    """

    path: str
    files: Mapping[str, str] = field(default_factory=dict)
    remedy: str = ""
