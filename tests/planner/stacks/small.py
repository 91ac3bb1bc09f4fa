"""Small problems on software stacks, and every layout of their spaces."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

from shardwright.cost_models.pipeline.orders import ranks_of_stages
from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.stacks.choices import StackChoices
from shardwright.planner.stacks.space import StackSpace
from shardwright.specs import (
    EmbeddingBlock,
    HeadBlock,
    InputError,
    LatentAttentionBlock,
    LayerBlock,
    MlpBlock,
    ModelSpec,
    MoeBlock,
    NormBlock,
    ResidualBranch,
    ScheduleName,
    SoftwareSpec,
    Tower,
    TrainingSpec,
)
from tests.planner.conftest import tiny_model

WIDTH = 256


def moe_model() -> ModelSpec:
    """One dense layer, three with experts, latent attention."""
    norm = NormBlock(type="rms_norm", hidden_size=WIDTH, bias=False, epsilon=1e-5)
    attention = LatentAttentionBlock(
        hidden_size=WIDTH, num_heads=4, q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=32, rotary=None,
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=WIDTH, ffn_size=512, activation="silu", gated=True, bias=False)
    moe = MoeBlock(
        hidden_size=WIDTH, expert_size=128, num_experts=4, top_k=2, activation="silu", gated=True,
        shared_size=128,
    )  # fmt: skip

    def layer(body: MlpBlock | MoeBlock, repeat: int) -> LayerBlock:
        branches = (
            ResidualBranch(body=attention, pre_norm=norm),
            ResidualBranch(body=body, pre_norm=norm),
        )
        return LayerBlock(branches=branches, repeat=repeat)

    blocks = (
        EmbeddingBlock(vocab_size=1000, hidden_size=WIDTH), layer(mlp, 1), layer(moe, 3), norm,
        HeadBlock(vocab_size=1000, hidden_size=WIDTH, tied=False),
    )  # fmt: skip
    tower = Tower(name="decoder", blocks=blocks)
    return ModelSpec(
        name="small-moe", family="custom", towers=(tower,), max_seq_len=4096, source="a test"
    )


def dense_model(num_layers: int) -> ModelSpec:
    """Equal layers, for long sequences too."""
    model = tiny_model(num_layers, hidden=64)
    return model.model_copy(update={"max_seq_len": 4096})


def problem(
    model: ModelSpec | None = None,
    *,
    gpus: int = 4,
    global_batch: int = 4,
    seq_len: int = 1024,
    usable_bytes: int | None = None,
) -> Problem:
    profile = resolve_cluster("dgx-h100", gpus=gpus)
    training = TrainingSpec(global_batch=global_batch, seq_len=seq_len)
    software = SoftwareSpec(framework="generic")
    made = Problem(model or moe_model(), training, profile, software)
    return made if usable_bytes is None else with_memory(made, usable_bytes)


def dense_problem(**options: int) -> Problem:
    return problem(tiny_model(4, hidden=64), **({"seq_len": 64} | options))


def with_memory(made: Problem, usable_bytes: int) -> Problem:
    """The same on devices with so much memory, and no room set aside."""
    (group,) = made.profile.devices.groups
    device = group.accelerator.model_copy(update={"usable_memory_bytes": usable_bytes})
    group = group.model_copy(update={"accelerator": device})
    devices = made.profile.devices.model_copy(update={"groups": (group,)})
    kept = tuple(p for p in made.profile.parameters if "communicator" not in p.name)
    profile = made.profile.model_copy(update={"devices": devices, "parameters": kept})
    return replace(made, profile=profile)


def pricer_of(made: Problem) -> StackModel:
    return stack_model(made.model, made.training, made.profile, made.software)


def every_layout(space: StackSpace) -> Iterator[StackChoices]:
    """Everything that a space has, one by one, without a price: all boundaries, every policy of
    every stage, where a rank has several all of them alike, and every number of chunks."""
    units = range(1, space.problem.num_units)
    for leaf in every_leaf(space):
        for starts in itertools.combinations(units, num_stages(leaf) - 1):
            for recompute in every_recompute(space, leaf, starts):
                for chunks in space.loss_chunks:
                    yield StackChoices(*leaf, chunks, starts, recompute)


# NOTE to the writer of this file: what followed here (every_leaf and all after it) was lost by an
# accident of the lead; please write it again.
