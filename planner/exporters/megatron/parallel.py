"""The grid, ZeRO, recomputation and offloading as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.planner.exporters.megatron.arguments import Option
from shardwright.planner.exporters.megatron.versions import MegatronVersion
from shardwright.specs import Layout, Recompute
from shardwright.specs.bodies import MoeBlock

_CP_KINDS = {"ring": "p2p", "all_to_all": "a2a", "all_gather": "all_gather"}
_MODULES = {"norm": "layernorm"}
"""Where Megatron-LM's name of a module is not ours."""


def grid_options(job: Job, version: MegatronVersion, findings: Findings) -> Iterator[Option]:
    """Degrees of every axis but pp, and the order of ranks."""
    layout = job.layout
    yield ("--tensor-model-parallel-size", str(layout.tp))
    if layout.sequence_parallel:
        yield ("--sequence-parallel",)
    yield ("--context-parallel-size", str(layout.cp))
    if layout.cp > 1 and version.has_cp_kinds:
        yield ("--cp-comm-type", _CP_KINDS[layout.cp_kind])
    elif layout.cp > 1 and layout.cp_kind != "ring":
        findings.refuse(
            "cp_kind", f"{version.rules.version} passes keys and values in a ring only, not by"
            f" {layout.cp_kind}", "cp_kind = ring",
        )  # fmt: skip
    if has_experts(job):
        yield ("--expert-model-parallel-size", str(layout.ep))
        yield ("--expert-tensor-parallel-size", str(layout.etp))
    if layout.rank_order == "tp-cp-pp-dp":
        yield ("--use-tp-pp-dp-mapping",)


def has_experts(job: Job) -> bool:
    layers = job.model.decoder.layers()
    return any(isinstance(branch.body, MoeBlock) for layer in layers for branch in layer.branches)


def sharding_options(job: Job, version: MegatronVersion, findings: Findings) -> Iterator[Option]:
    """ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP."""
    layout = job.layout
    instances = _instances(job, version, findings)
    if layout.zero == 1:
        yield ("--use-distributed-optimizer",)
    elif layout.zero >= 2:
        strategy = "optim_grads" if layout.zero == 2 else "optim_grads_params"
        yield ("--use-megatron-fsdp",)
        yield ("--data-parallel-sharding-strategy", strategy)
        yield ("--use-distributed-optimizer",)
        yield ("--ckpt-format", "fsdp_dtensor")
    if instances > 1:
        yield ("--num-distributed-optimizer-instances", str(instances))
    if not layout.reshard_after_forward and layout.zero == 3:
        findings.refuse(
            "reshard_after_forward",
            "Megatron-FSDP always frees gathered weights after a layer's forward pass",
            "reshard_after_forward = true",
        )
    if job.software.overlap_gradients:
        yield ("--overlap-grad-reduce",)
        if layout.zero and job.software.overlap_weights:
            yield ("--overlap-param-gather",)
    if job.software.overlap_tensor_parallel and layout.sequence_parallel:
        yield ("--tp-comm-overlap",)


def _instances(job: Job, version: MegatronVersion, findings: Findings) -> int:
    """Sets of ranks that each hold one whole optimizer state; 1 where all ranks share one."""
    layout = job.layout
    degree, ranks = layout.zero_shard_degree, layout.dp * layout.cp
    instances = 1 if layout.zero == 0 or degree == ranks or ranks % degree else ranks // degree
    edp = layout.world_size.edp or 1
    if layout.zero and has_experts(job) and layout.expert_zero_shard_degree * instances != edp:
        findings.refuse(
            "expert_zero_shard_degree",
            f"{instances} sets of ranks share the optimizer's state, so that of experts is shared"
            f" by edp / {instances} = {edp / instances:g} ranks, not"
            f" {layout.expert_zero_shard_degree}",
            f"expert_zero_shard_degree = {edp // instances}" if edp % instances == 0 else None,
        )
    if instances > 1 and not version.has_optimizer_instances:
        findings.refuse(
            "zero_shard_degree",
            f"{version.rules.version} shards the optimizer over all dp x cp = {ranks} ranks, not"
            f" over {degree}",
            f"zero_shard_degree = {ranks}",
        )
    if instances > 1 and layout.zero >= 2:
        findings.refuse(
            "zero_shard_degree",
            f"ZeRO {layout.zero} over {degree} of dp x cp = {ranks} ranks also needs an outer"
            " strategy of Megatron-FSDP, which shards the optimizer over all ranks or nothing",
            f"zero_shard_degree = {ranks}",
        )
    return instances


