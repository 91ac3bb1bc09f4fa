"""`cluster init` and `cluster show` as people and programs meet them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli import execute
from shardwright.hardware_profiles import discover
from tests.hardware_profiles.topology import samples


@pytest.fixture
def captured(tmp_path: Path) -> list[str]:
    names = tmp_path / "names.csv"
    names.write_text("NVIDIA A100-SXM4-40GB, 40960 MiB\n" * 4)
    matrix = samples.FIXTURES / "mesh_4_a100_rails.txt"
    return ["--from", str(matrix), "--from", str(names)]


def test_a_file_is_written_and_shown(
    captured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.toml"
    assert execute(["cluster", "init", *captured, "--nodes", "2", "--inter", "100GB/s",
                    "-o", str(file)]) == 0  # fmt: skip
    assert "2 nodes x 4 = 8 x A100-SXM4-40GB" in capsys.readouterr().out
    assert execute(["cluster", "show", str(file)]) == 0
    out = capsys.readouterr().out
    assert "300 GB/s" in out
    assert "matmul_efficiency.bf16" in out
    assert "derived or recalled" in out
    assert execute(["cluster", "show", str(file), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cluster"]["groups"][0]["inter_node"]["bandwidth_bytes_per_s"] == 25e9
    assert shown["guesses"]


def test_nothing_is_overwritten(
    captured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.toml"
    file.write_text("mine")
    assert execute(["cluster", "init", *captured, "-o", str(file)]) == 2
    assert "left as it is" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert execute(["cluster", "init", *captured, "-o", str(file), "--force"]) == 0
    assert "[[groups]]" in file.read_text()


def test_json_tells_what_each_text_said(
    captured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["cluster", "init", *captured, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    matrix, names = found["readings"]
    assert matrix["kind"] == "matrix:nvidia-smi"
    assert matrix["gpus"] == 4
    assert names["gpu_rows"][0]["memory_mib"] == 40960
    assert found["cluster"]["groups"][0]["devices_per_node"] == 4


def test_json_tells_what_texts_said_that_make_no_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    matrix = samples.FIXTURES / "mesh_4_a100_rails.txt"
    assert execute(["cluster", "init", "--from", str(matrix), "--json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["cluster"] is None
    assert found["problem"] in err
    assert found["readings"][0]["nics"] == 4


def test_without_output_the_file_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(discover, "read_this_node", lambda: ())
    monkeypatch.setattr(discover, "current_device_type", lambda: "cpu")
    assert execute(["cluster", "init"]) == 0
    out = capsys.readouterr().out
    assert "[[groups]]" in out
    assert "lower bounds" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inter", "0"], "--inter 0 must be positive"),
        (["--from", "absent.txt"], "there is no captured file"),
        (["-o", "."], ". is a folder"),
        (["--accelerator", "h101"], "no accelerator"),
    ],
)
def test_wrong_input(
    arguments: list[str],
    message: str,
    captured: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["cluster", "init", *captured, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("mtt-s5000-80gb:8x16", "mtt-s5000-80gb: datasheet only"),
        ("ascend-910b-8npu:16", "ascend-910b-64gb: datasheet only"),
        ("hgx-mi300x:2", "datasheet only but for measured matrix products"),
        ("dgx-h100", "measured by others"),
        ("hgx-mi300x", "dated offers: 3.49 (RunPod, 2025-10) to 6 (OCI"),
        ("aws-p4d.24xlarge", "nic: 8 ranks of a node share it, 4 at full speed"),
    ],
)
def test_how_well_a_cluster_is_known(
    cluster: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["cluster", "show", cluster]) == 0
    assert words in capsys.readouterr().out


def test_answers_echo_that_only_datasheets_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["estimate", "gpt2", "--cluster", "mtt-s5000-8gpu", "--layout", "micro_batch=1",
                    "--global-batch", "8"]) in (0, 3)  # fmt: skip
    assert "; mtt-s5000-80gb: datasheet only" in capsys.readouterr().out
