"""Software choices are strict."""

from __future__ import annotations

import pytest

from shardwright.specs import InputError, SoftwareSpec


def test_defaults_come_back_from_their_text() -> None:
    assert SoftwareSpec.from_json(SoftwareSpec().to_json()) == SoftwareSpec()


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="attention_kernel"):
        SoftwareSpec.from_value({"attention_kernel": "fast"})
