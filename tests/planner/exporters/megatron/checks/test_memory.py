"""Rules 36 to 39."""

from __future__ import annotations

from tests.planner.exporters.megatron.commands import EXPERTS, broken

FULL = ("--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1")
SELECTIVE = "--recompute-granularity selective"


def test_36_recomputation() -> None:
    assert broken(*FULL) == set()
    assert broken(FULL[0]) == {36}
    assert broken(SELECTIVE) == set()
    assert broken(SELECTIVE, FULL[1]) == {36}
    assert broken(SELECTIVE, "--recompute-modules moe_act", base=EXPERTS) == set()
    assert broken(SELECTIVE, "--recompute-modules moe_act") == {36}
    assert broken(SELECTIVE, "--recompute-modules mla_up_proj") == {36}
    assert broken(SELECTIVE, "--recompute-modules mhc mlp") == {36}
    delayed = ("--fp8-format hybrid", "--fp8-recipe delayed")
    assert broken(SELECTIVE, "--recompute-modules layernorm", *delayed) == {36}
    assert broken(SELECTIVE, "--recompute-modules layernorm", "--fp8-format hybrid",
                  "--fp8-recipe tensorwise") == set()  # fmt: skip


def test_37_distributed_activations_need_full_recomputation() -> None:
    spread = "--distribute-saved-activations"
    assert broken(spread, without=("--sequence-parallel",)) == {37}
    assert broken(spread, *FULL, without=("--sequence-parallel",)) == set()


def test_38_offloading() -> None:
    one = "--pipeline-model-parallel-size 1"
    assert broken("--cpu-offloading-num-layers 11", one) == set()
    assert broken("--cpu-offloading-num-layers 12", one) == {38}
    assert broken("--cpu-offloading-num-layers 11") == {38}
    assert broken("--cpu-offloading-num-layers 11", one, SELECTIVE) == {38}
    fine = "--fine-grained-activation-offloading"
    assert broken(fine) == {38}
    environment = {"NVTE_CPU_OFFLOAD_V1": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert broken(fine, environment=environment) == set()
    projection = "--offload-modules attn_proj"
    assert broken(fine, projection, environment=environment) == {38}
    inner = (fine, "--offload-modules moe_act", SELECTIVE, "--recompute-modules moe")
    assert broken(*inner, base=EXPERTS, environment=environment) == {38}
    assert broken(fine, "--transformer-impl local", environment=environment) == {38}


def test_39_cuda_graphs() -> None:
    assert broken("--cuda-graph-impl local") == set()
    assert broken("--cuda-graph-impl local", *FULL) == {39}
    assert broken("--cuda-graph-impl full_iteration", *FULL) == set()
    assert broken("--cuda-graph-impl local", "--cuda-graph-modules moe", base=EXPERTS) == {39}
    offload = ("--cpu-offloading-num-layers 2", "--pipeline-model-parallel-size 1")
    assert broken("--cuda-graph-impl local", *offload) == {39}
