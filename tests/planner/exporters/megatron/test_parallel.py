"""Degrees, ZeRO, recomputation and offloading."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.exporters.megatron.export import to_megatron
from shardwright.specs import InputError, Recompute, SoftwareSpec
from shardwright.specs.layout import StageMesh
from tests.planner.exporters.jobs import job_of
from tests.planner.exporters.megatron.exporting import arguments, exported, refusal

FULL = Recompute(policy="full")


def test_degrees_and_order() -> None:
    found = arguments(tp=2, cp=2, cp_kind="all_gather", pp=2, sequence_parallel=True)
    assert found.degree("--tensor-model-parallel-size") == 2
    assert found.text("--cp-comm-type") == "all_gather"
    assert found.has("--sequence-parallel")
    crossed: dict[str, Any] = {"pp": 2, "dp": 2, "rank_order": "tp-cp-pp-dp"}
    assert arguments(tp=2, **crossed).has("--use-tp-pp-dp-mapping")
    assert "as many replicas" in refusal(cp=2, **crossed)
    assert not found.has("--expert-tensor-parallel-size")


def test_experts_always_say_their_tensor_degree_whose_default_is_tp() -> None:
    found = arguments("mixtral", tp=2, dp=4, ep=4, sequence_parallel=True)
    assert found.number("--expert-tensor-parallel-size") == 1


def test_kinds_of_context_parallelism_by_version() -> None:
    assert arguments(cp=2).text("--cp-comm-type") == "p2p"
    assert arguments(cp=2, cp_kind="all_to_all").text("--cp-comm-type") == "a2a"
    assert not arguments(cp=2, version="core_r0.9.0").has("--cp-comm-type")
    assert "ring only" in refusal(cp=2, cp_kind="all_gather", version="core_r0.9.0")


@pytest.mark.parametrize(("zero", "strategy"), [(2, "optim_grads"), (3, "optim_grads_params")])
def test_zero_2_and_3_are_megatron_fsdp(zero: int, strategy: str) -> None:
    found = exported(dp=8, tp=2, sequence_parallel=True, zero=zero)
    options = {option[0]: option[1:] for option in found.arguments}
    assert options["--data-parallel-sharding-strategy"] == (strategy,)
    assert options["--ckpt-format"] == ("fsdp_dtensor",)
    assert found.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    assert "sharding" in refusal(dp=8, zero=zero, version="core_r0.9.0") or "ZeRO 1" in refusal(
        dp=8, zero=zero, version="core_r0.9.0"
    )


def test_zero_1_and_its_instances() -> None:
    found = arguments(dp=8, zero=1)
    assert found.has("--use-distributed-optimizer")
    assert found.has("--overlap-param-gather")
    part = arguments(dp=8, zero=1, zero_shard_degree=4)
    assert part.number("--num-distributed-optimizer-instances") == 2
    assert "shards the optimizer over all" in refusal(
        dp=8, zero=1, zero_shard_degree=4, version="core_r0.9.0"
    )
    assert "outer strategy" in refusal(dp=8, zero=3, zero_shard_degree=4)
    assert "experts" in refusal("mixtral", dp=8, ep=2, zero=1, expert_zero_shard_degree=2)


def test_without_zero_gradients_still_overlap_unless_the_software_does_not() -> None:
    assert arguments(dp=8).has("--overlap-grad-reduce")
    assert not arguments(dp=8).has("--overlap-param-gather")
    apart = SoftwareSpec(overlap_gradients=False)
    assert not arguments(dp=8, zero=1, software=apart).has("--overlap-grad-reduce")


def test_gathered_weights_are_always_freed() -> None:
    assert "reshard_after_forward" in refusal(dp=8, zero=3, reshard_after_forward=False)


def test_full_recomputation() -> None:
    found = arguments(pp=2, recompute=FULL)
    assert found.text("--recompute-method") == "uniform"
    some = arguments(pp=2, recompute=Recompute(policy="full", num_layers=2))
    assert (some.text("--recompute-method"), some.number("--recompute-num-layers")) == ("block", 2)
    clipped = (Recompute(policy="full", num_layers=2), Recompute(policy="full", num_layers=3))
    found = arguments(pp=2, boundaries=(2,), recompute=clipped)
    assert found.number("--recompute-num-layers") == 3, "the first stage has but two layers"


def test_selective_recomputation_by_version() -> None:
    plain = arguments(recompute=Recompute(policy="selective"))
    assert plain.text("--recompute-granularity") == "selective"
    assert not plain.has("--recompute-modules")
    norms = Recompute(policy="selective", modules=("norm", "mlp"))
    assert arguments(recompute=norms).values("--recompute-modules") == ("mlp", "layernorm")
    assert "cannot recompute mlp and norm" in refusal(recompute=norms, version="core_r0.9.0")
    assert "mlp_act" in refusal(recompute=Recompute(policy="selective", modules=("mlp_act",)))


def test_one_recomputation_for_all_stages() -> None:
    assert "different policies" in refusal(pp=2, recompute=(FULL, Recompute()))
    uneven = (Recompute(policy="full", num_layers=2), Recompute(policy="full", num_layers=1))
    assert "2+1 layers" in refusal(pp=2, recompute=uneven)
    modules = (Recompute(policy="selective"), Recompute(policy="selective", modules=("mlp",)))
    assert "different modules" in refusal(pp=2, recompute=modules)


def test_offloading() -> None:
    found = exported(offload=("activations",))
    assert ("--cpu-offloading-num-layers", "11") in found.arguments
    assert any(note.startswith("offload") for note in found.notes)
    host = arguments(dp=8, zero=1, offload=("optimizer",))
    assert host.has("--optimizer-cpu-offload")
    assert host.has("--use-precision-aware-optimizer")
    assert "sharded" in refusal(dp=8, offload=("optimizer",))
    assert "cannot offload" in refusal(dp=8, zero=1, offload=("optimizer",), version="core_r0.9.0")
    assert "parameters" in refusal(dp=8, zero=3, offload=("parameters",))


def test_what_is_ours_alone_is_refused() -> None:
    assert "pieces" in refusal(loss_chunks=4)
    assert "compiles" in refusal(compile=True)
    meshes = (StageMesh(ranks=(0, 1), tp=2), StageMesh(ranks=(2,), tp=1))
    job = job_of(pp=2, tp=1)
    mixed = job.layout.model_copy(update={"stage_meshes": meshes})
    with pytest.raises(InputError, match="grids of their own"):
        to_megatron(type(job)(job.model, job.training, mixed, job.cluster))
