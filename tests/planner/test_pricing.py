"""Bounds from the real cost model against its own predictions of whole layouts."""

from __future__ import annotations

import itertools
import random

import pytest

from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Point
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.bounds import (
    StageBounds,
    cut_memory_bytes,
    quick_memory_bound_bytes,
    quick_step_bound_s,
)
from shardwright.planner.partition import Cut
from shardwright.planner.pricing import StepPricer
from shardwright.planner.problem import Constraints, Problem
from shardwright.planner.search import search
from shardwright.planner.space import Space
from shardwright.specs import (
    AttentionBlock,
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    MlpBlock,
    ModelSpec,
    NormBlock,
    ResidualBranch,
    SharedResource,
    Tower,
    TrainingSpec,
)
from tests.planner.conftest import tiny_model


def gpt_like(num_layers: int = 3) -> ModelSpec:
    """Tied embedding, learned positions, biases; three heads and an odd vocabulary."""
    norm = NormBlock(type="layer_norm", hidden_size=48, bias=True, epsilon=1e-5)
    attention = AttentionBlock(
        hidden_size=48, num_heads=3, num_kv_heads=3, head_dim=16, qkv_bias=True, output_bias=True,
        rotary=None,
    )  # fmt: skip
    mlp = MlpBlock(hidden_size=48, ffn_size=190, activation="gelu", gated=False, bias=True)
    branches = tuple(ResidualBranch(body=body, pre_norm=norm) for body in (attention, mlp))
    blocks = (
        EmbeddingBlock(vocab_size=131, hidden_size=48, max_positions=64),
        LayerBlock(branches=branches, repeat=num_layers),
        norm,
        HeadBlock(vocab_size=131, hidden_size=48, tied=True),
    )
    tower = Tower(name="decoder", blocks=blocks)
    return ModelSpec(name="gpt", family="custom", towers=(tower,), max_seq_len=64, source="test")


def two_kinds_of_layers() -> ModelSpec:
    """A wide layer, a narrow one, and two wide ones."""
    model = tiny_model(1)
    embedding, wide, norm, head = model.decoder.blocks
    assert isinstance(wide, LayerBlock)
    attention, mlp = wide.branches
    narrow_mlp = mlp.model_copy(update={"body": mlp.body.model_copy(update={"ffn_size": 32})})
    narrow = wide.model_copy(update={"branches": (attention, narrow_mlp)})
    blocks = (embedding, wide, narrow, wide.model_copy(update={"repeat": 2}), norm, head)
    decoder = model.decoder.model_copy(update={"blocks": blocks})
    return model.model_copy(update={"towers": (decoder,)})


def cores(num_ranks: int, num_cores: float, memory_bytes: int = 2**33) -> HardwareProfile:
    """A machine whose ranks share cores: curves with 1, 2 and 4 busy ranks on a formula's base."""
    catalogue = resolve_cluster("dgx-h100", gpus=num_ranks)
    (group,) = catalogue.devices.groups
    device = group.accelerator.model_copy(
        update={"usable_memory_bytes": memory_bytes, "vendor": "cpu"}
    )
    shared = SharedResource(kind="cores", capacity=num_cores, ranks=num_ranks)
    group = group.model_copy(
        update={"accelerator": device, "shared_resources": (shared,), "name": "cores"}
    )
    curves = tuple(
        Curve(
            quantity="bytes" if op == "elementwise" else "flops",
            op=op,
            dtype="fp32",
            concurrency=busy,
            points=tuple(
                Point(x, 1e-5 + x * rate * max(1.0, busy / num_cores), 0.0, 5)
                for x in (1e3, 1e5, 1e7)
            ),
        )
        for op, rate in (
            ("elementwise", 1e-10),
            ("matmul/forward@n=64,k=64", 1e-10),
            ("matmul/input_gradient@n=64,k=64", 1e-10),
            ("matmul/weight_gradient@n=64,k=64", 1e-10),
            ("attention/forward@head_dim=16,seq=16", 2e-10),
            ("attention/backward@head_dim=16,seq=16", 2e-10),
        )
        for busy in (1, 2, 4)
        if busy <= num_ranks
    )
    devices = catalogue.devices.model_copy(update={"groups": (group,)})
    return catalogue.model_copy(update={"devices": devices, "curves": curves})


def training(global_batch: int, precision: str = "fp32", seq_len: int = 16) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {"global_batch": global_batch, "seq_len": seq_len, "precision": precision}
    )


