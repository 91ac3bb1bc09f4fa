"""Initial weights are the same numbers in every layout and precision."""

from __future__ import annotations

import math

import torch
from torch import nn

from shardwright.runtime.models.initialize import initialize_
from shardwright.runtime.parallel.shards import ParameterShard
from tests.runtime.tiny_models import MODELS, tiny_llama


def parameter(shard: ParameterShard, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    made = nn.Parameter(torch.full(shard.local_shape, math.nan, dtype=dtype))
    made.shard = shard  # type: ignore[attr-defined]
    return made


def drawn(shard: ParameterShard, seed: int = 0) -> torch.Tensor:
    made = parameter(shard)
    initialize_([made], MODELS["llama"], seed)
    return made.detach()


SHAPE = (300, 1100)  # several tiles either way
WHOLE = ParameterShard("layers.0.mlp.down.weight", SHAPE, None, ((0, 300),), False, True)


def test_parts_are_parts_of_the_whole() -> None:
    whole = drawn(WHOLE)
    for dim, segments in ((0, ((5, 130), (140, 3))), (0, ((128, 128),)), (1, ((1000, 90),))):
        part = ParameterShard(WHOLE.name, SHAPE, dim, segments, False, True)
        assert torch.equal(drawn(part), part.take(whole))


def test_seed_and_name_matter_and_tiles_differ() -> None:
    whole = drawn(WHOLE)
    assert not torch.equal(whole, drawn(WHOLE, seed=1))
    other = ParameterShard("layers.1.mlp.down.weight", SHAPE, None, ((0, 300),), False, True)
    assert not torch.equal(whole, drawn(other))
    assert not torch.equal(whole[:128, :76], whole[128:256, :76])
    assert not torch.equal(whole[:128, :76], whole[:128, 1024:])


def test_spread_is_the_models_and_smaller_into_the_residual_stream() -> None:
    model = tiny_llama(num_layers=8)
    up = ParameterShard("layers.0.mlp.gate_up.weight", SHAPE, None, ((0, 300),), False, True)
    spreads = []
    for shard in (up, WHOLE):
        made = parameter(shard)
        initialize_([made], model, 0)
        spreads.append(float(made.detach().std()))
        assert abs(float(made.detach().mean())) < 5 * spreads[-1] / math.sqrt(made.numel())
    assert math.isclose(spreads[0], model.initializer_range, rel_tol=0.01)
    assert math.isclose(spreads[1], model.initializer_range / 4, rel_tol=0.01)


def test_norms_are_one_and_biases_zero() -> None:
    weight = parameter(ParameterShard("final_norm.weight", (7,), None, ((0, 7),), False, False))
    bias = parameter(ParameterShard("final_norm.bias", (7,), None, ((0, 7),), False, False))
    initialize_([weight, bias], MODELS["gpt2"], 0)
    assert weight.tolist() == [1.0] * 7
    assert bias.tolist() == [0.0] * 7
