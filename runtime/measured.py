"""The runtime's operations as a profile measures them: called as in training, sized as booked.

`shardwright.hardware_profiles.measure` imports this module by name in each rank it starts. Sizes
come from the books of a block of the measured shape, so both sides count bytes alike by
construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shardwright.cost_models.blocks.dense import (
    attention_books,
    embedding_books,
    head_books,
    mlp_books,
    norm_books,
)
from shardwright.cost_models.blocks.operations import (
    Attention,
    BlockBooks,
    Elementwise,
    Operation,
)
from shardwright.cost_models.blocks.splits import HeadSplit
from shardwright.cost_models.blocks.steps import Context
from shardwright.cost_models.shards import UnitShards
from shardwright.hardware_profiles.measure.operation import TimedOperation
from shardwright.hardware_profiles.measure.timing import Arena, Call
from shardwright.runtime.models.attention import (
    AttentionTables,
    attend,
    rotary_tables,
    rotate_,
)
from shardwright.runtime.models.mlp import activate
from shardwright.runtime.models.norms import normalize
from shardwright.runtime.parallel.collectives import TensorParallel
from shardwright.runtime.parallel.dtypes import promoted, torch_dtype
from shardwright.runtime.parallel.layers import column_linear, embed, weight_gradient
from shardwright.runtime.parallel.loss import vocabulary_parallel_cross_entropy
from shardwright.specs import Precision, PrecisionDTypes, TrainingSpec
from shardwright.specs.model import (
    Activation,
    AttentionBlock,
    EmbeddingBlock,
    HeadBlock,
    MlpBlock,
    NormBlock,
    RotaryPositions,
)
from shardwright.specs.training import DType

START = "backward_start"
"""The part of every timed backward that training has once per micro-batch, not per operation."""
NUM_HEADS = 4
VOCABULARY = 4096
ROWS_PER_TOKEN = 4
"""Rows of the measured embedding for each token that is looked up."""
ALONE = TensorParallel()


@dataclass(frozen=True, slots=True)
class Shape:
    """Where operands come from and how large they are: ``tokens`` rows of ``hidden``."""

    arena: Arena
    dtype: DType
    tokens: int
    hidden: int

    @property
    def num_bytes(self) -> int:
        return self.tokens * self.hidden * self.arena.element_bytes

    @property
    def dtypes(self) -> PrecisionDTypes:
        return TrainingSpec(global_batch=1, seq_len=1, precision=Precision(self.dtype)).dtypes

    @property
    def context(self) -> Context:
        """One sequence of all tokens on one rank."""
        return Context(1, self.tokens, 1, 0, False, self.dtype, self.dtypes.gradient)

    def rows(self) -> Tensor:
        """Hidden states [1, tokens, hidden]."""
        return self.arena.take(1, self.tokens, self.hidden)

    def vector(self) -> Tensor:
        return self.arena.take(self.hidden)

    def timed(
        self, booked: Elementwise, make_call: Callable[[], Call], parts: tuple[str, ...] = ()
    ) -> TimedOperation:
        return TimedOperation(
            booked.name, booked.dtype, booked.num_bytes, make_call, self.num_bytes, parts
        )


def elementwise_operations(
    arena: Arena, dtype: DType, numel: int, hidden: int
) -> Iterator[TimedOperation]:
    """See `shardwright.hardware_profiles.measure.operation.RuntimeOperations`."""
    shape = Shape(arena, dtype, max(1, numel // hidden), hidden)
    yield _backward_start(arena, dtype)
    yield from _rms_norm(shape)
    yield from _layer_norm(shape)
    yield from _attention_side(shape)
    yield from _mlp(shape, "silu", gated=True)
    yield from _mlp(shape, "gelu_tanh", gated=False)
    yield from _residual_and_bias(shape)
    yield from _embedding(shape)
    yield from _cross_entropy(shape)
    yield _accumulate_gradient(shape)
    yield from _update(shape)


# Autograd functions: forward alone, and backward of several nodes of one graph

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """An autograd function of the runtime."""

    apply: Callable[..., Tensor | tuple[Tensor, ...]]
    """Called with the inputs."""
    inputs: Callable[[], Inputs]
    """Fresh inputs; the floating ones get gradients."""

    def forward(self) -> Call:
        inputs = self._leaves()
        warm = [t.detach() for t in inputs[:1] if t.requires_grad]
        return Call(lambda: self.apply(*inputs), warm)

    def backward(self, arena: Arena) -> Call:
        inputs = self._leaves()
        outputs = _outputs(self.apply(*inputs))
        wanted = [t for t in inputs if t.requires_grad]
        gradients = [arena.take(*y.shape).to(y.dtype) for y in outputs]
        return Call(
            lambda: torch.autograd.grad(outputs, wanted, gradients, allow_unused=True), gradients
        )

    def _leaves(self) -> Inputs:
        inputs = self.inputs()
        return tuple(t.requires_grad_() if t.is_floating_point() else t for t in inputs)


def _backward_start(arena: Arena, dtype: DType) -> TimedOperation:
    """Backward of a graph whose one node does nothing."""
    function = Function(lambda x: x.view_as(x), lambda: (arena.take(1),))
    return TimedOperation(START, dtype, 0, lambda: function.backward(arena), 1)


def _outputs(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result


def _both_directions(
    shape: Shape, books: BlockBooks, name: str, function: Function, parts: tuple[str, ...] = ()
) -> Iterator[TimedOperation]:
    """``{name}.forward`` and ``{name}.backward``."""
    yield shape.timed(_booked(books.forward, f"{name}.forward"), function.forward)
    backward = _booked((*books.backward_input, *books.backward_weight), f"{name}.backward")
    yield shape.timed(backward, lambda: function.backward(shape.arena), (START, *parts))


def _booked(operations: Sequence[Operation], name: str) -> Elementwise:
    return next(op for op in operations if isinstance(op, Elementwise) and op.name == name)


# Blocks


def _rms_norm(shape: Shape) -> Iterator[TimedOperation]:
    block = NormBlock(type="rms_norm", hidden_size=shape.hidden, bias=False, epsilon=1e-5)
    books = norm_books(block, "norm", shape.context, in_branch=True)

    def weight_gradient() -> Call:
        wide = promoted(torch_dtype(shape.dtype))
        unit, gradient = shape.rows().to(wide), shape.rows()
        return Call(lambda: (unit * gradient).flatten(0, -2).sum(0), warm=(unit,))

    name = "rms_norm.weight_gradient"
    yield shape.timed(_booked(books.backward_weight, name), weight_gradient)
    function = Function(
        lambda x, weight: normalize(x, weight, None, block.epsilon),
        lambda: (shape.rows(), shape.vector()),
    )
    yield from _both_directions(shape, books, "rms_norm", function, parts=(name,))


def _layer_norm(shape: Shape) -> Iterator[TimedOperation]:
    """Its backward adds the stream's gradient, which is booked as a residual_add."""
    block = NormBlock(type="layer_norm", hidden_size=shape.hidden, bias=True, epsilon=1e-5)
    books = norm_books(block, "norm", shape.context, in_branch=True)
    function = Function(
        lambda x, weight, bias: normalize(x, weight, bias, block.epsilon)[0],
        lambda: (shape.rows(), shape.vector(), shape.vector()),
    )
    yield from _both_directions(shape, books, "layer_norm", function)


