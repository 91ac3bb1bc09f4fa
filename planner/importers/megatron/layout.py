"""Choices of a layout from Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.planner.importers.megatron.arguments import Arguments
from shardwright.planner.importers.megatron.bodies import is_megatron_deepspeed
from shardwright.planner.importers.megatron.stages import Stages, stages_of
from shardwright.planner.layout_text import MODULES, normalise_choices
from shardwright.planner.problem import ChoiceValue

_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_CP_KINDS = {"p2p": "ring", "a2a": "all_to_all", "all_gather": "all_gather"}
_MODULES = {"layernorm": "norm"}


@dataclass(slots=True)
class Grid:
    """The choices, and what of the arguments has no counterpart here."""

    choices: dict[str, ChoiceValue]
    stages: Stages
    unread: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def number_of(choices: Mapping[str, ChoiceValue], name: str) -> int:
    """A degree or count among choices, 1 where it is not named."""
    value = choices.get(name, 1)
    return value if isinstance(value, int) else 1


def degree(arguments: Arguments, name: str) -> int:
    """A degree of parallelism, 1 where it is not given."""
    return arguments.count(name) or 1


def grid_of(
    arguments: Arguments, num_layers: int | None, zero_stage: int | None, *, has_experts: bool
) -> Grid:
    """Everything of a layout but ``dp``, which is what remains of the world.

    ``zero_stage``: of DeepSpeed's configuration, where there is one. Raises `InputError` where
    options contradict each other.
    """
    stages = stages_of(arguments, num_layers)
    grid = Grid({}, stages)
    tp, cp = degree(arguments, "tensor-model-parallel-size"), context_degree(arguments)
    given: dict[str, Any] = {
        "tp": tp, "cp": cp, "pp": stages.pp, "vpp": stages.vpp,
        "micro_batch": arguments.count("micro-batch-size") or 1,
        "zero": _zero(arguments, zero_stage),
        "sequence_parallel": arguments.has("sequence-parallel") and tp > 1,
    }  # fmt: skip
    given |= _experts(arguments, tp, grid, has_experts)
    if cp > 1:
        given["cp_kind"] = _cp_kind(arguments, grid)
    if arguments.has("use-tp-pp-dp-mapping"):
        given["rank_order"] = "tp-cp-pp-dp"
    if arguments.has("torch-fsdp2-no-reshard-after-forward"):
        given["reshard_after_forward"] = False
    if stages.pp > 1 and stages.stops is not None:
        given["stages"] = stages.stops
    given["schedule"] = _schedule(arguments, stages, grid)
    given["recompute"] = recompute_text(arguments, stages)
    given["offload"] = _offload(arguments, grid)
    if stages.conflict is not None:
        grid.conflicts.append(stages.conflict)
    _note_what_has_no_counterpart(arguments, grid)
    grid.choices = normalise_choices(given)
    return grid


def context_degree(arguments: Arguments) -> int:
    """``--context-parallel-size``, or Megatron-DeepSpeed's Ulysses."""
    return degree(arguments, "context-parallel-size") * degree(
        arguments, "ds-sequence-parallel-size"
    )


def _experts(arguments: Arguments, tp: int, grid: Grid, has_experts: bool) -> dict[str, int]:
    """Degrees of experts; etp is tp unless it is stated."""
    stated = [name for name in ("expert-model-parallel-size", "expert-tensor-parallel-size")
              if degree(arguments, name) > 1]  # fmt: skip
    if not has_experts:
        grid.unread += [
            f"--{name} {arguments.text(name)}: without effect, for there are no experts"
            for name in stated
        ]
        return {}
    if is_megatron_deepspeed(arguments):
        etp = tp if arguments.has("enable-expert-tensor-parallelism") else 1
    else:
        etp = arguments.count("expert-tensor-parallel-size") or tp
    return {"ep": degree(arguments, "expert-model-parallel-size"), "etp": etp}


def _zero(arguments: Arguments, zero_stage: int | None) -> int:
    """Which ZeRO stage: DeepSpeed's, FSDP's strategy, or 1 with the distributed optimizer."""
    if arguments.has("deepspeed"):
        stated = arguments.whole("zero-stage")
        stage = zero_stage if stated is None else stated
        return max(0, min(3, stage or 0))
    if arguments.has("use-torch-fsdp2"):
        return 3
    if arguments.has("use-megatron-fsdp"):
        return _STRATEGIES.get(arguments.text("data-parallel-sharding-strategy") or "no_shard", 0)
    return int(arguments.has("use-distributed-optimizer"))


def _cp_kind(arguments: Arguments, grid: Grid) -> str:
    if degree(arguments, "ds-sequence-parallel-size") > 1:
        return "all_to_all"
    kind = (arguments.text("cp-comm-type") or "p2p").split(",")[0].strip("[]' ")
    if kind not in _CP_KINDS:
        grid.unread.append(f"--cp-comm-type {kind}: read as p2p")
    return _CP_KINDS.get(kind, "ring")


