"""`StepPricer`: the cost model as the search needs it, bounds of single units included.

Every number comes from the code that prices whole layouts (`cost_models.units`, `.shards`,
`.step`), called for one unit at a time; nothing is priced here a second time in another way. Where
pipeline ranks differ (their groups lie otherwise in the cluster, they share cores with others), a
unit takes the least of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost_models.blocks.stage import UnitBooks
from shardwright.cost_models.compute import ComputeModel
from shardwright.cost_models.groups import GroupPrices
from shardwright.cost_models.job_books import TIED_UNIT
from shardwright.cost_models.memory import num_groups
from shardwright.cost_models.pipeline.makespan import SharedCores
from shardwright.cost_models.step import StepModel
from shardwright.cost_models.units import UnitPricer
from shardwright.planner.bounds import Floats, UnitBytes, UnitSeconds
from shardwright.planner.choices import Choices
from shardwright.planner.layouts import even_boundaries
from shardwright.planner.problem import Problem
from shardwright.specs import LayerBlock, Layout, ModelSpec, Prediction

Unit = tuple[tuple[UnitBooks, ...], ...]
"""A unit's parts (a tied weight is one of its own), each as its books on every tensor-parallel
rank that differs."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """What choices with one grid and one ZeRO stage have in common."""

    layout: Layout
    groups: GroupPrices
    levels: tuple[int, ...]
    """Numbers of busy ranks of a node at which work is priced."""
    possible_levels: tuple[int, ...]
    """Indices of those levels at which a stage of this grid may compute."""
    num_shared_nodes: int
    """Over which the ranks' work is spread where pipeline ranks share cores; 0 where none do."""
    pp_ranks: tuple[int, ...]
    """One of each kind of pipeline rank, by what its groups cost."""
    crossings: tuple[int, ...]
    """For each stage but the last, the first whose messages to the next cost the same."""
    fixed_s: float
    """What every step pays once: counts, the norm, barriers."""
    fixed_bytes: float
    """Communicators' buffers, less a byte for rounding."""


@dataclass(frozen=True, slots=True)
class _LeastSeconds:
    """A distinct unit's least costs over the pipeline ranks that may hold it."""

    forward_s: float
    backward_s: float
    reduction_s: float
    optimizer_s: float
    shared_s: float
    """Of one forward and backward: seconds of a node, were its ranks to share it fairly."""


