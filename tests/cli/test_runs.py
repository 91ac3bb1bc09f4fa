"""Measured runs as users have them: rows, saved runs of ours, one step as options."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from shardwright.cli import _inputs, _runs
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.planner.validation.results import Job
from shardwright.runtime.metrics import StepRecord
from shardwright.specs import InputError, Plan, SoftwareSpec
from tests.cli import samples
from tests.planner.calibration import hidden
from tests.planner.validation import rows

TRAINING = _inputs.Training(global_batch="128", seq_len="4k")


def saved_run(folder: Path, plan: Plan, *, steps: int = 8, step_s: float = 2.5) -> Path:
    """A folder as `run --save` leaves it: slow at first, then ``step_s`` a step."""
    newest = folder / "step-000008"
    newest.mkdir(parents=True)
    (newest / "plan.json").write_text(plan.to_json())
    (folder / "latest").write_text("step-000008\n")
    records = [
        StepRecord(i, 1.0, 1.0, 1e-3, step_s * (9.0 if i <= 3 else 1.0), 1.0)
        for i in range(1, steps + 1)
    ]
    lines = [json.dumps(asdict(record)) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def plan_on(cluster: str = "dgx-h100:1") -> Plan:
    profile = resolve_cluster(cluster)
    layout = samples.layout(pp=1, dp=profile.devices.num_devices)
    return samples.plan(
        cluster=profile.devices, layout=layout, schedule=None,
        prediction=samples.prediction(
            memory=samples.prediction().memory[:1], peak_memory_bytes=(6 * samples.GIB,)
        ),
    )  # fmt: skip


class TestSavedRuns:
    def test_the_plan_and_its_median_step_after_the_warm_up(self, tmp_path: Path) -> None:
        plan = plan_on()
        found, step_s = _runs.read_run_folder(saved_run(tmp_path / "run", plan))
        assert (found, step_s) == (plan, 2.5)

    def test_the_folder_or_its_metrics_name_it(self, tmp_path: Path) -> None:
        folder = saved_run(tmp_path / "run", plan_on())
        for path in (folder, folder / "metrics.jsonl"):
            (job,) = _runs.RunReader().read([path])
            assert isinstance(job, Job)
            assert job.row.step_time_s == 2.5
            assert job.case.profile.devices == plan_on().cluster
            assert job.case.software.framework == "shardwright"

    def test_it_may_be_said_where_it_ran(self, tmp_path: Path) -> None:
        folder = saved_run(tmp_path / "run", plan_on())
        (job,) = _runs.RunReader(resolve_cluster("dgx-h100:4")).read([folder])
        assert isinstance(job, Job)
        assert job.case.profile.devices.num_devices == 8

    def test_too_few_steps(self, tmp_path: Path) -> None:
        folder = saved_run(tmp_path / "run", plan_on(), steps=3)
        with pytest.raises(InputError, match="holds 3 steps; the first 3 are not timed"):
            _runs.read_run_folder(folder)

    def test_no_record(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="holds no record of a run"):
            _runs.read_run_folder(tmp_path)

    def test_no_checkpoint(self, tmp_path: Path) -> None:
        folder = saved_run(tmp_path / "run", plan_on())
        (folder / "latest").unlink()
        with pytest.raises(InputError, match="there is no checkpoint file"):
            _runs.read_run_folder(folder)


class TestRows:
    def read(self, path: Path, *values: object, **reader: object) -> list[Job]:
        path.write_text(json.dumps(values))
        found = _runs.RunReader(**reader).read([path])  # type: ignore[arg-type]
        jobs = [item for item in found if isinstance(item, Job)]
        assert len(jobs) == len(values)
        return jobs

    def test_on_their_own_clusters(self, tmp_path: Path) -> None:
        (job,) = self.read(tmp_path / "runs.json", rows.value())
        assert job.case.accelerator == "a100-sxm4-80gb"
        assert job.case.software.framework == "some-stack"

    def test_on_the_cluster_that_was_named(self, tmp_path: Path) -> None:
        base = resolve_cluster("a100-sxm4-80gb:8x4,inter=50GB/s")
        (job,) = self.read(tmp_path / "runs.json", rows.value(), base=base)
        tier = job.case.profile.devices.groups[0].inter_node
        assert tier is not None
        assert tier.bandwidth_bytes_per_s == 50e9 / 8

    def test_rows_that_name_no_software_are_of_the_one_that_was_named(self, tmp_path: Path) -> None:
        values = rows.value(id="a", stack=None), rows.value(id="b")
        jobs = self.read(tmp_path / "runs.json", *values, stack="torchtitan")
        assert [job.case.software.framework for job in jobs] == ["torchtitan", "some-stack"]
        (job,) = self.read(tmp_path / "runs.json", values[0])
        assert job.case.software.framework == "generic"


class TestOneStep:
    STEP = _runs.OneStep("llama-3.1-8b", "tp=2,zero=1,sp=on", "3500ms", TRAINING)

    def test_what_is_left_out_is_filled_in_and_stated(self) -> None:
        job, assumed = _runs.RunReader(hidden.cluster()).one_step(self.STEP)
        assert job.row.step_time_s == 3.5
        assert (job.layouts[0].tp, job.layouts[0].dp) == (2, 8)
        assert assumed == {"precision": "bf16", "optimizer": "adamw", "software": "generic"}

    def test_the_software_that_was_named(self) -> None:
        job, assumed = _runs.RunReader(hidden.cluster(), "torchtitan").one_step(self.STEP)
        assert job.case.software.attention_kernel == "flash-2"
        assert "software" not in assumed

    def test_the_software_of_a_profile_that_was_calibrated_before(self) -> None:
        own = SoftwareSpec(framework="torchtitan", compile=True)
        base = hidden.cluster().model_copy(update={"software": own})
        for stack in (None, "torchtitan"):
            job, _ = _runs.RunReader(base, stack).one_step(self.STEP)
            assert job.case.software == own

    def test_it_needs_a_cluster(self) -> None:
        with pytest.raises(InputError, match="needs a cluster"):
            _runs.RunReader().one_step(self.STEP)
