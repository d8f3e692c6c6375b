"""What the engine's sampler draws, without an engine: no SGLang is needed for it."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats

from orchestrator.engines.sglang import private, verdict
from orchestrator.engines.sglang.blending_rows import plain_row_type, unpack
from orchestrator.engines.sglang.engine import seed_of
from orchestrator.engines.sglang.process import ROWS, Draw, Settings
from orchestrator.policy.randomness import SequenceKey
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.sweep.failures import failure_of

SPACE = TokenSpace(10, 3, 7)  # of 12 rows: 10 and 11 are padding
LOGITS = torch.tensor([[0.3, -1.0, 2.0, 0.5, 0.0, 1.0, -2.0, 1.5, 0.2, 0.1, 9.0, 8.0]])


def drawn(
    monkeypatch: pytest.MonkeyPatch, owner: str, tau: float, rows: int
) -> tuple[torch.Tensor, dict[str, Any]]:
    monkeypatch.setattr(verdict, "_space", [(SPACE, owner)])
    draws = [vars(Draw(seed_of(SequenceKey(0, 0, 0, 0, row)), 4, tau, 3)) for row in range(rows)]
    return verdict.draw_tokens(LOGITS.repeat(rows, 1), draws, torch.full((rows,), 3))


def expected(owner: str, tau: float) -> torch.Tensor:
    """The law, written out in float64."""
    weights = LOGITS[0].double().exp()
    weights[10:] = 0.0
    if owner == "teacher":
        weights[3] += weights[7]
    weights[7] = 0.0
    tempered = (weights / weights.sum()) ** (1 / tau)
    return tempered / tempered.sum()


@pytest.mark.parametrize(("owner", "tau"), [("student", 1.0), ("student", 0.6), ("teacher", 1.0)])
def test_tokens_have_the_law_of_the_token_space(
    owner: str, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, kept = drawn(monkeypatch, owner, tau, 20_000)
    law, plain = expected(owner, tau), expected(owner, 1.0)
    counts = torch.bincount(tokens, minlength=12)
    assert counts[law == 0].sum() == 0, "padding and the other model's EOS are never drawn"
    there = law > 0
    assert stats.chisquare(counts[there], 20_000 * law[there]).pvalue > 1e-4
    records = unpack([kept[ROWS][row] for row in range(len(tokens))], plain_row_type(3))
    assert records["token"].tolist() == tokens.tolist()
    for name, expected_law in (("student", plain), ("behavior", law)):
        found = torch.from_numpy(records[name].copy()).double()
        torch.testing.assert_close(found, expected_law[tokens].log(), atol=1e-5, rtol=0)
    assert (records["support_ids"] == plain.topk(3).indices.numpy()).all()


def test_uniforms_are_uniform_in_seeds_and_in_positions() -> None:
    seeds = torch.tensor([seed_of(SequenceKey(2, 0, 20, index, 0)) for index in range(20_000)])
    for uniform in (
        verdict.keyed_uniforms(seeds, torch.zeros_like(seeds)),
        verdict.keyed_uniforms(seeds[:1].repeat(20_000), torch.arange(20_000)),
    ):
        assert 0 <= uniform.min() < uniform.max() < 1
        assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-4
    first, second = (
        verdict.keyed_uniforms(seeds, torch.full_like(seeds, position)) for position in (0, 1)
    )
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.03


def test_the_uniforms_are_those_of_the_published_generator() -> None:
    """First words of SplitMix64 with seed 1234567, from the reference implementation by Vigna
    (2015).
    """
    words = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    # The reference adds the increment before it mixes.
    uniform = verdict.keyed_uniforms(torch.tensor([1234567] * 3), torch.tensor([1, 2, 3]))
    assert uniform.tolist() == [(word >> 11) * 2.0**-53 for word in words]


def test_forced_ids_are_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_space", [(SPACE, "student")])
    draws = [vars(Draw(0, 4, forced=(5, 6))), vars(Draw(0, 2, forced=(5, 6)))]
    tokens, kept = verdict.draw_tokens(LOGITS.repeat(2, 1), draws, torch.tensor([3, 2]))
    assert tokens.tolist() == [5, 6]
    log_p = expected("student", 1.0).log()
    (record,) = unpack([kept[ROWS][1]], plain_row_type(0))
    assert record["student"] == pytest.approx(float(log_p[6]), abs=1e-5)


@pytest.mark.parametrize("support", [0, 3])
def test_a_record_is_one_bytes_object(support: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang pickles the records of all tokens one by one, between two steps of the GPU."""
    monkeypatch.setattr(verdict, "_space", [(SPACE, "student")])
    draws = [vars(Draw(0, 4, support=support))] * 2
    _, kept = verdict.draw_tokens(LOGITS.repeat(2, 1), draws, torch.tensor([3, 3]))
    assert list(kept) == [ROWS]
    for row in range(2):
        assert type(kept[ROWS][row]) is bytes
        assert len(kept[ROWS][row]) == plain_row_type(support).itemsize == 4 * (3 + support)


