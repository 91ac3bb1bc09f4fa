"""Launchers and how many devices they start."""

from __future__ import annotations

import shlex

import pytest

from shardwright.planner.importers.launchers import Launch, launch_of
from shardwright.planner.importers.shell.reader import Invocation
from shardwright.planner.importers.shell.unknown import Unknowns

FILES = {"hosts": "w1 slots=8\nw2 slots=8\n"}


def started(line: str, *layers: str, **environment: str) -> Launch | None:
    invocation = Invocation(
        tuple(shlex.split(line)), tuple(tuple(one.split()) for one in layers), environment, 3, ()
    )
    return launch_of(invocation, FILES.get, Unknowns())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("torchrun --nnodes 2 --nproc_per_node 8 t.py --x", (2, 8, 16)),
        ("torchrun --standalone --nproc-per-node=4 t.py", (1, 4, 4)),
        ("torchrun --nnodes=1:4 --nproc-per-node=8 t.py", (4, 8, 32)),
        ("python -u -m torch.distributed.launch --nproc_per_node=8 --use_env t.py", (1, 8, 8)),
        (
            "python3.11 -m torch.distributed.run --nnodes=3 --nproc_per_node gpu t.py",
            (3, None, None),
        ),
        ("deepspeed --hostfile hosts t.py", (2, 8, 16)),
        ("deepspeed --num_nodes 2 --num_gpus 4 t.py", (2, 4, 8)),
        ("deepspeed --include a:0,1@b:0,1 t.py", (2, 2, 4)),
        ("accelerate launch --num_processes 16 --num_machines 2 t.py", (2, 8, 16)),
        ("python t.py", (None, None, None)),
    ],
)
def test_sizes(line: str, wanted: tuple[int | None, ...]) -> None:
    found = started(line)
    assert found is not None
    assert (found.nodes, found.gpus_per_node, found.gpus) == wanted
    assert found.program == "t.py"


def test_one_process_per_task() -> None:
    found = started("python t.py", "sbatch --nodes=4 --ntasks-per-node=8", "srun -l")
    assert found is not None
    assert (found.launcher, found.nodes, found.gpus_per_node, found.gpus) == ("srun", 4, 8, 32)
    found = started("python t.py", "mpirun -np 16 -N 8")
    assert found is not None
    assert (found.nodes, found.gpus) == (2, 16)


def test_the_world_may_stand_in_the_environment() -> None:
    found = started("python t.py", WORLD_SIZE="256")
    assert found is not None
    assert found.gpus == 256


def test_what_is_no_training_program() -> None:
    assert started("python -c 'print(1)'") is None
    assert started("torchrun --help") is None


def test_an_unknown_number_says_why() -> None:
    unknowns = Unknowns()
    mark = unknowns.mark("N is not set in the script")
    words = ("torchrun", "--nnodes", mark, "--nproc_per_node", "8", "t.py")
    found = launch_of(Invocation(words, (), {}, 1, ()), FILES.get, unknowns)
    assert found is not None
    assert (found.nodes, found.gpus_per_node, found.gpus) == (None, 8, None)
    assert found.unread == ["the number of nodes: N is not set in the script"]
