"""What a whole training step costs on a software stack: `StackModel.predict`.

    T = max_r (pipeline_r + reduction_r exposed) + optimizer + publishing exposed + sums + fixed

The pipeline is that of the layout's schedule with unequal stages. Gradients are reduced while the
last backward runs, weights are gathered while the next forward runs, as far as the software does
that and as far as there is something to hide behind; ``stack.hidden_fraction`` says how much of it
really hides. Nothing overlaps perfectly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost_models.flops import model_flops_megatron
from shardwright.cost_models.pipeline.fast import StageSeconds, in_flight, pipeline_times
from shardwright.cost_models.stacks.layers import Work
from shardwright.cost_models.stacks.links import Links, axes
from shardwright.cost_models.stacks.memory import MemoryKind, StackMemory, StageBytes
from shardwright.cost_models.stacks.parameters import device_rates
from shardwright.cost_models.stacks.price import Seconds, WorkPricer, WorkSeconds
from shardwright.cost_models.stacks.sharding import Sharding
from shardwright.cost_models.stacks.stage import Holding, StageBuilder
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import (
    Breakdown,
    Layout,
    MemoryParts,
    ModelSpec,
    Prediction,
    SoftwareSpec,
    TrainingSpec,
)
from shardwright.specs.prediction import MemoryVerdict

_UPDATE_BYTES = 30.0
"""Moved per parameter by a fused AdamW with fp32 state: reads of gradient, master and two moments,
writes of master, moments and the bf16 weight."""
_NORM_BYTES = 8.0
"""Clearing the gradients and reading them for their norm."""


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
    publish_s: float
    optimizer_s: float
    forward_s: float
    """All of the forward pass, and never less than the host needs to launch it."""
    backward_input_s: float
    backward_weight_s: float


def _later(device_s: float, host_s: float, sharpness: float) -> float:
    """Device and host run side by side, each waiting for the other at times: a smooth maximum."""
    if device_s <= 0.0 or host_s <= 0.0:
        return max(device_s, host_s)
    return float((device_s**sharpness + host_s**sharpness) ** (1.0 / sharpness))


def layer_name(model: ModelSpec, training: TrainingSpec, layout: Layout) -> str:
    """The parameter that says how much longer layers of this shape take than predicted, where runs
    of such layers were measured."""
    shape = f"h{model.decoder.hidden_size}/s{training.seq_len}/b{layout.micro_batch}"
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
        self._rates = device_rates(self.profile, self.training, self.software, parameters)
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
        return self._rates.compute_ratio / self._rates.matmul_flops_per_s

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
        host_s = kernels * self.parameters["stack.host_s"] * self._waiting(tp)
        return _later(device_s, host_s, self.parameters["host.sharpness"])

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
            layout.micro_batch, neighbours,
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
        pricer = WorkPricer(self._rates, self._links, groups, self._hidden)
        forward = d_input = d_weight = again = Seconds()
        shards = [0.0, 0.0]
        for one in holdings:
            seconds = self._work(pricer, one.work, groups)
            forward = forward.plus(seconds.forward, one.count)
            d_input = d_input.plus(seconds.backward_input, one.count)
            d_weight = d_weight.plus(seconds.backward_weight, one.count)
            again = again.plus(seconds.again, one.count)
            if layout.zero >= 2:
                exposed = self._sharded(layout, one, seconds, groups)
                shards = [a + one.count * b for a, b in zip(shards, exposed, strict=True)]
        measured = self.parameters.get(layer_name(self.model, self.training, layout), 1.0)
        sharpness = self.parameters["host.sharpness"]
        host_s = self.parameters["stack.host_s"] * self._waiting(groups["tp"][0])
        backward_s = d_input.total_s + d_weight.total_s + again.total_s + shards[1]
        exchanged = neighbours * self.parameters["host.message_launches"]
        launched = (d_input.kernels + d_weight.kernels + again.kernels + exchanged) * host_s
        stretch = _later(backward_s, launched, sharpness) / backward_s if backward_s else 1.0
        dense, experts = self._local_parameters(holdings)
        return StageTimes(
            forward=forward, backward_input=d_input, backward_weight=d_weight, again=again,
            forward_shards_s=shards[0], backward_shards_s=shards[1],
            reduction_s=self._reduction_s(layout, dense, "shard", "replica", "dp", groups)
            + self._reduction_s(layout, experts, "expert_shard", "", "edp", groups),
            publish_s=self._publish_s(layout, dense, "shard", groups)
            + self._publish_s(layout, experts, "expert_shard", groups),
            optimizer_s=self._optimizer_s(layout, dense, experts),
            forward_s=measured
            * _later(
                forward.total_s + shards[0], (forward.kernels + exchanged) * host_s, sharpness
            ),
            backward_input_s=(d_input.total_s + again.total_s + shards[1]) * stretch * measured,
            backward_weight_s=d_weight.total_s * stretch * measured,
        )  # fmt: skip

    def _waiting(self, tp: int) -> float:
        """Ranks that meet at every collective wait for the latest of their hosts."""
        return 1.0 + self.parameters["host.sync_ratio"] * (tp - 1)

    @property
    def _hidden(self) -> float:
        return self.parameters["stack.hidden_fraction"]

    def _work(
        self, pricer: WorkPricer, work: Work, groups: dict[str, tuple[int, int]]
    ) -> WorkSeconds:
        key = (work, groups["tp"], groups["cp"], groups["ep"], groups["etp"])
        found = self._works.get(key)
        if found is None:
            found = self._works[key] = pricer.price(work)
        return found

    def _local_parameters(self, holdings: Sequence[Holding]) -> tuple[float, float]:
        """Trained parameters on a rank: dense and of experts."""
        dense = experts = 0.0
        for one in holdings:
            dense += one.count * one.work.adapters
            if not one.frozen:
                dense += one.count * one.work.parameters
                experts += one.count * one.work.expert_parameters
        return dense, experts

    def _sharded(
        self,
        layout: Layout,
        one: Holding,
        seconds: WorkSeconds,
        groups: dict[str, tuple[int, int]],
    ) -> tuple[float, float]:
        """Exposed seconds of gathering and scattering one unit, forward and backward."""
        dtypes = self.training.dtypes
        gather = scatter = 0.0
        for count, name in (
            (one.work.parameters, "shard"),
            (one.work.expert_parameters, "expert_shard"),
        ):
            size, stride = groups[name]
            if size == 1 or not count:
                continue
            part = count / size * dtypes.parameter_bytes
            gather += self._links.seconds("all_gather", part, size, stride)
            if not one.frozen:
                grads = count * dtypes.gradient_bytes
                scatter += self._links.seconds("reduce_scatter", grads, size, stride)
        if layout.zero == 2:
            gather = 0.0
        window = (
            seconds.backward_input.total_s + seconds.backward_weight.total_s + seconds.again.total_s
        )
        again = gather if layout.reshard_after_forward else 0.0
        return (
            self._exposed(gather, seconds.forward.total_s),
            self._exposed(again + scatter, window),
        )

    def _exposed(self, communication_s: float, window_s: float) -> float:
        return communication_s - self._hidden * min(communication_s, window_s)

    def _reduction_s(
        self, layout: Layout, count: float, shard: str, replica: str, whole: str,
        groups: dict[str, tuple[int, int]],
    ) -> float:  # fmt: skip
        """Summing the gradients of ``count`` parameters after the last backward."""
        if not count:
            return 0.0
        size = count * self.training.dtypes.gradient_bytes
        links = self._links
        if layout.zero == 0:
            return links.seconds("all_reduce", size, *groups[whole])
        scatter = 0.0 if layout.zero >= 2 else links.seconds("reduce_scatter", size, *groups[shard])
        copies = groups.get(replica, (1, 1))
        return scatter + links.seconds("all_reduce", size / max(1, groups[shard][0]), *copies)

    def _publish_s(
        self, layout: Layout, count: float, shard: str, groups: dict[str, tuple[int, int]]
    ) -> float:
        """Gathering updated weights."""
        if layout.zero not in (1, 2) or not count:
            return 0.0
        size, stride = groups[shard]
        part = count * self.training.dtypes.parameter_bytes / size
        return self._links.seconds("all_gather", part, size, stride)

    def _optimizer_s(self, layout: Layout, dense: float, experts: float) -> float:
        if layout.zero:
            own = dense / layout.zero_shard_degree + experts / layout.expert_zero_shard_degree
        else:
            own = dense + experts
        moved = own * _UPDATE_BYTES + (own if layout.zero >= 2 else dense + experts) * _NORM_BYTES
        return moved / self._rates.memory_bytes_per_s * self._rates.traffic_ratio

    def _step(
        self,
        layout: Layout,
        stages: Sequence[StageTimes],
        s: Sharding,
        groups: dict[str, tuple[int, int]],
    ) -> tuple[float, Breakdown]:
        message_s = self._links.seconds(
            "send_recv", self._builder.message_bytes(s), *groups["pp"]
        ) if layout.pp > 1 else 0.0  # fmt: skip
        times = self._pipeline(layout, stages, message_s)
        ends, busy = times
        own: list[list[int]] = [[] for _ in range(layout.pp)]
        for index, stage in enumerate(layout.stages):
            own[stage.rank].append(index)
        exposed = []
        publish = []
        for row in own:
            reduction = sum(stages[i].reduction_s for i in row)
            backward = sum(stages[i].backward_input_s + stages[i].backward_weight_s for i in row)
            overlap = self.software.overlap_gradients
            exposed.append(self._exposed(reduction, backward) if overlap else reduction)
            gather = sum(stages[i].publish_s for i in row)
            forward = sum(stages[i].forward_s for i in row)
            overlap = self.software.overlap_weights
            publish.append(self._exposed(gather, forward) if overlap else gather)
        optimizer_s = max(sum(stages[i].optimizer_s for i in row) for row in own)
        ready_s = max(end + more for end, more in zip(ends, exposed, strict=True))
        fixed_s = self.parameters["host.step_launches"] * self.parameters["stack.host_s"]
        sums_s = self._links.seconds("all_reduce", 16.0, *groups["world"])
        publish_s = max(publish)
        step_s = ready_s + optimizer_s + publish_s + fixed_s + sums_s
        rank = max(range(layout.pp), key=lambda r: busy[r])
        breakdown = self._breakdown(
            layout, [stages[i] for i in own[rank]], step_s, message_s, exposed[rank] + publish_s,
            optimizer_s, fixed_s + sums_s,
        )  # fmt: skip
        return step_s, breakdown

    def _pipeline(
        self, layout: Layout, stages: Sequence[StageTimes], message_s: float
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
            tuple(
                0.0 if a.rank == b.rank else message_s
                for a, b in zip(layout.stages, layout.stages[1:], strict=False)
            ),
        )
        times = pipeline_times(
            layout.schedule, pp=layout.pp, vpp=layout.vpp, num_micro_batches=count, seconds=seconds
        )
        return times.end_s, times.busy_s

    def _breakdown(
        self, layout: Layout, own: Sequence[StageTimes], step_s: float, message_s: float,
        dp_comm_s: float, optimizer_s: float, other_s: float,
    ) -> Breakdown:  # fmt: skip
        """The step as the busiest pipeline rank spends it; what is left is its bubble."""
        count = layout.micro_batches
        total = {"forward": 0.0, "backward": 0.0, "again": 0.0, "tp": 0.0, "cp": 0.0, "ep": 0.0}
        dp = dp_comm_s
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
                dp += scale * shards_s
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
            "other": other_s,
        }
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
