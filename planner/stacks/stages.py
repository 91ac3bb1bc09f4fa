"""What a stage of a pipeline costs, with the least recomputation that lets it fit.

Of everything that a step's time is made of, recomputation only ever adds to a stage's backward
pass (`StackModel`: nothing hides behind it). So of the choices with which a stage fits, that with
the shortest backward is as good as any; where a schedule splits the backward pass, those that no
other beats in both its halves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardwright.cost_models.stacks.memory import resident_bytes
from shardwright.cost_models.stacks.updates import Trained
from shardwright.planner.stacks.choices import Cut, Grid, State
from shardwright.planner.stacks.prices import After, StackPrices
from shardwright.planner.stacks.units import Sums, UnitAgain


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a stage: seconds of a micro-batch."""

    forward_s: float
    input_s: float
    weight_s: float
    recompute: str
    loss_chunks: int

    @property
    def backward_s(self) -> float:
        return self.input_s + self.weight_s

    @property
    def total_s(self) -> float:
        return self.forward_s + self.input_s + self.weight_s


@dataclass(frozen=True, slots=True)
class RankPart:
    """Bytes of one stage on its rank."""

    held: float
    saved: float
    """By each micro-batch in flight."""
    largest_saved: float
    """Of any unit."""
    working: float
    gathered: float
    step_copy: float
    away: float
    """Weights in host memory."""
    largest_away: float
    """Of any unit."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stage stands: all that counts of its position."""

    held: int
    """Micro-batches in flight at the fullest moment."""
    neighbours: int
    message_sign: int
    """+1: what it receives it keeps; 0: it sends as much on, which it does not keep; -1: it only
    sends."""
    recompute: str | None = None
    """Its policy, where that is fixed for each stage."""


Range = tuple[int, int]
"""The first unit and that after the last."""


