"""`Layout`: how a training step is spread over ranks, and the rules that it must obey."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import model_validator

from shardwright.specs._base import Spec
from shardwright.specs.cluster import ClusterSpec
from shardwright.specs.meshes import mesh_violations
from shardwright.specs.model import ModelSpec
from shardwright.specs.ranges import (
    MOST_DEVICES,
    Degree,
    Extent,
    LayerCount,
    LayerNumber,
    Rank,
    SequenceCount,
)
from shardwright.specs.rules import Violation, model_violations, precision_violations
from shardwright.specs.training import TrainingSpec
from shardwright.specs.world import WorldSize, divisors, nearest, split_evenly

RecomputeModule = Literal[
    "core_attn", "attn_proj", "norm", "mlp_act", "mlp", "moe_act", "moe", "shared_experts",
    "mla_up_proj",
]  # fmt: skip
Held = Literal["embedding", "head", "final_norm", "mtp", "vision", "projector", "encoder"]


class ScheduleName(StrEnum):
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved-1f1b"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_V = "zb-v"
    DUALPIPE_V = "dualpipev"
    CUSTOM = "custom"


MOST_FORWARDS = 2**15
"""Of one step over all pipeline stages; schedules are stored and simulated action by action."""

V_SHAPED = frozenset({ScheduleName.ZB_V, ScheduleName.DUALPIPE_V})
UNSPLIT = frozenset({ScheduleName.GPIPE, ScheduleName.ONE_F_ONE_B, ScheduleName.INTERLEAVED})
"""Schedules that do not split the backward pass."""

_ONE_STAGE_PER_RANK = (
    ScheduleName.GPIPE, ScheduleName.ONE_F_ONE_B, ScheduleName.ZB_H1, ScheduleName.ZB_H2,
)  # fmt: skip


class Recompute(Spec):
    """What one virtual stage computes again in the backward pass instead of keeping it."""

    policy: Literal["none", "selective", "full"] = "none"
    modules: tuple[RecomputeModule, ...] | None = None
    """For ``selective``; null = core_attn."""
    num_layers: LayerCount | None = None
    """For ``full``: how many of the stage's first layers; null = all."""


class StageMesh(Spec):
    """The grid of one pipeline rank, where these differ: all its devices are of one node group."""

    ranks: tuple[Rank, ...]
    """Global ranks, ordered as in `Layout`: tp fastest, then cp, then dp."""
    tp: Degree
    cp: Degree = 1
    dp: Degree = 1
    ep: Degree = 1
    etp: Degree = 1


class ReplicaSet(Spec):
    """Further replicas: whole copies of the model with another grid, on other devices.

    Their tp and dp are those of their `StageMesh`, their zero is sharded over all of their dp, and
    their schedule is 1f1b.
    """

    pp: Degree = 1
    micro_batch: SequenceCount = 1
    zero: Literal[0, 1, 2, 3] = 0


class Stage(Spec):
    """One virtual stage: which layers and which other blocks it holds, and where it sits."""

    stage: Rank
    rank: Rank
    """Pipeline rank."""
    chunk: Rank
    """Which of the rank's vpp chunks."""
    layers: tuple[LayerNumber, LayerNumber]
    """[start, stop) of global layer numbers; empty ranges are allowed."""
    holds: tuple[Held, ...] = ()

    @model_validator(mode="after")
    def _layers_ascend(self) -> Stage:
        if self.layers[0] > self.layers[1]:
            raise ValueError(f"layers {self.layers[0]}-{self.layers[1]} end before they start")
        return self

    @property
    def num_layers(self) -> int:
        return self.layers[1] - self.layers[0]


