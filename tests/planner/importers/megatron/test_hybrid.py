"""Patterns of state spaces, attention and MLPs."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.hybrid import hybrid_layers, layers_of_pattern
from shardwright.specs import InputError
from tests.planner.importers.megatron.scripts import arguments_of

ARGUMENTS = arguments_of("--hidden-size 1024 --num-attention-heads 16")


def test_each_letter_is_a_layer_of_one_branch() -> None:
    layers = hybrid_layers(ARGUMENTS, "MM*-|M-/MM")
    assert [(one.repeat, one.branches[0].body.kind) for one in layers] == [
        (2, "state_space"), (1, "attention"), (1, "mlp"), (1, "state_space"), (1, "mlp"),
    ]  # fmt: skip
    assert layers_of_pattern("MM*-|M-/MM") == "MM*-M-"


def test_letters_without_counterpart_are_refused() -> None:
    with pytest.raises(InputError, match="G"):
        hybrid_layers(ARGUMENTS, "MGM")
