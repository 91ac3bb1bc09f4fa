"""What a residual branch computes: attention, MLPs, mixtures of experts, state spaces, norms.

Every block counts its own parameters exactly. Sizes are whole, before any split over ranks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from shardwright.specs._base import Spec
from shardwright.specs.ranges import Extent, HeadCount


class NormBlock(Spec):
    """Root-mean-square or layer normalisation over the hidden dimension."""

    kind: Literal["norm"] = "norm"
    type: Literal["rms_norm", "layer_norm"]
    hidden_size: Extent
    bias: bool
    """Whether an additive vector follows the multiplicative one."""
    epsilon: PositiveFloat
    weight: bool = True
    """False: no learned scale (OLMo)."""
    unit_offset: bool = False
    """The scale is 1 + weight (Gemma)."""

    @property
    def num_parameters(self) -> int:
        return self.hidden_size * (self.weight + self.bias)


RopeScaling = Literal["none", "llama3", "step", "linear", "dynamic", "yarn", "longrope", "mrope"]
"""How frequencies change beyond the first training length: ``llama3`` blends between two
frequencies (Llama 3.1), ``step`` changes at one (Llama 4), ``linear``, ``dynamic`` and ``yarn``
as in arXiv 2309.00071, ``longrope`` as in arXiv 2402.13753, ``mrope`` in three sections for
images."""


class RotaryPositions(Spec):
    """Rotary position embedding (Su et al. 2021), rotating pairs (i, i + size / 2)."""

    base: PositiveFloat
    size: Extent | None = None
    """Dimensions of a head that rotate; null = all."""
    interleaved: bool = False
    """Pairs are (2i, 2i + 1) (GPT-J, Cohere)."""
    scaling: RopeScaling = "none"
    factor: PositiveFloat = 1.0
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_max_positions: Extent = 8192

    @model_validator(mode="after")
    def _factors_ascend(self) -> RotaryPositions:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor ({self.low_freq_factor:g}) is not below high_freq_factor"
                f" ({self.high_freq_factor:g})"
            )
        return self


QkNorm = Literal["none", "head", "width"]
"""``head``: one scale of head_dim for queries and one for keys; ``width``: over all their heads."""


class AttentionBlock(Spec):
    """Multi-head, grouped-query or multi-query attention with its projections."""

    kind: Literal["attention"] = "attention"
    hidden_size: Extent
    num_heads: HeadCount
    num_kv_heads: HeadCount
    head_dim: Extent
    qkv_bias: bool
    output_bias: bool
    rotary: RotaryPositions | None
    causal: bool = True
    sliding_window: Extent | None = None
    """Each token sees at most this many tokens, itself included; null = all."""
    qk_norm: QkNorm = "none"
    qk_norm_bias: bool = False
    qk_norm_weight: bool = True
    sinks: bool = False
    """One learned logit per head that takes part in every softmax (GPT-OSS)."""
    softcap: PositiveFloat | None = None
    """Scores pass through softcap x tanh(score / softcap) (Gemma 2)."""
    gated: bool = False
    """The output is multiplied by a sigmoid of a further projection of query size (Qwen3-Next)."""
    relative_buckets: Extent | None = None
    """A learned bias per head and distance bucket, held by this layer (T5)."""
    alibi: bool = False
    """Scores fall linearly with distance (arXiv 2108.12409)."""
    chunked: bool = False
    """Tokens see their own chunk of ``sliding_window`` tokens only (Llama 4)."""
    scale: PositiveFloat | None = None
    """Of the scores; null = head_dim^-0.5."""
    clip: PositiveFloat | None = None
    """Queries, keys and values are clamped to this magnitude."""
    key_bias: bool = True
    """False: of the biases that ``qkv_bias`` adds, the keys have none (ViT of CLIP's kin)."""
    cross: bool = False
    """Keys and values come from another tower (see `Edge`), of width ``memory_size``."""
    memory_size: Extent | None = None
    """Null: ``hidden_size``."""

    @model_validator(mode="after")
    def _groups_are_whole(self) -> AttentionBlock:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads"
                f" ({self.num_kv_heads})"
            )
        if self.rotary is not None and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, not {self.head_dim}")
        return self

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        queries = self.query_size * (2 if self.gated else 1)
        kv_inputs = (self.memory_size or self.hidden_size) if self.cross else self.hidden_size
        weights = self.hidden_size * (queries + self.query_size) + kv_inputs * 2 * self.kv_size
        inputs = queries + self.kv_size * (1 + self.key_bias)
        biases = inputs * self.qkv_bias + self.hidden_size * self.output_bias
        norms = {"none": 0, "head": 2 * self.head_dim, "width": self.query_size + self.kv_size}
        scales = norms[self.qk_norm] * (self.qk_norm_weight + self.qk_norm_bias)
        extra = self.num_heads * (self.sinks + (self.relative_buckets or 0))
        return weights + biases + scales + extra


