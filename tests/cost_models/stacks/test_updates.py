from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shardwright.cost_models.stacks.links import axes
from shardwright.cost_models.stacks.operations import Traffic
from shardwright.cost_models.stacks.step import StackModel
from shardwright.cost_models.stacks.updates import Trained, Updates
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import stack_facts, stack_parameters
from shardwright.specs import Layout, TrainingSpec
from shardwright.specs.sources import resolve_model

MODEL = resolve_model("llama-3.1-8b")
TRAINING = TrainingSpec(global_batch=64, seq_len=4096)
PROFILE = resolve_cluster("dgx-h100:4")
PARAMETERS = stack_parameters(None, PROFILE)
COUNT = 1e9


def stack_model(parameters: Mapping[str, float] = PARAMETERS) -> StackModel:
    software = stack_facts(None).software
    return StackModel(MODEL, TRAINING, PROFILE, software, parameters)


def updates(**choices: Any) -> tuple[Updates, StackModel]:
    layout = Layout.of(MODEL, TRAINING, **choices)
    model = stack_model()
    return Updates(
        MODEL, TRAINING, layout, model._links, model._rates[False], PARAMETERS, axes(layout)
    ), model  # fmt: skip


def test_zero_1_reduces_and_gathers_as_much_as_an_all_reduce_does() -> None:
    plain, model = updates(dp=32)
    sharded, _ = updates(dp=32, zero=1)
    trained = Trained(COUNT, 0.0)
    links = model._links
    assert plain.reduction_s(trained) == links.seconds("all_reduce", 4 * COUNT, 32, 1)
    assert plain.publish_s(trained) == 0.0
    assert sharded.reduction_s(trained) == links.seconds("reduce_scatter", 4 * COUNT, 32, 1)
    assert sharded.publish_s(trained) == links.seconds("all_gather", 2 * COUNT / 32, 32, 1)


def test_copies_of_a_shard_are_summed_over_their_replicas() -> None:
    found, model = updates(dp=32, zero=1, zero_shard_degree=8, expert_zero_shard_degree=8)
    links = model._links
    both_s = links.seconds("reduce_scatter", 4 * COUNT, 8, 1) + links.seconds(
        "all_reduce", 4 * COUNT / 8, 4, 8
    )
    assert found.reduction_s(Trained(COUNT, 0.0)) == both_s
    assert found.reduction_s(Trained(0.0, COUNT)) == both_s


@pytest.mark.parametrize(("zero", "reduced"), [(2, 0.0), (3, 0.0)])
def test_what_was_reduced_for_each_micro_batch_is_not_reduced_again(
    zero: int, reduced: float
) -> None:
    found, _ = updates(dp=32, zero=zero)
    assert found.reduction_s(Trained(COUNT, 0.0)) == reduced


def test_adding_gradients_moves_gradient_and_buffer_twice_or_a_shard_of_them() -> None:
    trained = Trained(COUNT, 0.0)
    whole, model = updates(dp=32, zero=1)
    sharded, _ = updates(dp=32, zero=2)
    assert whole.accumulation_s(trained) == model._rates[False].traffic(Traffic(10 * COUNT, 0))
    assert sharded.accumulation_s(trained) == pytest.approx(whole.accumulation_s(trained) / 32)


def test_the_tied_table_is_summed_over_both_ends_of_the_pipeline() -> None:
    found, model = updates(pp=4, dp=8)
    assert found.tied_sum_s(Trained(COUNT, 0.0)) == 0.0
    assert found.tied_sum_s(Trained(COUNT, 0.0, COUNT)) == model._links.seconds(
        "all_reduce", 4 * COUNT, 2, 24
    )


def test_an_offloaded_optimizer_moves_over_the_host_link_and_works_from_host_memory() -> None:
    trained = Trained(COUNT, 0.0)
    here, _ = updates(dp=32, zero=1)
    there, _ = updates(dp=32, zero=1, offload=("optimizer",))
    own = COUNT / 32
    at_least_s = (
        own * 6 / PARAMETERS["host.link_bytes_per_s"]
        + own * 30 / (PARAMETERS["host.memory_bytes_per_s"])
    )
    assert there.optimizer_s(trained) > at_least_s > here.optimizer_s(trained)


@pytest.mark.parametrize("what", ["activations", "optimizer", "parameters"])
def test_nothing_is_offloaded_for_free(what: str) -> None:
    model = stack_model()
    plain = model.step_time_s(Layout.of(MODEL, TRAINING, dp=32, zero=1))
    offloaded = model.step_time_s(Layout.of(MODEL, TRAINING, dp=32, zero=1, offload=(what,)))
    assert offloaded > 1.01 * plain


def test_a_pipeline_inside_the_replicas_spreads_these() -> None:
    outside = axes(Layout.of(MODEL, TRAINING, tp=2, pp=4, dp=4))
    inside = axes(Layout.of(MODEL, TRAINING, tp=2, pp=4, dp=4, rank_order="tp-cp-pp-dp"))
    assert (outside["dp"], outside["pp"]) == ((4, 2), (2, 8))
    assert (inside["dp"], inside["pp"]) == ((4, 8), (2, 2))