def _attention_side(shape: Shape) -> Iterator[TimedOperation]:
    """What surrounds the attention core."""
    head_dim = shape.hidden // NUM_HEADS
    block = AttentionBlock(
        hidden_size=shape.hidden, num_heads=NUM_HEADS, num_kv_heads=NUM_HEADS, head_dim=head_dim,
        qkv_bias=False, output_bias=False, rotary=RotaryPositions(base=10000.0),
    )  # fmt: skip
    books = attention_books(block, shape.context)
    assert block.rotary is not None
    cosine, sine = rotary_tables(
        block.rotary, head_dim, shape.tokens, torch_dtype(shape.dtype), shape.vector().device
    )
    tables = AttentionTables(cosine=cosine, sine=sine, mask=None, kv_of_query=None)

    def rope() -> Call:
        qkv = shape.arena.take(1, shape.tokens, 3 * NUM_HEADS, head_dim)
        turned = qkv[:, :, : 2 * NUM_HEADS]
        return Call(lambda: rotate_(turned, tables, backwards=False), warm=(qkv,))

    yield shape.timed(_booked(books.forward, "rope"), rope)
    yield shape.timed(
        _booked(books.backward_input, "qkv_gradient"),
        lambda: _qkv_gradient(shape.arena, NUM_HEADS, shape.tokens, head_dim),
    )


def _qkv_gradient(arena: Arena, heads: int, seq_len: int, head_dim: int) -> Call:
    """Gradients of queries, keys and values, copied to where they were projected."""
    parts = arena.take(1, seq_len, 3 * heads, head_dim).chunk(3, dim=2)
    gradients = [arena.take(1, seq_len, heads, head_dim).transpose(1, 2) for _ in parts]

    def run() -> None:
        for part, gradient in zip(parts, gradients, strict=True):
            part.copy_(gradient.transpose(1, 2))

    return Call(run, warm=gradients)


