"""The conditions under which a rank computes; the same when it is measured as when it trains.

A profile predicts a run only if both set up their processes alike: threads, cores and how the C
library hands memory back.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The same in all containers and namespaces of one machine, new at every boot."""


def rank_environment(device_type: str) -> dict[str, str]:
    """Environment variables to start a rank with.

    On a CPU: one thread per rank, and a heap that keeps what it once had, so that tensors of each
    step reuse memory instead of faulting it in anew (a page fault costs about as much as writing
    the page). They take effect only where a process starts with them.
    """
    if device_type != "cpu":
        return {}
    return {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**62),
        "MALLOC_ARENA_MAX": "1",
    }


def pin_to_core(local_rank: int, ranks_on_node: int) -> int | None:
    """Give this rank a core of its own where there is one for each; which one, else None.

    With more ranks than cores all of them share all cores, so that an idle rank's core serves the
    others. Call it before torch starts its threads.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if ranks_on_node > len(cores):
        return None
    os.sched_setaffinity(0, {cores[local_rank]})
    return cores[local_rank]


@dataclass(frozen=True, slots=True)
class CoreClaim:
    """The cores that a rank may use, and of which machine."""

    machine: str
    cores: frozenset[int]

    @classmethod
    def own(cls) -> Self:
        """Of this process; to be asked before it is pinned."""
        machine = BOOT_ID.read_text().strip() if BOOT_ID.exists() else platform.node()
        count = os.cpu_count() or 1
        known = hasattr(os, "sched_getaffinity")
        return cls(machine, frozenset(os.sched_getaffinity(0) if known else range(count)))

    def to_text(self) -> str:
        """``machine:0,1``, which `from_text` reads."""
        return f"{self.machine}:{','.join(map(str, sorted(self.cores)))}"

    @classmethod
    def from_text(cls, text: str) -> Self:
        machine, _, cores = text.rpartition(":")
        return cls(machine, frozenset(map(int, cores.split(","))))

    def overlaps(self, other: CoreClaim) -> bool:
        """Whether some core may be used by both."""
        return self.machine == other.machine and not self.cores.isdisjoint(other.cores)


def sharers(claims: Sequence[CoreClaim], rank: int) -> list[int]:
    """The ranks that compete with a rank for cores, directly or through others; itself among them,
    ascending. ``claims`` are by rank."""
    found, open_ranks = {rank}, [rank]
    while open_ranks:
        own = claims[open_ranks.pop()]
        near = {other for other, claim in enumerate(claims) if own.overlaps(claim)} - found
        found |= near
        open_ranks += near
    return sorted(found)


def pin_among(claims: Sequence[CoreClaim], rank: int) -> int | None:
    """As `pin_to_core`, for ranks of several nodes, of which some may be one machine."""
    together = sharers(claims, rank)
    cores = sorted(frozenset[int]().union(*(claims[one].cores for one in together)))
    wanted = cores[together.index(rank)] if len(together) <= len(cores) else None
    if wanted is None or wanted not in claims[rank].cores or not hasattr(os, "sched_setaffinity"):
        return None
    os.sched_setaffinity(0, {wanted})
    return wanted
