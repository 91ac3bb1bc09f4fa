"""Small problems on unequal groups of nodes, and every layout of their spaces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from shardwright.cost_models.stacks.mixed import MixedModel
from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import catalogue_profile
from shardwright.planner.heterogeneous.layouts import ChosenSet, mixed_layout
from shardwright.planner.heterogeneous.space import MixedSpace
from shardwright.planner.problem import Constraints, Problem
from shardwright.specs import (
    ClusterSpec,
    Layout,
    LinkTier,
    ModelSpec,
    NodeGroup,
    SoftwareSpec,
    TrainingSpec,
)
from tests.planner.conftest import tiny_model
from tests.planner.stacks.small import moe_model

FAST, SLOW = "dgx-a100-80gb", "dgx-1v-32gb"


def nodes(
    slug: str, *, devices: int = 2, num_nodes: int = 1, usable_bytes: int | None = None
) -> NodeGroup:
    """Nodes of so many devices each."""
    group = catalogue.node(slug)
    update: dict[str, Any] = {
        "devices_per_node": devices, "num_nodes": num_nodes, "scale_up_domain_gpus": devices,
        "shared_resources": (),
    }  # fmt: skip
    if usable_bytes is not None:
        update["accelerator"] = group.accelerator.model_copy(
            update={"usable_memory_bytes": usable_bytes}
        )
    return group.model_copy(update=update)


def joined(
    *groups: NodeGroup, bytes_per_s: float = 12.5e9, total: float | None = None
) -> HardwareProfile:
    tier = LinkTier(
        name="ethernet", bandwidth_bytes_per_s=bytes_per_s, latency_s=2e-5, provenance="user",
        source="a test",
    )  # fmt: skip
    cluster = ClusterSpec(
        name="mixed", groups=groups, between_groups=tier, between_groups_total_bytes_per_s=total
    )
    return catalogue_profile(cluster, "a test")


def problem(
    *groups: NodeGroup,
    model: ModelSpec | None = None,
    global_batch: int = 4,
    seq_len: int = 256,
    bytes_per_s: float = 12.5e9,
    total: float | None = None,
    **software: Any,
) -> Problem:
    groups = groups or (nodes(FAST), nodes(SLOW))
    model = (model or tiny_model(4, hidden=256)).model_copy(update={"max_seq_len": 4096})
    return Problem(
        model,
        TrainingSpec(global_batch=global_batch, seq_len=seq_len, precision="fp16"),
        joined(*groups, bytes_per_s=bytes_per_s, total=total),
        SoftwareSpec(framework="generic", **software),
    )


def pricer_of(made: Problem) -> MixedModel:
    return MixedModel(made.model, made.training, made.profile, made.software)


MOST_LISTED = 400
"""Layouts of a random problem that a test prices one by one."""


def random_problem(seed: int) -> tuple[Problem, dict[str, Any]]:
    """A problem whose space can be listed, and what is fixed in it."""
    rng = random.Random(seed)
    while True:
        made, fixed = _drawn(rng)
        space = MixedSpace(made, Constraints(fixed=fixed))
        if 5 <= sum(map(space.num_layouts, space.arrangements)) <= MOST_LISTED:
            return made, fixed


def _drawn(rng: random.Random) -> tuple[Problem, dict[str, Any]]:
    count = rng.choice([2, 2, 2, 3])
    slugs = rng.sample([FAST, SLOW, "dgx-h100", "dgx-a100-40gb"], count)
    sizes = [rng.choice([1, 2, 3, 4] if count == 2 else [1, 2]) for _ in slugs]
    memory = rng.choice([None, None, 3_400_000_000, 4_500_000_000, 6_000_000_000])
    groups = [nodes(s, devices=n, usable_bytes=memory) for s, n in zip(slugs, sizes, strict=True)]
    model = moe_model() if rng.random() < 0.4 else tiny_model(rng.randint(2, 5), hidden=256)
    made = problem(
        *groups, model=model, global_batch=rng.choice([2, 3, 4, 6]),
        seq_len=rng.choice([128, 512]), bytes_per_s=rng.choice([2e7, 1e9, 2e10]),
        total=rng.choice([None, 1e7, 1e10]), overlap_messages=rng.random() < 0.5,
        overlap_gradients=rng.random() < 0.7,
    )  # fmt: skip
    fixed = {
        name: rng.choice(values)
        for name, values, share in (
            ("recompute", ["none", "full"], 0.7), ("zero", [0, 1, 2, 3], 0.7),
            ("micro_batch", [1, 2], 0.5), ("ep", [1, 2], 0.5), ("dp", [1, 2], 0.3),
        )
        if rng.random() < share
    }  # fmt: skip
    return made, fixed


def every_set(space: MixedSpace, groups: tuple[int, ...], share: int) -> Iterator[ChosenSet]:
    """All sets of replicas on these groups that train so many sequences."""
    for choice in space.choices(groups):
        if share % choice.samples:
            continue
        units = range(1, space.problem.num_units)
        for starts in itertools.combinations(units, choice.pp - 1):
            yield ChosenSet(choice, starts, share // choice.samples)


def every_layout(made: Problem, constraints: Constraints) -> Iterator[Layout]:
    """Every layout over two groups or more, listed one by one."""
    space, batch = MixedSpace(made, constraints), made.training.global_batch
    for arrangement in space.arrangements:
        for shares in itertools.product(range(1, batch + 1), repeat=len(arrangement)):
            if sum(shares) != batch:
                continue
            listed = [
                list(every_set(space, groups, share))
                for groups, share in zip(arrangement, shares, strict=True)
            ]
            for chosen in itertools.product(*listed):
                yield mixed_layout(made, chosen)
