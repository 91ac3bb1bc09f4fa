"""What a user could change where nothing fits, kind by kind, each kind from the least change up.

A change says what to type, and which problem and constraints result. Whether it helps is found out
by planning it (`planner.suggest`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwright.hardware_profiles.catalogue import list_nodes, node
from shardwright.planner.bounds_text import bounds_text
from shardwright.planner.layout_text import normalise_choices
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.specs import NodeGroup, Precision
from shardwright.specs.ranges import MOST_DEVICES
from shardwright.specs.world import divisors

SHORTEST_SEQUENCE = 128
"""No shorter one is suggested: below it nobody trains a large model."""
MOST_NODES_FACTOR = 64
"""No cluster larger than this many times the user's own is suggested."""
ADAPTER_RANK = 16
"""Of suggested adapters: a common choice (Hu et al. 2021 use 4 to 64)."""
_OFFLOADS = ("optimizer", "activations+optimizer", "activations+optimizer+parameters")
_LOSS_CHUNKS = (4, 16)


@dataclass(frozen=True, slots=True)
class Change:
    """What to do, in words, and what is then to be planned."""

    words: str
    """Options to type; or what they do, with the options in parentheses behind."""
    problem: Problem
    constraints: Constraints
    states_batch: bool = False
    """Whether the words say the global batch, so that none is assumed any more."""


Helps = Callable[[Change], bool]


def changes(problem: Problem, constraints: Constraints, helps: Helps) -> Iterator[Iterator[Change]]:
    """Each kind with its changes, in the order in which kinds cost least: allowing what was ruled
    out, how numbers are kept, where they are kept, the batch, the sequence, hardware, and last
    training less than the whole model."""
    yield from _relaxations(problem, constraints)
    yield _precisions(problem, constraints)
    yield _gradient_dtypes(problem, constraints)
    yield _optimizers(problem, constraints)
    yield _fixing(problem, constraints, "loss_chunks", _LOSS_CHUNKS)
    yield _fixing(problem, constraints, "offload", _OFFLOADS)
    yield _batches(problem, constraints)
    yield _sequences(problem, constraints)
    yield more_nodes(problem, constraints, helps)
    yield _adapters(problem, constraints)


def combined(problem: Problem, constraints: Constraints) -> Iterator[Change]:
    """Several changes at once, where no single one helps: the smallest optimizer state, then
    adapters, each with the shortest batch, sequences halved until it fits."""
    if constraints.are_any or problem.training.trainable != "full":
        return
    for changed, words in (
        ({"optimizer": "adamw-8bit"}, "--optimizer adamw-8bit"),
        ({"trainable": f"qlora:{ADAPTER_RANK}"}, f"--trainable qlora:{ADAPTER_RANK}"),
    ):
        base = _training(problem, **_fields(problem, changed))
        for one in _sequences(base, constraints):
            offloaded = _with_fixed(constraints, "offload", _OFFLOADS[-1])
            for limits, more in ((constraints, ""), (offloaded, f" --fix offload={_OFFLOADS[-1]}")):
                yield Change(f"{words} {one.words}{more}", one.problem, limits)


def _fields(problem: Problem, changed: Mapping[str, str]) -> dict[str, Any]:
    if "optimizer" not in changed:
        return dict(changed)
    name = changed["optimizer"]
    return {"optimizer": problem.training.optimizer.model_copy(update={"name": name})}


def _training(problem: Problem, **changed: Any) -> Problem:
    return replace(problem, training=problem.training.model_copy(update=changed))


# What was ruled out


def _relaxations(problem: Problem, constraints: Constraints) -> Iterator[Iterator[Change]]:
    """Each thing that the user fixed, forbade or bounded, allowed again; all of them, last."""
    single = list(_single_relaxations(constraints))
    for words, relaxed in single:
        yield iter([Change(words, problem, relaxed)])
    if len(single) > 1:
        free = replace(constraints, fixed={}, forbidden=frozenset(), bounds=())
        given = {"--fix": constraints.fixed, "--forbid": constraints.forbidden,
                 "--bound": constraints.bounds}  # fmt: skip
        options = " ".join(f"without {option}" for option, value in given.items() if value)
        yield iter([Change(f"rule out nothing ({options})", problem, free)])