class SparseIndexer(Spec):
    """Chooses which tokens a query attends to (DeepSeek-V3.2's lightning indexer)."""

    num_heads: HeadCount
    head_dim: Extent
    top_k: Extent


class LatentAttentionBlock(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): low-rank queries, keys, values.

    Without ``q_lora_rank`` queries come straight from the hidden states.
    """

    kind: Literal["latent_attention"] = "latent_attention"
    hidden_size: Extent
    num_heads: HeadCount
    q_lora_rank: Extent | None
    kv_lora_rank: Extent
    qk_nope_head_dim: Extent
    qk_rope_head_dim: Extent
    v_head_dim: Extent
    bias: bool = False
    rotary: RotaryPositions | None
    causal: bool = True
    indexer: SparseIndexer | None = None

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def num_parameters(self) -> int:
        hidden, query_size = self.hidden_size, self.num_heads * self.qk_head_dim
        if self.q_lora_rank is None:
            queries = hidden * query_size
        else:
            queries = self.q_lora_rank * (hidden + 1 + query_size) + self.q_lora_rank * self.bias
        down = self.kv_lora_rank + self.qk_rope_head_dim
        up = self.kv_lora_rank * self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        output = self.num_heads * self.v_head_dim * hidden
        biases = (down + hidden) * self.bias
        return queries + hidden * down + self.kv_lora_rank + up + output + biases + self._indexer

    @property
    def _indexer(self) -> int:
        """Query up-projection, key projection with its LayerNorm, and weights per head."""
        if self.indexer is None:
            return 0
        size = self.indexer.head_dim
        queries = (self.q_lora_rank or self.hidden_size) * self.indexer.num_heads * size
        keys = self.hidden_size * size + 2 * size
        return queries + keys + self.hidden_size * self.indexer.num_heads


Activation = Literal[
    "silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu_squared", "tanh", "xielu"
]
"""``xielu`` has two learned numbers (Apertus)."""


class MlpBlock(Spec):
    """A feed-forward block: ``down(act(up(x)))`` or, gated, ``down(act(gate(x)) * up(x))``."""

    kind: Literal["mlp"] = "mlp"
    hidden_size: Extent
    ffn_size: Extent
    activation: Activation
    gated: bool
    bias: bool

    @property
    def num_parameters(self) -> int:
        up = 2 if self.gated else 1
        weights = (up + 1) * self.hidden_size * self.ffn_size
        biases = (up * self.ffn_size + self.hidden_size) * self.bias
        return weights + biases + 2 * (self.activation == "xielu")


class MoeBlock(Spec):
    """A mixture of experts: a router sends each token to ``top_k`` of ``num_experts`` MLPs."""

    kind: Literal["moe"] = "moe"
    hidden_size: Extent
    expert_size: Extent
    """ffn width of one routed expert."""
    num_experts: Extent
    top_k: Extent
    activation: Activation
    gated: bool
    bias: bool = False
    """Of the routed experts' projections."""
    shared_size: Extent | None = None
    """ffn width of all shared experts together; null = none."""
    shared_gate: bool = False
    """The shared experts' output is multiplied by a sigmoid of one number per token."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    correction_bias: bool = False
    """One number per expert that balances the load and is added to the router's scores only."""
    num_groups: Extent = 1
    """Experts lie in groups, and each token goes to at most ``top_groups`` of them."""
    top_groups: Extent = 1
    latent_size: Extent | None = None
    """Tokens are projected to this width before the routed experts and back after them."""
    capacity_factor: PositiveFloat | None = None
    """Tokens per expert over the even share beyond which tokens are dropped; null = dropless."""

    @model_validator(mode="after")
    def _tokens_find_experts(self) -> MoeBlock:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k ({self.top_k}) exceeds num_experts ({self.num_experts})")
        if self.num_experts % self.num_groups:
            raise ValueError(
                f"num_experts ({self.num_experts}) must be a multiple of num_groups"
                f" ({self.num_groups})"
            )
        return self

    @property
    def parameters_per_expert(self) -> int:
        up, width = 2 if self.gated else 1, self.latent_size or self.hidden_size
        weights = (up + 1) * width * self.expert_size
        return weights + (up * self.expert_size + width) * self.bias

    @property
    def num_expert_parameters(self) -> int:
        """Of all routed experts: what expert parallelism spreads."""
        return self.num_experts * self.parameters_per_expert

    @property
    def num_dense_parameters(self) -> int:
        """Router and shared experts: what every expert-parallel rank holds."""
        up = 2 if self.gated else 1
        shared = (up + 1) * self.hidden_size * (self.shared_size or 0)
        router = self.num_experts * (self.hidden_size + self.router_bias + self.correction_bias)
        latent = 2 * self.hidden_size * (self.latent_size or 0)
        return router + shared + latent + self.hidden_size * self.shared_gate

    @property
    def num_parameters(self) -> int:
        return self.num_expert_parameters + self.num_dense_parameters

    @property
    def num_active_parameters(self) -> int:
        return self.top_k * self.parameters_per_expert + self.num_dense_parameters


