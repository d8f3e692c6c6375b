"""Finds the models that come with the program, and the folder in which they lie."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
PACKED = PACKAGE / "shipped"  # only a wheel has this folder: setup.py puts experiments/ there
EXPERIMENTS = PACKED if PACKED.is_dir() else PACKAGE.parent / "experiments"
MODELS = EXPERIMENTS / "models"


@dataclass(frozen=True)
class ShippedModel:
    """A shipped model, made by a recipe: its folder, and the sha256 of its files by name."""

    folder: Path
    files: dict[str, str]


def shipped_model(recipe: str) -> ShippedModel | None:
    """The shipped model of a recipe, by the name that `made_models.recipe_of` gives the recipe."""
    model = _index().get(recipe)
    return None if model is None else ShippedModel(MODELS / model["folder"], model["files"])


@cache
def _index() -> dict[str, dict[str, Any]]:
    return json.loads((MODELS / "made.json").read_text(encoding="utf-8"))
