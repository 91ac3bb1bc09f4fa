"""Virtual stages: which units of work they hold, what these take and what they keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwright.cost_models.stacks.layers import (
    OPERATORS,
    EndBlock,
    Policy,
    Work,
    end_work,
    forward_work,
    layer_work,
    policy_of,
    prediction_work,
    shared_work,
)
from shardwright.cost_models.stacks.sharding import QUANTISED_BYTES, Sharding
from shardwright.hardware_profiles.stack_memory import memory_facts
from shardwright.specs import (
    HeadBlock,
    LayerBlock,
    Layout,
    ModelSpec,
    PatchEmbeddingBlock,
    PredictionBlock,
    ProjectorBlock,
    Recompute,
    SoftwareSpec,
    Stage,
    Tower,
    TrainingSpec,
)

_ENDS_FIRST = ("embedding", "patch_embedding")


@dataclass(frozen=True, slots=True)
class Holding:
    """``count`` equal units of work of a virtual stage."""

    work: Work
    count: int
    frozen: bool = False
    is_head: bool = False


class Holdings(tuple[Holding, ...]):
    """All that a virtual stage holds: known by its identity, so that looking up its price is cheap.

    `StageBuilder` makes one for all stages that are equal.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class ModelTower:
    """A tower with its layers numbered, so that equal layers are known as equal at once."""

    def __init__(self, tower: Tower) -> None:
        self.spec = tower
        self.kinds: list[LayerBlock] = []
        self.kind_of_layer: list[int] = []
        index: dict[LayerBlock, int] = {}
        for block in tower.blocks:
            if isinstance(block, LayerBlock):
                one = block.model_copy(update={"repeat": 1})
                at = index.setdefault(one, len(self.kinds))
                if at == len(self.kinds):
                    self.kinds.append(one)
                self.kind_of_layer += [at] * block.repeat
        blocks = [b for b in tower.blocks if not isinstance(b, LayerBlock)]
        ends: list[EndBlock] = [b for b in blocks if not isinstance(b, PredictionBlock)]
        self.first = [b for b in ends if b.kind in _ENDS_FIRST]
        self.last = [b for b in ends if b.kind not in _ENDS_FIRST]
        self.predictions = [b for b in blocks if isinstance(b, PredictionBlock)]

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(kind, first layer within the range, count) of each run of equal layers."""
        at = start
        while at < stop:
            kind, first = self.kind_of_layer[at], at
            while at < stop and self.kind_of_layer[at] == kind:
                at += 1
            yield kind, first - start, at - first


class StageBuilder:
    """The work of the virtual stages of one training job."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, software: SoftwareSpec) -> None:
        self._training, self._software = training, software
        self._facts = memory_facts(software.framework)
        self._encoders = [ModelTower(tower) for tower in model.towers[:-1]]
        self._decoder = ModelTower(model.decoder)
        self._hidden = model.decoder.hidden_size
        dtypes = training.dtypes
        self._item_bytes = dtypes.parameter_bytes
        self._matmul_bytes = _operand_bytes(dtypes.matmul)
        self._known: dict[tuple[Holding, ...], Holdings] = {}
        self._by_cut: dict[Sharding, dict[object, Holdings]] = {}
        self._cut: Sharding | None = None
        self._of_cut: dict[object, Holdings] = {}

    def sharding(self, layout: Layout) -> Sharding:
        """How the decoder's layers are cut."""
        training = self._training
        return Sharding(
            layout.micro_batch, self._decoder.spec.tokens_per_sample or training.seq_len,
            layout.tp, layout.sequence_parallel,
            layout.cp, layout.cp_kind, layout.ep, layout.etp, self._item_bytes,
            self._matmul_bytes, self._software.attention_kernel != "math",
            self._software.fused_sinks, self._software.dropout, training.adapter_rank,
            self._is_frozen(self._decoder), keeps_narrow=self._facts.keeps_narrow_inputs,
            loss_bytes=self._facts.loss_bytes(layout.tp),
            early_stop=self._software.early_stop,
            weight_bytes=QUANTISED_BYTES
            if training.trainable.startswith("q") else self._item_bytes,
        )  # fmt: skip

    def _is_frozen(self, tower: ModelTower) -> bool:
        training = self._training
        return training.adapter_rank is not None or tower.spec.name in training.frozen_towers

    def holdings(self, layout: Layout, index: int, s: Sharding) -> Holdings:
        """What a virtual stage runs, in order; equal stages have the same object."""
        if s is not self._cut:
            self._cut, self._of_cut = s, self._by_cut.setdefault(s, {})
        stage, recompute = layout.stages[index], layout.recompute[index]
        key = (
            stage.layers, stage.holds, recompute.policy, recompute.modules, recompute.num_layers,
            layout.loss_chunks,
        )  # fmt: skip
        found = self._of_cut.get(key)
        if found is None:
            built = tuple(self._build(layout, stage, index, s))
            found = self._of_cut[key] = self._known.setdefault(built, Holdings(built))
        return found

    def _build(self, layout: Layout, stage: Stage, index: int, s: Sharding) -> Iterator[Holding]:
        recompute = layout.recompute[index]
        frozen = s.frozen
        if "embedding" in stage.holds:
            for tower in self._encoders:
                yield from self._tower(tower, layout, self._tower_sharding(tower, s), index)
        memory = self._memory_tokens()
        if "embedding" in stage.holds:
            yield from (Holding(end_work(block, s), 1, frozen) for block in self._decoder.first)
        for kind, first, count in self._decoder.runs(*stage.layers):
            layer = self._decoder.kinds[kind]
            for policy, times in self._policies(recompute, first, count):
                yield Holding(layer_work(layer, s, policy, memory), times, frozen)
        if "head" in stage.holds:
            for block in self._decoder.predictions:
                work = prediction_work(block, s, policy_of(recompute, 0))
                yield Holding(work, block.depth, frozen)
                for head in self._heads(layout, s):
                    yield replace(head, work=shared_work(head.work), count=block.depth)
            yield from self._heads(layout, s)

    def _heads(self, layout: Layout, s: Sharding) -> Iterator[Holding]:
        fused = self._software.fused_loss
        for block in self._decoder.last:
            work = end_work(block, s, layout.loss_chunks, fused)
            yield Holding(work, 1, s.frozen, isinstance(block, HeadBlock))

    def _tower(
        self, tower: ModelTower, layout: Layout, s: Sharding, index: int
    ) -> Iterator[Holding]:
        # Nothing before a frozen tower is trained: it runs forward alone.
        is_forward_only = s.frozen and s.adapter_rank is None
        recompute = layout.recompute[index]
        works = [(end_work(block, s), 1) for block in tower.first]
        for kind, first, count in tower.runs(0, len(tower.kind_of_layer)):
            for policy, times in self._policies(recompute, first, count):
                works.append((layer_work(tower.kinds[kind], s, policy), times))
        for work, count in works:
            yield Holding(forward_work(work) if is_forward_only else work, count, s.frozen)
        for block in tower.last:
            is_projector = isinstance(block, ProjectorBlock)
            trained = replace(s, frozen=s.adapter_rank is not None) if is_projector else s
            work = end_work(block, trained)
            if is_forward_only and not is_projector:
                work = forward_work(work)
            yield Holding(work, 1, trained.frozen)

    def _tower_sharding(self, tower: ModelTower, s: Sharding) -> Sharding:
        tokens = tower.spec.tokens_per_sample or self._training.seq_len
        is_image = any(isinstance(block, PatchEmbeddingBlock) for block in tower.first)
        frozen = self._is_frozen(tower)
        return replace(s, seq_len=tokens, frozen=frozen, cp=1 if is_image else s.cp)

    def _policies(
        self, recompute: Recompute, first: int, count: int
    ) -> Iterator[tuple[Policy, int]]:
        """The layers of a run by policy: ``num_layers`` recomputes a stage's first ones alone."""
        limit = recompute.num_layers
        is_plain = recompute.policy == "selective" and recompute.modules is None
        if is_plain and self._facts.recomputes_operators:
            yield frozenset({OPERATORS}), count
            return
        if recompute.policy != "full" or limit is None or limit >= first + count or limit <= first:
            yield policy_of(recompute, first), count
            return
        yield policy_of(recompute, first), limit - first
        yield policy_of(recompute, limit), first + count - limit

    def _memory_tokens(self) -> float | None:
        if not self._encoders:
            return None
        return float(self._encoders[0].spec.tokens_per_sample or self._training.seq_len)

    def message_bytes(self, s: Sharding) -> float:
        """The hidden states that one rank hands to the next stage."""
        return s.stream_tokens * self._hidden * s.item_bytes


def _operand_bytes(dtype: str) -> float:
    return {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp4": 0.5}[dtype]
