"""The nouns: what is read from files, passed between the four houses, and written back."""

from shardwright.specs._base import Spec
from shardwright.specs.cluster import (
    AcceleratorSpec,
    ClusterSpec,
    LinkTier,
    NodeGroup,
    SharedResource,
)
from shardwright.specs.errors import InfeasibleError, InputError, RunError, ShardwrightError
from shardwright.specs.layout import Layout, Recompute, ScheduleName, Stage, StageMesh, Violation
from shardwright.specs.model import (
    AttentionBlock,
    Edge,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    MlpBlock,
    ModelSpec,
    NormBlock,
    ResidualBranch,
    RotaryPositions,
    Tower,
)
from shardwright.specs.plan import Plan, PlanProvenance
from shardwright.specs.prediction import (
    Breakdown,
    Candidate,
    Certificate,
    MemoryParts,
    Prediction,
)
from shardwright.specs.schedule import Action, ActionKind, Schedule
from shardwright.specs.software import SoftwareSpec
from shardwright.specs.training import OptimizerSpec, Precision, PrecisionDTypes, TrainingSpec
from shardwright.specs.world import Coordinates, WorldSize

__all__ = [
    "AcceleratorSpec",
    "Action",
    "ActionKind",
    "AttentionBlock",
    "Breakdown",
    "Candidate",
    "Certificate",
    "ClusterSpec",
    "Coordinates",
    "Edge",
    "EmbeddingBlock",
    "HeadBlock",
    "InfeasibleError",
    "InputError",
    "LayerBlock",
    "Layout",
    "LinkTier",
    "MemoryParts",
    "MlpBlock",
    "ModelSpec",
    "NodeGroup",
    "NormBlock",
    "OptimizerSpec",
    "Plan",
    "PlanProvenance",
    "Precision",
    "PrecisionDTypes",
    "Prediction",
    "Recompute",
    "ResidualBranch",
    "RotaryPositions",
    "RunError",
    "Schedule",
    "ScheduleName",
    "ShardwrightError",
    "SharedResource",
    "SoftwareSpec",
    "Spec",
    "Stage",
    "StageMesh",
    "Tower",
    "TrainingSpec",
    "Violation",
    "WorldSize",
]
