"""Scripts that start jobs: quoted, and the same for every node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.planner.exporters.launch_files import (
    Launch,
    comment,
    nodes_of,
    refuse_uneven_nodes,
    sbatch_script,
    torchrun_script,
)
from tests.planner.exporters.jobs import job_of

NASTY = {"NAME": "a b'; touch stolen; echo \"$HOME `id`\n"}
OPTIONS = {"OPTIONS": [("--text", "$(touch stolen) 'x' \"y\""), ("--glob", "*", "?")]}


def launch(job: Job, **changes: object) -> Launch:
    given = {"heading": "a job\nof two lines", "program": ("train.py",), "environment": NASTY,
             "groups": OPTIONS, "notes": ["it's so"], **changes}  # fmt: skip
    return Launch.of(job, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("dp", [4, 8, 64])
def test_nothing_in_values_is_run(dp: int, tmp_path: Path) -> None:
    made = launch(job_of(dp=dp))
    fake = tmp_path / "torchrun"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$NAME" "$@"\n')
    fake.chmod(0o755)
    script = tmp_path / "train.sh"
    script.write_text(torchrun_script(made))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": "1", "MASTER_ADDR": "h", "HOME": "/"}
    done = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, check=True, env=env, cwd=tmp_path
    )
    assert done.stdout.startswith(NASTY["NAME"])
    assert done.stdout.endswith("--text\n$(touch stolen) 'x' \"y\"\n--glob\n*\n?\n")
    assert not (tmp_path / "stolen").exists()


def test_slurm_starts_one_torchrun_a_node(tmp_path: Path) -> None:
    made = launch(job_of(dp=64))
    text = sbatch_script(made)
    assert "#SBATCH --nodes=8" in text
    assert "#SBATCH --gpus-per-node=8" in text
    for name, body in {
        "srun": '[ "$1" = bash ] && SLURM_NODEID=3 exec "$@"',
        "scontrol": "printf 'first\\nsecond\\n'",
        "torchrun": 'printf "%s\\n" "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = tmp_path / "train.sbatch"
    script.write_text(text)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n[1-8]"}
    done = subprocess.run(
        ["bash", str(script), "--more"], capture_output=True, text=True, check=True, env=env,
        cwd=tmp_path,
    )  # fmt: skip
    words = done.stdout.splitlines()
    assert words[words.index("--node-rank") + 1] == "3"
    assert words[words.index("--master-addr") + 1] == "first"
    assert words[-1] == "--more"
    assert "$(touch stolen) 'x' \"y\"" in words
    assert not (tmp_path / "stolen").exists()


def test_nodes() -> None:
    assert nodes_of(job_of(dp=4)) == (1, 4)
    assert nodes_of(job_of(dp=64)) == (8, 8)
    assert "--standalone" in torchrun_script(launch(job_of(dp=8)))


def test_nodes_of_several_sizes_are_refused() -> None:
    findings = Findings()
    refuse_uneven_nodes(job_of().cluster, findings)
    assert not findings.refused
    mixed = job_of(cluster="dgx-h100:2+aws-g5.48xlarge:1,between=10GB/s").cluster
    group = mixed.groups[1].model_copy(update={"devices_per_node": 4})
    refuse_uneven_nodes(mixed.model_copy(update={"groups": (mixed.groups[0], group)}), findings)
    assert "4 or 8" in findings.refused[0].problem


def test_comments_cover_every_line() -> None:
    assert list(comment("a\nb\n\nc")) == ["# a", "# b", "#", "# c"]