def recompute_options(job: Job, version: MegatronVersion, findings: Findings) -> Iterator[Option]:
    """One policy for all stages: Megatron-LM has no other."""
    entries = list(job.layout.recompute)
    policies = {entry.policy for entry in entries}
    if policies == {"full"}:
        yield from _full(job.layout, findings)
    elif policies == {"selective"}:
        yield from _selective(entries, version, findings)
    elif policies != {"none"}:
        # A stage without layers recomputes nothing whatever its policy is.
        with_layers = {
            entry.policy
            for entry, stage in zip(entries, job.layout.stages, strict=True)
            if stage.num_layers
        }
        findings.refuse(
            "recompute",
            f"stages recompute by different policies ({', '.join(sorted(with_layers))});"
            " Megatron-LM has one for all",
            "the same recompute on every stage",
        )


def _full(layout: Layout, findings: Findings) -> Iterator[Option]:
    """The first so many layers of each stage, or all of them."""
    yield ("--recompute-granularity", "full")
    pairs = list(zip(layout.recompute, layout.stages, strict=True))
    if all(entry.num_layers is None for entry, _ in pairs):
        yield ("--recompute-method", "uniform")
        yield ("--recompute-num-layers", "1")
        return
    counts = [
        stage.num_layers if entry.num_layers is None else entry.num_layers for entry, stage in pairs
    ]
    most = max(counts)
    if any(
        count != min(most, stage.num_layers)
        for count, (_, stage) in zip(counts, pairs, strict=True)
    ):
        findings.refuse(
            "recompute",
            f"stages recompute {'+'.join(map(str, counts))} layers; --recompute-method block takes"
            " one number for all",
            f"recompute = full:{most}",
        )
    yield ("--recompute-method", "block")
    yield ("--recompute-num-layers", str(most))


def _selective(
    entries: list[Recompute], version: MegatronVersion, findings: Findings
) -> Iterator[Option]:
    chosen = {entry.modules or ("core_attn",) for entry in entries}
    if len({frozenset(modules) for modules in chosen}) > 1:
        findings.refuse(
            "recompute", "stages recompute different modules; Megatron-LM has one list for all",
            "the same recompute on every stage",
        )  # fmt: skip
    modules = sorted(next(iter(chosen)))
    missing = [module for module in modules if module not in version.recompute_modules]
    if missing:
        findings.refuse(
            "recompute",
            f"{version.rules.version} cannot recompute {' and '.join(missing)} alone",
            f"recompute = selective:{'+'.join(sorted(version.recompute_modules))} or a part of it",
        )
    yield ("--recompute-granularity", "selective")
    if modules != ["core_attn"]:
        yield ("--recompute-modules", *(_MODULES.get(module, module) for module in modules))


def offload_options(job: Job, version: MegatronVersion, findings: Findings) -> Iterator[Option]:
    """What lives in host memory, as far as rules of `rules` let it."""
    offload, num_layers = job.layout.offload, job.model.decoder.num_layers
    if "activations" in offload:
        yield ("--cpu-offloading-num-layers", str(max(1, num_layers - 1)))
        if num_layers == 1:
            findings.refuse("offload", "a model of one layer has no layer to offload")
        findings.note(
            "offload: Megatron-LM offloads the activations of all layers but one, the last"
        )
    if "optimizer" in offload:
        if not version.has_precision_aware_optimizer:
            findings.refuse(
                "offload", f"{version.rules.version} cannot offload the optimizer", "offload = none"
            )
        elif job.layout.zero == 0:
            findings.refuse(
                "offload", "the optimizer is offloaded only where it is sharded", "zero = 1"
            )
        yield ("--optimizer-cpu-offload",)


def refuse_what_is_ours(layout: Layout, findings: Findings, target: str) -> None:
    """Choices that no other software has."""
    if layout.stage_meshes is not None:
        findings.refuse(
            "stage_meshes", f"pipeline ranks have grids of their own; in {target} all have one",
            "one grid for all stages",
        )  # fmt: skip
    if layout.loss_chunks > 1:
        findings.refuse(
            "loss_chunks", f"the loss is computed in {layout.loss_chunks} pieces; {target} computes"
            " it at once and needs more memory", "--fix loss_chunks=1",
        )  # fmt: skip


def refuse_compiling(layout: Layout, findings: Findings, target: str) -> None:
    """``compile``, where a target has its own kernels and no option for a compiler."""
    if layout.compile:
        findings.refuse(
            "compile", f"{target} has no option that compiles the model", "--fix compile=off"
        )
