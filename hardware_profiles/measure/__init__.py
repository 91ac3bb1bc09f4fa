"""Measuring this machine: compute, memory, collectives and what ranks share."""

from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.session import profile, profile_party

__all__ = ["MeasurePlan", "Party", "profile", "profile_party"]
