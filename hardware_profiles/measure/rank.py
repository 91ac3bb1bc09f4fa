"""One rank of a measurement: ``python -m shardwright.hardware_profiles.measure.rank ...``.

Arguments: rank, ranks in all, where the ranks meet, the pipe for results, the plan, the party.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta

from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.rank_environment import pin_among

COLLECTIVE_TIMEOUT = timedelta(seconds=300)
"""Ranks wait for rank 0 while it measures alone; the starter's own limit is stricter."""

HEAP_ARENAS = 8
"""How many arenas' worth of memory a rank on a CPU owns before it times anything: results that are
kept, and the few large temporaries of one call."""


def main(arguments: list[str]) -> None:
    rank, messages_fd = int(arguments[0]), int(arguments[3])
    threading.Thread(target=_end_with_starter, daemon=True).start()
    plan = MeasurePlan.from_json(arguments[4], source="the measurement's plan")
    party = Party.from_json(arguments[5], source="the measurement's ranks")
    _measure(rank, party, arguments[2], messages_fd, plan)


def _end_with_starter() -> None:
    """Stdin closes when the process that started this one is gone."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _measure(rank: int, party: Party, meeting: str, messages_fd: int, plan: MeasurePlan) -> None:
    pin_among(party.core_claims, rank)  # before torch makes threads
    import torch
    import torch.distributed as dist

    from shardwright.hardware_profiles.device import (
        collective_backend,
        current_device_type,
        torch_device,
    )
    from shardwright.hardware_profiles.measure.bench import Bench
    from shardwright.hardware_profiles.measure.phases import run_phases
    from shardwright.hardware_profiles.measure.timing import grow_heap

    torch.set_num_threads(1)
    device = torch_device(rank % party.ranks_per_node)
    if device.type == "cpu":
        grow_heap(HEAP_ARENAS * plan.arena_bytes)
    dist.init_process_group(
        collective_backend(current_device_type()), init_method=meeting, rank=rank,
        world_size=party.world, timeout=COLLECTIVE_TIMEOUT,
    )  # fmt: skip
    try:
        run_phases(Bench(rank, party, device, plan, messages_fd))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
