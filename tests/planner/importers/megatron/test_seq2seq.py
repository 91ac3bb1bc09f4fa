"""T5 as far as its arguments say."""

from __future__ import annotations

from shardwright.planner.importers.megatron.seq2seq import seq2seq_of
from tests.planner.importers.megatron.scripts import arguments_of


def test_two_towers_over_one_table() -> None:
    shape = seq2seq_of(
        arguments_of(
            "--encoder-num-layers 12 --decoder-num-layers 6 --hidden-size 768"
            " --num-attention-heads 12 --kv-channels 64 --ffn-hidden-size 3072"
            " --encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512"
            " --vocab-extra-ids 100"
        ),
        "t5",
    )
    assert shape.spec is not None
    encoder, decoder = shape.spec.towers
    assert (encoder.num_layers, decoder.num_layers) == (12, 6)
    assert (encoder.tokens_per_sample, decoder.tokens_per_sample) == (512, 128)
    assert shape.spec.vocab_size == 30720
    assert len([edge for edge in shape.spec.edges if edge.kind == "tied_weight"]) == 2