class StepPricer:
    """A `planner.bounds.Pricer` over `StepModel`."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        model, training, software = problem.model, problem.training, problem.software
        self._step = StepModel(model, training, problem.profile, software)
        layers = list(model.decoder.layers())
        kinds = list(dict.fromkeys(layers))
        self._brief = replace(problem, model=_with_layers(model, kinds))
        self._kinds = np.array([0, *(1 + kinds.index(layer) for layer in layers), 1 + len(kinds)])
        self._pricer = UnitPricer(
            self._brief.model, training, ComputeModel(problem.profile, software), software
        )
        self._parameters = {p.name: p.value for p in problem.profile.parameters}
        self._margin = 1 + self._parameters.get("memory.fragmentation_fraction", 0.0)
        self._grids: dict[tuple[int, ...], _Grid] = {}
        self._units: dict[tuple[object, ...], tuple[Unit, ...]] = {}
        self._seconds: dict[tuple[int, ...], UnitSeconds] = {}
        self._bytes: dict[tuple[int, ...], UnitBytes] = {}
        self._state: dict[tuple[int, ...], Floats] = {}

    @property
    def capacity_bytes(self) -> int:
        """Usable memory of the smallest device."""
        return self._step.capacity_bytes

    def predict(self, layout: Layout) -> Prediction:
        """The simulated step."""
        return self._step.predict(layout)

    def unit_seconds(self, choices: Choices) -> UnitSeconds:
        """Lower bounds on the time of every unit; both schedules have the same."""
        key = _without_schedule(choices)
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = self._unit_seconds(choices)
        return found

    def _unit_seconds(self, choices: Choices) -> UnitSeconds:
        grid, units = self._grid(choices), self._model_units(choices)
        last = len(units) - 1
        ends = {0: (0,), last: (choices.pp - 1,)}
        costs = [
            self._least(unit, grid, ends.get(index, grid.pp_ranks))
            for index, unit in enumerate(units)
        ]
        crossing_s = self._crossing_s(choices, grid)
        shared = self._spread(cost.shared_s for cost in costs).sum()
        ranks = grid.layout.world_size.ranks_per_stage * choices.num_microbatches
        nodes = grid.num_shared_nodes
        return UnitSeconds(
            forward_s=self._spread(cost.forward_s for cost in costs),
            backward_s=self._spread(cost.backward_s for cost in costs),
            receive_forward_s=np.array([0.0, *crossing_s]),
            receive_backward_s=np.array([*crossing_s, 0.0]),
            reduction_s=self._spread(cost.reduction_s for cost in costs),
            tied_sum_s=self._tied_sum_s(grid, units),
            optimizer_s=self._spread(cost.optimizer_s for cost in costs),
            fixed_s=grid.fixed_s,
            shared_work_s=float(shared) * ranks / nodes if nodes else 0.0,
        )

    def unit_bytes(self, choices: Choices) -> UnitBytes:
        """Lower bounds on the memory of every unit, on the first tensor-parallel rank."""
        key = _without_schedule(choices)
        found = self._bytes.get(key)
        if found is None:
            found = self._bytes[key] = self._unit_bytes(choices)
        return found

    def _unit_bytes(self, choices: Choices) -> UnitBytes:
        grid, units = self._grid(choices), self._model_units(choices)
        parts = [list(self._part_bytes(grid.layout, unit)) for unit in units]
        return UnitBytes(
            state=self.state_bytes(choices),
            saved=self._margin * self._spread(sum(saved for saved, _ in unit) for unit in parts),
            peak=self._margin * self._spread(max(peak for _, peak in unit) for unit in parts),
            hidden=self._margin * self._hidden_bytes(choices),
            fixed=grid.fixed_bytes,
        )

    def state_bytes(self, choices: Choices) -> Floats:
        """The state of every unit: neither micro-batches nor what is recomputed change it."""
        key = (choices.tp, choices.pp > 1, choices.dp, choices.zero)
        found = self._state.get(key)
        if found is None:
            plain = replace(choices, micro_batch=1, sequence_parallel=False, recompute="none")
            units, layout = self._model_units(plain), self._grid(choices).layout
            found = self._state[key] = self._margin * self._spread(
                sum(self._state_bytes(layout, ranks[0]) for ranks in unit) for unit in units
            )
        return found

    # Layouts to ask the cost model about

    def _grid(self, choices: Choices) -> _Grid:
        key = (choices.tp, choices.pp, choices.dp, choices.zero)
        if key not in self._grids:
            self._grids[key] = self._make_grid(choices)
        return self._grids[key]

    def _make_grid(self, choices: Choices) -> _Grid:
        layout = choices.layout(self._problem, even_boundaries(self._problem, choices.pp))
        groups = self._step.groups(layout)
        shared = self._step.shared_cores(layout)
        kinds = _alike([groups.key(rank) for rank in range(layout.pp)])
        levels = (groups.ranks_per_node,) if shared is None else shared.levels
        coupled = shared is not None and shared.is_coupled
        return _Grid(
            layout=layout,
            groups=groups,
            levels=levels,
            possible_levels=_possible_levels(shared, layout.pp),
            num_shared_nodes=-(-layout.world // levels[-1]) if coupled else 0,
            pp_ranks=tuple(sorted(set(kinds))),
            crossings=_alike([groups.paths("next", rank) for rank in range(layout.pp - 1)]),
            fixed_s=self._step.fixed_s(layout),
            fixed_bytes=self._fixed_bytes(layout),
        )

    def _model_units(self, choices: Choices) -> tuple[Unit, ...]:
        """The embedding, each kind of layer, the head."""
        key = (
            choices.tp, choices.micro_batch, choices.sequence_parallel, choices.recompute,
            choices.pp > 1,
        )  # fmt: skip
        if key not in self._units:
            # One stage or two: books of embedding and head depend on whether both are on one stage,
            # and on no other boundary.
            piped = choices.pp > 1
            whole = replace(choices, pp=1 + piped).layout(
                self._brief, (self._brief.num_layers,) * piped
            )
            stages = [self._pricer.books(whole, stage) for stage in range(whole.pp)]
            parts = [
                part
                for books in stages
                for part in zip(*(rank.units for rank in books), strict=True)
            ]
            self._units[key] = _units_of_parts(parts, self._brief.num_layers)
        return self._units[key]

    def _spread(self, values: Iterable[float]) -> Floats:
        """A value of each distinct unit as an array over all units of the model."""
        spread: Floats = np.array(list(values), dtype=np.float64)[self._kinds]
        return spread

    # Seconds

    def _least(self, unit: Unit, grid: _Grid, pp_ranks: Sequence[int]) -> _LeastSeconds:
        ranks = [
            [
                self._pricer.unit_costs(grid.layout, part, rank, grid.groups, grid.levels)
                for part in unit
            ]
            for rank in pp_ranks
        ]
        levels = range(len(grid.levels))
        forward_s = [
            min(sum(part.forward[at].total_s for part in parts) for parts in ranks) for at in levels
        ]
        backward_s = [
            min(sum(part.backward[at].total_s for part in parts) for parts in ranks)
            for at in levels
        ]
        return _LeastSeconds(
            forward_s=min(forward_s[at] for at in grid.possible_levels),
            backward_s=min(backward_s[at] for at in grid.possible_levels),
            reduction_s=min(sum(p.reduction_s + p.norm_s for p in parts) for parts in ranks),
            optimizer_s=min(sum(p.update_s + p.publish_s for p in parts) for parts in ranks),
            shared_s=_node_share_s(forward_s, grid.levels) + _node_share_s(backward_s, grid.levels),
        )

    def _crossing_s(self, choices: Choices, grid: _Grid) -> list[float]:
        """One message between each stage and the next."""
        hidden_bytes = self._hidden_bytes(choices)
        seconds = {
            stage: self._pricer.message_s(hidden_bytes, grid.layout, stage, grid.groups)
            for stage in set(grid.crossings)
        }
        return [seconds[stage] for stage in grid.crossings]

    def _tied_sum_s(self, grid: _Grid, units: Sequence[Unit]) -> float:
        tied = next((part[0] for part in units[0] if part[0].name == TIED_UNIT), None)
        if tied is None or grid.layout.pp == 1:
            return 0.0
        calls = self._pricer.shards(grid.layout, tied).tied_sum()
        return sum(grid.groups.seconds(call, group, 0) for call, group in calls)

    # Bytes

    def _state_bytes(self, layout: Layout, books: UnitBooks) -> int:
        shards = self._pricer.shards(layout, books)
        return shards.weight_bytes + shards.gradient_bytes + shards.optimizer_bytes

    def _part_bytes(self, layout: Layout, unit: Unit) -> Iterator[tuple[int, int]]:
        """(saved, peak) of each part."""
        for ranks in unit:
            books = ranks[0]
            shards = self._pricer.shards(layout, books)
            backward = books.saved_bytes + books.backward_peak_bytes() + shards.arriving_bytes
            own_peak = max(books.forward_peak_bytes, backward) if books.blocks else 0
            yield books.saved_bytes, own_peak + shards.gathered_bytes

    def _hidden_bytes(self, choices: Choices) -> int:
        """Of one micro-batch: what the embedding hands on."""
        return self._model_units(choices)[0][-1][0].output_bytes

    def _fixed_bytes(self, layout: Layout) -> float:
        groups = num_groups(layout)
        first, further = (
            self._parameters.get(f"memory.{which}_bytes", 0.0)
            for which in ("first_communicator", "communicator")
        )
        return first + (groups - 1) * further - 1 if groups else 0.0


def _without_schedule(choices: Choices) -> tuple[int, ...]:
    """What equal choices but for the schedule have in common."""
    return choices.key[:-1]


def _alike(values: Sequence[Hashable]) -> tuple[int, ...]:
    """For each value the index of the first that equals it."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(value, index) for index, value in enumerate(values))


