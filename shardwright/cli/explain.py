"""``shardwright explain PLAN``: where time and memory go, and why not another layout."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.cli import _options

if TYPE_CHECKING:
    from shardwright.hardware_profiles.profile import HardwareProfile
    from shardwright.planner.explain import Explanation, WhyNot
    from shardwright.specs import Plan

logger = logging.getLogger(__name__)


def explain(
    plan: _options.PlanFile,
    why_not: Annotated[
        str | None, typer.Option(metavar="L", help="Another layout: tp=4,pp=2; the rest is free.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="C", help="The plan's cluster or profile, where it has moved."),
    ] = None,
    as_json: _options.Json = False,
) -> None:
    """Show where a plan's time and memory go, and why another layout was not chosen."""
    from shardwright.cli import _output
    from shardwright.planner import explain as explaining
    from shardwright.specs import Plan

    loaded = Plan.load(plan)
    needed = why_not is not None or cluster is not None
    profile = prices_of(loaded, cluster) if needed else prices_if_there(loaded)
    with _output.progress("planning again with more memory and a larger batch"):
        found = explaining.explain(loaded, profile)
    answer = None
    if why_not is not None:
        assert profile is not None
        with _output.progress(f"looking at {why_not}"):
            answer = explaining.why_not(loaded, why_not, profile)
    if as_json:
        _output.print_json(as_json_dict(found, answer))
    else:
        _print(loaded, found, answer)


def prices_if_there(plan: Plan) -> HardwareProfile | None:
    """The profile that the plan was made from; None, with a warning, where it is gone."""
    from shardwright.specs import InputError

    try:
        return prices_of(plan, None)
    except InputError as error:
        logger.warning("%s", error.problem)
        logger.warning(
            "without its prices, the time of each pipeline rank and what would help are left out"
        )
        return None


def prices_of(plan: Plan, cluster: str | None) -> HardwareProfile:
    """The profile that the plan was made from.

    Raises:
        InputError: it is not where the plan says, or has changed since.
    """
    from shardwright.specs import InputError

    source = cluster or plan.provenance.profile_source
    profile = _sized(source, plan.cluster.num_devices)
    if profile.content_hash() != plan.provenance.profile_hash:
        raise InputError(
            f"{source} is not what the plan was priced from",
            why="it was measured anew, or this is another version of shardwright",
            fix="name the right one with --cluster, or plan again",
        )
    return profile


def _sized(source: str, num_devices: int) -> HardwareProfile:
    """The cluster, or the part of it that a plan for few devices chose; raises `InputError`."""
    from shardwright.hardware_profiles.resolve import resolve_cluster
    from shardwright.planner.objectives import sizes
    from shardwright.specs import InputError

    try:
        return resolve_cluster(source, gpus=num_devices)
    except InputError:
        parts = sizes(resolve_cluster(source))
        found = [one for one in parts if one.devices.num_devices == num_devices]
        if not found:
            raise
        return found[0]


def as_json_dict(found: Explanation, answer: WhyNot | None) -> dict[str, Any]:
    """The JSON object that ``--json`` prints."""
    from shardwright.planner.layouts import layout_in_words

    return {
        "limit": found.limit,
        "time": [
            {"what": what, "seconds": seconds, "fraction": fraction}
            for what, seconds, fraction in found.time_shares
        ],
        "stages": [
            {
                **{
                    field.name: _plain(getattr(stage, field.name))
                    for field in dataclasses.fields(stage)
                },
                "limit": stage.limit,
                "busy_fraction": stage.busy_fraction,
            }
            for stage in found.stages
        ],
        "sensitivity": [
            {
                "what": one.what,
                "planned_again": one.is_planned_again,
                "gains": [
                    {
                        "factor": gain.factor,
                        "tokens_per_s": gain.tokens_per_s,
                        "gain": gain.gain,
                        "layout": layout_in_words(gain.layout),
                    }
                    for gain in one.gains
                ],
            }
            for one in found.sensitivities
        ],
        "ties": None if found.ties is None else dataclasses.asdict(found.ties),
        "devices": list(found.devices),
        "baselines": list(found.baselines),
        "runners_up": list(found.runners_up),
        "why_not": None if answer is None else _why_not_json(answer),
    }


def _why_not_json(answer: WhyNot) -> dict[str, Any]:
    return {
        "asked": answer.asked,
        "verdict": answer.verdict,
        "reasons": list(answer.reasons),
        "candidate": answer.candidate and answer.candidate.model_dump(mode="json"),
        "too_big": answer.too_big and answer.too_big.model_dump(mode="json"),
        "excess_bytes": answer.excess_bytes,
        "terms": [{"what": what, "more_s": more_s} for what, more_s in answer.terms],
        "nearest": answer.nearest and answer.nearest.model_dump(mode="json"),
        "given_up": answer.given_up,
    }


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _print(plan: Plan, found: Explanation, answer: WhyNot | None) -> None:
    from shardwright.cli import _output, _tables
    from shardwright.planner.layouts import layout_in_words

    _output.print_lines(
        *_tables.plan_lines(plan),
        f"chosen    {layout_in_words(plan.layout)}",
        f"limit     {found.limit}",
    )
    tables = [
        _tables.breakdown_table(plan.prediction),
        *_tables.rank_times_tables(found.stages),
        _tables.memory_table(plan.prediction),
        *_tables.sensitivity_tables(found.sensitivities),
    ]
    _output.print_tables(*tables)
    _output.print_lines(
        *_tables.groups_in_words(plan),
        *(f"runner-up {line}" for line in found.runners_up),
        *([] if found.ties is None else [f"ties      {found.ties.in_words()}"]),
        f"certain   {_tables.certificate_in_words(plan.certificate)}",
        *([] if answer is None else why_not_lines(answer)),
    )


def why_not_lines(answer: WhyNot) -> Iterator[str]:
    """The verdict over the layout that was asked about, the reasons, and the nearest that works."""
    from shardwright.cli._tables import step_in_words
    from shardwright.specs.units import format_bytes

    yield ""
    yield f"why not {answer.asked}? {answer.verdict.replace('_', ' ')}"
    yield from (f"  - {reason}" for reason in answer.reasons)
    if answer.nearest is not None:
        step = step_in_words(answer.nearest.prediction)
        peak = format_bytes(max(answer.nearest.prediction.peak_memory_bytes))
        instead = f" ({answer.given_up})" if answer.given_up else ""
        yield f"  nearest that works{instead}: {answer.nearest_in_words}, {step}, {peak}"
