"""The conditions under which a rank computes; the same when it is measured as when it trains.

A profile predicts a run only if both set up their processes alike: threads, cores and how the C
library hands memory back.
"""

from __future__ import annotations

import os


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
