"""Layouts over unequal devices: `MixedModel.predict`.

Every pipeline rank is priced by the `StackModel` of its own node group, as one of equals on such
devices, and so is its memory. On top:

* a pipeline of unequal stages runs 1F1B, and messages between groups queue for their link;
* sets of replicas with other grids, or other counts of micro-batches, exchange the sums of their
  gradients once in each step. All wait for the last of them there, and nowhere else:

    T = max_k (pipeline_k + own reduction, optimizer, publishing, fixed + exchange exposed_k)

  where set k hides what can be hidden behind its own last backward.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost_models.flops import model_flops_megatron
from shardwright.cost_models.pipeline.queued import queued_times
from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.between import Trunks
from shardwright.cost_models.stacks.links import Links, axes
from shardwright.cost_models.stacks.step import StackModel, StageTimes
from shardwright.hardware_profiles.groups import group_profile
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.specs import (
    Breakdown,
    InputError,
    Layout,
    MemoryParts,
    ModelSpec,
    Prediction,
    ScheduleName,
    SoftwareSpec,
    StageMesh,
    TrainingSpec,
)
from shardwright.specs.meshes import on_mesh, replica_sets
from shardwright.specs.prediction import MemoryVerdict

_WORST: tuple[MemoryVerdict, ...] = ("fits", "edge", "does_not_fit")


@dataclass(frozen=True, slots=True)
class SetTimes:
    """A step of one set of replicas, without what it exchanges with others."""

    own_s: float
    window_s: float
    """Of its last backward: what an exchange may hide behind."""
    busiest_rank: int
    message_s: float
    exposed_s: tuple[float, ...]
    """Of each rank's reductions and publishing."""
    optimizer_s: float
    other_s: float


