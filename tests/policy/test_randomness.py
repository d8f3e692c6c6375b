"""Keyed uniforms: fixed by their key alone, different for different keys, uniform and independent."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from orchestrator.policy.randomness import JUDGED, Purpose, Role, SequenceKey, uniforms

KEY = SequenceKey(Purpose.TRAINING, seed=0, step=3, prompt=5, sample=1)


def many_keys(count: int) -> list[SequenceKey]:
    """`count` keys that differ in step, prompt and sample as those of a run do."""
    return [SequenceKey(0, 0, i // 256, i, i % 4) for i in range(count)]


def test_shape_range_and_type() -> None:
    drawn = uniforms(many_keys(7), Role.DRAFT, 1000)
    assert drawn.shape == (7, 1000)
    assert drawn.dtype == torch.float64
    assert 0 <= float(drawn.min()) < float(drawn.max()) < 1


def test_a_batch_is_its_rows_in_any_order() -> None:
    keys = many_keys(9)
    together = uniforms(keys, Role.ACCEPT, 20)
    assert torch.equal(together.flip(0), uniforms(keys[::-1], Role.ACCEPT, 20))
    for row, key in enumerate(keys):
        assert torch.equal(together[row : row + 1], uniforms([key], Role.ACCEPT, 20))


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65])
def test_a_longer_draw_extends_a_shorter_one(length: int) -> None:
    whole = uniforms([KEY], Role.RESIDUAL, 200)
    assert torch.equal(whole[:, :length], uniforms([KEY], Role.RESIDUAL, length))


def test_global_generators_play_no_part() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    first = uniforms([KEY], Role.DRAFT, 10)
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    np.random.seed(2)
    assert torch.equal(first, uniforms([KEY], Role.DRAFT, 10))
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(SequenceKey)])
def test_every_field_of_the_key_matters(field: str) -> None:
    other = dataclasses.replace(KEY, **{field: getattr(KEY, field) + 1})
    assert not set(uniforms([KEY], Role.DRAFT, 50)[0].tolist()) & set(
        uniforms([other], Role.DRAFT, 50)[0].tolist()
    )


def test_fields_are_not_interchangeable() -> None:
    keys = [SequenceKey(*fields) for fields in itertools.permutations((0, 1, 2, 3, 4))]
    assert len(set(uniforms(keys, Role.DRAFT, 1)[:, 0].tolist())) == len(keys)


def test_roles_purposes_and_positions_differ() -> None:
    keys = [dataclasses.replace(KEY, purpose=purpose) for purpose in Purpose]
    drawn = torch.cat([uniforms(keys, role, 500) for role in Role]).flatten().tolist()
    assert len(set(drawn)) == len(Purpose) * len(Role) * 500


def test_seeds_beyond_32_bits_are_different_seeds() -> None:
    seeds = (1, 1 + 2**32, 1 + 2**33, 2**32, 2**63)
    keys = [dataclasses.replace(KEY, seed=seed) for seed in seeds]
    assert len(set(uniforms(keys, Role.DRAFT, 1)[:, 0].tolist())) == len(seeds)


@pytest.mark.parametrize("role", list(Role))
def test_uniform_along_a_sequence(role: Role) -> None:
    assert stats.kstest(uniforms([KEY], role, 100_000)[0].numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("position", [0, 1, 7])
def test_uniform_across_sequences(role: Role, position: int) -> None:
    assert (
        stats.kstest(uniforms(many_keys(5000), role, 8)[:, position].numpy(), "uniform").pvalue
        > 1e-4
    )


def test_roles_and_neighbouring_positions_are_independent() -> None:
    draft, accept, residual = (uniforms(many_keys(5000), role, 2).numpy() for role in JUDGED)
    pairs = [
        (draft[:, 0], accept[:, 0]),
        (accept[:, 0], residual[:, 0]),
        (draft[:, 0], draft[:, 1]),
    ]
    for left, right in pairs:
        counts, _, _ = np.histogram2d(left, right, bins=8, range=[[0, 1], [0, 1]])
        assert stats.chisquare(counts.ravel()).pvalue > 1e-4
