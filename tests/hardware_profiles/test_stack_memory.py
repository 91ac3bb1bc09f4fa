"""What stacks keep: every entry is used by a stack, and unknown software is customary."""

from __future__ import annotations

from shardwright.hardware_profiles.stack_memory import list_memory_facts, memory_facts
from shardwright.hardware_profiles.stacks import list_stacks


def test_every_stack_is_listed_and_no_other() -> None:
    assert list_memory_facts() == list_stacks()


def test_unknown_software_is_customary() -> None:
    assert memory_facts("nobody's") == memory_facts(None) == memory_facts("generic")


def test_loss_under_tensor_parallelism() -> None:
    facts = memory_facts("torchtitan")
    assert facts.loss_bytes(1) < facts.loss_bytes(8)
    assert memory_facts("generic").loss_bytes(1) == memory_facts("generic").loss_bytes(8)