PROBLEMS = {
    "llama on 4 GPUs": lambda: Problem(
        tiny_model(3), training(8, "bf16"), resolve_cluster("dgx-h100", gpus=4)
    ),
    "gpt on 6 GPUs": lambda: Problem(
        gpt_like(), training(6, "bf16"), resolve_cluster("dgx-h100", gpus=6)
    ),
    "two kinds of layers on 4 GPUs": lambda: Problem(
        two_kinds_of_layers(), training(8, "bf16"), resolve_cluster("dgx-h100", gpus=4)
    ),
    "llama on 4 ranks of 2 cores": lambda: Problem(tiny_model(3), training(8), cores(4, 2)),
    "gpt on 3 ranks of 2 cores": lambda: Problem(gpt_like(), training(6), cores(3, 2)),
    "llama on 2 nodes": lambda: Problem(
        tiny_model(4, heads=8), training(16, "bf16"), resolve_cluster("dgx-h100", gpus=16)
    ),
}


@pytest.fixture(params=list(PROBLEMS.values()), ids=list(PROBLEMS))
def problem(request: pytest.FixtureRequest) -> Problem:
    made: Problem = request.param()
    return made


def all_cuts(problem: Problem, pp: int) -> list[Cut]:
    return list(itertools.combinations(range(1, problem.num_units), pp - 1))


def test_bounds_never_exceed_predictions(problem: Problem) -> None:
    """On 150 layouts drawn from all valid ones, with seed 0."""
    pricer = StepPricer(problem)
    draw = random.Random(0)
    valid = Space(problem, Constraints()).valid
    for _ in range(150):
        choices = draw.choice(valid)
        cut = draw.choice(all_cuts(problem, choices.pp))
        seconds, held = pricer.unit_seconds(choices), pricer.unit_bytes(choices)
        bounds = StageBounds(choices, seconds, held, pricer.capacity_bytes)
        prediction = pricer.predict(choices.layout(problem, tuple(unit - 1 for unit in cut)))
        bound_s = max(quick_step_bound_s(choices, seconds), bounds.cut_step_s(cut))
        assert bound_s <= prediction.step_time_s, (choices, cut)
        peak = max(prediction.peak_memory_bytes)
        assert quick_memory_bound_bytes(choices, held) <= peak, (choices, cut)
        assert cut_memory_bytes(choices, held, cut) <= peak, (choices, cut)
        # A bound that excludes nothing would be admissible, too.
        assert cut_memory_bytes(choices, held, cut) >= 0.75 * peak, (choices, cut)


def test_bounds_are_tight_where_nothing_is_shared() -> None:
    """Without shared cores the bound of the best cut is nearly the simulated step itself."""
    problem = PROBLEMS["llama on 2 nodes"]()
    pricer = StepPricer(problem)
    for choices in Space(problem, Constraints(fixed={"pp": 4, "zero": 1})).valid[::5]:
        seconds, held = pricer.unit_seconds(choices), pricer.unit_bytes(choices)
        bounds = StageBounds(choices, seconds, held, pricer.capacity_bytes)
        cuts = all_cuts(problem, choices.pp)
        best = min(cuts, key=bounds.cut_step_s)
        layout = choices.layout(problem, tuple(unit - 1 for unit in best))
        assert bounds.cut_step_s(best) == pytest.approx(
            pricer.predict(layout).step_time_s, rel=0.02
        )


def test_certified_step_equals_exhaustive_prediction(problem: Problem) -> None:
    """Every grid, boundary, schedule, ZeRO and recompute is predicted; micro_batch is 1 or 2."""
    pricer = StepPricer(problem)
    constraints = Constraints(
        fixed={"micro_batch": 1 if problem.world > 4 else 2},
        forbidden=frozenset({"pp=8", "pp=16", "pp=6"}),
    )
    best_s = min(
        pricer.predict(choices.layout(problem, tuple(unit - 1 for unit in cut))).step_time_s
        for choices in Space(problem, constraints).valid
        for cut in all_cuts(problem, choices.pp)
    )
    result = search(problem, constraints, pricer)
    assert result.certificate.optimal
    assert result.ranking[0].step_s == pytest.approx(best_s, rel=1e-9)


def test_more_boundaries_than_any_machine_can_try() -> None:
    """80 layers in 16 stages: the best of 1e15 cuts is proven with a handful of simulations."""
    problem = Problem(
        tiny_model(80, heads=16), training(64, "bf16"), resolve_cluster("dgx-h100", gpus=16)
    )
    result = search(problem, Constraints(fixed={"pp": 16, "micro_batch": 1}), StepPricer(problem))
    assert result.certificate.considered > 10**15
    assert result.certificate.optimal
    assert result.certificate.simulated < 100


def test_units_stand_in_model_order() -> None:
    """Embedding, wide, narrow, wide, wide, head: equal layers cost the same, others do not."""
    problem = PROBLEMS["two kinds of layers on 4 GPUs"]()
    pricer = StepPricer(problem)
    for choices in Space(problem, Constraints(fixed={"tp": 2})).valid[::7]:
        seconds, held = pricer.unit_seconds(choices), pricer.unit_bytes(choices)
        for values in (seconds.forward_s, seconds.backward_s, held.state, held.saved):
            assert len(values) == problem.num_units
            if choices.recompute == "none" or values is not held.saved:
                assert values[1] == values[3] == values[4] > values[2]
