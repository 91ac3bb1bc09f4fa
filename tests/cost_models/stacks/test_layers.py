"""Layers under recomputation: what is kept, and what runs again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardwright.cost_models.stacks.layers import (
    OPERATORS,
    Policy,
    Work,
    end_work,
    forward_work,
    layer_parts,
    layer_work,
    policy_of,
    prediction_work,
    shared_work,
    work,
)
from shardwright.cost_models.stacks.operations import Operation, Part, Product
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.specs import (
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    NormBlock,
    PredictionBlock,
    Recompute,
    ResidualBranch,
)
from tests.cost_models.stacks.cases import (
    attention_flops,
    messages,
    norm,
    product_flops,
    sharding,
    small,
)
from tests.cost_models.stacks.test_attention import block as an_attention
from tests.cost_models.stacks.test_attention import latent
from tests.cost_models.stacks.test_feedforward import an_mlp, experts

CUT = sharding(tp=2, sequence_parallel=True)
DENSE = LayerBlock(branches=(
    ResidualBranch(body=an_attention(), pre_norm=norm()),
    ResidualBranch(body=an_mlp(), pre_norm=norm()),
))  # fmt: skip
SPARSE = LayerBlock(branches=(
    ResidualBranch(body=latent(), pre_norm=norm()),
    ResidualBranch(body=experts(shared_size=96), pre_norm=norm()),
))  # fmt: skip
ALONE = {"core_attn", "attn_proj", "norm", "mlp_act", "moe_act", "mla_up_proj"}
"""Modules that are one kind of part; ``mlp``, ``moe`` and ``shared_experts`` are several."""
COVERED = {
    "mlp": {"mlp", "mlp_act"},
    "moe": {"router", "moe", "moe_act", "shared_experts"},
    "shared_experts": {"shared_experts"},
}


def named(parts: Sequence[Part], names: set[str]) -> list[Part]:
    return [part for part in parts if part.name in names]


def run(parts: Sequence[Part]) -> Counter[Operation]:
    return Counter(op for part in parts for op in part.forward)


def kept(layer: LayerBlock, policy: Policy) -> float:
    return layer_work(layer, CUT, policy).saved_bytes


class TestSelective:
    @pytest.mark.parametrize("layer", [DENSE, SPARSE])
    @pytest.mark.parametrize("module", sorted(ALONE))
    def test_a_part_runs_again_once_and_keeps_nothing_inside(
        self, layer: LayerBlock, module: str
    ) -> None:
        parts = layer_parts(layer, CUT)
        dropped = named(parts, {module})
        found = layer_work(layer, CUT, frozenset({module}))
        assert Counter(found.again) == run(dropped)
        freed = sum(p.internal_bytes + p.output_bytes * p.drops_output for p in dropped)
        assert found.saved_bytes == pytest.approx(kept(layer, frozenset()) - freed)

    @pytest.mark.parametrize(
        ("layer", "module"), [(DENSE, "mlp"), (SPARSE, "moe"), (SPARSE, "shared_experts")]
    )
    def test_a_module_of_several_parts_keeps_its_last_output_alone(
        self, layer: LayerBlock, module: str
    ) -> None:
        dropped = named(layer_parts(layer, CUT), COVERED[module])
        found = layer_work(layer, CUT, frozenset({module}))
        assert Counter(found.again) == run(dropped)
        freed = sum(part.saved_bytes for part in dropped) - dropped[-1].output_bytes
        assert found.saved_bytes == pytest.approx(kept(layer, frozenset()) - freed)

    def test_modules_add_up(self) -> None:
        both = frozenset({"norm", "mlp_act"})
        freed = [kept(DENSE, frozenset()) - kept(DENSE, frozenset({one})) for one in both]
        assert kept(DENSE, both) == pytest.approx(kept(DENSE, frozenset()) - sum(freed))

    def test_a_part_within_a_module_runs_again_once(self) -> None:
        whole = layer_work(DENSE, CUT, frozenset({"mlp"}))
        also = layer_work(DENSE, CUT, frozenset({"mlp", "mlp_act"}))
        assert Counter(also.again) == Counter(whole.again)
        assert also.saved_bytes == whole.saved_bytes

    def test_the_attention_core_frees_scores_that_are_stored(self) -> None:
        """5 a s per token and layer without dropout's 1: 2 (scores) x heads x keys bytes."""
        unfused = sharding(flash=False)
        none, core = (
            layer_work(DENSE, unfused, policy).saved_bytes
            for policy in (frozenset[str](), frozenset({"core_attn"}))
        )
        assert none - core == 2 * 8 * 32 * 32 * 2

    def test_collectives_inside_run_again(self) -> None:
        found = layer_work(DENSE, CUT, frozenset({"mlp"}))
        assert [op.kind for op in messages(found.again)] == ["all_gather", "reduce_scatter"]

    def test_what_no_layer_has_changes_nothing(self) -> None:
        plain, other = (
            layer_work(DENSE, CUT, policy) for policy in (frozenset[str](), frozenset({"moe"}))
        )
        assert not other.again
        assert other.saved_bytes == plain.saved_bytes


