"""When nothing fits: by how many bytes, and the smallest changes that make it fit.

Every suggestion was planned before it is made: a user who follows it gets a plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from shardwright.hardware_profiles.catalogue import list_nodes, node
from shardwright.planner.bounds import (
    Pricer,
    UnitBytes,
    cut_memory_bytes,
    quick_memory_bound_bytes,
    state_bound_bytes,
)
from shardwright.planner.choices import Choices
from shardwright.planner.layout_text import normalise_choices
from shardwright.planner.layouts import layout_in_words
from shardwright.planner.partition import least_memory_cut
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import search
from shardwright.planner.space import Space
from shardwright.specs import (
    Candidate,
    InputError,
    Layout,
    MemoryParts,
    NodeGroup,
    Precision,
    Prediction,
)
from shardwright.specs.ranges import MOST_DEVICES
from shardwright.specs.units import format_bytes
from shardwright.specs.world import divisors

PricerFactory = Callable[[Problem], Pricer]
Fitting = Callable[[Problem, Constraints], Candidate | None]

SHORTEST_SEQUENCE = 128
"""No shorter one is suggested: below it nobody trains a large model."""
MOST_NODES_FACTOR = 64
"""No cluster larger than this many times the user's own is suggested."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change after which a layout fits, with the problem and constraints that result."""

    text: str
    problem: Problem
    constraints: Constraints


@dataclass(frozen=True, slots=True)
class _Change:
    """What to do, in words, and what is then to be planned."""

    words: str
    problem: Problem
    constraints: Constraints


def reasons(problem: Problem, constraints: Constraints, pricer: Pricer) -> tuple[str, ...]:
    """Why nothing fits: the broken rules, or the bytes of the layout that needs least."""
    space = Space(problem, constraints)
    if not space.valid:
        return tuple(str(violation) for violation in space.violations())
    _, layout = _least_memory(problem, space, pricer)
    return (
        f"of {space.considered - space.excluded_by_rules:,} layouts none fits: of the one that"
        f" needs least ({layout_in_words(layout)}) {overflow_in_words(pricer.predict(layout))}",
    )


def completion(problem: Problem, constraints: Constraints, first: Fitting) -> Suggestion | None:
    """A layout that keeps all that is fixed and fits; None where none does."""
    change = _Change("keep what was named and choose the rest", problem, constraints)
    found = first(problem, constraints)
    return None if found is None else _suggestion(change, found)


def suggestions(
    problem: Problem, constraints: Constraints, first: Fitting
) -> tuple[Suggestion, ...]:
    """Changes of each kind that help, the smallest of its kind; in the order in which they cost
    least: allowing what was ruled out, precision, batch, sequence, hardware.

    ``first``: some layout that fits a problem and constraints, or None where none does.
    """
    known: dict[str, Candidate | None] = {}

    def fitting(change: _Change) -> Candidate | None:
        if change.words not in known:
            known[change.words] = first(change.problem, change.constraints)
        return known[change.words]

    found = []
    for alternatives in (
        *_relaxations(problem, constraints),
        _precisions(problem, constraints),
        _batches(problem, constraints),
        _sequences(problem, constraints),
        _nodes(problem, constraints, fitting),
    ):
        for change in alternatives:
            fits = fitting(change)
            if fits is not None:
                found.append(_suggestion(change, fits))
                break
    return tuple(found)


def first_fitting(
    problem: Problem, constraints: Constraints, make_pricer: PricerFactory
) -> Candidate | None:
    """Some layout that fits, or None where none does.

    The layout that needs least decides, but where its bound fits and the layout itself does not.
    """
    try:
        pricer, space = make_pricer(problem), Space(problem, constraints)
        if not space.valid:
            return None
        needed_bytes, layout = _least_memory(problem, space, pricer)
        if needed_bytes > pricer.capacity_bytes:
            return None
        prediction = pricer.predict(layout)
        if prediction.memory_verdict == "fits":
            return Candidate(layout=layout, prediction=prediction)
        ranking = search(problem, replace(constraints, top=1, time_limit_s=1e-9), pricer).ranking
    except InputError:
        # The change itself is impossible, such as a precision that the device does not compute in.
        return None
    return ranking[0].candidate if ranking else None


