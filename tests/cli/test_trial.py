"""`trial` times what the plan names, and writes and prints what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli import execute
from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Point
from shardwright.planner.trials.terms import predicted_terms
from shardwright.runtime.seats import Seats
from shardwright.runtime.trial import Failure, TrialJob, Visit
from shardwright.specs import Breakdown, Plan
from tests.cost_models.profiles import cluster, profile

SLOWNESS = (1.35, 1.30, 1.45, 1.50)
"""Measured over predicted of each layout: the second becomes the fastest."""


def _slowed(breakdown: Breakdown, ratio: float) -> dict[str, float]:
    return {name: ratio * seconds for name, seconds in predicted_terms(breakdown).items()}


def _measured(job: TrialJob) -> TrialJob:
    """Every layout three times; the last of four fails."""
    count = len(job.entries)
    visits = tuple(
        Visit(
            index=index,
            step_times_s=(entry.prediction.step_time_s * SLOWNESS[index] * (1 + 1e-3 * number),),
            terms_s=(_slowed(entry.prediction.breakdown, SLOWNESS[index]),) * entry.layout.world,
        )
        for number in range(3)
        for index, entry in enumerate(job.entries)
        if index < 3
    )
    failures = (Failure(index=3, reason="rank 1 was killed"),) if count > 3 else ()
    return job.model_copy(update={"visits": visits, "failures": failures})


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[TrialJob]:
    found: list[TrialJob] = []

    def run_trial(job: TrialJob, seats: Seats, report: object = None) -> TrialJob:
        assert seats.leads
        found.append(job)
        return _measured(job)

    monkeypatch.setattr("shardwright.runtime.sessions.run_trial", run_trial)
    for variable in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(variable, raising=False)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with a curve, so that our own layers are priced, and a plan on it."""
    folder = tmp_path_factory.mktemp("trial")
    launch = Curve(quantity="launches", op="launch", dtype="bf16", points=(Point(1, 1e-6, 0, 1),))
    priced = profile(cluster(num_nodes=1, ranks_per_node=4), [launch])
    (folder / "profile.json").write_text(priced.to_json())
    command = ["plan", "gpt2", "--cluster", str(folder / "profile.json"), "--global-batch", "8"]
    assert execute([*command, "--top", "4", "-o", str(folder / "plan.json")]) == 0
    return folder


