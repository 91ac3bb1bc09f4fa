"""`stage_books`: the units of one virtual stage in order, and what is alive while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from shardwright.cost_models.blocks.dense import (
    attention_books,
    embedding_books,
    head_books,
    mlp_books,
    norm_books,
)
from shardwright.cost_models.blocks.operations import (
    BlockBooks,
    DeferredGradient,
    Operation,
    ParameterBooks,
)
from shardwright.cost_models.blocks.splits import attention_split, vocabulary_split
from shardwright.cost_models.blocks.steps import Context
from shardwright.cost_models.blocks.support import check_supported
from shardwright.specs.layout import Layout, Recompute, Stage
from shardwright.specs.model import AttentionBlock, LayerBlock, ModelSpec
from shardwright.specs.software import SoftwareSpec
from shardwright.specs.training import TrainingSpec

_BODIES = ("attention", "mlp")
"""Blocks that add to the residual stream."""


@dataclass(frozen=True)
class UnitBooks:
    """A unit: what ZeRO gathers and reduces at once.

    ``parameter_prefix`` makes the blocks' names global; equal layers share their ``blocks``.
    """

    name: str
    blocks: tuple[BlockBooks, ...]
    recompute: bool = False
    parameter_prefix: str = ""
    own_parameters: tuple[ParameterBooks, ...] = ()
    """Parameters that no block lists: the weight of a tied embedding."""
    is_shared: bool = False
    """The first stage, on the same rank, has the same weights: they are read here, and kept,
    reduced and updated there."""

    @cached_property
    def parameters(self) -> tuple[ParameterBooks, ...]:
        """In the order of the unit's flat buffer, with global names."""
        listed = (*self.own_parameters, *(p for block in self.blocks for p in block.parameters))
        if not self.parameter_prefix:
            return listed
        return tuple(replace(p, name=self.parameter_prefix + p.name) for p in listed)

    @cached_property
    def num_parameters(self) -> int:
        own = sum(parameter.numel for parameter in self.own_parameters)
        return own + sum(block.num_parameters for block in self.blocks)

    @cached_property
    def forward(self) -> tuple[Operation, ...]:
        return tuple(operation for block in self.blocks for operation in block.forward)

    @cached_property
    def recomputed(self) -> tuple[Operation, ...]:
        """What backward runs of the forward again."""
        return self.forward if self.recompute else ()

    @cached_property
    def backward(self) -> tuple[Operation, ...]:
        """Everything in backward, in order: the recomputed forward first."""
        operations = list(self.recomputed)
        for block in reversed(self.blocks):
            operations += block.backward_input
            operations += block.backward_weight
        return tuple(operations)

    @cached_property
    def backward_input(self) -> tuple[Operation, ...]:
        """The first half of a split backward: the recomputed forward, the input gradients, and the
        norms' weight gradients, which fall out of them."""
        operations = list(self.recomputed)
        for block in reversed(self.blocks):
            operations += block.backward_input
            operations += filter(_falls_out, block.backward_weight)
        return tuple(operations)

    @cached_property
    def backward_weight(self) -> tuple[Operation, ...]:
        """The second half of a split backward."""
        return tuple(
            operation
            for block in reversed(self.blocks)
            for operation in block.backward_weight
            if not _falls_out(operation)
        )

    @cached_property
    def deferred(self) -> tuple[DeferredGradient, ...]:
        """The weight gradients that a split backward puts off, in order."""
        return tuple(one for block in reversed(self.blocks) for one in block.deferred)

    @cached_property
    def deferred_bytes(self) -> int:
        """Alive between the halves of a split backward."""
        return sum(one.all_held_bytes for one in self.deferred)

    @property
    def output_bytes(self) -> int:
        return self.blocks[-1].output_bytes if self.blocks else 0

    @cached_property
    def saved_bytes(self) -> int:
        """Alive from forward to backward: the output alone under recompute (its input is the
        output of the unit before), never the input."""
        if self.recompute:
            return self.output_bytes
        return sum(block.saved_bytes for block in self.blocks)

    @cached_property
    def forward_peak_bytes(self) -> int:
        """Most alive at once in forward beyond what was before it; its output included."""
        if not self.recompute:
            return _forward_peak(self.blocks)
        return _unsaved_peak(self.blocks)

    def backward_peak_bytes(self, held_bytes: int = 0) -> int:
        """Most alive at once in backward beyond what was when it started: everything saved but the
        unit's output, and the gradient of that.

        ``held_bytes``: gradients that stay alive after the last block was done with them.
        """
        if not self.recompute:
            return _backward_peak(self.blocks, held_bytes)
        again = sum(block.saved_bytes for block in self.blocks) - self.output_bytes
        # The outer backward pass holds the gradient while the inner one runs.
        inner = again + _backward_peak(self.blocks, self.output_bytes)
        return max(_forward_peak(self.blocks), inner)

    def input_peak_bytes(self, held_bytes: int = 0) -> int:
        """As `backward_peak_bytes` in the first half of a split backward."""
        if not self.recompute:
            return _input_peak(self.blocks, held_bytes)
        again = sum(block.saved_bytes for block in self.blocks) - self.output_bytes
        return max(_forward_peak(self.blocks), again + _input_peak(self.blocks, self.output_bytes))

    def weight_peak_bytes(self, arriving_bytes: int) -> int:
        """Most alive at once in the second half beyond what it started with.

        ``arriving_bytes``: of a buffer that is made when the first gradient is there.
        """
        alive = peak = buffer = 0
        for one in self.deferred:
            peak = max(peak, alive + buffer + one.transient_bytes)
            alive -= one.all_held_bytes
            buffer = arriving_bytes
            peak = max(peak, alive + buffer + one.gradient_bytes)
        return peak


