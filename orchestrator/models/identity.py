"""Makes the ids of models, as digests of configuration keys that are named one by one.

`experiment.identity` makes the ids of units and evaluations in the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config import Data, EngineConfig, Optimizer, Setup
from orchestrator.data import word_problems
from orchestrator.data.benchmarks import BENCHMARKS
from orchestrator.pair import Model, Recipe

# Role → the values that fix its model; see `locate.models_of`.
Models = Mapping[str, dict[str, Any]]

RECIPE = ("updates", "batch", "lr", "seed", "wrong_step", "off_task", "no_reasoning")
SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "tied")
VOCABULARY = ("size", "valid")
PROMPT = ("kind", "system", "enable_thinking")
DATA = ("source", "revision", "order_seed")
ASKED = ("max_prompt_tokens", "max_response_tokens")
# Keys added after the first ids were in use: they count only if they differ from their default.
LATER: dict[type, tuple[str, ...]] = {
    Data: ("longest",),
    EngineConfig: ("head_dtype",),
    Optimizer: ("decay",),
    Recipe: (
        "dtype",
        "longest",
        "words",
        "recovers",
        "derails",
        "package",
        "file",
        "weights",
        "without_layers",
    ),
}


def digest(value: Any) -> str:
    """8 hex digits of the sha256 of `value` as canonical JSON."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def part(value: Any, keys: Sequence[str]) -> dict[str, Any]:
    """The named keys of a configuration object, and its keys under LATER that are not at default."""
    chosen = {key: getattr(value, key) for key in keys}
    for kind, later in LATER.items():
        if isinstance(value, kind):
            default = kind()
            for key in later:
                if getattr(value, key) != getattr(default, key):
                    chosen[key] = getattr(value, key)
    return chosen


def stops(setup: Setup) -> list[int | list[int]]:
    """The identity of a pair's stop event: the student's stop ids, then those of the teacher alone.

    A single id is a number, as in the first ids. The teacher's order has no effect, and neither has
    an id of the teacher that the student has too: without any other the student's stands for it.
    """
    own = setup.student.stop_ids
    alone = sorted(set(setup.teacher.stop_ids) - set(own))
    return [_one_or_all([own[0], *sorted(own[1:])]), _one_or_all(alone or [own[0]])]


def _one_or_all(ids: list[int]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else ids


def model_identity(model: Model, setup: Setup) -> dict[str, Any]:
    """The identity of a model before it is made: its revision, or its recipe, shape and tokenizer.

    Units trained from a made model count its weights instead; see `locate.models_of`.
    """
    if model.recipe is None:
        return {"revision": model.revision}
    identity = {
        "recipe": part(model.recipe, RECIPE),
        "shape": part(model.shape, SHAPE),
        "eos": _one_or_all([*model.stop_ids]),
        "tokenizer": setup.tokenizer,
        "vocabulary": part(setup.vocabulary, VOCABULARY),
    }
    if model.recipe.is_embedded:
        return identity | {"world": world()}
    identity |= {"prompt": part(setup.prompt, PROMPT), "data": data_identity(setup.data)}
    if model.recipe.package is not None:
        return identity
    teacher = model_identity(setup.teacher, setup) | {"eos": setup.teacher.eos}
    return identity | {"teacher": teacher, "training": part(setup.training, ASKED)}


def data_identity(data: Data) -> dict[str, Any]:
    """Training problems by content, never by location: sha256 of files, or a hub's revision."""
    identity = part(data, DATA) | {"files": [file.sha256 for file in data.files]}
    match data.source:
        case "arithmetic":
            return identity | {"world": world()}
        case "word_problems":
            return identity | {"world": word_problems.WORLD_VERSION}
        case _:
            return identity


def world() -> Any:
    """The identity of the embedded world, from which arithmetic problems and examples come."""
    return BENCHMARKS["arithmetic_short"].identity()["world"]