def _answer(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, Any]:
    capsys.readouterr()
    assert execute(["trial", *command, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_shortlist_is_timed_and_the_fastest_picked(
    folder: Path, jobs: list[TrialJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picked, corrected, drawing = (tmp_path / name for name in ("p.json", "c.json", "d.svg"))
    answer = _answer(
        capsys, str(folder / "plan.json"), "--top", "4", "--steps", "9", "--rounds", "3",
        "-o", str(picked), "--corrected", str(corrected), "--plot", str(drawing),
    )  # fmt: skip
    (job,) = jobs
    assert (job.num_rounds, job.steps_per_visit, job.data, job.races) == (3, 3, "mock", True)
    plan = Plan.load(folder / "plan.json")
    assert job.entries[0].layout == plan.layout
    assert len(answer["layouts"]) == 3
    assert answer["layouts"][0]["verdict"] == "fastest"
    assert answer["picked"] == answer["layouts"][0]["layout"]
    assert [one["verdict"] for one in answer["layouts"][1:]] == ["slower", "slower"]
    assert answer["failed"][0]["reason"] == "rank 1 was killed"
    times = [one["measured_step_time_s"] for one in answer["layouts"]]
    assert times == sorted(times)
    made = Plan.load(picked)
    assert made.layout == job.entries[1].layout
    assert made.prediction.step_time_s == answer["layouts"][0]["corrected_step_time_s"]
    assert [one.layout for one in made.alternatives] == [
        job.entries[0].layout, job.entries[2].layout
    ]  # fmt: skip
    taught = HardwareProfile.from_json(corrected.read_text(encoding="utf-8"))
    assert made.provenance.profile_hash == taught.content_hash()
    assert answer["correction"]["taken"]
    error = answer["correction"]["median_error"]
    assert error["after"] < error["before"] / 3
    names = {parameter.name for parameter in taught.parameters}
    assert {one["name"] for one in answer["correction"]["parameters"]} <= names
    assert drawing.read_text(encoding="utf-8").startswith("<svg")
    assert execute(["explain", str(picked)]) == 0


def test_text_says_who_won_and_why(
    folder: Path, jobs: list[TrialJob], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["trial", str(folder / "plan.json"), "--top", "4"]) == 0
    out = capsys.readouterr().out
    assert "pick      " in out
    assert "faster than all others (95% sure" in out
    assert "stopped early of 10" in out
    assert "failed    " in out
    assert "error     median" in out
    assert "correction.compute_ratio" in out
    assert "compute, forward" in out
    assert jobs[0].num_rounds == 10


def test_layouts_of_a_file_are_compared_and_what_cannot_run_is_named(
    folder: Path, jobs: list[TrialJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "layouts.json"
    listed.write_text('["tp=4,mb=8", {"pp": 2, "tp": 2, "micro_batch": 4}, "tp=2,cp=2,mb=8"]')
    answer = _answer(capsys, str(folder / "plan.json"), "--compare", str(listed))
    assert not jobs[0].races
    assert len(answer["layouts"]) == 2
    (skipped,) = answer["skipped"]
    assert "cp = 2" in skipped["reason"]


def test_nothing_is_overwritten(
    folder: Path, jobs: list[TrialJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.json"
    there.write_text("mine")
    for option in ("-o", "--corrected", "--plot"):
        assert execute(["trial", str(folder / "plan.json"), option, str(there)]) == 2
    assert "--force" in capsys.readouterr().err
    assert there.read_text() == "mine"
    assert jobs == []
    assert execute(["trial", str(folder / "plan.json"), "-o", str(there), "--force"]) == 0


def test_without_its_prices_a_plan_is_timed_but_not_corrected(
    folder: Path, jobs: list[TrialJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan.load(folder / "plan.json")
    provenance = plan.provenance.model_copy(update={"profile_source": str(tmp_path / "gone.json")})
    moved, corrected = tmp_path / "moved.json", tmp_path / "c.json"
    plan.model_copy(update={"provenance": provenance}).save(moved)
    answer = _answer(capsys, str(moved), "--corrected", str(corrected))
    assert answer["correction"] is None
    assert answer["layouts"][0]["corrected_step_time_s"] is None
    assert not corrected.exists()
    assert execute(["trial", str(moved)]) == 0
    again = _answer(capsys, str(moved), "--profile", str(folder / "profile.json"))
    assert again["correction"] is not None
    assert len(jobs) == 3


def test_a_stack_s_numbers_are_corrected_by_calibration(
    jobs: list[TrialJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    plain = "vpp=1,cp=1,loss_chunks=1,offload=none,compile=off,zero=0,recompute=none"
    command = ["plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "4", "--global-batch", "16"]
    command += ["--fix", plain]
    assert execute([*command, "-o", str(path)]) == 0
    answer = _answer(capsys, str(path))
    names = {one["name"] for one in answer["correction"]["parameters"]}
    assert "stack.compute_ratio" in names
    assert jobs[0].plan.software.framework != "shardwright"


@pytest.mark.parametrize(
    "wrong",
    [["--steps", "2"], ["--rounds", "1"], ["--top", "0"], ["--confidence", "1"],
     ["--resolution", "much"], ["--compare", "no-such.json"]],
)  # fmt: skip
def test_wrong_options(folder: Path, jobs: list[TrialJob], wrong: list[str]) -> None:
    assert execute(["trial", str(folder / "plan.json"), *wrong]) == 2
    assert jobs == []


def test_a_missing_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["trial", "no-such-plan.json"]) == 2
    assert "no-such-plan.json" in capsys.readouterr().err
