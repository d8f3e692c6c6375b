"""Reads YAML files and overrides into plain values, unchecked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.errors import LONGEST_VALUE, UserError, refuse, shortened

TOO_DEEP = "less nesting, and no anchor that stands in itself"


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file with its references resolved; UserError names file and line."""
    try:
        with path.open(encoding="utf-8") as file:
            raw = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (IsADirectoryError, UnicodeDecodeError, PermissionError):
        raise UserError(f"{path}: not a readable YAML file") from None
    except RecursionError:
        raise UserError(f"{path}: expected {TOO_DEEP}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or "syntax").split())
        if "'\\t'" in problem:
            raise UserError(
                f"{path}{where}: '\\t': expected spaces, since YAML takes no tab there"
            ) from None
        raise UserError(f"{path}{where}: not valid YAML ({problem})") from None
    except (OmegaConfBaseException, OSError, ValueError) as error:
        # A ValueError comes from a number of thousands of digits, for example.
        raise UserError(f"{path}: {_first_line(error)}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: {type(raw).__name__}: expected a mapping of keys to values")
    return cast(dict[str, Any], raw)


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`training.steps=20` and the like as a mapping of mappings. UserError names the override."""
    _check_overrides(overrides)
    try:
        parsed = OmegaConf.from_dotlist(list(overrides))
        return cast(dict[str, Any], OmegaConf.to_container(parsed, resolve=True))
    except RecursionError:
        raise refuse("override", " ".join(overrides), TOO_DEEP) from None
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        right = f"key=value, with a value in YAML ({_first_line(error)})"
        raise refuse("override", " ".join(overrides), right) from None


def _check_overrides(overrides: Sequence[str]) -> None:
    """Refuse a word that is no override, one without its quotes, and a key that is given twice."""
    given: set[str] = set()
    before = ""
    for item in overrides:
        key, equals, _ = item.partition("=")
        # Without quotes, the shell splits `seeds=[0, 1]` at its blank into two words.
        if before.count("[") > before.count("]") or before.count("{") > before.count("}"):
            raise refuse(
                "override", before, f"with the words after it in quotes: '{before} {item}'"
            )
        before = item
        if not equals or not key:
            raise refuse("override", item, "key=value, for example training.steps=20")
        if key in given:
            raise UserError(
                f"{shortened(key, LONGEST_VALUE)}: given twice: expected every override once"
            )
        given.add(key)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`; mappings merge, everything else (lists too) is replaced."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def from_here(path: Path) -> str:
    """A path for people: relative to the working folder if it lies below that folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
