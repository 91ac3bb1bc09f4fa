"""The conditions under which a rank computes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shardwright.hardware_profiles.rank_environment import (
    CoreClaim,
    pin_among,
    pin_to_core,
    rank_environment,
    sharers,
)


def test_a_cpu_rank_has_one_thread_and_an_accelerator_s_host_as_many_as_it_likes() -> None:
    assert rank_environment("cpu")["OMP_NUM_THREADS"] == "1"
    assert rank_environment("cuda") == {}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_ranks_get_a_core_each_only_where_there_are_enough() -> None:
    program = (
        "import os; from shardwright.hardware_profiles.rank_environment import pin_to_core;"
        "cores = sorted(os.sched_getaffinity(0));"
        "assert pin_to_core(0, len(cores) + 1) is None;"
        "assert sorted(os.sched_getaffinity(0)) == cores;"
        "last = len(cores) - 1;"
        "assert pin_to_core(last, len(cores)) == cores[-1];"
        "assert os.sched_getaffinity(0) == {cores[-1]}"
    )
    before = os.sched_getaffinity(0)
    subprocess.run([sys.executable, "-c", program], check=True)
    assert os.sched_getaffinity(0) == before
    assert pin_to_core(0, len(before) + 1) is None


def test_a_kept_heap_does_not_fault_memory_in_again() -> None:
    """The variables take effect: freed tensors of 8 MiB are reused without new page faults."""
    program = (
        "import resource, torch; torch.set_num_threads(1)\n"
        "def step():\n"
        "    kept = [torch.ones(2**21) for _ in range(16)]\n"
        "for _ in range(3): step()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(3): step()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )

    def faults(environment: dict[str, str]) -> int:
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        return int(done.stdout)

    pages = 3 * 16 * 2**23 // 4096
    assert faults(rank_environment("cpu")) < pages / 100


def _claims(*rows: tuple[str, set[int]]) -> list[CoreClaim]:
    return [CoreClaim(machine, frozenset(cores)) for machine, cores in rows]


def test_ranks_of_containers_on_one_machine_share_its_cores() -> None:
    claims = _claims(("a", {0, 1}), ("b", {0, 1}), ("a", {1, 2}), ("a", {3}), ("a", {2}))
    assert sharers(claims, 0) == [0, 2, 4]
    assert sharers(claims, 1) == [1]
    assert sharers(claims, 3) == [3]


def test_more_ranks_than_cores_are_not_pinned() -> None:
    """Two nodes of two ranks that are one machine of two cores: none gets a core of its own."""
    own = CoreClaim.own()
    crowd = [own] * (len(own.cores) + 1)
    assert pin_among(crowd, 0) is None
    assert CoreClaim.own() == own


def test_a_core_for_each() -> None:
    program = (
        "from shardwright.hardware_profiles.rank_environment import CoreClaim, pin_among\n"
        "own = CoreClaim.own(); cores = sorted(own.cores)\n"
        "assert pin_among([own] * len(cores), len(cores) - 1) == cores[-1]\n"
        "assert CoreClaim.own().cores == {cores[-1]}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_claims_travel_as_text() -> None:
    own = CoreClaim.own()
    assert CoreClaim.from_text(own.to_text()) == own