def _single_relaxations(constraints: Constraints) -> Iterator[tuple[str, Constraints]]:
    for name in sorted(constraints.forbidden):
        left = constraints.forbidden - {name}
        option = _option("--forbid", ",".join(sorted(left)))
        yield f"allow {name} ({option})", replace(constraints, forbidden=left)
    fixed = normalise_choices(constraints.fixed)
    for name in sorted(fixed):
        others = {key: value for key, value in fixed.items() if key != name}
        option = _option("--fix", choices_text(others))
        yield f"leave {name} open ({option})", replace(constraints, fixed=others)
    for bound in constraints.bounds:
        rest = tuple(other for other in constraints.bounds if other != bound)
        option = _option("--bound", bounds_text(rest))
        yield f"drop the bound {bound} ({option})", replace(constraints, bounds=rest)


def _option(name: str, value: str) -> str:
    return f"{name} '{value}'" if value else f"without {name}"


def choices_text(choices: Mapping[str, ChoiceValue]) -> str:
    """Named choices as `parse_choices` reads them."""
    return ",".join(f"{name}={value_text(value)}" for name, value in choices.items())


def value_text(value: ChoiceValue) -> str:
    """One choice as it is typed; stages as ranges."""
    if isinstance(value, tuple):
        starts = (0, *value[:-1])
        return "/".join(f"{start}-{stop}" for start, stop in zip(starts, value, strict=True))
    return str(value).lower()


# How numbers are kept, and where


def _precisions(problem: Problem, constraints: Constraints) -> Iterator[Change]:
    """bf16, where activations are larger now; then without a copy in fp32."""
    now = problem.training.precision
    if now in (Precision.FP32, Precision.FP64):
        yield _precision(problem, constraints, Precision.BF16)
    if now != Precision.BF16_PURE and problem.training.dtypes.master is not None:
        yield _precision(problem, constraints, Precision.BF16_PURE)


def _precision(problem: Problem, constraints: Constraints, wanted: Precision) -> Change:
    return Change(f"--precision {wanted}", _training(problem, precision=wanted), constraints)


def _gradient_dtypes(problem: Problem, constraints: Constraints) -> Iterator[Change]:
    """Gradients summed in two bytes, where the precision's weights are."""
    dtypes = problem.training.dtypes
    if dtypes.gradient_bytes > dtypes.parameter_bytes:
        changed = _training(problem, gradient_dtype=dtypes.parameter)
        yield Change(f"--gradient-dtype {dtypes.parameter}", changed, constraints)


def _optimizers(problem: Problem, constraints: Constraints) -> Iterator[Change]:
    """Fewer bytes of moments for each parameter."""
    if problem.training.optimizer.name != "adamw":
        return
    for name in ("adamw-8bit", "adafactor"):
        changed = _training(problem, **_fields(problem, {"optimizer": name}))
        yield Change(f"--optimizer {name}", changed, constraints)


def _fixing(
    problem: Problem,
    constraints: Constraints,
    name: str,
    values: tuple[ChoiceValue, ...],
) -> Iterator[Change]:
    """A choice that is not searched for, fixed: host memory is slow, and not everyone's."""
    fixed = normalise_choices(constraints.fixed)
    if name in fixed or name in constraints.forbidden:
        return
    for value in values:
        limits = _with_fixed(constraints, name, value)
        option = _option("--fix", choices_text(normalise_choices(limits.fixed)))
        yield Change(option.replace("'", ""), problem, limits)


def _with_fixed(constraints: Constraints, name: str, value: ChoiceValue) -> Constraints:
    return replace(constraints, fixed={**normalise_choices(constraints.fixed), name: value})


