"""Dividing one resource among siblings: cases done by hand, and what must hold for all."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.fair_share import Want, divide

GPU = 1000


def want(name: str, request: int, quota: int | None = 0, weight: int = 1, **more: int) -> Want:
    return Want(
        id=name,
        quota=quota,
        weight=weight,
        priority=more.get("priority", 100),
        created=more.get("created", 0),
        request=request,
        usage_ppm=more.get("usage_ppm", 0),
    )


@pytest.mark.parametrize(
    ("capacity", "wants", "shares"),
    [
        pytest.param(
            26_000,
            [want("a", 20_000, 6000, 3), want("b", 20_000), want("c", 20_000, 0, 2)],
            [16_000, 3000, 7000],
            id="quota 6 and weight 3 of 6 of 20 unused GPUs give 6 + 10",
        ),
        pytest.param(
            7000,
            [
                want("a", 10_000, priority=200),
                want("b", 10_000, priority=200),
                want("c", 10_000),
            ],
            [4000, 3000, 0],
            id="a bucket is settled to the last unit before the next one",
        ),
        pytest.param(
            1000,
            [want("a", 500), want("b", 1000, created=1), want("c", 1000, created=2)],
            [500, 500, 0],
            id="nobody gets more than it wants, so a unit left over is split",
        ),
        pytest.param(
            8000,
            [want("a", 8000, 4000), want("b", 1000, 4000)],
            [7000, 1000],
            id="the worked case: what one does not want goes to the other",
        ),
        pytest.param(
            3000,
            [want("a", 3000, 3000), want("b", 3000, 3000)],
            [3000, 3000],
            id="quotas beyond capacity are given all the same: nobody inside one is disturbed",
        ),
        pytest.param(
            2000,
            [want("a", 5000, None), want("b", 1000)],
            [2000, 0],
            id="an unlimited quota counts as the whole capacity",
        ),
        pytest.param(
            4000,
            [want("a", 4000, 0, 0), want("b", 1000)],
            [0, 1000],
            id="weight 0 has no share of the surplus, even if it stays unused",
        ),
        pytest.param(
            2000,
            [want("a", 2000, created=5), want("b", 2000, created=1), want("c", 2000, created=3)],
            [0, 1000, 1000],
            id="cut-off parts being equal, the older ones get the units",
        ),
        pytest.param(
            2000,
            [want("b", 2000, weight=1), want("a", 2000, weight=3)],
            [0, 2000],
            id="the largest cut-off part comes first",
        ),
    ],
)
def test_by_hand(capacity: int, wants: list[Want], shares: list[int]) -> None:
    assert divide(capacity, wants, GPU) == shares


def test_past_use_lowers_the_surplus() -> None:
    wants = [want("a", 8000, usage_ppm=800_000), want("b", 8000, usage_ppm=200_000)]
    even = divide(8000, wants, GPU)
    tilted = divide(8000, wants, GPU, history_factor_milli=1000)
    assert even == [4000, 4000]
    # a: 0.5 + (0.5 - 0.8) = 0.2; b: 0.5 + (0.5 - 0.2) = 0.8; of 8 GPUs 1.6 and 6.4
    assert tilted == [2000, 6000]


def test_all_strengths_zero_leaves_the_pot_to_settlement() -> None:
    wants = [want("a", 1000, usage_ppm=1_000_000)]
    assert divide(1000, wants, GPU, history_factor_milli=1_000_000) == [1000]


def test_quotas_only() -> None:
    wants = [want("a", 3000, 1000), want("b", 500, 2000)]
    assert divide(8000, wants, GPU, has_surplus=False) == [1000, 500]


amounts = st.integers(0, 9000)
wants_lists = st.lists(
    st.builds(
        Want,
        id=st.uuids().map(str),
        quota=st.one_of(amounts, st.none()),
        weight=st.integers(0, 4),
        priority=st.sampled_from((100, 200)),
        created=st.integers(0, 3),
        request=amounts,
    ),
    max_size=7,
    unique_by=lambda w: w.id,
)


@given(st.integers(0, 40_000), wants_lists, st.sampled_from((1, 1000)))
def test_bounds(capacity: int, wants: list[Want], unit: int) -> None:
    for one, share in zip(wants, divide(capacity, wants, unit), strict=True):
        quota = capacity if one.quota is None else one.quota
        assert min(quota, one.request) <= share <= one.request


@given(st.integers(0, 40_000), wants_lists, st.sampled_from((1, 1000)))
def test_everything_is_handed_out(capacity: int, wants: list[Want], unit: int) -> None:
    """Where weights are positive and quotas fit."""
    wants = [replace(w, weight=w.weight + 1, quota=w.quota or 0) for w in wants]
    if sum(min(w.quota or 0, w.request) for w in wants) > capacity:
        return
    assert sum(divide(capacity, wants, unit)) == min(capacity, sum(w.request for w in wants))


@given(st.integers(0, 40_000), wants_lists)
def test_nothing_below_a_bucket_that_still_wants(capacity: int, wants: list[Want]) -> None:
    shares = divide(capacity, wants, GPU)
    for high, share in zip(wants, shares, strict=True):
        if high.weight > 0 and share < high.request:
            for low, other in zip(wants, shares, strict=True):
                if low.priority < high.priority:
                    quota = capacity if low.quota is None else low.quota
                    assert other == min(quota, low.request)


@given(st.integers(0, 40_000), wants_lists, st.randoms(use_true_random=False))
def test_order_does_not_matter(capacity: int, wants: list[Want], random: Random) -> None:
    shares = dict(zip([w.id for w in wants], divide(capacity, wants, GPU), strict=True))
    random.shuffle(wants)
    assert shares == dict(zip([w.id for w in wants], divide(capacity, wants, GPU), strict=True))
