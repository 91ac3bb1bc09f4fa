"""Rules 29 to 35."""

from __future__ import annotations

from tests.planner.exporters.megatron.commands import EXPERTS, broken

OVERLAP = ("--overlap-moe-expert-parallel-comm", "--num-virtual-stages-per-pipeline-rank 2")


def test_29_experts_divide_over_ep_and_groups() -> None:
    assert broken("--num-experts 6", base=EXPERTS) == {29}
    assert broken("--expert-model-parallel-size 2") == {29}
    assert broken("--moe-router-num-groups 3", base=EXPERTS) == {29}
    assert broken("--moe-router-num-groups 2", "--moe-router-group-topk 3", base=EXPERTS) == {29}


def test_30_biases_and_scores() -> None:
    biased = ("--disable-bias-linear",)
    assert broken(base=EXPERTS, without=biased) == set()
    two = ("--expert-tensor-parallel-size 2", "--expert-model-parallel-size 2")
    assert broken(*two, base=EXPERTS, without=biased) == {30}
    assert broken("--moe-router-topk 1", base=EXPERTS) == {30}
    assert broken("--moe-router-topk 1", "--moe-router-pre-softmax", base=EXPERTS) == set()
    balanced = "--moe-router-enable-expert-bias"
    assert broken(balanced, base=EXPERTS) == {30}
    assert broken(balanced, "--moe-router-score-function sigmoid", base=EXPERTS) == set()
    old = ("--moe-token-dispatcher-type alltoall_seq",)
    assert broken(*old, base=EXPERTS, version="core_r0.9.0") == {30}


def test_31_capacity() -> None:
    factor = "--moe-expert-capacity-factor 1.25"
    assert broken(factor, base=EXPERTS) == set()
    assert broken(factor, "--moe-router-load-balancing-type sinkhorn", base=EXPERTS) == {31}
    assert broken("--moe-pad-expert-input-to-capacity", base=EXPERTS) == {31}
    quantized = ("--moe-token-dispatcher-type allgather", "--moe-router-padding-for-quantization")
    assert broken(*quantized, base=EXPERTS) == {31}
    deep = ("--moe-token-dispatcher-type flex", "--moe-enable-deepep", "--moe-router-dtype fp32",
            factor, "--moe-pad-expert-input-to-capacity")  # fmt: skip
    assert broken(*deep, base=EXPERTS) == {31}


def test_32_overlap_of_shared_experts() -> None:
    shared = "--moe-shared-expert-overlap"
    assert broken(shared, base=EXPERTS) == set()
    assert broken(shared, "--moe-token-dispatcher-type allgather", base=EXPERTS) == {32}
    again = ("--recompute-granularity selective", "--recompute-modules shared_experts")
    assert broken(shared, *again, base=EXPERTS) == {32}
    assert 32 in broken(shared, *OVERLAP, base=EXPERTS)


def test_33_lists_of_losses_and_deepep() -> None:
    kinds = "--moe-router-load-balancing-type aux_loss seq_aux_loss"
    assert broken(kinds, "--moe-aux-loss-coeff 0.1 0.2", base=EXPERTS) == set()
    assert broken(kinds, "--moe-aux-loss-coeff 0.1", base=EXPERTS) == {33}
    deep = ("--moe-enable-deepep", "--moe-router-dtype fp32")
    assert broken(*deep, "--moe-token-dispatcher-type flex", base=EXPERTS) == set()
    assert broken(*deep, base=EXPERTS) == {33}
    assert broken("--moe-enable-deepep", "--moe-token-dispatcher-type flex", base=EXPERTS) == {33}


def test_34_overlap_of_expert_parallelism() -> None:
    assert broken(*OVERLAP, base=EXPERTS) == set()
    assert broken(OVERLAP[0], base=EXPERTS) == {34}
    assert broken(*OVERLAP, "--expert-model-parallel-size 1", base=EXPERTS) == {34}
    full = ("--recompute-granularity full", "--recompute-method uniform",
            "--recompute-num-layers 1")  # fmt: skip
    assert broken(*OVERLAP, *full, base=EXPERTS) == {34}
    assert broken("--delay-wgrad-compute", base=EXPERTS) == {34}
    assert broken(*OVERLAP, base=EXPERTS, without=("--bf16",)) == {34}


def test_35_grouped_products_need_a_newer_device() -> None:
    assert broken(base=EXPERTS, capability=7) == {35}
    assert broken(base=EXPERTS, without=("--bf16",), version="core_r0.9.0") == {35}
    assert broken(base=EXPERTS, without=("--bf16",), version="main") == set()