@dataclass(frozen=True)
class StageBooks:
    """One rank's virtual stage for one micro-batch."""

    stage: Stage
    units: tuple[UnitBooks, ...]
    message_bytes: int
    """The hidden states that it sends to the next stage; 0 for the last."""
    input_bytes: int
    """The hidden states that it receives, alive until its backward ends; 0 for the first."""
    buffer_bytes: int
    """Constants: rotary tables, and the mask of a sliding window."""
    tied_gradient_bytes: int
    """A tied weight's gradient from the head, which waits for the embedding's backward."""

    @property
    def parameters(self) -> tuple[ParameterBooks, ...]:
        return tuple(parameter for unit in self.units for parameter in unit.parameters)

    @cached_property
    def num_parameters(self) -> int:
        return sum(unit.num_parameters for unit in self.units)

    @cached_property
    def saved_bytes(self) -> int:
        """Alive from forward to backward, without parameters, buffers and inputs, and without the
        stage's output: a message's storage goes with its send, a loss is added up."""
        return sum(unit.saved_bytes for unit in self.units) - self._output_bytes

    @property
    def _output_bytes(self) -> int:
        return self.units[-1].output_bytes if self.units else 0

    @cached_property
    def forward_peak_bytes(self) -> int:
        """Most alive at once in forward beyond what was before it (its input included there)."""
        return max((before + own for before, own in self.forward_moments), default=0)

    @cached_property
    def forward_moments(self) -> tuple[tuple[int, int], ...]:
        """For each unit: what the units before it saved, and most alive on top while it runs."""
        alive = 0
        moments = []
        for unit in self.units:
            moments.append((alive, unit.forward_peak_bytes))
            alive += unit.saved_bytes
        return tuple(moments)

    @cached_property
    def backward_peak_bytes(self) -> int:
        """Most alive at once in backward beyond what was before it: the stage's input, its
        ``saved_bytes`` and the gradient that it received, which its caller holds to the end."""
        return max((0, *(change + own for change, own in self.backward_moments)))

    @cached_property
    def backward_moments(self) -> tuple[tuple[int, int], ...]:
        """For each unit, in the order of the units: what the units behind it changed (they free
        what they saved), and most alive on top while its backward runs."""
        change = 0
        moments = []
        for unit in reversed(self.units):
            held = self._output_bytes if unit is self.units[-1] else 0
            held += self.tied_gradient_bytes if unit.name == "head" else 0
            moments.append((change, unit.backward_peak_bytes(held)))
            change += held - unit.saved_bytes
        return tuple(reversed(moments))

    @cached_property
    def deferred_bytes(self) -> int:
        """Alive between the halves of a split backward."""
        return sum(unit.deferred_bytes for unit in self.units)

    @cached_property
    def input_moments(self) -> tuple[tuple[int, int], ...]:
        """As `backward_moments` in the first half of a split backward."""
        change = 0
        moments = []
        for unit in reversed(self.units):
            held = self._output_bytes if unit is self.units[-1] else 0
            moments.append((change, unit.input_peak_bytes(held)))
            stream = unit.blocks[-1].stream_bytes if unit.blocks else 0
            change += max(0, held - stream) + unit.deferred_bytes - unit.saved_bytes
        return tuple(reversed(moments))


