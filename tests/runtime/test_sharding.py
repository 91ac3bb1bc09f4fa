"""Flat units around plain modules: gradients, storages and slices of each ZeRO stage.

Every rank has its own data; the expected gradient is that of all data in one process. Two
micro-batches are in flight at once, as in a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardwright.runtime.models.recompute import recomputed
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.parallel.shards import ParameterShard
from shardwright.runtime.sharding import FlatUnit, ShardPlan
from shardwright.specs import Layout
from tests.distributed import run_on_ranks
from tests.runtime.plans import small_model, training_of

WIDTH, ROWS, VOCAB = 5, 3, 7
NUM_MICRO_BATCHES = 2

Variant = tuple[int, int, bool]
"""ZeRO stage, shard degree, recompute."""
StepFound = tuple[float, list[list[bool]]]
"""The largest gradient error, and which units were gathered between the passes."""


def _tag(module: nn.Module, prefix: str) -> None:
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        parameter.shard = ParameterShard(  # type: ignore[attr-defined]
            name=f"{prefix}.{name}", global_shape=shape, dim=None, segments=((0, shape[0]),),
            tp_replicated=False, weight_decay=True,
        )  # fmt: skip


class Layer(nn.Module):
    """x + tanh(x W + b) W', optionally recomputed in backward."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self._run, x) if self.recompute else self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


class Embedding(nn.Module):
    def __init__(self, weight: nn.Parameter, positions: nn.Parameter) -> None:
        super().__init__()
        self.positions = positions
        self.tied = [weight]  # not registered: it is a unit of its own

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.tied[0]) + self.positions


class Head(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
        self.tied = [weight]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.norm(x) @ self.tied[0].T
        return logits.logsumexp(-1).sum()


class Model(nn.Module):
    """A tied embedding and head around two layers."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(VOCAB, WIDTH, dtype=torch.float64))
        positions = nn.Parameter(torch.randn(ROWS, WIDTH, dtype=torch.float64))
        self.embedding = Embedding(self.weight, positions)
        self.layers = nn.ModuleList([Layer(recompute), Layer(recompute)])
        self.head = Head(self.weight)
        _tag(self, "model")

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out

    def flatten(self, plan: ShardPlan) -> list[FlatUnit]:
        modules = [self.embedding, *self.layers, self.head]
        units = []
        for module in modules:
            unit = FlatUnit(type(module).__name__, module.parameters(), plan, torch.float64)
            unit.read_by([module])
            units.append(unit)
        tied = FlatUnit("tied", [self.weight], plan, torch.float64)
        tied.read_by([self.embedding, self.head])
        return [*units, tied]


def _tokens(rank: int, micro_batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * rank + micro_batch)
    return torch.randint(VOCAB, (2, ROWS), generator=generator)


def _expected(world: int) -> dict[str, Tensor]:
    model = Model()
    for rank in range(world):
        for micro_batch in range(NUM_MICRO_BATCHES):
            model(_tokens(rank, micro_batch)).backward()
    return {
        p.shard.name: p.grad.flatten()  # type: ignore[attr-defined]
        for p in model.parameters()
        if p.grad is not None
    }


def _layout(zero: int, degree: int, dp: int) -> Layout:
    model, training = small_model(), training_of(global_batch=dp)
    return Layout.of(model, training, dp=dp, zero=zero, zero_shard_degree=degree)


def _step(zero: int, degree: int, recompute: bool) -> StepFound:
    """The largest gradient error of one step, and what was gathered between its passes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    layout = _layout(zero, degree, world)
    plan = ShardPlan.of(layout, ParallelGroups.create(layout))
    model = Model(recompute)
    units = model.flatten(plan)
    gathered = [[unit.is_gathered for unit in units]]
    for unit in units:
        unit.zero_gradients()
    losses = [model(_tokens(rank, number)) for number in range(NUM_MICRO_BATCHES)]
    gathered.append([unit.is_gathered for unit in units])
    for loss in losses:
        loss.backward()
        gathered.append([unit.is_gathered for unit in units])
    for unit in units:
        unit.reduce()
    return _largest_error(units, _expected(world)), gathered


def _largest_error(units: list[FlatUnit], expected: dict[str, Tensor]) -> float:
    errors = []
    for unit in units:
        for part in unit.held_parts():
            own = expected[part.shard.name][part.start : part.stop]
            errors.append((unit.gradients[part.place] - own).abs().max().item())
    return max(errors)


VARIANTS = [
    (zero, degree, recompute)
    for zero, degree in ((0, 1), (1, 3), (2, 3), (3, 3))
    for recompute in (False, True)
]


@pytest.mark.multiprocess
def test_every_stage_sums_the_gradients_of_all_ranks_and_micro_batches() -> None:
    results = run_on_ranks_by_variant(3, VARIANTS)
    for (zero, _, _), ranks in results:
        for error, gathered in ranks:
            assert error < 1e-12
            assert all(all(flags) == (zero < 3) for flags in gathered)
            assert all(any(flags) == (zero < 3) for flags in gathered)


@pytest.mark.multiprocess
def test_a_copy_may_be_shared_by_some_of_the_ranks() -> None:
    variants = [(zero, 2, False) for zero in (1, 2, 3)]
    for _, ranks in run_on_ranks_by_variant(4, variants):
        assert max(error for error, _ in ranks) < 1e-12


def run_on_ranks_by_variant(
    world: int, variants: Sequence[Variant]
) -> list[tuple[Variant, tuple[StepFound, ...]]]:
    """Each variant with what every rank found."""
    results = run_on_ranks(world, [partial(_step, *variant) for variant in variants])
    return list(zip(variants, zip(*results, strict=True), strict=True))


def _storages(zero: int) -> list[tuple[int, int]]:
    """Bytes of weights and gradients that this rank keeps, by unit, outside of passes."""
    layout = _layout(zero, dist.get_world_size() if zero else 1, dist.get_world_size())
    units = Model().flatten(ShardPlan.of(layout, ParallelGroups.create(layout)))
    return [(unit.weight_bytes, unit.gradient_bytes) for unit in units]


@pytest.mark.multiprocess
def test_what_a_rank_keeps() -> None:
    """Padding to a multiple of 3, 8 bytes an element; units of 15, 55, 55, 10 and 35 elements."""
    padded = [15, 57, 57, 12, 36]
    zero1, zero2, zero3 = run_on_ranks(3, [partial(_storages, zero) for zero in (1, 2, 3)])[0]
    assert zero1 == [(8 * n, 8 * n) for n in padded]
    assert zero2 == [(8 * n, 8 * n // 3) for n in padded]
    assert zero3 == [(8 * n // 3, 8 * n // 3) for n in padded]


def test_a_unit_that_missed_a_gradient_cannot_be_reduced() -> None:
    plan = ShardPlan.of(_layout(0, 1, 1), ParallelGroups.alone())
    layer = Layer(recompute=False)
    _tag(layer, "layer")
    unit = FlatUnit("layer", layer.parameters(), plan, torch.float64)
    layer.up(torch.ones(1, WIDTH, dtype=torch.float64)).sum().backward()
    with pytest.raises(AssertionError, match="backward is not over"):
        unit.reduce()