def _suggestion(change: _Change, fitting: Candidate) -> Suggestion:
    prediction = fitting.prediction
    text = (
        f"{change.words}: then {layout_in_words(fitting.layout)} fits, with"
        f" {format_bytes(max(prediction.peak_memory_bytes))} of"
        f" {format_bytes(prediction.memory_capacity_bytes)}"
    )
    return Suggestion(text, change.problem, change.constraints)


def _least_memory(problem: Problem, space: Space, pricer: Pricer) -> tuple[float, Layout]:
    """The layout whose bound on memory is least, the plainer where several are; and the bound."""
    open_bounds: list[tuple[float, tuple[int, ...], Choices, UnitBytes | None]] = [
        (state_bound_bytes(choices, pricer.state_bytes(choices)), choices.key, choices, None)
        for choices in _leanest(space.valid)
    ]
    heapq.heapify(open_bounds)
    best: tuple[float, Choices, tuple[int, ...]] | None = None
    while open_bounds and (best is None or open_bounds[0][0] < best[0]):
        _, key, choices, unit_bytes = heapq.heappop(open_bounds)
        if unit_bytes is None:
            unit_bytes = pricer.unit_bytes(choices)
            bound_bytes = quick_memory_bound_bytes(choices, unit_bytes)
            heapq.heappush(open_bounds, (bound_bytes, key, choices, unit_bytes))
            continue
        fixed = space.fixed_boundaries
        if fixed is not None:
            cut = tuple(layer + 1 for layer in fixed)
            needed_bytes = cut_memory_bytes(choices, unit_bytes, cut)
        else:
            needed_bytes, cut = least_memory_cut(choices, unit_bytes)
        if best is None or needed_bytes < best[0]:
            best = needed_bytes, choices, cut
    assert best is not None
    needed_bytes, choices, cut = best
    return needed_bytes, choices.layout(problem, tuple(unit - 1 for unit in cut))


def _leanest(valid: Iterable[Choices]) -> list[Choices]:
    """Choices with the smallest micro-batch of their grid; no other needs less memory.

    State does not depend on it, a unit's bytes grow with it, and so do the sequences in flight:
    min(pp - i, m) micro-batches, or all m, where m x micro_batch is what a rank is given.
    """
    smallest: dict[tuple[int, int, int], int] = {}
    listed = list(valid)
    for choices in listed:
        grid = (choices.tp, choices.pp, choices.dp)
        smallest[grid] = min(choices.micro_batch, smallest.get(grid, choices.micro_batch))
    return [
        choices
        for choices in listed
        if choices.micro_batch == smallest[choices.tp, choices.pp, choices.dp]
    ]


def _relaxations(problem: Problem, constraints: Constraints) -> Iterator[Iterator[_Change]]:
    """Each thing that the user fixed or forbade, allowed again; all of them, last."""
    single = list(_single_relaxations(constraints))
    for words, relaxed in single:
        yield iter([_Change(words, problem, relaxed)])
    if len(single) > 1:
        free = replace(constraints, fixed={}, forbidden=frozenset())
        yield iter([_Change("fix and forbid nothing", problem, free)])


def _single_relaxations(constraints: Constraints) -> Iterator[tuple[str, Constraints]]:
    for name in sorted(constraints.forbidden):
        yield f"allow {name}", replace(constraints, forbidden=constraints.forbidden - {name})
    fixed = normalise_choices(constraints.fixed)
    for name in sorted(fixed):
        others = {key: value for key, value in fixed.items() if key != name}
        yield f"leave {name} open", replace(constraints, fixed=others)


def _precisions(problem: Problem, constraints: Constraints) -> Iterator[_Change]:
    """bf16, where activations are larger now."""
    if problem.training.precision in (Precision.FP32, Precision.FP64):
        training = problem.training.model_copy(update={"precision": Precision.BF16})
        yield _Change("--precision bf16", replace(problem, training=training), constraints)


