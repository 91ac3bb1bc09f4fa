"""Which layers each virtual pipeline stage holds, by Megatron-LM's and DeepSpeed's options."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.planner.exporters.megatron.stages import parse_layout_string
from shardwright.planner.importers.megatron.arguments import Arguments
from shardwright.specs import InputError
from shardwright.specs.ranges import MOST_LAYERS
from shardwright.specs.world import split_evenly


@dataclass(frozen=True, slots=True)
class Stages:
    """The pipeline as the arguments cut it."""

    pp: int
    vpp: int
    counts: tuple[int, ...] | None
    """Layers of each of the pp x vpp virtual stages in model order; None where the number of
    layers is not known."""
    letters: tuple[str, ...] | None = None
    """Of a layout string: what each virtual stage holds."""
    conflict: str | None = None
    """Why Megatron-LM would refuse it."""

    @property
    def per_rank(self) -> tuple[int, ...] | None:
        """Layers of each pipeline rank."""
        if self.counts is None:
            return None
        return tuple(sum(self.counts[rank :: self.pp]) for rank in range(self.pp))

    @property
    def stops(self) -> tuple[int, ...] | None:
        """The layers at which the virtual stages stop."""
        if self.counts is None:
            return None
        return tuple(sum(self.counts[: place + 1]) for place in range(len(self.counts)))


def stages_of(arguments: Arguments, num_layers: int | None) -> Stages:
    """The stages; raises `InputError` where options contradict each other or the layers."""
    pp = arguments.count("pipeline-model-parallel-size") or 1
    if pp > MOST_LAYERS:
        raise InputError(f"--pipeline-model-parallel-size is {pp}", fix="correct the script")
    text = arguments.text("pipeline-model-parallel-layout")
    if text is not None:
        return _of_layout(text, pp, num_layers)
    pattern = arguments.text("hybrid-layer-pattern")
    if pattern is not None and "|" in pattern:
        return _of_pattern(pattern, pp)
    vpp = _virtual(arguments, pp, num_layers)
    if num_layers is None:
        return Stages(pp, vpp, None)
    if vpp * pp > MOST_LAYERS:
        raise InputError(
            f"{pp} x {vpp} virtual stages are more than {MOST_LAYERS}", fix="correct the script"
        )
    first = arguments.whole("decoder-first-pipeline-num-layers")
    last = arguments.whole("decoder-last-pipeline-num-layers")
    if pp > 1 and (first is not None or last is not None):
        return _uneven_ends(num_layers, pp, vpp, first, last)
    if arguments.has("deepspeed") and pp > 1 and vpp == 1:
        return _of_deepspeed(arguments, num_layers, pp)
    embedding = arguments.has("account-for-embedding-in-pipeline-split")
    loss = arguments.has("account-for-loss-in-pipeline-split")
    return _even(num_layers, pp, vpp, embedding=embedding, loss=loss)


def _virtual(arguments: Arguments, pp: int, num_layers: int | None) -> int:
    """Virtual stages per pipeline rank; 1 where none are asked for or there is no pipeline."""
    if pp == 1:
        return 1
    direct = arguments.count("num-virtual-stages-per-pipeline-rank")
    if direct is not None:
        return direct
    each = arguments.count("num-layers-per-virtual-pipeline-stage")
    if each is None or num_layers is None:
        return 1
    units = num_layers + arguments.has("account-for-embedding-in-pipeline-split") + (
        arguments.has("account-for-loss-in-pipeline-split"))  # fmt: skip
    return max(1, units // pp // each)


def _of_layout(text: str, pp: int, num_layers: int | None) -> Stages:
    try:
        letters = parse_layout_string(text)
    except ValueError as error:
        raise InputError(
            f"--pipeline-model-parallel-layout {text}: {error}", fix="correct the script"
        ) from None
    counts = tuple(stage.count("t") for stage in letters)
    conflict = None
    if len(letters) % pp or len(letters) > MOST_LAYERS:
        raise InputError(
            f"--pipeline-model-parallel-layout has {len(letters)} stages, which is no multiple of"
            f" --pipeline-model-parallel-size {pp}",
            fix="correct the script",
        )
    if num_layers is not None and sum(counts) != num_layers:
        raise InputError(
            f"--pipeline-model-parallel-layout places {sum(counts)} layers, but --num-layers is"
            f" {num_layers}",
            fix="correct the script",
        )
    whole = "".join(letters)
    if not (whole.startswith("E") and whole.endswith("L")):
        conflict = "the pipeline layout does not begin with E and end with L"
    return Stages(pp, len(letters) // pp, counts, tuple(letters), conflict)


def _of_pattern(pattern: str, pp: int) -> Stages:
    pieces = pattern.partition("/")[0].split("|")
    if len(pieces) % pp:
        raise InputError(
            f"--hybrid-layer-pattern has {len(pieces)} stages, which is no multiple of"
            f" --pipeline-model-parallel-size {pp}",
            fix="correct the script",
        )
    return Stages(pp, len(pieces) // pp, tuple(len(piece.strip()) for piece in pieces))


def _uneven_ends(num_layers: int, pp: int, vpp: int, first: int | None, last: int | None) -> Stages:
    """First and last rank as stated, the others share what is left; chunks of a rank are equal."""
    given = (first or 0) + (last or 0)
    middle = pp - (first is not None) - (last is not None)
    left = num_layers - given
    if left < 0 or (first is not None and first < 0) or (middle == 0 and left):
        raise InputError(
            f"first and last stage hold {given} of {num_layers} layers, with {middle} stages in"
            " between",
            fix="correct --decoder-first-pipeline-num-layers and -last-",
        )
    shares = [len(part) for part in split_evenly(left, middle)] if middle else []
    ranks = [
        *([first] if first is not None else []),
        *shares,
        *([last] if last is not None else []),
    ]
    conflict = None
    if middle and left % middle:
        conflict = f"{left} layers do not divide over the {middle} stages in between"
    if any(count % vpp for count in ranks):
        conflict = f"layers of a stage do not divide into {vpp} virtual stages"
    chunks = [[len(part) for part in split_evenly(count, vpp)] for count in ranks]
    counts = tuple(chunks[rank][chunk] for chunk in range(vpp) for rank in range(pp))
    return Stages(pp, vpp, counts, None, conflict)


def _even(num_layers: int, pp: int, vpp: int, *, embedding: bool, loss: bool) -> Stages:
    """Equal stages, where the embedding and the loss may each count as a layer."""
    units = num_layers + embedding + loss
    counts = [len(part) for part in split_evenly(units, pp * vpp)]
    conflict = None
    if pp > 1 and units % (pp * vpp):
        counted = f"{num_layers} layers" if units == num_layers else f"{units} layers and ends"
        conflict = f"{counted} do not divide into {pp * vpp} stages"
    counts[0] -= embedding
    counts[-1] -= loss
    if min(counts) < 0:
        counts = [len(part) for part in split_evenly(num_layers, pp * vpp)]
    return Stages(pp, vpp, tuple(counts), None, conflict)


def _of_deepspeed(arguments: Arguments, num_layers: int, pp: int) -> Stages:
    """DeepSpeed balances what its partition method counts: layers, and with ``embedding`` the two
    ends; as `partition_balanced` does, each stage is filled up to the smallest possible maximum."""
    method = (arguments.text("pp-partition-method") or "type:transformer").lower()
    ends = "embed" in method
    weights = [1 if ends else 0, *[1] * num_layers, 1 if ends else 0]
    most = -(-sum(weights) // pp)
    counts: list[int] = []
    layer = 0
    for stage in range(pp):
        room = most - (1 if ends and stage == 0 else 0)
        rest = num_layers - layer
        taken = min(room, rest)
        if stage == pp - 1:
            taken = rest
        counts.append(taken)
        layer += taken
    return Stages(pp, 1, tuple(counts))