def granted(tokens: int) -> Settings:
    return Settings(
        "/model", "bfloat16", "student", 16, 0, 15, 8, True, 1.0, tokens, 4, takes_turns=False
    )


@pytest.mark.parametrize(
    ("dtype", "precise", "asked"),
    [("bfloat16", True, True), ("bfloat16", False, False), ("float32", True, False)],
)
def test_sglang_is_asked_for_logits_in_float32(dtype: str, precise: bool, asked: bool) -> None:
    """In float32 all of its numbers are."""
    settings = replace(granted(1), dtype=dtype, precise_head=precise)
    assert private._arguments(settings)["enable_fp32_lm_head"] == asked


class MadeEngine:
    """An engine whose KV cache has so many tokens."""

    def __init__(self, tokens: int):
        self._scheduler_init_result = SimpleNamespace(
            scheduler_infos=[{"max_total_num_tokens": tokens}]
        )
        self.ended = False

    def shutdown(self) -> None:
        self.ended = True


@pytest.mark.parametrize("tokens", [10_000, 9_984])
def test_a_cache_of_whole_pages_is_what_was_granted(tokens: int) -> None:
    engine = MadeEngine(tokens)
    assert private.check_cache(engine, granted(10_000)) is engine
    assert not engine.ended


@pytest.mark.parametrize(("tokens", "passes"), [(9_000, True), (10_001, False)])
def test_a_cache_of_another_size_ends_the_engine(tokens: int, passes: bool) -> None:
    engine = MadeEngine(tokens)
    with pytest.raises(RuntimeError, match=f"{tokens} tokens where 10000 were granted") as raised:
        private.check_cache(engine, granted(10_000))
    assert engine.ended
    assert failure_of(pickle.loads(pickle.dumps(raised.value))).passes == passes  # noqa: S301


def test_another_version_of_sglang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9.9")
    with pytest.raises(RuntimeError, match=r"sglang 9.9.9 is installed: expected 0\.5\.20"):
        private.check_version()


@pytest.mark.parametrize(("own", "teachers"), [(3, 7), ([3, 5], [7, 3])])
def test_stop_ids_reach_the_processes_of_an_engine(
    own: Any, teachers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        """Ends the start of an engine once its variables are set."""

    def stop(_: Settings) -> None:
        raise Stopped

    monkeypatch.setattr(private, "_arguments", stop)
    monkeypatch.setattr(verdict, "_space", [])
    monkeypatch.setitem(sys.modules, "sglang.srt.entrypoints.engine", SimpleNamespace(Engine=dict))
    monkeypatch.setenv(verdict.SPACE, "")
    monkeypatch.setenv("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "")
    settings = replace(granted(1), valid=10, student_eos=own, teacher_eos=teachers)
    with pytest.raises(Stopped):
        private.open_engine(settings)
    assert verdict.token_space() == (TokenSpace(10, own, teachers), "student")