def _batches(problem: Problem, constraints: Constraints) -> Iterator[_Change]:
    """A batch that more ranks can share: the next multiple of a divisor of the world; then fewer
    sequences, which help where a stage would hold all of them at once: under 1F1B if there are no
    more than stages, under GPipe always."""
    batch, world = problem.training.global_batch, problem.world
    multiples = sorted({batch - batch % d + d for d in divisors(world) if batch % d})
    is_constrained = bool(constraints.fixed or constraints.forbidden)
    most = batch if is_constrained else min(batch, world, problem.num_units)
    fewer = [count for count in reversed(divisors(batch)) if count < most]
    for count in (*multiples, *fewer):
        training = problem.training.model_copy(update={"global_batch": count})
        yield _Change(f"--global-batch {count}", replace(problem, training=training), constraints)


def _sequences(problem: Problem, constraints: Constraints) -> Iterator[_Change]:
    """The longest that the model allows, then halves."""
    longest, seq_len = problem.model.max_seq_len, problem.training.seq_len
    candidates = [longest] if longest is not None and longest < seq_len else []
    while seq_len > SHORTEST_SEQUENCE:
        seq_len = max(SHORTEST_SEQUENCE, seq_len // 2)
        candidates.append(seq_len)
    for length in sorted(candidates, reverse=True):
        training = problem.training.model_copy(update={"seq_len": length})
        yield _Change(f"--seq-len {length}", replace(problem, training=training), constraints)


def _nodes(
    problem: Problem, constraints: Constraints, fitting: Callable[[_Change], Candidate | None]
) -> Iterator[_Change]:
    """The fewest nodes of the same kind that help, where nodes are connected: by doubling, then by
    halving the step, which takes for granted that more nodes never help less."""
    group = problem.cluster.groups[0]
    if len(problem.cluster.groups) > 1 or group.inter_node is None:
        return
    whole = _whole_node(group)
    yield from _devices_of_one_node(problem, constraints, whole)
    is_part = group.devices_per_node < whole.devices_per_node

    def change(count: int) -> _Change:
        words = _nodes_in_words(whole, count) + (" without --gpus" if is_part else "")
        return _Change(words, _with_nodes(problem, whole, count), constraints)

    too_few = group.num_devices // whole.devices_per_node
    enough = max(1, 2 * too_few)
    most = min(enough * MOST_NODES_FACTOR, MOST_DEVICES // whole.devices_per_node)
    while enough <= most and fitting(change(enough)) is None:
        too_few, enough = enough, 2 * enough
    if enough > most:
        return
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        helps = fitting(change(middle)) is not None
        too_few, enough = (too_few, middle) if helps else (middle, enough)
    yield change(enough)


def _devices_of_one_node(
    problem: Problem, constraints: Constraints, whole: NodeGroup
) -> Iterator[_Change]:
    """More devices of the node of which the user asked for a part."""
    first = problem.cluster.groups[0].devices_per_node + 1
    for count in range(first, whole.devices_per_node):
        part = whole.model_copy(update={"devices_per_node": count})
        yield _Change(f"--gpus {count}", _with_nodes(problem, part, 1), constraints)


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
        return f"--cluster {group.name}:{count}"
    return f"{count} such nodes"


def _with_nodes(problem: Problem, group: NodeGroup, num_nodes: int) -> Problem:
    groups = (group.model_copy(update={"num_nodes": num_nodes}),)
    devices = problem.cluster.model_copy(update={"groups": groups})
    return replace(problem, profile=problem.profile.model_copy(update={"devices": devices}))


def overflow_in_words(prediction: Prediction) -> str:
    """By how many bytes the fullest pipeline rank exceeds the capacity, and what fills it."""
    peak = max(prediction.peak_memory_bytes)
    rank = prediction.peak_memory_bytes.index(peak)
    capacity = prediction.memory_capacity_bytes
    return (
        f"pipeline rank {rank} needs {peak:,} bytes ({format_bytes(peak)}), {peak - capacity:,}"
        f" more than the {capacity:,} bytes ({format_bytes(capacity)}) that are usable:"
        f" {parts_in_words(prediction.memory[rank])}"
    )


def parts_in_words(memory: MemoryParts) -> str:
    """``weights 1.2 GiB, gradients 2.4 GiB``: parts that are there, largest first."""
    parts = {name: getattr(memory, name) for name in MemoryParts.model_fields}
    largest = sorted((item for item in parts.items() if item[1]), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in largest)
