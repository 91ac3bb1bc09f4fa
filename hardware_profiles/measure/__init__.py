"""Measuring this machine: compute, memory, collectives and what ranks share."""

from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.session import profile

__all__ = ["MeasurePlan", "profile"]
