"""Drafts of any length: the law of whole sequences, what is recorded, what is counted, and the
cache behind them.

References: plain float64 forward passes, enumeration, and decoding token by token from the keyed
uniforms.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.interface import Limits
from orchestrator.engines.torch import decoding
from orchestrator.engines.torch import decoding as torch_rollout
from orchestrator.engines.torch.decoding import Decoding, Stream, generate
from orchestrator.policy.randomness import JUDGED, SequenceKey, uniforms
from orchestrator.policy.spec import (
    LONGEST_DRAFT,
    Behavior,
    Student,
    TeacherInjection,
    Tempered,
    TrustRegion,
    draft_length,
    least_acceptance,
)
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import SURVIVED, Request, Rollouts, concatenate
from orchestrator.workers.digests import speculation_metrics
from tests import tiny
from tests.policy import reference
from tests.policy.reference import PAPER_BUDGETS
from tests.tiny import Array

Prompt = tuple[int, ...]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
TOP_K = 4
LENGTHS = (1, 2, 3, 5)
BLENDED = (TrustRegion(0.05), TrustRegion(2.0), TeacherInjection(3, 0.6), TeacherInjection(1, 1.0))
STUBBORN = (TrustRegion(2.0), TeacherInjection(1, 1.0))  # less than half of their drafts survive


@dataclasses.dataclass(frozen=True)
class Pair:
    """A student, its teacher, and plain readings of both."""

    student: CausalModel
    teacher: CausalModel

    def run(self, requests: list[Request], behavior: Behavior, decoding: Decoding) -> Rollouts:
        return generate(self.student, self.teacher, requests, behavior, decoding)

    @torch.no_grad()
    def read(self, prompt: Prompt, response: list[int]) -> tuple[Array, Array]:
        """log p and log q (T, V) at the prefixes of a response."""
        log_p, log_q = (
            tiny.visited(causal, prompt, response).numpy()
            for causal in (self.student, self.teacher)
        )
        return log_p, log_q


@functools.cache
def pair(dtype: torch.dtype = torch.float32) -> Pair:
    return Pair(tiny.student(dtype), tiny.teacher(dtype))


@functools.cache
def talkative(dtype: torch.dtype) -> Pair:
    """A pair that seldom stops."""
    return Pair(_reluctant(tiny.student(dtype, tied=False)), _reluctant(tiny.teacher(dtype)))


def _reluctant(causal: CausalModel) -> CausalModel:
    weight = causal.model.lm_head.weight
    head = torch.nn.Linear(weight.shape[1], weight.shape[0]).to(weight.dtype)
    head.weight = weight
    with torch.no_grad():
        head.bias.zero_()
        head.bias[[tiny.STUDENT_EOS, tiny.TEACHER_EOS]] = -2.0
    causal.model.lm_head = head
    return causal


def responses(rollouts: Rollouts) -> list[list[int]]:
    return [rollouts.response(row) for row in range(len(rollouts.requests))]


# The law of whole sequences, by enumeration.

LETTERS = TokenSpace(valid=6, student_eos=4, teacher_eos=5)  # four tokens and EOS
LETTER_PROMPTS = ((3,), (0, 1, 2, 3, 3, 1))
WORD = 4


@functools.cache
def letters() -> Pair:
    students, teachers = tiny.student(), tiny.teacher()
    return Pair(
        dataclasses.replace(students, space=LETTERS), dataclasses.replace(teachers, space=LETTERS)
    )


@functools.cache
def law_after(behavior: Behavior, prompt: Prompt) -> dict[Prompt, Array]:
    """μ (V,) after every prefix of fewer than WORD tokens."""
    laws: dict[Prompt, Array] = {}
    for inner in itertools.product(range(LETTERS.emitted), repeat=WORD - 1):
        log_p, log_q = _letter_readings(prompt, inner)
        for t in range(WORD):
            if inner[:t] not in laws:
                laws[inner[:t]] = np.exp(tiny.law(behavior, log_p[t], log_q[t]))
    return laws


@functools.cache
def _letter_readings(prompt: Prompt, inner: Prompt) -> tuple[Array, Array]:
    return letters().read(prompt, [*inner, 0])


def words() -> Iterator[Prompt]:
    """Every response there is: EOS ends it, WORD tokens at most."""
    for length in range(WORD):
        for inner in itertools.product(range(LETTERS.emitted), repeat=length):
            yield (*inner, LETTERS.emitted)
    yield from itertools.product(range(LETTERS.emitted), repeat=WORD)


def probability(laws: dict[Prompt, Array], word: Prompt) -> float:
    return float(np.prod([laws[word[:t]][token] for t, token in enumerate(word)]))


def assert_law_of_words(behavior: Behavior, length: int, samples: int) -> None:
    """Counts of all words after all prompts, decoded in one mixed ragged batch with keys of their
    own.
    """
    requests = tiny.requests(samples, LETTER_PROMPTS, seed=length)
    mixed = [requests[i] for i in np.random.default_rng(0).permutation(len(requests))]
    rollouts = letters().run(mixed, behavior, Decoding(WORD, draft_length=length))
    counts = Counter(
        zip([r.prompt_ids for r in mixed], map(tuple, responses(rollouts)), strict=True)
    )
    cells = list(itertools.product(LETTER_PROMPTS, words()))
    assert counts.keys() <= set(cells)
    expected = [
        probability(law_after(behavior, prompt), word) / len(LETTER_PROMPTS)
        for prompt, word in cells
    ]
    tiny.assert_frequencies(
        np.array([counts[cell] for cell in cells], dtype=float), np.array(expected)
    )


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "behavior", [TrustRegion(0.05), TrustRegion(0.3), TeacherInjection(2, 0.6)]
)
def test_whole_sequences_have_the_law_of_a_blend(behavior: Behavior, length: int) -> None:
    assert_law_of_words(behavior, length, samples=5_000)


@pytest.mark.parametrize("behavior", [Student(), Tempered(0.8)])
def test_whole_sequences_have_the_law_of_a_student_alone(behavior: Behavior) -> None:
    assert_law_of_words(behavior, length=5, samples=5_000)


# The same keys give the same tokens.


@functools.cache
def lockstep(behavior: Behavior, dtype: torch.dtype) -> Rollouts:
    return pair(dtype).run(tiny.requests(20), behavior, Decoding(24, TOP_K))


@pytest.mark.parametrize("length", [3, 5, LONGEST_DRAFT])
@pytest.mark.parametrize("behavior", BLENDED)
def test_draft_lengths_change_no_token(behavior: Behavior, length: int) -> None:
    for dtype, share in ((torch.float64, 0.0), (torch.float32, 0.01)):
        drafted = pair(dtype).run(tiny.requests(20), behavior, Decoding(24, TOP_K, length))
        whole = responses(lockstep(behavior, dtype))
        differing = sum(a != b for a, b in zip(responses(drafted), whole, strict=True))
        assert differing <= share * len(whole)


@pytest.mark.parametrize("behavior", [Student(), Tempered(0.8)])
def test_a_student_alone_ignores_the_draft_length(behavior: Behavior) -> None:
    short, long = (
        pair().run(tiny.requests(4), behavior, Decoding(9, TOP_K, length)) for length in (1, 5)
    )
    assert responses(short) == responses(long)
    assert long.speculation == {}
    assert speculation_metrics(long) == {}


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize("behavior", [TrustRegion(0.3), *STUBBORN])
def test_batches_of_any_size_give_the_same_tokens(
    models_folder: Path, behavior: Behavior, length: int
) -> None:
    requests, runs = tiny.requests(3), []
    for size in (1, 4, 1000):
        sampler = tiny.torch_engine(
            models_folder, rollout_batch=size, draft_length=length
        ).sampler()
        runs.append(concatenate(list(sampler.sample(requests, behavior, Limits(9, TOP_K)))))
    for run in runs[:-1]:
        assert responses(run) == responses(runs[-1])
        mask = run.mask_BT
        for name in ("student_BT", "behavior_BT"):
            torch.testing.assert_close(
                getattr(run, name)[mask], getattr(runs[-1], name)[mask], atol=1e-4, rtol=0
            )
        # A row alone is never asked for drafts beyond its own limit.
        assert torch.equal(run.speculation["rounds"], runs[-1].speculation["rounds"])
        assert bool((runs[0].speculation["drafted"] <= run.speculation["drafted"]).all())


# Decoding token by token from the keyed uniforms.


@dataclasses.dataclass(frozen=True)
class Judged:
    """One response, and which of its tokens are drafts that survived."""

    tokens: list[int]
    survived: list[bool]

    def rounds(self, length: int) -> list[list[bool]]:
        """The emitted tokens of each round."""
        rounds, start = [], 0
        while start < len(self.survived):
            window = self.survived[start : start + length]
            rounds.append(window[: window.index(False) + 1] if False in window else window)
            start += len(rounds[-1])
        return rounds


def inverse(mass: Array, uniform: float) -> int:
    """The first token whose cumulative mass exceeds `uniform` of all mass."""
    cumulative = mass.cumsum()
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def judged(p: Array, mu: Array, key: SequenceKey) -> Judged:
    """The tokens that the uniforms of `key` pick at prefixes (T, V)."""
    drafts, accept, residual = (uniforms([key], role, len(p))[0].tolist() for role in JUDGED)
    tokens, survived = [], []
    for t in range(len(p)):
        draft = inverse(p[t], drafts[t])
        survived.append(accept[t] * p[t, draft] < mu[t, draft])
        tokens.append(draft if survived[-1] else inverse((mu[t] - p[t]).clip(0), residual[t]))
    return Judged(tokens, survived)


LIMIT = 9


@functools.cache
def decoded(behavior: Behavior, length: int) -> Rollouts:
    return pair(torch.float64).run(tiny.requests(7), behavior, Decoding(LIMIT, TOP_K, length))


@functools.cache
def keyed(behavior: Behavior, prompt: Prompt, response: Prompt, key: SequenceKey) -> Judged:
    """What the uniforms pick at the prefixes of a response."""
    log_p, log_q = pair(torch.float64).read(prompt, list(response))
    log_mu = [tiny.law(behavior, *row) for row in zip(log_p, log_q, strict=True)]
    return judged(np.exp(log_p), np.exp(np.stack(log_mu)), key)


@functools.cache
def by_hand(behavior: Behavior) -> list[Judged]:
    """The rows of `decoded`, from plain passes."""
    rollouts = decoded(behavior, 1)
    return [
        keyed(behavior, request.prompt_ids, tuple(rollouts.response(row)), request.key)
        for row, request in enumerate(rollouts.requests)
    ]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("behavior", BLENDED)
def test_tokens_and_counts_are_those_of_decoding_by_hand(behavior: Behavior, length: int) -> None:
    rollouts, rows = decoded(behavior, length), by_hand(behavior)
    assert responses(rollouts) == [row.tokens for row in rows]
    rounds, drafted, accepted = (
        rollouts.speculation[n].tolist() for n in ("rounds", "drafted", "accepted")
    )
    for index, row in enumerate(rows):
        walked = row.rounds(length)
        starts = np.cumsum([0, *map(len, walked)])[:-1]
        own = sum(min(length, LIMIT - start) for start in starts.tolist())
        beyond = (
            length - len(walked[-1]) if row.survived[-1] else 0
        )  # drafts after EOS or the limit
        assert rounds[index] == len(walked)
        assert own <= drafted[index] <= length * len(walked)
        assert sum(row.survived) <= accepted[index] <= sum(row.survived) + beyond
        assert accepted[index] <= drafted[index]
        assert (
            rounds[index] <= len(row.tokens) <= min(drafted[index], accepted[index] + rounds[index])
        )


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("behavior", BLENDED)
def test_a_row_alone_counts_exactly_what_it_needs(behavior: Behavior, length: int) -> None:
    rows = by_hand(behavior)
    truncated = [i for i, row in enumerate(rows) if row.tokens[-1] != tiny.STUDENT_EOS][:4]
    assert truncated
    for index in truncated:
        request = decoded(behavior, 1).requests[index]
        alone = pair(torch.float64).run([request], behavior, Decoding(LIMIT, TOP_K, length))
        walked = rows[index].rounds(length)
        starts = np.cumsum([0, *map(len, walked)])[:-1]
        assert responses(alone) == [rows[index].tokens]
        assert int(alone.speculation["rounds"]) == len(walked)
        assert int(alone.speculation["accepted"]) == sum(rows[index].survived)
        assert int(alone.speculation["drafted"]) == sum(
            min(length, LIMIT - start) for start in starts.tolist()
        )


@pytest.mark.parametrize("behavior", BLENDED)
def test_lockstep_takes_one_round_for_each_token(behavior: Behavior) -> None:
    rollouts = decoded(behavior, 1)
    assert torch.equal(rollouts.speculation["rounds"], rollouts.lengths_B)
    assert torch.equal(rollouts.speculation["drafted"], rollouts.lengths_B)
    metrics = speculation_metrics(rollouts)
    assert metrics["rounds_per_token"] == 1
    assert metrics["draft_length"] == 1
    assert metrics["teacher_positions"] == int(rollouts.lengths_B.sum())
    survived = [flag for row in by_hand(behavior) for flag in row.survived]
    assert metrics["draft_acceptance"] == pytest.approx(np.mean(survived))
    assert speculation_metrics(decoded(behavior, 3))["rounds_per_token"] < 1


# What is recorded, against plain passes.

LONG = 40
LONG_CASES = [(b, length, dtype) for b in STUBBORN for length in (2, 3, 5) for dtype in TOLERANCE]


@functools.cache
def long_readings(dtype: torch.dtype, prompt: Prompt, response: Prompt) -> tuple[Array, Array]:
    return talkative(dtype).read(prompt, list(response))


@functools.cache
def long_laws(behavior: Behavior, prompt: Prompt, response: Prompt) -> list[Array]:
    """log μ from the definitions, in float64."""
    log_p, log_q = long_readings(torch.float64, prompt, response)
    return [tiny.law(behavior, *row) for row in zip(log_p, log_q, strict=True)]


@functools.cache
def long_rollouts(behavior: Behavior, length: int, dtype: torch.dtype) -> Rollouts:
    return talkative(dtype).run(tiny.requests(4), behavior, Decoding(LONG, TOP_K, length))


def expected_laws(behavior: Behavior, rollouts: Rollouts, row: int) -> list[Array]:
    """log μ at each position. A trust region is read at its recorded β where that is known only to
    1e-4·ε.
    """
    prompt, response = rollouts.requests[row].prompt_ids, tuple(rollouts.response(row))
    if rollouts.behavior_BT.dtype == torch.float64:
        return long_laws(behavior, prompt, response)
    log_p, log_q = long_readings(torch.float32, prompt, response)
    beta = rollouts.measured["beta"][row].tolist() if "beta" in rollouts.measured else None
    return [
        reference.blend(log_p[t], log_q[t], beta[t])
        if beta
        else tiny.law(behavior, log_p[t], log_q[t])
        for t in range(len(response))
    ]


@pytest.mark.parametrize(("behavior", "length", "dtype"), LONG_CASES)
def test_recorded_log_probs_are_those_of_a_plain_pass(
    behavior: Behavior, length: int, dtype: torch.dtype
) -> None:
    rollouts = long_rollouts(behavior, length, dtype)
    scores, tolerance = rollouts.teacher, TOLERANCE[dtype]
    assert scores is not None
    # β* is solved to 1e-9·ε in float64, so its law is known to about that.
    law_tolerance = (
        5e-9 if isinstance(behavior, TrustRegion) and dtype == torch.float64 else tolerance
    )
    assert rollouts.student_BT.dtype == rollouts.behavior_BT.dtype == dtype
    for row, response in enumerate(responses(rollouts)):
        log_p, log_q = long_readings(dtype, rollouts.requests[row].prompt_ids, tuple(response))
        log_mu = expected_laws(behavior, rollouts, row)
        support, steps = rollouts.support_ids_BTK[row].numpy(), range(len(response))
        within = functools.partial(pytest.approx, abs=tolerance, rel=0)
        assert rollouts.student_BT[row, : len(response)].numpy() == within(log_p[steps, response])
        assert scores.token_BT[row, : len(response)].numpy() == within(log_q[steps, response])
        behaved = rollouts.behavior_BT[row, : len(response)].numpy()
        assert behaved == pytest.approx(np.stack(log_mu)[steps, response], abs=law_tolerance, rel=0)
        for t in steps:
            assert support[t].tolist() == np.argsort(-log_p[t], kind="stable")[:TOP_K].tolist()
            assert scores.support_BTK[row, t].numpy() == within(log_q[t, support[t]])
            own = set(np.argsort(-log_q[t])[:TOP_K].tolist())
            assert float(scores.entropy_BT[row, t]) == within(
                -reference.kl(log_q[t], np.zeros(tiny.SIZE))
            )
            assert float(scores.overlap_BT[row, t]) == len(own & set(support[t].tolist())) / TOP_K


@pytest.mark.parametrize("behavior", STUBBORN)
def test_measurements_stay_with_their_tokens(behavior: Behavior) -> None:
    rollouts = long_rollouts(behavior, 5, torch.float64)
    for row, response in enumerate(responses(rollouts)):
        log_p, _ = long_readings(torch.float64, rollouts.requests[row].prompt_ids, tuple(response))
        for t, log_mu in enumerate(expected_laws(behavior, rollouts, row)):
            survival = np.minimum(np.exp(log_mu), np.exp(log_p[t])).sum()
            assert float(rollouts.measured["acceptance"][row, t]) == pytest.approx(
                survival, abs=1e-6
            )
            divergence = reference.kl(log_mu, log_p[t])
            assert float(rollouts.measured["behavior_kl"][row, t]) == pytest.approx(
                divergence, abs=1e-6
            )


class Watched(Stream):
    """A stream that checks its cache after every round and notes how wide it grows."""

    all: ClassVar[list[Watched]] = []

    def __init__(self, causal: CausalModel, prompts: list[Prompt], slots: int | None = None):
        super().__init__(causal, prompts, slots)
        self.fed = self._live.shape[
            1
        ]  # slots that the cache would have if nothing were ever dropped
        self.cropped, self.moved, self.widest, self.batch_sizes = 0, 0, self.fed, {len(prompts)}
        Watched.all.append(self)

    def feed(self, tokens: Tensor) -> Tensor:
        self.fed += tokens.shape[1]
        self.batch_sizes.add(len(tokens))
        log_prob = super().feed(tokens)
        self.widest = max(self.widest, self._live.shape[1])
        return log_prob

    def take_back(self, fed: int, kept: Tensor) -> None:
        self.cropped += fed - int(kept.max())
        before = self._live.sum(-1)
        super().take_back(fed, kept)
        width, live = self._live.shape[1], self._live.sum(-1)
        assert torch.equal(live, before - fed + kept)
        assert self._cache.get_seq_length() == width
        dead = 1 - float(live.sum()) / self._live.numel()
        assert dead <= decoding.DEAD_SHARE or width == int(live.max())

    def _compact(self) -> None:
        before = self._live.shape[1]
        super()._compact()
        self.moved += before - self._live.shape[1]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    monkeypatch.setattr(torch_rollout, "Stream", Watched)
    Watched.all.clear()
    return Watched.all


@pytest.mark.parametrize("length", [2, 3, 5])
@pytest.mark.parametrize("behavior", STUBBORN)
def test_long_responses_compact_the_cache_as_rows_finish(
    behavior: Behavior, length: int, watched: list[Watched]
) -> None:
    rollouts = talkative(torch.float32).run(
        tiny.requests(4), behavior, Decoding(LONG, TOP_K, length)
    )
    assert torch.equal(rollouts.tokens_BT, long_rollouts(behavior, length, torch.float32).tokens_BT)
    assert len(set(rollouts.lengths_B.tolist())) > 5
    assert int(rollouts.lengths_B.max()) == LONG
    assert int(rollouts.speculation["accepted"].sum()) < 0.6 * int(
        rollouts.speculation["drafted"].sum()
    )
    for one in watched:
        assert one.moved > 0
        assert one.widest < one.fed - one.cropped
        assert len(one.batch_sizes) > 5


# Acceptance.


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
def test_the_trust_region_guarantees_acceptance(epsilon: float) -> None:
    bound = least_acceptance(epsilon)
    for length in (1, 3):
        rollouts = pair().run(tiny.requests(100), TrustRegion(epsilon), Decoding(16, 0, length))
        assert bool((rollouts.measured["acceptance"][rollouts.mask_BT] >= bound).all())
        drafted, accepted = (
            rollouts.speculation[name].double() for name in ("drafted", "accepted")
        )
        share = sum(bound**survivors for survivors in range(1, length + 1)) / length
        excess = accepted - share * drafted
        assert float(excess.mean()) >= -4 * float(excess.std()) / len(excess) ** 0.5
        metrics = speculation_metrics(rollouts)
        assert metrics["draft_acceptance"] == pytest.approx(float(accepted.sum() / drafted.sum()))


@pytest.mark.parametrize("behavior", STUBBORN)
def test_as_many_drafts_survive_as_their_laws_expect(behavior: Behavior) -> None:
    rollouts = long_rollouts(behavior, 5, torch.float64)
    survived = rollouts.measured[SURVIVED][rollouts.mask_BT].double()
    expected = rollouts.measured["acceptance"][rollouts.mask_BT].double()
    assert set(survived.tolist()) == {0.0, 1.0}
    # Each token is one draft that was judged, whatever became of those before it.
    error = float((expected * (1 - expected)).sum()) ** 0.5
    assert abs(float((survived - expected).sum())) < 4 * error
    of_rows = torch.where(rollouts.mask_BT, rollouts.measured[SURVIVED], 0.0).sum(-1)
    assert bool((of_rows <= rollouts.speculation["accepted"]).all())
    # A round ends with its first replacement.
    assert bool((rollouts.lengths_B - of_rows <= rollouts.speculation["rounds"]).all())


# Ends inside a draft.


def truncated_by(row: Judged, length: int) -> bool:
    """Whether the row ends inside a round, on a draft that survived."""
    return row.survived[-1] and len(row.rounds(length)[-1]) < length


@pytest.mark.parametrize("behavior", BLENDED)
def test_nothing_is_recorded_beyond_an_end_inside_a_draft(behavior: Behavior) -> None:
    rollouts, rows = decoded(behavior, 5), by_hand(behavior)
    inside = [index for index, row in enumerate(rows) if truncated_by(row, 5)]
    assert {bool(rollouts.truncated_B[index]) for index in inside} == {True, False}
    scores = rollouts.teacher
    assert scores is not None
    for row, judged_row in enumerate(rows):
        length = int(rollouts.lengths_B[row])
        assert length == len(judged_row.tokens)
        assert tiny.STUDENT_EOS not in judged_row.tokens[:-1]
        assert bool(rollouts.truncated_B[row]) == (judged_row.tokens[-1] != tiny.STUDENT_EOS)
        recorded = (
            rollouts.tokens_BT,
            rollouts.student_BT,
            rollouts.behavior_BT,
            rollouts.support_ids_BTK,
        )
        for field in (*recorded, *vars(scores).values(), *rollouts.measured.values()):
            assert not field[row, length:].any()


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("behavior", BLENDED)
def test_no_more_is_drafted_than_the_limit_allows(
    behavior: Behavior, limit: int, watched: list[Watched]
) -> None:
    expected = [row.tokens[:limit] for row in by_hand(behavior)]
    watched.clear()  # of what `by_hand` opened, if no test had asked for it before
    decoding = Decoding(limit, TOP_K, LONGEST_DRAFT)
    rollouts = pair(torch.float64).run(tiny.requests(7), behavior, decoding)
    assert responses(rollouts) == expected
    assert bool((rollouts.speculation["drafted"] <= limit * rollouts.speculation["rounds"]).all())
    longest_prompt = max(map(len, tiny.PROMPTS))
    assert all(one.widest < longest_prompt + limit * limit for one in watched)


@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize("behavior", BLENDED)
def test_prompts_of_one_token(behavior: Behavior, length: int) -> None:
    requests = tiny.requests(4, ((3,), (5,), (0,)))
    rollouts = pair(torch.float64).run(requests, behavior, Decoding(6, TOP_K, length))
    for request, response in zip(requests, responses(rollouts), strict=True):
        assert keyed(behavior, request.prompt_ids, tuple(response), request.key).tokens == response
        assert len(response) == 6 or response[-1] == tiny.STUDENT_EOS


@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize("behavior", BLENDED)
def test_all_rows_but_one_finish_at_once(
    behavior: Behavior, length: int, watched: list[Watched]
) -> None:
    whole = lockstep(behavior, torch.float64)
    short = [row for row, size in enumerate(whole.lengths_B.tolist()) if size == 1][:5]
    last = int(whole.lengths_B.argmax())
    assert short
    watched.clear()  # of what `lockstep` opened, if no test had asked for it before
    for chosen in ([*short, last], [last, *short], short):
        requests = [whole.requests[row] for row in chosen]
        part = pair(torch.float64).run(requests, behavior, Decoding(24, TOP_K, length))
        assert responses(part) == [whole.response(row) for row in chosen]
        assert [
            int(part.speculation["rounds"][i]) for i, row in enumerate(chosen) if row in short
        ] == [1] * len(short)
    assert [one.batch_sizes for one in watched] == [{len(short) + 1, 1}] * 4 + [{len(short)}] * 2


# The choice of γ.

RATES = (0.0, 0.1, 0.5, 0.8, 0.842, 0.9, 0.95, 0.978, 0.999, 1.0)
RATIOS = (0.0, 0.5, 1.0, 4.0, 7.0, 20.0, 1000.0)


def speed(rate: float, cost_ratio: float, length: int) -> float:
    """Expected tokens per student step, over where the first rejection falls."""
    rejected_after = [rate**survivors * (1 - rate) * (survivors + 1) for survivors in range(length)]
    return (sum(rejected_after) + rate**length * length) / (length + cost_ratio)


@pytest.mark.parametrize("cost_ratio", RATIOS)
@pytest.mark.parametrize("rate", RATES)
def test_the_draft_length_is_the_fastest(rate: float, cost_ratio: float) -> None:
    chosen = draft_length(rate, cost_ratio)
    speeds = [speed(rate, cost_ratio, length) for length in range(1, LONGEST_DRAFT + 1)]
    assert 1 <= chosen <= LONGEST_DRAFT
    assert speeds[chosen - 1] == pytest.approx(max(speeds), rel=1e-12)
    assert all(shorter < max(speeds) for shorter in speeds[: chosen - 1])


def test_the_draft_length_grows_with_acceptance_and_with_the_cost_of_the_teacher() -> None:
    table = np.array([[draft_length(rate, ratio) for ratio in RATIOS] for rate in RATES])
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) >= 0).all()
    assert (table[0] == 1).all()
    assert (table[-1, 1:] == LONGEST_DRAFT).all()
    assert len(np.unique(table)) > 8


@pytest.mark.parametrize("rate", RATES)
def test_the_draft_length_shrinks_where_positions_cost_arithmetic(rate: float) -> None:
    lengths = [draft_length(rate, 5.0, arithmetic) for arithmetic in (0.0, 0.1, 0.5, 2.0, 100.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == draft_length(rate, 5.0)
    # Where reading the weights is nothing, a round of one wastes nothing.
    assert draft_length(rate, 5.0, 1e9) == (1 if rate < 1 else LONGEST_DRAFT)


def test_least_acceptance() -> None:
    published = (0.978, 0.950, 0.929, 0.900, 0.842)
    assert [round(least_acceptance(epsilon), 3) for epsilon in PAPER_BUDGETS] == list(published)
    assert least_acceptance(0) == 1
    assert least_acceptance(2) == 0
    assert least_acceptance(50) == 0
    assert [TrustRegion(epsilon).acceptance_guess for epsilon in PAPER_BUDGETS] == [
        least_acceptance(epsilon) for epsilon in PAPER_BUDGETS
    ]


# The cache alone.


class Walk:
    """Random feeds, rejections, finished rows and compactions of one stream, beside plain lists of
    tokens.
    """

    def __init__(self, causal: CausalModel, prompts: list[Prompt], seed: int):
        self.causal, self.random = causal, np.random.default_rng(seed)
        self.stream = Watched(causal, prompts)
        self.rows = [list(prompt[:-1]) for prompt in prompts]

    def feed(self, count: int) -> list[list[int]]:
        """Feed n tokens to every row and compare what follows each with a plain pass."""
        tokens = self.random.integers(0, tiny.VALID, (len(self.rows), count))
        log_prob = self.stream.feed(torch.from_numpy(tokens))
        assert log_prob.shape == (len(self.rows), count, tiny.SIZE)
        for row, new in enumerate(tokens.tolist()):
            held = self.rows[row]
            plain = tiny.visited(self.causal, (*held, new[0]), [*new[1:], 0])
            torch.testing.assert_close(log_prob[row], plain, atol=1e-10, rtol=0)
            held += new
        return tokens.tolist()

    def round(self, finished: bool) -> None:
        """What decoding does: feed in one pass or several, drop finished rows, take back rejected
        tokens.
        """
        sizes = self.random.integers(1, 4, self.random.integers(1, 4)).tolist()
        for size in sizes:
            self.feed(size)
        if finished:
            self.keep()
        self.take_back(sum(sizes))
        if self.random.random() < 0.2:
            self.stream._compact()

    def keep(self) -> None:
        kept = sorted(
            self.random.choice(len(self.rows), len(self.rows) - 1, replace=False).tolist()
        )
        self.stream.keep(torch.tensor(kept))
        self.rows = [self.rows[row] for row in kept]

    def take_back(self, fed: int) -> None:
        most = int(self.random.integers(1, fed + 1))
        kept = self.random.choice([1, (most + 1) // 2, most], len(self.rows)).tolist()
        self.stream.take_back(fed, torch.tensor(kept))
        self.rows = [
            row[: len(row) - fed + count] for row, count in zip(self.rows, kept, strict=True)
        ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("owner", ["student", "teacher"])
@torch.no_grad()
def test_a_stream_forgets_what_was_taken_back(owner: str, seed: int) -> None:
    causal = getattr(pair(torch.float64), owner)
    prompts = [(3,), (5,)] * 3 if seed == 0 else list(tiny.PROMPTS)
    walk = Walk(causal, prompts, seed)
    for turn in range(14):
        walk.round(finished=turn in (4, 9, 10))
    assert walk.stream.moved > 0
    assert walk.stream.cropped > 0
    assert walk.stream.batch_sizes == {6, 5, 4, 3}
