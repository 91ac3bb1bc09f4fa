"""Rules 40 to 47."""

from __future__ import annotations

import pytest

from tests.planner.exporters.megatron.commands import CONNECTIONS, EXPERTS, broken

ZERO1 = "--use-distributed-optimizer"
FSDP = (
    "--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params", ZERO1,
    "--ckpt-format fsdp_dtensor",
)  # fmt: skip
FREE = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}


def test_40_overlap_of_gathering() -> None:
    gather = "--overlap-param-gather"
    assert broken(gather, "--overlap-grad-reduce", ZERO1) == set()
    assert broken(gather, "--overlap-grad-reduce") == {40}
    assert broken(gather, ZERO1) == {40}
    step = (gather, "--overlap-grad-reduce", ZERO1, "--overlap-param-gather-with-optimizer-step")
    virtual = "--num-virtual-stages-per-pipeline-rank 2"
    assert broken(*step, virtual, "--ckpt-format torch") == set()
    assert broken(*step, "--ckpt-format torch") == {40}
    assert broken(*step, virtual) == {40}


def test_41_averages_in_collectives() -> None:
    average = "--ddp-average-in-collective"
    assert broken(average) == set()
    assert broken(average, "--calculate-per-token-loss") == {41}
    assert 41 in broken(average, "--tensor-parallel-num-weight-shards 4")


def test_42_fsdp_of_torch() -> None:
    plain = (
        "--use-torch-fsdp2", "--no-gradient-accumulation-fusion",
        "--untie-embeddings-and-output-weights", "--pipeline-model-parallel-size 1",
    )  # fmt: skip
    assert broken(*plain, environment=FREE) == set()
    assert broken(*plain[:3], environment=FREE) == {42}
    assert broken(*plain, ZERO1, environment=FREE) == {42}
    assert broken(*plain, environment=CONNECTIONS) == {42}
    assert broken(plain[0], plain[2], plain[3], environment=FREE) == {42}
    assert broken(*plain[:2], plain[3], environment=FREE) == {42}
    assert broken(*plain, "--fp16", without=("--bf16",), environment=FREE) == {42}
    assert broken(*plain, "--ckpt-format torch", environment=FREE) == {42}
    assert broken("--ckpt-format torch_dcp") == {42}


def test_43_megatron_fsdp() -> None:
    assert broken(*FSDP, environment=FREE) == set()
    assert broken(*FSDP, environment=CONNECTIONS) == {43}
    assert broken(*FSDP[:3], environment=FREE) == {43}
    assert broken(*FSDP[:2], FSDP[3], environment=FREE) == {43}
    assert broken(*FSDP, environment=FREE, version="core_r0.9.0") == {43}
    assert broken(*FSDP, "--use-tp-pp-dp-mapping", environment=FREE) == {43}
    assert 43 in broken(*FSDP, "--megatron-fsdp-version 2", environment=FREE)
    assert 43 in broken(*FSDP, "--optimizer muon", environment=FREE)
    assert broken(*FSDP, "--moe-single-grouped-weight", base=EXPERTS, environment=FREE) == {43}


def test_44_optimizers() -> None:
    assert broken("--optimizer muon") == set()
    assert broken("--optimizer muon", "--ckpt-format torch_dcp",
                  "--pipeline-model-parallel-size 1") == {42, 44}  # fmt: skip
    precise = "--use-precision-aware-optimizer"
    assert broken(precise, "--optimizer sgd") == {44}
    assert broken("--optimizer-cpu-offload") == {44}
    assert broken("--optimizer-cpu-offload", precise) == set()
    gathered = ("--fp8-format hybrid", "--fp8-param-gather", ZERO1)
    offload = ("--optimizer-cpu-offload", precise, *gathered)
    assert broken(*offload, "--fp8-recipe delayed") == set()
    assert broken(*offload, "--fp8-recipe tensorwise") == {44}


@pytest.mark.parametrize(
    ("capability", "numbers"), [(8, {45}), (9, {45}), (None, {45}), (10, set())]
)
def test_45_one_connection_before_blackwell(capability: int | None, numbers: set[int]) -> None:
    assert broken(environment={}, capability=capability) == numbers
    alone = ("--tensor-model-parallel-size 1",)
    assert broken(*alone, without=("--sequence-parallel",), environment={}) == set()


def test_46_generalized_tensor_parallelism() -> None:
    shards = "--tensor-parallel-num-weight-shards 4"
    assert broken(shards) == set()
    assert broken(shards, "--ckpt-format fsdp_dtensor") == {46}
    mx = (shards, "--fp8-format e4m3", "--fp8-recipe mxfp8", ZERO1)
    assert broken(*mx) == {46}
    assert broken(*mx, "--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag") == set()
    assert broken(shards, "--fp4-format e2m1") == {46}


def test_47_without_gloo_checkpoints_are_distributed() -> None:
    off = "--disable-gloo-process-groups"
    assert broken(off, ZERO1) == set()
    assert broken(off, ZERO1, "--ckpt-format torch") == {47}
