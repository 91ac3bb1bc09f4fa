"""What a whole training step costs under a layout: the architecture's *Step*, priced.

    T = count of valid tokens + max_r (pipeline_r + reductions_r + norm_r) + sum of norms
        + max_r (update_r + publishing_r) + data + overhead

A pipeline rank r begins to reduce its gradients as soon as its own last action is over; the global
gradient norm waits for all ranks, and the step for the slowest update. Nothing overlaps but what
the pipeline's simulation lets overlap.

Parameters of a profile, all optional: ``step.overhead_s`` (host work once per step; absent: 0),
``step.data_s_per_token`` (reading and moving one token of input; absent: 0), ``band.low_ratio`` and
``band.high_ratio`` (80 % of measurements lie between these multiples of the prediction; absent: 1,
the profile states no band).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shardwright.cost_models.blocks.operations import Collective
from shardwright.cost_models.communication import CommunicationModel
from shardwright.cost_models.compute import ComputeModel
from shardwright.cost_models.flops import model_flops_megatron
from shardwright.cost_models.groups import GroupPrices
from shardwright.cost_models.memory import MemoryModel
from shardwright.cost_models.pipeline.makespan import (
    PipelineCosts,
    RankTime,
    SharedCores,
    Timeline,
    simulate,
)
from shardwright.cost_models.pipeline.program import Work, pairs_of, program_of
from shardwright.cost_models.units import Levels, PassSeconds, StageCosts, UnitPricer
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import (
    ActionKind,
    Breakdown,
    Layout,
    MemoryParts,
    ModelSpec,
    Prediction,
    SharedResource,
    SoftwareSpec,
    TrainingSpec,
    WorldSize,
)

_LOSS_AND_NORM_BYTES = 16
"""Two float64: the loss and the squared gradient norm, summed over the world."""
_COUNT_BYTES = 8
"""One int64: valid tokens, summed over dp."""


_Passes = tuple[tuple[PassSeconds, ...], tuple[PassSeconds, ...]]
"""Forward and backward seconds of one computation, each with one entry per level of business."""


@dataclass(frozen=True, slots=True)
class FixedSeconds:
    """What every step pays once."""

    sums_s: float
    """The all_reduces of the count of valid tokens, and of loss and squared gradient norm."""
    data_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        return self.sums_s + self.data_s + self.overhead_s


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """The parts of a step outside the pipeline; lists are by pipeline rank."""

    pipeline_s: tuple[float, ...]
    """When each rank's last action is over."""
    reduction_s: tuple[float, ...]
    tied_sum_s: float
    """Sum of a tied weight's gradient over first and last stage."""
    norm_s: tuple[float, ...]
    """Squares of the own gradients."""
    update_s: tuple[float, ...]
    publish_s: tuple[float, ...]
    fixed: FixedSeconds

    @property
    def total_s(self) -> float:
        """The formula at the top of this file."""
        ready = [end + own for end, own in zip(self.pipeline_s, self.reduction_s, strict=True)]
        if self.tied_sum_s:
            ready[0] = ready[-1] = max(ready[0], ready[-1]) + self.tied_sum_s
        norm_s = max(map(sum, zip(ready, self.norm_s, strict=True)))
        update_s = max(map(sum, zip(self.update_s, self.publish_s, strict=True)))
        return self.fixed.total_s + norm_s + update_s


