"""Scripts that start a job on every node: torchrun by hand, and under Slurm.

Every value is quoted for the shell; nothing in them is run but torchrun and what Slurm says of
itself. Node 0 is the first node, and ranks fill nodes in order, as plans assume.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.specs import ClusterSpec

MASTER_PORT = 29500
"""PyTorch's own default."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch script says, whatever starts it."""

    heading: str
    notes: tuple[str, ...]
    environment: Mapping[str, str]
    program: tuple[str, ...]
    """The script, or ``-m module``, and what stands before its options."""
    groups: Mapping[str, Sequence[tuple[str, ...]]]
    """Options by the name of the array that holds them."""
    num_nodes: int
    gpus_per_node: int
    job_name: str
    beside: tuple[str, ...] = ()
    """Words of the program that are files in the script's own folder."""

    @classmethod
    def of(
        cls,
        job: Job,
        *,
        heading: str,
        program: tuple[str, ...],
        environment: Mapping[str, str],
        groups: Mapping[str, Sequence[tuple[str, ...]]] | None = None,
        notes: Sequence[str] = (),
        beside: tuple[str, ...] = (),
    ) -> Launch:
        num_nodes, gpus_per_node = nodes_of(job)
        return cls(
            heading, tuple(notes), environment, program, groups or {}, num_nodes, gpus_per_node,
            re.sub(r"[^A-Za-z0-9._-]+", "-", job.model.name) or "train", beside,
        )  # fmt: skip


def nodes_of(job: Job) -> tuple[int, int]:
    """Nodes, and ranks on each; a layout smaller than a node takes a part of one."""
    per_node = job.cluster.groups[0].devices_per_node
    world = job.layout.world
    return (1, world) if world <= per_node else (-(-world // per_node), per_node)


def refuse_uneven_nodes(cluster: ClusterSpec, findings: Findings) -> None:
    """torchrun starts as many ranks on every node."""
    counts = sorted({group.devices_per_node for group in cluster.groups})
    if len(counts) > 1:
        findings.refuse(
            "nodes", f"nodes have {' or '.join(map(str, counts))} devices; a launch file starts as"
            " many ranks on each", "nodes of one size",
        )  # fmt: skip


def torchrun_script(launch: Launch) -> str:
    """Run once on every node, with NODE_RANK and MASTER_ADDR where there are several."""
    run = ["torchrun", "--nnodes", str(launch.num_nodes), "--nproc-per-node",
           str(launch.gpus_per_node)]  # fmt: skip
    lines = [*_head(launch), *_folder(launch, _SCRIPT_FOLDER), ""]
    if launch.num_nodes > 1:
        lines += _asks_for_node(launch)
        where = (
            '--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"'
            f' --master-port "${{MASTER_PORT:-{MASTER_PORT}}}"'
        )
    else:
        where = "--standalone"
    lines += [
        *_arrays(launch),
        f"{shlex.join(run)} \\",
        f"    {where} \\",
        f"    {_command(launch)}",
    ]
    return "\n".join(lines) + "\n"


def sbatch_script(launch: Launch) -> str:
    """``sbatch train.sbatch``: one torchrun a node, numbered as Slurm numbers nodes."""
    run = ["torchrun", "--nnodes", str(launch.num_nodes), "--nproc-per-node",
           str(launch.gpus_per_node)]  # fmt: skip
    where = '--node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
    directives = [
        f"#SBATCH --job-name={launch.job_name}",
        f"#SBATCH --nodes={launch.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={launch.gpus_per_node}",
        "#SBATCH --exclusive",
    ]
    return "\n".join([
        *_head(launch, directives), *_folder(launch, _SUBMIT_FOLDER), "",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        f"MASTER_PORT={MASTER_PORT}",
        "export MASTER_ADDR MASTER_PORT", "",
        *_arrays(launch),
        "# Each node's own number is known only inside srun.",
        f"srun bash -c '{shlex.join(run)} {where} \"$@\"' launch \\",
        f"    {_command(launch)}",
    ]) + "\n"  # fmt: skip


def accelerate_script(launch: Launch, config: str) -> str:
    """As `torchrun_script`, by ``accelerate launch`` with a configuration beside the script."""
    lines = [*_head(launch), *_folder(launch, _SCRIPT_FOLDER), ""]
    where = f'accelerate launch --config_file "$HERE/{config}"'
    if launch.num_nodes > 1:
        lines += _asks_for_node(launch)
        where += ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR"'
    lines += [*_arrays(launch), f"{where} \\", f"    {_command(launch)}"]
    return "\n".join(lines) + "\n"


def _asks_for_node(launch: Launch) -> Iterator[str]:
    yield f"# Run this on every node, with NODE_RANK=0 on the first and {launch.num_nodes - 1} on"
    yield "# the last, and MASTER_ADDR the first node's address on all."
    yield ': "${NODE_RANK:?is the number of this node, from 0}"'
    yield ': "${MASTER_ADDR:?is the address of node 0}"'
    yield ""


def _head(launch: Launch, directives: Sequence[str] = ()) -> Iterator[str]:
    yield "#!/usr/bin/env bash"
    yield from directives
    yield from comment(launch.heading)
    for note in launch.notes:
        yield from comment(f"  {note}")
    yield "set -euo pipefail"
    if launch.environment:
        yield ""
    for name, value in launch.environment.items():
        yield f"export {name}={shlex.quote(value)}"


def comment(text: str) -> Iterator[str]:
    """Each line of a text as a comment of shells, TOML and YAML."""
    for line in text.splitlines():
        yield f"# {line}".rstrip()


_SCRIPT_FOLDER = 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)'
_SUBMIT_FOLDER = "HERE=${HERE:-$SLURM_SUBMIT_DIR}  # Slurm runs a copy: submit this in its folder"


def _folder(launch: Launch, says: str) -> Iterator[str]:
    """Where files beside the script are, for the program and for Python's imports."""
    if launch.beside:
        yield ""
        yield says
        yield 'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"'


def _arrays(launch: Launch) -> Iterator[str]:
    for name, options in launch.groups.items():
        yield f"{name}=("
        yield from (f"    {shlex.join(option)}" for option in options)
        yield ")"
    if launch.groups:
        yield ""


def _command(launch: Launch) -> str:
    """The program with all options; what the caller adds comes last."""
    arrays = [f'"${{{name}[@]}}"' for name in launch.groups]
    words = [
        f'"$HERE/{word}"' if word in launch.beside else shlex.quote(word) for word in launch.program
    ]
    return " ".join([*words, *arrays, '"$@"'])
