"""Finds the origin of a key's value: an override, the experiment's or a setup's file, a default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import config
from orchestrator.errors import UserError
from orchestrator.experiment.grids import with_method_keys
from orchestrator.experiment.reading import from_here, merge, read_overrides, read_yaml
from orchestrator.experiment.shipped import setup_path
from orchestrator.models.locate import EXPERIMENTS

OVERRIDE, DEFAULT = "override", "default"
# Parts of a setup that an experiment may change, for all of its setups.
SHARED_PARTS = ("engine", "training", "evaluation", "probe")


@dataclass(frozen=True)
class Layer:
    """Values that one place gives, and the name of that place."""

    origin: str
    values: dict[str, Any]


def layers(path: Path, overrides: Sequence[str]) -> tuple[list[Layer], dict[str, Layer]]:
    """Layers of an experiment's values, overrides before its file, and the layers of its setups."""
    own, dotlist = with_method_keys(read_yaml(path)), with_method_keys(read_overrides(overrides))
    names = merge(own, dotlist).get("setups", [])
    setups = {}
    for name in names if isinstance(names, list | dict) else []:
        if isinstance(names, dict):  # the setups stand in the experiment's file
            setups[name] = Layer(_shown(path), names[name])
        elif isinstance(name, str):
            file = setup_path(name, path)
            setups[name] = Layer(_shown(file), read_yaml(file))
    return [Layer(OVERRIDE, dotlist), Layer(_shown(path), own)], setups


def _shown(path: Path) -> str:
    """A file as origins name it: a shipped one without the folder of shipped files."""
    return (
        str(path.relative_to(EXPERIMENTS)) if path.is_relative_to(EXPERIMENTS) else from_here(path)
    )


def origin(key: Sequence[str], above: Sequence[Layer]) -> str:
    """The origin of a key's value: the first layer that gives the key, or `default`."""
    return next((layer.origin for layer in above if _says(layer.values, key)), DEFAULT)


def _says(values: Any, key: Sequence[str]) -> bool:
    """Whether the values give a key."""
    for part in key:
        if not isinstance(values, dict):
            return True  # a list or a scalar stands for all keys below it
        if part not in values:
            return False
        values = values[part]
    return True


def with_origin(error: UserError, path: Path, overrides: Sequence[str]) -> UserError:
    """Add to the error the file of its key's value; an override that was just typed needs no file."""
    if error.key is None or not str(error).startswith(error.key):
        return error
    try:
        own, setups = layers(path, overrides)
    except UserError:  # the error is about one of these files
        return error
    # Without indices of lists, and without words as in `training.objective (with method veto)`.
    key = re.sub(r"\[\d+\]| .*", "", error.key)
    for name, layer in setups.items():
        parts = key.removeprefix(f"{name}.").split(".")
        above = [*own, layer] if parts[0] in SHARED_PARTS else [layer]
        place = origin(parts, above if parts[0] in config.Setup.__dataclass_fields__ else own)
        if key.startswith(f"{name}.") and place == DEFAULT:
            place = layer.origin
        if place not in (DEFAULT, OVERRIDE):
            return UserError(f"{error} ({place})", error.key)
    return error
