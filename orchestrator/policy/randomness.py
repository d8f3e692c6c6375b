"""Uniforms keyed by what they are for, so that a token depends on nothing but its own key.

Every uniform is fixed by (purpose, seed, step, prompt, sample, position, role): not by batching, the number of
workers, draft lengths or restarts.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


class Purpose(enum.IntEnum):
    """What a sequence is sampled for: the streams never meet."""

    TRAINING = 0
    SFT = 1
    EVALUATION = 2
    CONTINUATION = 3  # of a rollout cut off at a length, which is the key's `step`


class Role(enum.IntEnum):
    """What a uniform decides at one position."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2


@dataclass(frozen=True)
class SequenceKey:
    """One sequence: `prompt` is the index of its prompt, `sample` which of the prompt's samples it is.

    `draw` tells apart independent repetitions of the same sequence (a second evaluation on fresh samples).
    """

    purpose: int
    seed: int
    step: int
    prompt: int
    sample: int
    draw: int = 0


def uniforms(keys: Sequence[SequenceKey], role: Role, length: int) -> Tensor:
    """float64 uniforms in [0, 1) for positions 0 … length−1 of each sequence: (B, length).

    Positions of a sequence are consecutive draws of its own Philox stream, so a longer `length` extends a
    shorter one.
    """
    rows = np.empty((len(keys), length), dtype=np.float64)
    philox = np.random.Philox(0)
    start = philox.state | {"buffer_pos": 4, "has_uint32": 0}  # nothing left over of an earlier draw
    generator = np.random.Generator(philox)
    for row, key in zip(rows, keys, strict=True):
        entropy = (key.purpose, key.seed, key.step, key.prompt, key.sample, key.draw, int(role))
        # The stream of `Philox(SeedSequence(entropy))` in half its time: an array of words needs no conversion, and one
        # bit generator takes the state that a new one would have.
        words = np.array(entropy, dtype=np.uint32) if max(entropy) < 2**32 else entropy
        philox_key = np.random.SeedSequence(words).generate_state(2, np.uint64)
        philox.state = start | {"state": {"counter": np.zeros(4, np.uint64), "key": philox_key}}  # pyright: ignore[reportAttributeAccessIssue]
        generator.random(out=row)
    return torch.from_numpy(rows)
