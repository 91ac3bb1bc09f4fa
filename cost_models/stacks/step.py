"""What a whole training step costs on a software stack: `StackModel.predict`.

    T = max_r (pipeline_r + reduction_r exposed) + optimizer + publishing exposed + sums + fixed

The pipeline is that of the layout's schedule with unequal stages. Gradients are reduced while the
last backward runs, weights are gathered while the next forward runs, as far as the software does
that and as far as there is something to hide behind; ``stack.hidden_fraction`` says how much of it
really hides. Nothing overlaps perfectly.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_models.flops import model_flops_megatron
from shardwright.cost_models.pipeline.fast import StageSeconds, in_flight, pipeline_times
from shardwright.cost_models.stacks.layers import Work
from shardwright.cost_models.stacks.links import Links, axes
from shardwright.cost_models.stacks.memory import MemoryKind, StackMemory, StageBytes
from shardwright.cost_models.stacks.parameters import device_rates
from shardwright.cost_models.stacks.price import Seconds, WorkPricer, WorkSeconds
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.cost_models.stacks.stage import Holding, StageBuilder
from shardwright.cost_models.stacks.updates import Trained, Updates
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import (
    AttentionBlock,
    Breakdown,
    LatentAttentionBlock,
    LayerBlock,
    Layout,
    MemoryParts,
    ModelSpec,
    Prediction,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.layout import ScheduleName
from shardwright.specs.prediction import MemoryVerdict


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A virtual stage: seconds per micro-batch, and per step."""

    forward: Seconds
    backward_input: Seconds
    backward_weight: Seconds
    again: Seconds
    forward_shards_s: float
    """Exposed gathering under ZeRO 3."""
    backward_shards_s: float
    reduction_s: float
    tied_sum_s: float
    """Of a tied table's gradient with its copy on the first stage; 0 but for the last."""
    publish_s: float
    optimizer_s: float
    forward_s: float
    """All of the forward pass, and never less than the host needs to launch it."""
    backward_input_s: float
    backward_weight_s: float
    window_s: float
    """What of the backward pass gradients are reduced behind: all but what is computed again, for a
    step must never gain by recomputing."""


def _later(device_s: float, host_s: float, sharpness: float) -> float:
    """Device and host run side by side, each waiting for the other at times: a smooth maximum."""
    if device_s <= 0.0 or host_s <= 0.0:
        return max(device_s, host_s)
    return float((device_s**sharpness + host_s**sharpness) ** (1.0 / sharpness))


def _hide(shares: dict[str, float], excess_s: float) -> None:
    """Take what overlapped (dispatch first, then computing alike) out of the terms of a step."""
    if excess_s <= 0.0:
        return
    hidden_s = min(excess_s, shares["ep_comm"])
    shares["ep_comm"] -= hidden_s
    total_s = sum(shares.values())
    scale = 1.0 - (excess_s - hidden_s) / total_s
    for name in shares:
        shares[name] *= scale


def _blocking(seconds: StageSeconds) -> StageSeconds:
    """Stages that wait while their messages are on the wire."""
    sent, received = (*seconds.message_s, 0.0), (0.0, *seconds.message_s)
    return StageSeconds(
        tuple(map(sum, zip(seconds.forward_s, sent, strict=True))),
        tuple(map(sum, zip(seconds.backward_input_s, received, strict=True))),
        seconds.backward_weight_s,
        (0.0,) * len(seconds.message_s),
    )


def layer_name(model: ModelSpec, training: TrainingSpec, layout: Layout) -> str:
    """The parameter that says how much longer layers of this shape take than predicted, where runs
    of such layers were measured."""
    heads = next(
        (
            branch.body.num_heads
            for block in model.decoder.blocks
            if isinstance(block, LayerBlock)
            for branch in block.branches
            if isinstance(branch.body, AttentionBlock | LatentAttentionBlock)
        ),
        0,
    )
    hidden = f"h{model.decoder.hidden_size}/a{heads}"
    shape = f"{hidden}/s{training.seq_len}/b{layout.micro_batch}"
    return f"layer.{shape}/tp{layout.tp}/cp{layout.cp}/ep{layout.ep}"


