"""Which stack takes these options."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.stacks import list_stacks
from shardwright.planner.importers.megatron.software import software_of
from tests.planner.importers.megatron.scripts import arguments_of


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("--deepspeed --checkpoint-activations", "megatron-deepspeed"),
        ("--DDP-impl local", "megatron-lm-2021"),
        ("--bf16", "megatron-bridge"),
        ("--enable-zero-bubble", "zero-bubble-megatron"),
    ],
)
def test_generations(line: str, wanted: str) -> None:
    assert software_of(arguments_of(line)) == wanted
    assert wanted in list_stacks()
