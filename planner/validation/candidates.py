"""The layouts that a row may have run: what it states, and every choice that it leaves open.

Open fields become short lists of candidates: what the row's stack is known to do, else what is
customary. The layouts are the lists' product in lexicographic order, without those that do not
divide the cluster or the batch, and about `MOST_LAYOUTS` of them at most, shared by the grids.

``selective layer`` as printed recomputes every second layer in full, as torchtitan does.

Where layers do not divide the stages, but do with two more, embedding and head stand for a layer
each, as in Megatron's and DeepSpeed's own splits.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from shardwright.planner.validation.problem import Case, first_of, remarks_of
from shardwright.planner.validation.rows import RowParallel
from shardwright.specs import InputError, Layout, Recompute, ShardwrightError
from shardwright.specs._base import describe_misfits
from shardwright.specs.bodies import LatentAttentionBlock, MoeBlock
from shardwright.specs.layout import RecomputeModule, ScheduleName
from shardwright.specs.world import divisors, split_evenly

MOST_LAYOUTS = 200
_MOST_GRIDS = 25

_MODULES: dict[str, RecomputeModule] = {
    "core_attn": "core_attn", "attn_proj": "attn_proj", "norm": "norm", "layernorm": "norm",
    "mlp_act": "mlp_act", "act": "mlp_act", "mlp": "mlp", "moe_act": "moe_act", "moe": "moe",
    "shared_experts": "shared_experts", "shared_expert": "shared_experts",
    "mla_up_proj": "mla_up_proj",
}  # fmt: skip
"""Names of recomputed modules, and what other stacks call them."""
_SCHEDULES = {"dualpipe": "dualpipev", "1f1b-interleaved": "interleaved-1f1b", "zbv": "zb-v"}
_TWO_CHUNKS = ("zb-v", "dualpipev")
_ONE_CHUNK = ("1f1b", "gpipe", "zb-h1", "zb-h2")

_LIGHTER_ENDS = (
    "first and last stage have one layer fewer",
    "embedding counted as a layer",
)
"""Remarks that say that embedding and head each stand for a layer when layers are shared out."""
_OFFLOADS: dict[str, tuple[str, ...]] = {
    "activation offload": ("activations",),
    "optimizer offload": ("optimizer",),
    "cpu offload true": ("optimizer", "parameters"),
}
_LAYOUT_DEFAULTS = ("cp_kind", "loss_chunks", "rank_order", "reshard_after_forward")
"""Fields of a layout that rows do not state, or seldom, and stacks may."""

Grid = tuple[int, int, int, int]
"""tp, pp, dp, cp."""


def spares_of(case: Case) -> tuple[Layout, ...]:
    """What a row may have run where nothing of `layouts_of` fits: more recomputation than its
    stack's default, the knob that users turn first when memory runs short.

    Empty where the row itself states what is recomputed, or its stack has no default.
    """
    parallel = case.row.parallel
    stated = parallel.recompute is not None or bool(parallel.recompute_modules)
    if stated or not _default(case, "recompute"):
        return ()
    defaults = {key: value for key, value in case.defaults.items() if key != "recompute"}
    usual = set(layouts_of(case))
    every = layouts_of(replace(case, defaults=defaults))
    return tuple(layout for layout in every if layout not in usual)


def layouts_of(case: Case) -> tuple[Layout, ...]:
    """Every layout that a row may have run, in lexicographic order of its choices.

    Raises:
        InputError: what the row states contradicts itself or its cluster.
    """
    grids = list(itertools.islice(_grids(case), _MOST_GRIDS))
    if not grids:
        raise InputError(_contradiction(case))
    share = max(8, MOST_LAYOUTS // len(grids))
    found: list[Layout] = []
    misfits: list[str] = []
    for grid in grids:
        for choices in itertools.islice(_choices(case, grid), share):
            try:
                found.append(_layout(case, choices))
            except ValidationError as error:
                misfits.append(describe_misfits(error, most=2))
            except ShardwrightError as error:
                misfits.append(str(error))
    if not found:
        reason = misfits[0] if misfits else "its choices do not fit together"
        raise InputError(f"the row states no layout: {reason}")
    return tuple(found)


def _contradiction(case: Case) -> str:
    parallel = case.row.parallel
    degrees = " x ".join(
        f"{name} {value}"
        for name in ("tp", "pp", "dp", "cp")
        if (value := getattr(parallel, name)) is not None
    )
    return f"{degrees} does not make up {case.num_gpus} GPUs"


def _grids(case: Case) -> Iterator[Grid]:
    """Every grid of the stated degrees that fills the cluster; cp is 1 where nothing needs it."""
    parallel, gpus = case.row.parallel, case.num_gpus
    layers = case.model.decoder.num_layers
    per_node = case.profile.devices.groups[0].devices_per_node
    tps = [parallel.tp] if parallel.tp else [d for d in divisors(gpus) if d <= per_node]
    pps = [parallel.pp] if parallel.pp else [d for d in divisors(gpus) if d <= min(layers, 64)]
    known = None not in (parallel.tp, parallel.pp, parallel.dp)
    for tp, pp in itertools.product(tps, pps):
        rest, over = divmod(gpus, tp * pp)
        if over:
            continue
        if parallel.cp is not None:
            cp = parallel.cp
        else:
            cp = rest // parallel.dp if known and parallel.dp else 1
        dp = parallel.dp or max(1, rest // cp)
        if cp >= 1 and dp * cp == rest:
            yield tp, pp, dp, cp


def _choices(case: Case, grid: Grid) -> Iterator[dict[str, Any]]:
    """Every choice within a grid, in lexicographic order of the fields below."""
    tp, pp, dp, cp = grid
    open_fields: dict[str, list[Any]] = {
        "micro_batch": _micro_batches(case, dp),
        "schedule": _schedules(case, pp),
        "vpp": _vpps(case, pp),
        "zero": _zeros(case, dp * cp),
        "ep": _eps(case, tp * cp * dp),
        "etp": _etps(case, tp),
        "sequence_parallel": _sequence_parallel(case, tp),
        "recompute": _recomputes(case),
    }
    for values in itertools.product(*open_fields.values()):
        chosen = dict(zip(open_fields, values, strict=True))
        if _fits_together(chosen, tp * cp * dp):
            yield {"tp": tp, "pp": pp, "dp": dp, "cp": cp, **chosen}


def _fits_together(chosen: Mapping[str, Any], ranks_per_stage: int) -> bool:
    schedule, vpp = chosen["schedule"], chosen["vpp"]
    if schedule in _ONE_CHUNK and vpp > 1:
        return False
    if schedule in _TWO_CHUNKS and vpp != 2:
        return False
    if schedule == "interleaved-1f1b" and vpp == 1:
        return False
    return bool(ranks_per_stage % (chosen["ep"] * chosen["etp"]) == 0)


def _default(case: Case, name: str) -> list[Any]:
    """What the row's stack does where the row says nothing, as candidates."""
    known = case.defaults.get(name)
    if known is None:
        return []
    return list(known) if isinstance(known, (list, tuple)) else [known]