class StateSpaceBlock(Spec):
    """A selective state space or its like.

    Mamba: arXiv 2312.00752; Mamba-2: arXiv 2405.21060; gated delta net: arXiv 2412.06464, whose
    value width is ``inner_size``, value heads are ``num_heads``, key heads are ``num_groups`` and
    key head size is ``state_size``.
    """

    kind: Literal["state_space"] = "state_space"
    version: Literal["mamba", "mamba2", "gated_delta"]
    hidden_size: Extent
    inner_size: Extent
    state_size: Extent
    conv_kernel: Extent
    conv_bias: bool = True
    bias: bool = False
    """Of the input and output projections."""
    time_step_rank: Extent | None = None
    """Mamba: width of the step size's low-rank projection."""
    num_heads: HeadCount | None = None
    """Mamba-2."""
    num_groups: Extent = 1
    """Mamba-2: heads of a group share B and C."""
    chunk_size: Extent = 256
    """Mamba-2: tokens per chunk of the scan."""
    selection_norms: bool = False
    """Mamba: the step size, B and C pass through norms with a scale (Jamba)."""
    gate_norm: bool = True
    """Mamba-2: the gated output passes through a norm with a scale."""

    @model_validator(mode="after")
    def _version_has_its_sizes(self) -> StateSpaceBlock:
        needed = "time_step_rank" if self.version == "mamba" else "num_heads"
        if getattr(self, needed) is None:
            raise ValueError(f"{self.version} needs {needed}")
        return self

    @property
    def conv_size(self) -> int:
        """Channels of the short convolution."""
        if self.version == "mamba":
            return self.inner_size
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def input_size(self) -> int:
        """Columns of the input projection: gate, convolved channels, and numbers per head."""
        per_head = 2 if self.version == "gated_delta" else 1
        return self.inner_size + self.conv_size + per_head * (self.num_heads or 0)

    @property
    def num_parameters(self) -> int:
        inner, hidden = self.inner_size, self.hidden_size
        projections = hidden * self.input_size + inner * hidden
        biases = (self.input_size + hidden) * self.bias
        conv = self.conv_size * (self.conv_kernel + self.conv_bias)
        return projections + biases + conv + self._num_scan_parameters

    @property
    def _num_scan_parameters(self) -> int:
        inner, heads = self.inner_size, self.num_heads or 0
        if self.version == "gated_delta":
            return 2 * heads + inner // heads  # decay, step bias; the output's norm per head
        if self.version == "mamba2":
            return 3 * heads + inner * self.gate_norm  # decay, step bias, skip
        rank = self.time_step_rank or 0
        selected = rank + 2 * self.state_size
        step = rank * inner + inner
        return (
            inner * selected
            + step
            + selected * self.selection_norms
            + inner * (self.state_size + 1)
        )


class LinearBlock(Spec):
    """One projection of the hidden states onto themselves (Nemotron-NAS)."""

    kind: Literal["linear"] = "linear"
    hidden_size: Extent
    bias: bool = False

    @property
    def num_parameters(self) -> int:
        return self.hidden_size * (self.hidden_size + self.bias)


BranchBody = Annotated[
    AttentionBlock | LatentAttentionBlock | MlpBlock | MoeBlock | StateSpaceBlock | LinearBlock,
    Field(discriminator="kind"),
]
