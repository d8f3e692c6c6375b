"""Checks that a sampler has a checkpoint's weights, by their bytes, and computes the right numbers.

Weights are swapped in a running engine. Stale, torn or mixed-up weights would give plausible
samples and wrong scores, without a damaged file. The learner (`learner`) therefore writes a canary
into each checkpoint, and an evaluator (`graded_sampling`) compares it with its sampler after
loading. Weights that a trial publishes for its own rollouts carry none.

- Bytes decide about the weights: the digest of each exported tensor against that of the tensor in
  the sampler (`engines.common.tensor_digests`). Right weights never differ, and wrong ones always
  do, in any dtype.
- Numbers decide about the kernels: log-probabilities of a text that the sampler's own decoding
  reads. Rounding differs from engine to engine and from batch to batch, so that two means over
  1,143 tokens must lie below bounds. `docs/engines.md` shows how far right and wrong weights are
  from these.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.config import Setup
from orchestrator.data import arithmetic
from orchestrator.errors import WrongWeights
from orchestrator.workers.canary_text import TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LENGTH, SEQUENCES = 128, 9  # ids of a sequence, and sequences of a text
ODD_LENGTH = 32  # ids of a canary without a text


class Apart(NamedTuple):
    """Differences of log-probabilities in nats: the absolute value of their mean, and their mean
    absolute value.
    """

    bias: float
    spread: float

    def exceeds(self, most: Apart) -> bool:
        """Whether a difference is not within its bound; NaN is within none."""
        return not (self.bias <= most.bias and self.spread <= most.spread)


# Measured on SmolLM2-135M, whole and with a fifth of its layers left out: see `docs/engines.md`.
MOST = {"float32": Apart(1e-3, 1e-3), "bfloat16": Apart(0.05, 0.5)}
# Odd ids lie near −15, and their rounding differs more. Checkpoints of earlier versions have no
# other canary; right weights were up to 0.124 nats apart on it.
MOST_ON_ODD_IDS = {"float32": Apart(1e-3, 1e-3), "bfloat16": Apart(0.5, 0.5)}


def canary_ids(setup: Setup) -> tuple[int, ...]:
    """Odd ids, the same for all models of a setup; none ends a response."""
    ordinary = [token for token in range(setup.vocabulary.valid) if token not in _ends(setup)]
    return tuple(ordinary[(position * 7919 + 17) % len(ordinary)] for position in range(ODD_LENGTH))


def canary_sequences(setup: Setup, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Sequences of ids of one length: a text as far as the tokenizer can write it, or sums.

    A tokenizer that can write neither gets the odd ids, in one sequence.
    """
    training = setup.training
    length = min(LENGTH, training.max_prompt_tokens + training.max_response_tokens)
    for text in (TEXT, "".join(islice(_sums(), LENGTH))):
        ids = list(tokenizer.encode(text, add_special_tokens=False))
        # An unknown character becomes any id, or none.
        written = "".join(str(tokenizer.decode(ids)).split()) == "".join(text.split())
        ordinary = all(token < setup.vocabulary.valid for token in ids)
        if written and ordinary and _ends(setup).isdisjoint(ids):
            whole = min(SEQUENCES, len(ids) // length)
            return [ids[number * length : (number + 1) * length] for number in range(whole)]
    return [list(canary_ids(setup))]


def _ends(setup: Setup) -> set[int]:
    return {*setup.student.stop_ids, *setup.teacher.stop_ids}


def _sums() -> Iterator[str]:
    """Problems of the embedded world with their solutions, for its own tokenizer."""
    rng = random.Random(0)
    while True:
        terms = arithmetic.draw_terms(rng)
        yield f"{arithmetic.question(terms)}\n{arithmetic.solution(terms)}\n"


def canary(
    sequences: Sequence[Sequence[int]],
    log_probs: Sequence[Sequence[float]],
    tensors: Mapping[str, str],
) -> dict[str, Any]:
    """A checkpoint's canary: log p of each id but a sequence's first, and the tensors' digests."""
    return {
        "sequences": [list(ids) for ids in sequences],
        "log_probs": [list(values) for values in log_probs],
        "tensors": dict(tensors),
    }


def sequences_of(expected: Mapping[str, Any]) -> list[list[int]]:
    """The ids of a canary; one of an earlier version has a single sequence."""
    return expected.get("sequences") or [expected["ids"]]


def apart(expected: Sequence[Sequence[float]], log_probs: Sequence[Sequence[float]]) -> Apart:
    """How far the log-probabilities of two readers of the same sequences are from each other."""
    total = absolute = 0.0
    count = 0
    for those, these in zip(expected, log_probs, strict=True):
        for there, here in zip(those, these, strict=True):
            total += here - there
            absolute += abs(here - there)
            count += 1
    return Apart(abs(total) / count, absolute / count)


def check_tensors(expected: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Raise WrongWeights if a tensor in a sampler is not the checkpoint's.

    A canary of an earlier version has no digests. A sampler may hold some tensors in a form of its
    own, and then gives no digest of them.
    """
    known: Mapping[str, str] = expected.get("tensors", {})
    compared = sorted(known.keys() & digests.keys())
    wrong = [name for name in compared if known[name] != digests[name]]
    if wrong:
        raise WrongWeights(
            f"the sampler's weights are not the checkpoint's: {wrong[0]} differs, as do "
            f"{len(wrong)} of {len(compared)} tensors"
        )


def check_numbers(
    expected: Mapping[str, Any], log_probs: Sequence[Sequence[float]], dtype: str
) -> None:
    """Raise WrongWeights unless a sampler's log-probabilities match the checkpoint's."""
    of_text = len(sequences_of(expected)) > 1
    values = expected["log_probs"] if "sequences" in expected else [expected["log_probs"]]
    most = (MOST if of_text else MOST_ON_ODD_IDS)[dtype]
    found = apart(values, log_probs)
    if found.exceeds(most):
        raise WrongWeights(
            f"the sampler does not compute the checkpoint's numbers: {found.bias:.2g} nats apart "
            f"in the mean and {found.spread:.2g} in absolute values on the canary: expected at "
            f"most {most.bias:g} and {most.spread:g} in {dtype}"
        )
