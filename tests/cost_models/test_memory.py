"""The memory timeline against the books; `test_memory_live` holds it against real runs."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.cost_models.blocks.stage import StageBooks
from shardwright.cost_models.memory import num_groups
from shardwright.cost_models.step import StepModel
from shardwright.specs import Layout, MemoryParts, Precision, Recompute, TrainingSpec
from shardwright.specs.sources import model_from_config
from tests.cost_models.profiles import PARAMETERS, profile

CONFIG = {
    "model_type": "gpt2", "vocab_size": 1000, "n_embd": 64, "n_layer": 8, "n_head": 4,
    "n_positions": 128,
}  # fmt: skip
MODEL = model_from_config(CONFIG, name="small", source="a test").spec
TRAINING = TrainingSpec(global_batch=16, seq_len=128, precision=Precision.BF16)
INPUT_BYTES = 2 * 8
"""Of a token and its label."""


def layout(**choices: Any) -> Layout:
    return Layout.of(MODEL, TRAINING, **choices)


def price(**parameters: float) -> StepModel:
    named = {name.replace("__", "."): value for name, value in parameters.items()}
    return StepModel(MODEL, TRAINING, profile(parameters=PARAMETERS | named))


def parts_and_books(chosen: Layout) -> tuple[tuple[MemoryParts, ...], list[StageBooks]]:
    model = price()
    books = [model.units.books(chosen, stage)[0] for stage in range(len(chosen.stages))]
    return model.memory(chosen), books


def always_bytes(chosen: Layout, books: StageBooks) -> int:
    """Constants and the step's input."""
    tokens = chosen.micro_batches * chosen.micro_batch * TRAINING.seq_len
    return books.buffer_bytes + tokens * INPUT_BYTES


def test_without_a_pipeline_one_micro_batch_at_its_peak() -> None:
    chosen = layout(micro_batch=2)
    (parts,), (books,) = parts_and_books(chosen)
    numel = books.num_parameters
    assert (parts.weights, parts.gradients, parts.optimizer_state) == (
        2 * numel, 4 * numel, 12 * numel,
    )  # fmt: skip
    forward = books.forward_peak_bytes
    backward = books.saved_bytes + books.backward_peak_bytes
    work = parts.activations + parts.transient + parts.gathered_weights
    assert work == max(forward, backward) + always_bytes(chosen, books)
    assert (parts.gathered_weights, parts.fixed) == (0, 0)


def test_micro_batches_in_flight_under_1f1b() -> None:
    """A middle stage peaks in backward: what others keep, its own, a message that is under way."""
    chosen = layout(pp=4)
    parts, books = parts_and_books(chosen)
    for rank in (1, 2):
        stage = books[rank]
        kept = stage.saved_bytes + stage.input_bytes
        own = kept + stage.message_bytes + stage.backward_peak_bytes
        live = parts[rank].total_bytes - always_bytes(chosen, stage) - 18 * stage.num_parameters
        messages, rest = divmod(live - (4 - rank - 1) * kept - own, stage.message_bytes)
        assert rest == 0
        assert 1 <= messages <= 4 - rank


def test_micro_batches_in_flight_under_gpipe() -> None:
    """The last forward, or the exchange after it, in which all messages are there at once."""
    chosen = layout(pp=4, schedule="gpipe")
    parts, books = parts_and_books(chosen)
    for rank in (1, 2):
        stage = books[rank]
        kept, message = stage.saved_bytes + stage.input_bytes, stage.message_bytes
        forward = 15 * (kept + message) + stage.input_bytes + stage.forward_peak_bytes
        exchange = 16 * (kept + message) + message
        live = parts[rank].total_bytes - always_bytes(chosen, stage) - 18 * stage.num_parameters
        assert live == max(forward, exchange)


def test_sharding_weights_trades_state_for_gathered_units() -> None:
    model = price()
    plain, zero_1, zero_3 = (model.memory(layout(dp=8, zero=zero))[0] for zero in (0, 1, 3))
    assert zero_1.weights == pytest.approx(plain.weights, rel=1e-3)
    assert zero_1.optimizer_state == pytest.approx(plain.optimizer_state / 8, rel=1e-3)
    assert zero_3.weights == pytest.approx(plain.weights / 8, rel=1e-3)
    assert zero_3.gradients == pytest.approx(plain.gradients / 8, rel=1e-3)
    assert 0 < zero_3.gathered_weights < plain.weights
    assert zero_3.total_bytes < zero_1.total_bytes < plain.total_bytes


def test_a_tied_weight_stays_gathered_between_its_readers() -> None:
    """Without a pipeline the head's peak has the tied weight and its own unit whole."""
    chosen = layout(dp=8, zero=3, micro_batch=2)
    (parts,), (books,) = parts_and_books(chosen)
    tied = next(unit for unit in books.units if unit.name == "tied_embedding")
    assert parts.gathered_weights >= 2 * tied.num_parameters


def test_recompute_keeps_less() -> None:
    model = price()
    kept, again = (
        model.memory(layout(pp=4, recompute=policy))[0]
        for policy in (None, Recompute(policy="full"))
    )
    assert again.activations < kept.activations / 3


def test_communicators_and_margin_are_fixed() -> None:
    named = {
        "memory__first_communicator_bytes": 1000.0,
        "memory__communicator_bytes": 10.0,
        "memory__fragmentation_fraction": 0.5,
    }
    chosen = layout(tp=2, pp=2, dp=2)
    assert num_groups(chosen) == 4
    without, found = price().memory(chosen)[0], price(**named).memory(chosen)[0]
    assert found.fixed == 1030 + round(without.total_bytes * 0.5)
    assert found.total_bytes - found.fixed == without.total_bytes


def test_groups_of_a_rank() -> None:
    assert num_groups(layout()) == 0
    assert num_groups(layout(dp=8)) == 2
    assert num_groups(layout(dp=8, zero=3, zero_shard_degree=4)) == 4