class StagePricer:
    """Stages of one layout whose boundaries and recomputation are open."""

    def __init__(
        self, prices: StackPrices, grid: Grid, cut: Cut, state: State, *, is_split: bool
    ) -> None:
        """``is_split``: whether the schedule splits the backward pass."""
        self._prices, self._grid, self._cut, self._state = prices, grid, cut, state
        self._is_split = is_split
        pricer, space = prices.pricer, prices.space
        self._times = prices.times(grid, cut)
        self._weight_s = prices.weight_s(grid, cut, state)
        self._bytes = prices.state(grid, cut, state)
        self._room = prices.most_live_bytes(grid, cut)
        self._launch_s = pricer.launch_s(grid.tp)
        self._exchange = pricer.exchange_kernels
        self._ratio = prices.measured_ratio(grid, cut)
        frame = prices.frame(grid, cut, state)
        self._message_bytes = pricer.message_bytes(frame) if grid.pp > 1 else 0.0
        self._policies, self._chunks = space.recomputes, space.loss_chunks
        self.num_units = len(prices.units.kind_of_unit)
        self._run_ends = _run_ends(prices.units.kind_of_unit)
        self._known: dict[tuple[object, ...], tuple[Option, ...]] = {}
        self._after: dict[tuple[object, ...], After] = {}
        self._known_alike: dict[Range, tuple[object, ...]] = {}
        self._known_parts: dict[tuple[object, ...], RankPart] = {}
        self._known_options: dict[tuple[object, ...], Option] = {}
        self._known_static: dict[Range, tuple[float, float, float, float, float]] = {}
        self._refused: set[tuple[object, ...]] = set()

    def _key(self, place: Place, units: Range) -> tuple[object, ...]:
        """Stages with the same key are alike."""
        return place, self._alike(units)

    def _alike(self, units: Range) -> tuple[object, ...]:
        """What of its units a stage's price depends on."""
        found = self._known_alike.get(units)
        if found is None:
            found = self._known_alike[units] = self._find_alike(*units)
        return found

    def _find_alike(self, start: int, stop: int) -> tuple[object, ...]:
        ends = (start == 0, stop == self.num_units)
        first, last = max(start, 1), min(stop, self.num_units - 1)
        if first < last and self._run_ends[first] < last:
            return start, stop
        kind = self._prices.units.kind_of_unit[first] if first < last else -1
        return kind, max(0, last - first), ends

    @property
    def moves_activations(self) -> bool:
        """To host memory, and back."""
        return "activations" in self._state.offload

    @property
    def most_options(self) -> int:
        """As many ways to run one stage may each be the best for some step."""
        return len(self._policies) if self._is_split else 1

    def options(self, place: Place, start: int, stop: int) -> tuple[Option, ...]:
        """The best ways to run a stage that fit; none where it cannot fit."""
        key = self._key(place, (start, stop))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._best(key, place, start, stop)
        return found

    def refuse(self, place: Place, start: int, stop: int, option: Option) -> None:
        """Never offer an option again: exact books showed that it does not fit."""
        key = self._key(place, (start, stop))
        self._refused.add((key, option.recompute, option.loss_chunks))
        self._known.pop(key, None)

    def after(self, start: int, stop: int) -> After:
        """What shows of one stage's reduction and publishing at the least, and its update."""
        key = self._key(Place(0, 0, 0), (start, stop))
        found = self._after.get(key)
        if found is None:
            found = self._after[key] = self._price_after(start, stop)
        return found

    def _price_after(self, start: int, stop: int) -> After:
        times, pricer, grid = self._times, self._prices.pricer, self._grid
        trained = Trained(
            _of(self._bytes.dense, start, stop), _of(self._bytes.experts, start, stop)
        )
        one = self._prices.after(grid, self._cut, self._state, trained)
        # Messages make both windows longer than without them, but by no more than this.
        more_s = 2 * self._exchange * self._launch_s
        backward_s = _of(times.input_s, start, stop) + _of(self._weight_s, start, stop)
        window_s = pricer.at_host_pace_s(backward_s, _of(times.kernels, start, stop), grid.tp)
        reduction_s = pricer.exposed_s(
            one.reduction_s, self._ratio * (window_s + more_s), gradients=True
        )
        forward_s = math.inf
        if self._prices.shards(grid, self._cut, self._state, "none") is None:
            forward_s = more_s + pricer.at_host_pace_s(
                _of(times.forward_s, start, stop), _of(times.forward_kernels, start, stop), grid.tp
            )
        publish_s = pricer.exposed_s(one.publish_s, self._ratio * forward_s, gradients=False)
        return After(reduction_s, publish_s, one.optimizer_s)

    # One stage

    def _best(
        self, key: tuple[object, ...], place: Place, start: int, stop: int
    ) -> tuple[Option, ...]:
        found = list(self._fitting(key, place, start, stop))
        if not self._is_split:
            return (min(found, key=_plainness),) if found else ()
        kept: list[Option] = []
        for option in sorted(found, key=_plainness):
            if all(option.weight_s < other.weight_s * (1 - 1e-12)
                   or option.input_s < other.input_s * (1 - 1e-12)
                   or option.forward_s < other.forward_s * (1 - 1e-12)
                   for other in kept):  # fmt: skip
                kept.append(option)
        return tuple(kept)

    def _fitting(
        self, key: tuple[object, ...], place: Place, start: int, stop: int
    ) -> Iterator[Option]:
        """For every policy the least of it that fits."""
        policies = self._policies if place.recompute is None else [place.recompute]
        for policy in policies:
            for chunks in self._fitting_chunks(key, place, start, stop, policy):
                text = self._least_policy(place, start, stop, policy, chunks)
                if text is not None and (key, text, chunks) not in self._refused:
                    yield self.option(place, start, stop, text, chunks)

    def _fitting_chunks(
        self, key: tuple[object, ...], place: Place, start: int, stop: int, policy: str
    ) -> Iterator[int]:
        """The fewest that fit, as more are never faster; and those that spare recomputing a layer,
        or, where activations move to the host, all."""
        if stop < self.num_units:
            yield self._chunks[0]
            return
        before = None
        for chunks in self._chunks:
            text = self._least_policy(place, start, stop, policy, chunks)
            if text is None or (key, text, chunks) in self._refused:
                continue
            if text != before or self.moves_activations:
                yield chunks
            if is_least(text) and not self.moves_activations:
                return
            before = text

    def _least_policy(
        self, place: Place, start: int, stop: int, policy: str, chunks: int
    ) -> str | None:
        """The policy with as few whole layers as let the stage fit; None where it cannot."""
        layers = min(stop, self.num_units - 1) - max(start, 1)
        if policy.startswith("full:") and int(policy.partition(":")[2]) > layers:
            return None
        if not self._fits(place, start, stop, policy, chunks):
            return None
        if policy != "full" or layers < 1 or not self.may_be_partial(start, stop):
            return policy
        count = self._least_count(place, start, stop, chunks, layers)
        return policy if count == layers else f"full:{count}"

    def _least_count(self, place: Place, start: int, stop: int, chunks: int, layers: int) -> int:
        """How many of a stage's first layers must be recomputed for it to fit, beyond those that
        were refused; all are enough."""

        def lacking(count: int) -> float:
            needed = self.live_bytes(place, start, stop, f"full:{count}", chunks)
            return needed - self.room_bytes

        count = least_count(lacking, layers)
        if self._refused:
            key = self._key(place, (start, stop))
            while count < layers and (key, f"full:{count}", chunks) in self._refused:
                count += 1
        return count

    def may_be_partial(self, start: int, stop: int) -> bool:
        """Whether first layers alone can be recomputed: not where that is fixed, nor beside
        encoders and multi-token predictions, whose layers have numbers of their own."""
        units = self._prices.units
        beside = (start == 0 and units.has_encoders) or (
            stop == self.num_units and units.has_predictions
        )
        return not beside and self._prices.space.may_be_partial

    def _fits(self, place: Place, start: int, stop: int, policy: str, chunks: int) -> bool:
        return self.live_bytes(place, start, stop, policy, chunks) <= self.room_bytes

    def live_bytes(
        self, place: Place, start: int, stop: int, policy: str, chunks: int = 1
    ) -> float:
        """What the stage's tensors take up at the fullest moment, at the least."""
        part = self.rank_part(place.message_sign, start, stop, policy, chunks)
        return self.rank_bytes([part], ((place.held,),))

    def rank_part(
        self, message_sign: int, start: int, stop: int, policy: str, chunks: int
    ) -> RankPart:
        """What one stage adds to its rank's memory."""
        key = (message_sign, self._alike((start, stop)), policy, chunks)
        found = self._known_parts.get(key)
        if found is None:
            found = self._known_parts[key] = self._price_part(
                message_sign, start, stop, policy, chunks
            )
        return found

    def _price_part(
        self, message_sign: int, start: int, stop: int, policy: str, chunks: int
    ) -> RankPart:
        saved, largest, working = self._activations(start, stop, policy, chunks)
        held, *others = self._static(start, stop)
        saved = max(0.0, saved + message_sign * self._message_bytes)
        return RankPart(held, saved, largest, working, *others)

    def _static(self, start: int, stop: int) -> tuple[float, float, float, float, float]:
        """Bytes held at all times, gathered, on top while the optimizer runs, and weights in host
        memory, all and those of the largest unit."""
        key = (start, stop)
        found = self._known_static.get(key)
        if found is None:
            one = self._bytes
            found = self._known_static[key] = (
                _of(one.held_bytes, start, stop),
                self._prices.pricer.gathered_bytes(
                    sorted(one.whole_bytes[start:stop], reverse=True)[:2],
                    max(one.whole_gradient_bytes[start:stop]),
                ),
                _of(one.step_copy_bytes, start, stop),
                _of(one.weight_bytes, start, stop),
                max(one.unit_bytes[start:stop]),
            )
        return found

    def rank_bytes(self, parts: Sequence[RankPart], moments: Sequence[Sequence[int]]) -> float:
        """Of a rank's stages together; ``moments``: micro-batches in flight of each."""
        kept = max(
            sum(count * part.saved for count, part in zip(counts, parts, strict=True))
            for counts in moments
        )
        if "activations" in self._state.offload:
            kept = resident_bytes(kept, max(part.largest_saved for part in parts))
        moment = kept + max(p.working for p in parts) + max(p.gathered for p in parts)
        moment = max(moment, sum(p.step_copy for p in parts))
        held = sum(part.held for part in parts)
        if "parameters" in self._state.offload:
            away = sum(part.away for part in parts)
            held += resident_bytes(away, max(part.largest_away for part in parts))
        return held + moment

    @property
    def room_bytes(self) -> float:
        """What a rank's tensors may take up at most."""
        return self._room * (1 + 1e-12)

    def _activations(
        self, start: int, stop: int, policy: str, chunks: int
    ) -> tuple[float, float, float]:
        """Bytes that a micro-batch keeps, of them the largest unit's, and on top while a unit runs
        backward."""
        parts = [
            (self._again(part, chunks if last == self.num_units else 1), first, last)
            for part, first, last in self._parts(start, stop, policy)
        ]
        saved = sum(_of(again.saved_bytes, first, last) for again, first, last in parts)
        largest = max(max(again.unit_bytes[first:last]) for again, first, last in parts)
        working = max(max(again.working_bytes[first:last]) for again, first, last in parts)
        return saved, largest, working

    def _parts(self, start: int, stop: int, policy: str) -> list[tuple[str, int, int]]:
        """Runs of units with one policy."""
        if not policy.startswith("full:"):
            return [(policy, start, stop)]
        count = int(policy.partition(":")[2])
        middle = min(stop, max(start, 1) + count)
        parts = [("full", start, middle), ("none", middle, stop)]
        return [part for part in parts if part[1] < part[2]]

    def _again(self, policy: str, chunks: int) -> UnitAgain:
        return self._prices.again(self._grid, self._cut, policy, chunks)

    def option(self, place: Place, start: int, stop: int, policy: str, chunks: int) -> Option:
        """The stage's seconds under a policy."""
        key = (place.neighbours, self._alike((start, stop)), policy, chunks)
        found = self._known_options.get(key)
        if found is None:
            found = self._known_options[key] = self._price_option(
                place, start, stop, policy, chunks
            )
        return found

    def _price_option(
        self, place: Place, start: int, stop: int, policy: str, chunks: int
    ) -> Option:
        times, pricer, grid = self._times, self._prices.pricer, self._grid
        again_s = again_kernels = forward_shards_s = backward_shards_s = 0.0
        for part, first, last in self._parts(start, stop, policy):
            own_chunks = chunks if last == self.num_units else 1
            again = self._again(part, own_chunks)
            again_s += _of(again.seconds, first, last)
            again_kernels += _of(again.kernels, first, last)
            shards = self._prices.shards(grid, self._cut, self._state, part, own_chunks)
            if shards is not None:
                forward_shards_s += _of(shards[0], first, last)
                backward_shards_s += _of(shards[1], first, last)
        exchanged = place.neighbours * self._exchange
        forward_s = self._ratio * pricer.at_host_pace_s(
            _of(times.forward_s, start, stop) + forward_shards_s,
            _of(times.forward_kernels, start, stop) + exchanged, grid.tp,
        )  # fmt: skip
        input_s = _of(times.input_s, start, stop) + again_s + backward_shards_s
        weight_s = _of(self._weight_s, start, stop)
        kernels = _of(times.kernels, start, stop) + again_kernels + exchanged
        device_s = input_s + weight_s
        paced_s = pricer.at_host_pace_s(device_s, kernels, grid.tp)
        stretch = self._ratio * paced_s / device_s if device_s else 1.0
        return Option(forward_s, input_s * stretch, weight_s * stretch, policy, chunks)


