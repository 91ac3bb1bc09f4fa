"""What DeepSpeed and accelerate share."""

from __future__ import annotations

import pytest

from shardwright.planner.exporters.exported import Findings
from shardwright.planner.exporters.trainer import (
    refuse_code_parallelism,
    trainer_options,
    version_in,
)
from shardwright.specs import InputError, Recompute
from tests.planner.exporters.jobs import job_of


def test_versions_by_prefix() -> None:
    assert version_in(("0.19.8",), "0.19", "DeepSpeed") == "0.19.8"
    with pytest.raises(InputError, match=r"DeepSpeed 0\.1 is not known"):
        version_in(("0.19.8",), "0.1", "DeepSpeed")


def test_parallelism_that_is_code() -> None:
    layout = job_of(tp=2, cp=2, pp=2).layout
    for has_tensor, rules in ((True, ["pp", "cp"]), (False, ["tp", "pp", "cp"])):
        findings = Findings()
        refuse_code_parallelism(layout, findings, "it", has_tensor=has_tensor)
        assert [one.rule for one in findings.refused] == rules


def test_options_repeat_the_batch() -> None:
    options = dict(
        (option[0], option[1])
        for option in trainer_options(
            job_of(dp=8, micro_batch=2, recompute=Recompute(policy="full"))
        )
    )
    assert options["--per_device_train_batch_size"] == "2"
    assert options["--gradient_accumulation_steps"] == "4"
    assert options["--gradient_checkpointing"] == "true"
    assert options["--bf16"] == "true"
