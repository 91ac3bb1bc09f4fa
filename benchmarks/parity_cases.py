"""What `benchmarks.parity` runs: two small models with sizes that divide nothing, many layouts.

A case is one layout of one model. Sizes: 5 layers, sequences of 13 tokens, a vocabulary of 61, 5
heads (GPT-2) or 6 query and 3 kv heads (Llama), 37 or 41 ffn columns; 24 sequences per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.specs import (
    AttentionBlock,
    Edge,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    Layout,
    MlpBlock,
    ModelSpec,
    NormBlock,
    OptimizerSpec,
    Precision,
    Recompute,
    ResidualBranch,
    RotaryPositions,
    Tower,
    TrainingSpec,
)

NUM_LAYERS = 5
VOCAB_SIZE = 61
SEQ_LEN = 13

TRAINING = TrainingSpec(
    global_batch=24,
    seq_len=SEQ_LEN,
    precision=Precision.FP64,
    optimizer=OptimizerSpec(learning_rate=1e-2, clip_norm=0.5),
    label_smoothing=0.1,
)


def gpt2() -> ModelSpec:
    """Learned positions, LayerNorm, GELU, biases everywhere, tied head."""
    hidden = 20
    norm = NormBlock(type="layer_norm", hidden_size=hidden, bias=True, epsilon=1e-5)
    attention = AttentionBlock(
        hidden_size=hidden, num_heads=5, num_kv_heads=5, head_dim=4, qkv_bias=True,
        output_bias=True, rotary=None,
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=hidden, ffn_size=37, activation="gelu_tanh", gated=False, bias=True)
    return _decoder("gpt2", norm, attention, mlp, tied=True, max_positions=17)


def llama(*, tied: bool = False, qkv_bias: bool = False) -> ModelSpec:
    """Rotary positions, RMSNorm, SwiGLU, grouped queries; ``qkv_bias`` as in Qwen2."""
    hidden = 24
    norm = NormBlock(type="rms_norm", hidden_size=hidden, bias=False, epsilon=1e-5)
    attention = AttentionBlock(
        hidden_size=hidden, num_heads=6, num_kv_heads=3, head_dim=4, qkv_bias=qkv_bias,
        output_bias=False, rotary=RotaryPositions(base=1e4),
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=hidden, ffn_size=41, activation="silu", gated=True, bias=False)
    return _decoder("llama", norm, attention, mlp, tied=tied, max_positions=None)


def _decoder(
    family: str,
    norm: NormBlock,
    attention: AttentionBlock,
    mlp: MlpBlock,
    *,
    tied: bool,
    max_positions: int | None,
) -> ModelSpec:
    hidden = norm.hidden_size
    branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in (attention, mlp))
    blocks = (
        EmbeddingBlock(vocab_size=VOCAB_SIZE, hidden_size=hidden, max_positions=max_positions),
        LayerBlock(branches=branches, repeat=NUM_LAYERS),
        norm,
        HeadBlock(vocab_size=VOCAB_SIZE, hidden_size=hidden, tied=tied),
    )
    tie = Edge(
        kind="tied_weight", producer="decoder/embedding", consumer="decoder/head",
        shape=(VOCAB_SIZE, hidden),
    )  # fmt: skip
    return ModelSpec(
        name=f"parity-{family}",
        family=family,
        towers=(Tower(name="decoder", blocks=blocks),),
        edges=(tie,) if tied else (),
        max_seq_len=max_positions,
        source="benchmarks/parity_cases.py",
    )


MODELS: dict[str, ModelSpec] = {
    "gpt2": gpt2(),
    "llama": llama(),
    "llama-tied": llama(tied=True, qkv_bias=True),
}

FULL = Recompute(policy="full")
LAYOUTS: dict[str, dict[str, Any]] = {
    # one rank
    "accumulate-12": {"micro_batch": 2},
    "recompute": {"micro_batch": 8, "recompute": FULL},
    # two
    "tp2": {"tp": 2, "micro_batch": 12},
    "tp2-sp": {"tp": 2, "sequence_parallel": True, "micro_batch": 12},
    "tp2-sp-recompute": {
        "tp": 2, "sequence_parallel": True, "micro_batch": 6, "recompute": FULL,
    },
    "dp2": {"dp": 2, "micro_batch": 6},
    "dp2-zero1": {"dp": 2, "zero": 1, "micro_batch": 6},
    "dp2-zero2": {"dp": 2, "zero": 2, "micro_batch": 6},
    "dp2-zero3": {"dp": 2, "zero": 3, "micro_batch": 6},
    "dp2-zero3-recompute": {"dp": 2, "zero": 3, "micro_batch": 6, "recompute": FULL},
    "pp2-gpipe": {"pp": 2, "schedule": "gpipe", "micro_batch": 6},
    "pp2-1f1b-uneven": {"pp": 2, "micro_batch": 4, "boundaries": (4,)},
    "pp2-embedding-alone": {"pp": 2, "micro_batch": 6, "boundaries": (0,)},
    "pp2-head-alone-recompute": {
        "pp": 2, "micro_batch": 6, "boundaries": (5,), "recompute": FULL,
    },
    # three
    "tp3": {"tp": 3, "micro_batch": 12},
    "tp3-sp": {"tp": 3, "sequence_parallel": True, "micro_batch": 8},
    "dp3-zero1": {"dp": 3, "zero": 1, "micro_batch": 4},
    "dp3-zero3": {"dp": 3, "zero": 3, "micro_batch": 4},
    "pp3-1f1b-uneven": {"pp": 3, "micro_batch": 4, "boundaries": (1, 4)},
    "pp3-gpipe-middle-empty": {
        "pp": 3, "schedule": "gpipe", "micro_batch": 6, "boundaries": (3, 3),
    },
    # four
    "tp4": {"tp": 4, "micro_batch": 12},
    "tp4-sp-recompute": {
        "tp": 4, "sequence_parallel": True, "micro_batch": 12, "recompute": FULL,
    },
    "tp2-dp2-zero1": {"tp": 2, "dp": 2, "zero": 1, "micro_batch": 6},
    "tp2-sp-dp2-zero3": {
        "tp": 2, "sequence_parallel": True, "dp": 2, "zero": 3, "micro_batch": 6,
    },
    "tp2-sp-pp2-uneven": {
        "tp": 2, "sequence_parallel": True, "pp": 2, "micro_batch": 6, "boundaries": (2,),
    },
    "pp2-dp2-zero1-gpipe": {
        "pp": 2, "dp": 2, "zero": 1, "schedule": "gpipe", "micro_batch": 3,
    },
    "pp2-dp2-zero3": {"pp": 2, "dp": 2, "zero": 3, "micro_batch": 3},
    "pp4": {"pp": 4, "micro_batch": 4},
    "dp4-zero3": {"dp": 4, "zero": 3, "micro_batch": 3},
    "dp4-zero1-of-2": {"dp": 4, "zero": 1, "zero_shard_degree": 2, "micro_batch": 3},
    "dp4-zero3-of-2": {"dp": 4, "zero": 3, "zero_shard_degree": 2, "micro_batch": 3},
    # five, six, seven
    "pp5": {"pp": 5, "micro_batch": 4},
    "tp5-sp": {"tp": 5, "sequence_parallel": True, "micro_batch": 12},
    "dp6-zero3": {"dp": 6, "zero": 3, "micro_batch": 2},
    "tp3-sp-dp2-zero3-recompute": {
        "tp": 3, "sequence_parallel": True, "dp": 2, "zero": 3, "micro_batch": 6,
        "recompute": FULL,
    },
    "tp2-pp3-gpipe-uneven": {
        "tp": 2, "pp": 3, "schedule": "gpipe", "micro_batch": 6, "boundaries": (1, 2),
    },
    "tp3-sp-pp2": {"tp": 3, "sequence_parallel": True, "pp": 2, "micro_batch": 6},
    "pp3-dp2-zero1-recompute": {
        "pp": 3, "dp": 2, "zero": 1, "micro_batch": 3, "recompute": FULL,
    },
    "pp7-1f1b": {"pp": 7, "micro_batch": 3},
    # eight
    "dp8-zero1": {"dp": 8, "zero": 1, "micro_batch": 3},
    "tp4-dp2-zero3": {"tp": 4, "dp": 2, "zero": 3, "micro_batch": 6},
    "tp2-sp-pp2-dp2-zero1": {
        "tp": 2, "sequence_parallel": True, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 3,
    },
    "tp2-sp-pp2-dp2-zero3-recompute": {
        "tp": 2, "sequence_parallel": True, "pp": 2, "dp": 2, "zero": 3, "micro_batch": 3,
        "recompute": FULL,
    },
    "pp4-dp2-zero3-gpipe": {
        "pp": 4, "dp": 2, "zero": 3, "schedule": "gpipe", "micro_batch": 3,
    },
    "tp2-pp4": {"tp": 2, "pp": 4, "micro_batch": 4},
}  # fmt: skip
"""Free choices by id, for `Layout.of`; run for GPT-2 and Llama alike."""

SCHEDULED: dict[str, dict[str, Any]] = {
    # two ranks; 24 / 3 = 8, 24 / 8 = 3 micro-batches (no multiple of pp)
    "interleaved-pp2": {"pp": 2, "vpp": 2, "micro_batch": 3},
    "interleaved-pp2-odd-uneven": {
        "pp": 2, "vpp": 2, "micro_batch": 8, "boundaries": (1, 2, 2),
    },
    "interleaved-pp2-recompute": {"pp": 2, "vpp": 2, "micro_batch": 4, "recompute": FULL},
    "zb-h1-pp2": {"pp": 2, "schedule": "zb-h1", "micro_batch": 3},
    "zb-h1-pp2-odd-uneven": {
        "pp": 2, "schedule": "zb-h1", "micro_batch": 8, "boundaries": (4,),
    },
    "zb-h1-pp2-recompute": {"pp": 2, "schedule": "zb-h1", "micro_batch": 4, "recompute": FULL},
    "zb-h2-pp2": {"pp": 2, "schedule": "zb-h2", "micro_batch": 3},
    "zb-h2-pp2-head-alone": {
        "pp": 2, "schedule": "zb-h2", "micro_batch": 8, "boundaries": (5,),
    },
    "zb-v-pp2": {"pp": 2, "vpp": 2, "schedule": "zb-v", "micro_batch": 3},
    "zb-v-pp2-odd-uneven": {
        "pp": 2, "vpp": 2, "schedule": "zb-v", "micro_batch": 8, "boundaries": (0, 3, 5),
    },
    "zb-v-pp2-recompute": {
        "pp": 2, "vpp": 2, "schedule": "zb-v", "micro_batch": 4, "recompute": FULL,
    },
    "dualpipev-pp2": {"pp": 2, "vpp": 2, "schedule": "dualpipev", "micro_batch": 3},
    "dualpipev-pp2-odd-empty": {
        "pp": 2, "vpp": 2, "schedule": "dualpipev", "micro_batch": 8, "boundaries": (2, 2, 4),
    },
    # three
    "interleaved-pp3-empty": {
        "pp": 3, "vpp": 3, "micro_batch": 6, "boundaries": (0, 1, 2, 3, 3, 4, 5, 5),
    },
    "zb-h1-pp3-middle-empty": {
        "pp": 3, "schedule": "zb-h1", "micro_batch": 6, "boundaries": (3, 3),
    },
    "zb-v-pp3": {"pp": 3, "vpp": 2, "schedule": "zb-v", "micro_batch": 3},
    "dualpipev-pp3": {"pp": 3, "vpp": 2, "schedule": "dualpipev", "micro_batch": 3},
    # four: with tensor parallelism
    "interleaved-pp2-tp2": {"pp": 2, "vpp": 2, "tp": 2, "micro_batch": 6},
    "zb-h1-pp2-tp2-sp": {
        "pp": 2, "schedule": "zb-h1", "tp": 2, "sequence_parallel": True, "micro_batch": 6,
    },
    "zb-h2-pp2-tp2": {"pp": 2, "schedule": "zb-h2", "tp": 2, "micro_batch": 6},
    "zb-v-pp2-tp2-sp": {
        "pp": 2, "vpp": 2, "schedule": "zb-v", "tp": 2, "sequence_parallel": True,
        "micro_batch": 6,
    },
    "dualpipev-pp2-tp2-sp": {
        "pp": 2, "vpp": 2, "schedule": "dualpipev", "tp": 2, "sequence_parallel": True,
        "micro_batch": 6,
    },
    # four: with data parallelism and ZeRO
    "interleaved-pp2-dp2": {"pp": 2, "vpp": 2, "dp": 2, "micro_batch": 3},
    "interleaved-pp2-dp2-zero1": {"pp": 2, "vpp": 2, "dp": 2, "zero": 1, "micro_batch": 3},
    "interleaved-pp2-dp2-zero2": {"pp": 2, "vpp": 2, "dp": 2, "zero": 2, "micro_batch": 3},
    "interleaved-pp2-dp2-zero3": {"pp": 2, "vpp": 2, "dp": 2, "zero": 3, "micro_batch": 3},
    "zb-h1-pp2-dp2": {"pp": 2, "schedule": "zb-h1", "dp": 2, "micro_batch": 3},
    "zb-h1-pp2-dp2-zero1": {"pp": 2, "schedule": "zb-h1", "dp": 2, "zero": 1, "micro_batch": 3},
    "zb-h1-pp2-dp2-zero2": {"pp": 2, "schedule": "zb-h1", "dp": 2, "zero": 2, "micro_batch": 3},
    "zb-h1-pp2-dp2-zero3-recompute": {
        "pp": 2, "schedule": "zb-h1", "dp": 2, "zero": 3, "micro_batch": 3, "recompute": FULL,
    },
    "zb-h2-pp2-dp2-zero2": {"pp": 2, "schedule": "zb-h2", "dp": 2, "zero": 2, "micro_batch": 3},
    "zb-h2-pp2-dp2-zero3": {"pp": 2, "schedule": "zb-h2", "dp": 2, "zero": 3, "micro_batch": 3},
    "zb-v-pp2-dp2": {"pp": 2, "vpp": 2, "schedule": "zb-v", "dp": 2, "micro_batch": 3},
    "zb-v-pp2-dp2-zero1": {
        "pp": 2, "vpp": 2, "schedule": "zb-v", "dp": 2, "zero": 1, "micro_batch": 3,
    },
    "zb-v-pp2-dp2-zero2": {
        "pp": 2, "vpp": 2, "schedule": "zb-v", "dp": 2, "zero": 2, "micro_batch": 3,
    },
    "zb-v-pp2-dp2-zero3": {
        "pp": 2, "vpp": 2, "schedule": "zb-v", "dp": 2, "zero": 3, "micro_batch": 3,
    },
    "dualpipev-pp2-dp2": {"pp": 2, "vpp": 2, "schedule": "dualpipev", "dp": 2, "micro_batch": 3},
    "dualpipev-pp2-dp2-zero2": {
        "pp": 2, "vpp": 2, "schedule": "dualpipev", "dp": 2, "zero": 2, "micro_batch": 3,
    },
    "dualpipev-pp2-dp2-zero3-recompute": {
        "pp": 2, "vpp": 2, "schedule": "dualpipev", "dp": 2, "zero": 3, "micro_batch": 3,
        "recompute": FULL,
    },
    # four pipeline ranks, eight in all
    "interleaved-pp4": {"pp": 4, "vpp": 2, "micro_batch": 4},
    "zb-h1-pp4": {"pp": 4, "schedule": "zb-h1", "micro_batch": 4},
    "zb-v-pp4": {"pp": 4, "vpp": 2, "schedule": "zb-v", "micro_batch": 4},
    "dualpipev-pp4": {"pp": 4, "vpp": 2, "schedule": "dualpipev", "micro_batch": 2},
    "zb-v-tp2-sp-pp2-dp2-zero3": {
        "tp": 2, "sequence_parallel": True, "pp": 2, "vpp": 2, "schedule": "zb-v", "dp": 2,
        "zero": 3, "micro_batch": 3,
    },
    "dualpipev-tp2-pp2-dp2-zero1-recompute": {
        "tp": 2, "pp": 2, "vpp": 2, "schedule": "dualpipev", "dp": 2, "zero": 1,
        "micro_batch": 3, "recompute": FULL,
    },
    "interleaved-tp2-sp-pp2-dp2-zero2": {
        "tp": 2, "sequence_parallel": True, "pp": 2, "vpp": 2, "dp": 2, "zero": 2,
        "micro_batch": 3,
    },
    "zb-h1-tp2-sp-pp2-dp2-zero3": {
        "tp": 2, "sequence_parallel": True, "pp": 2, "schedule": "zb-h1", "dp": 2, "zero": 3,
        "micro_batch": 3,
    },
}  # fmt: skip
"""Every schedule but GPipe and 1F1B, each with what the two meet above; for every model."""

LLAMA_ONLY: dict[str, dict[str, Any]] = {
    "tp6-sp": {"tp": 6, "sequence_parallel": True, "micro_batch": 12},
}
TIED_LLAMA: tuple[str, ...] = (
    "recompute",
    "tp4",
    "dp2-zero3",
    "pp2-1f1b-uneven",
    "pp2-dp2-zero3",
    "tp2-sp-pp2-dp2-zero1",
    "tp2-sp-pp2-dp2-zero3-recompute",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One layout of one model."""

    model_id: str
    layout_id: str
    choices: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.model_id}/{self.layout_id}"

    @property
    def model(self) -> ModelSpec:
        return MODELS[self.model_id]

    @property
    def layout(self) -> Layout:
        return Layout.of(self.model, TRAINING, **self.choices)


def all_cases() -> dict[str, Case]:
    """Every case by id."""
    cases = [
        *(Case(model, name, LAYOUTS[name]) for model in ("gpt2", "llama") for name in LAYOUTS),
        *(Case("llama", name, choices) for name, choices in LLAMA_ONLY.items()),
        *(Case("llama-tied", name, LAYOUTS[name]) for name in TIED_LLAMA),
        *(Case(model, name, SCHEDULED[name]) for model in MODELS for name in SCHEDULED),
    ]
    return {case.id: case for case in cases}
