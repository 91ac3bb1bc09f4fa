"""Split backwards of the layers give the gradients of whole ones, later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from shardwright.runtime.models.norms import normalize
from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.deferred import DeferredGradients, deferring, take_gradients
from shardwright.runtime.parallel.layers import add_positions, column_linear, embed, row_linear

ALONE = TensorParallel()
TOKENS = torch.tensor([[3, 1, 3, 0]])
WIDTH = 5


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "table": (7, WIDTH), "positions": (6, WIDTH), "scale": (WIDTH,), "shift": (WIDTH,),
        "gain": (WIDTH,), "up": (4, WIDTH), "up_bias": (4,), "down": (WIDTH, 4),
        "down_bias": (WIDTH,), "head": (3, WIDTH),
    }  # fmt: skip
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for name, shape in shapes.items()
    }


def run(p: dict[str, nn.Parameter]) -> Tensor:
    """Every function with parameters: an embedding, both norms, both linear layers."""
    x = add_positions(embed(TOKENS, p["table"], 0, ALONE), p["positions"], ALONE)
    y, x = normalize(x, p["scale"], p["shift"], 1e-5)
    y = torch.tanh(column_linear(y, p["up"], p["up_bias"], ALONE))
    x = row_linear(y, p["down"], p["down_bias"], x, ALONE)
    y, _ = normalize(x, p["gain"], None, 1e-5)
    return column_linear(y, p["head"], None, ALONE).square().sum()


@dataclass
class Sink:
    """Adds up what comes, and counts what is put off."""

    total: Tensor | None = None
    events: list[str] = field(default_factory=list)

    def add(self, gradient: Tensor) -> None:
        assert not gradient.requires_grad
        self.events.append("add")
        self.total = gradient.clone() if self.total is None else self.total + gradient

    def put_off(self) -> None:
        self.events.append("put off")


def _whole() -> dict[str, Tensor]:
    p = parameters()
    run(p).backward()
    return {name: parameter.grad for name, parameter in p.items() if parameter.grad is not None}


def test_the_second_half_gives_every_gradient_and_the_first_none() -> None:
    p, expected = parameters(), _whole()
    assert expected.keys() == p.keys()
    queue, loss = DeferredGradients(), run(p)
    with deferring(queue):
        loss.backward()
    assert all(parameter.grad is None for parameter in p.values())
    queue.run()
    for name, parameter in p.items():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=0)


def test_a_sink_hears_of_each_gradient_once_and_of_its_delay() -> None:
    p, expected = parameters(), _whole()
    sinks = {name: Sink() for name in p}
    for name, parameter in p.items():
        take_gradients(parameter, sinks[name])
    loss, queues = [run(p), run(p)], [DeferredGradients(), DeferredGradients()]
    for one, queue in zip(loss, queues, strict=True):
        with deferring(queue):
            one.backward()
    for queue in queues:
        queue.run()
    for name, sink in sinks.items():
        assert sink.events == ["put off", "put off", "add", "add"]
        torch.testing.assert_close(sink.total, 2 * expected[name], rtol=1e-14, atol=0)
    run(p).backward()
    for name, sink in sinks.items():
        assert sink.events[4:] == ["add"]
        torch.testing.assert_close(sink.total, 3 * expected[name], rtol=1e-14, atol=0)
        assert p[name].grad is None


@pytest.mark.parametrize("fails", [False, True])
def test_only_the_body_puts_off(fails: bool) -> None:
    def body() -> None:
        with deferring(DeferredGradients()):
            if fails:
                raise RuntimeError

    _run_quietly(body)
    p = parameters()
    run(p).backward()
    assert all(parameter.grad is not None for parameter in p.values())


def _run_quietly(body: Callable[[], None]) -> None:
    try:
        body()
    except RuntimeError:
        return


def test_one_backward_at_a_time_puts_off() -> None:
    within = pytest.raises(AssertionError, match="within another")
    with deferring(DeferredGradients()), within, deferring(DeferredGradients()):
        pass