def _adapters(problem: Problem, constraints: Constraints) -> Iterator[Change]:
    """Adapters in place of all weights, then on frozen weights of four bits."""
    if problem.training.trainable != "full":
        return
    for kind in ("lora", "qlora"):
        text = f"{kind}:{ADAPTER_RANK}"
        yield Change(f"--trainable {text}", _training(problem, trainable=text), constraints)


# How much is trained on at once


def _batches(problem: Problem, constraints: Constraints) -> Iterator[Change]:
    """A batch that more ranks can share: the next multiple of a divisor of the world; then fewer
    sequences, which help where a stage would hold all of them at once: under 1F1B if there are no
    more than stages, under GPipe always."""
    batch, world = problem.training.global_batch, problem.world
    multiples = sorted({batch - batch % d + d for d in divisors(world) if batch % d})
    most = batch if constraints.are_any else min(batch, world, problem.num_units)
    fewer = [count for count in reversed(divisors(batch)) if count < most]
    for count in (*multiples, *fewer):
        changed = _training(problem, global_batch=count)
        yield Change(f"--global-batch {count}", changed, constraints, states_batch=True)


def _sequences(problem: Problem, constraints: Constraints) -> Iterator[Change]:
    """The longest that the model allows, then halves."""
    longest, seq_len = problem.model.max_seq_len, problem.training.seq_len
    candidates = [longest] if longest is not None and longest < seq_len else []
    while seq_len > SHORTEST_SEQUENCE:
        seq_len = max(SHORTEST_SEQUENCE, seq_len // 2)
        candidates.append(seq_len)
    for length in sorted(candidates, reverse=True):
        yield Change(f"--seq-len {length}", _training(problem, seq_len=length), constraints)


# Hardware


def more_nodes(problem: Problem, constraints: Constraints, helps: Helps) -> Iterator[Change]:
    """The fewest nodes of the same kind that help, where nodes are connected: by doubling, then by
    halving the step, which takes for granted that more nodes never help less."""
    group = problem.cluster.groups[0]
    if len(problem.cluster.groups) > 1 or group.inter_node is None:
        return
    whole = _whole_node(group)
    yield from _devices_of_one_node(problem, constraints, whole)

    def change(count: int) -> Change:
        changed = with_nodes(problem, whole, count)
        return Change(_nodes_in_words(whole, count), changed, constraints)

    too_few = group.num_devices // whole.devices_per_node
    enough = max(1, 2 * too_few)
    most = min(enough * MOST_NODES_FACTOR, MOST_DEVICES // whole.devices_per_node)
    while enough <= most and not helps(change(enough)):
        too_few, enough = enough, 2 * enough
    if enough > most:
        return
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if helps(change(middle)) else (middle, enough)
    yield change(enough)


def _devices_of_one_node(
    problem: Problem, constraints: Constraints, whole: NodeGroup
) -> Iterator[Change]:
    """More devices of the node of which the user asked for a part."""
    first = problem.cluster.groups[0].devices_per_node + 1
    for count in range(first, whole.devices_per_node):
        part = whole.model_copy(update={"devices_per_node": count})
        yield Change(f"--gpus {count}", with_nodes(problem, part, 1), constraints)


def _whole_node(group: NodeGroup) -> NodeGroup:
    """The node type with all its devices, where the user asked for a part of one node."""
    if group.name not in list_nodes():
        return group
    whole = node(group.name)
    if whole.devices_per_node <= group.devices_per_node:
        return group
    return whole.model_copy(update={"accelerator": group.accelerator})


def _nodes_in_words(group: NodeGroup, count: int) -> str:
    """What to type, where the cluster has a name in the catalogue."""
    if group.name in list_nodes():
        return f"--cluster {group.name}:{count} (in place of --gpus or --nodes)"
    return f"{count} such nodes"


def with_nodes(problem: Problem, group: NodeGroup, num_nodes: int) -> Problem:
    """The problem on so many nodes of one type."""
    groups = (group.model_copy(update={"num_nodes": num_nodes}),)
    devices = problem.cluster.model_copy(update={"groups": groups})
    return replace(problem, profile=problem.profile.model_copy(update={"devices": devices}))
