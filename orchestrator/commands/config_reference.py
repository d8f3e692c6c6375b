"""`trb config`: every key with type, rule, default and meaning, read off `config` and the methods.

With an experiment instead of a key: its resolved values.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import yaml

from orchestrator import config, pair
from orchestrator.commands.arguments import EXPERIMENT, JSON, Parser, add_differences
from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.experiment.axes import AXES
from orchestrator.experiment.load import (
    PLACEMENT_KEY,
    SEEDS_KEY,
    SHARED_PARTS,
    find_experiment,
    load_experiment,
    names_experiment,
    resolved,
)
from orchestrator.experiment.methods import METHODS, Knob, method_key, null_overrides
from orchestrator.experiment.search import POINTS
from orchestrator.rules import Entry, entries, entry

KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
GIVEN_BY_SETUP = (
    pair.Shape,
    pair.Vocabulary,
    config.DataFile,
)  # where 0 and "" stand for "not given"
ANY = "NAME"  # in a key: a name of one's own
WIDTH = 100

Path_ = tuple[str, ...]  # a dotted key in parts


@dataclass(frozen=True)
class Key:
    """One key: its dotted name, type, default as YAML writes it, and meaning.

    `choices` has a line for each value of a closed key. `rule` is what its values have to be beside
    their type, empty if they may be anything.
    """

    name: str
    kind: str
    default: str
    meaning: str
    choices: Mapping[str, str]
    rule: str = ""

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["rule"]
        return values


def add(parser: Parser) -> None:
    text = f"a key, the beginning of one, a method, or {EXPERIMENT}"
    parser.add_argument("what", nargs="?", metavar="KEY | EXP.yaml", help=text)
    add_differences(parser)
    parser.flag("--json", JSON)


def run(options: argparse.Namespace) -> int:
    overrides = list(options.overrides)
    if options.methods is not None:
        if options.what is None:
            raise UserError(f"--methods: {options.methods!r}: expected an EXP.yaml before it")
        path = find_experiment(Path(options.what))
        overrides += null_overrides(options.methods, load_experiment(path, overrides).methods)
    print(show(options.what, overrides, options.json, get_terminal_size().columns))
    return 0


def all_keys() -> list[Key]:
    """Keys of experiment files in their order, then the keys that only setup files have."""
    keys = list(_keys(config.ExperimentFile, ()))
    for key in _keys(config.Setup, ()):
        if key.name.partition(".")[0] not in SHARED_PARTS:
            keys.append(dataclasses.replace(key, name=f"(setup) {key.name}"))
    return keys


def find_keys(word: str) -> list[Key]:
    """Keys called `word`, below it, or ending in it; without any UserError with the nearest one.

    The name of a method stands for its knobs: `mixture` and `Mixture` for `methods.mixture`.
    """
    method = method_key(word)
    wanted = ["methods", method] if method in METHODS else word.split(".")
    below: list[Key] = []
    ending: list[Key] = []
    names: list[str] = []
    last_words: list[str] = []
    for key in all_keys():
        parts = key.name.removeprefix("(setup) ").split(".")
        if _begins(parts, wanted):
            below.append(key)
        if _begins(parts[-len(wanted) :], wanted):
            ending.append(key)
        names.append(".".join(parts))
        last_words.append(parts[-1])
    if not below and not ending:
        near = did_you_mean(word, names) or did_you_mean(wanted[-1], last_words)
        right = f"a key, the beginning of one, or a method, as `trb config` lists them{near}"
        raise refuse("config", word, right)
    return below or ending


def reference(keys: Sequence[Key], width: int) -> str:
    """The keys as text: a line with default, type and rule, the meaning and the choices below it."""
    lines = []
    width = max(min(width, WIDTH), 40)
    for key in keys:
        kind = f"{key.kind}; {key.rule}" if key.rule else key.kind
        lines.append(f"{key.name} = {key.default}  ({kind})")
        lines += textwrap.wrap(
            key.meaning, width, initial_indent=" " * 4, subsequent_indent=" " * 4
        )
        for choice, text in key.choices.items():
            lines += textwrap.wrap(
                f"{choice}: {text}", width, initial_indent=" " * 6, subsequent_indent=" " * 8
            )
    return "\n".join(lines)


def values_of(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Dotted key → value of an experiment; keys of a setup begin with its name.

    UserError if the experiment is invalid.
    """
    values = resolved(load_experiment(path, overrides))
    setups = values.pop("setups")
    return {
        ".".join(key): value for key, value in _leaves(values | {"setups": list(setups)} | setups)
    }


