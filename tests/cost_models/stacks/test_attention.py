"""Attention parts: parameters of every variant, what masks hide, context parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardwright.cost_models.communication import sent_share
from shardwright.cost_models.stacks.attention import attention, latent_attention
from shardwright.cost_models.stacks.operations import FlashAttention, Part, Product
from shardwright.specs import AttentionBlock, LatentAttentionBlock
from shardwright.specs.bodies import SparseIndexer
from tests.cost_models.stacks.cases import (
    backward,
    forward,
    messages,
    part_parameters,
    product_flops,
    sharding,
)


def block(**changes: Any) -> AttentionBlock:
    plain = {
        "hidden_size": 64, "num_heads": 8, "num_kv_heads": 4, "head_dim": 16, "qkv_bias": False,
        "output_bias": False, "rotary": None,
    }  # fmt: skip
    return AttentionBlock.model_validate(plain | changes)


def latent(**changes: Any) -> LatentAttentionBlock:
    plain = {
        "hidden_size": 64, "num_heads": 8, "q_lora_rank": 24, "kv_lora_rank": 16,
        "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10, "rotary": None,
    }  # fmt: skip
    return LatentAttentionBlock.model_validate(plain | changes)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"qkv_bias": True, "output_bias": True},
    {"qkv_bias": True, "key_bias": False},
    {"qk_norm": "head"},
    {"qk_norm": "head", "qk_norm_bias": True},
    {"qk_norm": "head", "qk_norm_weight": False},
    {"qk_norm": "width"},
    {"sinks": True},
    {"gated": True, "qkv_bias": True},
    {"relative_buckets": 32, "causal": False},
    {"cross": True, "memory_size": 48, "causal": False, "qkv_bias": True},
    {"cross": True, "qk_norm": "head", "causal": False},
    {"alibi": True},
]


@pytest.mark.parametrize("changes", VARIANTS)
class TestParameters:
    def test_one_rank_holds_all(self, changes: dict[str, Any]) -> None:
        one = block(**changes)
        assert part_parameters(attention(one, sharding(), 20.0)) == one.num_parameters

    @pytest.mark.parametrize("tp", [2, 4])
    def test_ranks_hold_each_once_but_for_norms_and_the_last_bias(
        self, changes: dict[str, Any], tp: int
    ) -> None:
        one = block(**changes)
        found = tp * part_parameters(attention(one, sharding(tp=tp), 20.0))
        norms = block(qk_norm=one.qk_norm, qk_norm_weight=one.qk_norm_weight,
                      qk_norm_bias=one.qk_norm_bias).num_parameters  # fmt: skip
        whole = norms - block().num_parameters + 64 * one.output_bias
        assert found == one.num_parameters + (tp - 1) * whole


@pytest.mark.parametrize(
    "changes",
    [{}, {"q_lora_rank": None}, {"bias": True}, {"q_lora_rank": None, "bias": True},
     {"indexer": SparseIndexer(num_heads=4, head_dim=8, top_k=16)}],
)  # fmt: skip
def test_latent_parameters_with_down_projections_whole_on_every_rank(
    changes: dict[str, Any],
) -> None:
    one = latent(**changes)
    assert part_parameters(latent_attention(one, sharding())) == one.num_parameters
    halves = 2 * part_parameters(latent_attention(one, sharding(tp=2)))
    heads = 8 * (16 * (1 if one.q_lora_rank is None else 0) * 64 + 22 * 16 + 10 * 64)
    heads += 8 * 16 * (one.q_lora_rank or 0)
    assert halves == heads + 2 * (one.num_parameters - heads)


def visible_share(keys: int, **changes: Any) -> float:
    (core,) = [
        op
        for op in forward(attention(block(**changes), sharding(seq_len=keys)))
        if isinstance(op, FlashAttention)
    ]
    return core.visible


def shown(mask: np.ndarray[Any, Any]) -> float:
    return float(mask.mean())


@pytest.mark.parametrize("window", [64, 200, 256, 512, 1000])
class TestWhatMasksHide:
    """Against masks counted pair by pair, but for the diagonal's 1 / (2 n)."""

    N = 512
    AT = np.arange(N)

    def test_a_causal_window(self, window: int) -> None:
        back = self.AT[:, None] - self.AT[None, :]
        mask = (back >= 0) & (back < window)
        found = visible_share(self.N, sliding_window=window)
        assert found == pytest.approx(shown(mask), abs=1 / self.N)

    def test_a_window_to_both_sides(self, window: int) -> None:
        mask = np.abs(self.AT[:, None] - self.AT[None, :]) <= window / 2
        found = visible_share(self.N, sliding_window=window, causal=False)
        if window >= self.N:
            assert found == 1.0
        else:
            assert found == pytest.approx(shown(mask), abs=2 / self.N)

    def test_chunks(self, window: int) -> None:
        same = self.AT[:, None] // window == self.AT[None, :] // window
        mask = same & (self.AT[:, None] >= self.AT[None, :])
        found = visible_share(self.N, sliding_window=window, chunked=True)
        if self.N % window == 0 or window > self.N:
            assert found == pytest.approx(shown(mask), abs=1 / self.N)
        else:  # the last chunk is not full
            assert shown(mask) <= found + 1 / self.N


def test_cross_attention_sees_the_whole_memory() -> None:
    parts = attention(block(cross=True, causal=False), sharding(), 20.0)
    (core,) = [op for op in forward(parts) if isinstance(op, FlashAttention)]
    assert (core.seq_q, core.seq_kv, core.visible) == (32.0, 20.0, 1.0)
    keys = [op for op in forward(parts) if isinstance(op, Product) and op.m == 2 * 20]
    assert [op.flops for op in keys] == [2 * 40 * 64 * 128]


