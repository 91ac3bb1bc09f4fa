"""`calibrate` from the command line: what it writes, what it says, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import resolve_cluster
from tests.cli.endings import Ending, end_of
from tests.cli.test_mutations import measured_profile
from tests.cli.test_runs import plan_on, saved_run
from tests.planner.validation import rows

ONE = ("--model", "llama-3.1-8b", "--layout", "tp=2,zero=1,sp=on", "--global-batch", "128",
       "--seq-len", "4k")  # fmt: skip
STEP = (*ONE, "--cluster", "dgx-h100:2", "--step-time", "4.2s")


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """Six layouts of one job, a run that was not timed and one of other software."""
    layouts = [
        {"tp": 8, "pp": 1, "dp": 1}, {"tp": 4, "pp": 2, "dp": 1}, {"tp": 2, "pp": 2, "dp": 2},
        {"tp": 1, "pp": 2, "dp": 4}, {"tp": 2, "pp": 1, "dp": 4}, {"tp": 1, "pp": 1, "dp": 8},
    ]  # fmt: skip
    values = [
        rows.value(
            id=f"run-{i}", measured={"iteration_time_s": 1.0 + 0.05 * i},
            parallel=layout | {"num_microbatches": None},
        )
        for i, layout in enumerate(layouts)
    ]  # fmt: skip
    values += [rows.value(id="untimed", measured={"iteration_time_s": None})]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([*values, "no row"]))
    return str(path)


def answer_of(*arguments: str) -> dict[str, Any]:
    ending = end_of(["calibrate", *arguments, "--json"])
    assert list(ending.json_faults()) == []
    assert ending.code == 0, ending.err
    found: dict[str, Any] = json.loads(ending.out)
    return found


def step_of(cluster: str, *more: str) -> float:
    ending = end_of(["estimate", "llama-3.1-8b", "--cluster", cluster, *ONE[2:], *more, "--json"])
    assert ending.code == 0, ending.err
    answer = json.loads(ending.out)
    assert "generic" in answer["assumed"]["software"]
    return float(answer["prediction"]["step_time_s"])


class TestOneStep:
    def test_estimates_are_then_near_it(self, tmp_path: Path) -> None:
        path = str(tmp_path / "p.json")
        answer = answer_of(*STEP, "-o", path)
        (run,) = answer["runs"]
        assert run["measured_step_time_s"] == 4.2
        assert run["after_s"] == pytest.approx(4.2, rel=0.04)
        assert abs(run["before_s"] - 4.2) > abs(run["after_s"] - 4.2)
        assert step_of(path) == pytest.approx(run["after_s"])
        assert answer["assumed"] == {
            "precision": "bf16", "optimizer": "adamw", "software": "generic"
        }  # fmt: skip

    def test_the_profile_serves_other_sizes_of_its_cluster(self, tmp_path: Path) -> None:
        path = str(tmp_path / "p.json")
        answer_of(*STEP, "-o", path)
        assert step_of(path, "--gpus", "32") < 0.6 * step_of(path)

    def test_a_profile_is_added_to(self, tmp_path: Path) -> None:
        first, second = str(tmp_path / "p.json"), str(tmp_path / "q.json")
        answer_of(*STEP, "-o", first)
        again = answer_of(*ONE, "--profile", first, "--step-time", "4.2s", "-o", second)
        before = {one["name"]: one for one in again["parameters"]}
        profile = HardwareProfile.from_json(Path(first).read_text())
        for name, one in before.items():
            assert one["before"] == profile.parameter(name)
        assert again["median_error"]["before"] < 0.04
        assert again["assumed"]["software"] == "generic (as calibrated)"


class TestRows:
    def test_everything_is_told(self, runs: str, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        answer = answer_of(runs, "-o", str(path))
        assert answer["stack"] == "some-stack"
        assert [run["id"] for run in answer["runs"]] == [f"run-{i}" for i in range(6)]
        assert {one["id"] for one in answer["skipped"]} == {"untimed", "row 8"}
        assert answer["median_error"]["after"] < answer["median_error"]["before"]
        assert answer["median_error"]["left_out"] is not None
        assert len(answer["parameters"]) == 7
        assert all(one["meaning"] for one in answer["parameters"])
        profile = HardwareProfile.from_json(path.read_text())
        assert profile.devices.accelerator.name == "a100-sxm4-80gb"
        assert profile.software is not None
        assert profile.software.framework == "some-stack"
        assert [profile.parameter(f"band.{end}_ratio") for end in ("low", "high")] == answer["band"]

    def test_for_people(self, runs: str, tmp_path: Path) -> None:
        ending = end_of(["calibrate", runs, "-o", str(tmp_path / "p.json")])
        assert list(ending.faults()) == []
        for words in (
            "some-stack", "6 in 6 configurations, 2 left out", "1: no step time was measured",
            "stack.compute_ratio", "time of matrix products", "as before", "left out",
            "error     in the median", "known no better than before", "written",
        ):  # fmt: skip
            assert words in ending.out

    def test_on_a_cluster_of_one_s_own(self, runs: str, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        cluster = "a100-sxm4-80gb:8x4,inter=50GB/s"
        answer_of(runs, "--cluster", cluster, "-o", str(path))
        assert HardwareProfile.from_json(path.read_text()).devices.num_devices == 32

    def test_the_catalogue_says_what_such_a_profile_is(self, runs: str, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        answer_of(runs, "-o", str(path))
        assert "calibrated on runs of some-stack" in end_of(["cluster", "show", str(path)]).out

    def test_far_off_runs_are_named(self, tmp_path: Path) -> None:
        value = rows.value(id="slow", measured={"iteration_time_s": 50.0})
        (tmp_path / "runs.json").write_text(json.dumps([value]))
        ending = end_of(
            ["calibrate", str(tmp_path / "runs.json"), "-o", str(tmp_path / "p.json")]
        )  # fmt: skip
        assert "far off   1 that count less, for nothing explains them: slow" in ending.out


def test_a_saved_run(tmp_path: Path) -> None:
    folder = saved_run(tmp_path / "run", plan_on(), step_s=0.05)
    answer = answer_of(str(folder), "-o", str(tmp_path / "p.json"))
    assert answer["stack"] == "shardwright"
    assert answer["runs"][0]["measured_step_time_s"] == 0.05


class TestBadInput:
    def refused(self, tmp_path: Path, *arguments: str) -> Ending:
        output = tmp_path / "out.json"
        ending = end_of(["calibrate", *arguments, "-o", str(output)])
        assert list(ending.faults()) == []
        assert ending.code == 2
        assert ending.out == ""
        assert not output.exists()
        return ending

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ((), "there is no run to learn from"),
            (("no.json",), "there is no runs file"),
            (("--step-time", "3s"), "a measured step needs --model, --layout, --global-batch"),
            (ONE, "a measured step needs --step-time"),
            (("--seq-len", "4k"), "a measured step needs"),
            ((*ONE, "--step-time", "3s"), "a measured step needs a cluster"),
            ((*STEP, "--profile", "p.json"), "both --cluster and --profile"),
            (("--gpus", "8"), "--gpus and --nodes need a cluster"),
            ((*STEP[:-1], "3 apples"), "is not a quantity in seconds"),
            ((*STEP[:-1], "0s"), "the step time of --step-time is 0 s"),
            ((*STEP, "--stack", "torchtitan2"), "--stack cannot be 'torchtitan2'"),
            ((*STEP, "--nodes", "3"), "drop one of the two counts"),
            ((*STEP, "--precision", "int3"), "--precision"),
        ],
    )
    def test_options(self, tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
        assert told in self.refused(tmp_path, *arguments).err

    def test_impossible_layouts(self, tmp_path: Path) -> None:
        step = [*STEP]
        step[3] = "tp=3"
        assert "impossible layout" in self.refused(tmp_path, *step).err

    def test_several_stacks(self, tmp_path: Path) -> None:
        values = [rows.value(id="a"), rows.value(id="b", stack="other")]
        path = tmp_path / "runs.json"
        path.write_text(json.dumps(values))
        assert "2 software stacks" in self.refused(tmp_path, str(path)).err
        assert "it ran" in self.refused(tmp_path, str(path), "--stack", "torchtitan").err

    def test_measured_profiles(self, tmp_path: Path) -> None:
        path = tmp_path / "measured.json"
        path.write_text(measured_profile().to_json())
        torchtitan = ("--stack", "torchtitan", "--step-time", "3s", "--profile", str(path))
        told = self.refused(tmp_path, *ONE, *torchtitan).err
        assert "ran torchtitan" in told
        assert "our own runtime" in told
        assert (
            "is a log of megatron-lm"
            in self.refused(tmp_path, MEGATRON, "--profile", str(path)).err
        )

    def test_what_is_there_is_never_replaced(self, runs: str, tmp_path: Path) -> None:
        path = tmp_path / "there.json"
        path.write_text(resolve_cluster("dgx-h100:1").to_json())
        before = path.read_text()
        ending = end_of(["calibrate", runs, "-o", str(path)])
        assert (ending.code, path.read_text()) == (2, before)
        assert "--force" in ending.err
        assert end_of(["calibrate", runs, "-o", str(path), "--force"]).code == 0
        assert path.read_text() != before


LOGS = Path(__file__).parents[1] / "planner/calibration/logs/fixtures"
MEGATRON, TITAN = str(LOGS / "megatron_core_arguments.log"), str(LOGS / "torchtitan_2025.log")


class TestLogs:
    def test_a_log_that_states_its_job(self, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        answer = answer_of(MEGATRON, "--cluster", "dgx-h100:2", "-o", str(path))
        (run,), (log,) = answer["runs"], answer["logs"]
        assert run["id"] == log["log"] == MEGATRON
        assert abs(run["after_s"] / run["measured_step_time_s"] - 1) < 0.05
        assert log["left_out"] == {"of warm-up": 1}
        assert {one["what"] for one in log["memory"]} == {"allocated", "reserved"}
        profile = HardwareProfile.from_json(path.read_text())
        assert MEGATRON in (profile.parameters[-3].fitted_from or "")

    def test_for_people(self, tmp_path: Path) -> None:
        ending = end_of(
            ["calibrate", TITAN, "--cluster", "dgx-h100", "--model", "llama-3.1-8b", "-o",
             str(tmp_path / "p.json")]
        )  # fmt: skip
        assert list(ending.faults()) == []
        for words in (
            "torchtitan, 620 ms (median of 4 of 6 prints; left out: 1 of"
            " warm-up, 1 slower than the rest; from tokens per second and GPU)",
            "reserved: at most 41.2 GiB in the log", "software torchtitan (the log's kind)",
            "before", "after", "95 % within",
        ):  # fmt: skip
            assert words in ending.out

    def test_a_layout_for_each_log(self, tmp_path: Path) -> None:
        logs = []
        for name in ("a", "b"):
            logs.append(str(tmp_path / f"{name}.log"))
            Path(logs[-1]).write_text((LOGS / "mindspeed_npu.log").read_text())
        answer = answer_of(
            *logs, "--cluster", "dgx-h100:2", "--model", "llama-3.1-8b", "--seq-len", "4k",
            "--layout", "tp=2,zero=1", "--layout", "tp=8,zero=1", "-o", str(tmp_path / "p.json"),
        )  # fmt: skip
        before = [run["before_s"] for run in answer["runs"]]
        assert before[0] != before[1]

    def test_beside_rows(self, tmp_path: Path) -> None:
        row = rows.value(id="row", stack="megatron-bridge", measured={"iteration_time_s": 1.4})
        (tmp_path / "rows.json").write_text(json.dumps([row]))
        row_and_log = answer_of(
            str(tmp_path / "rows.json"), MEGATRON, "--cluster", "a100-sxm4-80gb:8x2", "--stack",
            "megatron-bridge", "-o", str(tmp_path / "p.json"),
        )  # fmt: skip
        assert [run["id"] for run in row_and_log["runs"]] == ["row", MEGATRON]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((MEGATRON,), "does not state where it ran because"),
            ((TITAN, "--cluster", "dgx-h100"), "does not state the model"),
            ((MEGATRON, *STEP), "--step-time and a log"),
            ((MEGATRON, "--layout", "tp=2", "--layout", "tp=4"), "2 layouts are given for 1 logs"),
            ((MEGATRON, "--cluster", "dgx-h100", "--layout", "tp=5"), "impossible layout"),
            ((MEGATRON, "--cluster", "dgx-h100", "--global-batch", "8"), "global batch of 64"),
            (("nowhere.log",), "there is no log nowhere.log"),
            (("nowhere.json",), "there is no runs file nowhere.json"),
        ],
    )
    def test_one_clear_line(self, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
        ending = end_of(["calibrate", *arguments, "-o", str(tmp_path / "out.json")])
        assert list(ending.faults()) == []
        assert ending.code == 2
        assert words in ending.err
        assert not (tmp_path / "out.json").exists()
