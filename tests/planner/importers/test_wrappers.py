"""Programs behind what starts them."""

from __future__ import annotations

import shlex

import pytest

from shardwright.planner.importers.wrappers import peeled


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("srun -N 2 --ntasks=16 python t.py --a 1", "python t.py --a 1"),
        ("exec nohup torchrun t.py", "torchrun t.py"),
        ("mpirun -np 8 -x A=1 --hostfile hosts python3 t.py", "python3 t.py"),
        ("docker run --rm -v /a:/b -e A=1 -w /x image:1 python t.py", "python t.py"),
        ("singularity exec --nv -B /a img.sif torchrun t.py", "torchrun t.py"),
        ("numactl --cpunodebind=0 nsys profile -o out -t cuda python t.py", "python t.py"),
        ("srun --container-image=nvcr.io/x:24 numactl -m 0 python t.py", "python t.py"),
        ("bash -x run.sh 1 2", "run.sh 1 2"), ("sbatch -N 4 run.sbatch a", "run.sbatch a"),
        ("./run.sh a", "./run.sh a"), ("env A=1 B=2 python t.py", "python t.py"),
        ("ls -l", ""), ("mkdir -p x", ""),
    ],
)  # fmt: skip
def test_the_program_is_found(line: str, rest: str) -> None:
    found = peeled(tuple(shlex.split(line)))
    assert " ".join(found.rest) == rest
    assert found.text is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("bash -lc 'python t.py --a'", "python t.py --a"),
        ("srun -l sh -c 'cd x; torchrun t.py'", "cd x; torchrun t.py"),
        ("ssh -p 22 host 'python t.py' --a", "python t.py --a"),
        ("pdsh -w n[1-4] python t.py", "python t.py"),
        ("srun 'python t.py --a'", "python t.py --a"),
    ],
)
def test_text_for_another_shell_is_found(line: str, text: str) -> None:
    assert peeled(tuple(shlex.split(line))).text == text


def test_text_has_arguments_of_its_own() -> None:
    found = peeled(("srun", "bash", "-c", 'torchrun "$@"', "launch", "t.py", "--a"))
    assert (found.text, found.positional) == ('torchrun "$@"', ("t.py", "--a"))


def test_variables_that_wrappers_set() -> None:
    line = "mpirun -x A=1 -x PATH docker run -e B=2 --env=C=3 img env D=4 python t.py"
    assert peeled(tuple(line.split())).environment == {"A": "1", "B": "2", "C": "3", "D": "4"}
    line = "srun --export=ALL,A=1,B=2 python t.py"
    assert peeled(tuple(line.split())).environment == {"A": "1", "B": "2"}
