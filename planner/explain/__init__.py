"""Where a plan's time and memory go, what limits it, and why not another layout."""

from shardwright.planner.explain.report import Explanation, StageShare, TieSet, explain
from shardwright.planner.explain.sensitivity import Gain, Sensitivity, sensitivities
from shardwright.planner.explain.shares import (
    LIMITS,
    difference_in_words,
    time_shares,
    what_limits,
)
from shardwright.planner.explain.why_not import WhyNot, why_not

__all__ = [
    "LIMITS",
    "Explanation",
    "Gain",
    "Sensitivity",
    "StageShare",
    "TieSet",
    "WhyNot",
    "difference_in_words",
    "explain",
    "sensitivities",
    "time_shares",
    "what_limits",
    "why_not",
]