def _micro_batches(case: Case, dp: int) -> list[int]:
    """As stated, else by the count of micro-batches, else powers of two that share the batch."""
    parallel = case.row.parallel
    if parallel.micro_batch is not None:
        return [parallel.micro_batch]
    per_replica = case.training.global_batch // dp
    if parallel.num_microbatches is not None:
        return [max(1, per_replica // parallel.num_microbatches)]
    known = [size for size in _default(case, "micro_batch") if per_replica % size == 0]
    return known or [size for size in (1, 2, 4, 8, 16, 32) if per_replica % size == 0] or [1]


def _schedules(case: Case, pp: int) -> list[str | None]:
    """As stated; else left to the number of chunks per rank (None)."""
    stated = case.row.parallel.schedule
    if pp == 1:
        return [None]
    if stated is None:
        return _default(case, "schedule") or [None]
    name = stated.strip().lower()
    name = _SCHEDULES.get(name, name)
    if name not in set(ScheduleName) - {ScheduleName.CUSTOM}:
        raise InputError(f"the schedule {stated!r} is not known")
    return [name]


def _vpps(case: Case, pp: int) -> list[int]:
    """As stated, else as the schedule says, else the divisors of a rank's layers."""
    if pp == 1:
        return [1]
    stated = case.row.parallel.vpp
    schedules = _schedules(case, pp)
    if stated is not None:
        return [stated]
    if set(schedules) <= set(_ONE_CHUNK):
        return [1]
    if set(schedules) <= set(_TWO_CHUNKS):
        return [2]
    known = _default(case, "vpp")
    layers = -(-case.model.decoder.num_layers // pp)
    return known or [chunks for chunks in divisors(layers) if chunks <= 16][:5]


def _zeros(case: Case, replicas: int) -> list[int]:
    """One replica alone has nothing to shard, whatever is said of ZeRO."""
    if replicas == 1:
        return [0]
    stated = case.row.parallel.zero
    return [stated] if stated is not None else _default(case, "zero") or [0, 1]


def _experts(case: Case) -> int:
    """Routed experts of a layer; 0 for a dense model."""
    bodies = (branch.body for layer in case.model.decoder.layers() for branch in layer.branches)
    return max((body.num_experts for body in bodies if isinstance(body, MoeBlock)), default=0)


def _is_latent(case: Case) -> bool:
    """Whether layers have multi-head latent attention."""
    bodies = (branch.body for layer in case.model.decoder.layers() for branch in layer.branches)
    return any(isinstance(body, LatentAttentionBlock) for body in bodies)


def _eps(case: Case, ranks: int) -> list[int]:
    experts, stated = _experts(case), case.row.parallel.ep
    if not experts:
        return [1]
    if stated is not None:
        return [stated]
    known = _default(case, "ep")
    return known or [d for d in divisors(experts) if ranks % d == 0 and d <= 64]


def _etps(case: Case, tp: int) -> list[int]:
    stated = case.row.parallel.etp
    if not _experts(case):
        return [1]
    return [stated] if stated is not None else _default(case, "etp") or sorted({1, tp})


def _sequence_parallel(case: Case, tp: int) -> list[bool]:
    if tp == 1:
        return [False]
    stated = case.row.parallel.sequence_parallel
    return [stated] if stated is not None else _default(case, "sequence_parallel") or [False, True]


def _recomputes(case: Case) -> list[Recompute]:
    parallel = case.row.parallel
    remarked = re.search(r"([\w+]+) recompute", remarks_of(case.row))
    modules = parallel.recompute_modules or _known(remarked[1].split("+") if remarked else ())
    if parallel.recompute is not None:
        policies: list[Any] = [parallel.recompute]
    elif modules:
        policies = ["selective"]
    else:
        policies = _default(case, "recompute") or ["none", "selective", "full"]
    names = _known(modules or tuple(case.defaults.get("recompute_modules") or ()))
    if not names and policies == ["none", "selective", "full"]:
        cheap = ["norm", "moe_act" if _experts(case) else "mlp_act"]
        cheap += ["mla_up_proj"] if _is_latent(case) else []
        sets: list[Any] = [None, _known(cheap), _known((*cheap, "mlp"))]
        sets += [_known((*cheap, "mlp", "moe"))] if _experts(case) else []
        selective = [Recompute(policy="selective", modules=some) for some in sets]
        return [Recompute(), *selective, Recompute(policy="full")]
    return [
        Recompute(policy=policy, modules=(names or None) if policy == "selective" else None)
        for policy in policies
    ]


def _known(modules: Iterable[str]) -> tuple[RecomputeModule, ...]:
    """Those of the names that mean a module of ours, each once."""
    return tuple(dict.fromkeys(_MODULES[name] for name in modules if name in _MODULES))


def _layout(case: Case, choices: Mapping[str, Any]) -> Layout:
    """The layout of one choice; raises `InputError` where the batch cannot be shared out."""
    parallel, batch = case.row.parallel, case.training.global_batch
    made = dict(choices)
    pp, vpp = made["pp"], made["vpp"]
    if batch % (made["dp"] * made["micro_batch"]):
        raise InputError(
            f"dp {made['dp']} x micro_batch {made['micro_batch']} does not divide the batch of"
            f" {batch}"
        )
    if pp > 1 and made["schedule"] is None:
        made["schedule"] = "1f1b" if vpp == 1 else "interleaved-1f1b"
    for name in _LAYOUT_DEFAULTS:
        if name in case.defaults:
            made[name] = first_of(case.defaults[name])
    if made["zero"]:
        degree = _shard_degree(case, parallel)
        if degree is not None:
            made["zero_shard_degree"] = degree
        if parallel.reshard_after_forward is not None:
            made["reshard_after_forward"] = parallel.reshard_after_forward
    if "selective layer" in str((parallel.as_printed or {}).get("recompute", "")):
        per_stage = -(-case.model.decoder.num_layers // (pp * vpp))
        made["recompute"] = Recompute(policy="full", num_layers=-(-per_stage // 2))
    return Layout.of(
        case.model,
        case.training,
        boundaries=_boundaries(case, pp * vpp),
        compile=case.software.compile,
        offload=_offload(case),
        **made,
    )


def _shard_degree(case: Case, parallel: RowParallel) -> int | None:
    """None: all replicas. HSDP without a degree shards within a node, as PyTorch's does."""
    if parallel.is_hybrid:
        return case.profile.devices.groups[0].devices_per_node
    return parallel.zero_shard_degree if isinstance(parallel.zero_shard_degree, int) else None


def _offload(case: Case) -> tuple[str, ...]:
    remarks = remarks_of(case.row)
    stated = [what for said, parts in _OFFLOADS.items() if said in remarks for what in parts]
    return tuple(dict.fromkeys(stated)) or tuple(_default(case, "offload"))


def _boundaries(case: Case, num_stages: int) -> tuple[int, ...] | None:
    """Where stages start, if end stages have fewer layers; None: evenly."""
    remarks = (case.row.parallel.other or "").lower()
    layers = case.model.decoder.num_layers
    is_said = any(remark in remarks for remark in _LIGHTER_ENDS)
    is_customary = layers % num_stages > 0 and (layers + 2) % num_stages == 0
    if num_stages < 2 or not (is_said or is_customary):
        return None
    starts = [part.start - 1 for part in split_evenly(layers + 2, num_stages)]
    return tuple(min(max(0, start), layers) for start in starts[1:])
