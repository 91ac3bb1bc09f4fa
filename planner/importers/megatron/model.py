"""`ModelSpec` of Megatron-LM's arguments: GPT, and BERT as far as arguments say.

Defaults are Megatron-LM's: LayerNorm of epsilon 1e-5, GELU, biases everywhere, learned positions,
a head tied to the embedding, ffn = 4 x hidden (with SwiGLU 8/3 x hidden, to a multiple of 64).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.planner.importers.megatron.arguments import Arguments
from shardwright.planner.importers.megatron.bodies import (
    attention_of,
    is_megatron_deepspeed,
    mlp_of,
    moe_of,
    norm_of,
    position_kind,
)
from shardwright.planner.importers.megatron.hybrid import hybrid_layers
from shardwright.planner.importers.megatron.vocabulary import vocabulary_of
from shardwright.specs import InputError, ModelSpec
from shardwright.specs.blocks import (
    Block,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    PoolerBlock,
    PredictionBlock,
    ResidualBranch,
)
from shardwright.specs.bodies import BranchBody, MoeBlock
from shardwright.specs.model import Edge, Tower
from shardwright.specs.ranges import MOST_LAYERS

NEEDED = ("num-layers", "hidden-size", "num-attention-heads")


@dataclass(slots=True)
class Shape:
    """A model as read, and what was assumed of it."""

    spec: ModelSpec | None
    missing: tuple[str, ...] = ()
    """Options that a model needs and the script does not give."""
    assumed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_encoder(program: str) -> bool:
    """Whether a program trains BERT."""
    return "bert" in program.rpartition("/")[2].lower()


def is_encoder_decoder(program: str) -> bool:
    """Whether a program trains T5."""
    return re.search(r"(?:^|[/_])t5(?:[_.]|$)", program.lower()) is not None


def has_experts(arguments: Arguments, spec: ModelSpec | None) -> bool:
    """Whether some layer has several experts."""
    if spec is None:
        return (arguments.count("num-experts") or 1) > 1
    layers = (block for block in spec.decoder.blocks if isinstance(block, LayerBlock))
    return any(isinstance(branch.body, MoeBlock) for one in layers for branch in one.branches)


def model_of(arguments: Arguments, program: str, name: str) -> Shape:
    """The model that a program trains with these arguments.

    Raises:
        InputError: a size is no number, or sizes contradict each other.
    """
    pattern = arguments.text("hybrid-layer-pattern")
    needed = [one for one in NEEDED if not (pattern and one == "num-layers")]
    missing = tuple(f"--{one}" for one in needed if not arguments.has(one))
    if is_encoder_decoder(program):
        from shardwright.planner.importers.megatron.seq2seq import seq2seq_of

        return Shape(None, missing) if _lacks_both(arguments, missing) else seq2seq_of(
            arguments, name)  # fmt: skip
    if missing:
        return Shape(None, missing)
    assumed: dict[str, str] = {}
    bert = is_encoder(program)
    layers = hybrid_layers(arguments, pattern) if pattern else _layers(arguments, causal=not bert)
    alike = resembling(arguments)
    vocabulary = vocabulary_of(
        arguments, resembles=_resembling(alike),
        usual="BertWordPieceLowerCase" if bert else "GPT2BPETokenizer",
    )  # fmt: skip
    if vocabulary.assumed:
        assumed["vocab_size"] = vocabulary.assumed
    if bert:
        blocks = _encoder_blocks(arguments, layers, vocabulary.size)
    else:
        blocks = _decoder_blocks(arguments, layers, vocabulary.size)
    hidden = _size(arguments, "hidden-size")
    tied = not arguments.has("untie-embeddings-and-output-weights")
    tower = "encoder" if bert else "decoder"
    edge = Edge(
        kind="tied_weight", producer=f"{tower}/embedding", consumer=f"{tower}/head",
        shape=(vocabulary.size, hidden),
    )  # fmt: skip
    spec = _checked(
        name, (Tower(name=tower, blocks=blocks),), (edge,) if tied else (), _longest(arguments),
        arguments,
    )  # fmt: skip
    return Shape(spec, (), assumed, _note_differences(spec, alike))


def _lacks_both(arguments: Arguments, missing: tuple[str, ...]) -> bool:
    has_layers = arguments.has("encoder-num-layers") or arguments.has("num-layers")
    return not has_layers or any(one != "--num-layers" for one in missing)


def _checked(
    name: str, towers: tuple[Tower, ...], edges: tuple[Edge, ...], longest: int | None,
    arguments: Arguments,
) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name=name, family="megatron-lm", towers=towers, edges=edges, max_seq_len=longest,
        initializer_range=arguments.number("init-method-std", 0.02) or 0.02,
        source="arguments of Megatron-LM",
    )  # fmt: skip


def _size(arguments: Arguments, name: str) -> int:
    """A size that must be given."""
    value = arguments.count(name)
    if value is None:
        raise InputError(f"--{name} is not given", fix="name the model")
    return value


def _longest(arguments: Arguments) -> int | None:
    """The longest sequence: ``--max-position-embeddings``, or the sequence itself."""
    return arguments.count("max-position-embeddings") or arguments.count("seq-length")


def num_layers_of(arguments: Arguments) -> int:
    """``--num-layers``; raises `InputError` where it is no number of layers."""
    count = _size(arguments, "num-layers")
    if count > MOST_LAYERS:
        raise InputError(f"--num-layers is {count}, more than {MOST_LAYERS}", fix="correct it")
    return count


def _layers(arguments: Arguments, *, causal: bool) -> tuple[LayerBlock, ...]:
    """Runs of equal layers, of attention and then an MLP or experts."""
    count = num_layers_of(arguments)
    has_experts = expert_layers(arguments, count)
    runs = [(one, len(list(run))) for one, run in itertools.groupby(has_experts)]
    attention = attention_of(arguments, causal=causal)
    bodies: Mapping[bool, BranchBody] = {
        one: moe_of(arguments) if one else mlp_of(arguments) for one in dict.fromkeys(has_experts)
    }
    return tuple(layer_of(arguments, (attention, bodies[one]), repeat) for one, repeat in runs)


def layer_of(arguments: Arguments, bodies: tuple[BranchBody, ...], repeat: int = 1) -> LayerBlock:
    """A layer whose branches read normed inputs."""
    norm = norm_of(arguments)
    branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in bodies)
    return LayerBlock(branches=branches, repeat=repeat)


def expert_layers(arguments: Arguments, count: int) -> list[bool]:
    """Which layers have experts: every ``--moe-layer-freq``-th from the first, or a list of 0 and 1
    such as ``([0]*3+[1]*58)``."""
    if not arguments.has("num-experts") or (arguments.count("num-experts") or 1) < 2:
        return [False] * count
    text = "".join(arguments.many("moe-layer-freq")) or "1"
    interval = arguments.count("expert-interval")
    if interval is None and is_megatron_deepspeed(arguments):
        interval = 2
    if interval is not None and not arguments.has("moe-layer-freq"):
        return [(layer + 1) % interval == 0 for layer in range(count)]
    if text.isdigit() and int(text) > 0:
        return [layer % int(text) == 0 for layer in range(count)]
    listed = _pattern(text)
    if listed is None or len(listed) != count:
        found = "is no list of 0 and 1" if listed is None else f"names {len(listed)} layers"
        raise InputError(
            f"--moe-layer-freq {text} {found}, but there are {count} layers",
            fix="correct the script",
        )
    return listed


def _pattern(text: str) -> list[bool] | None:
    """The value of ``([0]*3+[1]*58)``, without evaluating it as a program."""
    found: list[bool] = []
    text = text.replace(" ", "")
    while text.startswith("(") and text.endswith(")"):
        inner = text[1:-1]
        if "(" in inner and inner.index("(") > inner.find(")") >= 0:
            break
        text = inner
    for part in text.split("+"):
        match = re.fullmatch(r"\(?\[([01](?:,[01])*),?\]\)?(?:\*(\d{1,4}))?", part)
        if match is None:
            return None
        once = [digit == "1" for digit in match[1].split(",")]
        found += once * min(int(match[2] or 1), MOST_LAYERS)
    return found[: MOST_LAYERS + 1]


def _embedding(arguments: Arguments, vocab_size: int, *, token_types: bool) -> EmbeddingBlock:
    return EmbeddingBlock(
        vocab_size=vocab_size,
        hidden_size=_size(arguments, "hidden-size"),
        max_positions=_learned_positions(arguments),
        num_token_types=2 if token_types else None,
        norm=norm_of(arguments) if arguments.has("embed-layernorm") else None,
    )


def _learned_positions(arguments: Arguments) -> int | None:
    return _longest(arguments) if position_kind(arguments) == "learned_absolute" else None


def _decoder_blocks(
    arguments: Arguments, layers: tuple[LayerBlock, ...], vocab_size: int
) -> tuple[Block, ...]:
    hidden = _size(arguments, "hidden-size")
    norm = norm_of(arguments)
    head = HeadBlock(
        vocab_size=vocab_size, hidden_size=hidden,
        tied=not arguments.has("untie-embeddings-and-output-weights"),
    )  # fmt: skip
    blocks: list[Block] = [
        _embedding(arguments, vocab_size, token_types=False), *layers, norm, head
    ]  # fmt: skip
    depth = arguments.whole("mtp-num-layers") or (
        1 if arguments.has("use-multi-token-prediction") else 0
    )
    if depth > 0:
        last = layers[-1].model_copy(update={"repeat": 1})
        blocks.append(PredictionBlock(layer=last, hidden_size=hidden, norm=norm, depth=depth))
    return tuple(blocks)


def _encoder_blocks(
    arguments: Arguments, layers: tuple[LayerBlock, ...], vocab_size: int
) -> tuple[Block, ...]:
    """Token types, a final norm, a masked-language-model head with its dense layer and bias, and
    the pooler of next-sentence prediction unless it is turned off."""
    hidden = _size(arguments, "hidden-size")
    norm = norm_of(arguments)
    head = HeadBlock(
        vocab_size=vocab_size, hidden_size=hidden, tied=True, bias=True, transform=norm,
    )  # fmt: skip
    pooler = () if arguments.has("bert-no-binary-head") else (PoolerBlock(hidden_size=hidden),)
    embedding = _embedding(arguments, vocab_size, token_types=True)
    return (embedding, *layers, norm, *pooler, head)


def resembling(arguments: Arguments) -> list[ModelSpec]:
    """Presets that agree with every size that the script states of its layers; none where it states
    too few to tell them apart."""
    from shardwright.specs.sources.presets import list_presets, preset

    wanted = {
        "num_hidden_layers": arguments.count("num-layers"),
        "hidden_size": arguments.count("hidden-size"),
        "num_attention_heads": arguments.count("num-attention-heads"),
        "num_key_value_heads": arguments.count("num-query-groups"),
        "intermediate_size": arguments.count("ffn-hidden-size"),
        "experts": arguments.count("num-experts"),
    }
    stated = {name: value for name, value in wanted.items() if value is not None}
    if not {"num_hidden_layers", "hidden_size"} <= stated.keys():
        return []
    if not stated.keys() & {"intermediate_size", "experts", "num_key_value_heads"}:
        return []
    return [
        preset(slug).read().spec
        for slug in list_presets()
        if all(value in _values(preset(slug).config, name) for name, value in stated.items())
    ]


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def _values(config: Mapping[str, Any], name: str) -> list[Any]:
    """What a published configuration says of a size, under any of its names. The ffn of a model of
    experts alone may be that of one expert."""
    if name == "experts":
        return [config.get(one) for one in _EXPERTS]
    return [config.get(name)]


def _resembling(found: list[ModelSpec]) -> tuple[str, int] | None:
    """The name of the first model, and the vocabulary that all have."""
    sizes = {model.vocab_size for model in found}
    size = sizes.pop() if len(sizes) == 1 else None
    return None if size is None else (found[0].name, size)


def _note_differences(spec: ModelSpec, found: list[ModelSpec]) -> list[str]:
    """That options make another model than the one whose sizes they state."""
    counts = [(abs(one.num_parameters - spec.num_parameters), one) for one in found]
    if not counts:
        return []
    apart, nearest = min(counts, key=lambda pair: pair[0])
    if apart <= 0.1 * nearest.num_parameters:  # norms, biases and padding are far less
        return []
    return [
        f"the sizes are those of {nearest.name} with {nearest.num_parameters:,} parameters, but the"
        f" options make {spec.num_parameters:,}: check activation, head and experts"
    ]
