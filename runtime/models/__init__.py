"""Models as stages of units, built for one rank of a layout."""

from shardwright.runtime.models.stage import RankModule, StageModule, build_rank, build_stage
from shardwright.runtime.models.units import Unit

__all__ = ["RankModule", "StageModule", "Unit", "build_rank", "build_stage"]
