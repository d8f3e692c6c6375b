"""The seven methods: their names, their knobs with the allowed values (Appendix A.2), and what a file asks of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from orchestrator import strict
from orchestrator.config import Placement
from orchestrator.errors import UserError, did_you_mean, refuse, unknown

PLACEMENT_KEY = "placement"
SEEDS_KEY = "seeds"
MOST = 10**9  # of a knob, where its own interval has no end
RESERVED = (PLACEMENT_KEY, SEEDS_KEY)  # what a method's block may hold beside its knobs


@dataclass(frozen=True)
class Knob:
    """One hyperparameter of a method and the interval it lives in."""

    meaning: str
    kind: type
    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def describe(self) -> str:
        name = "a whole number" if self.kind is int else "a number"
        left = ("> " if self.low_open else "≥ ") + f"{self.low:g}"
        right = "" if self.high == float("inf") else f" and {'<' if self.high_open else '≤'} {self.high:g}"
        return f"{name} {left}{right}"

    def accepts(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else (int, float)):
            return False
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below


_INF = float("inf")


def _budget(meaning: str) -> Knob:
    return Knob(meaning, float, 0, _INF)


def _steps(meaning: str) -> Knob:
    return Knob(meaning, int, 1, _INF)


def _temperature(meaning: str) -> Knob:
    return Knob(meaning, float, 0, _INF, low_open=True, high_open=True)


METHODS: dict[str, dict[str, Knob]] = {
    "vanilla": {},
    "trust_region": {
        "epsilon0": _budget("KL budget of the first step, in nats."),
        "K": _steps("Steps over which the budget falls linearly to zero."),
    },
    "fixed_epsilon": {"epsilon": _budget("KL budget of every step, in nats.")},
    "veto": {
        "beta_start": Knob("Weight of log p in Veto's target at the first step; it falls to zero over the run.",
                           float, 0, 1, high_open=True),
    },
    "skd": {
        "K": _steps("A drafted token outside the teacher's top K is replaced."),
        "tau_T": _temperature("Temperature at which the teacher samples the replacement."),
    },
    "temperature_warmup": {
        "tau0": _temperature("Sampling temperature of the first step."),
        "E": _steps("Steps over which the temperature goes to 1."),
    },
    "sft_warmup": {"K": _steps("Supervised updates before distillation, one of training.sft.checkpoints.")},
}  # fmt: skip

# Whether the behavior of step k asks the teacher while it decodes: `policy.behavior` is held to this, and memory, the
# plan and the time left rest on it. A method that is not here never does.
NEEDS_TEACHER: dict[str, Callable[[Mapping[str, Any], int], bool]] = {
    "trust_region": lambda knobs, step: knobs["epsilon0"] > 0 and step < knobs["K"],
    "fixed_epsilon": lambda knobs, step: knobs["epsilon"] > 0,
    "skd": lambda knobs, step: True,
}


def needs_teacher(method: str | None, knobs: Mapping[str, Any], step: int) -> bool:
    """Whether optimizer step k ≥ 0 of a trial samples from a law of student and teacher."""
    return method in NEEDS_TEACHER and NEEDS_TEACHER[method](knobs, step)


BASE = "base"  # the untrained student: a row of the tables, no method that an experiment lists

# The names of the paper, in the order of the rows of its main table.
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "trust_region": "Trust-Region behavior Blending",
        "vanilla": "Vanilla OPD",
        "veto": "Veto",
        "skd": "Interleaved teacher injection (SKD)",
        "temperature_warmup": "Temperature warmup",
        "sft_warmup": "SFT warmup",
        "fixed_epsilon": "Fixed-ε blending",
        BASE: "Untrained student",
    }
)
# What every table, list, figure and W&B run calls a method.
SHORT: Mapping[str, str] = MappingProxyType(
    {
        "trust_region": "TRB",
        "vanilla": "Vanilla",
        "veto": "Veto",
        "skd": "SKD",
        "temperature_warmup": "Temperature",
        "sft_warmup": "SFT warmup",
        "fixed_epsilon": "Fixed ε",
        BASE: "Untrained student",
    }
)


def method_label(key: str) -> str:
    """The short label of a method; an unknown key, such as that of a new method, is its own label."""
    return SHORT.get(key, key)


def method_title(key: str) -> str:
    """The name of a method as the paper prints it; its short label where the paper has none."""
    return TITLES.get(key, method_label(key))


def method_key(name: str) -> str:
    """The key of a method given as key, title or short label, in any case and with any of blank, - and _ between words.

    An unknown name is its own key.
    """
    return _KEYS.get(_fold(name), name)


def known_method(where: str, name: str, known: Iterable[str]) -> str:
    """The key of a method given by any of its names; UserError at `where` unless it is one of the keys `known`."""
    key, keys = method_key(name), list(known)
    if key in keys:
        return key
    labels = [method_label(key) for key in keys]
    near = did_you_mean(name, [*labels, *keys])
    raise UserError(f"{where}: {name!r} — one of {', '.join(labels)}{near}")


def null_overrides(chosen: str, known: Iterable[str]) -> list[str]:
    """Overrides that leave out the `known` methods of an experiment except the `chosen`, `vanilla,TRB`.

    UserError unless all of the chosen are known.
    """
    methods = list(known)
    kept = {known_method("--methods", name.strip(), methods) for name in chosen.split(",")}
    return [f"methods.{method}=null" for method in methods if method not in kept]


def _fold(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip()).casefold()


_KEYS = {_fold(name): key for names in (SHORT, TITLES, {key: key for key in SHORT}) for key, name in names.items()}


@dataclass(frozen=True)
class Asked:
    """The `methods` of an experiment file: method → knob → list of values, and what some have of their own."""

    grids: dict[str, dict[str, list[Any]]]
    placements: dict[str, Placement]
    seeds: dict[str, list[int]]


def parse_methods(raw: dict[str, Any], default: Placement) -> Asked:
    """The grids of the methods, with the placements and seeds of those that give their own.

    A method set to null is left out. Raises UserError on an unknown method or knob, a value of the wrong
    type or out of range, a missing knob or a repeated value.
    """
    asked = Asked({}, {}, {})
    for method, body in raw.items():
        if method not in METHODS:
            raise unknown(f"methods.{method}", "method", method, METHODS)
        if body is None:
            continue
        if not isinstance(body, dict):
            raise refuse(f"methods.{method}", body, "a mapping of knobs to lists of values, {} for none")
        asked.grids[method] = _grid(method, {k: v for k, v in body.items() if k not in RESERVED})
        if PLACEMENT_KEY in body:
            asked.placements[method] = _placement(method, body[PLACEMENT_KEY], default)
        if SEEDS_KEY in body:
            asked.seeds[method] = check_seeds(f"methods.{method}.{SEEDS_KEY}", body[SEEDS_KEY])
    return asked


def check_seeds(key: str, seeds: Any) -> list[int]:
    """`seeds` as they are; UserError unless they are one or several distinct whole numbers ≥ 0."""
    whole = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed <= strict.LARGEST for seed in seeds)
    if not whole or not seeds:
        raise refuse(key, seeds, "one or several whole numbers ≥ 0, for example [0, 1, 2]")
    if len(set(seeds)) != len(seeds):
        raise refuse(key, seeds, "every seed once")
    return seeds


def without_own_seeds(raw: dict[str, Any]) -> dict[str, Any]:
    """`methods` of an experiment file without the seeds that methods give for themselves; anything else as it is."""
    return {
        method: {k: v for k, v in body.items() if k != SEEDS_KEY} if isinstance(body, dict) else body
        for method, body in raw.items()
    }


def _grid(method: str, body: dict[str, Any]) -> dict[str, list[Any]]:
    knobs = METHODS[method]
    for name in body:
        if name not in knobs:
            raise unknown(f"methods.{method}.{name}", "key", name, [*knobs, *RESERVED])
    return {name: _values(f"methods.{method}.{name}", knob, body.get(name)) for name, knob in knobs.items()}


def _values(key: str, knob: Knob, raw: Any) -> list[Any]:
    values = raw if isinstance(raw, list) else [raw]
    if raw is None or not values:
        raise UserError(f"{key}: missing — one or several values, each {knob.describe()}")
    for value in values:
        if not knob.accepts(value):
            raise refuse(key, value, knob.describe())
        if value > MOST:
            raise refuse(key, value, f"{knob.describe()}, at most {MOST:g}")
    typed = [knob.kind(value) for value in values]
    repeated = next((v for i, v in enumerate(typed) if v in typed[:i]), None)
    if repeated is not None:
        raise refuse(key, raw, f"{repeated!r} stands twice: every point of the grid once")
    return typed


def _placement(method: str, raw: Any, default: Placement) -> Placement:
    values = {"mode": raw} if isinstance(raw, str) else raw
    key = f"methods.{method}.{PLACEMENT_KEY}"
    if not isinstance(values, dict):
        raise refuse(key, raw, "inline, colocated, split, or a mapping with mode, gpus, cpus")
    return strict.build(Placement, asdict(default) | values, key)
