"""Keyed uniforms: a token depends on its own key alone.

(purpose, seed, step, prompt, sample, repetition, position, role) determines each uniform. Batching,
the number of workers, draft lengths and restarts have no influence.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


class Purpose(enum.IntEnum):
    """The purpose of a sequence. Streams of different purposes never meet."""

    TRAINING = 0
    SFT = 1
    EVALUATION = 2
    CONTINUATION = 3  # of a truncated rollout; the key's `step` is the length of its prefix
    HELD_OUT = 4  # of a prompt that no unit trains on; seed and step are 0 for all units and steps


class Role(enum.IntEnum):
    """The decision that a uniform makes at one position, or for a sequence."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    SEQUENCE = 3  # which model a whole response comes from; one uniform for each sequence


JUDGED = (Role.DRAFT, Role.ACCEPT, Role.RESIDUAL)  # the decisions at each position of a draft


@dataclass(frozen=True)
class SequenceKey:
    """The key of one sequence: `prompt` is its prompt's index, `sample` its number for that prompt.

    `repetition` distinguishes independent samples, such as a second evaluation on fresh ones.
    """

    purpose: int
    seed: int
    step: int
    prompt: int
    sample: int
    repetition: int = 0


def uniforms(keys: Sequence[SequenceKey], role: Role, length: int) -> Tensor:
    """float64 uniforms in [0, 1) for positions 0 … length−1 of each sequence: (B, length).

    Positions of a sequence are consecutive numbers of its own Philox stream, so a longer `length`
    extends a shorter one.
    """
    rows = np.empty((len(keys), length), dtype=np.float64)
    philox = np.random.Philox(0)
    # The state of a new bit generator, with no number of an earlier stream in its buffers.
    start = philox.state | {"buffer_pos": 4, "has_uint32": 0}
    generator = np.random.Generator(philox)
    for row, key in zip(rows, keys, strict=True):
        entropy = (
            key.purpose,
            key.seed,
            key.step,
            key.prompt,
            key.sample,
            key.repetition,
            int(role),
        )
        # The stream of `Philox(SeedSequence(entropy))` in half the time: an array of words needs no
        # conversion, and one bit generator takes over the state of a new one.
        words = np.array(entropy, dtype=np.uint32) if max(entropy) < 2**32 else entropy
        philox_key = np.random.SeedSequence(words).generate_state(2, np.uint64)
        philox.state = start | {"state": {"counter": np.zeros(4, np.uint64), "key": philox_key}}  # pyright: ignore[reportAttributeAccessIssue]
        generator.random(out=row)
    return torch.from_numpy(rows)
