"""What a rank does besides computing its micro-batches: gradients summed, weights gathered,
updated, and brought to the host and back.

    zero 0  all_reduce(gradients)
    zero 1  reduce_scatter over the shard group, all_reduce over its replicas; all_gather(weights)
    zero 2  the reduce_scatter for each micro-batch
    zero 3  that, and the weights gathered for each pass
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.cost_models.stacks.layers import Work
from shardwright.cost_models.stacks.links import Links
from shardwright.cost_models.stacks.operations import Traffic
from shardwright.cost_models.stacks.rates import DeviceRates
from shardwright.cost_models.stacks.sharding import QUANTISED_BYTES
from shardwright.specs import Layout, ModelSpec, TrainingSpec

UPDATE_BYTES = {"adamw": 30.0, "adamw-8bit": 18.0, "adafactor": 14.0, "muon": 22.0, "sgd": 22.0}
"""Moved per parameter by a fused update with an fp32 master copy: reads of gradient (4), master (4)
and moments (two, two of one byte, rows and columns only, one, one), writes of master, moments and
the bf16 weight."""
MUON_PRODUCTS = 20.0
"""FLOPs per parameter and smaller side of a matrix: five Newton-Schulz steps of two products with a
Gram matrix each (K. Jordan 2024)."""
NORM_BYTES = 8.0
"""Clearing the gradients and reading them for their norm."""

_DENSE = ("shard", "replica", "dp")
_EXPERTS = ("expert_shard", "expert_replica", "edp")


@dataclass(frozen=True, slots=True)
class Trained:
    """Parameters that one rank trains in a virtual stage."""

    dense: float
    experts: float
    tied: float = 0.0
    """Of a tied table: this stage's copy of it, where the other end of the pipeline has one too."""


class Updates:
    """Prices one layout's sums, gathers and updates."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        layout: Layout,
        links: Links,
        rates: DeviceRates,
        parameters: Mapping[str, float],
        groups: Mapping[str, tuple[int, int]],
    ) -> None:
        dtypes = training.dtypes
        self._weight_bytes, self._gradient_bytes = dtypes.parameter_bytes, dtypes.gradient_bytes
        self._layout, self._links, self._rates = layout, links, rates
        self._parameters, self._groups = parameters, groups
        self._optimizer, self._side = training.optimizer.name, model.decoder.hidden_size
        is_quantised = training.trainable.startswith("q")
        self._frozen_bytes = QUANTISED_BYTES if is_quantised else self._weight_bytes

    def reduction_s(self, trained: Trained) -> float:
        """Bringing gradients to their sum after the last backward."""
        return sum(
            self._reduction_s(count, *names)
            for count, names in ((trained.dense, _DENSE), (trained.experts, _EXPERTS))
        )

    def _reduction_s(self, count: float, shard: str, replica: str, whole: str) -> float:
        if not count:
            return 0.0
        size, zero = count * self._gradient_bytes, self._layout.zero
        if zero == 0:
            return self._links.seconds("all_reduce", size, *self._groups[whole])
        scatter_s = 0.0
        if zero == 1:
            scatter_s = self._links.seconds("reduce_scatter", size, *self._groups[shard])
        part = size / max(1, self._groups[shard][0])
        return scatter_s + self._links.seconds("all_reduce", part, *self._groups[replica])

    def accumulation_s(self, trained: Trained) -> float:
        """Adding one micro-batch's gradients to the buffer, by kernels of their own: the gradient
        and the buffer are read, the buffer is written. Under ZeRO 2 and 3 a rank adds its shard."""
        layout, count = self._layout, trained.dense + trained.experts
        if layout.zero >= 2:
            count = trained.dense / layout.zero_shard_degree
            count += trained.experts / layout.expert_zero_shard_degree
        moved = count * (self._weight_bytes + 2 * self._gradient_bytes)
        return self._rates.traffic(Traffic(moved, 0))

    def tied_sum_s(self, trained: Trained) -> float:
        """Sum of a tied table's gradient over the first and the last stage."""
        layout = self._layout
        if not trained.tied or layout.pp == 1:
            return 0.0
        stride = (layout.pp - 1) * self._groups["pp"][1]
        return self._links.seconds("all_reduce", trained.tied * self._gradient_bytes, 2, stride)

    def publish_s(self, trained: Trained) -> float:
        """Gathering updated weights, where each pass does not gather them anyway."""
        if self._layout.zero not in (1, 2):
            return 0.0
        total_s = 0.0
        for count, name in ((trained.dense, "shard"), (trained.experts, "expert_shard")):
            size, stride = self._groups[name]
            part = count * self._weight_bytes / size
            total_s += self._links.seconds("all_gather", part, size, stride)
        return total_s

    def optimizer_s(self, trained: Trained) -> float:
        """Norm and update of the own shards, on the host where its state lives there."""
        layout, total = self._layout, trained.dense + trained.experts
        own = total
        if layout.zero:
            own = trained.dense / layout.zero_shard_degree
            own += trained.experts / layout.expert_zero_shard_degree
        normed = own if layout.zero >= 2 else total
        device_s = normed * NORM_BYTES / self._rates.memory_bytes_per_s
        if "optimizer" in layout.offload:
            moved = own * (self._gradient_bytes + self._weight_bytes)
            updated = own * self._update_bytes / self._parameters["host.memory_bytes_per_s"]
            return device_s + moved / self._parameters["host.link_bytes_per_s"] + updated
        moved = own * self._update_bytes / self._rates.memory_bytes_per_s
        products = MUON_PRODUCTS * own * self._side * (self._optimizer == "muon")
        return (device_s + moved) * self._rates.traffic_ratio + (
            products / self._rates.compute_flops_per_s
        )

    @property
    def _update_bytes(self) -> float:
        return UPDATE_BYTES[self._optimizer]

    def passing_s(self, work: Work, *, frozen: bool) -> tuple[float, float]:
        """Communication of one unit for one micro-batch beside its forward, and its backward."""
        layout = self._layout
        gather = scatter = 0.0
        if layout.zero >= 2:
            for count, name in (
                (work.parameters, "shard"),
                (work.expert_parameters, "expert_shard"),
            ):
                gathered, scattered = self._shards_s(count, name, frozen=frozen)
                gather += gathered if layout.zero == 3 else 0.0
                scatter += 0.0 if frozen else scattered
        again = gather if layout.reshard_after_forward else 0.0
        return gather + self._host_s(work), again + scatter + self._host_s(work)

    def _shards_s(self, count: float, name: str, *, frozen: bool) -> tuple[float, float]:
        size, stride = self._groups[name]
        if size == 1 or not count:
            return 0.0, 0.0
        part = count / size * (self._frozen_bytes if frozen else self._weight_bytes)
        gather_s = self._links.seconds("all_gather", part, size, stride)
        gradients = count * self._gradient_bytes
        return gather_s, self._links.seconds("reduce_scatter", gradients, size, stride)

    def _host_s(self, work: Work) -> float:
        """Activations to the host and back, weights from it: once in each pass."""
        moved = 0.0
        if "activations" in self._layout.offload:
            moved += work.saved_bytes
        if "parameters" in self._layout.offload:
            moved += (work.parameters + work.expert_parameters) * self._weight_bytes
        return moved / self._parameters["host.link_bytes_per_s"] if moved else 0.0
