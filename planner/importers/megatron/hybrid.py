"""Layers of ``--hybrid-layer-pattern``: one letter a layer."""

from __future__ import annotations

import itertools

from shardwright.planner.importers.megatron.arguments import Arguments
from shardwright.planner.importers.megatron.bodies import (
    attention_of,
    hidden_size,
    mlp_of,
    moe_of,
    norm_of,
)
from shardwright.specs import InputError
from shardwright.specs.blocks import LayerBlock, ResidualBranch
from shardwright.specs.bodies import BranchBody, StateSpaceBlock
from shardwright.specs.ranges import MOST_LAYERS


def layers_of_pattern(pattern: str) -> str:
    """Its letters without stage breaks and without multi-token prediction."""
    return pattern.partition("/")[0].replace("|", "").strip()


def hybrid_layers(arguments: Arguments, pattern: str) -> tuple[LayerBlock, ...]:
    """Mamba (M), attention (*), MLP (-) and experts (E), each a layer of one branch.

    Raises:
        InputError: a letter that has no counterpart here, or more layers than any model has.
    """
    letters = layers_of_pattern(pattern)
    unknown = sorted(set(letters) - set("M*-E"))
    if unknown or not 0 < len(letters) <= MOST_LAYERS:
        raise InputError(
            f"--hybrid-layer-pattern has {len(letters)} layers, among them"
            f" {' '.join(unknown) or 'none'} that cannot be read",
            fix="layers of M, *, - and E can be read",
        )
    bodies = {letter: _body(arguments, letter) for letter in dict.fromkeys(letters)}
    norm = norm_of(arguments)
    return tuple(
        LayerBlock(
            branches=(ResidualBranch(body=bodies[letter], pre_norm=norm),), repeat=len(list(run))
        )
        for letter, run in itertools.groupby(letters)
    )


def _body(arguments: Arguments, letter: str) -> BranchBody:
    if letter == "*":
        return attention_of(arguments, causal=True)
    if letter == "-":
        return mlp_of(arguments)
    return moe_of(arguments) if letter == "E" else _state_space(arguments)


def _state_space(arguments: Arguments) -> StateSpaceBlock:
    """Mamba-2 with Megatron-LM's defaults: state 128, heads of 64, 8 groups, width 2 x hidden."""
    hidden = hidden_size(arguments)
    head = arguments.count("mamba-head-dim") or 64
    heads = arguments.count("mamba-num-heads") or 2 * hidden // head
    return StateSpaceBlock(
        version="mamba2", hidden_size=hidden, inner_size=heads * head,
        state_size=arguments.count("mamba-state-dim") or 128, conv_kernel=4, num_heads=heads,
        num_groups=arguments.count("mamba-num-groups") or 8, chunk_size=128,
    )  # fmt: skip