def _schedule(arguments: Arguments, stages: Stages, grid: Grid) -> str:
    """1F1B, interleaved with virtual stages; zero-bubble schedules of the fork that has them."""
    if stages.pp == 1:
        return "none"
    usual = "1f1b" if stages.vpp == 1 else "interleaved-1f1b"
    if arguments.has("zero-bubble-v-schedule"):
        return "zb-v" if stages.vpp == 2 else usual
    if not arguments.has("enable-zero-bubble"):
        return usual
    if stages.vpp > 1:
        grid.unread.append(
            "--enable-zero-bubble with virtual stages: no counterpart, read as interleaved 1F1B"
        )
        return usual
    pending = arguments.count("zero-bubble-max-pending-backward") or stages.pp
    return "zb-h2" if pending >= 2 * stages.pp else "zb-h1"


def stated_recompute(arguments: Arguments) -> dict[str, Any] | None:
    """What options of all generations say of recomputation; None where none does."""
    granularity = arguments.text("recompute-granularity") or arguments.text(
        "activations-checkpoint-granularity"
    )
    method = arguments.text("recompute-method") or arguments.text("activations-checkpoint-method")
    count = next(
        (
            value
            for name in (
                "recompute-num-layers", "activations-checkpoint-num-layers",
                "checkpoint-num-layers",
            )
            if (value := arguments.whole(name)) is not None
        ),
        None,
    )  # fmt: skip
    modules = list(arguments.many("recompute-modules")) or None
    if granularity is None and arguments.has("recompute-activations"):
        granularity = "selective"
    old = ("checkpoint-activations", "deepspeed-activation-checkpointing")
    if granularity is None and (method or any(arguments.has(flag) for flag in old)):
        granularity = "full"
    if granularity is None:
        return None
    return {"granularity": granularity, "method": method, "num_layers": count, "modules": modules}


def recompute_text(arguments: Arguments, stages: Stages) -> str:
    """The policy as `layout_text` writes it: for all stages, or one for each.

    ``block`` recomputes the first so many layers of each virtual stage, ``uniform`` all of them.
    """
    stated = stated_recompute(arguments)
    if stated is None:
        return "none"
    if stated["granularity"] == "selective":
        modules = [_MODULES.get(name, name) for name in stated["modules"] or ()]
        known = [name for name in modules if name in MODULES]
        return "selective:" + "+".join(known) if known else "selective"
    count = stated["num_layers"]
    if stated["method"] != "block" or count is None:
        return "full"
    if count <= 0:
        return "none"
    if stages.counts is None:
        return f"full:{count}"
    parts = ["full" if layers <= count else f"full:{count}" for layers in stages.counts]
    return parts[0] if len(set(parts)) == 1 else "/".join(parts)


def _offload(arguments: Arguments, grid: Grid) -> str:
    found = []
    if arguments.has("cpu-offloading") or (arguments.count("cpu-offloading-num-layers") or 0) > 0:
        found.append("activations")
    if arguments.has("fine-grained-activation-offloading"):
        modules = " ".join(arguments.many("offload-modules"))
        grid.unread.append(
            f"--fine-grained-activation-offloading {modules}: a part of the activations lives in"
            " host memory; read as none"
        )
    flags = ("optimizer-cpu-offload", "cpu-optimizer", "offload-optimizer-states")
    if any(arguments.has(flag) for flag in flags):
        found.append("optimizer")
    return "+".join(found) or "none"


def _note_what_has_no_counterpart(arguments: Arguments, grid: Grid) -> None:
    """Options that change what a step costs, and that are not modelled."""
    for name in ("tensor-parallel-num-weight-shards", "expert-tensor-parallel-num-weight-shards"):
        if arguments.has(name):
            grid.unread.append(f"--{name} {arguments.text(name)}: no counterpart")
    for name in ("hybrid-context-parallel", "distribute-saved-activations"):
        if arguments.has(name):
            grid.unread.append(f"--{name}: no counterpart")
    for name in ("encoder-pipeline-model-parallel-size", "encoder-tensor-model-parallel-size",
                 "pipeline-model-parallel-split-rank", "heterogeneous-layers-config-path",
                 "outer-dp-sharding-strategy"):  # fmt: skip
        if arguments.has(name):
            grid.unread.append(f"--{name} {arguments.text(name)}: no counterpart")
    stated = stated_recompute(arguments) or {}
    lost = [name for name in stated.get("modules") or () if _MODULES.get(name, name) not in MODULES]
    if lost:
        grid.unread.append(f"--recompute-modules {' '.join(lost)}: no counterpart")
    if stated.get("method") == "uniform" and (stated.get("num_layers") or 1) > 1:
        grid.unread.append(
            f"--recompute-num-layers {stated['num_layers']}: layers recompute in groups; read as"
            " one by one"
        )
