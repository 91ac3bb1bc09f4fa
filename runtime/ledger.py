"""`Ledger`: what a running program really does, for comparison with the books.

    with Ledger() as ledger:
        loss = stage(tokens, labels)
    ledger.flops, ledger.collectives, ledger.live_bytes, ledger.peak_bytes

It watches every operator through a `TorchDispatchMode`:

- FLOPs by torch's own registered formulas and ours for what these lack. An operator that looks
  like a matrix product and has no formula raises.
- Collectives at c10d: kind, bytes of the tensor handed in, group as sorted global ranks.
- Live bytes: storages that operators made while the ledger was open, until they are freed. What a
  kernel allocates and frees inside itself is not seen. A storage that is resized in place must be
  reported with `note_storage_resized`.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

_LOOKS_LIKE_A_PRODUCT = re.compile(
    r"mm|mv$|dot|matmul|attention|convolution|conv\d|linear|einsum|addr$|bilinear|lstm|gru"
)
_KIND_OF_C10D_OP = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "broadcast_": "broadcast",
    "send": "send_recv",
}
_INPUT_ARGUMENT = {"_allgather_base_": 1, "_reduce_scatter_base_": 1, "alltoall_base_": 1}
"""Where an operator's input stands, if not first."""
_RUN_ON_COPIES = frozenset(_KIND_OF_C10D_OP) - {"send"}
_UNCOUNTED_C10D_OPS = frozenset({"recv_", "barrier", "monitored_barrier_"})


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One call of a collective, or one send (its receive is not counted again)."""

    kind: str
    input_bytes: int
    ranks: tuple[int, ...]
    """Global ranks of the group, ascending."""


def _attention_flops(products: int, q: Tensor, k: Tensor, v: Tensor) -> int:
    batch, heads, seq_q, head_dim = q.shape
    assert v.shape[-1] == head_dim
    return products * 2 * batch * heads * seq_q * k.shape[2] * head_dim


def _cpu_flash_forward_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return _attention_flops(2, q, k, v)


def _cpu_flash_backward_flops(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any
) -> int:
    return _attention_flops(5, q, k, v)


FLOP_FORMULAS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_flash_forward_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_flash_backward_flops,
}
"""For operators that torch has no formula for. Attention counts the whole square, backward five
products (scores once more)."""


class MissingFlopFormulaError(RuntimeError):
    """An operator that multiplies matrices has no FLOP formula."""


class Ledger(TorchDispatchMode):
    """Counts while it is entered; see the module's text. Can be entered again, and goes on.

    Attributes:
        flops: executed so far.
        collectives: issued so far, in order.
        live_bytes: of watched storages, now.
        peak_bytes: the largest ``live_bytes`` since the start or `reset_peak`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.collectives: list[CollectiveRecord] = []
        self.live_bytes = 0
        self.peak_bytes = 0
        self._storages: dict[int, _Watched] = {}
        self._births = 0

    def __enter__(self) -> Self:
        _OPEN.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        _OPEN.remove(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            return self._run_collective(func, args, kwargs)
        if func.namespace == "prim":  # a question, such as for a fake tensor's device
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        self._count_flops(func, args, kwargs, out)
        given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        self.watch(t for t in _tensors(out) if t.untyped_storage()._cdata not in given)
        return out

    # Live bytes

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of tensors as live from now on, if they are not already."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                self._births += 1
                self._storages[storage._cdata] = _Watched(self, storage, self._births)
                self._change(storage.nbytes())

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has a new size; one that was not watched is from now on."""
        watched = self._storages.get(storage._cdata)
        if watched is None:
            self._births += 1
            watched = self._storages[storage._cdata] = _Watched(self, storage, self._births)
            self._change(storage.nbytes())
        else:
            self._change(storage.nbytes() - watched.num_bytes)
            watched.num_bytes = storage.nbytes()

    def reset_peak(self) -> None:
        """Start a new peak from what is live now."""
        self.peak_bytes = self.live_bytes

    def mark(self) -> int:
        """A moment, for `bytes_since`."""
        return self._births

    def bytes_since(self, mark: int) -> int:
        """Bytes of storages that were made after the moment ``mark`` and are alive.

        Right after a micro-batch's forward, with the mark before it, these are its saved bytes.
        """
        return sum(w.num_bytes for w in self._storages.values() if w.birth > mark)

    def _change(self, num_bytes: int) -> None:
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _freed(self, key: int) -> None:
        self._change(-self._storages.pop(key).num_bytes)

    # FLOPs and collectives

    def _count_flops(self, func: Any, args: tuple[Any, ...], kwargs: Any, out: Any) -> None:
        packet = func._overloadpacket
        formula = FLOP_FORMULAS.get(packet) or flop_registry.get(packet)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        elif _LOOKS_LIKE_A_PRODUCT.search(packet.__name__):
            raise MissingFlopFormulaError(f"{func} has no FLOP formula; add one to FLOP_FORMULAS")

    def _run_collective(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Count a call, and run it on copies to its end.

        A backend's own thread may let go of the tensors some time after the call is over, and when
        they are freed would be a matter of luck. Sends and receives must not be waited for here.
        """
        self._count_collective(func._overloadpacket.__name__, args)
        if func._overloadpacket.__name__ not in _RUN_ON_COPIES or _has_no_data(args):
            return func(*args, **kwargs)
        copies = tree_map_only(Tensor, torch.clone, args)
        out = func(*copies, **kwargs)
        out[-1].wait()
        for tensor, copy in zip(_tensors(args), _tensors(copies), strict=True):
            tensor.copy_(copy)
        return (args[0], *out[1:-1], _finished_work())

    def _count_collective(self, name: str, args: tuple[Any, ...]) -> None:
        if name in _UNCOUNTED_C10D_OPS:
            return
        tensors = tree_leaves(args[_INPUT_ARGUMENT.get(name, 0)])
        group = next(dist.ProcessGroup.unbox(a) for a in args if isinstance(a, torch.ScriptObject))
        self.collectives.append(CollectiveRecord(
            _KIND_OF_C10D_OP[name],
            sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            tuple(sorted(dist.get_process_group_ranks(group))),
        ))  # fmt: skip


def _finished_work() -> torch.ScriptObject:
    """A handle of a call that is over: waiting for the true one again may copy once more."""
    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_result(None)
    work: torch.ScriptObject = _create_work_from_future(future).boxed()
    return work


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _collect_tensors(tree, found)
    return found


def _collect_tensors(tree: Any, found: list[Tensor]) -> None:
    """Of the containers that operators take and return, much faster than a general tree."""
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, list | tuple):
        for part in tree:
            _collect_tensors(part, found)
    elif isinstance(tree, dict):
        for part in tree.values():
            _collect_tensors(part, found)


def _has_no_data(args: tuple[Any, ...]) -> bool:
    """Whether tensors are fake: their collectives are over at once."""
    return any(isinstance(tensor, FakeTensor) for tensor in _tensors(args))


class _Watched:
    """A live storage: its size as last known, and when the ledger first saw it."""

    __slots__ = ("birth", "num_bytes", "reference")

    def __init__(self, ledger: Ledger, storage: torch.UntypedStorage, birth: int) -> None:
        self.num_bytes = storage.nbytes()
        self.birth = birth
        key = storage._cdata
        self.reference = weakref.ref(storage, lambda _: ledger._freed(key))


_OPEN: list[Ledger] = []


def note_storage_resized(tensor: Tensor) -> None:
    """Tell the open ledgers that the storage of ``tensor`` was resized in place."""
    for ledger in _OPEN:
        ledger.resized(tensor.untyped_storage())
