"""`Choices`: everything that is decided about a layout but its stage boundaries; and their text.

A layout is one `Choices` and one tuple of boundaries. Users write both as ``tp=8,pp=4,zero=1,
recompute=full,stages=0-20/20-40/40-60/60-80``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from shardwright.planner.problem import ChoiceValue, Problem
from shardwright.specs import InputError, Layout, Recompute, ScheduleName
from shardwright.specs.ranges import MOST_DEVICES, MOST_LAYERS, MOST_SEQUENCES

DEGREES = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
COUNTS = (*DEGREES, "micro_batch", "num_microbatches", "zero_shard_degree")
ALIASES = {"sp": "sequence_parallel", "mb": "micro_batch", "m": "num_microbatches"}
RECOMPUTE_POLICIES: tuple[str, ...] = ("none", "full")
SCHEDULES: tuple[str, ...] = (str(ScheduleName.ONE_F_ONE_B), str(ScheduleName.GPIPE))
ZERO_STAGES = (0, 1, 3)
NAMES = (*COUNTS, "zero", "sequence_parallel", "recompute", "schedule", "stages")
_TRUTH = {"true": True, "on": True, "yes": True, "1": True,
          "false": False, "off": False, "no": False, "0": False}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choices:
    """One choice of everything but the boundaries. Context and expert parallelism are 1."""

    tp: int
    pp: int
    dp: int
    micro_batch: int
    num_microbatches: int
    """Rounded down where dp x micro_batch does not divide the global batch (a broken rule)."""
    zero: int
    sequence_parallel: bool
    recompute: str
    schedule: str
    """``none`` where pp = 1."""

    @property
    def key(self) -> tuple[int, ...]:
        """What orders equally good choices: the smaller key is the plainer layout."""
        return (
            self.tp, self.pp, self.dp, self.micro_batch, self.zero, int(self.sequence_parallel),
            RECOMPUTE_POLICIES.index(self.recompute),
            SCHEDULES.index(self.schedule) if self.pp > 1 else 0,
        )  # fmt: skip

    def value(self, name: str) -> ChoiceValue:
        """The value of any name of `NAMES` but ``stages``."""
        if name in ("cp", "vpp", "ep", "etp"):
            return 1
        if name == "zero_shard_degree":
            return self.dp if self.zero else 1
        value: ChoiceValue = getattr(self, name)
        return value

    def layout(self, problem: Problem, boundaries: tuple[int, ...]) -> Layout:
        """The layout with these choices whose stages start at the given layers."""
        return Layout.of(
            problem.model,
            problem.training,
            boundaries=boundaries,
            recompute=Recompute.model_validate({"policy": self.recompute}),
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            micro_batch=self.micro_batch,
            zero=self.zero,
            sequence_parallel=self.sequence_parallel,
            schedule=self.schedule,
        )


def even_boundaries(problem: Problem, pp: int) -> tuple[int, ...]:
    """The layers at which stages 1, 2, ... start where units are spread as evenly as possible.

    Stages hold a unit at least, so that the first may be the embedding alone and the last the head.
    """
    base, extra = divmod(problem.num_units, pp)
    return tuple(stage * base + min(stage, extra) - 1 for stage in range(1, pp))


def parse_choices(text: str) -> dict[str, ChoiceValue]:
    """``tp=8,pp=4,sp=on`` as names and values.

    Raises:
        InputError: a part without ``=``, a name given twice, an unknown name, an impossible value.
    """
    pairs: list[tuple[str, str]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise InputError(
                f"{part!r} is not a choice", fix="write name=value, such as tp=8,pp=4,zero=1"
            )
        pairs.append((name.strip(), value.strip()))
    names = [ALIASES.get(name, name) for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is given {names.count(name)} times", fix="give it once")
    return normalise_choices(dict(pairs))


def normalise_choices(choices: Mapping[str, Any]) -> dict[str, ChoiceValue]:
    """Names and values as `Choices` has them, from text or Python values.

    Raises:
        InputError: an unknown name or an impossible value.
    """
    found: dict[str, ChoiceValue] = {}
    for given, value in choices.items():
        name = ALIASES.get(given, given)
        if name not in NAMES:
            raise unknown_name(given, [*NAMES, *ALIASES], what="layout choice")
        found[name] = _parse_value(name, value)
    return found


def unknown_name(given: str, known: Iterable[str], *, what: str) -> InputError:
    """The error for a name that does not exist, with the nearest ones that do."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    return InputError(
        f"{given!r} is not a {what}", fix=f"choose one of {', '.join(close or names)}"
    )


def _parse_value(name: str, value: Any) -> ChoiceValue:
    if name == "stages":
        return _parse_stages(value)
    text = str(value).strip().lower()
    if name == "sequence_parallel":
        return _one_of(name, text, _TRUTH)
    if name == "recompute":
        return _one_of(name, text, {policy: policy for policy in RECOMPUTE_POLICIES})
    if name == "schedule":
        return _one_of(name, text, {known: known for known in ("none", *SCHEDULES)})
    if name == "zero":
        return _one_of(name, text, {str(stage): stage for stage in ZERO_STAGES})
    most = MOST_SEQUENCES if name in ("micro_batch", "num_microbatches") else MOST_DEVICES
    if not _is_number(text) or not 1 <= int(text) <= most:
        raise InputError(
            f"{name} = {value} is not a count from 1 to {most:,}",
            fix=f"give {name} as 1, 2, 3, ...",
        )
    return int(text)


