from __future__ import annotations

from shardwright.cost_models.stacks.operations import FlashAttention, Part, Product


def test_flops_of_a_batched_product() -> None:
    assert Product(3, 5, 7, 2).flops == 2 * 2 * 3 * 5 * 7


def test_flops_of_attention_by_pass_and_by_what_is_visible() -> None:
    """Two products forward; five backward, of which the scores and two gradients are as wide as
    queries, the others as values."""
    whole = FlashAttention(2, 4, 8, 16, 6, 10, 1.0, backward=False)
    square = 2 * 4 * 8 * 16
    assert whole.flops == 2 * square * (6 + 10)
    assert whole._replace(visible=0.5).flops == whole.flops / 2
    assert whole._replace(backward=True).flops == 2 * square * (3 * 6 + 2 * 10)


def test_a_part_keeps_its_internals_and_its_output() -> None:
    assert Part("mlp", internal_bytes=3.0, output_bytes=4.0).saved_bytes == 7.0