class MixedModel:
    """Prices layouts with ``stage_meshes`` on a cluster of several node groups."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        profile: HardwareProfile,
        software: SoftwareSpec,
    ) -> None:
        self._model, self._profile, self.software = model, profile, software
        self.cluster = profile.devices
        self._models: dict[int, StackModel | InputError] = {}
        profiles = [group_profile(profile, index) for index in range(len(self.cluster.groups))]
        for index, one in enumerate(profiles):
            try:
                self._models[index] = stack_model(model, training, one, software)
            except InputError as error:
                self._models[index] = error
        known = {
            i: one.parameters for i, one in self._models.items() if isinstance(one, StackModel)
        }
        if not known:
            self.on_group(0)
        plain = next(iter(known.values()))
        parameters = [known.get(index, plain) for index in range(len(profiles))]
        self._links = [Links(*pair) for pair in zip(profiles, parameters, strict=True)]
        self.trunks = Trunks(self.cluster, parameters)
        self.parameters = plain

    def with_groups(self, change: Callable[[StackModel], StackModel]) -> MixedModel:
        """The same with other prices of each group."""
        found = copy.copy(self)
        found._models = {
            index: one if isinstance(one, InputError) else change(one)
            for index, one in self._models.items()
        }
        return found

    def on_group(self, index: int) -> StackModel:
        """The prices of one group; raises `InputError` where its devices have no rate."""
        found = self._models[index]
        if isinstance(found, InputError):
            raise found
        return found

    def has_rates(self, index: int) -> bool:
        """Whether the devices of a group compute in the training's precision."""
        return isinstance(self._models[index], StackModel)

    def group_of(self, mesh: StageMesh) -> int:
        """The node group that a pipeline rank is on."""
        return self.cluster.group_index_of(mesh.ranks[0])

    def predict(self, layout: Layout) -> Prediction:
        """Step time with its breakdown, and memory by pipeline rank.

        Raises:
            InputError: schedules other than 1F1B, or a group whose devices have no rate.
        """
        parts, times, shown = self._sets_of(layout)
        steps = [one.own_s + more for one, more in zip(times, shown, strict=True)]
        step_s = max(steps)
        slowest = steps.index(step_s)
        breakdown = self._breakdown(
            parts[slowest], times[slowest], times[slowest].busiest_rank, step_s, shown[slowest]
        )
        return self._prediction(layout, parts, step_s, breakdown)

    def rank_breakdowns(self, layout: Layout) -> tuple[Breakdown, ...]:
        """The step as each pipeline rank of each set of replicas spends it."""
        parts, times, shown = self._sets_of(layout)
        step_s = max(one.own_s + more for one, more in zip(times, shown, strict=True))
        return tuple(
            self._breakdown(part, one, rank, step_s, more)
            for part, one, more in zip(parts, times, shown, strict=True)
            for rank in range(part.pp)
        )

    # Time

    def _sets_of(self, layout: Layout) -> tuple[tuple[Layout, ...], list[SetTimes], list[float]]:
        """The sets of replicas, their steps, and what shows of the exchange between them."""
        parts = replica_sets(layout)
        for part in parts:
            _check_schedule(part)
        times = [self._set_of(part) for part in parts]
        exchange_s = self.exchange_s(layout)
        return parts, times, [self.exposed(exchange_s, one.window_s) for one in times]

    def exposed(self, communication_s: float, window_s: float) -> float:
        """What shows of communication beside so much computation."""
        hidden = self.parameters["stack.hidden_fraction"]
        return communication_s - hidden * min(communication_s, window_s)

    def stages_of(self, part: Layout) -> list[StageTimes]:
        """Each stage of a set of replicas on its own devices."""
        assert part.stage_meshes is not None
        known: dict[tuple[int, Layout], tuple[StageTimes, ...]] = {}
        found = []
        for index, mesh in enumerate(part.stage_meshes):
            group, plain = self.group_of(mesh), on_mesh(part, mesh)
            key = (group, plain)
            if key not in known:
                known[key] = self.on_group(group).stage_times(plain)
            found.append(known[key][index])
        return found

    def _set_of(self, part: Layout) -> SetTimes:
        assert part.stage_meshes is not None
        stages, messages_s = self.stages_of(part), self.messages_s(part)
        tied_s = self.tied_sum_s(part, stages[-1])
        return self.set_times(stages, messages_s, part.micro_batches, tied_s, self.fixed_s(part))

    def set_times(
        self,
        stages: Sequence[StageTimes],
        messages_s: Sequence[float],
        num_micro_batches: int,
        tied_s: float,
        fixed_s: float,
    ) -> SetTimes:
        """The step of one set of replicas from the prices of its stages and links."""
        software = self.software
        forward_s = [one.forward_s for one in stages]
        backward_s = [one.backward_input_s + one.backward_weight_s for one in stages]
        links_s = list(messages_s)
        if not software.overlap_messages:
            # Stages wait while their messages are on the wire.
            forward_s = [f + m for f, m in zip(forward_s, [*links_s, 0.0], strict=True)]
            backward_s = [b + m for b, m in zip(backward_s, [0.0, *links_s], strict=True)]
            links_s = [0.0] * len(links_s)
        times = queued_times(forward_s, backward_s, links_s, num_micro_batches)
        reduction_s, publish_s = [], []
        for one in stages:
            back_s = one.backward_input_s + one.backward_weight_s
            hidden_s = back_s if software.overlap_gradients else 0.0
            reduction_s.append(self.exposed(one.reduction_s, hidden_s))
            hidden_s = one.forward_s if software.overlap_weights else 0.0
            publish_s.append(self.exposed(one.publish_s, hidden_s))
        ready = [end + more for end, more in zip(times.end_s, reduction_s, strict=True)]
        ready_s = max(ready)
        if tied_s:
            ready_s = max(ready_s, max(ready[0], ready[-1]) + tied_s)
        optimizer_s = max(one.optimizer_s for one in stages)
        last_s = [one.backward_input_s + one.backward_weight_s for one in stages]
        rank = max(range(len(stages)), key=lambda r: times.busy_s[r])
        return SetTimes(
            own_s=ready_s + optimizer_s + max(publish_s) + fixed_s,
            window_s=min(last_s) if software.overlap_gradients else 0.0,
            busiest_rank=rank,
            message_s=max(messages_s, default=0.0),
            exposed_s=tuple(one + max(publish_s) for one in reduction_s),
            optimizer_s=optimizer_s,
            other_s=fixed_s,
        )

    def fixed_s(self, part: Layout) -> float:
        """Once per step whatever the sizes: the host's own work, and sums of a few numbers."""
        assert part.stage_meshes is not None
        found = 0.0
        groups = {self.group_of(mesh) for mesh in part.stage_meshes}
        for mesh in part.stage_meshes:
            group = self.group_of(mesh)
            values = self.on_group(group).parameters
            host_s = values["host.step_launches"] * values["stack.host_s"]
            world = axes(on_mesh(part, mesh))["world"]
            found = max(found, host_s + self._links[group].seconds("all_reduce", 16.0, *world))
        return found + 2 * self.trunks.latency_s * (len(groups) > 1)

    def messages_s(self, part: Layout) -> list[float]:
        """Of each boundary between pipeline ranks: inside a group, or across."""
        meshes = part.stage_meshes
        assert meshes is not None
        groups = [self.group_of(mesh) for mesh in meshes]
        pairs = [pair for pair in itertools.pairwise(groups) if pair[0] != pair[1]]
        crossed = [group for pair in pairs for group in pair]
        found = []
        for index in range(len(meshes) - 1):
            source, target = groups[index], groups[index + 1]
            if source == target:
                found.append(self._message_s(part, index, source))
                continue
            crossings = max(crossed.count(source), crossed.count(target))
            found.append(self._crossing_s(part, index, crossings))
        return found

    def _message_s(self, part: Layout, index: int, group: int) -> float:
        assert part.stage_meshes is not None
        one, other = part.stage_meshes[index : index + 2]
        plain, first = on_mesh(part, one), self.cluster.ranks_of(group)[0]
        size, stride = self.on_group(group).message_bytes(plain), axes(plain)["pp"][1]
        places = [(mesh.ranks[0] - first) // stride for mesh in (one, other)]
        return self._links[group].message_s(size, places[0], places[1], stride)

    def _crossing_s(self, part: Layout, index: int, num_crossings: int) -> float:
        """The hidden states of all replicas, each once, handed out where they arrive."""
        assert part.stage_meshes is not None
        one, other = part.stage_meshes[index : index + 2]
        source, target = self.group_of(one), self.group_of(other)
        plain = on_mesh(part, one.model_copy(update={"tp": 1, "ep": 1, "etp": 1}))
        whole = self.on_group(source).message_bytes(plain)
        counts = {source: len(one.ranks), target: len(other.ranks)}
        seconds = self.trunks.message_s(whole * one.dp * one.cp, counts, num_crossings)
        if other.tp > 1 and not part.sequence_parallel:
            seconds += self._links[target].seconds("all_gather", whole / other.tp, other.tp, 1)
        return seconds

    def tied_sum_s(self, part: Layout, last: StageTimes) -> float:
        """Sum of a tied table's gradient over the first and the last stage."""
        meshes = part.stage_meshes
        assert meshes is not None
        if not last.tied_sum_s or self.group_of(meshes[0]) == self.group_of(meshes[-1]):
            return last.tied_sum_s
        mesh, group = meshes[-1], self.group_of(meshes[-1])
        pricer = self.on_group(group)
        tied = pricer.trained(on_mesh(part, mesh))[-1].tied
        size = tied * pricer.training.dtypes.gradient_bytes * mesh.tp * mesh.dp
        counts = {self.group_of(one): len(one.ranks) for one in (meshes[0], mesh)}
        return self.trunks.exchange_s(size, counts, 2)

    def exchange_s(self, layout: Layout) -> float:
        """Summing the gradients of all sets of replicas; 0 where there is one."""
        parts = replica_sets(layout)
        if len(parts) == 1:
            return 0.0
        assert layout.stage_meshes is not None
        counts: dict[int, int] = {}
        for mesh in layout.stage_meshes:
            group = self.group_of(mesh)
            counts[group] = counts.get(group, 0) + len(mesh.ranks)
        return self.exchange_over_s(counts, len(parts))

    def exchange_over_s(self, counts: Mapping[int, int], num_sets: int) -> float:
        """The same from the devices in use of each group."""
        pricer = self.on_group(next(iter(counts)))
        trained = pricer.trained(Layout.of(self._model, pricer.training))
        size = sum(one.dense + one.experts for one in trained)
        size *= pricer.training.dtypes.gradient_bytes
        return self.trunks.exchange_s(size, counts, num_sets)

    def _breakdown(
        self, part: Layout, times: SetTimes, rank: int, step_s: float, exchanged_s: float
    ) -> Breakdown:
        """The whole step as one pipeline rank of a set of replicas spends it."""
        assert part.stage_meshes is not None
        mesh = part.stage_meshes[rank]
        return self.on_group(self.group_of(mesh)).breakdown(
            on_mesh(part, mesh), [self.stages_of(part)[rank]], step_s, times.message_s,
            times.exposed_s[rank] + exchanged_s, times.optimizer_s, times.other_s,
        )  # fmt: skip

    # Memory

    def memory(self, part: Layout) -> tuple[tuple[MemoryParts, ...], MemoryVerdict]:
        """The peak of each pipeline rank of a set of replicas, and the worst verdict."""
        assert part.stage_meshes is not None
        known: dict[tuple[int, Layout], tuple[MemoryParts, ...]] = {}
        found, worst = [], 0
        for rank, mesh in enumerate(part.stage_meshes):
            group, plain = self.group_of(mesh), on_mesh(part, mesh)
            pricer = self.on_group(group)
            if (group, plain) not in known:
                known[group, plain] = pricer.memory(plain)
            own = known[group, plain][rank]
            worst = max(worst, _WORST.index(pricer.verdict([own])))
            found.append(own)
        return tuple(found), _WORST[worst]

    # The answer

    def _prediction(
        self, layout: Layout, parts: Sequence[Layout], step_s: float, breakdown: Breakdown
    ) -> Prediction:
        assert layout.stage_meshes is not None
        memory: list[MemoryParts] = []
        worst = 0
        for part in parts:
            own, verdict = self.memory(part)
            memory += own
            worst = max(worst, _WORST.index(verdict))
        groups = [self.group_of(mesh) for mesh in layout.stage_meshes]
        pricers = [self.on_group(group) for group in groups]
        peaks = tuple(one.total_bytes for one in memory)
        capacities = tuple(pricer.capacity_bytes for pricer in pricers)
        fullest = max(range(len(peaks)), key=lambda rank: peaks[rank] / capacities[rank])
        tokens_per_s = pricers[0].training.tokens_per_step / step_s
        low = min(pricer.parameters.get("band.low_ratio", 1.0) for pricer in pricers)
        high = max(pricer.parameters.get("band.high_ratio", 1.0) for pricer in pricers)
        return Prediction(
            step_time_s=step_s,
            step_time_band_s=(step_s * low, step_s * high),
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / layout.world,
            mfu=self._mfu(layout, groups, step_s),
            bubble_fraction=breakdown.bubble / step_s,
            peak_memory_bytes=peaks,
            memory_capacity_bytes=capacities[fullest],
            memory_verdict=_WORST[worst],
            breakdown=breakdown,
            memory=tuple(memory),
            rank_capacity_bytes=capacities if len(set(capacities)) > 1 else None,
        )

    def _mfu(self, layout: Layout, groups: Sequence[int], step_s: float) -> float | None:
        assert layout.stage_meshes is not None
        training, peak = self.on_group(groups[0]).training, 0.0
        for mesh, group in zip(layout.stage_meshes, groups, strict=True):
            rates = self.cluster.groups[group].accelerator.peak_flops_per_s
            if training.dtypes.matmul not in rates:
                return None
            peak += len(mesh.ranks) * rates[training.dtypes.matmul]
        return model_flops_megatron(self._model, training) / (step_s * peak)


def _check_schedule(part: Layout) -> None:
    """Refuse what is not priced over unequal devices; raises `InputError`."""
    usual = (None, ScheduleName.ONE_F_ONE_B)
    if part.vpp == 1 and part.schedule in usual:
        return
    raise InputError(
        f"{part.schedule} with vpp = {part.vpp} cannot be priced over several node groups",
        why="pipelines over unequal devices run 1f1b with one stage per rank",
        fix="set vpp = 1 and schedule 1f1b, or use the devices of one group alone",
    )
