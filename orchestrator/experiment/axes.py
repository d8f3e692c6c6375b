"""Axes: keys of a setup that an experiment sweeps beside the knobs of its methods.

`axes: {training.optimizer.lr: [1e-4, 4e-4]}` stands in an experiment, for all of its methods, or in
the block of one. Any key of `training` with a single value can be one. In the grid of a
method, and among the knobs of a unit, a dotted name is an axis; a unit trains with the setup that
`setup_at` makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, get_origin

from orchestrator.config import Setup, Training
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.reading import build, places
from orchestrator.rules import Count, Entry, entries

AXES = "axes"  # the key, of an experiment and of a method's block
SECTION_NAME, SECTION = "training", Training  # engines change what a trial needs of its machine
FORMS = ("log", "uniform", "choice")  # ways to give values other than a list
POINTS = "points"
DIGITS = 3  # significant ones of the values between the two ends of a range
RIGHT = (
    "a list of values, {log: [1e-6, 1e-4], points: 3}, {uniform: [0.1, 0.5], points: 3} or "
    "{choice: [1e-6, 1e-5]}"
)

RATE = "training.optimizer.lr"  # the axis that most sweeps begin with

Point = Mapping[str, Any]  # axis → value


@dataclass(frozen=True)
class ValueRange:
    """All values from `low` to `high`, evenly spread on a logarithmic or a linear scale.

    Values between the ends are rounded to DIGITS significant digits, so that they can be typed; those
    of two whole ends are whole.
    """

    form: str  # log or uniform
    low: float
    high: float

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return type(self.low) is type(self.high) is int

    def at(self, share: float) -> float:
        """The value at a share of the way, in [0, 1]."""
        if share in (0, 1):
            return self.high if share else self.low
        if self.form == "log":
            value = math.exp(math.log(self.low) * (1 - share) + math.log(self.high) * share)
        else:
            value = self.low * (1 - share) + self.high * share
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """The nearest value that can be typed."""
        near = round(value) if self.is_whole else float(f"{value:.{DIGITS}g}")
        return min(max(near, self.low), self.high)


Values = list[Any] | ValueRange  # of an axis, or of a knob


def written(values: Values) -> Any:
    """Values as a file has them."""
    is_range = isinstance(values, ValueRange)
    return {values.form: [values.low, values.high]} if is_range else values


# --- what people write → lists of values ---


def flat(raw: Any, key: str = AXES) -> dict[str, Any]:
    """Axes by their dotted keys, also where they are written as mappings in mappings.

    An override `axes.training.optimizer.lr=[1e-4]` is written so. UserError for no mapping.
    """
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise refuse(
            key, raw, "a mapping of keys to values, for example {training.optimizer.lr: [1e-4]}"
        )
    found: dict[str, Any] = {}
    for name, value in raw.items():
        if isinstance(value, dict) and not set(value) & {*FORMS, POINTS}:
            for inner, own in flat(value, f"{key}.{name}").items():
                found[f"{name}.{inner}"] = own
        else:
            found[str(name)] = value
    return found


def parse(axes: Mapping[str, Any], key: str = AXES) -> dict[str, Values]:
    """The values of each axis, by its dotted key in alphabetical order; null leaves an axis out.

    Raises UserError on a key that no setup has, a wrong value and a repeated one.
    """
    parsed: dict[str, Values] = {}
    for name in sorted(axes):
        check_key(key, name)
        if axes[name] is not None:
            parsed[name] = values_of(
                f"{key}.{name}", axes[name], lambda raw, name=name: typed(key, name, raw)
            )
    return parsed


def values_of(where: str, raw: Any, make: Callable[[Any], Any]) -> Values:
    """The values of a knob or an axis as people give them, each typed by `make`.

    UserError where they are none, break a rule or stand twice.
    """
    given = _given(where, raw)
    if isinstance(given, ValueRange):
        return replace(given, low=make(given.low), high=make(given.high))
    values: list[Any] = []
    for each in given:
        value = make(each)
        if value in values:
            raise refuse(where, raw, f"every value once; {value!r} stands twice")
        values.append(value)
    return values


def _given(where: str, raw: Any) -> Values:
    """The values as people give them, not typed yet."""
    if not isinstance(raw, dict | list):
        return [raw]
    if isinstance(raw, list) and raw:
        return raw
    if not isinstance(raw, dict):
        raise refuse(where, raw, RIGHT)
    [form, *others] = [name for name in FORMS if name in raw] or [""]
    wrong = set(raw) - {form, POINTS}
    if others or wrong or not form or not isinstance(raw[form], list) or not raw[form]:
        raise refuse(where, raw, RIGHT)
    if form == "choice":
        if POINTS in raw:
            raise refuse(where, raw, f"choice without {POINTS}: it has values of its own")
        return raw[form]
    ends = raw[form]
    if len(ends) != 2 or not all(type(end) in (int, float) for end in ends) or ends[0] >= ends[1]:
        raise refuse(f"{where}.{form}", ends, "two numbers, the lower one first")
    if form == "log" and ends[0] <= 0:
        raise refuse(f"{where}.{form}", ends, "two numbers > 0")
    span = ValueRange(form, ends[0], ends[1])
    if POINTS not in raw:
        return span
    count = build(Count, raw[POINTS], f"{where}.{POINTS}")
    if count < 2:
        raise refuse(f"{where}.{POINTS}", count, "2 or more, both ends among them")
    return [span.at(index / (count - 1)) for index in range(count)]


def check_key(key: str, name: str) -> None:
    """Raise UserError unless `name` is a key of SECTION that holds a single value."""
    first, *path = name.split(".")
    declared = Entry(SECTION) if first == SECTION_NAME else None
    for part in path:
        section = declared and declared.section
        declared = entries(section).get(part) if section else None
    if declared is None:
        place = next(places(SECTION, name.split(".")[-1]), None)
        near = f", did you mean {key}.{SECTION_NAME}.{place}?" if place else ""
        raise UserError(f"{key}.{name}: unknown key: expected a key of {SECTION_NAME}{near}")
    if declared.section or get_origin(declared.kind) in (list, dict):
        raise UserError(f"{key}.{name}: expected a key with a single value, such as {RATE}")


def typed(key: str, name: str, raw: Any) -> Any:
    """A value of the axis as the setup has it; UserError if it breaks the key's rule."""
    nested = raw
    for part in reversed(name.split(".")[1:]):
        nested = {part: nested}
    value = build(SECTION, nested, f"{key}.{SECTION_NAME}")
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


