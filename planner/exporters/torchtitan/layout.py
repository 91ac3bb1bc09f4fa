"""A layout as torchtitan's configuration, and what its parallelism does not have."""

from __future__ import annotations

from typing import Any

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.planner.exporters.torchtitan.facts import CP_METHODS, SCHEDULES
from shardwright.specs import Layout, ScheduleName
from shardwright.specs.bodies import AttentionBlock, LatentAttentionBlock, MlpBlock, MoeBlock
from shardwright.specs.world import divisors, nearest


def parallelism(job: Job, family: str | None, findings: Findings) -> dict[str, Any]:
    """The table ``[parallelism]``; what cannot be said goes to ``findings``."""
    layout = job.layout
    _check_grid(job, findings)
    _check_sharding(job, findings)
    shard, replicate = _data_parallel(layout)
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if layout.reshard_after_forward else "never",
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "context_parallel_rotate_method": CP_METHODS.get(layout.cp_kind) if layout.cp > 1 else None,
        "pipeline_parallel_degree": layout.pp,
    }
    if layout.tp > 1 and job.software.overlap_tensor_parallel and layout.compile:
        found["enable_async_tensor_parallel"] = True
    found |= _experts(job, findings)
    if layout.pp > 1:
        found |= _pipeline(job, family, findings)
    return found