def _mlp(shape: Shape, activation: Activation, *, gated: bool) -> Iterator[TimedOperation]:
    """Backward overwrites what the projection wrote, so each call gets a tensor of its own."""
    block = MlpBlock(
        hidden_size=shape.hidden, ffn_size=shape.hidden, activation=activation, gated=gated,
        bias=False,
    )  # fmt: skip
    width = shape.hidden * (2 if gated else 1)
    function = Function(
        lambda up: activate(up, activation, gated),
        lambda: (shape.arena.take(1, shape.tokens, width).clone(),),
    )
    name = "swiglu" if gated else "gelu"
    yield from _both_directions(shape, mlp_books(block, shape.context), name, function)


def _residual_and_bias(shape: Shape) -> Iterator[TimedOperation]:
    block = MlpBlock(
        hidden_size=shape.hidden, ffn_size=shape.hidden, activation="silu", gated=True, bias=True
    )
    books = mlp_books(block, shape.context)

    def residual_add() -> Call:
        y, residual = shape.rows(), shape.rows()
        return Call(lambda: y.add_(residual), warm=(y,))

    def bias_add() -> Call:
        y, bias = shape.rows(), shape.vector()
        return Call(lambda: y.add_(bias), warm=(y,))

    def bias_gradient() -> Call:
        gradient = shape.rows()
        return Call(lambda: gradient.reshape(-1, shape.hidden).sum(0), warm=(gradient,))

    yield shape.timed(_booked(books.forward, "residual_add"), residual_add)
    yield shape.timed(_booked(books.forward, "bias_add"), bias_add)
    # The books list those of both projections; that of `down` has rows of the hidden size.
    down = mlp_books(block.model_copy(update={"gated": False}), shape.context).backward_weight
    yield shape.timed(_booked(down, "bias_gradient"), bias_gradient)


def _embedding(shape: Shape) -> Iterator[TimedOperation]:
    rows = ROWS_PER_TOKEN * shape.tokens
    block = EmbeddingBlock(vocab_size=rows, hidden_size=shape.hidden)
    function = Function(
        lambda tokens, weight: embed(tokens, weight, 0, ALONE),
        lambda: (torch.randint(rows, (1, shape.tokens)), shape.arena.take(rows, shape.hidden)),
    )
    books = embedding_books(block, shape.context, tied=False, has_head=False)
    yield from _both_directions(shape, books, "embedding", function)


