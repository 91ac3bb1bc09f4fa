"""State spaces of three kinds: parameters, products chunk by chunk, and tensor parallelism."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.stacks.operations import Product
from shardwright.cost_models.stacks.state_space import state_space
from shardwright.specs import StateSpaceBlock
from tests.cost_models.stacks.cases import (
    backward,
    forward,
    messages,
    part_parameters,
    product_flops,
    sharding,
)

SIZES: dict[str, Any] = {"hidden_size": 64, "inner_size": 128, "state_size": 16, "conv_kernel": 4}
MAMBA = SIZES | {"version": "mamba", "time_step_rank": 8}
MAMBA2 = SIZES | {"version": "mamba2", "num_heads": 8, "num_groups": 2, "chunk_size": 8}
DELTA = SIZES | {"version": "gated_delta", "num_heads": 8, "num_groups": 4, "conv_bias": False}


def block(fields: dict[str, Any], **changes: Any) -> StateSpaceBlock:
    return StateSpaceBlock.model_validate(fields | changes)


@pytest.mark.parametrize(
    "fields",
    [MAMBA, MAMBA | {"selection_norms": True}, MAMBA | {"bias": True, "conv_bias": False},
     MAMBA2, MAMBA2 | {"gate_norm": False, "bias": True}, DELTA],
)  # fmt: skip
def test_one_rank_holds_all(fields: dict[str, Any]) -> None:
    one = block(fields)
    assert part_parameters(state_space(one, sharding())) == one.num_parameters


@pytest.mark.parametrize("fields", [MAMBA, MAMBA2, DELTA])
def test_channels_and_heads_are_split(fields: dict[str, Any]) -> None:
    """Only a gated delta net's norm, as wide as one head, is whole on every rank."""
    one = block(fields)
    found = 2 * part_parameters(state_space(one, sharding(tp=2)))
    assert found == one.num_parameters + (16 if one.version == "gated_delta" else 0)


def scan_flops(fields: dict[str, Any], **cut: Any) -> float:
    one = block(fields)
    projections = 2 * 64 * 64 * (one.input_size + one.inner_size) / cut.get("tp", 1)
    return product_flops(forward(state_space(one, sharding(**cut)))) - float(projections)


def test_mamba_selects_by_two_thin_products_and_scans_without() -> None:
    assert scan_flops(MAMBA) == 64 * 2 * (128 * (8 + 2 * 16) + 8 * 128)


def test_mamba2_within_and_between_chunks() -> None:
    """Per chunk of c tokens: c^2 n for each group, c^2 p + 2 c n p for each head of width p."""
    chunks = 64 / 8
    assert scan_flops(MAMBA2) == chunks * 2 * (2 * 8 * 8 * 16 + 8 * (8 * 8 * 16 + 2 * 8 * 16 * 16))


def test_a_chunk_is_never_longer_than_the_sequence() -> None:
    assert scan_flops(MAMBA2 | {"chunk_size": 256}) == scan_flops(MAMBA2 | {"chunk_size": 32})


def test_gated_delta_nets_in_chunks_of_64() -> None:
    """Per chunk and head: three products of c^2 n, two of c^2 p, three of c n p."""
    each = 3 * 64 * 64 * 16 + 2 * 64 * 64 * 16 + 3 * 64 * 16 * 16
    tokens = 2 * 128
    one = block(DELTA)
    found = product_flops(forward(state_space(one, sharding(seq_len=128))))
    projections = 2 * tokens * 64 * (one.input_size + one.inner_size)
    assert found - projections == tokens / 64 * 8 * 2 * each


@pytest.mark.parametrize("fields", [MAMBA, MAMBA2, DELTA])
class TestPasses:
    def test_work_grows_with_the_tokens_alone(self, fields: dict[str, Any]) -> None:
        short, long = (
            product_flops(forward(state_space(block(fields), sharding(seq_len=length))))
            for length in (128, 512)
        )
        assert long == 4 * short

    def test_backward_has_two_products_for_each(self, fields: dict[str, Any]) -> None:
        parts = state_space(block(fields), sharding())
        assert product_flops(backward(parts)) == 2 * product_flops(forward(parts))

    def test_frozen_weights_have_no_gradients(self, fields: dict[str, Any]) -> None:
        parts = state_space(block(fields), sharding(frozen=True))
        assert not any(part.backward_weight for part in parts)

    def test_ranks_share_the_work(self, fields: dict[str, Any]) -> None:
        one, two = (
            product_flops(forward(state_space(block(fields), sharding(tp=tp)))) for tp in (1, 2)
        )
        assert 2 * two == one


def test_mamba_sums_its_selection_over_tensor_parallel_ranks() -> None:
    parts = state_space(block(MAMBA), sharding(tp=2, sequence_parallel=True))
    for operations in (forward(parts), backward(parts)):
        sums = [op.num_bytes for op in messages(operations) if op.kind == "all_reduce"]
        assert sums == [64 * (8 + 2 * 16) * 2]
    assert not messages(forward(state_space(block(MAMBA), sharding())))


def test_scans_stay_in_the_activations_dtype() -> None:
    for fields in (MAMBA2, DELTA):
        (core,) = [
            part
            for part in state_space(block(fields), sharding(matmul_bytes=1))
            if part.name == "core_attn"
        ]
        assert {op.width for op in core.forward if isinstance(op, Product)} == {"compute"}
