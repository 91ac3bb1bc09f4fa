"""Models as stages of units, built for one rank of a layout."""

from shardwright.runtime.models.stage import StageModule, build_stage
from shardwright.runtime.models.units import Unit

__all__ = ["StageModule", "Unit", "build_stage"]
