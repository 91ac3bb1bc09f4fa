"""Collectives by kind, size, group and how many groups communicate at once.

Called as the runtime calls them, with outputs allocated per call. Reducing kinds are measured in
every dtype, since adding up is part of their cost; the others move bytes and are measured in one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright.hardware_profiles.device import synchronize
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.timing import collector_off, summarise
from shardwright.hardware_profiles.profile import Curve, Point
from shardwright.specs.training import DType

GroupShape = tuple[int, int]
"""(Ranks per node, nodes)."""

ALIGNED_SAMPLE_S = 2e-3
"""Calls are repeated back to back until a sample lasts this long, so that the ranks' unequal
departures from the barrier do not count."""
ALIGNED_BARRIERS = 4
"""And as many times as long as a barrier, after which ranks leave apart by a part of it."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group that this rank belongs to: neighbours of a node, or equal places of several."""

    process_group: dist.ProcessGroup
    ranks: tuple[int, ...]


def _all_reduce(tensor: Tensor, group: Group) -> object:
    return dist.all_reduce(tensor, group=group.process_group)


def _all_gather(tensor: Tensor, group: Group) -> object:
    output = tensor.new_empty(len(group.ranks) * tensor.numel())
    return dist.all_gather_into_tensor(output, tensor, group=group.process_group)


