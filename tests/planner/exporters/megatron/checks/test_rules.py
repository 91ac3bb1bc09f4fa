"""All 55 rules are there, each has a number of its own, and a plain command breaks none."""

from __future__ import annotations

import pytest

from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.planner.exporters.megatron.checks.rules import RULES, broken_argument_rules
from shardwright.planner.exporters.megatron.versions import VERSIONS
from tests.planner.exporters.megatron.commands import DENSE, EXPERTS, broken


def test_there_are_55_rules_and_none_twice() -> None:
    assert sorted(RULES) == list(range(1, 56))
    assert len(set(RULES.values())) == 55


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("base", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_plain_commands_break_none(version: str, base: tuple[str, ...]) -> None:
    assert broken(base=base, version=version) == set()


def test_several_broken_rules_are_all_named_with_their_numbers() -> None:
    arguments = Arguments.of(
        *DENSE, "--fp16", "--data-path x", "--num-distributed-optimizer-instances 3"
    )
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    found = broken_argument_rules(arguments, world=16, environment=environment, capability=9)
    assert [one.rule for one in found] == [
        "megatron-6", "megatron-6", "megatron-48", "megatron-51",
    ]  # fmt: skip
    assert "dp x cp = 4" in found[0].problem
    assert found[0].nearest is not None
