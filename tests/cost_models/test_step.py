"""The whole step: its books add up, its parts come from where they should, and it is fast."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from shardwright.cost_models.flops import model_flops_megatron
from shardwright.cost_models.pipeline.makespan import PipelineCosts, simulate
from shardwright.cost_models.pipeline.program import program_of
from shardwright.cost_models.step import StepModel
from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Point
from shardwright.specs import (
    ActionKind,
    ClusterSpec,
    InputError,
    Layout,
    ModelSpec,
    Recompute,
    SharedResource,
    TrainingSpec,
)
from shardwright.specs.sources import model_from_config
from tests.cost_models.profiles import PARAMETERS, cluster, profile

CONFIG = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}  # fmt: skip
MODEL = model_from_config(CONFIG, name="small", source="a test").spec
TIED = model_from_config(CONFIG | {"tie_word_embeddings": True}, name="tied", source="a test").spec
TRAINING = TrainingSpec(global_batch=32, seq_len=512)
FULL = Recompute(policy="full")
PASSES = (ActionKind.FORWARD, ActionKind.BACKWARD)


def step_model(
    devices: ClusterSpec | None = None,
    *,
    model: ModelSpec = MODEL,
    training: TrainingSpec = TRAINING,
    curves: Iterable[Curve] = (),
    **parameters: float,
) -> StepModel:
    named = {name.replace("__", "."): value for name, value in parameters.items()}
    return StepModel(model, training, profile(devices, curves, PARAMETERS | named))


def layout(*, model: ModelSpec = MODEL, **choices: Any) -> Layout:
    return Layout.of(model, TRAINING, **choices)


LAYOUTS = [
    {"dp": 8},
    {"dp": 8, "zero": 1},
    {"dp": 8, "zero": 3},
    {"dp": 8, "zero": 3, "zero_shard_degree": 4, "recompute": FULL},
    {"tp": 2, "dp": 4, "sequence_parallel": True},
    {"tp": 8, "recompute": FULL},
    {"pp": 8},
    {"pp": 4, "dp": 2, "schedule": "gpipe", "zero": 1},
    {"tp": 2, "pp": 2, "dp": 2, "micro_batch": 2, "recompute": FULL, "boundaries": (3,)},
    {"pp": 4, "vpp": 2, "dp": 2, "zero": 3},
    {"pp": 8, "schedule": "zb-h1"},
    {"pp": 4, "schedule": "zb-h2", "dp": 2, "zero": 2, "recompute": FULL},
    {"pp": 4, "vpp": 2, "schedule": "zb-v", "tp": 2, "sequence_parallel": True},
    {"pp": 4, "vpp": 2, "schedule": "dualpipev", "dp": 2, "zero": 3},
]


@pytest.mark.parametrize("choices", LAYOUTS, ids=str)
@pytest.mark.parametrize("model", [MODEL, TIED], ids=lambda model: model.name)
def test_the_breakdown_is_the_step(choices: dict[str, Any], model: ModelSpec) -> None:
    price = step_model(model=model)
    chosen = layout(model=model, **choices)
    found = price.predict(chosen)
    breakdown = found.breakdown
    assert breakdown.total_s == found.step_time_s > 0
    assert found.bubble_fraction == breakdown.bubble / found.step_time_s
    assert (breakdown.pp_comm > 0) == (chosen.pp > 1)
    assert (breakdown.tp_comm > 0) == (chosen.tp > 1)
    assert (breakdown.recompute > 0) == (chosen.recompute[0] == FULL)
    assert (breakdown.bubble > 1e-12) == (chosen.pp > 1)
    assert found.tokens_per_s == pytest.approx(TRAINING.tokens_per_step / found.step_time_s)
    assert len(found.memory) == len(found.peak_memory_bytes) == chosen.pp


def test_the_step_without_a_pipeline_is_the_sum_of_its_parts() -> None:
    price = step_model(step__overhead_s=0.25, step__data_s_per_token=1e-6)
    chosen = layout(dp=8, zero=1)
    (stage,) = price.stage_costs(chosen)
    passes_s = stage.forward[0].total_s + stage.backward[0].total_s
    outside_s = stage.reduction_s + stage.norm_s + stage.update_s + stage.publish_s
    fixed = price.fixed_seconds(chosen)
    assert fixed.overhead_s == 0.25
    assert fixed.data_s == pytest.approx(4 * 512 * 1e-6)
    expected_s = 4 * passes_s + outside_s + price.fixed_s(chosen)
    assert price.predict(chosen).step_time_s == pytest.approx(expected_s, rel=1e-12)


def test_the_halves_of_a_split_backward_are_the_whole() -> None:
    """Of equal stages too: ZB-H1 computes as long as 1F1B and waits less."""
    price = step_model()
    whole, split = layout(pp=4, dp=2, zero=3), layout(pp=4, dp=2, zero=3, schedule="zb-h1")
    works = price.pipeline_costs(split).work_s
    for stage, costs in enumerate(price.stage_costs(split)):
        halves = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
        total_s = sum(works[stage, half][0] for half in halves)
        assert total_s == pytest.approx(costs.backward[0].total_s, rel=1e-12)
    plain, zero_bubble = price.predict(whole), price.predict(split)
    assert zero_bubble.bubble_fraction < plain.bubble_fraction
    assert zero_bubble.breakdown.compute_backward == pytest.approx(plain.breakdown.compute_backward)


def test_a_pair_takes_as_long_as_its_parts() -> None:
    price = step_model()
    chosen = layout(pp=2, vpp=2, schedule="dualpipev")
    works, stages = price.pipeline_costs(chosen).work_s, price.stage_costs(chosen)
    for stage, other in ((0, 3), (3, 0), (1, 2), (2, 1)):
        together_s = stages[stage].forward[0].total_s + stages[other].backward[0].total_s
        assert works[stage, ActionKind.OVERLAP_F_B][0] == pytest.approx(together_s)


def test_a_tied_weight_on_one_rank_is_kept_and_updated_once() -> None:
    """In a V the first and the last stage sit on rank 0: its weight is not summed over ranks."""
    price = step_model(model=TIED)
    v = layout(model=TIED, pp=2, vpp=2, schedule="zb-v")
    loop = layout(model=TIED, pp=2, vpp=2)
    first, last = (price.stage_costs(v)[stage] for stage in (0, 3))
    assert first.tied_sum_s == last.tied_sum_s == 0 < price.stage_costs(loop)[0].tied_sum_s
    weights = [sum(parts.weights for parts in price.memory(one)) for one in (v, loop)]
    table = TIED.embedding.vocab_size * TIED.embedding.hidden_size * 2
    assert weights[1] - weights[0] == table


def test_a_rank_reduces_while_others_still_run() -> None:
    """The last stage is done first; only what its reductions take longer delays the step."""
    price = step_model()
    chosen = layout(pp=4, dp=2)
    timeline, stages = price.timeline(chosen), price.stage_costs(chosen)
    ends_s = [ends[-1] for ends in timeline.ends_s]
    assert ends_s[3] < ends_s[0] == timeline.makespan_s
    ready_s = max(end + s.reduction_s + s.norm_s for end, s in zip(ends_s, stages, strict=True))
    update_s = max(stage.update_s + stage.publish_s for stage in stages)
    step_s = price.predict(chosen).step_time_s
    assert step_s == pytest.approx(ready_s + update_s + price.fixed_s(chosen), rel=1e-12)


def test_zero_3_pays_for_every_micro_batch() -> None:
    price = step_model()
    few = price.predict(layout(dp=8, zero=3, micro_batch=4)).breakdown.dp_comm_exposed
    many = price.predict(layout(dp=8, zero=3, micro_batch=1)).breakdown.dp_comm_exposed
    assert many > 3 * few
    zero_1 = [
        price.predict(layout(dp=8, zero=1, micro_batch=size)).breakdown.dp_comm_exposed
        for size in (1, 4)
    ]
    assert zero_1[0] == pytest.approx(zero_1[1])


def test_recompute_is_the_forward_of_the_layers_again() -> None:
    price = step_model()
    plain, again = (
        price.stage_costs(layout(tp=2, dp=4, recompute=policy))[0] for policy in (None, FULL)
    )
    layers = plain.units[1:-1]
    forward_s = sum(unit.forward[0].compute_s for unit in layers)
    assert again.backward[0].recompute_s == pytest.approx(forward_s)
    assert again.backward[0].compute_s == pytest.approx(plain.backward[0].compute_s)
    extra_comm_s = again.backward[0].tp_comm_s - plain.backward[0].tp_comm_s
    assert extra_comm_s == pytest.approx(sum(unit.forward[0].tp_comm_s for unit in layers))


def test_mfu_is_megatrons_flops_over_all_peaks() -> None:
    found = step_model().predict(layout(dp=8))
    flops = model_flops_megatron(MODEL, TRAINING)
    assert found.mfu == pytest.approx(flops / (found.step_time_s * 8 * 1e15))


def test_the_band_is_the_profiles() -> None:
    found = step_model(band__low_ratio=0.8, band__high_ratio=1.5).predict(layout(dp=8))
    ratios = [bound / found.step_time_s for bound in found.step_time_band_s]
    assert ratios == pytest.approx([0.8, 1.5])


def test_the_slowest_tensor_parallel_rank_sets_the_pace() -> None:
    """Six query heads and two kv heads over four ranks: the second rank reads both kv heads."""
    config = CONFIG | {
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "hidden_size": 192,
    }  # fmt: skip
    model = model_from_config(config, name="uneven", source="a test").spec
    price = step_model(model=model)
    chosen = layout(model=model, tp=4, dp=2)
    ranks = price.units.books(chosen, 0)
    assert len(ranks) == 3
    kv_sizes = [next(p for p in books.parameters if "qkv" in p.name).local_shape for books in ranks]
    assert kv_sizes[1][0] > kv_sizes[0][0]
    alone = [
        price.units.unit_costs(chosen, (books.units[1],), 0, price.groups(chosen), (8,))
        for books in ranks
    ]
    together = price.stage_costs(chosen)[0].units[1]
    assert together.forward[0].total_s == max(one.forward[0].total_s for one in alone)


# Shared cores


def shared_profile() -> HardwareProfile:
    """Four ranks on two cores: with more than two busy, everything takes longer in proportion."""
    devices = cluster(ranks_per_node=4, shared=(SharedResource(kind="cores", capacity=2, ranks=4),))
    curves = [
        Curve(
            quantity="bytes", op=f"shared/{kind}", dtype="bf16", concurrency=busy,
            points=(Point(1e6, 1e-3 * max(1.0, busy / 2), 0.0, 5),),
        )
        for kind in ("matmul", "attention", "elementwise")
        for busy in (1, 2, 4)
    ]  # fmt: skip
    return profile(devices, curves, PARAMETERS | {"launch_overhead_s": 0.0})


def test_waiting_ranks_give_their_cores_to_others() -> None:
    price = StepModel(MODEL, TRAINING, shared_profile())
    chosen = layout(pp=4)
    costs = price.pipeline_costs(chosen)
    assert costs.shared is not None
    assert costs.shared.levels == (1, 2, 3, 4)
    levels = costs.work_s[1, ActionKind.FORWARD]
    assert [seconds / levels[0] for seconds in levels] == pytest.approx([1.0, 1.0, 1.5, 2.0])
    work_s = [sum(costs.work_s[stage, kind][0] for kind in PASSES) for stage in range(4)]
    makespan_s = price.timeline(chosen).makespan_s
    # All work over two cores at best; as if all four were always busy at worst.
    assert makespan_s > 32 * sum(work_s) / 2
    always_busy = PipelineCosts({work: (s[-1],) for work, s in costs.work_s.items()},
                                costs.transfer_s)  # fmt: skip
    assert makespan_s < simulate(program_of(chosen), always_busy).makespan_s
    found = price.predict(chosen)
    assert found.breakdown.total_s == found.step_time_s


def test_without_shared_cores_there_is_one_level() -> None:
    price = step_model()
    assert price.shared_cores(layout(pp=8)) is None
    assert price.levels(layout(pp=8)) == (8,)


# Memory


def test_verdicts() -> None:
    margin = {"memory.fragmentation_fraction": 0.25}
    chosen = layout(dp=8)
    live = StepModel(MODEL, TRAINING, profile()).predict(chosen).peak_memory_bytes[0]

    def verdict(capacity_bytes: int) -> str:
        devices = cluster()
        group = devices.groups[0]
        device = group.accelerator.model_copy(update={"usable_memory_bytes": capacity_bytes})
        group = group.model_copy(update={"accelerator": device})
        devices = devices.model_copy(update={"groups": (group,)})
        price = StepModel(MODEL, TRAINING, profile(devices, (), PARAMETERS | margin))
        return price.predict(chosen).memory_verdict

    assert verdict(round(live * 1.25)) == "fits"
    assert verdict(round(live * 1.25) - 1) == "edge"
    assert verdict(live) == "edge"
    assert verdict(live - 1) == "does_not_fit"


def test_a_model_that_no_block_describes_is_refused() -> None:
    with pytest.raises(InputError, match="selective recompute"):
        step_model().predict(layout(dp=8, recompute=Recompute(policy="selective")))


# Speed


def test_a_warm_prediction_is_fast() -> None:
    from shardwright.hardware_profiles.resolve import resolve_cluster
    from shardwright.specs.sources import resolve_model

    model = resolve_model("llama-3.1-70b")
    training = TrainingSpec(global_batch=128, seq_len=8192)
    price = StepModel(model, training, resolve_cluster("dgx-h100", gpus=64))
    chosen = Layout.of(
        model, training, tp=4, pp=8, dp=2, zero=1, sequence_parallel=True, recompute=FULL
    )
    assert chosen.micro_batches == 64
    price.predict(chosen)
    seconds = []
    for _ in range(9):
        start = time.process_time()
        price.predict(chosen)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 5e-3
