"""How much slower computing gets while several ranks of the node compute at once.

Ranks share cores, caches and memory. Which ranks do, their claims tell: those of a node, or of
several nodes that are containers of one machine; all such sets measure at the same time. A few
typical operations are repeated by 1, 2, .. ranks at once for a while; the mean over that while
counts, since a rank that shares a core is halted for longer than a call lasts. Curves are called
``shared/{kind}``, and their ratios are what matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.distributed as dist
from torch.nn import functional

from shardwright.hardware_profiles.device import synchronize
from shardwright.hardware_profiles.measure.bench import Bench
from shardwright.hardware_profiles.measure.timing import Arena, collector_off, summarise
from shardwright.hardware_profiles.profile import Curve, Point
from shardwright.specs.training import DType

Operation = Callable[[], object]
Maker = Callable[[Arena, int], tuple[float, Operation]]


def _matmul(arena: Arena, extent: int) -> tuple[float, Operation]:
    def run() -> object:
        return arena.take(extent, extent) @ arena.take(extent, extent)

    return 2 * extent**3, run


def _attention(arena: Arena, seq: int) -> tuple[float, Operation]:
    heads, head_dim = 8, 64

    def run() -> object:
        q, k, v = (arena.take(1, heads, seq, head_dim) for _ in range(3))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return 4 * heads * head_dim * seq**2, run


def _elementwise(arena: Arena, num_bytes: int) -> tuple[float, Operation]:
    numel = num_bytes // arena.element_bytes

    def run() -> object:
        return arena.take(numel) + arena.take(numel)

    return 3 * num_bytes, run


def busy_counts(world: int) -> list[int]:
    """1, 2, 4, .. and all ranks.

    >>> busy_counts(6)
    [1, 2, 4, 6]
    """
    powers = [1 << power for power in range(world.bit_length()) if 1 << power <= world]
    return sorted({*powers, world})


def sharing_curves(bench: Bench, budget_s: float) -> Iterator[Curve]:
    """``shared/matmul``, ``shared/attention``, ``shared/elementwise`` by busy ranks.

    To be called by every rank.
    """
    plan = bench.plan
    largest = plan.largest_extent
    kinds: tuple[tuple[str, str, Maker, tuple[int, ...]], ...] = (
        ("matmul", "flops", _matmul, (largest // 16, largest // 4)),
        ("attention", "flops", _attention, plan.sequences[:2]),
        ("elementwise", "bytes", _elementwise, plan.elementwise_bytes[::2]),
    )
    counts = busy_counts(len(bench.party.sharers(bench.rank)))
    num_windows = len(plan.dtypes) * len(counts) * sum(len(sizes) for *_, sizes in kinds)
    window_s = budget_s / num_windows / 1.2
    for (kind, quantity, make, sizes), dtype, busy in product(kinds, plan.dtypes, counts):
        points = tuple(_window(bench, dtype, make, size, busy, window_s) for size in sizes)
        yield Curve.model_validate(
            {"quantity": quantity, "op": f"shared/{kind}", "dtype": dtype, "concurrency": busy,
             "points": points}
        )  # fmt: skip


def _window(
    bench: Bench, dtype: DType, make: Maker, size: int, busy: int, window_s: float
) -> Point:
    """Mean seconds per call over a window in which the first ``busy`` ranks of each set compute."""
    x, run = make(bench.arena(dtype), size)
    run()
    bench.barrier()
    is_busy = bench.party.sharers(bench.rank).index(bench.rank) < busy
    own_s = _mean_of_window(bench, run, window_s) if is_busy else 0.0
    mine = torch.tensor([own_s], dtype=torch.float32, device=bench.device)
    everyone = mine.new_empty(bench.world)
    dist.all_gather_into_tensor(everyone, mine)
    means = [float(everyone[rank]) for rank in bench.party.sharers(0)[:busy]]
    spread = summarise(x, means).spread_s
    return Point(x, sum(means) / busy, spread, busy)


def _mean_of_window(bench: Bench, run: Operation, window_s: float) -> float:
    calls = 0
    with collector_off():
        started = time.perf_counter()
        while (elapsed_s := time.perf_counter() - started) < window_s or calls == 0:
            run()
            synchronize(bench.device)
            calls += 1
    return elapsed_s / calls
