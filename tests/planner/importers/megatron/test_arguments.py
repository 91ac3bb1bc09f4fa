"""Options of all generations to today's names."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.arguments import (
    canonical,
    is_option,
    parse_arguments,
)
from shardwright.planner.importers.shell.unknown import Unknowns
from shardwright.specs import InputError
from tests.planner.importers.megatron.scripts import arguments_of


def test_values_in_every_form() -> None:
    found = arguments_of("--num-layers=4 --hidden-size 8 --bf16 --recompute-modules mlp moe_act")
    assert (found.whole("num-layers"), found.whole("hidden-size")) == (4, 8)
    assert found.has("bf16")
    assert found.many("recompute-modules") == ("mlp", "moe_act")


def test_the_last_of_equal_options_holds_and_a_flag_can_be_off() -> None:
    found = arguments_of("--num-layers 4 --num-layers 8 --bf16 --bf16 false --min-lr -1")
    assert found.whole("num-layers") == 8
    assert not found.has("bf16")
    assert found.number("min-lr", 0) == -1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--model-parallel-size", "tensor-model-parallel-size"),
        ("--batch-size", "micro-batch-size"),
        ("--layernorm-epsilon", "norm-epsilon"), ("--num_layers", "num-layers"),
        ("--tensor-model-parallel", "tensor-model-parallel-size"), ("--seq-len", "seq-length"),
        ("--deepspeed_config", "deepspeed-config"), ("--frobnicate", None), ("--data-path", None),
    ],
)  # fmt: skip
def test_names_of_other_generations(old: str, new: str | None) -> None:
    assert canonical(old) == new


def test_only_options_that_may_matter_are_reported() -> None:
    found = arguments_of("--num-layers 4 --data-path x y --frobnicate 3 --log-interval 1")
    assert found.unread == ["--frobnicate 3: no option that is known here"]


def test_quotes_that_reach_the_program_are_dropped() -> None:
    assert arguments_of("--pp-partition-method 'type:layer'").text("pp-partition-method") == (
        "type:layer")  # fmt: skip


def test_a_value_that_is_not_known_is_lost_with_its_reason() -> None:
    unknowns = Unknowns()
    unset = unknowns.mark("N is not set in the script", is_unset=True)
    may = unknowns.mark("ARGS holds also --fp16")
    found = parse_arguments(["--num-layers", unset, "--bf16", unset, may], unknowns)
    assert found.lost == {"num-layers": "N is not set in the script"}
    assert found.unread == [
        "--num-layers: N is not set in the script",
        "what follows --bf16: ARGS holds also --fp16",
    ]


def test_numbers_are_no_options_and_words_no_numbers() -> None:
    assert not is_option("-1")
    assert not is_option("-.5")
    assert is_option("--x")
    with pytest.raises(InputError):
        arguments_of("--lr abc").number("lr", 0)
    with pytest.raises(InputError):
        arguments_of("--num-layers 1e3").whole("num-layers")
