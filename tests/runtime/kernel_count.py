"""Counts kernels bound by memory, and the bytes that each reads and writes, as they run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_VIEWS = frozenset({
    "_unsafe_view", "alias", "detach", "expand", "select", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unsqueeze", "view",
})  # fmt: skip
_NO_KERNEL = frozenset({"empty", "empty_like", "new_empty", "promote_types"})
_PRODUCTS = frozenset({
    "mm", "addmm", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
})  # fmt: skip
_WRITES_ONLY = frozenset(["zeros", "new_zeros", "zeros_like", "copy_", "zero_"])
"""Of what they change or make; `copy_` reads its source."""


class KernelCount(TorchDispatchMode):
    """``kernels`` and ``num_bytes`` of everything but views, matrix products and collectives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = 0
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        if func.namespace == "aten" and name not in _VIEWS | _NO_KERNEL | _PRODUCTS:
            self.kernels += 1
            self.num_bytes += _bytes_of(name, args, kwargs, out)
        return out


def _bytes_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    written = _size(_tensors(out))
    if name in ("embedding", "gather", "index_select"):  # read what they pick, not all there is
        index = args[1] if name == "embedding" else args[2]
        return 2 * written + _size([index])
    if name in ("scatter_add_", "index_add_", "index_add"):  # touch what they add to
        index, added = args[2:4]
        return _size([index]) + 3 * _size([added])
    if name == "embedding_dense_backward":  # blanks the table, and adds to a row for each token
        gradient, index = args[:2]
        return 3 * _size([gradient]) + _size([index]) + written
    if name in _WRITES_ONLY:
        return written + _size(_tensors(args[1:]) if name == "copy_" else [])
    if name == "native_layer_norm_backward":
        args = args[:-2]  # the bias is handed in, but nothing depends on it
    read = _tensors(args)  # an output argument is in kwargs, and is not read
    return _size(read) + written


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
