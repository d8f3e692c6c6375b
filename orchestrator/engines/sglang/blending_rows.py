"""A request's order to the blending engine, and the record returned with each token. No SGLang.

An order travels as plain data in the request's sampling parameters. The record of one token, a row,
comes back as bytes, from the plain sampler too. A hundred support ids with their log q are then one
small object per token instead of two hundred. SGLang pickles these objects one by one, in the thread
that starts the GPU's work, and an array costs it many times as much as its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from orchestrator.engines.common.rounds import Kept
from orchestrator.policy import spec
from orchestrator.policy.randomness import SequenceKey
from orchestrator.policy.spec import Behavior
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import SURVIVED, TeacherScores


@dataclass(frozen=True)
class Order:
    """The sampling of one response: law, randomness, token space and recorded support."""

    behavior: Behavior
    key: SequenceKey
    space: TokenSpace
    max_tokens: int
    support: int = 0  # k of the student's top-k ids recorded at each prefix
    drafted: int = 1  # γ of the longest rounds
    forced: tuple[int, ...] = ()  # if any, these are the response, whatever their probability

    def as_parameters(self) -> dict[str, Any]:
        """Plain data, for the request's `custom_params`."""
        parameters = dict(vars(self))
        parameters["behavior"] = {"name": type(self.behavior).__name__, **vars(self.behavior)}
        parameters["key"] = asdict(self.key)
        parameters["space"] = asdict(self.space)
        parameters["forced"] = list(self.forced)
        return parameters

    @staticmethod
    def of_parameters(parameters: dict[str, Any]) -> Order:
        """Read the output of `as_parameters`, to which SGLang adds parameters."""
        plain = {field.name: parameters[field.name] for field in fields(Order)}
        law = dict(plain.pop("behavior"))
        return Order(
            behavior=getattr(spec, law.pop("name"))(**law),
            key=SequenceKey(**plain.pop("key")),
            space=TokenSpace(**plain.pop("space")),
            forced=tuple(plain.pop("forced")),
            **plain,
        )


def row_type(behavior: Behavior, support: int) -> np.dtype[np.void]:
    """The dtype of a token's record. A round's first token has its counts `drafted`, `accepted`."""
    if not behavior.needs_teacher:
        return plain_row_type(support)
    scalars = ["student", "behavior", *measured_names(behavior)]
    fields: list[tuple[Any, ...]] = [("token", "<i4"), ("drafted", "<i4"), ("accepted", "<i4")]
    fields += [(name, "<f4") for name in scalars]
    if support:
        fields += [("support_ids", "<i4", (support,)), ("support_BTK", "<f4", (support,))]
        fields += [(name, "<f4") for name in ("token_BT", "entropy_BT", "overlap_BT")]
    return np.dtype(fields)


def plain_row_type(support: int) -> np.dtype[np.void]:
    """The dtype of a token's record from the sampler of one model; `student` is the model's log p."""
    fields: list[tuple[Any, ...]] = [("token", "<i4"), ("student", "<f4"), ("behavior", "<f4")]
    if support:
        fields.append(("support_ids", "<i4", (support,)))
    return np.dtype(fields)


def measured_names(behavior: Behavior) -> list[str]:
    """Names of the measurements at every prefix: the law's own, those of drafts, and KL(μ‖p)."""
    if not behavior.needs_teacher:
        return []
    names = [*behavior.measures, SURVIVED, "acceptance"]
    return names if "behavior_kl" in names else [*names, "behavior_kl"]


def pack(kept: Kept, drafted: Tensor, accepted: Tensor, row: np.dtype[np.void]) -> Tensor:
    """Pack N records as `words_of` does; `drafted`, `accepted` are (N,)."""
    values: dict[str, Tensor] = {
        "token": kept.tokens,
        "drafted": drafted,
        "accepted": accepted,
        "student": kept.student,
        "behavior": kept.behavior,
        **kept.measured,
    }
    if kept.support_ids is not None:
        assert kept.teacher is not None
        values |= {"support_ids": kept.support_ids, **vars(kept.teacher)}
    return words_of(values, row)


def words_of(values: dict[str, Tensor], row: np.dtype[np.void]) -> Tensor:
    """The fields of N records, by name, as (N, W) int32 words on their device.

    Every field has four bytes: a row of words has the bytes of a record.
    """
    assert set(values) == set(row.names or ())
    words: list[Tensor] = []
    for name in row.names or ():
        value = values[name]
        if value.is_floating_point():
            value = value.float().contiguous().view(torch.int32)  # the same bits
        words.append(value.int().reshape(len(value), -1))
    return torch.cat(words, 1)


def unpack(rows: Sequence[bytes], row: np.dtype[np.void]) -> NDArray[np.void]:
    """Records (N,) from the bytes of N rows."""
    return np.frombuffer(b"".join(rows), row)


def kept_of_records(records: NDArray[np.void], behavior: Behavior, support: int) -> Kept:
    """Turn N records into the recorded values of N positions."""

    def column(name: str) -> Tensor:
        return torch.from_numpy(records[name].copy())

    teacher = None
    if support and behavior.needs_teacher:
        teacher = TeacherScores(
            support_BTK=column("support_BTK"),
            token_BT=column("token_BT"),
            entropy_BT=column("entropy_BT"),
            overlap_BT=column("overlap_BT"),
        )
    return Kept(
        tokens=column("token").long(),
        student=column("student"),
        behavior=column("behavior"),
        measured={name: column(name) for name in measured_names(behavior)},
        support_ids=column("support_ids").long() if support else None,
        teacher=teacher,
    )


# --- keeps the shards of one engine, which split every layer between them, on the same tokens ---


def agreed(tokens: Tensor, shards: Any) -> Tensor:
    """Broadcast the first shard's tokens to all shards, in place; `shards` is their process group.

    All shards draw from the same logits. But GPUs may sum in different orders and so change a rare
    draw, and shards with different tokens would wait for each other forever.
    """
    if distributed.get_world_size(shards) > 1:
        distributed.broadcast(tokens, distributed.get_global_rank(shards, 0), group=shards)
    return tokens