# --- points → setups ---


def axes_of(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The axes among the knobs of a setting, or of a grid."""
    return {name: value for name, value in knobs.items() if "." in name}


def own_knobs(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of the method alone."""
    return {name: value for name, value in knobs.items() if "." not in name}


def value_of(setup: Setup, axis: str) -> Any:
    """The value of an axis in a setup."""
    value: Any = setup
    for part in axis.split("."):
        value = getattr(value, part)
    return value


def setup_at(setup: Setup, knobs: Point) -> Setup:
    """The setup with the values of the axes among `knobs`; itself where it has them already."""
    for name, value in axes_of(knobs).items():
        setup = _with(setup, name.split("."), value)
    return setup


def _with(section: Any, path: list[str], value: Any) -> Any:
    first, *rest = path
    present = getattr(section, first)
    wanted = _with(present, rest, value) if rest else value
    return section if wanted == present else replace(section, **{first: wanted})


# --- names ---


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Knobs, and the axes beside them, → the shortest end of each dotted key that none other has."""
    names = list(names)
    ends: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        ends[name] = [".".join(parts[at:]) for at in range(len(parts) - 1, -1, -1)]
    short: dict[str, str] = {}
    for name in names:
        others = {end for other in names if other != name for end in ends[other]}
        short[name] = next((end for end in ends[name] if end not in others), name)
    return short


def value_text(value: Any) -> str:
    """`0.05`, `12`, `tail`, `true`."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def respelled(text: str) -> str:
    """A value that people typed, as `value_text` writes it: `5e-2` is `0.05`."""
    with suppress(ValueError):
        return value_text(float(text))
    return text


def setting_text(knobs: Mapping[str, Any]) -> str:
    """The knobs of a setting for people: `epsilon0=0.05 K=12 lr=0.0001`."""
    short = short_names(knobs)
    return " ".join(f"{short[name]}={value_text(value)}" for name, value in knobs.items())
