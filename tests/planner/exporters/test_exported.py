"""Jobs, findings and the error that names every rule."""

from __future__ import annotations

import pytest

from shardwright.planner.exporters.exported import FIRST_STEPS, Exported, Findings
from shardwright.specs import InputError, OptimizerSpec, TrainingSpec
from tests.planner.exporters.jobs import job_of


def test_steps_of_a_job() -> None:
    budget = TrainingSpec(global_batch=64, seq_len=4096, token_budget=10 * 64 * 4096 + 1)
    assert job_of(training=budget).num_steps == 11
    decay = TrainingSpec(global_batch=64, seq_len=4096, optimizer=OptimizerSpec(decay_steps=7))
    assert job_of(training=decay).num_steps == 7
    assert job_of().num_steps == FIRST_STEPS
    assert not job_of().states_steps


def test_all_that_is_refused_is_said_once() -> None:
    findings = Findings()
    findings.require("it")
    findings.refuse("a", "one is wrong", "x = 1")
    findings.refuse("a", "one is wrong", "x = 1")
    findings.refuse("b", "two is wrong")
    with pytest.raises(InputError) as caught:
        findings.require("it")
    assert caught.value.problem == "it cannot express this plan: one is wrong; two is wrong"
    assert caught.value.fix == "plan again with x = 1"


def test_the_first_file_is_the_main_one() -> None:
    assert Exported("t", "1", {"b": "", "a": ""}).main_file == "b"