def show(what: str | None, overrides: Sequence[str], as_json: bool, width: int) -> str:
    """Print `trb config [KEY | EXP.yaml]`."""
    if what is not None and (names_experiment(what) or Path(what).is_file()):
        values = values_of(find_experiment(Path(what)), overrides)
        if as_json:
            return json.dumps(values, indent=2)
        return "\n".join(f"{key} = {_written(value)}" for key, value in values.items())
    if overrides:
        raise refuse("override", overrides[0], "an EXP.yaml before it")
    keys = all_keys() if what is None else find_keys(what)
    if as_json:
        return json.dumps([key.to_json() for key in keys], indent=2)
    return reference(keys, width)


def _keys(schema: type, prefix: Path_) -> Iterator[Key]:
    """Keys of a dataclass, with those of the dataclasses inside it."""
    known = entries(schema)
    for field in dataclasses.fields(schema):
        declared, path = known[field.name], (*prefix, field.name)
        part = declared.part or declared.section  # of differences to the setups, or of this key
        if part is not None and not declared.nullable:
            yield from _keys(part, path)
            continue
        yield Key(
            ".".join(path),
            _kind(declared),
            _default(schema, field),
            declared.meaning,
            declared.choices,
            declared.rule,
        )
        if path == ("methods",):
            yield from _knobs()
        # Keys inside `list[…]`, `dict[str, …]` and `… | null`.
        items = typing.get_args(declared.kind)
        inner = entry(items[-1]).section if items else declared.section
        if inner is not None:
            named = typing.get_origin(declared.kind) is dict
            yield from _keys(inner, (*path, ANY) if named else path)


def _knobs() -> Iterator[Key]:
    for key, method in METHODS.items():
        for name, knob in method.knobs.items():
            yield _knob(f"methods.{key}.{name}", knob)
    meaning = (
        "Where this method's trials live, if not as runtime.placement says: "
        "a mode, or {mode, gpus, role_gpus, cpus}."
    )
    yield Key(f"methods.{ANY}.{PLACEMENT_KEY}", "text or mapping", "null", meaning, {})
    yield Key(
        f"methods.{ANY}.{SEEDS_KEY}",
        "list of whole numbers",
        "null",
        "Seeds of this method, if not the experiment's.",
        {},
    )
    meaning = "Axes of this method, over the experiment's; null leaves one of those out."
    yield Key(f"methods.{ANY}.{AXES}", "mapping", "{}", meaning, {})
    meaning = "In place of knobs and axes: settings, each a mapping of all of these to a value."
    yield Key(f"methods.{ANY}.{POINTS}", "list of mappings", "null", meaning, {})


def _knob(name: str, knob: Knob) -> Key:
    meaning = f"{knob.meaning} One or several values, each {knob.describe()}."
    return Key(name, _kind(entry(knob.type)), "—", meaning, {})


def _kind(declared: Entry) -> str:
    """`whole number`, `list of text`, `text or null`, `one of full, adaptive`."""
    kind = KINDS.get(declared.kind, "mapping")
    if declared.choices:
        kind = f"one of {', '.join(declared.choices)}"
    elif typing.get_origin(declared.kind) is list:
        (item,) = typing.get_args(declared.kind)
        kind = f"list of {_kind(entry(item))}s".replace("texts", "text")
    return f"{kind} or null" if declared.nullable else kind


def _default(schema: type, field: dataclasses.Field) -> str:
    default = (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )
    not_given = default in ("", -1) or (
        schema in GIVEN_BY_SETUP and default == 0 and default is not False
    )
    return "—" if not_given else _written(default)


def _written(value: Any) -> str:
    """`value` as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).strip()
    return text.removesuffix("...").strip()


def _begins(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    return len(parts) >= len(wanted) and all(
        p in (w, ANY) for p, w in zip(parts, wanted, strict=False)
    )


def _leaves(tree: Mapping[str, Any], prefix: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every value that is no mapping of its own, with its path; an empty mapping is a value."""
    if not tree and prefix:
        yield prefix, {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value
