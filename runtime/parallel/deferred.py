"""Weight gradients put off: what lies between the two halves of a split backward.

In the backward of an autograd function with parameters, `weight_gradients` stands for the part that
nothing waits for. In a full backward it is computed there and then. Within `deferring` it goes to a
queue instead and autograd is told of no gradient; `DeferredGradients.run` computes what is in it
later, in the same order, and hands each gradient to the sink of its parameter as autograd would.
The graph is not walked twice, so what the second half needs is exactly what the queue holds.

The switch is one of the process, not of a thread: on accelerators autograd runs backward in threads
of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

Compute = Callable[[], Sequence[Tensor | None]]
"""Gives the gradient of each parameter; None for a parameter that is None."""


class GradientSink(Protocol):
    """Where the gradients of one parameter go; see `take_gradients`."""

    def add(self, gradient: Tensor) -> None:
        """A gradient is there."""
        ...

    def put_off(self) -> None:
        """A gradient will come later, without reading the parameter again."""
        ...


def take_gradients(parameter: Tensor, sink: GradientSink) -> None:
    """Give each gradient of a parameter to ``sink`` as soon as there is one, and keep none."""

    def take(parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None:  # none where it was put off
            parameter.grad = None
            sink.add(gradient)

    parameter.gradient_sink = sink  # type: ignore[attr-defined]
    parameter.register_post_accumulate_grad_hook(take)


class DeferredGradients:
    """The weight gradients that one backward put off, in its order."""

    def __init__(self) -> None:
        self._due: deque[tuple[tuple[Tensor, ...], Compute]] = deque()

    def put(self, parameters: tuple[Tensor, ...], compute: Compute) -> None:
        """Put off the gradients that ``compute`` gives, of ``parameters``."""
        self._due.append((parameters, compute))
        for parameter in parameters:
            sink = _sink_of(parameter)
            if sink is not None:
                sink.put_off()

    @torch.no_grad()
    def run(self) -> None:
        """Compute all, each freed before the next is begun."""
        while self._due:
            parameters, compute = self._due.popleft()
            gradients = [gradient for gradient in compute() if gradient is not None]
            del compute
            for parameter in parameters:
                _deliver(parameter, gradients.pop(0))


_OPEN: list[DeferredGradients] = []
"""At most one, while a backward puts off."""


@contextmanager
def deferring(queue: DeferredGradients) -> Iterator[None]:
    """Put off the weight gradients of every backward in the body."""
    assert not _OPEN, "a backward that puts off runs within another"
    _OPEN.append(queue)
    try:
        yield
    finally:
        _OPEN.clear()


def weight_gradients(
    parameters: Sequence[Tensor | None], compute: Compute
) -> Sequence[Tensor | None]:
    """What a backward returns for its parameters: their gradients, or nothing where put off.

    To be called when the backward has read the parameters for the last time.
    """
    if not _OPEN:
        return compute()
    _OPEN[0].put(tuple(p for p in parameters if p is not None), compute)
    return [None] * len(parameters)


def _sink_of(parameter: Tensor) -> GradientSink | None:
    return getattr(parameter, "gradient_sink", None)


def _deliver(parameter: Tensor, gradient: Tensor) -> None:
    sink = _sink_of(parameter)
    if sink is not None:
        sink.add(gradient)
    elif parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad = parameter.grad + gradient
