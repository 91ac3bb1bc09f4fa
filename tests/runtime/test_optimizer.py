"""AdamW on flat slices against torch's own on whole tensors, clipping, and the learning rate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from shardwright.runtime.optimizer import FlatAdamW, clip_factor, learning_rate
from shardwright.runtime.parallel.shards import ParameterShard
from shardwright.runtime.sharding import FlatUnit, ShardPlan
from shardwright.specs import OptimizerSpec, Precision, TrainingSpec

SPEC = OptimizerSpec(learning_rate=1e-2, weight_decay=0.5)
SHAPES = {"norm": (5,), "up": (4, 5), "bias": (4,), "down": (5, 4)}


def _parameters(dtype: torch.dtype) -> Iterator[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    for name, shape in SHAPES.items():
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        parameter = nn.Parameter(value.to(dtype))
        parameter.shard = ParameterShard(  # type: ignore[attr-defined]
            name=name, global_shape=shape, dim=None, segments=((0, shape[0]),),
            tp_replicated=False, weight_decay=len(shape) == 2,
        )  # fmt: skip
        yield parameter


def _plan(degree: int = 1, index: int = 0) -> ShardPlan:
    return ShardPlan(
        zero=1 if degree > 1 else 0, degree=degree, index=index, shard_group=None,
        replica_group=None, is_first_replica=True, tp_group=None, embedding_group=None,
        holds_first_stage=True,
    )  # fmt: skip


def _set_gradients(unit: FlatUnit, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    full = torch.zeros(unit.padded_numel, dtype=torch.float64)
    full[: unit.numel] = torch.randn(unit.numel, generator=generator, dtype=torch.float64)
    unit.gradients.copy_(full[slice(*unit.slice_range)])
    return full


def _reference(steps: int) -> torch.Tensor:
    """Whole tensors, the plain AdamW of torch, the same gradients."""
    parameters = list(_parameters(torch.float64))
    groups = [
        {"params": [p for p in parameters if p.dim() == 2], "weight_decay": SPEC.weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    unit = FlatUnit("reference", list(_parameters(torch.float64)), _plan(), torch.float64)
    for step in range(steps):
        flat = _set_gradients(unit, step)
        for slot, parameter in zip(unit.slots, parameters, strict=True):
            parameter.grad = flat[slot.start : slot.stop].view_as(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in parameters])


def _optimizer(unit: FlatUnit, precision: Precision) -> FlatAdamW:
    dtypes = TrainingSpec(global_batch=1, seq_len=1, precision=precision).dtypes
    return FlatAdamW([unit], SPEC, dtypes, torch.device("cpu"))


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_slices_are_updated_as_whole_tensors_are(degree: int) -> None:
    expected = _reference(3)
    found = []
    for index in range(degree):
        parameters = list(_parameters(torch.float64))
        unit = FlatUnit("unit", parameters, _plan(degree, index), torch.float64)
        optimizer = _optimizer(unit, Precision.FP64)
        for step in range(3):
            _set_gradients(unit, step)
            optimizer.step(1e-2 / (step + 1))
        found.append(unit.weights)
    numel = expected.numel()
    torch.testing.assert_close(torch.cat(found)[:numel], expected, rtol=1e-13, atol=1e-15)


def test_bf16_weights_are_the_rounded_master_copy() -> None:
    unit = FlatUnit("unit", list(_parameters(torch.bfloat16)), _plan(), torch.float32)
    optimizer = _optimizer(unit, Precision.BF16)
    _set_gradients(unit, 0)
    before = unit.weights.clone()
    optimizer.step(1e-3)
    master = optimizer.states[0].master
    assert master is not None
    assert master.dtype == torch.float32
    assert not torch.equal(unit.weights, before)
    torch.testing.assert_close(unit.weights, master.to(torch.bfloat16), rtol=0, atol=0)
    assert not torch.equal(master, unit.weights.float())  # what rounding would have lost


def test_state_restores_to_the_last_bit() -> None:
    def one_step(optimizer: FlatAdamW, step: int) -> None:
        _set_gradients(optimizer.units[0], step)
        optimizer.step(1e-2)

    first, second = (
        _optimizer(
            FlatUnit("unit", list(_parameters(torch.float32)), _plan(), torch.float32),
            Precision.FP32,
        )
        for _ in range(2)
    )
    for step in range(2):
        one_step(first, step)
    stored = {
        (entry.kind, entry.shard.name): entry.tensor.clone()
        for entry in first.state_entries(owned_only=True)
    }
    assert len(stored) == 3 * len(SHAPES)
    for entry in second.state_entries(owned_only=False):
        entry.tensor.copy_(stored[entry.kind, entry.shard.name])
    second.num_steps = first.num_steps
    one_step(first, 2)
    one_step(second, 2)
    assert torch.equal(first.units[0].weights, second.units[0].weights)


def test_entries_of_a_slice_say_which_elements_they_are() -> None:
    parameters = list(_parameters(torch.float64))
    whole = {p.shard.name: p.detach().clone().flatten() for p in parameters}  # type: ignore[attr-defined]
    unit = FlatUnit("unit", parameters, _plan(3, 1), torch.float64)
    entries = [
        entry
        for entry in _optimizer(unit, Precision.FP64).state_entries(owned_only=True)
        if entry.kind == "weight"
    ]
    assert sum(entry.stop - entry.start for entry in entries) == unit.weights.numel()
    for entry in entries:
        assert torch.equal(entry.tensor, whole[entry.shard.name][entry.start : entry.stop])


def test_the_gradient_norm_leaves_out_what_another_rank_owns_and_padding() -> None:
    parameters = list(_parameters(torch.float64))
    norm = parameters[0].shard  # type: ignore[attr-defined]
    replicated = ParameterShard(
        name=norm.name, global_shape=(5,), dim=None, segments=((0, 5),), tp_replicated=True,
        weight_decay=False, owned=(),
    )  # fmt: skip
    parameters[0].shard = replicated  # type: ignore[attr-defined]
    unit = FlatUnit("unit", parameters, _plan(2, 1), torch.float64)
    full = _set_gradients(unit, 0)
    unit.gradients[unit.numel - unit.slice_range[1] :] = 100.0  # the padding
    expected = full[max(5, unit.slice_range[0]) : unit.numel].square().sum()
    found = _optimizer(unit, Precision.FP64).squared_gradient_norm()
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_clipping_bounds_the_norm() -> None:
    assert clip_factor(4.0, 1.0) == 0.25
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(4.0, None) == 1.0


def test_the_learning_rate_warms_up_and_falls_to_its_minimum() -> None:
    spec = OptimizerSpec(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=4)
    rates = [learning_rate(spec, step, 14) for step in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[9] == pytest.approx(0.55)
    assert rates[14:] == pytest.approx([0.1] * 6)
    assert all(a > b for a, b in itertools.pairwise(rates[4:15]))
    sooner = spec.model_copy(update={"decay_steps": 8})
    assert learning_rate(sooner, 8, 14) == pytest.approx(0.1)
