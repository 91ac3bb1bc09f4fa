"""What is measured against what is booked, for whole models of both kinds: names and sizes."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

import pytest
import torch

from shardwright.cost_models.blocks.operations import Attention, Elementwise, Matmul, Operation
from shardwright.cost_models.blocks.stage import StageBooks, stage_books
from shardwright.cost_models.compute import MATMUL_FORMS, matmul_form
from shardwright.cost_models.shards import UnitShards
from shardwright.hardware_profiles.measure.operation import TimedOperation
from shardwright.hardware_profiles.measure.timing import Arena
from shardwright.runtime import measured
from shardwright.runtime.parallel.dtypes import torch_dtype
from shardwright.specs import (
    AttentionBlock,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    Layout,
    MlpBlock,
    ModelSpec,
    NormBlock,
    Precision,
    ResidualBranch,
    RotaryPositions,
    SoftwareSpec,
    Tower,
    TrainingSpec,
)
from shardwright.specs.training import DType

CPU = torch.device("cpu")
TOKENS, HIDDEN = 1024, measured.VOCABULARY
"""With rows as long as the vocabulary, all operations are measured for the same tokens. Nothing of
this size is computed: sizes are stated before operands are made."""
ELEMENTS = TOKENS * HIDDEN

PRICED_BY_BYTES = {"layer_norm.weight_gradient", "positions.forward", "positions.weight_gradient"}
"""Booked operations without a curve of their own: fused into another, or once per micro-batch."""
PER_PARAMETER = {"accumulate_gradient"}
"""Booked for each parameter, in proportion to its elements."""

KINDS = ["gpt2", "llama"]
DTYPES: list[DType] = ["fp32", "bf16"]


def model(kind: str) -> ModelSpec:
    """One layer whose every extent is the one that is measured."""
    is_llama = kind == "llama"
    norm = NormBlock(
        type="rms_norm" if is_llama else "layer_norm", hidden_size=HIDDEN, bias=not is_llama,
        epsilon=1e-5,
    )  # fmt: skip
    heads = measured.NUM_HEADS
    attention = AttentionBlock(
        hidden_size=HIDDEN, num_heads=heads, num_kv_heads=heads, head_dim=HIDDEN // heads,
        qkv_bias=not is_llama, output_bias=not is_llama,
        rotary=RotaryPositions(base=1e4) if is_llama else None,
    )  # fmt: skip
    mlp = MlpBlock(
        hidden_size=HIDDEN, ffn_size=HIDDEN, activation="silu" if is_llama else "gelu_tanh",
        gated=is_llama, bias=not is_llama,
    )  # fmt: skip
    rows = measured.ROWS_PER_TOKEN * TOKENS
    branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in (attention, mlp))
    blocks = (
        EmbeddingBlock(
            vocab_size=rows, hidden_size=HIDDEN, max_positions=None if is_llama else TOKENS
        ),
        LayerBlock(branches=branches, repeat=1),
        norm,
        HeadBlock(vocab_size=rows, hidden_size=HIDDEN, tied=False),
    )
    tower = Tower(name="decoder", blocks=blocks)
    return ModelSpec(
        name=kind, family="custom", towers=(tower,), max_seq_len=TOKENS, source="tests"
    )


def training(dtype: DType) -> TrainingSpec:
    return TrainingSpec(global_batch=1, seq_len=TOKENS, precision=Precision(dtype))


def books(kind: str, dtype: DType) -> StageBooks:
    spec, how = model(kind), training(dtype)
    return stage_books(spec, how, SoftwareSpec(), Layout.of(spec, how), 0, 0)


def booked_operations(kind: str, dtype: DType) -> list[Operation]:
    """Of one micro-batch of one sequence, and of an update of as many elements as are measured."""
    blocks = [block for unit in books(kind, dtype).units for block in unit.blocks]
    shards = UnitShards(ELEMENTS, 0, 1, 0, training(dtype).dtypes)
    return [
        *chain.from_iterable(
            (*block.forward, *block.backward_input, *block.backward_weight) for block in blocks
        ),
        shards.norm(),
        *shards.update(clips=True),
    ]


def booked_bytes(kind: str, dtype: DType) -> dict[tuple[str, DType], set[int]]:
    """The sizes of every element-wise operation; of some there are several."""
    found: dict[tuple[str, DType], set[int]] = defaultdict(set)
    for operation in booked_operations(kind, dtype):
        if isinstance(operation, Elementwise) and operation.name not in PRICED_BY_BYTES:
            found[operation.name, operation.dtype].add(operation.num_bytes)
    return found


def arena(dtype: DType) -> Arena:
    return Arena(2**12, torch_dtype(dtype), CPU)


def elementwise(dtype: DType) -> dict[tuple[str, DType], TimedOperation]:
    found = measured.elementwise_operations(arena(dtype), dtype, ELEMENTS, HIDDEN)
    return {(operation.name, operation.dtype): operation for operation in found}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_booked_is_measured_at_the_booked_bytes(kind: str, dtype: DType) -> None:
    timed = elementwise(dtype)
    booked = booked_bytes(kind, dtype)
    assert len(booked) >= 14
    assert booked.keys() <= timed.keys()
    for key, sizes in booked.items():
        if key[0] not in PER_PARAMETER:
            assert timed[key].x in sizes, (key, timed[key].x, sizes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_accumulated_at_the_booked_bytes_per_element(dtype: DType) -> None:
    total = num_parameters = 0
    for unit in books("llama", dtype).units:
        num_parameters += unit.num_parameters
        total += sum(
            operation.num_bytes
            for block in unit.blocks
            for operation in (*block.backward_input, *block.backward_weight)
            if isinstance(operation, Elementwise) and operation.name in PER_PARAMETER
        )
    key = ("accumulate_gradient", training(dtype).dtypes.gradient)
    assert elementwise(dtype)[key].x / ELEMENTS == total / num_parameters


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_measured_that_no_model_books(dtype: DType) -> None:
    booked = booked_bytes("gpt2", dtype).keys() | booked_bytes("llama", dtype).keys()
    parts = {key for key, operation in elementwise(dtype).items() if operation.x == 0}
    assert elementwise(dtype).keys() - booked == parts


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_measured_in_every_booked_form_at_the_booked_flops(kind: str) -> None:
    products = [op for op in booked_operations(kind, "fp32") if isinstance(op, Matmul)]
    assert {matmul_form(product) for product in products} == set(MATMUL_FORMS)
    for product in products:
        operations = measured.linear_operations(
            arena("fp32"), "fp32", product.m, product.n, product.k
        )
        named = {operation.name: operation for operation in operations}
        assert named[matmul_form(product)].x == product.flops, product


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_measured_both_ways_at_the_booked_flops(kind: str) -> None:
    cores = [op for op in booked_operations(kind, "fp32") if isinstance(op, Attention)]
    assert {core.backward for core in cores} == {False, True}
    for core in cores:
        operations = measured.attention_operations(
            arena("fp32"), "fp32", core.batch * core.heads, core.seq_q, core.head_dim
        )
        named = {operation.name: operation for operation in operations}
        assert named["backward" if core.backward else "forward"].x == core.flops


def test_a_product_s_three_forms_are_the_products_of_one_layer() -> None:
    """Both gradients that are timed apart are those that backward of the layer gives."""
    numbers = Arena(2**16, torch.float64, CPU)
    timed = {
        operation.name: operation
        for operation in measured.linear_operations(numbers, "fp64", tokens=4, out=6, inner=8)
    }
    for name, shape in (("forward", (1, 4, 6)), ("weight_gradient", (6, 8))):
        made = timed[name].make_call().run()
        assert isinstance(made, torch.Tensor)
        assert made.shape == shape
    call = timed["input_gradient"].make_call()
    made = call.run()
    assert isinstance(made, tuple)
    assert [None if gradient is None else tuple(gradient.shape) for gradient in made] == [
        (1, 4, 8),
        None,
    ]
