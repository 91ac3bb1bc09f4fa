"""Which layouts there are on a software stack, exactly how many, and which obey the rules.

The space is a product over grids (every tp x cp x pp x dp that uses the whole world and every
micro-batch that divides the global batch), cuts (sequence parallelism, the kind of context
parallelism, every ep that divides the experts, every etp that divides tp), states (ZeRO stage and
how many copies share a shard, what is offloaded, the order of ranks) and pipelines (schedule and
vpp). Rules depend on few of these at a time, so that products are counted without being listed.
Where stages start, what each recomputes and in how many chunks the loss is made is not counted: of
every layout they are chosen as the best (`partition`, `interleaving`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

from shardwright.planner.bounds_text import bounds_in_words, nothing_between
from shardwright.planner.layout_text import (
    CP_KINDS,
    DEGREES,
    MODULES,
    RANK_ORDERS,
    SHARD_DEGREES,
    normalise_choices,
    unknown_name,
)
from shardwright.planner.layout_text import SCHEDULES as ALL_SCHEDULES
from shardwright.planner.layouts import boundaries_of, layout_of
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.planner.stacks.choices import Cut, Grid, Pipeline, State
from shardwright.specs import HeadBlock, InputError, ScheduleName, Violation
from shardwright.specs.layout import is_too_long, vpp_problems
from shardwright.specs.rules import num_experts_of, recompute_modules_of
from shardwright.specs.world import dense_grids, divisors

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipev")
"""GPipe is searched only where it is fixed: 1F1B has its bubble and needs less memory."""
CHEAP_MODULES = ("norm", "mlp_act", "moe_act", "mla_up_proj")
"""Recomputed together as one policy: little work for many bytes (Korthikanti et al. 2022,
DeepSeek-V3)."""
MOST_GRIDS = 100_000
"""Grids times sizes of micro-batches that are searched."""
OFFLOADS = ("none", "optimizer")
"""Weights and activations are offloaded only where that is fixed: ZeRO 3 shards weights over faster
links, and whether hosts have room for activations is not in the books."""
FEW_SPLITS, FEW_INTERLEAVED = 1000, 256
"""So many ways to split a model over ranks of one stage, and of several, are all looked at: two
that differ little in their bound differ little in their step."""
LOSS_CHUNKS = (1, 2, 4, 8, 16)
"""More chunks take no longer under the model, so that the fewest that fit are best."""

T = TypeVar("T", bound=ChoiceValue)
Test = Callable[[ChoiceValue], bool]


def _is(unwanted: ChoiceValue, given: ChoiceValue) -> bool:
    return given == unwanted


def _is_not(plain: ChoiceValue, given: ChoiceValue) -> bool:
    return given != plain


def _begins(start: str, given: ChoiceValue) -> bool:
    return str(given).startswith(start)


def _recomputes(module: str, given: ChoiceValue) -> bool:
    return module in str(given).partition(":")[2].split("+")


_UNEVEN = "uneven"
_PLAIN: dict[str, ChoiceValue] = {
    **dict.fromkeys(DEGREES, 1), "sequence_parallel": False, "recompute": "none", "zero": 0,
    "offload": "none", "compile": False, "loss_chunks": 1,
}  # fmt: skip


FORBIDDABLE: dict[str, tuple[str, Test]] = {
    **{name: (name, partial(_is_not, plain)) for name, plain in _PLAIN.items()},
    "sp": ("sequence_parallel", partial(_is, True)),
    **{f"zero{zero}": ("zero", partial(_is, zero)) for zero in range(4)},
    **{name: ("schedule", partial(_is, name)) for name in ALL_SCHEDULES},
    **{name: ("cp_kind", partial(_is, name)) for name in CP_KINDS},
    "selective": ("recompute", partial(_begins, "selective")),
    "partial_recompute": ("recompute", partial(_begins, "full:")),
    **{name: ("recompute", partial(_recomputes, name)) for name in MODULES},
    "uneven_stages": ("stages", partial(_is, _UNEVEN)),
}
"""What can be forbidden by name: the choice, and which of its values go."""


@dataclass(frozen=True)
class StackSpace:
    """The layouts of a problem that its constraints leave open.

    Raises:
        InputError: on first use of what depends on it, a constraint that names nothing, or
            constraints that leave no layout at all.
    """

    problem: Problem
    constraints: Constraints

    # What is open

    @cached_property
    def fixed(self) -> dict[str, ChoiceValue]:
        """What the user fixed, without ``stages``."""
        fixed = normalise_choices(self.constraints.fixed)
        fixed.pop("stages", None)
        return fixed

    @cached_property
    def fixed_boundaries(self) -> tuple[int, ...] | None:
        """The boundaries that the user fixed, if any."""
        stops = normalise_choices(self.constraints.fixed).get("stages")
        return boundaries_of(stops, self.problem) if isinstance(stops, tuple) else None

    @cached_property
    def has_even_stages(self) -> bool:
        """Whether every stage must have as many layers, unless boundaries are fixed."""
        return self.fixed_boundaries is None and not self.allowed("stages", [_UNEVEN])

    def boundaries(self, num_stages: int) -> tuple[int, ...] | None:
        """The layers at which stages 1, 2, ... start where that is not open."""
        if not self.has_even_stages:
            return self.fixed_boundaries
        each = self.problem.num_layers // num_stages
        return tuple(each * stage for stage in range(1, num_stages))

    @cached_property
    def may_be_partial(self) -> bool:
        """Whether some layers of a stage may be recomputed in full and others not."""
        return "recompute" not in self.fixed and bool(self.allowed("recompute", ["full:1"]))

    @cached_property
    def lacking(self) -> list[str]:
        """What the software cannot run and nobody fixed."""
        fixed = normalise_choices(self.constraints.fixed)
        return [name for name in self.problem.software.lacks if self._test(name)[0] not in fixed]

    @cached_property
    def _tests(self) -> list[tuple[str, Test]]:
        return [self._test(name) for name in sorted({*self.constraints.forbidden, *self.lacking})]

    def _test(self, name: str) -> tuple[str, Test]:
        """The choice that a forbidden name limits, and which of its values go."""
        field, equals, value = name.partition("=")
        if equals:
            (key, unwanted), = normalise_choices({field: value}).items()  # fmt: skip
            if key == "stages":
                raise InputError("boundaries cannot be forbidden", fix="fix them instead")
            return key, partial(_is, unwanted)
        if name not in FORBIDDABLE:
            raise unknown_name(name, FORBIDDABLE, what="choice that can be forbidden")
        return FORBIDDABLE[name]

    def allowed(self, name: str, values: Sequence[T]) -> list[T]:
        """Those of the values that the constraints leave."""
        left = [value for value in values if self.fixed.get(name, value) == value]
        tests = [test for key, test in self._tests if key == name]
        left = [value for value in left if not any(test(value) for test in tests)]
        return [value for value in left if self.constraints.allows(name, value)]

    @cached_property
    def others(self) -> dict[str, Any]:
        """Fields of every layout that are not searched, as `Layout.of` takes them."""
        compiled = bool(self.fixed.get("compile", False))
        if not self.allowed("compile", [compiled]):
            self._refuse_nothing()
        return {"compile": True} if compiled else {}

    @cached_property
    def loss_chunks(self) -> list[int]:
        """In ascending order; the first alone where the model has no loss over a vocabulary."""
        if "loss_chunks" in self.fixed:
            return self.allowed("loss_chunks", [int(str(self.fixed["loss_chunks"]))])
        blocks = self.problem.model.decoder.blocks
        has_head = any(isinstance(block, HeadBlock) for block in blocks)
        return self.allowed("loss_chunks", list(LOSS_CHUNKS if has_head else LOSS_CHUNKS[:1]))

    @cached_property
    def recomputes(self) -> list[str]:
        """Recompute policies in the order of what they compute again."""
        if "recompute" in self.fixed:
            return self.allowed("recompute", [str(self.fixed["recompute"])])
        known = recompute_modules_of(self.problem.model)
        cheap = [
            module for module in CHEAP_MODULES
            if module in known and self.allowed("recompute", [f"selective:{module}"])
        ]  # fmt: skip
        policies = ["none"]
        if self.problem.software.attention_kernel == "math" and "core_attn" in known:
            policies.append("selective")
        # Norms are everywhere; alone they are not worth a policy.
        if len(cheap) > 1:
            policies.append("selective:" + "+".join(cheap))
        return self.allowed("recompute", [*policies, "full"])

    @cached_property
    def grids(self) -> tuple[Grid, ...]:
        """Every grid and micro-batch that the constraints leave, whether or not by the rules."""
        batch = self.problem.training.global_batch
        given = self.fixed.get("micro_batch")
        sizes = self.allowed("micro_batch", divisors(batch))
        if given is not None and not sizes and given not in divisors(batch):
            sizes = [int(str(given))]
        found = []
        all_ranks = list(self._ranks())
        self._check_size(len(all_ranks), len(sizes))
        for tp, cp, pp, dp in all_ranks:
            for size in sizes:
                count = max(1, batch // (dp * size))
                if self.allowed("num_microbatches", [count]):
                    found.append(Grid(tp, cp, pp, dp, size, count))
        if not found or not self.recomputes or not self.loss_chunks:
            self._refuse_nothing()
        found = [grid for grid in found if self.pipelines(grid.pp) and self._kinds(grid)]
        if not found:
            self._refuse_nothing()
        return tuple(found)

    def _ranks(self) -> Iterator[tuple[int, int, int, int]]:
        all_ranks = [
            (one.tp, one.cp, one.pp, one.dp)
            for one in dense_grids(self.problem.world)
            if one.pp <= self.problem.num_units
        ]
        open_values = {
            name: set(self.allowed(name, sorted({ranks[i] for ranks in all_ranks})))
            for i, name in enumerate(("tp", "cp", "pp", "dp"))
        }
        for name, values in open_values.items():
            if not values:
                self._refuse_ranks(name, sorted({
                    ranks[("tp", "cp", "pp", "dp").index(name)] for ranks in all_ranks
                }))  # fmt: skip
        for ranks in all_ranks:
            if all(value in open_values[name] for name, value in zip(
                ("tp", "cp", "pp", "dp"), ranks, strict=True
            )):  # fmt: skip
                yield ranks

    def _check_size(self, num_grids: int, num_sizes: int) -> None:
        """Refuse, before they are listed, more grids than anyone would wait for."""
        if num_grids * num_sizes <= MOST_GRIDS:
            return
        world, batch = self.problem.world, self.problem.training.global_batch
        raise InputError(
            f"{world:,} devices and {batch:,} sequences a step leave {num_grids:,} grids x"
            f" {num_sizes} micro-batches, more than the {MOST_GRIDS:,} that are searched",
            fix="fix some of tp, cp, pp, dp and micro_batch, or choose a number of devices and a"
            f" --global-batch with fewer divisors, such as {2 ** round(math.log2(world))} and"
            f" {2 ** round(math.log2(batch))}",
        )

    def cuts(self, grid: Grid) -> list[Cut]:
        """Every cut of a grid that the constraints leave, whether or not by the rules."""
        key = (grid.tp, grid.cp, grid.dp)
        if key not in self._cuts:
            self._cuts[key] = self._list_cuts(grid)
        return self._cuts[key]

    @cached_property
    def _cuts(self) -> dict[tuple[int, ...], list[Cut]]:
        return {}

    def _list_cuts(self, grid: Grid) -> list[Cut]:
        tp, cp, dp = grid.tp, grid.cp, grid.dp
        experts = num_experts_of(self.problem.model)
        eps = [ep for ep in divisors(math.gcd(*experts)) if ep <= tp * cp * dp] if experts else [1]
        etps = divisors(tp) if experts else [1]
        switches = [False, True] if tp > 1 else [False]
        return list(itertools.starmap(Cut, itertools.product(
            self.allowed("sequence_parallel", switches),
            self.allowed("cp_kind", list(CP_KINDS) if cp > 1 else ["ring"]),
            self._allowed_or_fixed("ep", eps),
            self._allowed_or_fixed("etp", etps),
        )))  # fmt: skip

    def _allowed_or_fixed(self, name: str, values: list[int]) -> list[int]:
        """A fixed degree counts even where a rule forbids it, so that the rule is named."""
        fixed = self.fixed.get(name)
        return self.allowed(name, values if fixed is None else [int(str(fixed))])

    def states(self, grid: Grid, cut: Cut) -> list[State]:
        """Every state that the constraints leave, whether or not by the rules."""
        copies = grid.dp * grid.cp
        edp = copies * grid.tp // (cut.ep * cut.etp)
        fixed = self.fixed.get("expert_zero_shard_degree")
        found = []
        for kind in self._kinds(grid):
            degree = kind.shard_degree
            expert = 1 if degree == 1 else edp if degree == copies else math.gcd(edp, degree)
            if fixed is not None:
                expert = int(str(fixed))
            found.append(kind._replace(expert_shard_degree=expert))
        return found

    def _kinds(self, grid: Grid) -> list[State]:
        """States without the shard degree of experts, which follows."""
        copies = grid.dp * grid.cp
        key = (copies, grid.pp > 1)
        if key not in self._known_kinds:
            self._known_kinds[key] = self._list_kinds(*key)
        return self._known_kinds[key]

    @cached_property
    def _known_kinds(self) -> dict[tuple[int, bool], list[State]]:
        return {}

    def _list_kinds(self, copies: int, has_pipeline: bool) -> list[State]:
        orders = RANK_ORDERS if has_pipeline and copies > 1 else RANK_ORDERS[:1]
        given = self.fixed.get("offload")
        offloads = OFFLOADS if given is None else (str(given),)
        return [
            State(zero, degree, 1, bool(reshard), offload, order)
            for zero, degree, reshard in self._shards(copies)
            for offload in self.allowed("offload", offloads)
            for order in self._allowed_or_plain("rank_order", orders)
        ]

    def _shards(self, copies: int) -> Iterator[tuple[int, int, bool]]:
        """(ZeRO stage, ranks that share a copy, whether weights are gathered twice)."""
        degrees = self._shard_degrees(copies)
        for zero in self.allowed("zero", [0, 1, 2, 3] if copies > 1 else [0]):
            if zero == 0:
                if self.allowed("zero_shard_degree", [1]):
                    yield from ((0, 1, True) for _ in self.allowed("reshard_after_forward", [True]))
                continue
            shards = self._allowed_or_fixed("zero_shard_degree", degrees[1:])
            switches = [True, False] if zero == 3 else [True]
            for degree in shards:
                for reshard in self._allowed_or_plain("reshard_after_forward", switches):
                    yield zero, degree, bool(reshard)

    def _shard_degrees(self, copies: int) -> list[int]:
        """1, all copies, and the most that have room in one link domain."""
        domain = self.problem.cluster.groups[0].scale_up_domain_gpus
        inside = [degree for degree in divisors(copies) if degree <= domain]
        return sorted({1, inside[-1], copies})

    def _allowed_or_plain(self, name: str, values: Sequence[T]) -> list[T]:
        """What is fixed but has no effect here does not exclude anything."""
        return self.allowed(name, values) if len(values) > 1 else list(values)

    def pipelines(self, pp: int) -> list[Pipeline]:
        """Schedules with their vpp that the constraints leave for pp ranks."""
        if pp not in self._pipelines:
            found = [
                one for one in self._list_pipelines(pp)
                if self.allowed("schedule", [one.schedule]) != [] != self.allowed("vpp", [one.vpp])
            ]  # fmt: skip
            boundaries = self.fixed_boundaries
            if boundaries is not None:
                found = [one for one in found if one.vpp * pp == len(boundaries) + 1]
            if self.has_even_stages:
                layers = self.problem.num_layers
                found = [one for one in found if layers % (one.vpp * pp) == 0]
            self._pipelines[pp] = found
        return self._pipelines[pp]

    @cached_property
    def _pipelines(self) -> dict[int, list[Pipeline]]:
        return {}

    def _list_pipelines(self, pp: int) -> Iterator[Pipeline]:
        if pp == 1:
            yield Pipeline("none", 1)
            return
        layers = self.problem.num_layers
        most = layers // pp
        chunks = [v for v in divisors(math.ceil(layers / pp)) if 1 < v <= most]
        if "vpp" in self.fixed:
            chunks = [int(str(self.fixed["vpp"]))]
        fixed = self.fixed.get("schedule")
        names = SCHEDULES if fixed in (None, "none") else (str(fixed),)
        for name, vpp in itertools.product(names, (1, 2, *(v for v in chunks if v > 2))):
            fits = vpp == 1 or vpp <= most or vpp in chunks
            listed = vpp in chunks if name == "interleaved-1f1b" else fits
            if listed and not vpp_problems(ScheduleName(name), vpp):
                yield Pipeline(name, vpp)

    # What obeys the rules

    def valid_cuts(self, grid: Grid) -> list[Cut]:
        """Cuts of a grid that obey every rule on layers and experts."""
        key = (grid.tp, grid.cp, grid.dp, self._chunked(grid))
        if key not in self._valid_cuts:
            self._valid_cuts[key] = [
                cut for cut in self.cuts(grid) if not self._cut_breaks(grid, cut)
            ]
        return self._valid_cuts[key]

    @cached_property
    def _valid_cuts(self) -> dict[tuple[int, ...], list[Cut]]:
        return {}

    def _chunked(self, grid: Grid) -> int:
        """The micro-batch, where a rule sees it."""
        return grid.micro_batch if "loss_chunks" in self.fixed else 0

    def valid_states(self, grid: Grid, cut: Cut) -> list[State]:
        """States whose shard degrees divide the copies."""
        copies = grid.dp * grid.cp
        edp = copies * grid.tp // (cut.ep * cut.etp)
        states = self.states(grid, cut)
        if not any(name in self.fixed for name in SHARD_DEGREES):
            return states
        return [
            one for one in states
            if copies % one.shard_degree == 0 and edp % one.expert_shard_degree == 0
            and (one.zero > 0 or one.expert_shard_degree == 1)
        ]  # fmt: skip

    def valid_pipelines(self, grid: Grid) -> list[Pipeline]:
        """Pipelines with a unit for every stage and a schedule short enough to be written out."""
        units, count = self.problem.num_units, grid.num_microbatches
        return [
            one for one in self.pipelines(grid.pp)
            if grid.pp * one.vpp <= units and not is_too_long(grid.pp * one.vpp, count)
        ]  # fmt: skip

    def breaks_batch(self, grid: Grid) -> bool:
        """Whether micro-batches do not make up the global batch."""
        per_step = grid.dp * grid.micro_batch * grid.num_microbatches
        return per_step != self.problem.training.global_batch

    @cached_property
    def _broken_cuts(self) -> dict[tuple[object, ...], bool]:
        return {}

    def _cut_breaks(self, grid: Grid, cut: Cut) -> bool:
        """Whether a rule on tensors, sequences or experts is broken; the rules do not see pp."""
        key = (grid.tp, grid.cp, self._chunked(grid), cut.sequence_parallel, cut.cp_kind)
        if key not in self._broken_cuts:
            plain = cut._replace(ep=1, etp=1)
            self._broken_cuts[key] = bool(self._rule_violations(grid, plain))
        if self._broken_cuts[key]:
            return True
        experts = (grid.tp * grid.cp * grid.dp, cut.ep, cut.etp)
        if experts not in self._broken_cuts:
            plain = cut._replace(sequence_parallel=False, cp_kind="all_gather")
            found = self._rule_violations(grid, plain)
            self._broken_cuts[experts] = any("expert" in one.rule for one in found)
        return self._broken_cuts[experts]

    def _rule_violations(self, grid: Grid, cut: Cut) -> list[Violation]:
        """Broken rules but those of the batch, the stages and what is sharded."""
        choices: dict[str, ChoiceValue] = {
            "tp": grid.tp, "cp": grid.cp, "dp": grid.dp, "micro_batch": grid.micro_batch,
            "sequence_parallel": cut.sequence_parallel, "cp_kind": cut.cp_kind, "ep": cut.ep,
            "etp": cut.etp, "recompute": str(self.fixed.get("recompute", "none")).split("/")[0],
        }  # fmt: skip
        choices |= {n: self.fixed[n] for n in ("loss_chunks", "offload") if n in self.fixed}
        layout = layout_of(self.problem, choices)
        problem = self.problem
        found = layout.violations(problem.model, problem.cluster, problem.training)
        ignored = ("world_size", "batch", "schedule_length")
        return [one for one in found if one.rule not in ignored]

    # Counts

    def num_layouts(self, grid: Grid) -> int:
        """All layouts with this grid, by the rules or not."""
        states = len(self._kinds(grid))
        return len(self.cuts(grid)) * states * len(self.pipelines(grid.pp))

    def num_valid(self, grid: Grid) -> int:
        """Layouts with this grid that obey the rules."""
        pipelines = 0 if self.breaks_batch(grid) else len(self.valid_pipelines(grid))
        if not pipelines:
            return 0
        cuts = self.valid_cuts(grid)
        if not any(name in self.fixed for name in SHARD_DEGREES):
            return len(cuts) * len(self._kinds(grid)) * pipelines
        return pipelines * sum(len(self.valid_states(grid, cut)) for cut in cuts)

    @cached_property
    def valid(self) -> tuple[Grid, ...]:
        """Grids with a layout that obeys the rules."""
        return tuple(grid for grid in self.grids if self.num_valid(grid))

    @cached_property
    def considered(self) -> int:
        """Layouts in the space."""
        return sum(self.num_layouts(grid) for grid in self.grids)

    @cached_property
    def num_by_the_rules(self) -> int:
        """Layouts in the space that obey the rules."""
        return sum(self.num_valid(grid) for grid in self.valid)

    def violations(self) -> list[Violation]:
        """The rules that the first choices break."""
        choices = dict(normalise_choices(self.constraints.fixed))
        grid = self.grids[0]
        for name in ("tp", "cp", "pp", "dp", "micro_batch"):
            choices.setdefault(name, getattr(grid, name))
        pipelines = self.pipelines(grid.pp)
        choices |= {"schedule": pipelines[0].schedule, "vpp": pipelines[0].vpp}
        layout = layout_of(self.problem, choices)
        problem = self.problem
        return layout.violations(problem.model, problem.cluster, problem.training)

    @property
    def in_words(self) -> str:
        """Which choices are open, for the certificate."""
        experts = num_experts_of(self.problem.model)
        parts = [
            f"every tp x cp x pp x dp = {self.problem.world}",
            *(["every ep that divides the experts and etp that divides tp"] if experts else []),
            "sequence_parallel off or on, every cp_kind",
            f"every micro_batch that divides {self.problem.training.global_batch} sequences",
            "schedule " + ", ".join(SCHEDULES),
            "every vpp that divides the layers of a rank, rounded up, and leaves a layer a stage",
            "zero 0 to 3 over all copies, or as many as one link domain has room for",
            "offload " + " or ".join(self.fixed_or("offload", OFFLOADS)),
            "ranks of data parallelism outside or inside the pipeline",
            f"of each the best stage boundaries, recomputation of each rank"
            f" ({' or '.join(self.recomputes)}) and chunks of the loss: with one stage a rank all"
            f" of up to {FEW_SPLITS:,} ways to split, else those that an exact programme ranks"
            f" first; with several all of up to {FEW_INTERLEAVED}, else the balanced and the even",
        ]
        fixed = normalise_choices(self.constraints.fixed)
        if fixed:
            parts.append("fixed: " + ", ".join(f"{k} = {v}" for k, v in sorted(fixed.items())))
        if self.constraints.forbidden:
            parts.append("without " + ", ".join(sorted(self.constraints.forbidden)))
        if self.lacking:
            framework = self.problem.software.framework
            parts.append(f"without what {framework} lacks: " + ", ".join(self.lacking))
        if self.constraints.bounds:
            parts.append("bound: " + bounds_in_words(self.constraints.bounds))
        return "; ".join(parts)

    def fixed_or(self, name: str, values: Sequence[str]) -> list[str]:
        """The fixed value of a choice, or those that are left."""
        return [str(self.fixed[name])] if name in self.fixed else self.allowed(name, values)

    def _no_such_value(self, name: str, values: Sequence[ChoiceValue]) -> InputError:
        shown = ", ".join(str(value) for value in values[:12])
        more = ", ..." if len(values) > 12 else ""
        return InputError(
            f"no layout has {name} = {self.fixed[name]}",
            why=f"{name} is one of: {shown}{more}",
            fix=f"fix {name} to one of these, or leave it open",
        )

    def _refuse_ranks(self, name: str, values: Sequence[int]) -> None:
        """Where a degree has no value left, say which it could have."""
        if name in self.fixed and self.fixed[name] not in values:
            raise self._no_such_value(name, values)
        if bounds := self.constraints.bounds_of(name):
            raise nothing_between(bounds, values)

    def _refuse_nothing(self) -> None:
        bounds = bounds_in_words(self.constraints.bounds)
        forbidden = ", ".join(sorted(self.constraints.forbidden))
        fixed = ", ".join(f"{k} = {v}" for k, v in sorted(self.fixed.items()))
        without = f" without {forbidden}" if forbidden else ""
        raise InputError(
            f"nothing is left of the space{without}{f' with {fixed}' if fixed else ''}"
            + (f" within {bounds}" if bounds else ""),
            fix="forbid less, fix less, or widen the bounds"
            if bounds
            else "forbid less, or fix less",
        )
