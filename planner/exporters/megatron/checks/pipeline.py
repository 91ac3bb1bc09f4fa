"""Rules 19 to 28: stages, virtual stages and their schedule."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.megatron.checks.case import (
    ACCOUNT_FLAGS,
    ENDS_FLAGS,
    VPP_FLAGS,
    Broken,
    Case,
    Rule,
)
from shardwright.planner.exporters.megatron.stages import parse_layout_string
from shardwright.specs.world import divisors, nearest

_PLACED = (*ENDS_FLAGS, "--pipeline-model-parallel-layout", "--hybrid-layer-pattern")


def _counted(case: Case) -> int:
    """Layers, and the ends that count as one each."""
    return case.num_layers + len(case.arguments.present(ACCOUNT_FLAGS))


def even_stages(case: Case) -> Iterator[Broken]:
    """Core r0.9.0 does not say so without virtual stages, and loses the layers that are left."""
    if not case.arguments.present(_PLACED) and _counted(case) % case.pp:
        yield (
            f"{_counted(case)} layers are not a multiple of pp = {case.pp}",
            f"pp in {nearest(divisors(_counted(case)), case.pp)}",
        )


def virtual_stages(case: Case) -> Iterator[Broken]:
    given = case.arguments.present(VPP_FLAGS)
    if len(given) > 1:
        yield f"{' and '.join(given)} say the same thing; one may be given", None
    each = case.arguments.number("--num-layers-per-virtual-pipeline-stage")
    if each is None:
        return
    ends = case.arguments.present(ENDS_FLAGS)
    if ends:
        yield f"--num-layers-per-virtual-pipeline-stage excludes {' and '.join(ends)}", None
    if each < 1 or _counted(case) % case.pp or _counted(case) // case.pp % each:
        yield (
            f"--num-layers-per-virtual-pipeline-stage {each} does not divide"
            f" {_counted(case)} layers / pp = {case.pp}", None,
        )  # fmt: skip


def free_layout(case: Case) -> Iterator[Broken]:
    text = case.arguments.text("--pipeline-model-parallel-layout")
    if text is None:
        return
    if not case.version.rules.places_layers_freely:
        yield f"{case.version.rules.version} has no --pipeline-model-parallel-layout", None
    also = case.arguments.present((*ENDS_FLAGS, *ACCOUNT_FLAGS))
    if also:
        yield f"--pipeline-model-parallel-layout excludes {' and '.join(also)}", None
    try:
        stages = parse_layout_string(text)
    except ValueError as error:
        yield str(error), None
        return
    if len(stages) % case.pp:
        yield f"{len(stages)} stages of the layout are not a multiple of pp = {case.pp}", None
        return
    yield from _letters(case, stages)


def _letters(case: Case, stages: list[str]) -> Iterator[Broken]:
    flat, predictions = "".join(stages), case.arguments.number("--mtp-num-layers", 0)
    if not flat.startswith("E") or flat.count("E") != 1:
        yield "a pipeline layout starts with its one E", None
    if not flat.endswith("L") or flat.count("L") != 1:
        yield "a pipeline layout ends with its one L", None
    if flat.count("t") != case.num_layers:
        yield f"the layout holds {flat.count('t')} layers of {case.num_layers}", None
    if flat.count("m") != predictions:
        yield f"the layout holds {flat.count('m')} prediction layers of {predictions}", None
    holders = [index for index, letters in enumerate(stages) if "m" in letters]
    if len(holders) > 1:
        yield "layers of multi-token prediction are on several stages", None
    if "m" in flat and "t" in flat[flat.index("m") :]:
        yield "a layer follows multi-token prediction", None
    if holders and len(stages) > 1:
        first_rank = case.pp > 1 and holders[-1] % case.pp == 0
        if first_rank or holders[-1] < len(stages) - case.pp:
            yield "multi-token prediction is not in the last chunk, or on the first rank", None


def uneven_ends(case: Case) -> Iterator[Broken]:
    first, last = (case.arguments.number(flag) for flag in ENDS_FLAGS)
    given = [count for count in (first, last) if count is not None]
    if not given:
        return
    if case.arguments.present(ACCOUNT_FLAGS):
        yield "layers of the first or last stage exclude --account-for options", None
    if any(count <= 0 for count in given):
        yield "the first and the last stage have a layer at least", "a layer at least on each stage"
        return
    if any(count % case.vpp for count in given):
        yield f"layers of the ends ({given}) are not a multiple of vpp = {case.vpp}", None
    stages, layers = case.pp - len(given), case.num_layers - sum(given)
    if stages < 0 or (stages == 0) != (layers == 0):
        yield f"{layers} layers are left for {max(0, stages)} stages between the ends", None
    elif stages and (layers % stages or layers // stages % case.vpp):
        yield (
            f"{layers} layers between the ends are not a multiple of {stages} stages"
            f"{f' x vpp = {case.vpp}' if case.vpp > 1 else ''}", None,
        )  # fmt: skip
    if case.version.name == "core_r0.9.0" and case.vpp > 1:
        yield "core r0.9.0 has no uneven stages with virtual ones", "vpp = 1"


def interleaving(case: Case) -> Iterator[Broken]:
    least = 3 if case.has("--no-overlap-p2p-communication") else 2
    if case.vpp > 1 and case.pp < least:
        yield f"virtual stages need pp >= {least}, not {case.pp}", f"pp = {least}"


def microbatch_groups(case: Case) -> Iterator[Broken]:
    """With the default group of pp: m is a multiple of pp."""
    if case.vpp == 1:
        return
    group = case.arguments.number("--microbatch-group-size-per-virtual-pipeline-stage", case.pp)
    count = case.num_microbatches
    if group is None or not case.pp <= group <= count:
        yield f"groups of {group} micro-batches are not between pp = {case.pp} and {count}", None
    elif 0 < count % group < case.pp:
        yield (
            f"{count} micro-batches leave {count % group} after groups of {group}, fewer than pp ="
            f" {case.pp}", f"num_microbatches = {count // case.pp * case.pp}",
        )  # fmt: skip


def hybrid_pattern(case: Case) -> Iterator[Broken]:
    pattern = case.arguments.text("--hybrid-layer-pattern")
    if pattern is None:
        return
    also = case.arguments.present(("--num-layers", *VPP_FLAGS, *ACCOUNT_FLAGS))
    if also:
        yield f"--hybrid-layer-pattern excludes {' and '.join(also)}", None
    pieces = pattern.split("/")[0].split("|")
    if len(pieces) > 1 and len(pieces) % case.pp:
        yield f"{len(pieces)} pieces of the pattern are not a multiple of pp = {case.pp}", None
    if len(pieces) > 1 and case.arguments.present(ENDS_FLAGS):
        yield "a pattern with pieces excludes layers of the first and last stage", None


def deferred_embedding(case: Case) -> Iterator[Broken]:
    """The pipeline's dtype is always set by the training script."""
    if not case.has("--defer-embedding-wgrad-compute"):
        return
    if case.pp == 1:
        yield "--defer-embedding-wgrad-compute needs pp > 1", None
    if case.has("--no-gradient-accumulation-fusion"):
        yield "--defer-embedding-wgrad-compute needs fused gradient accumulation", None