def _reduce_scatter(tensor: Tensor, group: Group) -> object:
    output = tensor.new_empty(tensor.numel() // len(group.ranks))
    return dist.reduce_scatter_tensor(output, tensor, group=group.process_group)


def _all_to_all(tensor: Tensor, group: Group) -> object:
    return dist.all_to_all_single(torch.empty_like(tensor), tensor, group=group.process_group)


def _broadcast(tensor: Tensor, group: Group) -> object:
    return dist.broadcast(tensor, group.ranks[0], group=group.process_group)


def _send_there_and_back(tensor: Tensor, group: Group) -> object:
    """Two messages, one after the other: the first rank of the group to the last and back."""
    here, there = group.ranks[0], group.ranks[-1]
    if dist.get_rank() == here:
        dist.send(tensor, there, group=group.process_group)
        return dist.recv(torch.empty_like(tensor), there, group=group.process_group)
    received = torch.empty_like(tensor)
    dist.recv(received, here, group=group.process_group)
    return dist.send(received, here, group=group.process_group)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a collective is measured."""

    call: Callable[[Tensor, Group], object]
    reduces: bool = False
    gathers: bool = False
    """Its output is larger than its input by the size of the group."""
    messages: int = 1
    """One after the other in a call."""
    pairs_only: bool = False


KINDS: dict[str, Kind] = {
    "all_reduce": Kind(_all_reduce, reduces=True),
    "all_gather": Kind(_all_gather, gathers=True),
    "reduce_scatter": Kind(_reduce_scatter, reduces=True),
    "all_to_all": Kind(_all_to_all),
    "broadcast": Kind(_broadcast),
    "send_recv": Kind(_send_there_and_back, messages=2, pairs_only=True),
}


def group_shapes(ranks_per_node: int, num_nodes: int) -> list[GroupShape]:
    """(Ranks per node, nodes) of groups: whatever divides both, those that a layout's axes can
    have.

    >>> group_shapes(2, 2)
    [(2, 1), (1, 2), (2, 2)]
    """
    widths, counts = _divisors(ranks_per_node), _divisors(num_nodes)
    return [(width, nodes) for nodes in counts for width in widths if width * nodes > 1]


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def concurrencies(ranks_per_node: int, num_ranks: int) -> list[int]:
    """One group alone, with so many ranks of each node, and all of them, on all nodes, at once."""
    return sorted({1, ranks_per_node // num_ranks})


def collective_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``{kind}`` by input bytes per rank; to be called by every rank, yields alike on each.

    Which rank measures what is known to all of them, so none waits for one that is not coming.
    """
    cases = _cases(bench)
    point_s = budget_s / max(1, len(cases)) / len(bench.plan.collective_bytes)
    groups = {shape: _own_group(bench, shape) for shape in sorted({case.shape for case in cases})}
    for case in cases:
        taking_part = groups[case.shape] if case.includes(bench) else None
        points: list[Point] = []
        for num_bytes in _sizes(bench, case):
            if points and points[-1].median_s > bench.plan.longest_collective_s:
                break
            bench.barrier()
            samples = _samples(bench, case, taking_part, num_bytes, point_s)
            points.append(_slowest(bench, num_bytes, samples))
        yield Curve(
            quantity="bytes", op=case.name, dtype=case.dtype, group_shape=case.shape,
            concurrency=case.concurrency, points=tuple(points),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One curve."""

    name: str
    dtype: DType
    shape: GroupShape
    concurrency: int
    """Groups of a node at once."""

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return math.prod(self.shape)

    def includes(self, bench: Bench) -> bool:
        """Whether this rank's group takes part: all do where a node's groups all do, else the first
        of the first nodes."""
        width, nodes = self.shape
        per_node = bench.party.ranks_per_node
        node, place = divmod(bench.rank, per_node)
        return place // width < self.concurrency and (
            node < nodes or self.concurrency * width == per_node
        )


def _cases(bench: Bench) -> list[Case]:
    dtypes, per_node = bench.plan.dtypes, bench.party.ranks_per_node
    shapes = group_shapes(per_node, bench.party.num_nodes)
    pairs = [(2, 1)] * (per_node > 1) + [(1, 2)] * (bench.party.num_nodes > 1)
    return [
        Case(name, dtype, shape, concurrency)
        for name, kind in KINDS.items()
        for dtype in (dtypes if kind.reduces else dtypes[:1])
        for shape in (pairs if kind.pairs_only else shapes)
        for concurrency in concurrencies(per_node, shape[0])
    ]


def _own_group(bench: Bench, shape: GroupShape) -> Group | None:
    """This rank's group of that shape, None for those left over; every rank takes part in making
    all of them."""
    own: Group | None = None
    for ranks in groups_of(shape, bench.party.ranks_per_node, bench.party.num_nodes):
        process_group = dist.new_group(list(ranks))
        if bench.rank in ranks:
            own = Group(process_group, ranks)
    return own


def groups_of(shape: GroupShape, ranks_per_node: int, num_nodes: int) -> Iterator[tuple[int, ...]]:
    """The ranks of all groups of a shape that lie side by side; what is left over is in none.

    >>> list(groups_of((1, 2), 2, 2))
    [(0, 2), (1, 3)]
    """
    width, nodes = shape
    for first_node in range(0, num_nodes - nodes + 1, nodes):
        for place in range(0, ranks_per_node - width + 1, width):
            firsts = [(first_node + n) * ranks_per_node + place for n in range(nodes)]
            yield tuple(first + i for first in firsts for i in range(width))


def _sizes(bench: Bench, case: Case) -> list[int]:
    """Input bytes; what is gathered is no larger than the largest input of the other kinds."""
    sizes = bench.plan.collective_bytes
    grows = case.size if case.kind.gathers else 1
    return [num_bytes for num_bytes in sizes if num_bytes * grows <= max(sizes)]


def _samples(
    bench: Bench, case: Case, group: Group | None, num_bytes: int, point_s: float
) -> list[float]:
    """Seconds per message, of as many samples as the ranks of the group agree on."""
    if group is None:
        return []
    kind, arena = case.kind, bench.arena(case.dtype)
    numel = num_bytes // arena.element_bytes
    aligned_s = max(ALIGNED_SAMPLE_S, ALIGNED_BARRIERS * _barrier_s(bench, group))

    def sample(calls: int) -> float:
        tensors = [arena.take(numel) for _ in range(calls)]
        _align(bench, group)
        started = time.perf_counter()
        for tensor in tensors:
            kind.call(tensor, group)
        synchronize(bench.device)
        return (time.perf_counter() - started) / calls / kind.messages

    with collector_off():
        sample(1)
        once_s = _agreed(bench, group, sample(1))
        calls = max(1, min(64, round(aligned_s / once_s)))
        wanted = max(bench.plan.min_samples, min(30, round(point_s / (once_s * calls))))
        return [sample(calls) for _ in range(wanted)]


def _barrier_s(bench: Bench, group: Group) -> float:
    """What a barrier takes, on every rank of the group."""
    _align(bench, group)
    started = time.perf_counter()
    _align(bench, group)
    return _agreed(bench, group, time.perf_counter() - started)


def _align(bench: Bench, group: Group) -> None:
    """Every rank of the group leaves at about the same time."""
    if bench.device.type == "cpu":
        dist.barrier(group=group.process_group)
    else:
        dist.barrier(group=group.process_group, device_ids=[bench.device.index])
    synchronize(bench.device)


def _agreed(bench: Bench, group: Group, seconds: float) -> float:
    """The slowest rank's figure, on every rank of the group."""
    value = torch.tensor([seconds], dtype=torch.float32, device=bench.device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group.process_group)
    return float(value)


def _slowest(bench: Bench, num_bytes: int, samples: list[float]) -> Point:
    """A call is over when its last rank is: the slowest rank's median and spread."""
    own = summarise(num_bytes, samples) if samples else Point(num_bytes, 0.0, 0.0, 1)
    mine = torch.tensor([own.median_s, own.spread_s, own.n], dtype=torch.float32,
                        device=bench.device)  # fmt: skip
    all_ranks = mine.new_empty(bench.world * 3)
    dist.all_gather_into_tensor(all_ranks, mine)
    rows = all_ranks.view(bench.world, 3).tolist()
    median_s, spread_s, count = max(rows)
    return Point(num_bytes, median_s, spread_s, round(count))