def _falls_out(operation: Operation) -> bool:
    """Whether a norm computes it together with its input gradient."""
    return operation.name in ("rms_norm.weight_gradient", "layer_norm.weight_gradient")


def _forward_peak(blocks: Sequence[BlockBooks]) -> int:
    alive = peak = 0
    for block in blocks:
        alive += block.saved_bytes
        peak = max(peak, alive + block.forward_transient_bytes)
    return peak


def _unsaved_peak(blocks: Sequence[BlockBooks]) -> int:
    """Blocks alternate norm and body; after the first branch, its output is alive too."""
    peak, stream = 0, 0
    for block in blocks:
        peak = max(peak, stream + block.unsaved_forward_bytes)
        if block.name in _BODIES:
            stream = block.output_bytes
    return peak


def _backward_peak(blocks: Sequence[BlockBooks], held: int) -> int:
    """``held``: bytes that stay when the last branch (whose norm counts its gradient), or the last
    block of another kind, is done."""
    peak = change = 0
    for number, block in enumerate(reversed(blocks)):
        peak = max(peak, change + block.backward_transient_bytes)
        change -= block.saved_bytes
        in_branch = blocks[-1].name in _BODIES
        change += held if number == (1 if in_branch else 0) else 0
    return peak


def _input_peak(blocks: Sequence[BlockBooks], held: int) -> int:
    """As `_backward_peak` in the first half of a split backward. The gradient of the stream that a
    branch holds for the second half waits for its norm; of the last branch it may be ``held``."""
    peak = change = stream = 0
    for number, block in enumerate(reversed(blocks)):
        peak = max(peak, change + block.input_transient_bytes)
        change += block.held_bytes - block.saved_bytes
        in_branch = blocks[-1].name in _BODIES
        if block.name in _BODIES:
            stream = block.stream_bytes
            continue
        change += max(stream, held) if in_branch and number == 1 else stream
        change += held if not in_branch and number == 0 else 0
        stream = 0
    return peak


def stage_books(
    model: ModelSpec,
    training: TrainingSpec,
    software: SoftwareSpec,
    layout: Layout,
    stage_index: int,
    tp_rank: int,
) -> StageBooks:
    """What the rank ``tp_rank`` of a virtual stage does for one micro-batch.

    Raises:
        InputError: the model or layout asks for something that no block describes.
    """
    assert software.attention_kernel == "flash", software
    check_supported(model, layout)
    context = Context(
        layout.micro_batch, training.seq_len, layout.tp, tp_rank, layout.sequence_parallel,
        training.dtypes.parameter, training.dtypes.gradient,
    )  # fmt: skip
    stage = layout.stages[stage_index]
    return _stage_books(
        model, training.label_smoothing, context, stage, layout.recompute[stage_index],
        stage_index > 0 and stage.rank == layout.stages[0].rank,
    )  # fmt: skip


@lru_cache(maxsize=65536)
def _stage_books(
    model: ModelSpec,
    label_smoothing: float,
    context: Context,
    stage: Stage,
    recompute: Recompute,
    beside_first: bool,
) -> StageBooks:
    """``beside_first``: it sits on the same rank as the first stage."""
    first, last = "embedding" in stage.holds, "head" in stage.holds
    units = [
        *(_embedding_units(model, context, has_head=last) if first else ()),
        *_layer_units(model, context, stage, recompute),
        *(
            _head_units(
                model, context, label_smoothing, has_embedding=first, shares_tied=beside_first
            )
            if last
            else ()
        ),
    ]
    hidden_bytes = context.local_tokens * model.embedding.hidden_size * context.item
    rows = len(vocabulary_split(model.head.vocab_size, context.tp, context.tp_rank))
    tied_bytes = rows * model.head.hidden_size * context.item
    return StageBooks(
        stage=stage,
        units=tuple(units),
        message_bytes=0 if last else hidden_bytes,
        input_bytes=0 if first else hidden_bytes,
        buffer_bytes=_buffer_bytes(model, context, stage),
        tied_gradient_bytes=tied_bytes if model.head.tied and first and last else 0,
    )


