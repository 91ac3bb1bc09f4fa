"""The memory timeline against the live bytes of real training steps, on 1, 2 and 4 gloo ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.cost_models.step import StepModel
from shardwright.runtime.ledger import Ledger
from shardwright.runtime.models import build_rank
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.step import TrainStep
from shardwright.specs import Layout, MemoryParts, ModelSpec, Precision, Recompute, TrainingSpec
from shardwright.specs.sources import model_from_config
from tests.cost_models.profiles import cluster, profile
from tests.distributed import run_on_ranks

TOLERANCE = 0.001
"""What is left are scalars: losses, counts, step numbers."""
SHARDED_TOLERANCE = 0.02
"""Under ZeRO 3 the books know when gradients arrive only unit by unit."""

LLAMA = {
    "model_type": "llama", "vocab_size": 509, "hidden_size": 64, "intermediate_size": 176,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 509, "n_embd": 64, "n_layer": 4, "n_head": 8,
    "n_positions": 256,
}  # fmt: skip
MODELS = {
    "llama": model_from_config(LLAMA, name="small-llama", source="a test").spec,
    "gpt2": model_from_config(GPT2, name="small-gpt2", source="a test").spec,
}
FULL = Recompute(policy="full")


def case(name: str, precision: str, **choices: Any) -> tuple[ModelSpec, TrainingSpec, Layout]:
    training = TrainingSpec(global_batch=6, seq_len=64, precision=Precision(precision))
    return MODELS[name], training, Layout.of(MODELS[name], training, **choices)


CASES = {
    1: [
        case("llama", "fp32"),
        case("llama", "bf16", micro_batch=2),
        case("gpt2", "fp32", recompute=FULL),
        case("gpt2", "bf16"),
    ],
    2: [
        case("llama", "fp32", tp=2),
        case("llama", "bf16", tp=2, sequence_parallel=True, micro_batch=2),
        case("gpt2", "fp32", dp=2, zero=1),
        case("gpt2", "bf16", dp=2, zero=3),
        case("llama", "bf16", dp=2, zero=3, recompute=FULL),
        case("llama", "fp32", pp=2, boundaries=(3,)),
        case("gpt2", "bf16", pp=2, schedule="gpipe", recompute=FULL),
        case("llama", "fp32", pp=2, vpp=2),
        case("gpt2", "bf16", pp=2, vpp=2, recompute=FULL),
        case("llama", "fp32", pp=2, schedule="zb-h1"),
        case("gpt2", "bf16", pp=2, schedule="zb-h1", recompute=FULL),
        case("llama", "bf16", pp=2, schedule="zb-h2", boundaries=(3,)),
        case("llama", "fp32", pp=2, vpp=2, schedule="zb-v"),
        case("gpt2", "bf16", pp=2, vpp=2, schedule="zb-v"),
        case("gpt2", "fp32", pp=2, vpp=2, schedule="dualpipev"),
        case("llama", "bf16", pp=2, vpp=2, schedule="dualpipev", recompute=FULL),
    ],
    4: [
        case("llama", "fp32", pp=4),
        case("gpt2", "fp32", pp=4, schedule="gpipe", boundaries=(1, 3, 4)),
        case("llama", "bf16", tp=2, pp=2, sequence_parallel=True),
        case("gpt2", "bf16", pp=2, dp=2, zero=1, recompute=FULL),
        case("llama", "fp32", pp=4, vpp=1, schedule="zb-h1"),
        case("gpt2", "bf16", pp=4, vpp=1, schedule="zb-h2"),
        case("llama", "bf16", pp=2, vpp=2, tp=2, sequence_parallel=True),
        case("gpt2", "fp32", pp=2, schedule="zb-h1", tp=2, sequence_parallel=True),
        case("llama", "bf16", pp=2, vpp=2, schedule="zb-v", tp=2, sequence_parallel=True),
        case("gpt2", "fp32", pp=2, vpp=2, schedule="zb-v", tp=2),
        case("gpt2", "bf16", pp=2, schedule="zb-h1", dp=2, zero=3),
        case("llama", "fp32", pp=2, vpp=2, schedule="zb-v", dp=2, zero=2),
        case("llama", "fp32", pp=2, vpp=2, schedule="dualpipev", dp=2, zero=1),
        case("llama", "fp32", micro_batch=3, tp=2, dp=2, zero=3, sequence_parallel=True),
        case("llama", "fp32", dp=4, zero=3, zero_shard_degree=2, num_microbatches=2),
    ],
}  # fmt: skip


def live_peak_bytes(model: ModelSpec, training: TrainingSpec, layout: Layout) -> int:
    """The most live bytes of this rank from building the stage to the end of its first step."""
    ledger = Ledger()
    with ledger:
        groups = ParallelGroups.create(layout)
        own = build_rank(model, layout, training, groups)
        step = TrainStep(own, layout, training, groups, schedule_of(layout))
        shape = (layout.micro_batch, training.seq_len)
        micro_batches = [
            (torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64))
            for _ in range(layout.micro_batches)
        ]
        ledger.reset_peak()
        step.run(micro_batches, 1e-3)
    return ledger.peak_bytes


def predicted(model: ModelSpec, training: TrainingSpec, layout: Layout) -> tuple[MemoryParts, ...]:
    hardware = profile(cluster(ranks_per_node=layout.world))
    return StepModel(model, training, hardware).memory(layout)


@pytest.mark.multiprocess
@pytest.mark.parametrize("world", sorted(CASES))
def test_live_bytes_are_those_of_the_timeline(world: int) -> None:
    cases = CASES[world]
    measured = run_on_ranks(
        world, [partial(live_peak_bytes, *one) for one in cases], timeout_s=180.0
    )
    wrong = []
    for index, (model, training, layout) in enumerate(cases):
        for pp_rank, parts in enumerate(predicted(model, training, layout)):
            per_stage = layout.world_size.ranks_per_stage
            ranks = range(pp_rank * per_stage, (pp_rank + 1) * per_stage)
            live = max(measured[rank][index] for rank in ranks)
            ratio = (parts.total_bytes - parts.fixed) / live
            if abs(ratio - 1) > (SHARDED_TOLERANCE if layout.zero == 3 else TOLERANCE):
                wrong.append((index, pp_rank, ratio, parts))
    assert wrong == []
