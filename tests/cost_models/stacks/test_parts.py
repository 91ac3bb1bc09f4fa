"""Parts of a step add up to it."""

from __future__ import annotations

from typing import get_args

import pytest

from shardwright.cost_models.stacks.parts import PartName, part_seconds
from shardwright.cost_models.stacks.step import StackModel
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import GENERIC, stack_facts, stack_parameters
from shardwright.specs import Layout, ModelSpec, TrainingSpec
from shardwright.specs.sources import read_model

TRAINING = TrainingSpec(global_batch=64, seq_len=4096)


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    return read_model("llama-3.1-8b").spec


@pytest.fixture(scope="module")
def priced(llama: ModelSpec) -> StackModel:
    cluster = resolve_cluster("dgx-h100:2")
    software = stack_facts(GENERIC).software
    return StackModel(llama, TRAINING, cluster, software, stack_parameters(GENERIC, cluster))


def test_without_a_pipeline_they_are_the_step(llama: ModelSpec, priced: StackModel) -> None:
    layout = Layout.of(llama, TRAINING, tp=2, dp=8, zero=1, sequence_parallel=True)
    parts = {name: part_seconds(priced, layout, name) for name in get_args(PartName)}
    inside = parts["forward"] + parts["backward"] + parts["reduction"]
    assert parts["passes"] == pytest.approx(inside)
    assert parts["step"] == pytest.approx(
        parts["passes"] + parts["update"] + priced.fixed_s(layout)
    )
    assert parts["step"] == priced.step_time_s(layout)


def test_ranks_of_a_pipeline_differ(llama: ModelSpec, priced: StackModel) -> None:
    layout = Layout.of(llama, TRAINING, tp=2, dp=2, pp=4, boundaries=(4, 12, 20))
    longest = part_seconds(priced, layout, "forward")
    last = part_seconds(priced, layout, "forward", of_last_rank=True)
    assert longest == pytest.approx(last)  # 12 layers and the head
    first_heavy = Layout.of(llama, TRAINING, tp=2, dp=2, pp=4, boundaries=(14, 20, 26))
    assert part_seconds(priced, first_heavy, "forward") > 1.5 * part_seconds(
        priced, first_heavy, "forward", of_last_rank=True
    )


def test_a_pipeline_waits_beyond_one_rank_s_passes(llama: ModelSpec, priced: StackModel) -> None:
    layout = Layout.of(llama, TRAINING, tp=2, dp=2, pp=4)
    one = part_seconds(priced, layout, "forward") + part_seconds(priced, layout, "backward")
    assert part_seconds(priced, layout, "passes") > one
