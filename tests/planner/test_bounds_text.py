"""Bounds are read, written and refused with what would be valid."""

from __future__ import annotations

import pytest

from shardwright.planner.bounds_text import (
    BOUNDABLE,
    bounds_in_words,
    bounds_text,
    nothing_between,
    parse_bounds,
)
from shardwright.planner.problem import Bound
from shardwright.specs import InputError

GIB = 2**30


def test_bounds_are_read_in_order() -> None:
    assert parse_bounds(" tp<=4, pp >= 2,mb<=2,peak_memory<=70GiB") == (
        Bound("tp", "<=", 4),
        Bound("pp", ">=", 2),
        Bound("micro_batch", "<=", 2),
        Bound("peak_memory", "<=", 70 * GIB),
    )
    assert parse_bounds("") == ()


@pytest.mark.parametrize("name", BOUNDABLE)
def test_every_name_comes_back(name: str) -> None:
    bounds = parse_bounds(f"{name}<=7")
    assert parse_bounds(bounds_text(bounds)) == bounds


def test_words_have_units() -> None:
    assert bounds_in_words(parse_bounds("tp<=4,peak_memory<=64GiB")) == (
        "tp <= 4, peak_memory <= 64.0 GiB"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp", "tp<=4"),
        ("tp<4", "name<=value"),
        ("tp=4", "name<=value"),
        ("tpp<=4", "tp"),
        ("schedule<=3", "can be bounded"),
        ("tp<=four", "tp<=4"),
        ("tp<=-1", "tp<=4"),
        ("peak_memory>=1GiB", "peak_memory<=70GiB"),
        ("peak_memory<=0", "peak_memory<=70GiB"),
        ("peak_memory<=70furlongs", "GiB"),
        ("tp>=8,tp<=4", "lower the other to 4"),
    ],
)
def test_what_is_no_bound_is_refused_with_what_would_be(text: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_bounds(text)
    assert said in str(raised.value)


def test_bounds_with_nothing_between_name_the_nearest() -> None:
    error = nothing_between(parse_bounds("tp>=3,tp<=3"), [1, 2, 4, 8, 2])
    assert "one of: 1, 2, 4, 8" in str(error)
    assert "2 or 4" in str(error)