class StepModel:
    """Prices layouts of one training job on one cluster."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec | None = None,
    ) -> None:
        self.model, self.training, self.profile = model, training, profile
        self.software = software or SoftwareSpec()
        self.cluster = profile.devices
        self._communication = CommunicationModel(profile)
        compute = ComputeModel(profile, self.software)
        self.units = UnitPricer(model, training, compute, self.software)
        self._parameters = {p.name: p.value for p in profile.parameters}
        self._memory = MemoryModel(training, self._parameters, self.units)
        self._group_prices: dict[tuple[WorldSize, int], GroupPrices] = {}

    @property
    def capacity_bytes(self) -> int:
        """Memory that a rank may use: that of the smallest device."""
        return min(group.accelerator.usable_memory_bytes for group in self.cluster.groups)

    @cached_property
    def _cores(self) -> SharedResource | None:
        resources = (r for group in self.cluster.groups for r in group.shared_resources)
        return next((r for r in resources if r.kind == "cores" and r.ranks > 1), None)

    def shared_cores(self, layout: Layout) -> SharedCores | None:
        """Which ranks slow each other down while both compute; None where each has a device."""
        if self._cores is None:
            return None
        return SharedCores.of(
            pp=layout.pp,
            ranks_per_stage=layout.world_size.ranks_per_stage,
            ranks_per_node=self._cores.ranks,
        )

    def levels(self, layout: Layout) -> Levels:
        """Numbers of busy ranks of a node at which passes are priced."""
        shared = self.shared_cores(layout)
        return (self.groups(layout).ranks_per_node,) if shared is None else shared.levels

    def groups(self, layout: Layout) -> GroupPrices:
        """Prices of the collectives of a layout's grid."""
        key = (layout.world_size, layout.zero_shard_degree)
        if key not in self._group_prices:
            self._group_prices[key] = GroupPrices(
                self._communication, self.cluster, layout.world_size, layout.zero_shard_degree
            )
        return self._group_prices[key]

    def stage_costs(self, layout: Layout) -> tuple[StageCosts, ...]:
        """Of every virtual stage in model order: seconds per micro-batch and per step."""
        groups, levels = self.groups(layout), self.levels(layout)
        return tuple(
            self.units.stage_costs(layout, stage.stage, groups, levels) for stage in layout.stages
        )

    def pipeline_costs(
        self, layout: Layout, stages: tuple[StageCosts, ...] | None = None
    ) -> PipelineCosts:
        """What the pipeline's simulation needs."""
        stages = stages or self.stage_costs(layout)
        work_s = {
            work: tuple(
                forward.total_s + backward.total_s
                for forward, backward in zip(*passes, strict=True)
            )
            for work, passes in self._work_passes(layout, stages).items()
        }
        transfer_s = {}
        for index, stage in enumerate(stages):
            transfer_s[index, ActionKind.SEND_FORWARD] = stage.send_forward_s
            transfer_s[index, ActionKind.SEND_BACKWARD] = stage.send_backward_s
        return PipelineCosts(work_s, transfer_s, self.shared_cores(layout))

    def _work_passes(self, layout: Layout, stages: tuple[StageCosts, ...]) -> dict[Work, _Passes]:
        """The forward and the backward seconds of each computation of the schedule."""
        program = program_of(layout)
        groups, levels = self.groups(layout), self.levels(layout)
        found: dict[Work, _Passes] = {}
        nothing = (PassSeconds(),) * len(levels)
        for stage, kind in program.works:
            if kind is ActionKind.FORWARD:
                found[stage, kind] = stages[stage].forward, nothing
            elif kind is ActionKind.BACKWARD:
                found[stage, kind] = nothing, stages[stage].backward
            elif kind is not ActionKind.OVERLAP_F_B and (stage, kind) not in found:
                halves = self.units.split_costs(layout, stage, groups, levels)
                found |= {(stage, half): (nothing, cost) for half, cost in halves.items()}
        for stage, backward in pairs_of(program).items():
            found[stage, ActionKind.OVERLAP_F_B] = stages[stage].forward, stages[backward].backward
        return found

    def timeline(self, layout: Layout) -> Timeline:
        """The simulated pipeline of one step."""
        return simulate(program_of(layout), self.pipeline_costs(layout))

    def memory(self, layout: Layout) -> tuple[MemoryParts, ...]:
        """Peak memory of each pipeline rank, the maximum over its ranks."""
        return self._memory.parts(layout)

    def predict(self, layout: Layout) -> Prediction:
        """The whole step: time, breakdown, memory."""
        stages = self.stage_costs(layout)
        timeline = simulate(program_of(layout), self.pipeline_costs(layout, stages))
        breakdown = self._breakdown(layout, stages, timeline)
        memory = self.memory(layout)
        step_s = breakdown.total_s
        tokens_per_s = self.training.tokens_per_step / step_s
        return Prediction(
            step_time_s=step_s,
            step_time_band_s=self._band_s(step_s),
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / layout.world,
            mfu=self._mfu(step_s),
            bubble_fraction=breakdown.bubble / step_s,
            peak_memory_bytes=tuple(parts.total_bytes for parts in memory),
            memory_capacity_bytes=self.capacity_bytes,
            memory_verdict=self._memory.verdict(memory, self.capacity_bytes),
            breakdown=breakdown,
            memory=memory,
        )

    def rank_breakdowns(self, layout: Layout) -> tuple[Breakdown, ...]:
        """The step as each pipeline rank spends it; each sums to the step."""
        stages = self.stage_costs(layout)
        timeline = simulate(program_of(layout), self.pipeline_costs(layout, stages))
        return tuple(self._breakdown(layout, stages, timeline, rank) for rank in range(layout.pp))

    def _step_seconds(
        self, layout: Layout, stages: tuple[StageCosts, ...], timeline: Timeline
    ) -> StepSeconds:
        own: list[list[StageCosts]] = [[] for _ in range(layout.pp)]
        for stage, costs in zip(layout.stages, stages, strict=True):
            own[stage.rank].append(costs)

        def by_rank(name: str) -> tuple[float, ...]:
            return tuple(sum(getattr(costs, name) for costs in row) for row in own)

        fixed = self.fixed_seconds(layout)
        return StepSeconds(
            pipeline_s=tuple(ends[-1] for ends in timeline.ends_s),
            reduction_s=by_rank("reduction_s"),
            tied_sum_s=stages[0].tied_sum_s,
            norm_s=by_rank("norm_s"),
            update_s=by_rank("update_s"),
            publish_s=by_rank("publish_s"),
            fixed=fixed,
        )

    def fixed_seconds(self, layout: Layout) -> FixedSeconds:
        """What every step pays once, however the stages are cut."""
        groups = self.groups(layout)
        count = Collective("valid_tokens", "all_reduce", "dp", _COUNT_BYTES, "fp64")
        norm = Collective("loss_and_norm", "all_reduce", "world", _LOSS_AND_NORM_BYTES, "fp64")
        tokens = layout.micro_batches * layout.micro_batch * self.training.seq_len
        return FixedSeconds(
            sums_s=groups.seconds(count, "dp", 0) + groups.seconds(norm, "world", 0),
            data_s=tokens * self._parameters.get("step.data_s_per_token", 0.0),
            overhead_s=self._parameters.get("step.overhead_s", 0.0),
        )

    def fixed_s(self, layout: Layout) -> float:
        """The sum of `fixed_seconds`."""
        return self.fixed_seconds(layout).total_s

    def _breakdown(
        self,
        layout: Layout,
        stages: tuple[StageCosts, ...],
        timeline: Timeline,
        rank: int | None = None,
    ) -> Breakdown:
        """The step as a pipeline rank spends it, by default the busiest; what is left over is its
        bubble."""
        step = self._step_seconds(layout, stages, timeline)
        if rank is None:
            rank = max(range(layout.pp), key=lambda r: (timeline.ranks[r].busy_s, -r))
        forward, backward = _passes(timeline.ranks[rank], self._work_passes(layout, stages))
        shares = {
            "compute_forward": forward.compute_s,
            "compute_backward": backward.compute_s,
            "recompute": backward.recompute_s,
            "tp_comm": forward.tp_comm_s + backward.tp_comm_s,
            "pp_comm": timeline.ranks[rank].transfer_s,
            "dp_comm_exposed": forward.dp_comm_s
            + backward.dp_comm_s
            + step.reduction_s[rank]
            + step.publish_s[rank]
            + step.fixed.sums_s
            + (step.tied_sum_s if rank in (0, layout.pp - 1) else 0.0),
            "optimizer": step.norm_s[rank] + step.update_s[rank],
            "data": step.fixed.data_s,
            "other": step.fixed.overhead_s,
        }
        return Breakdown(**shares, bubble=max(0.0, step.total_s - sum(shares.values())))

    def _band_s(self, step_s: float) -> tuple[float, float]:
        low, high = (self._parameters.get(f"band.{end}_ratio", 1.0) for end in ("low", "high"))
        return step_s * low, step_s * high

    def _mfu(self, step_s: float) -> float | None:
        """Null where the profile does not know the peak of the matmul dtype on every device."""
        dtype = self.training.dtypes.matmul
        peaks = [
            group.num_devices * group.accelerator.peak_flops_per_s.get(dtype, math.nan)
            for group in self.cluster.groups
        ]
        peak_flops_per_s = sum(peaks)
        if math.isnan(peak_flops_per_s):
            return None
        return self._model_flops / (step_s * peak_flops_per_s)

    @cached_property
    def _model_flops(self) -> float:
        return model_flops_megatron(self.model, self.training)


def _passes(rank: RankTime, works: Mapping[Work, _Passes]) -> tuple[PassSeconds, PassSeconds]:
    """What a pipeline rank's time in forward and backward passes went to.

    Elapsed seconds at each level of business are shared out as the priced passes at that level.
    """
    forward_total = backward_total = PassSeconds()
    for work, elapsed in rank.elapsed_s.items():
        for seconds, forward, backward in zip(elapsed, *works[work], strict=True):
            if seconds:
                share = seconds / (forward.total_s + backward.total_s)
                forward_total += forward.scaled(share)
                backward_total += backward.scaled(share)
    return forward_total, backward_total
