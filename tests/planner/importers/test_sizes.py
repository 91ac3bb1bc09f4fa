"""Nodes, tasks and devices that schedulers are asked for."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.sizes import (
    Sizes,
    directives,
    option,
    sizes_of,
    sizes_of_all,
    variables_of,
    whole,
)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("sbatch --nodes=4 --gres=gpu:a100:8 --ntasks-per-node 1",
         Sizes(nodes=4, tasks_per_node=1, gpus_per_node=8, accelerator="a100")),
        ("srun -N2 -n 16", Sizes(nodes=2, tasks=16)),
        ("salloc -N 2-4 --gpus-per-node=h100:8",
         Sizes(nodes=4, gpus_per_node=8, accelerator="h100")),
        ("sbatch --gpus=v100:32", Sizes(gpus=32, accelerator="v100")),
        ("mpirun -np 16 --map-by ppr:8:node", Sizes(tasks=16, tasks_per_node=8)),
        ("mpirun -H a:8,b:8 -np 16", Sizes(nodes=2, tasks=16, tasks_per_node=8)),
        ("mpiexec -n 16 -ppn 4", Sizes(tasks=16, tasks_per_node=4)),
        ("jsrun -n 4 -r 1 -g 6 -a 6", Sizes(tasks=24, tasks_per_node=6, gpus_per_node=6)),
        ("qsub -l select=4:ngpus=8:mpiprocs=8", Sizes(nodes=4, tasks_per_node=8, gpus_per_node=8)),
        ("bsub -nnodes 3", Sizes(nodes=3)), ("docker run x", Sizes()),
    ],
)  # fmt: skip
def test_what_each_scheduler_is_asked_for(line: str, wanted: Sizes) -> None:
    assert sizes_of(tuple(line.split())) == wanted


def test_directives_are_words_without_their_comments() -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2 # two\n##SBATCH --nodes=9\n#SBATCH -J x\necho\n"
    assert directives(text) == ("sbatch", "--nodes=2", "-J", "x")


def test_the_inner_wrapper_holds() -> None:
    outer, inner = ("sbatch", "--nodes=4", "--gres=gpu:8"), ("srun", "-N", "2")
    assert sizes_of_all([outer, inner]) == Sizes(nodes=2, gpus_per_node=8)


def test_slurm_tells_a_script_its_sizes() -> None:
    found = variables_of(Sizes(nodes=2, tasks_per_node=8, gpus_per_node=8))
    assert found["SLURM_NNODES"] == "2"
    assert found["SLURM_NTASKS"] == "16"


def test_options_are_found_in_every_spelling() -> None:
    for line in ("x -N 4", "x -N4", "x --nodes 4", "x --nodes=4"):
        assert option(tuple(line.split()), "--nodes", "-N") == "4"
    assert whole("x") is None
    assert whole("0") is None
