"""A plan whose layout a trial chose."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import shardwright
from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.specs import Candidate, Plan


def plan_of_pick(
    plan: Plan,
    picked: Candidate,
    *,
    ties: Sequence[Candidate],
    others: Sequence[Candidate],
    command: str | None,
) -> Plan:
    """``plan`` with another layout and prediction; its certificate stays that of the search.

    Args:
        ties: layouts that the trial could not tell apart from the pick.
        others: those that were slower, the fastest first.
        command: what the user typed.
    """
    provenance = plan.provenance.model_copy(
        update={
            "shardwright_version": shardwright.__version__,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
        }
    )
    layout = picked.layout
    return plan.model_copy(
        update={
            "layout": layout,
            "schedule": None if layout.schedule is None else schedule_of(layout),
            "prediction": picked.prediction,
            "ties": tuple(ties),
            "alternatives": tuple(others),
            "provenance": provenance,
        }
    )


def priced_by(plan: Plan, profile_hash: str, profile_source: str) -> Plan:
    """The plan as one that another profile priced."""
    provenance = plan.provenance.model_copy(
        update={"profile_hash": profile_hash, "profile_source": profile_source}
    )
    return plan.model_copy(update={"provenance": provenance})