@pytest.mark.parametrize("layer", [DENSE, SPARSE])
class TestWhole:
    def test_everything_runs_again_once(self, layer: LayerBlock) -> None:
        found = layer_work(layer, CUT, None)
        assert found.again == found.forward

    def test_the_output_alone_is_kept(self, layer: LayerBlock) -> None:
        stream = 2 * 32 / 2 * 64 * 2
        assert layer_work(layer, CUT, None).saved_bytes == stream

    def test_what_it_would_keep_is_alive_in_its_backward(self, layer: LayerBlock) -> None:
        found = layer_work(layer, CUT, None)
        assert found.whole_bytes == layer_work(layer, CUT, frozenset()).saved_bytes

    def test_an_early_stop_spares_the_last_product(self, layer: LayerBlock) -> None:
        whole, early = (layer_work(layer, s, None) for s in (CUT, replace(CUT, early_stop=True)))
        products = [op for op in whole.forward if isinstance(op, Product)]
        assert list(early.again) == list(whole.forward[: len(early.again)])
        assert product_flops(whole.again) - product_flops(early.again) == product_flops(
            products[-1:]
        )
        assert early.saved_bytes == whole.saved_bytes
        assert layer_work(layer, replace(CUT, early_stop=True), frozenset()).again == ()

    def test_gradients_are_the_same(self, layer: LayerBlock) -> None:
        none, full = layer_work(layer, CUT, frozenset()), layer_work(layer, CUT, None)
        assert none.backward_input == full.backward_input
        assert none.backward_weight == full.backward_weight


def test_half_of_the_products_and_no_attention() -> None:
    cut = sharding()
    found = layer_work(DENSE, cut, frozenset({OPERATORS}))
    assert product_flops(found.again) == product_flops(found.forward) / 2
    assert not attention_flops(found.again)


def test_korthikanti_counts_34_bytes_per_token_and_hidden_unit() -> None:
    """s b h (34 + 5 a s / h) with dropout and stored scores (arXiv 2205.05198, eq. 1); fused
    norms keep statistics besides, and not both of the dropout's inputs."""
    hidden, heads = 256, 8
    layer = LayerBlock(branches=(
        ResidualBranch(
            body=an_attention(hidden_size=hidden, num_heads=heads, num_kv_heads=heads, head_dim=32),
            pre_norm=norm(hidden),
        ),
        ResidualBranch(
            body=an_mlp(hidden_size=hidden, ffn_size=4 * hidden, activation="gelu", gated=False),
            pre_norm=norm(hidden),
        ),
    ))  # fmt: skip
    cut = sharding(batch=1, seq_len=128, flash=False, dropout=True)
    found = layer_work(layer, cut, frozenset()).saved_bytes
    statistics = 2 * 8 * 128
    assert found - statistics == 128 * hidden * (34 + 5 * heads * 128 / hidden)


def test_policies_by_layer() -> None:
    def found(layer: int, **fields: object) -> Policy:
        return policy_of(Recompute.model_validate(fields), layer)

    assert found(0) == frozenset()
    assert found(0, policy="full") is None
    assert [found(n, policy="full", num_layers=2) for n in (1, 2)] == [None, frozenset()]
    assert found(0, policy="selective") == frozenset({"core_attn"})
    assert found(0, policy="selective", modules=("norm", "mlp")) == frozenset({"norm", "mlp"})


