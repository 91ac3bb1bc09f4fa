"""A profile is measured once, kept where it still fits, and no other file is lost."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from shardwright.cli import execute
from shardwright.cli.profile import load_if_fitting
from shardwright.hardware_profiles.discover import local_cluster
from shardwright.hardware_profiles.measure import Party
from shardwright.hardware_profiles.profile import HardwareProfile, Parameter, ProfileProvenance


def profile_of(num_ranks: int, *, torch: str | None = None) -> HardwareProfile:
    software = {"torch": torch or importlib.metadata.version("torch")}
    return HardwareProfile(
        provenance=ProfileProvenance(
            created_at="2026-01-01T00:00:00+00:00", host="here", software=software
        ),
        devices=local_cluster(num_ranks),
        parameters=(
            Parameter(name="x_s", value=1.0, unit="s", kind="measured", fitted_from="a test"),
        ),
        num_ranks=num_ranks,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_inside_a_launch_all_its_nodes_are_measured(
    rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two nodes of one rank each; the process of rank 0 alone writes and prints."""
    parties: list[Party] = []

    def measure(party: Party, **_: object) -> HardwareProfile | None:
        parties.append(party)
        return profile_of(2) if party.leads else None

    monkeypatch.setattr("shardwright.hardware_profiles.measure.profile_party", measure)
    store = HashStore()
    claims = {f"shardwright-seats/cores/{other}": f"machine{other}:0,1" for other in (0, 1)}
    for key, value in ({"shardwright-seats/port": "1234"} | claims).items():
        store.set(key, value)
    monkeypatch.setattr("shardwright.runtime.seats.meet", lambda *_: store)
    variables = {"RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                 "MASTER_ADDR": "first", "MASTER_PORT": "1"}  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "p.json"
    assert execute(["profile", "-o", str(path), "--json"]) == 0
    (party,) = parties
    assert (party.here, party.world, party.num_nodes) == ((rank,), 2, 2)
    assert party.meeting is not None
    assert party.meeting.startswith("tcp://first:")
    assert path.exists() == (rank == 0)
    assert bool(capsys.readouterr().out) == (rank == 0)
    assert execute(["profile", "-o", str(tmp_path / "q.json"), "--ranks", "3"]) == 2
    assert execute(["profile", "-o", str(tmp_path / "q.json"), "--reuse"]) == 2


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measuring takes a minute: here it only notes that it was asked, and for how many ranks."""
    asked: list[int] = []

    def measure(*, num_ranks: int, progress: Callable[[str, float], None]) -> HardwareProfile:
        asked.append(num_ranks)
        progress("collectives", 1.0)
        return profile_of(num_ranks)

    monkeypatch.setattr("shardwright.hardware_profiles.measure.profile", measure)
    return asked


def test_measure_and_write(
    measured: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "profile.json"
    assert execute(["profile", "--ranks", "3", "-o", str(path)]) == 0
    assert measured == [3]
    written = HardwareProfile.from_json(path.read_text())
    assert written.num_ranks == written.devices.num_devices == 3
    assert written.parameter("x_s") == 1.0
    out = capsys.readouterr().out
    assert str(path) in out
    assert "made 2026-01-01" in out


def test_json(measured: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    assert execute(["profile", "-o", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["profile"] == str(path)
    assert report["reused"] is False
    assert report["parameters"] == {"x_s": 1.0}
    assert report["num_ranks"] == measured[0] == local_cluster().num_devices


def test_a_fitting_profile_is_reused(
    measured: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    for reused in (False, True):
        assert execute(["profile", "--ranks", "2", "-o", str(path), "--reuse", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["reused"] is reused
    assert measured == [2]


@pytest.mark.parametrize("options", [["--ranks", "3", "--reuse"], ["--ranks", "2"],
                                     ["--ranks", "2", "--reuse", "--force"]])  # fmt: skip
def test_otherwise_it_is_measured_anew(
    measured: list[int], tmp_path: Path, options: list[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_of(2).to_json())
    assert execute(["profile", "-o", str(path), *options]) == 0
    assert len(measured) == 1


def test_a_profile_of_another_machine_or_torch_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert load_if_fitting(path, 2) is None
    fitting = profile_of(2)
    path.write_text(fitting.to_json())
    assert load_if_fitting(path, 2) == fitting
    path.write_text(profile_of(2, torch="2.11.0").to_json())
    assert load_if_fitting(path, 2) is None
    other = profile_of(2).devices.model_copy(update={"name": "cpu-of-another-kind"})
    path.write_text(profile_of(2).model_copy(update={"devices": other}).to_json())
    assert load_if_fitting(path, 2) is None


def test_nothing_is_measured_for_a_file_that_may_not_be_written(
    measured: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    assert execute(["profile", "-o", str(path)]) == 2
    assert path.read_text() == "my notes"
    assert measured == []
