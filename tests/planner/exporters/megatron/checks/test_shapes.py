"""Rules 7 to 18."""

from __future__ import annotations

import pytest

from tests.planner.exporters.megatron.commands import EXPERTS, broken


def test_07_heads_divide_over_tp() -> None:
    assert broken(
        "--num-attention-heads 15", "--kv-channels 64", without=("--group-query-attention",)
    ) == {7}


def test_08_groups_divide_over_tp_or_tp_over_them_in_newer_versions() -> None:
    wide = ("--tensor-model-parallel-size 8", "--pipeline-model-parallel-size 1")
    assert broken(*wide) == set()
    assert broken(*wide, version="core_v0.15.0") == {8}
    assert broken(*wide, version="core_r0.9.0") == {8}
    assert broken(*wide, "--num-query-groups 3") == {8}


def test_09_widths_divide() -> None:
    assert broken("--ffn-hidden-size 4095") == {9}
    assert broken("--hidden-size 1023", "--ffn-hidden-size 4096") == {9}
    assert broken("--hidden-size 1023", "--ffn-hidden-size 4096", "--kv-channels 64") == set()
    wide = ("--moe-ffn-hidden-size 511", "--expert-tensor-parallel-size 2")
    assert broken(*wide, "--expert-model-parallel-size 2", base=EXPERTS) == {9}
    unused = ("--ffn-hidden-size 4095", "--moe-ffn-hidden-size 512")
    assert broken(*unused, base=EXPERTS) == set(), "no layer has that MLP"
    assert broken(*unused, "--moe-layer-freq [0]*3+[1]*9", base=EXPERTS) == {9}
    assert broken("--moe-ffn-hidden-size 512", base=EXPERTS, without=("--moe-grouped-gemm",),
                  version="core_r0.9.0") == {9}  # fmt: skip


def test_10_sequences_divide_by_twice_cp_and_by_tp() -> None:
    assert broken("--context-parallel-size 4", "--seq-length 4092") == {10}
    assert broken("--tensor-model-parallel-size 4", "--seq-length 4094") == {10}


def test_11_kinds_of_context_parallelism() -> None:
    two = "--context-parallel-size 2"
    assert broken(two, "--cp-comm-type a2a") == set()
    four = "--context-parallel-size 4"
    assert broken(four, "--cp-comm-type a2a") == {11}, "two key-value heads a rank"
    assert broken(four, "--cp-comm-type p2p p2p") == {11}
    assert broken(four, "--cp-comm-type a2a+p2p") == {11}
    sizes = "--hierarchical-context-parallel-sizes 2 2"
    assert broken(four, "--cp-comm-type a2a+p2p", sizes) == set()
    assert broken(two, "--transformer-impl local") == {11}


def test_12_linear_attention_and_state_spaces() -> None:
    assert broken("--linear-num-key-heads 4", "--linear-num-value-heads 8") == set()
    assert broken("--linear-num-key-heads 3") == {12}
    assert broken("--linear-num-key-heads 4", "--linear-num-value-heads 6") == {12}
    assert broken("--mamba-num-heads 7") == {12}
    assert broken("--mamba-num-groups 3") == {12}


def test_13_latent_and_sparse_attention() -> None:
    latent = ("--multi-latent-attention",)
    plain = ("--group-query-attention",)
    assert broken(*latent, without=plain) == set()
    assert broken(*latent) == {13}
    assert broken(*latent, "--rotary-interleaved", without=plain) == {13}
    assert broken(*latent, "--rope-type rope", without=plain) == {13}
    assert broken(*latent, "--rope-type rope", "--no-rope-fusion", without=plain) == set()
    assert broken(*latent, "--qk-clip", "--kv-lora-rank 511", without=plain) == {13}
    sparse = "--experimental-attention-variant dsa"
    assert broken(sparse) == {13}
    assert broken(sparse, "--no-rope-fusion") == set()
    assert broken(sparse, "--no-rope-fusion", "--context-parallel-size 2") == {13}


def test_14_positions_reach_the_sequence() -> None:
    assert broken("--max-position-embeddings 2048") == {14}
    assert broken("--no-rope-freq 5") == {14}


def test_15_sequence_parallelism_needs_tp() -> None:
    assert broken("--tensor-model-parallel-size 1") == {15}


def test_16_overlap_needs_sequence_parallelism() -> None:
    assert broken("--tp-comm-overlap", without=("--sequence-parallel",)) == {16}
    assert broken("--tp-comm-overlap") == set()


@pytest.mark.parametrize("version", ["main", "core_r0.9.0"])
def test_17_experts_with_tp_need_sequence_parallelism(version: str) -> None:
    assert broken(base=EXPERTS, without=("--sequence-parallel",), version=version) == {17}


def test_18_sequence_parallelism_keeps_activations_whole() -> None:
    full = ("--recompute-granularity full", "--recompute-method uniform",
            "--recompute-num-layers 1", "--distribute-saved-activations")  # fmt: skip
    assert broken(*full) == {18}
    assert broken(*full, without=("--sequence-parallel",)) == set()
