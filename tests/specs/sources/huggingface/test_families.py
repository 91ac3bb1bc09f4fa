"""The list of families is whole."""

from __future__ import annotations

import pytest

from shardwright.specs.sources.huggingface.families import FAMILIES


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_says_what_it_is(model_type: str) -> None:
    family = FAMILIES[model_type]
    assert family.__doc__
    assert all(field in family.model_fields for field in family.names().values())


def test_families_are_sorted() -> None:
    assert list(FAMILIES) == sorted(FAMILIES)
