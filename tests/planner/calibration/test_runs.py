"""Which runs belong together, on which cluster, and which teach nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.calibration.runs import (
    clusters_on,
    job_of_step,
    require_formulas,
    select,
)
from shardwright.planner.validation.problem import CaseMaker
from shardwright.planner.validation.results import Job, Skip, prepare
from shardwright.planner.validation.shapes import Assumptions
from shardwright.planner.validation.stack_fits import run_defaults
from shardwright.specs import InputError, Layout, Precision, SoftwareSpec
from tests.cli import samples
from tests.cli.test_mutations import measured_profile
from tests.planner.calibration import hidden
from tests.planner.validation import rows

A100 = resolve_cluster("dgx-a100-80gb:2")
MAKER = CaseMaker(defaults=run_defaults)


def items(*changes: dict[str, Any]) -> tuple[Job | Skip, ...]:
    made = [rows.row(**{"id": f"r{i}", **change}) for i, change in enumerate(changes)]
    return prepare(made, MAKER)


class TestSelect:
    def test_runs_without_a_step_time_are_left_out(self) -> None:
        oom = {"status": "oom"}
        untimed = {"measured": {"iteration_time_s": None}}
        memory = {"kind": "memory_only"}
        chosen = select(items({}, oom, untimed, memory, {"kind": "collective"}), None)
        assert [job.row.id for job in chosen.jobs] == ["r0"]
        reasons = {one.row.id: one.reason for one in chosen.skipped}
        assert reasons["r1"] == "it ran out of memory"
        assert reasons["r2"] == reasons["r3"] == "no step time was measured"
        assert "collective" in reasons["r4"]

    def test_a_stack_is_chosen(self) -> None:
        chosen = select(items({}, {"stack": "other"}, {"stack": "other"}), "other")
        assert [job.row.id for job in chosen.jobs] == ["r1", "r2"]
        assert chosen.skipped[0].reason == "it ran some-stack, not other"
        assert chosen.software.framework == "other"

    def test_several_stacks_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"2 software stacks: other, some-stack.*--stack NAME"):
            select(items({}, {"stack": "other"}), None)

    def test_several_accelerators_are_refused(self) -> None:
        v100 = {"gpu": "V100-SXM2-32GB", "accelerator": "V100-SXM2-32GB", "gpu_mem_gb": 32}
        fp16 = {"precision": "fp16"}
        with pytest.raises(InputError, match=r"2 accelerators: .*--cluster C"):
            select(items({}, {"hardware": v100, "parallel": fp16}), None)

    def test_nothing_left(self) -> None:
        with pytest.raises(InputError, match=r"none of the 1 runs .*: r0: it ran out of memory"):
            select(items({"status": "oom"}), None)
        with pytest.raises(InputError, match="none of the 0 runs"):
            select([], None)

    def test_home_is_where_most_ran(self) -> None:
        more = {"hardware": {"gpus": 16}, "parallel": {"dp": 4}}
        chosen = select(items({}, more, more), None)
        assert chosen.home.devices.num_devices == 16
        tie = select(items({}, more), None)
        assert tie.home.devices.num_devices == 16


class TestClusters:
    def test_rows_run_on_as_many_of_its_nodes(self) -> None:
        cluster_of, assumed = clusters_on(A100), Assumptions()
        row = rows.row()
        found = cluster_of(row, assumed)
        assert found.devices.num_devices == 8
        assert cluster_of(rows.row(id="again"), assumed) is found
        assert assumed.notes == []

    def test_what_is_not_stated_is_the_cluster_s(self) -> None:
        bare = rows.row(hardware={"gpu": None, "accelerator": None, "gpus": None},
                        parallel={"dp": None})  # fmt: skip
        assumed = Assumptions()
        assert clusters_on(A100)(bare, assumed).devices.num_devices == 16
        assert assumed.notes == ["gpus = 16"]

    def test_other_accelerators_did_not_run_there(self) -> None:
        cluster_of = clusters_on(resolve_cluster("dgx-h100:2"))
        with pytest.raises(InputError, match="it ran on a100-sxm4-80gb, not on the h100-sxm5-80gb"):
            cluster_of(rows.row(), Assumptions())

    def test_measured_curves_are_refused(self) -> None:
        with pytest.raises(InputError, match="measured there, which steps cannot correct"):
            require_formulas(measured_profile())
        require_formulas(A100)

    def test_a_cpu_is_refused(self) -> None:
        (group,) = samples.cluster().groups
        cpu = group.accelerator.model_copy(update={"vendor": "cpu"})
        devices = samples.cluster().model_copy(
            update={"groups": (group.model_copy(update={"accelerator": cpu}),)}
        )
        with pytest.raises(InputError, match="shardwright profile"):
            require_formulas(A100.model_copy(update={"devices": devices}))


class TestOneStep:
    def step(self, **changes: Any) -> Job:
        values: dict[str, Any] = {
            "name": "mine", "model": hidden.model(), "training": hidden.TRAINING,
            "profile": hidden.cluster(), "software": hidden.SOFTWARE,
            "layout": hidden.layouts(hidden.TAUGHT[:1])[0], "step_time_s": 4.0,
        }  # fmt: skip
        return job_of_step(**(values | changes))

    def test_it_is_a_job_with_one_layout(self) -> None:
        job = self.step()
        assert (job.row.id, job.row.step_time_s, len(job.layouts)) == ("mine", 4.0, 1)
        assert select([job], None).home is hidden.cluster()

    def test_its_software_decides_what_is_not_said(self) -> None:
        training = hidden.TRAINING.model_copy(update={"precision": Precision.FP16})
        software = SoftwareSpec(framework="megatron-lm-2021")
        job = self.step(training=training, software=software)
        assert job.case.training.gradient_dtype == "fp16"

    @pytest.mark.parametrize("step_s", [0.0, -1.0, 1e10])
    def test_impossible_times(self, step_s: float) -> None:
        with pytest.raises(InputError, match="the step time of mine is"):
            self.step(step_time_s=step_s)

    def test_impossible_layouts(self) -> None:
        layout = Layout.of(hidden.model(), hidden.TRAINING, tp=4, dp=1)
        with pytest.raises(InputError, match="mine has an impossible layout"):
            self.step(layout=layout)


def test_a_selection_takes_the_software_of_most_runs() -> None:
    compiled = SoftwareSpec(framework="generic", compile=True)
    jobs = hidden.runs(hidden.TAUGHT[:3])
    odd = dataclasses.replace(jobs[0], case=dataclasses.replace(jobs[0].case, software=compiled))
    assert select([odd, *jobs[1:]], None).software == hidden.SOFTWARE
