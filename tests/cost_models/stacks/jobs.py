"""Jobs on known hardware with stated numbers, none of them fitted."""

from __future__ import annotations

from typing import Any

from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import GENERIC, stack_parameters
from shardwright.specs import Layout, ModelSpec, SoftwareSpec, TrainingSpec
from tests.cost_models.stacks.cases import LLAMA, small

PROFILE = resolve_cluster("dgx-h100:4")
STATED = {
    "clock.sustained_ratio": 0.9,
    "kernel.tile_intensity": 15.0,
    "kernel.tile_depth": 64.0,
    "kernel.wave_rounding": 0.5,
    "kernel.attention_ramp": 500.0,
    "kernel.gap_s": 2e-6,
    "host.sharpness": 3.0,
    "host.sync_ratio": 0.02,
    "host.step_launches": 100.0,
    "stack.compute_ratio": 1.0,
    "stack.attention_ratio": 1.2,
    "stack.traffic_ratio": 1.1,
    "stack.host_s": 1e-5,
    "stack.collective_ratio": 1.1,
    "stack.hidden_fraction": 0.7,
}
"""Over what the catalogue has: tests here do not move with the fit."""
MODEL = small(
    LLAMA, vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=8,
    num_attention_heads=16, num_key_value_heads=8,
)  # fmt: skip
TRAINING = TrainingSpec(global_batch=64, seq_len=2048)
SOFTWARE = SoftwareSpec(framework=GENERIC)


def parameters(**changes: float) -> dict[str, float]:
    """Names with ``__`` for the dot."""
    more = {name.replace("__", "."): value for name, value in changes.items()}
    return stack_parameters(GENERIC, PROFILE) | STATED | more


def stack(
    model: ModelSpec = MODEL,
    training: TrainingSpec = TRAINING,
    profile: HardwareProfile = PROFILE,
    software: SoftwareSpec = SOFTWARE,
    **changes: float,
) -> StackModel:
    return StackModel(model, training, profile, software, parameters(**changes))


def layout(model: ModelSpec = MODEL, training: TrainingSpec = TRAINING, **choices: Any) -> Layout:
    return Layout.of(model, training, **choices)


LAYOUTS = [
    layout(dp=32),
    layout(dp=32, zero=1, micro_batch=2),
    layout(dp=32, zero=3),
    layout(dp=32, zero=3, zero_shard_degree=8),
    layout(tp=8, dp=4, sequence_parallel=True, zero=1),
    layout(tp=8, dp=4),
    layout(tp=2, cp=4, dp=4, zero=1),
    layout(tp=2, cp=4, dp=4, cp_kind="all_gather", zero=2),
    layout(pp=4, dp=8, zero=1),
    layout(pp=4, vpp=2, schedule="interleaved-1f1b", tp=2, dp=4),
    layout(pp=4, schedule="zb-h1", dp=8),
    layout(pp=2, vpp=2, schedule="zb-v", tp=4, dp=4),
    layout(pp=2, schedule="gpipe", dp=16, loss_chunks=4),
]
"""Layouts of 32 ranks."""