def _data_parallel(layout: Layout) -> tuple[int, int]:
    """Ranks that share a copy of the weights, beside cp, and such copies."""
    if layout.zero == 0:
        return 1, layout.dp
    shard = max(1, layout.zero_shard_degree // layout.cp)
    return shard, max(1, layout.dp // shard)


def _check_grid(job: Job, findings: Findings) -> None:
    layout, seq_len = job.layout, job.training.seq_len
    if layout.rank_order != "tp-cp-dp-pp":
        findings.refuse(
            "rank_order", "torchtitan's meshes are pp, dp, cp, tp from the slowest to the fastest",
            "rank_order = tp-cp-dp-pp",
        )  # fmt: skip
    if layout.tp > 1 and not layout.sequence_parallel:
        findings.refuse(
            "sequence_parallel", "torchtitan's tensor parallelism always splits the sequence, too",
            "sequence_parallel = true",
        )  # fmt: skip
    if layout.cp > 1 and layout.cp_kind not in CP_METHODS:
        findings.refuse(
            "cp_kind", f"torchtitan has no context parallelism by {layout.cp_kind}",
            "cp_kind = ring, or cp_kind = all_gather",
        )  # fmt: skip
    if seq_len % (layout.tp * 2 * layout.cp):
        findings.refuse(
            "sequence", f"seq_len = {seq_len} is not a multiple of tp x 2 x cp ="
            f" {layout.tp * 2 * layout.cp}",
        )  # fmt: skip
    for what, size in _split_sizes(job):
        if size % layout.tp:
            findings.refuse(
                "tp", f"{size} {what} are not a multiple of tp = {layout.tp}",
                f"tp in {nearest(divisors(size), layout.tp)}",
            )  # fmt: skip


def _split_sizes(job: Job) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for layer in job.model.decoder.layers():
        for body in (branch.body for branch in layer.branches):
            if isinstance(body, AttentionBlock):
                found += [("heads", body.num_heads), ("key-value heads", body.num_kv_heads)]
            elif isinstance(body, LatentAttentionBlock):
                found.append(("heads", body.num_heads))
            elif isinstance(body, MlpBlock):
                found.append(("columns of an MLP", body.ffn_size))
    return list(dict.fromkeys(found))


def _check_sharding(job: Job, findings: Findings) -> None:
    """fully_shard shards weights, gradients and state alike; without it all stay whole."""
    layout = job.layout
    if layout.zero in (1, 2):
        findings.refuse(
            "zero", f"torchtitan shards weights, gradients and state together (ZeRO 3), not by ZeRO"
            f" {layout.zero}", "zero = 3, reshard_after_forward = false",
        )  # fmt: skip
    if layout.zero and layout.zero_shard_degree == 1:
        findings.refuse(
            "zero", f"ZeRO {layout.zero} over one rank shards nothing; torchtitan then has none",
            "zero = 0",
        )  # fmt: skip
    if layout.zero and layout.zero_shard_degree % layout.cp:
        findings.refuse(
            "zero_shard_degree", f"zero_shard_degree = {layout.zero_shard_degree} is not a multiple"
            f" of cp = {layout.cp}, over which torchtitan always shards",
            f"zero_shard_degree = {layout.cp}",
        )  # fmt: skip
    others = layout.tp * layout.cp * layout.pp
    if layout.zero == 0 and (layout.cp > 1 or (layout.dp > 1 and others > 1) or layout.ep > 1):
        findings.refuse(
            "zero", "torchtitan replicates weights (DDP) only where there is no other parallelism",
            "zero = 3",
        )  # fmt: skip
    elif layout.zero == 0 and others > 1 and job.training.dtypes.parameter == "bf16":
        findings.refuse(
            "zero", "torchtitan computes in bf16 with fp32 weights only where fully_shard does it:"
            " with dp or cp above 1", "zero = 3 and dp > 1, or precision = fp32",
        )  # fmt: skip


def _experts(job: Job, findings: Findings) -> dict[str, Any]:
    layout = job.layout
    counts = {
        branch.body.num_experts
        for layer in job.model.decoder.layers()
        for branch in layer.branches
        if isinstance(branch.body, MoeBlock)
    }
    if not counts:
        return {}
    if layout.etp not in (1, layout.tp) or (layout.ep == 1 and layout.etp != layout.tp):
        usual = f"etp = {layout.tp}" if layout.ep == 1 else f"etp = 1, or etp = {layout.tp}"
        findings.refuse(
            "etp", f"torchtitan splits experts over tp = {layout.tp} ranks"
            f"{'' if layout.ep == 1 else ' or not at all'}, not over {layout.etp}", usual,
        )  # fmt: skip
    for count in sorted(counts):
        if count % layout.ep:
            findings.refuse("experts", f"ep = {layout.ep} does not divide {count} experts")
    if layout.zero:
        shared = layout.zero_shard_degree * layout.tp
        expected, rest = divmod(shared, layout.etp * layout.ep)
        if rest or expected != layout.expert_zero_shard_degree:
            findings.refuse(
                "expert_zero_shard_degree",
                "experts are sharded over zero_shard_degree x tp / (etp x ep) ="
                f" {shared / (layout.etp * layout.ep):g} ranks, not"
                f" {layout.expert_zero_shard_degree}",
                None if rest else f"expert_zero_shard_degree = {expected}",
            )
    return {
        "expert_parallel_degree": layout.ep,
        "expert_tensor_parallel_degree": layout.etp if layout.ep > 1 else 1,
    }


def _pipeline(job: Job, family: str | None, findings: Findings) -> dict[str, Any]:
    layout = job.layout
    count = layout.micro_batches
    assert layout.schedule is not None
    name = SCHEDULES.get(layout.schedule)
    if family == "qwen3":
        findings.refuse("pp", "torchtitan's qwen3 has no pipeline parallelism", "pp = 1")
    if name is None:
        findings.refuse("schedule", f"PyTorch has no schedule {layout.schedule}", "schedule = 1f1b")
    least = {ScheduleName.ONE_F_ONE_B: layout.pp, ScheduleName.DUALPIPE_V: 2 * layout.pp}
    if count < least.get(layout.schedule, 1):
        findings.refuse(
            "num_microbatches", f"{layout.schedule} of PyTorch needs {least[layout.schedule]}"
            f" micro-batches, one for each stage, not {count}", "pp <= num_microbatches",
        )  # fmt: skip
    rounds = max(1, count // layout.pp)
    if layout.schedule is ScheduleName.INTERLEAVED and count % rounds:
        findings.refuse(
            "num_microbatches", f"{count} micro-batches do not divide into {rounds} rounds"
            f" (interleaved, pp = {layout.pp})",
            f"num_microbatches = {count // layout.pp * layout.pp}",
        )  # fmt: skip
    if any(not (stage.num_layers or stage.holds) for stage in layout.stages):
        findings.refuse(
            "stages",
            "a stage holds nothing, and has no parameters to train",
            "a layer on each stage",
        )
    return {
        "pipeline_parallel_schedule": name,
        "pipeline_parallel_microbatch_size": layout.micro_batch,
        "module_fqns_per_model_part": module_names(layout),
    }


def module_names(layout: Layout) -> list[list[str]]:
    """The modules of each virtual stage, in model order."""
    last = len(layout.stages) - 1
    found = []
    for index, stage in enumerate(layout.stages):
        names = ["tok_embeddings"] if index == 0 else []
        names += [f"layers.{layer}" for layer in range(*stage.layers)]
        names += ["norm", "output"] if index == last else []
        found.append(names)
    return found


def checkpointing(layout: Layout, findings: Findings) -> dict[str, Any]:
    """``[activation_checkpoint]``: no layer, every n-th, or all."""
    pairs = [
        (entry, stage.num_layers)
        for entry, stage in zip(layout.recompute, layout.stages, strict=True)
        if stage.num_layers
    ]
    policies = {entry.policy for entry, _ in pairs}
    if policies <= {"none"}:
        return {"mode": "none"}
    if policies != {"full"}:
        findings.refuse(
            "recompute", "torchtitan recomputes whole layers, alike on every stage, or single"
            " operators, which is no choice of ours", "recompute = full",
        )  # fmt: skip
        return {"mode": "full"}
    counts = [layers if entry.num_layers is None else entry.num_layers for entry, layers in pairs]
    if all(count == layers for count, (_, layers) in zip(counts, pairs, strict=True)):
        return {"mode": "full"}
    sizes = [layers for _, layers in pairs]
    for every in range(2, max(sizes) + 1):
        if layout.vpp == 1 and [size // every for size in sizes] == counts:
            findings.note(
                f"recompute: every {every}. layer of a stage, as many as in the plan, instead of"
                " its first ones"
            )
            return {"mode": "selective", "selective_ac_option": str(every)}
    findings.refuse(
        "recompute", f"{'+'.join(map(str, counts))} of {'+'.join(map(str, sizes))} layers are"
        " recomputed; torchtitan takes every n-th layer of each stage", "recompute = full",
    )  # fmt: skip
    return {"mode": "full"}
