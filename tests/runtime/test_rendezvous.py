"""What launchers say of a rank."""

from __future__ import annotations

import pytest

from shardwright.runtime.rendezvous import Rendezvous, find_rendezvous, first_host
from shardwright.specs import InputError

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "head", "MASTER_PORT": "1234",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "6", "SLURM_NTASKS": "7", "SLURM_LOCALID": "2", "SLURM_NODEID": "1",
    "SLURM_NODELIST": "gpu[012-013]", "SLURM_TASKS_PER_NODE": "4,3", "SLURM_JOB_ID": "40123",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "head", "MPI_LOCALRANKID": "0",
         "MPI_LOCALNRANKS": "1"}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param(TORCHRUN, Rendezvous("torchrun", 5, 8, 1, 4, "head", 1234), id="torchrun"),
        pytest.param(
            {"RANK": "0", "WORLD_SIZE": "1"},
            Rendezvous("torchrun", 0, 1, 0, 1, "127.0.0.1", 29500),
            id="torchrun-alone",
        ),
        pytest.param(SRUN, Rendezvous("srun", 6, 7, 2, 3, "gpu012", 20123), id="srun"),
        pytest.param(
            {**SRUN, "MASTER_ADDR": "ib0", "MASTER_PORT": "5"},
            Rendezvous("srun", 6, 7, 2, 3, "ib0", 5),
            id="srun-own-address",
        ),
        pytest.param(
            {**SRUN, **TORCHRUN},
            Rendezvous("torchrun", 5, 8, 1, 4, "head", 1234),
            id="torchrun-inside-srun",
        ),
        pytest.param(OPEN_MPI, Rendezvous("mpirun", 3, 4, 3, 4, "127.0.0.1", 29500), id="open-mpi"),
        pytest.param(MPICH, Rendezvous("mpirun", 1, 2, 0, 1, "head", 29500), id="mpich"),
        pytest.param({"SLURM_JOB_ID": "7", "HOME": "x"}, None, id="shell-of-an-allocation"),
        pytest.param({}, None, id="alone"),
    ],
)
def test_launchers(environment: dict[str, str], expected: Rendezvous | None) -> None:
    assert find_rendezvous(environment) == expected


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        pytest.param({**TORCHRUN, "RANK": "x"}, "RANK is 'x', not a number", id="no-number"),
        pytest.param(
            {"RANK": "0", "WORLD_SIZE": "2"}, "nothing says where its ranks meet", id="no-address"
        ),
        pytest.param(
            {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "8"}, "MASTER_ADDR is not set", id="mpi-on-hosts"
        ),
        pytest.param({"PMI_RANK": "0"}, "PMI_SIZE is not set", id="half-an-environment"),
        pytest.param({**SRUN, "SLURM_NODELIST": ","}, "names no host", id="empty-node-list"),
    ],
)
def test_unusable_environments_are_refused(environment: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        find_rendezvous(environment)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[007-009,12],cpu1", "gpu007"),
        ("gpu[3,5-7]", "gpu3"),
        ("rack[1-2]n[01-16]", "rack1n01"),
        ("a-b[10-11]-ib", "a-b10-ib"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host