def _plainness(option: Option) -> tuple[float, bool, str]:
    """Of options that take as long, those without recomputation go first."""
    return option.total_s, option.recompute != "none", option.recompute


def is_least(policy: str) -> bool:
    """Whether more memory would not let fewer layers be recomputed under the same policy."""
    return not policy.startswith("full") or policy == "full:1"


def least_count(lacking: Callable[[int], float], most: int) -> int:
    """The least count from 1 to ``most`` of which nothing is lacking, as nothing is of the last.

    Equal layers give up equally much, so that a straight line usually meets it.
    """
    low, high = 0, most
    first = lacking(1) if most > 1 else 0.0
    if first <= 0.0:
        return 1
    guess = 1 + math.ceil(first * (most - 1) / max(first - lacking(most), 1e-300))
    while high - low > 1:
        middle = guess if low < guess < high else (low + high) // 2
        if lacking(middle) <= 0.0:
            high, guess = middle, middle - 1
        else:
            low, guess = middle, middle + 1
    return high


def _of(sums: Sums, start: int, stop: int) -> float:
    return sums[stop] - sums[start]


def _run_ends(kinds: tuple[int, ...]) -> list[int]:
    """For each unit the first after it of another kind."""
    ends = [len(kinds)] * len(kinds)
    for index in reversed(range(len(kinds) - 1)):
        ends[index] = ends[index + 1] if kinds[index] == kinds[index + 1] else index + 1
    return ends