def hybrid_context(case: Case) -> Iterator[Broken]:
    if not case.has("--hybrid-context-parallel"):
        return
    if case.pp > 1 or case.is_fsdp or case.has_cuda_graphs:
        yield "--hybrid-context-parallel excludes pp > 1, FSDP and CUDA graphs", "pp = 1"
    if case.arguments.text("--dataloader-type", "single") != "single":
        yield "--hybrid-context-parallel needs --dataloader-type single", None
    if not case.has("--calculate-per-token-loss"):
        yield "--hybrid-context-parallel needs --calculate-per-token-loss", None


def predictions(case: Case) -> Iterator[Broken]:
    depth = case.arguments.number("--mtp-num-layers", 0) or 0
    kind = case.arguments.text("--position-embedding-type", "learned_absolute")
    if case.has("--enable-hyper-connections") and (
        case.pp > 1 or case.recompute == "full" or depth
    ):
        yield "hyper-connections exclude pp > 1, full recomputation and prediction layers", None
    if depth and kind not in ("rope", "none"):
        yield f"multi-token prediction has rotary or no positions, not {kind}", None
    if depth > 1 and case.has("--overlap-moe-expert-parallel-comm"):
        yield "overlap of expert parallelism takes one prediction layer at most", None


RULES: dict[int, Rule] = {
    19: even_stages, 20: virtual_stages, 21: free_layout, 22: uneven_ends, 23: interleaving,
    24: microbatch_groups, 25: hybrid_pattern, 26: deferred_embedding, 27: hybrid_context,
    28: predictions,
}  # fmt: skip
