"""Checks that a sampler has a checkpoint's weights, by their bytes, and computes the right numbers.

Weights are swapped in a running engine. Stale, torn or mixed-up weights would give plausible
samples and wrong scores, without a damaged file. The learner (`members`) therefore writes a canary
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

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# --- the text on which a sampler's numbers are compared with the learner's: ordinary English and maths ---
#
# Ids without a meaning have log-probabilities near −15, where bfloat16 rounds most and differs most
# from one kernel to another. A language model is sure of ordinary text, so that rounding is small on
# it and other weights show. Changing the text changes nothing but the canaries of new checkpoints.


TEXT = """\
A train leaves the station at nine in the morning and travels at 80 kilometres per hour. A second \
train leaves the same station one hour later and follows it at 100 kilometres per hour. When the \
second train starts, the first is already 80 kilometres ahead. Every hour the distance between them \
shrinks by 100 - 80 = 20 kilometres. The second train therefore needs 80 / 20 = 4 hours, and it \
catches up at two in the afternoon, 400 kilometres from the station.

The water in a lake is warmest at its surface in summer. In autumn the surface cools, the cold water \
becomes heavier than the water below it, and it sinks. This goes on until the whole lake has a \
temperature of four degrees. Water that is colder than this is lighter again, so it stays on top and \
freezes there. Fish can live through the winter under the ice, because the bottom of the lake stays \
at four degrees.

Anna has 3 boxes with 12 pencils in each box. She gives 7 pencils to her brother and 5 pencils to \
her friend. How many pencils does she have left? First we find how many pencils she had: 3 * 12 = 36. \
Then we find how many she gave away: 7 + 5 = 12. Finally we subtract: 36 - 12 = 24. Anna has 24 \
pencils left. The answer is 24.

To solve the equation 2x + 6 = 20, subtract 6 from both sides, which gives 2x = 14. Then divide both \
sides by 2, which gives x = 7. We can check the solution by putting it back into the equation: \
2 * 7 + 6 = 14 + 6 = 20, so the solution is correct.

The old bridge over the river was built of stone more than three hundred years ago. Farmers from the \
villages on the other side crossed it every week on their way to the market. They brought eggs, \
cheese and apples, and they went home with cloth, salt and tools. When the railway came, most people \
used the new iron bridge a mile to the north, and the old road became quiet. Today it is a place \
where people walk in the evening and look at the water.

Let f(x) = x^2 - 4x + 3. We want to find the values of x for which f(x) = 0. The polynomial can be \
factored as (x - 1)(x - 3), so the roots are x = 1 and x = 3. The graph is a parabola that opens \
upwards. Its lowest point lies in the middle between the roots, at x = 2, where f(2) = 4 - 8 + 3 = -1.

def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

A shop sells a coat for 120 dollars. In January the price is reduced by 25 percent. One quarter of \
120 is 30, so the coat now costs 120 - 30 = 90 dollars. In February the price goes up again by 10 \
percent of the reduced price, that is, by 9 dollars. The coat then costs 90 + 9 = 99 dollars, which \
is still 21 dollars less than at the beginning.

The heart pumps blood through the body. Blood that is rich in oxygen leaves the left side of the \
heart and flows through the arteries to the muscles and the organs. There it gives up its oxygen and \
takes in carbon dioxide. It returns through the veins to the right side of the heart, which sends it \
to the lungs. In the lungs the blood releases the carbon dioxide and takes up new oxygen, and then \
the circle begins again.

There are 5 red balls and 3 blue balls in a bag. Two balls are taken out, one after the other, \
without putting the first one back. The probability that the first ball is red is 5/8. If it is red, \
4 red balls are left among 7, and the probability that the second ball is also red is 4/7. The \
probability that both balls are red is therefore 5/8 * 4/7 = 20/56 = 5/14.

Thank you for your letter. I am glad to hear that you and your family are well. We moved into the new \
house at the end of March, and we are still unpacking. The children like their school and have \
already found friends in our street. If you have time in the summer, please come and stay with us for \
a week. The garden is large enough for all of us, and the sea is only half an hour away by bus.

In a right triangle the two shorter sides have lengths 6 and 8. By the theorem of Pythagoras the \
square of the longest side is 6^2 + 8^2 = 36 + 64 = 100, so the longest side has length 10. The area \
of the triangle is half of the product of the shorter sides, which is 6 * 8 / 2 = 24, and its \
perimeter is 6 + 8 + 10 = 24 as well.

A square garden has a fence of 48 metres around it. Each side is 48 / 4 = 12 metres long, so the \
area of the garden is 12 * 12 = 144 square metres. A path of 2 metres is built along the inside of \
the fence. The part that is left in the middle is a square with sides of 12 - 2 - 2 = 8 metres, and \
its area is 64 square metres. The path covers 144 - 64 = 80 square metres.

People have looked at the stars for thousands of years. Sailors used them to find their way across \
the sea, and farmers used them to know when to plant. The planets are different from the stars: they \
move slowly from one group of stars to the next, and they do not shine by themselves. They reflect \
the light of the sun, as the moon does. With a small telescope one can see the rings of Saturn and \
the four largest moons of Jupiter.

The sum of the numbers from 1 to 100 can be found without adding them one by one. Write the numbers \
in pairs: 1 + 100 = 101, 2 + 99 = 101, 3 + 98 = 101, and so on. There are 50 such pairs, so the sum \
is 50 * 101 = 5050. In general, the sum of the first n numbers is n(n + 1) / 2.
"""


# --- checks that a sampler has a checkpoint's weights, by their bytes, and computes the right numbers ---


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
