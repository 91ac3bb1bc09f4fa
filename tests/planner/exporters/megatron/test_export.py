"""Whole exports: files that shells accept, and every refusal at once."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.export_jobs import exported_jobs
from benchmarks.export_round_trip import difference
from shardwright.planner.exporters.megatron.arguments import Arguments
from shardwright.planner.exporters.megatron.checks.rules import broken_argument_rules
from shardwright.planner.exporters.megatron.versions import VERSIONS
from shardwright.specs import TrainingSpec
from tests.planner.exporters.megatron.exporting import exported, refusal

NEVER = (
    "--load", "--hybrid-context-parallel", "--hybrid-layer-pattern", "--use-torch-fsdp2",
    "--overlap-moe-expert-parallel-comm", "--distribute-saved-activations", "--rampup-batch-size",
    "--step-batch-size-schedule", "--async-save", "--fim-data", "--ckpt-fully-parallel-load",
    "--tensor-parallel-num-weight-shards", "--cuda-graph-impl", "--moe-shared-expert-overlap",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
    "--experimental-attention-variant", "--enable-hyper-connections", "--train-samples",
)  # fmt: skip
"""What plans cannot say, so that rules over it can never be broken by an export."""


@pytest.mark.parametrize("kind", ["llama", "mixtral", "deepseek_v3", "gpt2"])
def test_files_are_shell_and_arguments_obey_all_rules(kind: str, tmp_path: Path) -> None:
    experts: dict[str, Any] = {"ep": 4} if kind in ("mixtral", "deepseek_v3") else {}
    found = exported(kind, tp=2, pp=2, dp=8, sequence_parallel=True, zero=1, **experts)
    for name, text in found.files.items():
        path = tmp_path / name
        path.write_text(text)
        subprocess.run(["bash", "-n", str(path)], check=True)
        assert not any(len(line) > 200 for line in text.splitlines())
    arguments = Arguments(found.arguments)
    assert not broken_argument_rules(
        arguments, world=32, environment=found.environment, capability=9
    )
    assert not arguments.present(NEVER)
    assert found.main_file == "train.sh"


def test_the_shell_passes_exactly_those_arguments(tmp_path: Path) -> None:
    found = exported("deepseek_v3", pp=4, boundaries=(2, 7, 9), dp=2)
    fake = tmp_path / "torchrun"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    script = tmp_path / "train.sh"
    script.write_text(found.files["train.sh"])
    done = subprocess.run(
        ["bash", str(script), "--extra", "a b"], capture_output=True, text=True, check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": "0", "MASTER_ADDR": "node0"},
    )  # fmt: skip
    words = done.stdout.splitlines()
    flat = [word for option in found.arguments for word in option]
    assert words[words.index("pretrain_gpt.py") + 1 :] == [*flat, "--extra", "a b"]


def test_a_node_that_does_not_know_its_number_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(exported(dp=16).files["train.sh"])
    done = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, check=False, env={}
    )
    assert done.returncode != 0
    assert "NODE_RANK: is the number of this node" in done.stderr


def test_every_broken_rule_is_named_at_once() -> None:
    words = refusal(tp=3, loss_chunks=2, compile=True)
    for part in ("16 attention heads", "4 key-value heads", "4096 is not", "2 pieces", "compiles"):
        assert part in words


def test_other_words_for_rules_of_arguments_are_refused_too() -> None:
    """Rules that only the command line shows: fp8 rows in blocks, bf16 grouped products."""
    assert "multiple of 16" in refusal(
        tp=2, sequence_parallel=True, dp=8,
        training=TrainingSpec(global_batch=64, seq_len=4072, precision="fp8-tensor"),
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_exported_layouts_read_back_by_another_reading(version: str) -> None:
    """A sample: `benchmarks/export_round_trip.py` takes 200, and `exported_files.py` beside it asks
    Megatron Core itself."""
    for job, found in exported_jobs("megatron-lm", 40, seed=1, version=version):
        assert difference("megatron-lm", job, found) is None
        assert not Arguments(found.arguments).present(NEVER)


def test_a_difference_would_be_seen() -> None:
    job, found = next(exported_jobs("megatron-lm", 1, seed=5))
    options = dict.fromkeys(found.arguments)
    other = tuple(
        ("--micro-batch-size", str(2 * job.layout.micro_batch))
        if option[0] == "--micro-batch-size"
        else option
        for option in options
    )
    changed = replace(found, arguments=other)
    seen = difference("megatron-lm", job, changed)
    assert seen is not None
    assert seen.what.startswith("micro_batch")