def _one_of(name: str, text: str, values: Mapping[str, ChoiceValue]) -> ChoiceValue:
    if text not in values:
        raise InputError(
            f"{name} = {text} is not possible here", fix=f"choose one of {', '.join(values)}"
        )
    return values[text]


def _parse_stages(value: Any) -> tuple[int, ...]:
    """``0-5/5-10`` as the last layer bound and the starts between: (5, 10).

    The tuple holds where each stage stops, so that its length is pp and its last entry the number
    of layers that the writer believes in.
    """
    if isinstance(value, tuple) and all(isinstance(stop, int) for stop in value):
        return value
    ranges = []
    for part in str(value).split("/"):
        start, dash, stop = part.strip().partition("-")
        if not (dash and _is_number(start) and _is_number(stop)):
            raise InputError(
                f"stages = {value} is not a list of layer ranges",
                fix="write each stage's first layer and the layer after its last: 0-5/5-10",
            )
        ranges.append((int(start), int(stop)))
    expected = 0
    for first, last in ranges:
        if first != expected or last < first:
            raise InputError(
                f"stages = {value} does not cover the layers in order: {first}-{last} follows"
                f" layer {expected}",
                fix="let each stage start where the one before it stops, and the first at 0",
            )
        expected = last
    return tuple(stop for _, stop in ranges)


def _is_number(text: str) -> bool:
    """Decimal digits, few enough that nobody has to wait for them."""
    return text.isascii() and text.isdigit() and len(text) <= 9


def boundaries_of(stops: tuple[int, ...], problem: Problem) -> tuple[int, ...]:
    """Boundaries of a parsed ``stages`` value; raises `InputError` where they do not fit."""
    if stops[-1] != problem.num_layers:
        raise InputError(
            f"the stages end at layer {stops[-1]}, but {problem.model.name} has"
            f" {problem.num_layers} layers",
            fix=f"let the last stage stop at {problem.num_layers}",
        )
    return stops[:-1]


def layout_of(problem: Problem, choices: Mapping[str, ChoiceValue]) -> Layout:
    """The layout that the named choices describe; what they leave open takes its plainest value.

    ``dp`` is what remains of the world. Rules are not checked here: see `Layout.violations`.
    """
    given = dict(choices)
    stops = given.pop("stages", None)
    if isinstance(stops, tuple):
        if given.setdefault("pp", len(stops)) != len(stops):
            raise InputError(
                f"pp = {given['pp']}, but {len(stops)} stages are given",
                fix=f"set pp to {len(stops)}, or leave it out",
            )
        given["boundaries"] = boundaries_of(stops, problem)
    degrees = {name: int(str(given.get(name, 1))) for name in DEGREES}
    _check_sizes(degrees)
    if "dp" not in given:
        given["dp"] = max(1, problem.world // (degrees["tp"] * degrees["cp"] * degrees["pp"]))
    if "boundaries" not in given and degrees["vpp"] == 1 and degrees["pp"] <= problem.num_units:
        given["boundaries"] = even_boundaries(problem, int(str(given.get("pp", 1))))
    if given.get("schedule") == "none":
        del given["schedule"]
    policy = given.pop("recompute", "none")
    options: dict[str, Any] = given
    return Layout.of(
        problem.model,
        problem.training,
        recompute=Recompute.model_validate({"policy": policy}),
        **options,
    )


def _check_sizes(degrees: Mapping[str, int]) -> None:
    """Refuse, before a stage is made, degrees that no cluster and no model has together."""
    world = math.prod(degrees[name] for name in ("tp", "cp", "pp", "dp"))
    if world > MOST_DEVICES:
        raise InputError(
            f"tp x cp x pp x dp = {world:,} is more devices than any cluster has",
            fix=f"keep the product at {MOST_DEVICES:,} or less",
        )
    num_stages = degrees["pp"] * degrees["vpp"]
    if num_stages > MOST_LAYERS:
        raise InputError(
            f"pp x vpp = {num_stages:,} is more stages than any model has layers",
            fix="lower pp or vpp",
        )


def named_choices(layout: Layout) -> dict[str, ChoiceValue]:
    """A layout's own values of all of `NAMES` that do not follow from the others."""
    named: dict[str, ChoiceValue] = {name: getattr(layout, name) for name in DEGREES}
    named |= {
        "micro_batch": layout.micro_batch,
        "zero": layout.zero,
        "sequence_parallel": layout.sequence_parallel,
        "recompute": layout.recompute[0].policy,
        "schedule": "none" if layout.schedule is None else str(layout.schedule),
        "stages": tuple(stage.layers[1] for stage in layout.stages),
    }
    return named


def layout_in_words(layout: Layout) -> str:
    """The choices of a layout as `parse_choices` reads them, without the plainest values."""
    named = named_choices(layout)
    parts = [
        f"{name}={str(named[name]).lower()}" for name, plain in _PLAIN.items()
        if named[name] != plain
    ]  # fmt: skip
    if layout.pp > 1:
        ranges = (f"{stage.layers[0]}-{stage.layers[1]}" for stage in layout.stages)
        parts.append(f"stages={'/'.join(ranges)}")
    return ",".join(parts)


_PLAIN: dict[str, ChoiceValue | None] = {
    **dict.fromkeys(DEGREES, 1),
    "micro_batch": None,
    "zero": 0,
    "sequence_parallel": False,
    "recompute": "none",
    "schedule": "none",
}
"""What `layout_in_words` leaves out; micro_batch is always said."""

assert set(RECOMPUTE_POLICIES) <= set(get_args(Recompute.model_fields["policy"].annotation))