class Layout(Spec):
    """Every choice that decides how a step is spread over ranks.

    Build one with `Layout.of`, which fills in the fields that follow from the others.
    """

    tp: Degree = 1
    cp: Degree = 1
    cp_kind: Literal["ring", "all_to_all", "all_gather"] = "ring"
    """How context-parallel ranks share keys and values; of no effect where cp is 1."""
    pp: Degree = 1
    vpp: Degree = 1
    """Virtual stages per pipeline rank."""
    dp: Degree = 1
    """Ranks with different data, without cp."""
    ep: Degree = 1
    etp: Degree = 1
    micro_batch: SequenceCount = 1
    """Sequences per forward pass of one data-parallel rank."""
    num_microbatches: SequenceCount | tuple[SequenceCount, ...] = 1
    """Per step; a list per set of replicas where these differ (see ``further_replicas``)."""
    zero: Literal[0, 1, 2, 3] = 0
    zero_shard_degree: Degree = 1
    """Ranks that share one copy of what ZeRO shards; divides dp x cp. 1 where zero is 0."""
    expert_zero_shard_degree: Degree = 1
    reshard_after_forward: bool = True
    """ZeRO 3: weights are gathered again for backward; false = they stay whole in between."""
    sequence_parallel: bool = False
    recompute: tuple[Recompute, ...] = (Recompute(),)
    """One entry per virtual stage, in model order."""
    offload: tuple[Literal["activations", "optimizer", "parameters"], ...] = ()
    """What lives in host memory while it is not needed."""
    loss_chunks: Extent = 1
    """Pieces in which logits and loss are computed, to bound their memory."""
    compile: bool = False
    schedule: ScheduleName | None = None
    """Null when pp = 1."""
    stages: tuple[Stage, ...]
    stage_meshes: tuple[StageMesh, ...] | None = None
    """One per pipeline rank; null when every stage has the grid above, over all devices. With it
    devices may be left out, and the degrees above are those of the first pipeline rank."""
    further_replicas: tuple[ReplicaSet, ...] = ()
    """Sets of replicas after the first, which is the one described above. ``stages``,
    ``recompute`` and ``stage_meshes`` list all sets one after the other, with the numbers of stages
    and pipeline ranks running on. Gradients are summed over all."""
    rank_order: Literal["tp-cp-dp-pp", "tp-cp-pp-dp"] = "tp-cp-dp-pp"

    @model_validator(mode="after")
    def _world_exists(self) -> Layout:
        if self.world > MOST_DEVICES:
            raise ValueError(
                f"tp x cp x pp x dp = {self.tp} x {self.cp} x {self.pp} x {self.dp} = {self.world}"
                f" is more than {MOST_DEVICES} devices"
            )
        return self

    @model_validator(mode="after")
    def _lists_match_stages(self) -> Layout:
        further = sum(one.pp for one in self.further_replicas)
        expected = self.pp * self.vpp + further
        if len(self.stages) != expected or len(self.recompute) != expected:
            raise ValueError(
                f"pp x vpp = {expected} virtual stages, but {len(self.stages)} stages and"
                f" {len(self.recompute)} recompute entries are given"
            )
        if self.stage_meshes is not None and len(self.stage_meshes) != self.pp + further:
            raise ValueError(
                f"{self.pp + further} pipeline ranks, but {len(self.stage_meshes)} stage_meshes"
            )
        if self.further_replicas and (
            self.stage_meshes is None
            or isinstance(self.num_microbatches, int)
            or len(self.num_microbatches) != 1 + len(self.further_replicas)
        ):
            raise ValueError(
                "further_replicas need stage_meshes, and num_microbatches for each set of replicas"
            )
        return self

    @property
    def world_size(self) -> WorldSize:
        return WorldSize(tp=self.tp, cp=self.cp, dp=self.dp, pp=self.pp, ep=self.ep, etp=self.etp)

    @property
    def world(self) -> int:
        """Devices in use."""
        if self.stage_meshes is not None:
            return sum(len(mesh.ranks) for mesh in self.stage_meshes)
        return self.world_size.world

    @property
    def num_pipeline_ranks(self) -> int:
        """Over all sets of replicas."""
        return self.pp + sum(one.pp for one in self.further_replicas)

    @property
    def micro_batches(self) -> int:
        """The count of micro-batches where all replicas have the same."""
        assert isinstance(self.num_microbatches, int)
        return self.num_microbatches

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        training: TrainingSpec,
        *,
        boundaries: tuple[int, ...] | None = None,
        recompute: tuple[Recompute, ...] | Recompute | None = None,
        **choices: Any,
    ) -> Self:
        """A layout from its free choices.

        ``boundaries``: the pp x vpp - 1 layer numbers at which a new stage starts; default: layers
        as even as possible. ``recompute``: one policy for all stages, or one per stage; default
        none. Derived: ``stages``, ``num_microbatches`` (rounded down; `violations` reports what
        does not divide), the ZeRO shard degrees (default: the whole dp x cp) and ``schedule``
        (default 1f1b, interleaved where vpp > 1, null when pp = 1).
        """
        pp, vpp = choices.get("pp", 1), choices.get("vpp", 1)
        dp, cp, tp = choices.get("dp", 1), choices.get("cp", 1), choices.get("tp", 1)
        num_stages = pp * vpp
        schedule = choices.pop("schedule", None)
        usual = "1f1b" if vpp == 1 else "interleaved-1f1b"
        schedule = None if pp == 1 else ScheduleName(schedule or usual)
        num_layers = model.decoder.num_layers
        if boundaries is None:
            starts = [r.start for r in split_evenly(num_layers, num_stages)]
        else:
            starts = [0, *boundaries]
        stages = place_stages(starts, num_layers, pp, schedule)
        if not isinstance(recompute, tuple):
            recompute = (recompute or Recompute(),) * num_stages
        micro_batches = max(1, training.global_batch // (dp * choices.get("micro_batch", 1)))
        zero = choices.get("zero", 0)
        choices.setdefault("num_microbatches", micro_batches)
        choices.setdefault("zero_shard_degree", dp * cp if zero else 1)
        edp = max(1, tp * cp * dp // (choices.get("etp", 1) * choices.get("ep", 1)))
        choices.setdefault("expert_zero_shard_degree", edp if zero else 1)
        return cls(stages=stages, recompute=recompute, schedule=schedule, **choices)

    def violations(
        self, model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec
    ) -> list[Violation]:
        """All broken rules at once, each with its numbers and the nearest valid values."""
        if self.stage_meshes is not None:
            return mesh_violations(self, model, cluster, training)
        return [
            *self._world_violations(cluster),
            *self._batch_violations(training),
            *self.grid_violations(model, training),
            *precision_violations(cluster, training),
        ]

    def grid_violations(self, model: ModelSpec, training: TrainingSpec) -> list[Violation]:
        """The broken rules that do not depend on which devices there are, nor on the batch."""
        return [
            *self._stage_violations(model),
            *model_violations(self, model, training),
            *self._zero_violations(),
            *self._offload_violations(),
        ]

    def _world_violations(self, cluster: ClusterSpec) -> list[Violation]:
        found = []
        if self.world != cluster.num_devices:
            rest = self.tp * self.cp * self.pp
            fitting = cluster.num_devices // rest
            found.append(Violation(
                "world_size",
                f"tp x cp x pp x dp = {self.tp} x {self.cp} x {self.pp} x {self.dp} = {self.world},"
                f" but the cluster has {cluster.num_devices} devices",
                f"dp = {fitting}" if fitting and cluster.num_devices % rest == 0 else
                f"{self.world} devices",
            ))  # fmt: skip
        if self.world_size.edp is None:
            ranks, wanted = self.world_size.ranks_per_stage, self.etp * self.ep
            found.append(Violation(
                "expert_grid",
                f"tp x cp x dp = {ranks} is not a multiple of etp x ep = {wanted}",
                f"etp x ep in {nearest(divisors(ranks), wanted)}",
            ))  # fmt: skip
        return found

    def _batch_violations(self, training: TrainingSpec) -> list[Violation]:
        if not isinstance(self.num_microbatches, int):
            return []
        if is_too_long(self.pp * self.vpp, self.num_microbatches):
            return [
                Violation(
                    "schedule_length",
                    f"pp x vpp x num_microbatches = {self.pp} x {self.vpp} x"
                    f" {self.num_microbatches} is more than {MOST_FORWARDS:,} forward passes a"
                    " step",
                    f"num_microbatches <= {MOST_FORWARDS // (self.pp * self.vpp)}",
                )
            ]
        per_step = self.dp * self.micro_batch * self.num_microbatches
        if per_step == training.global_batch:
            return []
        batch = training.global_batch
        if batch % self.dp:
            fitting = f"dp in {nearest(divisors(batch), self.dp)}"
        elif batch // self.dp % self.micro_batch:
            fitting = f"micro_batch in {nearest(divisors(batch // self.dp), self.micro_batch)}"
        else:
            fitting = f"num_microbatches = {batch // self.dp // self.micro_batch}"
        return [Violation(
            "batch",
            f"dp x micro_batch x num_microbatches = {self.dp} x {self.micro_batch} x"
            f" {self.num_microbatches} = {per_step} is not global_batch = {batch}",
            fitting,
        )]  # fmt: skip

    def _stage_violations(self, model: ModelSpec) -> list[Violation]:
        found = []
        num_layers = model.decoder.num_layers
        covered = [layer for stage in self.stages for layer in range(*stage.layers)]
        if covered != list(range(num_layers)):
            found.append(Violation(
                "stage_layers",
                f"the stages hold {len(covered)} layers"
                f" ({' '.join(f'{s.layers[0]}-{s.layers[1]}' for s in self.stages)}), not each of"
                f" the model's {num_layers} once and in order",
                f"pp x vpp <= {num_layers}",
            ))  # fmt: skip
        found += self._placement_violations()
        if (self.schedule is None) != (self.pp == 1):
            found.append(Violation(
                "schedule", f"schedule is {self.schedule or 'null'} with pp = {self.pp}",
                "null" if self.pp == 1 else "1f1b",
            ))  # fmt: skip
        found += [
            Violation("schedule", *broken) for broken in vpp_problems(self.schedule, self.vpp)
        ]
        return found

    def _placement_violations(self) -> list[Violation]:
        """Stages on other ranks than their schedule's, and blocks on other stages than their own.

        A custom schedule may place stages as it likes.
        """
        found = []
        placed = place_stages([0] * len(self.stages), 0, self.pp, self.schedule)
        for stage, right in zip(self.stages, placed, strict=True):
            given = (stage.stage, stage.rank, stage.chunk)
            wanted = (right.stage, right.rank, right.chunk)
            if given != wanted and self.schedule is not ScheduleName.CUSTOM:
                found.append(Violation(
                    "stage_placement",
                    f"(stage, rank, chunk) of stage {right.stage} is {given} instead of {wanted}",
                ))  # fmt: skip
        last = len(self.stages) - 1
        for block, home in (("embedding", 0), ("final_norm", last), ("head", last)):
            holders = [
                index
                for index, stage in enumerate(self.stages)
                for held in stage.holds
                if held == block
            ]
            if holders != [home]:
                where = f"on stages {holders}" if holders else "on no stage"
                found.append(Violation(
                    "stage_blocks", f"the {block} is {where} instead of on stage {home} alone"
                ))  # fmt: skip
        return found

    def _zero_violations(self) -> list[Violation]:
        edp = self.world_size.edp
        found = self._shard_violations("zero_shard_degree", "dp x cp", self.dp * self.cp)
        if edp is not None:
            found += self._shard_violations("expert_zero_shard_degree", "edp", edp)
        return found

    def _shard_violations(self, name: str, whole: str, ranks: int) -> list[Violation]:
        """Of a shard degree that must divide the ``ranks`` with copies of the same weights."""
        degree: int = getattr(self, name)
        found = []
        if ranks % degree:
            found.append(Violation(
                name, f"{name} = {degree} does not divide {whole} = {ranks}",
                f"one of {nearest(divisors(ranks), degree)}",
            ))  # fmt: skip
        if self.zero == 0 and degree != 1:
            found.append(Violation(
                name, f"zero = 0 shards nothing, but {name} = {degree}", f"{name} = 1"
            ))  # fmt: skip
        return found

    def _offload_violations(self) -> list[Violation]:
        twice = sorted({name for name in self.offload if self.offload.count(name) > 1})
        return [
            Violation("offload", f"{name} is offloaded twice", f"offload {name} once")
            for name in twice
        ]


def vpp_problems(schedule: ScheduleName | None, vpp: int) -> list[tuple[str, str]]:
    """Why a schedule cannot have ``vpp`` stages per rank, and what can be had; empty if it can.

    A V has two arms; interleaving needs something to interleave. A custom schedule may have any.
    """
    given = f"vpp = {vpp}"
    if schedule is None and vpp > 1:
        return [(f"there are no stages to interleave with pp = 1, but {given}", "vpp = 1")]
    if schedule in _ONE_STAGE_PER_RANK and vpp != 1:
        return [(f"{schedule} has one stage per rank, but {given}", "vpp = 1 or interleaved-1f1b")]
    if schedule is ScheduleName.INTERLEAVED and vpp < 2:
        return [(f"{schedule} has at least two stages per rank, but {given}", "vpp = 2 or 1f1b")]
    if schedule in V_SHAPED and vpp != 2:
        return [(f"{schedule} has two stages per rank, but {given}", "vpp = 2")]
    return []


def is_too_long(num_stages: int, num_microbatches: int) -> bool:
    """Whether a step has more forward passes than a schedule is written out for."""
    return num_stages * num_microbatches > MOST_FORWARDS


def place_stages(
    starts: list[int], num_layers: int, pp: int, schedule: ScheduleName | None
) -> tuple[Stage, ...]:
    """Stages in model order from the layer at which each starts.

    Stage i sits on pipeline rank i mod pp, or min(i, 2 pp - 1 - i) for the V-shaped schedules. The
    first stage holds the embedding, the last the final norm and the head.
    """
    stops = [*starts[1:], num_layers]
    last = len(starts) - 1
    stages = []
    for index, layers in enumerate(zip(starts, stops, strict=True)):
        v_shaped = schedule in V_SHAPED and index < 2 * pp  # a V has no third arm
        rank = min(index, 2 * pp - 1 - index) if v_shaped else index % pp
        first: tuple[Held, ...] = ("embedding",) if index == 0 else ()
        final: tuple[Held, ...] = ("final_norm", "head") if index == last else ()
        stages.append(
            Stage(stage=index, rank=rank, chunk=index // pp, layers=layers, holds=first + final)
        )
    return tuple(stages)
