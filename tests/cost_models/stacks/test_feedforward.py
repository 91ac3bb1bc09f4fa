"""MLPs and mixtures of experts: parameters, the rows that experts see, what dispatch moves."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.communication import sent_share
from shardwright.cost_models.stacks.feedforward import linear, mlp, moe
from shardwright.cost_models.stacks.operations import Part, Product
from shardwright.specs import LinearBlock, MlpBlock, MoeBlock
from tests.cost_models.stacks.cases import (
    backward,
    forward,
    messages,
    part_parameters,
    product_flops,
    sharding,
)

TOKENS = 2 * 32


def an_mlp(**changes: Any) -> MlpBlock:
    plain = {
        "hidden_size": 64, "ffn_size": 96, "activation": "silu", "gated": True, "bias": False,
    }  # fmt: skip
    return MlpBlock.model_validate(plain | changes)


def experts(**changes: Any) -> MoeBlock:
    plain = {
        "hidden_size": 64, "expert_size": 48, "num_experts": 8, "top_k": 2, "activation": "silu",
        "gated": True,
    }  # fmt: skip
    return MoeBlock.model_validate(plain | changes)


@pytest.mark.parametrize("changes", [{}, {"gated": False, "bias": True}, {"activation": "xielu"}])
def test_mlps_hold_their_columns(changes: dict[str, Any]) -> None:
    block = an_mlp(**changes)
    assert part_parameters(mlp(block, sharding())) == block.num_parameters
    whole = 64 * block.bias + 2 * (block.activation == "xielu")
    found = 4 * part_parameters(mlp(block, sharding(tp=4)))
    assert found == block.num_parameters + 3 * whole


def test_the_fullest_rank_holds_the_columns_that_are_left_over() -> None:
    held = part_parameters(mlp(an_mlp(ffn_size=97), sharding(tp=4)))
    assert held == 25 * 3 * 64


def test_a_linear_layer() -> None:
    block = LinearBlock(hidden_size=64, bias=True)
    assert part_parameters(linear(block, sharding())) == block.num_parameters
    assert product_flops(forward(linear(block, sharding(tp=2)))) == TOKENS * 2 * 64 * 64 / 2


MOES: list[dict[str, Any]] = [
    {},
    {"bias": True, "gated": False},
    {"shared_size": 96, "shared_gate": True},
    {"correction_bias": True, "router_bias": True},
    {"latent_size": 16},
]


@pytest.mark.parametrize("changes", MOES)
class TestExperts:
    def test_one_rank_holds_all(self, changes: dict[str, Any]) -> None:
        block = experts(**changes)
        parts = moe(block, sharding())
        assert part_parameters(parts) == block.num_parameters
        assert sum(part.expert_parameters for part in parts) == block.num_expert_parameters

    @pytest.mark.parametrize("ep", [2, 8])
    def test_expert_parallelism_spreads_experts_and_no_more(
        self, changes: dict[str, Any], ep: int
    ) -> None:
        block = experts(**changes)
        parts = moe(block, sharding(ep=ep))
        assert ep * sum(part.expert_parameters for part in parts) == block.num_expert_parameters
        assert sum(part.parameters for part in parts) == block.num_dense_parameters

    @pytest.mark.parametrize(("tp", "etp", "ep"), [(1, 1, 1), (1, 1, 4), (2, 1, 2), (2, 2, 4)])
    @pytest.mark.parametrize("sequence_parallel", [True, False])
    def test_every_copy_of_a_token_meets_one_expert(
        self, changes: dict[str, Any], tp: int, etp: int, ep: int, sequence_parallel: bool
    ) -> None:
        """Over the ranks of a group, the experts' products are those of one rank alone."""
        block = experts(**changes)
        cut = sharding(tp=tp, etp=etp, ep=ep, sequence_parallel=sequence_parallel)
        ours = sum(
            product_flops(part.forward) for part in moe(block, cut) if part.expert_parameters
        )
        width = block.latent_size or 64
        weights = (3 if block.gated else 2) * width * 48
        assert tp * ours == 2 * TOKENS * block.top_k * weights


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_dispatch_and_combine_move_each_copy_once(sequence_parallel: bool) -> None:
    """T k h x (e - 1) / e bytes sent, and the same again to bring it back; backward as much."""
    cut = sharding(tp=2, ep=4, sequence_parallel=sequence_parallel)
    volume = TOKENS / 2 * 2 * 64 * 2 * 3 / 4
    for operations in (forward(moe(experts(), cut)), backward(moe(experts(), cut))):
        sent = [op.num_bytes * sent_share("all_to_all", 4) for op in messages(operations, "ep")]
        assert sent == [volume, volume]


def test_dispatch_moves_latents() -> None:
    (first, _) = messages(forward(moe(experts(latent_size=16), sharding(ep=4))), "ep")
    assert first.num_bytes == TOKENS * 2 * 16 * 2


def test_groups_bound_the_domains_that_a_token_goes_to() -> None:
    grouped = experts(num_groups=4, top_groups=2)
    for block, most in ((experts(), 0), (grouped, 2)):
        found = messages(forward(moe(block, sharding(ep=4))), "ep")
        assert {(op.copies, op.most_domains) for op in found} == {(2, most)}


def test_tensor_parallel_experts_gather_and_scatter_their_tokens() -> None:
    cut = sharding(tp=2, etp=2, sequence_parallel=True)
    copies = TOKENS / 2 * 2 * 64 * 2
    for operations in (forward(moe(experts(), cut)), backward(moe(experts(), cut))):
        found = {op.kind: op.num_bytes for op in messages(operations, "etp")}
        assert found == {"all_gather": copies, "reduce_scatter": 2 * copies}


def test_a_stream_that_is_whole_on_every_rank_is_gathered_again() -> None:
    split, whole = (sharding(tp=2, sequence_parallel=parallel) for parallel in (True, False))
    assert not messages(forward(moe(experts(), split)), "tp")
    for operations in (forward(moe(experts(), whole)), backward(moe(experts(), whole))):
        (one,) = messages(operations, "tp")
        assert (one.kind, one.num_bytes) == ("all_gather", TOKENS / 2 * 64 * 2)


def test_capacity_pads_what_experts_compute() -> None:
    plain, padded = (
        expert_flops(moe(experts(capacity_factor=factor), sharding(ep=4)))
        for factor in (None, 1.25)
    )
    assert padded == 1.25 * plain


def expert_flops(parts: list[Part]) -> float:
    return sum(product_flops(part.forward) for part in parts if part.expert_parameters)


def test_grouped_products_are_one_for_each_expert_of_the_rank() -> None:
    parts = moe(experts(), sharding(ep=4))
    grouped = [op for op in forward(parts) if isinstance(op, Product) and op.batch > 1]
    assert {op.batch for op in grouped} == {2}
    assert {op.m for op in grouped} == {TOKENS * 2 / 2}


def test_routers_score_in_the_wide_dtype() -> None:
    (router,) = [part for part in moe(experts(), sharding(matmul_bytes=1)) if part.name == "router"]
    (score,) = [op for op in router.forward if isinstance(op, Product)]
    assert (score.m, score.n, score.k, score.width) == (TOKENS, 8, 64, "compute")


def test_shared_experts_see_every_token() -> None:
    parts = moe(experts(shared_size=96), sharding(ep=4))
    shared = [part for part in parts if part.name == "shared_experts"]
    assert sum(product_flops(part.forward) for part in shared) == 2 * TOKENS * 3 * 64 * 96
