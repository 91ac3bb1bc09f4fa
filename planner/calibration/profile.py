"""What was learned, written into a `HardwareProfile`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import shardwright
from shardwright.hardware_profiles.profile import HardwareProfile, Parameter, ProfileProvenance
from shardwright.planner.calibration.learn import Lesson
from shardwright.specs import SoftwareSpec

_OWN = ("stack.", "layer.", "band.")
"""Parameters that speak for one software; another one's go when a profile is calibrated anew."""


def calibrated_profile(
    base: HardwareProfile,
    lesson: Lesson,
    software: SoftwareSpec,
    *,
    sources: Sequence[str],
    command: str | None = None,
) -> HardwareProfile:
    """``base`` with what was learned in place of its own numbers; the rest stays as it is.

    Args:
        software: whose runs they were.
        sources: the files, or what else the runs were read from, in words.
    """
    now = datetime.now(UTC)
    count = len(lesson.runs)
    taught = (
        f"calibrated {now:%Y-%m-%d} on {count} {'run' if count == 1 else 'runs'} of"
        f" {lesson.stack}: {', '.join(sources)}"
    )
    learned = {p.name: p for p in _parameters(lesson, taught)}
    kept = {p.name: p for p in base.parameters if _may_stay(p, base, lesson)}
    return base.model_copy(
        update={
            "provenance": ProfileProvenance(
                created_at=now.isoformat(timespec="seconds"),
                host=base.provenance.host,
                software=base.provenance.software | {"shardwright": shardwright.__version__},
                command=command,
            ),
            "parameters": tuple((kept | learned).values()),
            "software": software,
        }
    )


def _may_stay(parameter: Parameter, base: HardwareProfile, lesson: Lesson) -> bool:
    known = base.software is not None and base.software.framework == lesson.stack
    return known or not parameter.name.startswith(_OWN)


def _parameters(lesson: Lesson, taught: str) -> list[Parameter]:
    found = [
        Parameter(
            name=one.name, value=one.after, unit=one.unit, kind="derived", fitted_from=taught,
            spread=one.spread_after,
        )
        for one in lesson.parameters
    ]  # fmt: skip
    found += [
        Parameter(name=name, value=ratio, unit="1", kind="derived", fitted_from=taught)
        for name, ratio in sorted(lesson.layers.items())
    ]
    ends = (("band.low_ratio", lesson.band.low), ("band.high_ratio", lesson.band.high))
    return found + [
        Parameter(name=name, value=end, unit="1", kind="derived", fitted_from=lesson.band_source)
        for name, end in ends
    ]
