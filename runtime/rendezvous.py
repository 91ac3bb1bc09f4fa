"""Which rank this process is: what torchrun, srun or mpirun told it through the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.specs import InputError

_DEFAULT_PORT = 29500
_SLURM_PORTS = range(20_000, 40_000)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A rank of a running launch, and where its ranks meet."""

    launcher: str
    """``torchrun``, ``srun`` or ``mpirun``."""
    rank: int
    world_size: int
    local_rank: int
    ranks_on_node: int
    address: str
    """Host of rank 0."""
    port: int


def find_rendezvous(environment: Mapping[str, str]) -> Rendezvous | None:
    """The launch that this process is part of; None where it was started on its own.

    Understood: torchrun (RANK, WORLD_SIZE, ...), Slurm's srun (SLURM_PROCID, SLURM_NTASKS, ...),
    Open MPI (OMPI_COMM_WORLD_*) and MPICH or Intel MPI (PMI_*). MASTER_ADDR and MASTER_PORT win
    over what follows from the launcher's own variables.

    Raises:
        InputError: a variable is missing or no number, or ranks on several hosts have no address.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _from_torchrun(environment)
    if "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment:
        return _from_slurm(environment)
    if "OMPI_COMM_WORLD_RANK" in environment:
        return _from_mpi(environment, "OMPI_COMM_WORLD_")
    if "PMI_RANK" in environment:
        return _from_mpi(environment, "PMI_")
    return None


def _from_torchrun(environment: Mapping[str, str]) -> Rendezvous:
    world_size = _number(environment, "WORLD_SIZE")
    rank = _number(environment, "RANK")
    on_one_node = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size), **environment}
    return Rendezvous(
        launcher="torchrun",
        rank=rank,
        world_size=world_size,
        local_rank=_number(on_one_node, "LOCAL_RANK"),
        ranks_on_node=_number(on_one_node, "LOCAL_WORLD_SIZE"),
        address=_address(environment, None if world_size > 1 else "127.0.0.1"),
        port=_port(environment, _DEFAULT_PORT),
    )


def _from_slurm(environment: Mapping[str, str]) -> Rendezvous:
    world_size = _number(environment, "SLURM_NTASKS")
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST")
    job = _number({"SLURM_JOB_ID": "0", **environment}, "SLURM_JOB_ID")
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    return Rendezvous(
        launcher="srun",
        rank=_number(environment, "SLURM_PROCID"),
        world_size=world_size,
        local_rank=_number(environment, "SLURM_LOCALID"),
        ranks_on_node=_tasks_on_node(tasks, environment.get("SLURM_NODEID", "0"), world_size),
        address=_address(environment, first_host(hosts) if hosts else None),
        port=_port(environment, _SLURM_PORTS[job % len(_SLURM_PORTS)]),
    )


def _from_mpi(environment: Mapping[str, str], prefix: str) -> Rendezvous:
    world_size = _number(environment, f"{prefix}SIZE")
    rank = _number(environment, f"{prefix}RANK")
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    sizes = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
    local_rank = _first_number(environment, names, rank)
    ranks_on_node = _first_number(environment, sizes, world_size)
    return Rendezvous(
        launcher="mpirun",
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        ranks_on_node=ranks_on_node,
        address=_address(environment, "127.0.0.1" if ranks_on_node == world_size else None),
        port=_port(environment, _DEFAULT_PORT),
    )


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list.

    >>> first_host("gpu[007-009,12],cpu1")
    'gpu007'
    """
    first = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", nodelist)
    if first is None:
        raise InputError(
            f"the Slurm node list {nodelist!r} names no host", fix="set MASTER_ADDR yourself"
        )
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def _tasks_on_node(tasks: str | None, node: str, world_size: int) -> int:
    """Slurm's ``4(x2),3`` is 4, 4, 3 tasks on nodes 0, 1, 2."""
    counts: list[int] = []
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks or ""):
        counts += [int(count)] * int(repeat or 1)
    index = int(node) if node.isdigit() else 0
    return counts[index] if index < len(counts) else world_size


def _address(environment: Mapping[str, str], otherwise: str | None) -> str:
    address = environment.get("MASTER_ADDR") or otherwise
    if address is None:
        raise InputError(
            "this process is a rank of a running launch, but nothing says where its ranks meet",
            why="MASTER_ADDR is not set",
            fix="set MASTER_ADDR to the host of rank 0",
        )
    return address


def _port(environment: Mapping[str, str], otherwise: int) -> int:
    return _number({"MASTER_PORT": str(otherwise), **environment}, "MASTER_PORT")


def _first_number(environment: Mapping[str, str], names: tuple[str, ...], otherwise: int) -> int:
    name = next((name for name in names if name in environment), None)
    return otherwise if name is None else _number(environment, name)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name)
    if text is None or not text.isdigit():
        given = "is not set" if text is None else f"is {text!r}, not a number"
        raise InputError(
            f"the environment variable {name} {given}",
            why="this process seems to be a rank of a running launch",
            fix=f"set {name}, or unset the launcher's other variables to start ranks from here",
        )
    return int(text)