def _tied_unit(model: ModelSpec, context: Context) -> UnitBooks:
    hidden, vocab = model.embedding.hidden_size, model.embedding.vocab_size
    rows = len(vocabulary_split(vocab, context.tp, context.tp_rank))
    weight = ParameterBooks("embedding.weight", (vocab, hidden), (rows, hidden), False, True)
    return UnitBooks("tied_embedding", (), own_parameters=(weight,))


def _embedding_units(model: ModelSpec, context: Context, *, has_head: bool) -> list[UnitBooks]:
    tied = model.head.tied
    books = embedding_books(model.embedding, context, tied=tied, has_head=has_head)
    units = [_tied_unit(model, context)] if tied else []
    return [*units, UnitBooks("embedding", (books,))]


def _head_units(
    model: ModelSpec,
    context: Context,
    label_smoothing: float,
    *,
    has_embedding: bool,
    shares_tied: bool,
) -> list[UnitBooks]:
    tied = model.head.tied
    blocks = (
        norm_books(model.final_norm, "final_norm", context, in_branch=False),
        head_books(
            model.head,
            context,
            tied=tied,
            label_smoothing=label_smoothing,
            has_embedding=has_embedding,
        ),
    )
    units = []
    if tied and not has_embedding:
        units.append(replace(_tied_unit(model, context), is_shared=shares_tied))
    return [*units, UnitBooks("head", blocks)]


def _layer_units(
    model: ModelSpec, context: Context, stage: Stage, recompute: Recompute
) -> list[UnitBooks]:
    layers = _layers(model)[slice(*stage.layers)]
    recomputed = 0
    if recompute.policy == "full":
        recomputed = len(layers) if recompute.num_layers is None else recompute.num_layers
    return [
        _layer_unit(layer, context, stage.layers[0] + number, number < recomputed)
        for number, layer in enumerate(layers)
    ]


@lru_cache(maxsize=256)
def _layers(model: ModelSpec) -> tuple[LayerBlock, ...]:
    return tuple(model.decoder.layers())


@lru_cache(maxsize=65536)
def _layer_unit(layer: LayerBlock, context: Context, index: int, recompute: bool) -> UnitBooks:
    blocks = _layer_blocks(layer, context)
    return UnitBooks(f"layers.{index}", blocks, recompute, f"layers.{index}.")


@lru_cache(maxsize=4096)
def _layer_blocks(layer: LayerBlock, context: Context) -> tuple[BlockBooks, ...]:
    blocks: list[BlockBooks] = []
    for branch in layer.branches:
        body = branch.body
        assert branch.pre_norm is not None
        name = f"{body.kind}_norm"
        blocks.append(norm_books(branch.pre_norm, name, context, in_branch=True))
        if isinstance(body, AttentionBlock):
            blocks.append(attention_books(body, context))
        else:
            blocks.append(mlp_books(body, context))
    return tuple(blocks)


def _buffer_bytes(model: ModelSpec, context: Context, stage: Stage) -> int:
    """Each distinct attention block's tables (`AttentionTables`), once per stage."""
    bodies = {
        branch.body
        for layer in _layers(model)[slice(*stage.layers)]
        for branch in layer.branches
        if isinstance(branch.body, AttentionBlock)
    }
    total = 0
    for body in bodies:
        if body.rotary is not None:
            total += context.seq_len * body.head_dim * context.item
        if body.causal and body.sliding_window and body.sliding_window < context.seq_len:
            total += context.seq_len**2 * context.item
        heads = attention_split(body, context.tp, context.tp_rank)
        total += 0 if heads.is_grouped else len(heads.query) * 8  # int64
    return total
