"""Who holds which ranks, and how processes of one launch agree."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from shardwright.runtime.rendezvous import find_rendezvous
from shardwright.runtime.seats import Seats
from shardwright.specs import RunError


def test_one_process_holds_all_ranks_of_its_machine() -> None:
    seats = Seats.here(3)
    assert seats.leads
    assert seats.share("a", "text") == "text"
    assert seats.gather("b", "text") == ["text"]
    assert seats.gather_all("c", "text") == ["text"]
    seats.announce("d")
    assert not seats.is_announced("d")


def test_a_rank_is_told_who_it_is_as_torchrun_tells_it() -> None:
    seats = Seats(4, (2,), (0,), 2, "10.0.0.1")
    found = find_rendezvous(seats.environment(0, 1234))
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank, found.ranks_on_node) == (2, 4, 0, 2)
    assert (found.address, found.port) == ("10.0.0.1", 1234)


def test_processes_agree_through_the_store() -> None:
    store = HashStore()
    leader, other = (Seats(2, (rank,), (rank,), 2, "here", store) for rank in (0, 1))
    found: list[object] = []

    def follow() -> None:
        found.append(other.share("turn", None))
        found.append(other.gather("ending", "mine"))
        other.announce("failed")

    thread = threading.Thread(target=follow)
    thread.start()
    assert leader.share("turn", "go") == "go"
    assert leader.gather("ending", "theirs") == ["theirs", "mine"]
    thread.join(10)
    assert found == ["go", ["mine"]]
    assert leader.is_announced("failed")
    assert not leader.is_announced("other")


def test_a_lost_leader_is_told() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    client = TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=5))
    seats = Seats(2, (1,), (1,), 2, "here", client)
    del server
    with pytest.raises(RunError, match="lost the process of rank 0"):
        seats.share("turn", None)


def test_a_port_is_free() -> None:
    assert 0 < Seats.here(1).free_port() < 65536