def _with_layers(model: ModelSpec, layers: Sequence[LayerBlock]) -> ModelSpec:
    """The model with these layers instead of its own."""
    first, *rest = (b for b in model.decoder.blocks if not isinstance(b, LayerBlock))
    decoder = model.decoder.model_copy(update={"blocks": (first, *layers, *rest)})
    return model.model_copy(update={"towers": (*model.towers[:-1], decoder)})


def _units_of_parts(parts: Sequence[tuple[UnitBooks, ...]], num_layers: int) -> tuple[Unit, ...]:
    """A tied weight goes with the embedding, and with the head where that is on another stage."""
    first = 1 + next(index for index, part in enumerate(parts) if part[0].name == "embedding")
    layers = parts[first : first + num_layers]
    return (tuple(parts[:first]), *((part,) for part in layers), tuple(parts[first + num_layers :]))


def _possible_levels(shared: SharedCores | None, pp: int) -> tuple[int, ...]:
    """Indices of the levels of business at which some stage may compute."""
    if shared is None:
        return (0,)
    if not shared.is_coupled:
        return tuple(sorted(set(shared.level_indices([True] * pp))))
    alone = min(
        shared.level_indices([rank == busy for rank in range(pp)])[busy] for busy in range(pp)
    )
    return tuple(range(alone, len(shared.levels)))


def _node_share_s(seconds: Sequence[float], levels: Sequence[int]) -> float:
    """What a computation uses up of its node at its most efficient sharing, in node-seconds.

    While b ranks of a node are busy, each advances by 1 / d(b) of its computation per second, and
    uses up (1 / d(b)) min over b' of d(b') / b' <= 1 / b of the node: together no more than all of
    it. So no schedule finishes before the sum over all computations has passed.
    """
    return min(taken / level for taken, level in zip(seconds, levels, strict=True))