class StackModel:
    """Prices layouts of one training job on one cluster under one software stack.

    Raises:
        InputError: the accelerator has no known rate in the precision.
    """

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec,
        parameters: Mapping[str, float],
    ) -> None:
        """``parameters``: all that `cost_models.stacks.parameters` lists, by name."""
        self.model, self.training = model, training
        self.profile, self.software = profile, software
        self._builder = StageBuilder(model, training, software)
        self.reprice(parameters)

    def reprice(self, parameters: Mapping[str, float]) -> None:
        """Take other parameters; what does not depend on them is kept."""
        self.parameters = parameters
        self._rates = {
            compiled: device_rates(
                self.profile, self.training,
                self.software.model_copy(update={"compile": compiled}), parameters,
            )
            for compiled in (False, True)
        }  # fmt: skip
        self._links = Links(self.profile, parameters)
        self._memory = StackMemory(self.training, self.software, parameters)
        self._works: dict[tuple[object, ...], WorkSeconds] = {}
        self._stages: dict[tuple[object, ...], StageTimes] = {}
        self._bytes: dict[tuple[object, ...], StageBytes] = {}

    @property
    def capacity_bytes(self) -> int:
        """Memory that a rank may use: that of the smallest device."""
        groups = self.profile.devices.groups
        return min(group.accelerator.usable_memory_bytes for group in groups)

    @property
    def matmul_s_per_flop(self) -> float:
        """No large product takes less."""
        rates = self._rates[True]
        return rates.compute_ratio / rates.matmul_flops_per_s

    # Time

    def predict(self, layout: Layout) -> Prediction:
        """Step time with its breakdown, and memory by pipeline rank."""
        s = self._builder.sharding(layout)
        groups = axes(layout)
        holdings = [self._builder.holdings(layout, i, s) for i in range(len(layout.stages))]
        stages = [self._stage(layout, i, one, groups) for i, one in enumerate(holdings)]
        step_s, breakdown = self._step(layout, stages, s, groups)
        memory = self.memory(layout, holdings)
        return self._prediction(layout, step_s, breakdown, memory)

    def rank_breakdowns(self, layout: Layout) -> tuple[Breakdown, ...]:
        """The step as each pipeline rank spends it; each sums to the step."""
        s = self._builder.sharding(layout)
        groups = axes(layout)
        stages = self.stage_times(layout)
        return tuple(self._step(layout, stages, s, groups, rank)[1] for rank in range(layout.pp))

    def step_time_s(self, layout: Layout) -> float:
        """The step time alone."""
        s = self._builder.sharding(layout)
        groups = axes(layout)
        stages = [
            self._stage(layout, i, self._builder.holdings(layout, i, s), groups)
            for i in range(len(layout.stages))
        ]
        return self._step(layout, stages, s, groups)[0]

    def stage_times(self, layout: Layout) -> tuple[StageTimes, ...]:
        """Each virtual stage on its own; the stages need not cover the model."""
        s = self._builder.sharding(layout)
        groups = axes(layout)
        return tuple(
            self._stage(layout, index, self._builder.holdings(layout, index, s), groups)
            for index in range(len(layout.stages))
        )

    def at_host_pace_s(self, device_s: float, kernels: float, tp: int) -> float:
        """What a pass takes of which the device alone would take ``device_s``."""
        return _later(device_s, kernels * self.launch_s(tp), self.parameters["host.sharpness"])

    def each_at_host_pace_s(
        self, device_s: NDArray[np.float64], kernels: NDArray[np.float64], tp: int
    ) -> NDArray[np.float64]:
        """`at_host_pace_s` of many passes."""
        launch_s, sharpness = self.launch_s(tp), self.parameters["host.sharpness"]
        if launch_s <= 0.0:
            return device_s
        powers = device_s**sharpness + (kernels * launch_s) ** sharpness
        return np.asarray(powers ** (1.0 / sharpness))

    def pace_slopes(self, device_s: float, host_s: float) -> tuple[float, float]:
        """By how much a pass takes longer for each second more of the device, and of the host."""
        if host_s <= 0.0 or device_s <= 0.0:
            return (1.0, 0.0) if device_s > 0.0 else (0.0, 1.0)
        sharpness = self.parameters["host.sharpness"]
        whole_s = _later(device_s, host_s, sharpness)
        power = sharpness - 1.0
        return (device_s / whole_s) ** power, (host_s / whole_s) ** power

    def launch_s(self, tp: int) -> float:
        """Seconds of the host for each kernel."""
        if self.software.cuda_graphs:
            return 0.0  # a graph is replayed whole: the host is out of the way
        return self.parameters["stack.host_s"] * self._waiting(tp)

    def measured_ratio(self, layout: Layout) -> float:
        """Measured over predicted seconds of layers of this shape; 1 where none were measured."""
        return self.parameters.get(layer_name(self.model, self.training, layout), 1.0)

    def _stage(
        self,
        layout: Layout,
        index: int,
        holdings: tuple[Holding, ...],
        groups: dict[str, tuple[int, int]],
    ) -> StageTimes:
        last = len(layout.stages) - 1
        neighbours = 0 if layout.pp == 1 else (index > 0) + (index < last)
        key = (
            holdings, tuple(groups.values()), layout.zero, layout.reshard_after_forward,
            layout.micro_batch, layout.offload, layout.compile, neighbours,
        )  # fmt: skip
        found = self._stages.get(key)
        if found is None:
            found = self._stages[key] = self._price_stage(layout, holdings, groups, neighbours)
        return found

    def _price_stage(
        self,
        layout: Layout,
        holdings: Sequence[Holding],
        groups: dict[str, tuple[int, int]],
        neighbours: int,
    ) -> StageTimes:
        """``neighbours``: stages that this one exchanges messages with."""
        compiled = self.software.compile or layout.compile
        rates = self._rates[compiled]
        pricer = WorkPricer(
            rates, self._links, groups, self._hidden,
            overlap_tensor_parallel=self.software.overlaps_tensor_parallel(self.training.precision),
        )  # fmt: skip
        updates = Updates(
            self.model, self.training, layout, self._links, rates, self.parameters, groups
        )  # fmt: skip
        beside = layout.zero >= 2 or bool(layout.offload)
        forward = d_input = d_weight = again = Seconds()
        shards = [0.0, 0.0]
        for one in holdings:
            seconds = self._work(pricer, one.work, groups, compiled)
            forward = forward.plus(seconds.forward, one.count)
            d_input = d_input.plus(seconds.backward_input, one.count)
            d_weight = d_weight.plus(seconds.backward_weight, one.count)
            again = again.plus(seconds.again, one.count)
            if beside:
                exposed = self._beside(updates, one, seconds)
                shards = [a + one.count * b for a, b in zip(shards, exposed, strict=True)]
        trained = self._trained(layout, holdings)
        if not self.software.fused_accumulation:
            d_weight = d_weight.plus(Seconds(updates.accumulation_s(trained)))
        measured = self.measured_ratio(layout)
        tp = groups["tp"][0]
        without_s = d_input.total_s + d_weight.total_s
        backward_s = without_s + again.total_s + shards[1]
        exchanged = neighbours * self.parameters["host.message_launches"]
        kernels = d_input.kernels + d_weight.kernels + exchanged
        paced_s = self.at_host_pace_s(backward_s, kernels + again.kernels, tp)
        stretch = paced_s / backward_s if backward_s else 1.0
        return StageTimes(
            forward=forward, backward_input=d_input, backward_weight=d_weight, again=again,
            forward_shards_s=shards[0], backward_shards_s=shards[1],
            reduction_s=updates.reduction_s(trained), tied_sum_s=updates.tied_sum_s(trained),
            publish_s=updates.publish_s(trained), optimizer_s=updates.optimizer_s(trained),
            forward_s=measured
            * self.at_host_pace_s(forward.total_s + shards[0], forward.kernels + exchanged, tp),
            backward_input_s=(d_input.total_s + again.total_s + shards[1]) * stretch * measured,
            backward_weight_s=d_weight.total_s * stretch * measured,
            window_s=measured * self.at_host_pace_s(without_s, kernels, tp),
        )  # fmt: skip

    def update_seconds(self, layout: Layout, trained: Trained) -> tuple[float, float, float, float]:
        """(reduction, publishing, optimizer, sum of a tied table) of a rank that trains so many
        parameters, each as if nothing hid it; ``layout`` says over which ranks."""
        compiled = self.software.compile or layout.compile
        updates = Updates(
            self.model, self.training, layout, self._links, self._rates[compiled],
            self.parameters, axes(layout),
        )  # fmt: skip
        return (
            updates.reduction_s(trained), updates.publish_s(trained),
            updates.optimizer_s(trained), updates.tied_sum_s(trained),
        )  # fmt: skip

    def trained(self, layout: Layout) -> tuple[Trained, ...]:
        """Parameters that a rank trains of each virtual stage; these need not cover the model."""
        s = self._builder.sharding(layout)
        return tuple(
            self._trained(layout, self._builder.holdings(layout, index, s))
            for index in range(len(layout.stages))
        )

    def accumulation_s(self, layout: Layout) -> tuple[float, ...]:
        """Of each virtual stage, what adding a micro-batch's gradients takes by kernels of their
        own, before the pace of host and device; it is part of its backward pass."""
        if self.software.fused_accumulation:
            return (0.0,) * len(layout.stages)
        compiled = self.software.compile or layout.compile
        updates = Updates(
            self.model, self.training, layout, self._links, self._rates[compiled],
            self.parameters, axes(layout),
        )  # fmt: skip
        return tuple(map(updates.accumulation_s, self.trained(layout)))

    def gathering_s(self, layout: Layout) -> tuple[float, ...]:
        """Of each virtual stage, what is gathered and scattered beside both its passes for one
        micro-batch; what is in host memory apart."""
        s = self._builder.sharding(layout)
        compiled = self.software.compile or layout.compile
        updates = Updates(
            self.model, self.training, layout.model_copy(update={"offload": ()}), self._links,
            self._rates[compiled], self.parameters, axes(layout),
        )  # fmt: skip
        return tuple(
            sum(
                one.count * sum(updates.passing_s(one.work, frozen=one.frozen))
                for one in self._builder.holdings(layout, index, s)
            )
            for index in range(len(layout.stages))
        )

    def moving_s(self, num_bytes: float) -> float:
        """To host memory, or from it."""
        return num_bytes / self.parameters["host.link_bytes_per_s"]

    def fixed_s(self, layout: Layout) -> float:
        """What every step has on top of its work."""
        fixed_s = self.parameters["host.step_launches"] * self.parameters["stack.host_s"]
        return fixed_s + self._links.seconds("all_reduce", 16.0, *axes(layout)["world"])

    def messages_s(self, layout: Layout) -> tuple[float, ...]:
        """Of each boundary between virtual stages."""
        return self._messages_s(layout, self._builder.sharding(layout), axes(layout))

    def message_bytes(self, layout: Layout) -> float:
        """What one rank hands to the next stage."""
        return self._builder.message_bytes(self._builder.sharding(layout))

    @property
    def exchange_kernels(self) -> float:
        """Kernels that each neighbour in the pipeline costs the host in each pass."""
        return self.parameters["host.message_launches"]

    def _beside(self, updates: Updates, one: Holding, seconds: WorkSeconds) -> tuple[float, float]:
        """What shows of the communication beside one unit's forward, and its backward."""
        forward_s, backward_s = updates.passing_s(one.work, frozen=one.frozen)
        window_s = (
            seconds.backward_input.total_s + seconds.backward_weight.total_s + seconds.again.total_s
        )
        return (
            self.exposed(forward_s, seconds.forward.total_s),
            self.exposed(backward_s, window_s),
        )

    def _waiting(self, tp: int) -> float:
        """Ranks that meet at every collective wait for the latest of their hosts."""
        return 1.0 + self.parameters["host.sync_ratio"] * (tp - 1)

    @property
    def _hidden(self) -> float:
        return self.parameters["stack.hidden_fraction"]

    def _work(
        self,
        pricer: WorkPricer,
        work: Work,
        groups: dict[str, tuple[int, int]],
        compiled: bool,
    ) -> WorkSeconds:
        key = (work, compiled, groups["tp"], groups["cp"], groups["ep"], groups["etp"])
        found = self._works.get(key)
        if found is None:
            found = self._works[key] = pricer.price(work)
        return found

    def _trained(self, layout: Layout, holdings: Sequence[Holding]) -> Trained:
        """Trained parameters on a rank."""
        dense = experts = tied = 0.0
        for one in holdings:
            dense += one.count * one.work.adapters
            if not one.frozen:
                dense += one.count * one.work.parameters
                experts += one.count * one.work.expert_parameters
                tied += one.work.tied_parameters * (layout.pp > 1)
        return Trained(dense + tied, experts, tied)

    def exposed(self, communication_s: float, window_s: float) -> float:
        """What shows of communication beside so much computation."""
        return communication_s - self._hidden * min(communication_s, window_s)

    def exposed_s(
        self, communication_s: float, window_s: float, *, gradients: bool | None
    ) -> float:
        """What shows of reducing gradients, of publishing weights (false), or of what always
        overlaps (null), beside so much computing."""
        software = self.software
        if gradients is None:
            return self.exposed(communication_s, window_s)
        overlaps = software.overlap_gradients if gradients else software.overlap_weights
        return self.exposed(communication_s, window_s) if overlaps else communication_s

    def _step(
        self,
        layout: Layout,
        stages: Sequence[StageTimes],
        s: Sharding,
        groups: dict[str, tuple[int, int]],
        rank: int | None = None,
    ) -> tuple[float, Breakdown]:
        """The step, and how a pipeline rank spends it: by default the busiest."""
        messages_s = self._messages_s(layout, s, groups)
        message_s = max(messages_s, default=0.0)
        times = self._pipeline(layout, stages, messages_s)
        ends, busy = times
        own: list[list[int]] = [[] for _ in range(layout.pp)]
        for index, stage in enumerate(layout.stages):
            own[stage.rank].append(index)
        exposed = []
        publish = []
        for row in own:
            reduction = sum(stages[i].reduction_s for i in row)
            backward = sum(stages[i].window_s for i in row)
            exposed.append(self.exposed_s(reduction, backward, gradients=True))
            gather = sum(stages[i].publish_s for i in row)
            forward = sum(stages[i].forward_s for i in row)
            publish.append(self.exposed_s(gather, forward, gradients=False))
        optimizer_s = max(sum(stages[i].optimizer_s for i in row) for row in own)
        ready = [end + more for end, more in zip(ends, exposed, strict=True)]
        if stages[-1].tied_sum_s:
            met_s = max(ready[0], ready[layout.stages[-1].rank]) + stages[-1].tied_sum_s
            ready.append(met_s)
        ready_s = max(ready)
        fixed_s = self.fixed_s(layout)
        publish_s = max(publish)
        step_s = ready_s + optimizer_s + publish_s + fixed_s
        if rank is None:
            rank = max(range(layout.pp), key=lambda r: busy[r])
        breakdown = self.breakdown(
            layout, [stages[i] for i in own[rank]], step_s, message_s, exposed[rank] + publish_s,
            optimizer_s, fixed_s,
        )  # fmt: skip
        return step_s, breakdown

    def _messages_s(
        self, layout: Layout, s: Sharding, groups: dict[str, tuple[int, int]]
    ) -> tuple[float, ...]:
        """Of each boundary between virtual stages: inside a link domain, or across."""
        size, stride = self._builder.message_bytes(s), groups["pp"][1]
        gather_s = 0.0
        if self.software.scatter_messages and not s.is_sequence_parallel:
            size /= s.tp
            gather_s = self._links.seconds("all_gather", size, *groups["tp"])
        ranks = [stage.rank for stage in layout.stages]
        pairs = list(itertools.pairwise(ranks))
        known = {
            (a, b): 0.0 if a == b else self._links.message_s(size, a, b, stride) + gather_s
            for a, b in dict.fromkeys(pairs)
        }
        return tuple(map(known.__getitem__, pairs))

    def _overlap_ratio(self, stages: Sequence[StageTimes]) -> float:
        """How long an overlapped forward and backward take together, over one after the other:
        the dispatch of the one hides behind the computation of the other (DualPipe)."""
        passes = [p for one in stages for p in (one.forward, one.backward_input)]
        whole_s = sum(one.total_s for one in passes) + sum(
            one.backward_weight.total_s for one in stages
        )
        dispatch_s = sum(one.ep_s for one in passes)
        return self.exposed(whole_s, min(dispatch_s, whole_s - dispatch_s)) / whole_s

    def _pipeline(
        self, layout: Layout, stages: Sequence[StageTimes], messages_s: tuple[float, ...]
    ) -> tuple[Sequence[float], Sequence[float]]:
        """When each pipeline rank is done, and how long it computes."""
        count = layout.micro_batches
        if layout.pp == 1:
            total = count * sum(
                one.forward_s + one.backward_input_s + one.backward_weight_s for one in stages
            )
            return (total,), (total,)
        seconds = StageSeconds(
            tuple(one.forward_s for one in stages),
            tuple(one.backward_input_s for one in stages),
            tuple(one.backward_weight_s for one in stages),
            messages_s,
        )
        if not self.software.overlap_messages:
            seconds = _blocking(seconds)
        times = pipeline_times(
            layout.schedule, pp=layout.pp, vpp=layout.vpp, num_micro_batches=count,
            seconds=seconds,
            overlap_ratio=self._overlap_ratio(stages)
            if layout.schedule is ScheduleName.DUALPIPE_V else 1.0,
        )  # fmt: skip
        return times.end_s, times.busy_s

    def breakdown(
        self, layout: Layout, own: Sequence[StageTimes], step_s: float, message_s: float,
        dp_comm_s: float, optimizer_s: float, other_s: float,
    ) -> Breakdown:  # fmt: skip
        """The step as one pipeline rank spends it; what is left is its bubble."""
        count = layout.micro_batches
        total = {"forward": 0.0, "backward": 0.0, "again": 0.0, "tp": 0.0, "cp": 0.0, "ep": 0.0}
        dp, moved = dp_comm_s, 0.0
        for one in own:
            back_s = one.backward_input_s + one.backward_weight_s
            passes = (
                (one.forward_s, one.forward_shards_s, {"forward": one.forward}),
                (back_s, one.backward_shards_s, {
                    "backward": one.backward_input.plus(one.backward_weight), "again": one.again,
                }),
            )  # fmt: skip
            for whole_s, shards_s, parts in passes:
                device_s = shards_s + sum(part.total_s for part in parts.values())
                # What the host was late with counts as computing, what a measured layer saves is
                # saved everywhere.
                scale = count * min(1.0, whole_s / device_s) if device_s else 0.0
                for name, part in parts.items():
                    total[name] += scale * part.compute_s
                    total["tp"] += scale * part.tp_s
                    total["cp"] += scale * part.cp_s
                    total["ep"] += scale * part.ep_s
                if layout.zero >= 2:
                    dp += scale * shards_s
                else:
                    moved += scale * shards_s  # to the host and back
                total[next(iter(parts))] += max(0.0, count * whole_s - scale * device_s)
        pp_s = 2 * message_s * (layout.pp > 1) * layout.vpp
        shares = {
            "compute_forward": total["forward"],
            "compute_backward": total["backward"],
            "recompute": total["again"],
            "tp_comm": total["tp"],
            "cp_comm": total["cp"],
            "ep_comm": total["ep"],
            "dp_comm_exposed": dp,
            "optimizer": optimizer_s,
            "other": other_s + moved,
        }
        _hide(shares, sum(shares.values()) - step_s)
        left = max(0.0, step_s - sum(shares.values()))
        shares["pp_comm"] = min(left, pp_s)
        return Breakdown(**shares, bubble=left - shares["pp_comm"])

    # Memory

    def memory(
        self, layout: Layout, holdings: Sequence[tuple[Holding, ...]] | None = None
    ) -> tuple[MemoryParts, ...]:
        """Peak memory of each pipeline rank."""
        s = self._builder.sharding(layout)
        stages = self._stage_bytes(layout, holdings)
        if layout.pp == 1:
            flights: Sequence[Sequence[Sequence[int]]] = (((1,) * len(stages),),)
        else:
            flights = in_flight(
                layout.schedule, pp=layout.pp, vpp=layout.vpp,
                num_micro_batches=layout.micro_batches,
            )  # fmt: skip
        return self._memory.parts(layout, stages, flights, self._builder.message_bytes(s))

    def _stage_bytes(
        self, layout: Layout, holdings: Sequence[tuple[Holding, ...]] | None
    ) -> list[StageBytes]:
        if holdings is None:
            s = self._builder.sharding(layout)
            holdings = [self._builder.holdings(layout, i, s) for i in range(len(layout.stages))]
        stages = []
        for one in holdings:
            key = (
                one, layout.zero, layout.zero_shard_degree, layout.expert_zero_shard_degree,
                layout.reshard_after_forward, layout.pp, layout.stages[-1].rank,
            )  # fmt: skip
            if key not in self._bytes:
                self._bytes[key] = self._memory.stage(layout, one)
            stages.append(self._bytes[key])
        return stages

    def stage_bytes(self, layout: Layout) -> tuple[StageBytes, ...]:
        """Each virtual stage on its own; the stages need not cover the model."""
        return tuple(self._stage_bytes(layout, None))

    def most_live_bytes(self, layout: Layout) -> float:
        """What tensors of a rank may take up at most for the verdict ``fits``."""
        return self._memory.most_live_bytes(layout, self.capacity_bytes)

    def gathered_bytes(self, wholes: Sequence[float], gradient_bytes: float) -> float:
        """See `StackMemory.gathered_bytes`."""
        return self._memory.gathered_bytes(wholes, gradient_bytes)

    def memory_of_kind(self, layout: Layout, kind: MemoryKind) -> tuple[int, ...]:
        """Peak bytes of each pipeline rank as a kind of measurement reads them.

        ``device``: all that the device has given out (nvidia-smi); ``reserved``: what the
        framework's allocator holds; else what its tensors take up.
        """
        return tuple(self._memory.reading(rank, kind) for rank in self.memory(layout))

    def host_bytes(self, layout: Layout) -> tuple[int, ...]:
        """Host memory that one rank of each pipeline rank takes for offloaded state."""
        return self._memory.host_bytes(layout, self._stage_bytes(layout, None))

    def verdict(self, memory: Sequence[MemoryParts]) -> MemoryVerdict:
        """Whether it fits, may fit (``edge``) or does not; see `StackMemory.verdict`."""
        return self._memory.verdict(memory, self.capacity_bytes)

    def _prediction(
        self, layout: Layout, step_s: float, breakdown: Breakdown, memory: tuple[MemoryParts, ...]
    ) -> Prediction:
        tokens_per_s = self.training.tokens_per_step / step_s
        low, high = (self.parameters.get(f"band.{end}_ratio", 1.0) for end in ("low", "high"))
        return Prediction(
            step_time_s=step_s,
            step_time_band_s=(step_s * low, step_s * high),
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / layout.world,
            mfu=self._mfu(step_s),
            bubble_fraction=breakdown.bubble / step_s,
            peak_memory_bytes=tuple(parts.total_bytes for parts in memory),
            memory_capacity_bytes=self.capacity_bytes,
            memory_verdict=self.verdict(memory),
            breakdown=breakdown,
            memory=memory,
        )

    def _mfu(self, step_s: float) -> float | None:
        dtype = self.training.dtypes.matmul
        peak = 0.0
        for group in self.profile.devices.groups:
            rate = group.accelerator.peak_flops_per_s.get(dtype)
            if rate is None:
                return None
            peak += group.num_devices * rate
        if not hasattr(self, "_flops"):
            self._flops = model_flops_megatron(self.model, self.training)
        return self._flops / (step_s * peak)