class TestLayers:
    def test_parallel_branches_share_their_norm(self) -> None:
        falcon = LayerBlock(parallel=True, shared_norm=True, branches=(
            ResidualBranch(body=an_attention(), pre_norm=norm()),
            ResidualBranch(body=an_mlp(), pre_norm=None),
        ))  # fmt: skip
        found = layer_work(falcon, sharding(), frozenset())
        assert found.parameters == falcon.num_parameters
        two = layer_work(DENSE, sharding(), frozenset())
        assert two.saved_bytes - found.saved_bytes == 64 * (64 * 2 + 8)

    @pytest.mark.parametrize("sequence_parallel", [True, False])
    def test_parallel_branches_are_summed_over_ranks_once(self, sequence_parallel: bool) -> None:
        """With one norm they also read one gathered input; with two norms each its own."""
        cut = sharding(tp=2, sequence_parallel=sequence_parallel)
        found = {}
        for shared in (True, False):
            layer = LayerBlock(parallel=True, shared_norm=shared, branches=(
                ResidualBranch(body=an_attention(), pre_norm=norm()),
                ResidualBranch(body=an_mlp(), pre_norm=None if shared else norm()),
            ))  # fmt: skip
            parts = layer_work(layer, cut, frozenset())
            found[shared] = [
                sorted(op.kind for op in messages(operations))
                for operations in (parts.forward, parts.backward_input)
            ]
        gather, scatter = "all_gather", "reduce_scatter"
        if sequence_parallel:  # backward: output's gradient, input's gradient, input once more
            assert found[True] == [[gather, scatter], [gather, gather, scatter]]
            assert found[False] == [
                [gather, gather, scatter], [gather] * 3 + [scatter] * 2,
            ]  # fmt: skip
        else:
            assert found[True] == [["all_reduce"], ["all_reduce"]]
            assert found[False] == [["all_reduce"], ["all_reduce"] * 2]

    def test_norms_may_come_after(self) -> None:
        bert = LayerBlock(branches=(
            ResidualBranch(body=an_mlp(), pre_norm=None, post_norm=norm(), norm_after_add=True),
        ))  # fmt: skip
        parts = layer_parts(bert, sharding())
        assert [part.name for part in parts] == ["mlp", "mlp_act", "mlp", "norm"]

    def test_a_learned_scale_counts(self) -> None:
        scaled = LayerBlock(branches=(
            ResidualBranch(body=an_mlp(), pre_norm=norm(), learned_scale=True),
        ))  # fmt: skip
        assert layer_work(scaled, sharding(), frozenset()).parameters == scaled.num_parameters

    def test_a_layer_may_be_empty(self) -> None:
        found = layer_work(LayerBlock(branches=()), sharding(), frozenset())
        assert (found.forward, found.parameters, found.saved_bytes) == ((), 0, 0)

    def test_equal_questions_have_one_answer(self) -> None:
        again = Sharding(batch=2, seq_len=32, tp=2, sequence_parallel=True)
        assert layer_work(DENSE, CUT, frozenset()) is layer_work(DENSE, again, frozenset())

    def test_the_largest_value_inside(self) -> None:
        found = layer_work(DENSE, sharding(), frozenset())
        assert found.widest_bytes == 64 * (8 + 2 * 4) * 16 * 2  # queries, keys and values


class TestEnds:
    def test_a_tied_table_belongs_to_its_embedding(self) -> None:
        tied = HeadBlock(vocab_size=161, hidden_size=64, tied=True)
        found = end_work(tied, sharding(tp=2))
        assert (found.parameters, found.tied_parameters) == (0, 81 * 64)
        own = end_work(tied.model_copy(update={"tied": False}), sharding(tp=2))
        assert (own.parameters, own.tied_parameters) == (81 * 64, 0)

    def test_norms_embeddings_and_heads_are_units(self) -> None:
        blocks = (norm(), EmbeddingBlock(vocab_size=160, hidden_size=64))
        for block in blocks:
            assert end_work(block, sharding()).parameters == block.num_parameters

    def test_a_prediction_layer_has_its_projection_and_three_norms(self) -> None:
        block = PredictionBlock(layer=SPARSE, hidden_size=64, norm=norm())
        found = prediction_work(block, sharding(), frozenset())
        assert found.parameters + found.expert_parameters == block.num_parameters
        assert prediction_work(block, sharding(), None).again == found.forward

    def test_work_with_another_units_weights(self) -> None:
        found = end_work(HeadBlock(vocab_size=160, hidden_size=64, tied=False), sharding())
        shared = shared_work(found)
        assert (shared.parameters, shared.matrices.dense) == (0, 0)
        assert shared.backward_weight == found.backward_weight

    def test_work_without_a_backward_pass(self) -> None:
        found = forward_work(layer_work(DENSE, CUT, None))
        assert found.forward
        assert (found.backward_input, found.backward_weight, found.again) == ((), (), ())


def test_matrices_are_those_that_have_gradients() -> None:
    """Of optimizers that look at shapes: all parameters but norms lie in matrices."""
    dense = layer_work(DENSE, sharding(), frozenset())
    assert dense.matrices.dense == dense.parameters - 2 * 64
    sparse = layer_work(SPARSE, sharding(ep=2), frozenset())
    assert sparse.matrices.expert == sparse.expert_parameters == 4 * 3 * 64 * 48


def test_a_unit_is_its_parts() -> None:
    layer = next(small().decoder.layers())
    parts = layer_parts(layer, sharding())
    found: Work = work(parts, frozenset())
    assert product_flops(found.forward) == sum(product_flops(part.forward) for part in parts)
    assert all(isinstance(op, Product) for op in found.backward_weight)
    assert isinstance(layer.branches[0].pre_norm, NormBlock)