def _cross_entropy(shape: Shape) -> Iterator[TimedOperation]:
    """Rows of a vocabulary, as many as make the same number of elements. Overwrites the logits."""
    tokens = max(1, shape.tokens * shape.hidden // VOCABULARY)
    block = HeadBlock(vocab_size=VOCABULARY, hidden_size=shape.hidden, tied=False)
    context = Context(1, tokens, 1, 0, False, shape.dtype, shape.dtypes.gradient)
    books = head_books(block, context, tied=False, label_smoothing=0.0)

    def inputs() -> Inputs:
        logits = shape.arena.take(1, tokens, VOCABULARY).clone()
        return logits, torch.randint(VOCABULARY, (1, tokens), device=logits.device)

    function = Function(
        lambda logits, labels: vocabulary_parallel_cross_entropy(
            logits, labels, 0, VOCABULARY, 0.0, ALONE
        ),
        inputs,
    )
    yield from _both_directions(shape, books, "cross_entropy", function)


def _accumulate_gradient(shape: Shape) -> TimedOperation:
    """Through a hook on the parameter, as flat units do it."""
    block = NormBlock(type="rms_norm", hidden_size=1, bias=False, epsilon=1e-5)
    booked = _booked(
        norm_books(block, "norm", shape.context, in_branch=True).backward_weight,
        "accumulate_gradient",
    )
    numel = shape.tokens * shape.hidden
    gradient_dtype = torch_dtype(shape.dtypes.gradient)

    def make_call() -> Call:
        parameter = shape.rows().requires_grad_()
        buffer = shape.arena.take(numel).to(gradient_dtype)
        parameter.register_post_accumulate_grad_hook(_AddTo(buffer))
        view, gradient = parameter.view_as(parameter), shape.rows()
        return Call(lambda: torch.autograd.backward(view, gradient), warm=(gradient,))

    per_element = booked.num_bytes  # of a parameter of one element
    return TimedOperation(
        booked.name, booked.dtype, numel * per_element, make_call, shape.num_bytes, (START,)
    )


@dataclass(frozen=True, slots=True)
class _AddTo:
    buffer: Tensor

    def __call__(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.buffer.view_as(parameter).add_(parameter.grad)
        parameter.grad = None


# Once per step, on flat slices


def _update(shape: Shape) -> Iterator[TimedOperation]:
    numel = shape.tokens * shape.hidden
    dtypes = shape.dtypes
    shards = UnitShards(numel, 0, 1, 0, dtypes)
    gradient_dtype = torch_dtype(dtypes.gradient)
    booked = {op.name: op for op in (shards.norm(), *shards.update(clips=True))}

    def flat() -> Tensor:
        return shape.arena.take(numel).to(gradient_dtype, copy=True)

    def grad_norm() -> Call:
        gradients = flat()
        return Call(lambda: torch.linalg.vector_norm(gradients).double().square())

    def zero() -> Call:
        return Call(flat().zero_)

    def scale() -> Call:
        gradients = flat()
        return Call(lambda: gradients.mul_(0.5))

    yield shape.timed(booked["grad_norm"], grad_norm)
    yield shape.timed(booked["zero_gradients"], zero)
    yield shape.timed(booked["scale_gradients"], scale)
    yield shape.timed(booked["adamw"], lambda: _adamw(shape, numel))
    if "cast" in booked:

        def cast() -> Call:
            master, weights = flat(), shape.arena.take(numel)
            return Call(lambda: weights.copy_(master))

        yield shape.timed(booked["cast"], cast)


def _adamw(shape: Shape, numel: int) -> Call:
    """A step over one unit of four runs, decayed and not, as a layer has them."""
    dtypes = shape.dtypes
    updated, moment = (torch_dtype(d) for d in (dtypes.master or dtypes.parameter, dtypes.moment))
    runs: list[list[Tensor]] = [[], []]
    state: dict[Tensor, dict[str, Tensor]] = {}
    flats = [
        shape.arena.take(numel).to(dtype, copy=True)
        for dtype in (updated, torch_dtype(dtypes.gradient), moment, moment)
    ]
    for index, parts in enumerate(zip(*(flat.tensor_split(4) for flat in flats), strict=True)):
        weight, weight.grad, exp_avg, exp_avg_sq = parts
        runs[index % 2].append(weight)
        step = torch.zeros((), device=weight.device)
        state[weight] = {"step": step, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq.abs_()}
    decays = (0.0, 0.1)
    groups = [
        {"params": run, "weight_decay": decay} for run, decay in zip(runs, decays, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    optimizer.state.update(state)
    return Call(optimizer.step)


# Linear layers and the attention core


def linear_operations(
    arena: Arena, dtype: DType, tokens: int, out: int, inner: int
) -> Iterable[TimedOperation]:
    """See `shardwright.hardware_profiles.measure.operation.RuntimeOperations`."""
    flops = 2 * tokens * out * inner
    item = arena.element_bytes
    function = Function(
        lambda x, weight: column_linear(x, weight, None, ALONE),
        lambda: (arena.take(1, tokens, inner), arena.take(out, inner)),
    )

    def weight_product() -> Call:
        gradient, x = arena.take(1, tokens, out), arena.take(1, tokens, inner)
        return Call(lambda: weight_gradient(gradient, x), warm=(gradient,))

    dx = Function(
        lambda x, weight: _WithoutWeightGradient.apply(x, weight),  # type: ignore[no-untyped-call]
        function.inputs,
    )
    y_bytes, dx_bytes, dw_bytes = tokens * out * item, tokens * inner * item, out * inner * item
    return (
        _backward_start(arena, dtype),
        TimedOperation("forward", dtype, flops, function.forward, y_bytes),
        TimedOperation(
            "input_gradient", dtype, flops, lambda: dx.backward(arena), dx_bytes, (START,)
        ),
        TimedOperation("weight_gradient", dtype, flops, weight_product, dw_bytes),
    )


class _WithoutWeightGradient(torch.autograd.Function):
    """A linear layer whose backward is the first half of `column_linear`'s."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return column_linear(x, weight, None, ALONE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        return torch.mm(rows, weight).view(*gradient.shape[:-1], weight.shape[1]), None


def attention_operations(
    arena: Arena, dtype: DType, heads: int, seq_len: int, head_dim: int
) -> Iterable[TimedOperation]:
    """See `shardwright.hardware_profiles.measure.operation.RuntimeOperations`."""
    own = range(heads)
    split = HeadSplit(own, own, tuple(own), own)
    tables = AttentionTables(cosine=None, sine=None, mask=None, kv_of_query=None)
    function = Function(
        lambda qkv: attend(qkv, split, tables, True),
        lambda: (arena.take(1, seq_len, 3 * heads * head_dim).clone(),),
    )
    flops = {
        backward: Attention(
            "core", 1, heads, seq_len, seq_len, head_dim, True, backward, dtype
        ).flops
        for backward in (False, True)
    }
    out_bytes = heads * seq_len * head_dim * arena.element_bytes
    return (
        _backward_start(arena, dtype),
        TimedOperation("forward", dtype, flops[False], function.forward, out_bytes),
        TimedOperation(
            "qkv_gradient", dtype, 0,
            lambda: _qkv_gradient(arena, heads, seq_len, head_dim), out_bytes,
        ),
        TimedOperation(
            "backward", dtype, flops[True], lambda: function.backward(arena), 3 * out_bytes,
            parts=(START, "qkv_gradient"),
        ),
    )  # fmt: skip
