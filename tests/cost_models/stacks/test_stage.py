"""Stages as stacks run them: every parameter, product and collective, against independent counts.

Two oracles: the exact books of our runtime (`cost_models.blocks`), which a ledger holds to the
running program; and the FLOP functions of `cost_models.flops`, which Megatron-LM's figures fix.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from shardwright.cost_models.blocks.operations import Attention, Collective, Matmul
from shardwright.cost_models.blocks.operations import Operation as BookedOperation
from shardwright.cost_models.blocks.stage import StageBooks, stage_books
from shardwright.cost_models.flops import model_flops_megatron
from shardwright.cost_models.stacks.operations import FlashAttention, Product
from shardwright.cost_models.stacks.stage import Holding, StageBuilder
from shardwright.specs import (
    LatentAttentionBlock,
    LayerBlock,
    Layout,
    ModelSpec,
    MoeBlock,
    PredictionBlock,
    Recompute,
    SoftwareSpec,
    StateSpaceBlock,
    TrainingSpec,
)
from shardwright.specs.sources import list_presets, resolve_model
from tests.cost_models.stacks.cases import (
    GENERIC,
    GPT2,
    LLAMA,
    attention_flops,
    calls,
    holdings,
    parameters,
    product_flops,
    small,
)

TRAINING = TrainingSpec(global_batch=8, seq_len=32)
DENSE = {
    "gpt2, tied, with biases and positions": small(GPT2),
    "llama, grouped queries": small(LLAMA, num_key_value_heads=8),
    "llama, fewer kv heads than ranks": small(LLAMA),
    "qwen2, biases of queries, tied": small(LLAMA, model_type="qwen2", tie_word_embeddings=True),
}
GRIDS = [*itertools.product((1, 2, 4, 8), (False, True))]


def books_of(model: ModelSpec, tp: int, sequence_parallel: bool) -> StageBooks:
    layout = Layout.of(model, TRAINING, tp=tp, sequence_parallel=sequence_parallel, micro_batch=2)
    return stage_books(model, TRAINING, SoftwareSpec(), layout, 0, 0)


def held_by(model: ModelSpec, tp: int, sequence_parallel: bool) -> list[Holding]:
    return holdings(model, TRAINING, tp=tp, sequence_parallel=sequence_parallel, micro_batch=2)


def passes(held: list[Holding]) -> dict[str, list[Any]]:
    names = ("forward", "backward_input", "backward_weight", "again")
    return {
        name: [op for one in held for _ in range(one.count) for op in getattr(one.work, name)]
        for name in names
    }


def booked(books: StageBooks, name: str) -> list[BookedOperation]:
    return [operation for unit in books.units for operation in getattr(unit, name)]


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize(("tp", "sequence_parallel"), GRIDS)
class TestAgainstTheExactBooks:
    def test_products_are_the_same_one_by_one(
        self, name: str, tp: int, sequence_parallel: bool
    ) -> None:
        books = books_of(DENSE[name], tp, sequence_parallel)
        found = passes(held_by(DENSE[name], tp, sequence_parallel))
        for which in ("forward", "backward_input", "backward_weight"):
            ours = Counter(op.flops for op in found[which] if isinstance(op, Product))
            exact = Counter(op.flops for op in booked(books, which) if isinstance(op, Matmul))
            assert ours == exact, which

    def test_attention_computes_the_visible_half_of_what_ours_computes(
        self, name: str, tp: int, sequence_parallel: bool
    ) -> None:
        """Our kernel runs the whole square, fused ones skip what the mask hides: 1/2 of it, where
        (S + 1) / (2 S) of the pairs are visible."""
        books = books_of(DENSE[name], tp, sequence_parallel)
        found = passes(held_by(DENSE[name], tp, sequence_parallel))
        for which in ("forward", "backward_input"):
            exact = sum(op.flops for op in booked(books, which) if isinstance(op, Attention))
            assert attention_flops(found[which]) == exact / 2

    def test_parameters_of_the_fullest_rank(
        self, name: str, tp: int, sequence_parallel: bool
    ) -> None:
        books = books_of(DENSE[name], tp, sequence_parallel)
        assert parameters(held_by(DENSE[name], tp, sequence_parallel)) == books.num_parameters

    def test_collectives_have_the_same_kinds_bytes_and_counts(
        self, name: str, tp: int, sequence_parallel: bool
    ) -> None:
        """But for the loss: we sum two numbers per token in one call, stacks in two."""
        books = books_of(DENSE[name], tp, sequence_parallel)
        found = passes(held_by(DENSE[name], tp, sequence_parallel))
        exact = calls_of([*booked(books, "forward")])
        loss = {key: count for key, count in exact.items() if key[3]}
        layers = Counter({key[:3]: count for key, count in exact.items() if not key[3]})
        ours = calls(found["forward"])
        tokens_bytes = 4.0 * 2 * TRAINING.seq_len
        if tp > 1:
            assert sum(key[2] * count for key, count in loss.items()) == 3 * tokens_bytes
            assert ours[("all_reduce", "tp", tokens_bytes)] == 3
            del ours[("all_reduce", "tp", tokens_bytes)]
        assert ours == layers
        exact = calls_of([*booked(books, "backward_input"), *booked(books, "backward_weight")])
        ours = calls([*found["backward_input"], *found["backward_weight"]])
        assert ours == Counter({key[:3]: count for key, count in exact.items()})


def calls_of(operations: list[BookedOperation]) -> Counter[tuple[str, str, float, bool]]:
    """(kind, axis, bytes, whether it is the loss's own)."""
    return Counter(
        (op.kind, op.axis, float(op.input_bytes), op.name.startswith("cross_entropy"))
        for op in operations
        if isinstance(op, Collective)
    )


def test_messages_between_stages_are_the_books() -> None:
    model = DENSE["llama, grouped queries"]
    for tp, sequence_parallel in GRIDS:
        layout = Layout.of(
            model, TRAINING, tp=tp, pp=2, sequence_parallel=sequence_parallel, micro_batch=2
        )
        builder = StageBuilder(model, TRAINING, GENERIC)
        exact = stage_books(model, TRAINING, SoftwareSpec(), layout, 0, 0).message_bytes
        assert builder.message_bytes(builder.sharding(layout)) == exact


@pytest.mark.parametrize("name", list_presets())
def test_every_parameter_of_every_preset_is_on_one_rank_once(name: str) -> None:
    model = resolve_model(name)
    training = training_of(model)
    found = parameters(holdings(model, training))
    assert found == model.num_parameters + model.num_prediction_parameters
    pp = min(3, model.decoder.num_layers)
    assert parameters(holdings(model, training, pp=pp)) == found


def training_of(model: ModelSpec, seq_len: int = 64) -> TrainingSpec:
    """A sequence no longer than the narrowest window of the presets (128)."""
    return TrainingSpec(global_batch=4, seq_len=min(seq_len, model.max_seq_len or seq_len))


def uncounted_flops(model: ModelSpec, training: TrainingSpec) -> float:
    """Forward FLOPs of one sample in our products beyond `model_flops_megatron`'s.

    It leaves out routers; it counts the inner norms of latent attention and the norms before a
    prediction layer as products; and of state spaces it counts a recurrence, where kernels compute
    chunk by chunk (Mamba-2) or element-wise (Mamba: no product at all).
    """
    total = 0.0
    for tower in model.towers:
        tokens = tower.tokens_per_sample or training.seq_len
        for block in tower.blocks:
            layer, times = block, 1
            if isinstance(block, PredictionBlock):
                layer, times = block.layer, block.depth
                total -= times * tokens * 2 * 3 * block.hidden_size
            if isinstance(layer, LayerBlock):
                bodies = [branch.body for branch in layer.branches]
                total += times * layer.repeat * sum(body_beyond(body, tokens) for body in bodies)
    return total


def body_beyond(body: Any, tokens: int) -> float:
    match body:
        case MoeBlock():
            return 2.0 * tokens * body.num_experts * body.hidden_size
        case LatentAttentionBlock():
            return -2.0 * tokens * (body.kv_lora_rank + (body.q_lora_rank or 0))
        case StateSpaceBlock(version="mamba"):
            return -7.0 * tokens * body.inner_size * body.state_size
        case StateSpaceBlock(version="mamba2"):
            inner, size, chunk = body.inner_size, body.state_size, min(body.chunk_size, tokens)
            each = 2 * chunk * body.num_groups * size + 2 * chunk * inner + 4 * inner * size
            return float(tokens * (each - 7 * inner * size))
    return 0.0


@pytest.mark.parametrize("name", list_presets())
def test_products_are_the_models_flops(name: str) -> None:
    """Forward: the model's FLOPs / 3. Backward: every product has two more of its size; the fused
    attention kernel has five products for two, and makes the scores again."""
    model = resolve_model(name)
    training = training_of(model)
    found = passes(holdings(model, training))
    needed = model_flops_megatron(model, training) / 3 / training.global_batch
    needed += uncounted_flops(model, training)
    core = attention_flops(found["forward"])
    assert product_flops(found["forward"]) + core == pytest.approx(needed, rel=1e-12)
    backward = product_flops(found["backward_input"]) + product_flops(found["backward_weight"])
    assert backward == pytest.approx(2 * product_flops(found["forward"]), rel=1e-12)
    sizes = {
        (op.qk_head_dim, op.v_head_dim) for op in found["forward"] if isinstance(op, FlashAttention)
    }
    if all(qk == v for qk, v in sizes):
        assert attention_flops(found["backward_input"]) == pytest.approx(2.5 * core)


def test_unfused_attention_runs_the_whole_square_three_times() -> None:
    model = DENSE["gpt2, tied, with biases and positions"]
    found = passes(holdings(model, TRAINING, SoftwareSpec(attention_kernel="math")))
    everything = [op for name in found for op in found[name]]
    square = 4 * 3 * TRAINING.seq_len**2 * 64  # two products in three layers
    needed = model_flops_megatron(model, TRAINING) / TRAINING.global_batch + 3 * square / 2
    assert product_flops(everything) == needed
    assert not attention_flops(everything)


class TestFurtherParts:
    def test_a_prediction_layer_reads_the_models_own_head(self) -> None:
        model = resolve_model("deepseek-v3")
        training = training_of(model)
        last = holdings(model, training, pp=2, boundaries=(60,))
        heads = [one for one in last if one.is_head]
        assert [one.work.parameters > 0 for one in heads] == [False, True]
        assert heads[0].work.forward == heads[1].work.forward
        assert heads[0].work.tied_parameters == 0

    def test_prediction_adds_its_layer_and_logits_to_the_last_stage(self) -> None:
        model = resolve_model("deepseek-v3")
        blocks = tuple(b for b in model.decoder.blocks if b.kind != "mtp")
        tower = model.decoder.model_copy(update={"blocks": blocks})
        plain = model.model_copy(update={"towers": (tower,)})
        training = training_of(model)
        with_it = passes(holdings(model, training))["forward"]
        without = passes(holdings(plain, training))["forward"]
        assert len(with_it) > len(without)
        (block,) = [b for b in model.decoder.blocks if isinstance(b, PredictionBlock)]
        logits = 2 * training.seq_len * model.head.hidden_size * model.head.vocab_size
        projection = 2 * training.seq_len * 2 * block.hidden_size**2
        more = product_flops(with_it) - product_flops(without)
        assert logits + projection < more < 1.6 * (logits + projection)

    def test_encoders_run_on_the_first_stage_alone(self) -> None:
        model = resolve_model("t5-small")
        training = training_of(model)
        whole = parameters(holdings(model, training))
        decoder = model.decoder.num_parameters
        one_stage = parameters(holdings(model, training, pp=2)[-3:])
        assert one_stage < decoder < whole

    def test_images_keep_their_own_tokens(self) -> None:
        model = resolve_model("llava-1.5-7b")
        short, long = (
            passes(holdings(model, training_of(model, seq_len)))["forward"] for seq_len in (32, 64)
        )
        vision = model.towers[0].tokens_per_sample
        assert vision == 577
        sizes = [
            {op.seq_kv for op in found if isinstance(op, FlashAttention)} for found in (short, long)
        ]
        assert sizes == [{577.0, 32.0}, {577.0, 64.0}]


class TestWhatIsTrained:
    MODEL = DENSE["llama, grouped queries"]

    @pytest.mark.parametrize("trainable", ["lora:4", "qlora:4"])
    def test_adapters_alone_have_weight_gradients(self, trainable: str) -> None:
        training = TRAINING.model_copy(update={"trainable": trainable})
        held = holdings(self.MODEL, training)
        rank = training.adapter_rank
        found = passes(held)
        for op in found["backward_weight"]:
            assert not isinstance(op, Product) or rank in (op.m, op.n, op.k)
        adapters = sum(one.count * one.work.adapters for one in held)
        layer = 4 * (64 + 3 * 64) + 4 * (64 + 64) + 4 * (64 + 192) + 4 * (96 + 64)
        assert adapters == 4 * layer
        assert all(one.frozen for one in held)

    def test_a_frozen_encoder_runs_forward_alone(self) -> None:
        model = resolve_model("llava-1.5-7b")
        training = TrainingSpec(global_batch=4, seq_len=64, trainable="frozen:vision")
        held = holdings(model, training)
        frozen = [one for one in held if one.frozen]
        assert len(frozen) > 2
        for one in frozen:
            assert one.work.forward
            backward = (one.work.backward_input, one.work.backward_weight, one.work.again)
            assert not any(backward)
        trained = sum(one.count * one.work.parameters for one in held if not one.frozen)
        projector = (1024 + 1) * 4096 + (4096 + 1) * 4096
        assert trained == model.decoder.num_parameters + projector

    def test_a_frozen_decoder_hands_gradients_on(self) -> None:
        model = resolve_model("llava-1.5-7b")
        training = TrainingSpec(global_batch=4, seq_len=64, trainable="frozen:vision+decoder")
        found = [one for one in holdings(model, training) if one.frozen]
        decoder = [one for one in found if one.work.backward_input]
        assert decoder
        assert not any(isinstance(op, Product) for one in found for op in one.work.backward_weight)


class TestRecomputation:
    def test_the_first_layers_of_each_stage(self) -> None:
        recompute = Recompute(policy="full", num_layers=1)
        held = holdings(small(), pp=2, recompute=recompute)
        layers = [one for one in held if attention_flops(one.work.forward)]
        assert [(one.count, bool(one.work.again)) for one in layers] == [
            (1, True), (1, False), (1, True), (1, False),
        ]  # fmt: skip

    def test_ends_are_never_recomputed(self) -> None:
        held = holdings(small(), recompute=Recompute(policy="full"))
        assert [bool(one.work.again) for one in held] == [False, True, False, False]

    def test_equal_layers_are_one_holding_and_shared_between_layouts(self) -> None:
        first, second = (holdings(small(), dp=dp) for dp in (1, 2))
        assert [one.count for one in first] == [1, 4, 1, 1]
        assert all(a.work is b.work for a, b in zip(first, second, strict=True))
