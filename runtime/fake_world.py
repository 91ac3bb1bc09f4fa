"""One rank of a world of any size in this process alone: nothing is sent, no tensor has data.

Collectives are those of torch's ``fake`` backend, which are over at once. Tensors are torch's fake
ones: shapes, dtypes and storages of the right sizes, and operators that know what they return. The
runtime does not notice: what it would ask a device for it asks here, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

_NUMBER_READ = 4
"""What reading a number from a tensor gives. Counts of tokens and sums of losses are positive, and
a gradient norm of sqrt(4) is above the usual limit of 1, so gradients are clipped too."""


@contextmanager
def fake_rank(rank: int, world_size: int) -> Iterator[None]:
    """This process is ``rank``, in the default process group and all that are made of it."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class WithoutData(FakeTensorMode):
    """Every tensor that is made while it is entered is a fake one on the CPU.

    It answers where a program asks for the value of a tensor, which a fake one does not have.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return float(_NUMBER_READ) if args[0].is_floating_point() else _NUMBER_READ
        return super().__torch_dispatch__(func, types, args, kwargs)
