"""Books of stages: complete, shared between equal layers, and cheap to ask for again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shardwright.cost_models.blocks.operations import Collective, Matmul
from shardwright.cost_models.blocks.stage import stage_books
from shardwright.specs import InputError, Layout, ModelSpec, Recompute, SoftwareSpec, TrainingSpec
from tests.runtime.tiny_models import MODELS, tiny_llama

TRAINING = TrainingSpec(global_batch=4, seq_len=10)
SOFTWARE = SoftwareSpec()


def layout_of(model: ModelSpec, **choices: Any) -> Layout:
    return Layout.of(model, TRAINING, micro_batch=2, **choices)


@pytest.mark.parametrize(("name", "pp", "tp"), [*itertools.product(MODELS, (1, 2, 3), (1, 3))])
def test_parameters_of_all_ranks_are_the_models(name: str, pp: int, tp: int) -> None:
    model = MODELS[name]
    layout = layout_of(model, pp=pp, tp=tp)
    elements: dict[str, int] = {}
    shapes: dict[str, int] = {}
    for stage, rank in itertools.product(range(pp), range(tp)):
        for p in stage_books(model, TRAINING, SOFTWARE, layout, stage, rank).parameters:
            shapes[p.name] = numel(p.global_shape)
            if stage > 0 and p.name == "embedding.weight":
                continue  # the head's copy of a tied weight
            elements[p.name] = elements.get(p.name, 0) + p.numel
    assert sum(shapes.values()) == model.num_parameters
    for parameter, count in elements.items():
        assert count >= shapes[parameter], parameter
        if tp == 1:
            assert count == shapes[parameter], parameter


def numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def test_equal_layers_share_their_books_and_have_global_names() -> None:
    books = stage_books(MODELS["llama"], TRAINING, SOFTWARE, layout_of(MODELS["llama"]), 0, 0)
    first, second = books.units[1], books.units[2]
    assert (first.name, second.name) == ("layers.0", "layers.1")
    assert all(a is b for a, b in zip(first.blocks, second.blocks, strict=True))
    assert second.parameters[0].name == "layers.1.attention_norm.weight"


def test_asking_again_costs_nothing() -> None:
    model = tiny_llama(num_layers=64)
    layout = layout_of(model, tp=2)
    again = layout_of(model, tp=2, dp=2)
    ask = [stage_books(model, TRAINING, SOFTWARE, asked, 0, 1) for asked in (layout, again)]
    assert ask[0] is ask[1]


def test_recompute_keeps_the_output_and_runs_forward_again() -> None:
    model = MODELS["llama"]
    plain = stage_books(model, TRAINING, SOFTWARE, layout_of(model), 0, 0)
    again = stage_books(
        model, TRAINING, SOFTWARE,
        layout_of(model, recompute=Recompute(policy="full", num_layers=2)), 0, 0,
    )  # fmt: skip
    assert [unit.recompute for unit in again.units] == [False, True, True, False, False]
    layer = again.units[1]
    assert layer.saved_bytes == layer.output_bytes == 2 * 10 * 20 * 2
    assert layer.backward == (*layer.forward, *plain.units[1].backward)
    assert again.saved_bytes < plain.saved_bytes


def test_matmuls_of_a_layer_by_hand() -> None:
    model = MODELS["llama"]  # 6 heads of 4 and 3 kv heads: 24 + 2 x 12 rows; ffn 21
    books = stage_books(model, TRAINING, SOFTWARE, layout_of(model, tp=3), 0, 0)
    matmuls = [op for op in books.units[1].forward if isinstance(op, Matmul)]
    assert [(op.name, op.m, op.n, op.k) for op in matmuls] == [
        ("qkv.forward", 20, 16, 20),
        ("attention_output.forward", 20, 20, 8),
        ("gate_up.forward", 20, 14, 20),
        ("down.forward", 20, 20, 7),
    ]
    weights = [op for op in books.units[1].backward_weight if isinstance(op, Matmul)]
    assert (weights[-1].name, weights[-1].m, weights[-1].n, weights[-1].k) == (
        "qkv.weight_gradient", 16, 20, 20,
    )  # fmt: skip


@pytest.mark.parametrize("sp", [False, True])
def test_collectives_of_a_layer(sp: bool) -> None:
    model = MODELS["llama"]
    books = stage_books(
        model, TRAINING, SOFTWARE, layout_of(model, tp=2, sequence_parallel=sp), 0, 0
    )
    unit = books.units[1]
    kinds = [[op.kind for op in ops if isinstance(op, Collective)]
             for ops in (unit.forward, unit.backward)]  # fmt: skip
    if sp:
        gather, scatter = "all_gather", "reduce_scatter"
        assert kinds[0] == [gather, scatter] * 2
        assert kinds[1] == [gather, scatter, gather] * 2
    else:
        assert kinds == [["all_reduce"] * 2] * 2


def test_what_is_not_built_is_refused() -> None:
    model = MODELS["llama"]
    layout = layout_of(model, recompute=Recompute(policy="selective"))
    with pytest.raises(InputError, match="selective recompute"):
        stage_books(model, TRAINING, SOFTWARE, layout, 0, 0)
    with pytest.raises(InputError, match="cp = 2"):
        stage_books(model, TRAINING, SOFTWARE, layout_of(model, cp=2), 0, 0)
