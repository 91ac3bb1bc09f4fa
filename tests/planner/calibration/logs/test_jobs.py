"""A log as a job: what it states counts, what it lacks is asked for at once."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.calibration.logs.jobs import Given, log_job, memory_checks
from shardwright.planner.layout_text import parse_choices
from shardwright.planner.question import Training
from shardwright.specs import InputError, Recompute
from shardwright.specs.sources import read_model
from tests.planner.calibration.logs.samples import fixture


@pytest.fixture(scope="module")
def cluster() -> HardwareProfile:
    return resolve_cluster("dgx-h100:2")


def test_a_table_of_arguments_is_enough(cluster: HardwareProfile) -> None:
    found = log_job(fixture("megatron_core_arguments.log"), Given(cluster))
    (layout,), case = found.job.layouts, found.job.case
    assert (layout.tp, layout.pp, layout.dp, layout.zero) == (4, 2, 2, 1)
    assert layout.sequence_parallel
    assert layout.micro_batches == 32
    llama = read_model("llama-3.1-8b").spec
    assert case.model.num_parameters == llama.num_parameters
    assert (case.training.global_batch, case.training.seq_len) == (64, 8192)
    assert found.job.row.step_time_s == pytest.approx(found.steady.step_time_s)
    assert found.assumed == {"software": "generic"}
    assert "median of 7 of 8 prints" in found.in_words()


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(InputError) as error:
        log_job(fixture("nemo_flops.log"), Given())
    assert "where it ran, the model, the sequence length and the layout" in str(error.value)
    assert (
        "add --cluster C --model M --seq-len N --layout tp=..,pp=..,zero=.."
        in str(error.value)
    )  # fmt: skip


def test_only_what_is_missing_is_asked_for(cluster: HardwareProfile) -> None:
    with pytest.raises(InputError) as error:
        log_job(fixture("torchtitan_2025.log"), Given(cluster))
    assert "does not state the model because" in str(error.value)
    assert str(error.value).endswith("add --model M")


def test_the_cluster_takes_the_size_that_the_log_states(cluster: HardwareProfile) -> None:
    given = Given(cluster, read_model("llama-3.1-8b").spec)
    found = log_job(fixture("torchtitan_2025.log"), given)
    assert found.job.case.num_gpus == 32
    (layout,) = found.job.layouts
    assert (layout.tp, layout.dp, layout.zero, layout.micro_batch) == (4, 8, 3, 2)
    assert all(policy.policy == "selective" for policy in _policies(layout.recompute))
    assert found.job.case.software.framework == "torchtitan"
    assert found.assumed["software"] == "torchtitan (the log's kind)"


def _policies(recompute: Recompute | tuple[Recompute, ...]) -> tuple[Recompute, ...]:
    return recompute if isinstance(recompute, tuple) else (recompute,)


def test_what_is_given_wins(cluster: HardwareProfile) -> None:
    given = Given(
        cluster, training=Training(precision="fp16"), choices=parse_choices("tp=8,pp=2,sp=off"),
        stack="megatron-lm-2022",
    )  # fmt: skip
    found = log_job(fixture("megatron_core_arguments.log"), given)
    (layout,) = found.job.layouts
    assert (layout.tp, layout.pp, layout.dp) == (8, 2, 1)
    assert not layout.sequence_parallel
    assert layout.zero == 0
    assert found.job.case.training.precision == "fp16"
    assert found.job.case.software.framework == "megatron-lm-2022"


def test_a_batch_that_the_log_contradicts(cluster: HardwareProfile) -> None:
    given = Given(cluster, training=Training(global_batch="256"))
    with pytest.raises(InputError, match="trained with a global batch of 64, not of 256"):
        log_job(fixture("megatron_core_arguments.log"), given)


def test_an_impossible_layout(cluster: HardwareProfile) -> None:
    with pytest.raises(InputError, match="impossible layout"):
        log_job(
            fixture("megatron_core_arguments.log"), Given(cluster, choices=parse_choices("tp=3"))
        )


def test_memory_stands_beside_the_prediction(cluster: HardwareProfile) -> None:
    found = log_job(fixture("megatron_core_arguments.log"), Given(cluster))
    checks = {one.what: one for one in memory_checks(found)}
    assert checks.keys() == {"allocated", "reserved"}
    assert checks["allocated"].measured_bytes == 31234.25 * 2**20
    assert checks["allocated"].predicted_bytes > 0


def test_a_log_of_memory_alone_says_so(cluster: HardwareProfile) -> None:
    from shardwright.planner.calibration.logs.recognise import read_log_text

    text = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 5.0 | max allocated: 6.0"
    with pytest.raises(InputError, match="says nothing of how long a step took"):
        log_job(read_log_text(text), Given(cluster))
