"""Small problems on software stacks, and every layout of their spaces."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwright.cost_models.pipeline.orders import ranks_of_stages
from shardwright.cost_models.pricing import stack_model
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.problem import ChoiceValue, Constraints, Problem
from shardwright.planner.stacks.choices import Leaf, StackChoices
from shardwright.planner.stacks.space import StackSpace
from shardwright.specs import (
    EmbeddingBlock,
    HeadBlock,
    InputError,
    LatentAttentionBlock,
    LayerBlock,
    MlpBlock,
    ModelSpec,
    MoeBlock,
    NormBlock,
    ResidualBranch,
    SoftwareSpec,
    Tower,
    TrainingSpec,
)
from tests.planner.conftest import tiny_model

WIDTH = 256


def moe_model() -> ModelSpec:
    """One dense layer, three with experts, latent attention."""
    norm = NormBlock(type="rms_norm", hidden_size=WIDTH, bias=False, epsilon=1e-5)
    attention = LatentAttentionBlock(
        hidden_size=WIDTH, num_heads=4, q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=32, rotary=None,
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=WIDTH, ffn_size=512, activation="silu", gated=True, bias=False)
    moe = MoeBlock(
        hidden_size=WIDTH, expert_size=128, num_experts=4, top_k=2, activation="silu", gated=True,
        shared_size=128,
    )  # fmt: skip

    def layer(body: MlpBlock | MoeBlock, repeat: int) -> LayerBlock:
        branches = (
            ResidualBranch(body=attention, pre_norm=norm),
            ResidualBranch(body=body, pre_norm=norm),
        )
        return LayerBlock(branches=branches, repeat=repeat)

    blocks = (
        EmbeddingBlock(vocab_size=1000, hidden_size=WIDTH), layer(mlp, 1), layer(moe, 3), norm,
        HeadBlock(vocab_size=1000, hidden_size=WIDTH, tied=False),
    )  # fmt: skip
    tower = Tower(name="decoder", blocks=blocks)
    return ModelSpec(
        name="small-moe", family="custom", towers=(tower,), max_seq_len=4096, source="a test"
    )


def dense_model(num_layers: int) -> ModelSpec:
    """Equal layers, for long sequences too."""
    model = tiny_model(num_layers, hidden=64)
    return model.model_copy(update={"max_seq_len": 4096})


def problem(
    model: ModelSpec | None = None,
    *,
    gpus: int = 4,
    global_batch: int = 4,
    seq_len: int = 1024,
    usable_bytes: int | None = None,
) -> Problem:
    profile = resolve_cluster("dgx-h100", gpus=gpus)
    training = TrainingSpec(global_batch=global_batch, seq_len=seq_len)
    software = SoftwareSpec(framework="generic")
    made = Problem(model or moe_model(), training, profile, software)
    return made if usable_bytes is None else with_memory(made, usable_bytes)


def dense_problem(**options: int) -> Problem:
    return problem(tiny_model(4, hidden=64), **({"seq_len": 64} | options))


def with_memory(made: Problem, usable_bytes: int) -> Problem:
    """The same on devices with so much memory, and no room set aside."""
    (group,) = made.profile.devices.groups
    device = group.accelerator.model_copy(update={"usable_memory_bytes": usable_bytes})
    group = group.model_copy(update={"accelerator": device})
    devices = made.profile.devices.model_copy(update={"groups": (group,)})
    kept = tuple(p for p in made.profile.parameters if "communicator" not in p.name)
    profile = made.profile.model_copy(update={"devices": devices, "parameters": kept})
    return replace(made, profile=profile)


def pricer_of(made: Problem) -> StackModel:
    return stack_model(made.model, made.training, made.profile, made.software)


def every_layout(space: StackSpace) -> Iterator[StackChoices]:
    """Everything that a space has, one by one, without a price: all boundaries, every policy of
    every stage, where a rank has several all of them alike, and every number of chunks."""
    units = range(1, space.problem.num_units)
    for leaf in every_leaf(space):
        for starts in itertools.combinations(units, num_stages(leaf) - 1):
            for recompute in every_recompute(space, leaf, starts):
                for chunks in space.loss_chunks:
                    yield StackChoices(*leaf, chunks, starts, recompute)


def every_leaf(space: StackSpace) -> Iterator[Leaf]:
    """All that obeys the rules, but for what is not counted."""
    for grid in space.valid:
        for cut in space.valid_cuts(grid):
            for state in space.valid_states(grid, cut):
                for pipeline in space.valid_pipelines(grid):
                    yield Leaf(grid, cut, state, pipeline)


def num_stages(leaf: Leaf) -> int:
    return leaf.grid.pp * leaf.pipeline.vpp


def every_recompute(
    space: StackSpace, leaf: Leaf, starts: tuple[int, ...]
) -> Iterator[tuple[str, ...]]:
    """By stage."""
    layers = layers_of(space.problem, starts)
    if leaf.pipeline.vpp == 1:
        yield from itertools.product(*(stage_policies(space, count) for count in layers))
        return
    ranks = ranks_of_stages(leaf.pipeline.schedule, leaf.grid.pp, leaf.pipeline.vpp)
    most = [0] * leaf.grid.pp
    for rank, count in zip(ranks, layers, strict=True):
        most[rank] = max(most[rank], count)
    for chosen in itertools.product(*(stage_policies(space, count) for count in most)):
        yield tuple(
            _of_stage(chosen[rank], count) for rank, count in zip(ranks, layers, strict=True)
        )


def layers_of(made: Problem, starts: tuple[int, ...]) -> list[int]:
    """How many layers each stage has."""
    edges = (0, *starts, made.num_units)
    return [
        min(stop, made.num_units - 1) - max(start, 1) for start, stop in itertools.pairwise(edges)
    ]


def stage_policies(space: StackSpace, num_layers: int) -> list[str]:
    """Of a stage: those of the space, and as many first layers as it has in part."""
    found = list(space.recomputes)
    if "full" in found and "recompute" not in space.fixed:
        found += [f"full:{count}" for count in range(1, num_layers)]
    return found


def _of_stage(policy: str, num_layers: int) -> str:
    """A rank's policy on a stage that may have fewer layers."""
    if not policy.startswith("full:"):
        return policy
    count = min(int(policy.partition(":")[2]), num_layers)
    return f"full:{count}" if count else "none"


