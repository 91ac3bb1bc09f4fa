"""`plan` from the command line to the answer."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from shardwright.cli import execute
from shardwright.specs import Plan
from tests.cli import samples
from tools.sources import ROOT

GPT2 = ("plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "4", "--global-batch", "16")

LAYOUT_KEYS = {
    "tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch", "num_microbatches", "zero",
    "zero_shard_degree", "expert_zero_shard_degree", "sequence_parallel", "recompute", "offload",
    "loss_chunks", "compile", "schedule", "stages", "stage_meshes",
}  # fmt: skip
PREDICTION_KEYS = {
    "step_time_s", "step_time_band_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu",
    "bubble_fraction", "peak_memory_bytes", "memory_capacity_bytes", "memory_verdict", "breakdown",
}  # fmt: skip
CERTIFICATE_KEYS = {
    "considered", "excluded_by_rules", "excluded_by_memory", "excluded_by_bound",
    "excluded_by_dominance", "simulated", "optimal", "gap", "space", "search_s",
}  # fmt: skip


def test_json_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--json"]) == 0
    out, _ = capsys.readouterr()
    answer = json.loads(out)
    assert {"schema", "feasible", "assumed", "layout", "prediction", "certificate", "ties",
            "alternatives", "reasons", "suggestions"} <= set(answer)  # fmt: skip
    assert set(answer["layout"]) >= LAYOUT_KEYS
    assert set(answer["prediction"]) >= PREDICTION_KEYS
    assert set(answer["certificate"]) >= CERTIFICATE_KEYS
    assert answer["feasible"] is True
    assert answer["assumed"] == {
        "seq_len": "1024", "precision": "bf16", "optimizer": "adamw", "software": "generic",
    }  # fmt: skip
    breakdown = answer["prediction"]["breakdown"]
    assert sum(breakdown.values()) == pytest.approx(answer["prediction"]["step_time_s"])


def test_text_says_all_that_the_design_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--top", "3", "--tokens", "300B"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("gpt2: 124,439,808 parameters" in line for line in lines)
    assert any("1 node x 4 = 4 x H100-SXM5-80GB" in line for line in lines)
    assert any(line.startswith("assumed:  seq_len 1024") for line in lines)
    assert sum(" * " in line for line in lines) == 1
    assert sum(line.strip()[:2] in ("1 ", "2 ", "3 ") for line in lines) == 3
    assert any("none better under this model" in line for line in lines)
    assert any("300,000,000,000 tokens take" in line for line in lines)
    assert lines[-1].startswith("next: ")


def test_the_plan_file_round_trips_and_names_its_command(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for _ in range(2):  # an older plan is replaced
        assert execute([*GPT2, "-o", str(path)]) == 0
    plan = Plan.load(path)
    assert plan.to_json() == path.read_text()
    assert plan.provenance.profile_source == "dgx-h100"
    assert plan.cluster.num_devices == 4


def test_another_file_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    assert execute([*GPT2, "-o", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, path.read_text()) == ("", "my notes")
    assert "--force" in err
    assert execute([*GPT2, "-o", str(path), "--force"]) == 0
    assert Plan.load(path).model.name == "gpt2"


def test_fixed_and_forbidden_choices_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--fix", "tp=2,pp=2", "--forbid", "recompute", "--json"]) == 0
    layout = json.loads(capsys.readouterr().out)["layout"]
    assert (layout["tp"], layout["pp"]) == (2, 2)
    assert {entry["policy"] for entry in layout["recompute"]} == {"none"}


def test_what_does_not_fit_ends_with_3_and_says_by_how_much(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["plan", "llama-3-70b", "--cluster", "dgx-h100", "--gpus", "1", "--global-batch",
               "2", "--seq-len", "512"]  # fmt: skip
    assert execute([*command, "--json"]) == 3
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["feasible"] is False
    assert answer["layout"] is None
    assert "bytes" in answer["reasons"][0]
    assert answer["suggestions"]
    assert err.splitlines()[-1].startswith("error: ")
    assert execute(command) == 3
    out, err = capsys.readouterr()
    assert (out + err).count(answer["reasons"][0]) == 1
    assert all((out + err).count(text) == 1 for text in answer["suggestions"])


def test_more_positions_than_the_model_has_end_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*GPT2, "--seq-len", "4k"]) == 3
    out, err = capsys.readouterr()
    assert "seq_len = 4096 exceeds the 1024 positions of gpt2" in err
    assert "--seq-len 1024" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(["--objective", "speed"], "step-time", id="objective"),
        pytest.param(["--objective", "cost"], "--tokens", id="objective-without-tokens"),
        pytest.param(["--deadline", "60d"], "--tokens", id="deadline-without-tokens"),
        pytest.param(["--bound", "tp<4"], "tp<=4", id="bound-no-sign"),
        pytest.param(["--bound", "tpp<=4"], "tp", id="bound-unknown-name"),
        pytest.param(["--budget", "much", "--tokens", "1T"], "1.5M", id="budget-no-amount"),
        pytest.param(["--precision", "bf61"], "bf16", id="precision"),
        pytest.param(["--fix", "tq=2"], "tp", id="fix-unknown-name"),
        pytest.param(["--fix", "tp"], "name=value", id="fix-no-value"),
        pytest.param(["--nodes", "2"], "gpus", id="gpus-and-nodes"),
    ],
)
def test_wrong_options_end_with_2(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert execute([*GPT2, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.splitlines()[-1].startswith("error: ")


def test_a_model_s_notes_go_to_stderr(caplog: pytest.LogCaptureFixture) -> None:
    assert execute([*GPT2, "--json"]) == 0
    assert any("dropout" in record.getMessage() for record in caplog.records)


def test_the_demo_s_model_and_a_sample_cluster_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(samples.cluster().to_json())
    config = ROOT / "examples" / "demo" / "config.json"
    command = ["plan", str(config), "--cluster", str(path), "--global-batch", "16", "--json"]
    assert execute(command) == 0
    assert json.loads(capsys.readouterr().out)["assumed"]["seq_len"] == "512"


SMALL = ["llama-2-7b", "--cluster", "dgx-h100", "--gpus", "1", "--global-batch", "2",
         "--seq-len", "512"]  # fmt: skip
UNFIT = {
    "weights of 405 billion": ["plan", "llama-3.1-405b", "--cluster", "dgx-h100"],
    "one device": ["plan", *SMALL, "--forbid", "offload"],
    "what was fixed": ["plan", "llama-3-8b", "--cluster", "dgx-h100", "--fix",
                       "tp=1,pp=1,cp=1,zero=0,offload=none", "--forbid", "recompute"],
    "a bound": ["plan", "llama-3-8b", "--cluster", "dgx-h100", "--bound",
                "peak_memory<=10GiB", "--forbid", "offload"],
    "fp32": ["plan", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "2", "--precision", "fp32",
             "--forbid", "offload"],
    "a long sequence": ["plan", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "1",
                        "--seq-len", "64k", "--trainable", "lora:16"],
    "a named layout": ["estimate", "llama-3-70b", "--cluster", "dgx-h100", "--layout", "tp=8"],
    "a layout to complete": ["estimate", "llama-3-8b", "--cluster", "dgx-h100", "--layout",
                             "tp=2,micro_batch=3"],
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_every_suggestion_fits_when_its_command_is_run(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = UNFIT[case]
    assert execute([*command, "--json"]) == 3
    texts = json.loads(capsys.readouterr().out)["suggestions"]
    assert texts
    for text in texts:
        again = followed(command, text)
        assert execute([*again, "--json", "--top", "1", "--time-limit", "0.5"]) == 0, (text, again)
        answer = json.loads(capsys.readouterr().out)
        assert answer["prediction"]["memory_verdict"] != "does_not_fit", text


def followed(command: list[str], text: str) -> list[str]:
    """The command with the options that a suggestion names, as a reader would type them."""
    said = text.split(": then ")[0]
    start = re.search(r"(plan )?(--|without --)", said)
    assert start is not None, text
    words = shlex.split(re.sub(r" \(in place of .*?\)", "", said[start.start() :]).rstrip(")"))
    options = {command[i]: command[i + 1] for i in range(2, len(command), 2)}
    options.pop("--layout", None)
    if "in place of --gpus" in said:
        options.pop("--gpus", None)
    words = words[1:] if words[0] == "plan" else words
    while words:
        option, value, *rest = words if words[0] != "without" else [words[1], "", *words[2:]]
        options.pop(option, None)
        options |= {option: value} if value else {}
        words = rest
    return ["plan", command[1], *(word for pair in options.items() for word in pair)]


def test_a_cluster_of_two_kinds_shows_what_simpler_uses_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = "dgx-a100-80gb:1+dgx-1v-32gb:1,between=100Gbit/s"
    question = ("plan", "gpt2", "--cluster", cluster, "--precision", "fp16", "--global-batch",
                "512", "--fix", "micro_batch=8,recompute=none")  # fmt: skip
    path = tmp_path / "plan.json"
    assert execute([*question, "--json", "-o", str(path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    names = [one["name"] for one in answer["baselines"]]
    assert names == ["only dgx-a100-80gb", "only dgx-1v-32gb", "all devices as v100-sxm2-32gb"]
    for one in answer["baselines"]:
        assert one["prediction"]["step_time_s"] >= answer["prediction"]["step_time_s"]
    assert execute(["explain", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("instead ") for line in lines) >= 3
    assert any(line.startswith("devices ") for line in lines)
