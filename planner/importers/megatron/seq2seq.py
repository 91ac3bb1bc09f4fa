"""T5 of Megatron-LM's arguments: two towers of one width and a shared vocabulary."""

from __future__ import annotations

from shardwright.planner.importers.megatron.arguments import Arguments
from shardwright.planner.importers.megatron.bodies import (
    attention_of,
    hidden_size,
    mlp_of,
    norm_of,
    position_kind,
)
from shardwright.planner.importers.megatron.model import Shape
from shardwright.planner.importers.megatron.vocabulary import vocabulary_of
from shardwright.specs import ModelSpec
from shardwright.specs.blocks import EmbeddingBlock, HeadBlock, LayerBlock, ResidualBranch
from shardwright.specs.bodies import AttentionBlock
from shardwright.specs.model import Edge, Tower


def seq2seq_of(arguments: Arguments, name: str) -> Shape:
    """The model of ``pretrain_t5.py``: learned positions, head tied to the one table."""
    hidden = hidden_size(arguments)
    vocabulary = vocabulary_of(arguments, resembles=None, usual="BertWordPieceLowerCase")
    encoder_length = arguments.count("encoder-seq-length") or arguments.count("seq-length")
    decoder_length = arguments.count("decoder-seq-length") or encoder_length
    towers = (
        _tower(arguments, "encoder", vocabulary.size, encoder_length),
        _tower(arguments, "decoder", vocabulary.size, decoder_length),
    )
    shape = (vocabulary.size, hidden)
    edges = (
        Edge(kind="tied_weight", producer="decoder/embedding", consumer="encoder/embedding",
             shape=shape),
        Edge(kind="hidden", producer="encoder/norm", consumer="decoder/layer", shape=(hidden,)),
        Edge(kind="tied_weight", producer="decoder/embedding", consumer="decoder/head",
             shape=shape),
    )  # fmt: skip
    longest = arguments.count("max-position-embeddings") or encoder_length
    spec = ModelSpec(
        name=name, family="megatron-lm", towers=towers, edges=edges, max_seq_len=longest,
        source="arguments of Megatron-LM",
    )  # fmt: skip
    assumed = {} if vocabulary.assumed is None else {"vocab_size": vocabulary.assumed}
    return Shape(spec, (), assumed)


def _tower(arguments: Arguments, name: str, vocab_size: int, length: int | None) -> Tower:
    is_encoder = name == "encoder"
    hidden, norm = hidden_size(arguments), norm_of(arguments)
    count = arguments.count(f"{name}-num-layers") or arguments.count("num-layers") or 1
    attention = attention_of(arguments, causal=not is_encoder)
    assert isinstance(attention, AttentionBlock)
    bodies = [attention, mlp_of(arguments)]
    if not is_encoder:
        across = attention.model_copy(update={"causal": False, "cross": True, "rotary": None})
        bodies.insert(1, across)
    layer = LayerBlock(
        branches=tuple(ResidualBranch(body=body, pre_norm=norm) for body in bodies), repeat=count
    )
    learned = position_kind(arguments) == "learned_absolute"
    embedding = EmbeddingBlock(
        vocab_size=vocab_size, hidden_size=hidden, shared=is_encoder,
        max_positions=arguments.count("max-position-embeddings") if learned else None,
    )  # fmt: skip
    head = () if is_encoder else (
        HeadBlock(vocab_size=vocab_size, hidden_size=hidden, tied=True, bias=True),)  # fmt: skip
    return Tower(name=name, blocks=(embedding, layer, norm, *head), tokens_per_sample=length)
