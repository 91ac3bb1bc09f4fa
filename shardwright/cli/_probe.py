"""One of the two ranks that `doctor` starts: ``python -m shardwright.cli._probe RANK STORE``."""

from __future__ import annotations

import sys
from datetime import timedelta


def main(rank: int, store_path: str) -> int:
    """All-reduce 1 over two ranks; 0 where the sum is 2."""
    import torch
    import torch.distributed as dist

    from shardwright.hardware_profiles.device import collective_backend

    dist.init_process_group(
        collective_backend("cpu"), init_method=f"file://{store_path}", rank=rank, world_size=2,
        timeout=timedelta(seconds=30),
    )  # fmt: skip
    value = torch.ones(1)
    dist.all_reduce(value)
    dist.destroy_process_group()
    return 0 if value.item() == 2 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
