"""A world of one rank, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist


@pytest.fixture
def world_of_one(tmp_path: Path) -> Iterator[None]:
    meeting = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
