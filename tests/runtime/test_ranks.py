"""How ranks meet, agree and explain their peers' loss."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.distributed as dist

from shardwright.runtime.job import LostPeerError
from shardwright.runtime.ranks import explained, membership, together
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.specs import InputError, RunError


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _alone(port: int, world: int = 1) -> Rendezvous:
    return Rendezvous("torchrun", 0, world, 0, world, "127.0.0.1", port)


def test_stop_is_agreed_for_a_later_step() -> None:
    with membership(_alone(_free_port()), 20.0) as member:
        assert not member.must_stop(1)
        member.ask_to_stop(after_step=3)
        member.ask_to_stop(after_step=9)  # the first wish holds
        assert [member.must_stop(step) for step in (2, 3, 4)] == [False, True, True]
    assert not dist.is_initialized()


def test_port_in_use_is_explained() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(RunError, match=f"cannot meet .* at 127.0.0.1:{port} because that port"),
            membership(_alone(port), 5.0),
        ):
            pass


def test_ranks_that_never_come_are_explained() -> None:
    with (
        pytest.raises(RunError, match="rank 0 cannot meet the other 1 ranks"),
        membership(_alone(_free_port(), world=2), 1.0),
    ):
        pass


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (InputError("bad", why="so", fix="do"), InputError, "bad because so. To fix: do"),
        (RunError("failed"), RunError, "failed"),
        (OSError(28, "No space left on device", "f"), RunError, "No space left on device at f"),
    ],
)
def test_failures_are_shared(
    raised: Exception, expected: type[InputError | RunError], message: str
) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(expected, match=message) as error:
        together(fail)
    assert error.value.on_every_rank


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (
            RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer"),
            LostPeerError,
            "rank 3 lost the connection to another rank in step 7",
        ),
        (dist.DistBackendError("NCCL timeout"), LostPeerError, "NCCL timeout"),
        (torch.OutOfMemoryError("tried to allocate 2 GiB\nmore"), RunError, "rank 3 ran out of"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            RunError,
            "rank 3 ran out of memory in step 7",
        ),
    ],
)
def test_losses_are_explained(raised: RuntimeError, expected: type[RunError], message: str) -> None:
    with pytest.raises(expected, match=message) as error, explained(3, "in step 7"):
        raise raised
    assert "\n" not in str(error.value)


def test_our_own_faults_are_not_explained_away() -> None:
    with pytest.raises(RuntimeError, match="a fault of ours"), explained(3, "in step 7"):
        raise RuntimeError("a fault of ours")
