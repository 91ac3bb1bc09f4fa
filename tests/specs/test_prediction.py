"""Breakdowns and memory parts add up."""

from __future__ import annotations

import pytest

from shardwright.specs import Breakdown, Certificate, InputError, MemoryParts


def test_a_breakdown_sums_every_field() -> None:
    each = Breakdown.model_validate(dict.fromkeys(Breakdown.model_fields, 0.5))
    assert each.total_s == 0.5 * len(Breakdown.model_fields)


def test_memory_parts_sum_every_field() -> None:
    parts = {name: 10**index for index, name in enumerate(MemoryParts.model_fields)}
    assert MemoryParts.model_validate(parts).total_bytes == 1_111_111


@pytest.mark.parametrize("field", ["gap", "considered", "search_s"])
def test_a_certificate_has_no_negative_counts(field: str) -> None:
    others = {"optimal": True, "space": "tp", "counts": ()}
    value = dict.fromkeys(Certificate.model_fields, 0) | others
    assert Certificate.from_value(value).optimal
    with pytest.raises(InputError, match=field):
        Certificate.from_value(value | {field: -1})
