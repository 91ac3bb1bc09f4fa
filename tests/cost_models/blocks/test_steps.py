"""Walks over steps, by hand."""

from __future__ import annotations

from shardwright.cost_models.blocks.operations import Elementwise, SavedTensor
from shardwright.cost_models.blocks.steps import Context, Step, chain


def operation(name: str) -> Elementwise:
    return Elementwise(name, 1, "fp32")


FIRST = Step(
    forward=(operation("f1"),), backward_input=(operation("i1"),),
    backward_weight=(operation("w1"),), kept=(SavedTensor("k", 10),), output_bytes=100,
    forward_transient_bytes=500, backward_transient_bytes=300,
)  # fmt: skip
SECOND = Step(
    forward=(operation("f2"),), backward_input=(operation("i2"),),
    kept=(SavedTensor("k", 7),), output_bytes=40,
    forward_transient_bytes=5, backward_transient_bytes=20,
)  # fmt: skip


def test_order_and_what_is_saved() -> None:
    books = chain("b", [FIRST, SECOND], input_bytes=0)
    names = [[op.name for op in ops]
             for ops in (books.forward, books.backward_input, books.backward_weight)]  # fmt: skip
    assert names == [["f1", "f2"], ["i2", "i1"], ["w1"]]
    assert [tensor.num_bytes for tensor in books.saved] == [10, 100, 7, 40]
    assert (books.saved_bytes, books.output_bytes) == (157, 40)


def test_forward_peaks() -> None:
    books = chain("b", [FIRST, SECOND], input_bytes=60)
    # The first step is the fullest: 10 + 100 + 500, of which 157 are saved in the end.
    assert books.forward_transient_bytes == 610 - 157
    # Nothing kept: the input beside the first step, then its output beside the second.
    assert books.unsaved_forward_bytes == max(60 + 610, 100 + 7 + 40 + 5)


def test_backward_peaks() -> None:
    # The second step frees 7 kept and 40 of gradient before the first adds 300; where the output
    # is the residual stream, its gradient waits.
    assert chain("b", [FIRST, SECOND], input_bytes=0).backward_transient_bytes == 300 - 47
    stream = chain("b", [FIRST, SECOND], input_bytes=0, adds_to_stream=True)
    assert stream.backward_transient_bytes == 300 - 7


def test_context_of_an_uneven_sequence() -> None:
    context = Context(2, 10, 4, 3, True, "bf16", "fp32")
    assert (context.local_len, context.tokens, context.local_tokens) == (3, 20, 6)
    assert (context.item, context.wide, context.is_promoted) == (2, 4, True)
    assert not context.is_rank_major
    assert Context(1, 12, 4, 3, True, "fp64", "fp64").is_rank_major
    assert not Context(1, 12, 1, 0, True, "fp64", "fp64").shards_sequence