def test_cross_attention_gathers_its_memory_and_sums_the_gradient() -> None:
    cross = block(cross=True, memory_size=48, causal=False)
    memory = 2 * 20 * 48 * 2.0
    split, whole = (
        attention(cross, sharding(tp=2, sequence_parallel=parallel), 20.0)[1]
        for parallel in (True, False)
    )
    assert [(op.kind, op.num_bytes) for op in messages(split.forward)] == [
        ("all_gather", memory / 2)
    ]
    assert [(op.kind, op.num_bytes) for op in messages(whole.backward_input)] == [
        ("all_reduce", memory)
    ]


def test_sinks_that_a_kernel_does_not_take_store_no_more_between_passes() -> None:
    fused = attention(block(sinks=True), sharding())
    plain = attention(block(sinks=True), sharding(flash_sinks=False))
    assert not any(isinstance(op, FlashAttention) for op in forward(plain))
    assert core_of(plain).internal_bytes == core_of(fused).internal_bytes
    assert core_of(plain).scratch_bytes == 2 * 8 * 32 * 32 * 2


def core_of(parts: list[Part]) -> Part:
    return next(part for part in parts if part.name == "core_attn")


class TestContextParallel:
    """Bytes sent per rank, by the papers' formulas; b = 2, s = 32, 8 heads, 4 groups of 16."""

    CP = 4
    PAIR = 4 * 2 * (32 / 4) * 4 * 16
    """4 b (s / c) g d: keys and values in two bytes each."""

    def sent(self, kind: str, *, is_backward: bool) -> dict[str, float]:
        parts = attention(block(), sharding(cp=self.CP, cp_kind=kind))
        found: dict[str, float] = {}
        for op in messages(backward(parts) if is_backward else forward(parts), "cp"):
            found.setdefault(op.kind, 0.0)
            found[op.kind] += sent_share(op.kind, self.CP) * op.num_bytes
        return found

    def test_a_ring_passes_keys_and_values_on(self) -> None:
        """(c - 1) 4 b (s / c) g d forward, twice that backward (arXiv 2310.01889)."""
        assert self.sent("ring", is_backward=False) == {"send_recv": 3 * self.PAIR}
        assert self.sent("ring", is_backward=True) == {"send_recv": 2 * 3 * self.PAIR}

    def test_a_ring_travels_beside_the_attention_blocks(self) -> None:
        parts = attention(block(), sharding(cp=4))
        assert all(op.overlaps for op in messages(forward(parts) + backward(parts), "cp"))

    def test_gathering_sends_as_much_at_once(self) -> None:
        """The same volume exposed; backward gathers anew and scatters the gradients."""
        assert self.sent("all_gather", is_backward=False) == {"all_gather": 3 * self.PAIR}
        assert self.sent("all_gather", is_backward=True) == {
            "all_gather": 3 * self.PAIR, "reduce_scatter": 3 * self.PAIR,
        }  # fmt: skip

    @pytest.mark.parametrize("is_backward", [False, True])
    def test_all_to_all_moves_queries_and_output_too(self, is_backward: bool) -> None:
        """(c - 1) / c 2 b (s / c) (2 n d + 2 g d), each way (DeepSpeed-Ulysses)."""
        volume = 3 / 4 * 2 * 2 * (32 / 4) * (2 * 8 * 16 + 2 * 4 * 16)
        assert self.sent("all_to_all", is_backward=is_backward) == {"all_to_all": volume}

    @pytest.mark.parametrize("kind", ["ring", "all_gather", "all_to_all"])
    def test_the_work_is_shared_evenly(self, kind: str) -> None:
        whole = forward(attention(block(), sharding()))
        shared = forward(attention(block(), sharding(cp=4, cp_kind=kind)))
        assert 4 * product_flops(shared) == product_flops(whole)
        (one,) = [op for op in whole if isinstance(op, FlashAttention)]
        parts = [op for op in shared if isinstance(op, FlashAttention)]
        assert len(parts) == (4 if kind == "ring" else 1)
        assert 4 * sum(part.flops for part in parts) == one.flops

    def test_cross_attention_exchanges_nothing(self) -> None:
        parts = attention(block(cross=True, causal=False), sharding(cp=4), 20.0)
        assert not messages(forward(parts), "cp")


def test_latent_attention_gathers_latents_not_hidden_states() -> None:
    parts = latent_attention(latent(), sharding(tp=2, sequence_parallel=True))
    gathered = [op.num_bytes for op in messages(forward(parts)) if op.kind == "all_gather"]
    rows = 2 * 32 / 2
    assert gathered == [rows * 24 * 2, rows * 20 * 2]


def test_a_sparse_attention_computes_the_chosen_keys() -> None:
    chosen = latent(indexer=SparseIndexer(num_heads=4, head_dim=8, top_k=8))
    (core,) = [
        op for op in forward(latent_attention(chosen, sharding())) if isinstance(op, FlashAttention)
    ]
    seen = np.minimum(np.arange(32) + 1, 8).sum() / 32**2
    assert core.visible == pytest.approx(seen, abs=1 / 32)


def test_frozen_blocks_have_no_weight_gradients() -> None:
    chosen = latent(indexer=SparseIndexer(num_heads=4, head_dim=8, top_k=8))
    for parts in (attention(block(), sharding(frozen=True)),
                  latent_attention(chosen, sharding(frozen=True))):  # fmt: skip
        assert not any(part.backward_weight for part in parts)