def draw_choices(space: StackSpace, draw: random.Random) -> StackChoices:
    """Any layout."""
    grid = draw.choice(space.valid)
    cut = draw.choice(space.valid_cuts(grid))
    state = draw.choice(space.valid_states(grid, cut))
    leaf = Leaf(grid, cut, state, draw.choice(space.valid_pipelines(grid)))
    units = range(1, space.problem.num_units)
    starts = tuple(sorted(draw.sample(units, num_stages(leaf) - 1)))
    layers = layers_of(space.problem, starts)
    if leaf.pipeline.vpp == 1:
        recompute = tuple(draw.choice(stage_policies(space, count)) for count in layers)
    else:
        ranks = ranks_of_stages(leaf.pipeline.schedule, grid.pp, leaf.pipeline.vpp)
        chosen = [draw.choice(stage_policies(space, max(layers))) for _ in range(grid.pp)]
        recompute = tuple(
            _of_stage(chosen[rank], count) for rank, count in zip(ranks, layers, strict=True)
        )
    return StackChoices(*leaf, draw.choice(space.loss_chunks), starts, recompute)


@dataclass(frozen=True, slots=True)
class Brute:
    """What brute force found."""

    best_s: float
    """Infinite where nothing fits."""
    best: StackChoices | None
    num_layouts: int


def brute_force(made: Problem, constraints: Constraints) -> Brute:
    """The fastest layout that fits, of all."""
    pricer, space = pricer_of(made), StackSpace(made, constraints)
    found = Brute(math.inf, None, 0)
    count = 0
    for choices in every_layout(space):
        count += 1
        layout = choices.layout(made, space.others)
        step_s = pricer.step_time_s(layout)
        if step_s < found.best_s and pricer.verdict(pricer.memory(layout)) == "fits":
            found = Brute(step_s, choices, count)
    return replace(found, num_layouts=count)


_SEARCHED: dict[str, list[ChoiceValue]] = {
    "tp": [1, 2], "cp": [1, 2], "pp": [2, 3, 4], "ep": [1, 2], "etp": [1], "micro_batch": [1],
    "zero": [0, 1, 3], "sequence_parallel": [False], "offload": ["none", "optimizer"],
    "rank_order": ["tp-cp-dp-pp"],
}  # fmt: skip
_OFTEN = ("etp", "sequence_parallel", "offload", "rank_order")
"""Fixed most of the time, for these make spaces large."""
_SOFTWARE: dict[str, list[object]] = {
    "overlap_messages": [True, False], "overlap_gradients": [True, False],
    "overlap_weights": [True, False], "fused_accumulation": [True, False],
    "cuda_graphs": [False, True], "attention_kernel": ["flash", "flash", "math"],
    "scatter_messages": [False, True],
}  # fmt: skip


def draw_problem(seed: int) -> tuple[Problem, Constraints] | None:
    """A small problem with some choices fixed and a random amount of memory; None where what is
    fixed leaves nothing."""
    draw = random.Random(seed)
    model = moe_model() if draw.random() < 0.4 else dense_model(draw.randint(2, 4))
    software = SoftwareSpec.model_validate(
        {"framework": "generic"} | {name: draw.choice(of) for name, of in _SOFTWARE.items()}
    )
    made = replace(
        problem(
            model, gpus=draw.choice([2, 3, 4]), global_batch=draw.choice([1, 2, 3, 4, 6, 8]),
            seq_len=draw.choice([64, 256, 1024]),
        ),
        software=software,
    )  # fmt: skip
    fixed = {
        name: draw.choice(values)
        for name, values in _SEARCHED.items()
        if draw.random() < (0.9 if name in _OFTEN else 0.5)
    }
    constraints = Constraints(fixed=fixed)
    try:
        space = StackSpace(made, constraints)
        if not space.valid:
            return None
    except InputError:
        return None
    return with_memory(made, _some_memory(space, draw)), constraints


def _some_memory(space: StackSpace, draw: random.Random) -> int:
    """Into which some of the layouts fit, or all, or none."""
    made = with_memory(space.problem, 2**40)
    pricer = pricer_of(made)
    peaks = sorted(
        max(one.total_bytes for one in pricer.memory(
            draw_choices(space, draw).layout(made, space.others)
        ))
        for _ in range(24)
    )  # fmt: skip
    return int(draw.choice([0.9, 1.3, 1.3, 1.3]) * draw.choice(peaks))
