"""What a rank keeps of a unit under ZeRO, and the collectives and passes over it that a step makes.

The architecture's table *Units* in numbers; `shardwright.runtime.sharding` does what is said here.
A flat buffer is padded to a multiple of the shard degree d; where d is 1 nothing is sharded. An
embedding whose only weight is tied is a unit without parameters, for which nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.cost_models.blocks.operations import Collective, CollectiveKind, Elementwise
from shardwright.cost_models.groups import GroupName
from shardwright.specs import Layout, PrecisionDTypes


@dataclass(frozen=True, slots=True)
class UnitShards:
    """One unit on one rank."""

    numel: int
    """Elements of its parameters on this tensor-parallel rank."""
    replicated_numel: int
    """Elements whose gradients are summed over tp first."""
    degree: int
    zero: int
    dtypes: PrecisionDTypes

    @classmethod
    def of(
        cls, layout: Layout, dtypes: PrecisionDTypes, numel: int, replicated_numel: int
    ) -> UnitShards:
        """The shards of a unit with that many elements under a layout."""
        return cls(numel, replicated_numel, layout.zero_shard_degree, layout.zero, dtypes)

    @property
    def shard_numel(self) -> int:
        """Elements of one slice, padding included."""
        return -(-self.numel // self.degree)

    @property
    def padded_numel(self) -> int:
        return self.shard_numel * self.degree

    @property
    def shards_weights(self) -> bool:
        return self.zero == 3 and self.degree > 1 and self.numel > 0

    @property
    def shards_gradients(self) -> bool:
        return self.zero >= 2 and self.degree > 1 and self.numel > 0

    # Bytes

    @property
    def full_weight_bytes(self) -> int:
        return self.padded_numel * self.dtypes.parameter_bytes

    @property
    def weight_bytes(self) -> int:
        """Kept between uses."""
        numel = self.shard_numel if self.shards_weights else self.padded_numel
        return numel * self.dtypes.parameter_bytes

    @property
    def gradient_bytes(self) -> int:
        """Kept over the step."""
        numel = self.shard_numel if self.shards_gradients else self.padded_numel
        return numel * self.dtypes.gradient_bytes

    @property
    def optimizer_bytes(self) -> int:
        """Master copy and two moments, of the own slice."""
        return self.shard_numel * (self.dtypes.master_bytes + 2 * self.dtypes.moment_bytes)

    @property
    def gathered_bytes(self) -> int:
        """Beside the own slice while the unit runs (ZeRO 3)."""
        return self.full_weight_bytes if self.shards_weights else 0

    @property
    def arriving_bytes(self) -> int:
        """Full gradients of the micro-batch whose backward runs (ZeRO 2 and 3)."""
        return self.padded_numel * self.dtypes.gradient_bytes if self.shards_gradients else 0

    # Collectives, each with its group

    def gathering(self) -> Iterator[tuple[Collective, GroupName]]:
        """Before each forward and each backward (ZeRO 3)."""
        if self.shards_weights:
            yield self._weights("gather_weights")

    def scattering(self) -> Iterator[tuple[Collective, GroupName]]:
        """After each micro-batch's backward (ZeRO 2 and 3)."""
        if self.shards_gradients:
            yield from self._tp_sum()
            yield self._scatter()

    def reduction(self) -> Iterator[tuple[Collective, GroupName]]:
        """After the step's last backward; groups of one rank cost nothing."""
        if not self.numel:
            return
        if not self.shards_gradients:
            yield from self._tp_sum()
            if self.degree > 1:
                yield self._scatter()
        yield self._gradients("sum_replicas", "all_reduce", self.shard_numel), "replica"

    def publishing(self) -> Iterator[tuple[Collective, GroupName]]:
        """After the update (ZeRO 1 and 2)."""
        if self.numel and self.degree > 1 and not self.shards_weights:
            yield self._weights("publish_weights")

    def tied_sum(self) -> Iterator[tuple[Collective, GroupName]]:
        """Over the first and last stage, of a tied weight's reduced gradient."""
        yield self._gradients("sum_tied", "all_reduce", self.shard_numel), "embedding"

    def _weights(self, name: str) -> tuple[Collective, GroupName]:
        size = self.shard_numel * self.dtypes.parameter_bytes
        return Collective(name, "all_gather", "dp", size, self.dtypes.parameter), "shard"

    def _scatter(self) -> tuple[Collective, GroupName]:
        gradients = self._gradients("scatter_gradients", "reduce_scatter", self.padded_numel)
        return gradients, "shard"

    def _tp_sum(self) -> Iterator[tuple[Collective, GroupName]]:
        if self.replicated_numel:
            yield self._gradients("sum_replicated", "all_reduce", self.replicated_numel), "tp"

    def _gradients(self, name: str, kind: CollectiveKind, numel: int) -> Collective:
        size = numel * self.dtypes.gradient_bytes
        return Collective(name, kind, "dp", size, self.dtypes.gradient)

    # Passes over the own slice

    def norm(self) -> Elementwise:
        """Squares of the own gradients, read once."""
        size = self.shard_numel * self.dtypes.gradient_bytes
        return Elementwise("grad_norm", size, self.dtypes.gradient)

    def update(self, *, clips: bool) -> Iterator[Elementwise]:
        """Clearing the gradients, clipping them, AdamW, casting the master copy."""
        dtypes, numel = self.dtypes, self.shard_numel
        yield Elementwise("zero_gradients", self.gradient_bytes, dtypes.gradient)
        own_gradients = numel * dtypes.gradient_bytes
        if clips:
            yield Elementwise("scale_gradients", 2 * own_gradients, dtypes.gradient)
        updated = dtypes.parameter if dtypes.master is None else dtypes.master
        updated_bytes = dtypes.parameter_bytes if dtypes.master is None else dtypes.master_bytes
        state_bytes = numel * (updated_bytes + 2 * dtypes.moment_bytes)
        yield Elementwise("adamw", own_gradients + 2 * state_bytes, updated)
        if dtypes.master is not None:
            cast = numel * (dtypes.master_bytes + dtypes.parameter_bytes)
            yield Elementwise("cast", cast, dtypes.parameter)
