"""What a reading holds before anything was read."""

from __future__ import annotations

import dataclasses

import pytest

from shardwright.planner.importers.reading import Reading


def test_what_a_file_does_not_say_stays_open() -> None:
    empty = Reading("run.sh", "megatron-lm")
    assert (empty.model, empty.training, empty.layout, empty.gpus) == (None, None, None, None)
    assert not empty.choices
    assert not empty.unread


def test_a_reading_cannot_be_changed_afterwards() -> None:
    empty = Reading("run.sh", "megatron-lm")
    with pytest.raises(dataclasses.FrozenInstanceError):
        empty.gpus = 8  # type: ignore[misc]
    with pytest.raises(TypeError):
        empty.stated["tp"] = 1  # type: ignore[index]
