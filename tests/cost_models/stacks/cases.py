"""Small models, layouts and counts that the tests of this folder share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from shardwright.cost_models.stacks.operations import (
    FlashAttention,
    Message,
    Operation,
    Part,
    Product,
    Traffic,
)
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.cost_models.stacks.stage import Holding, StageBuilder
from shardwright.specs import (
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    Layout,
    ModelSpec,
    NormBlock,
    ResidualBranch,
    SoftwareSpec,
    Tower,
    TrainingSpec,
)
from shardwright.specs.blocks import Block
from shardwright.specs.bodies import BranchBody
from shardwright.specs.sources import model_from_config

HIDDEN = 64
GENERIC = SoftwareSpec(framework="generic")

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 160, "n_embd": 64, "n_layer": 3, "n_head": 8,
    "n_positions": 1024,
}  # fmt: skip


def small(config: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    return model_from_config((config or LLAMA) | changes, name="small", source="a test").spec


def norm(hidden: int = HIDDEN) -> NormBlock:
    return NormBlock(type="rms_norm", hidden_size=hidden, bias=False, epsilon=1e-6)


def decoder(*bodies: BranchBody, extra: tuple[Block, ...] = (), **branch: Any) -> ModelSpec:
    """A decoder of one layer with these bodies, each behind a norm."""
    hidden = bodies[0].hidden_size
    branches = tuple(ResidualBranch(body=body, pre_norm=norm(hidden), **branch) for body in bodies)
    blocks: tuple[Block, ...] = (
        EmbeddingBlock(vocab_size=160, hidden_size=hidden),
        LayerBlock(branches=branches),
        norm(hidden),
        HeadBlock(vocab_size=160, hidden_size=hidden, tied=False),
        *extra,
    )
    return ModelSpec(
        name="one layer", family="custom", towers=(Tower(name="decoder", blocks=blocks),),
        max_seq_len=None, source="a test",
    )  # fmt: skip


def sharding(**changes: Any) -> Sharding:
    return Sharding(**({"batch": 2, "seq_len": 32} | changes))


def holdings(
    model: ModelSpec,
    training: TrainingSpec | None = None,
    software: SoftwareSpec = GENERIC,
    **choices: Any,
) -> list[Holding]:
    """Everything that every stage of a layout holds, in order."""
    training = training or TrainingSpec(global_batch=8, seq_len=32)
    builder = StageBuilder(model, training, software)
    layout = Layout.of(model, training, **choices)
    cut = builder.sharding(layout)
    return [
        one for index in range(len(layout.stages)) for one in builder.holdings(layout, index, cut)
    ]


def parameters(held: Iterable[Holding]) -> float:
    return sum(one.count * (one.work.parameters + one.work.expert_parameters) for one in held)


def part_parameters(parts: Iterable[Part]) -> float:
    return sum(part.parameters + part.expert_parameters for part in parts)


def forward(parts: Iterable[Part]) -> list[Operation]:
    return [op for part in parts for op in part.forward]


def backward(parts: Iterable[Part]) -> list[Operation]:
    return [op for part in parts for op in (*part.backward_input, *part.backward_weight)]


def product_flops(operations: Iterable[Operation]) -> float:
    return sum(op.flops for op in operations if isinstance(op, Product))


def attention_flops(operations: Iterable[Operation]) -> float:
    return sum(op.flops for op in operations if isinstance(op, FlashAttention))


def traffic_bytes(operations: Iterable[Operation]) -> float:
    return sum(op.num_bytes for op in operations if isinstance(op, Traffic))


def messages(operations: Iterable[Operation], axis: str | None = None) -> list[Message]:
    return [op for op in operations if isinstance(op, Message) and axis in (None, op.axis)]


def calls(operations: Iterable[Operation]) -> Counter[tuple[str, str, float]]:
    """How often each collective runs: (kind, axis, bytes)."""
    return Counter((op.kind, op.axis, op.num_bytes) for op in messages(operations))
