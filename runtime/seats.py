"""`Seats`: the ranks that this process starts and watches, and the others of its kind.

On one machine one process holds all ranks. Inside a launch of torchrun, srun or mpirun each process
holds the one rank that it was started as, and these processes agree through a store. Either way the
ranks themselves are processes of their own, so that one that dies takes nobody with it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from shardwright.runtime.ranks import meet
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.specs import RunError

_PATIENCE = timedelta(minutes=1)
"""Of one wait for another process's word; it is asked again until its store is gone."""
_PREFIX = "shardwright-seats"


@dataclass(frozen=True, slots=True)
class Seats:
    """Which ranks are held here, of how many."""

    world: int
    ranks: tuple[int, ...]
    """Global ranks held here, neighbours."""
    local_ranks: tuple[int, ...]
    """Their places on this node."""
    ranks_on_node: int
    address: str
    """Host of rank 0."""
    store: Store | None = None
    """Null where all ranks are held here."""

    @classmethod
    def here(cls, world: int) -> Seats:
        """All ranks on this machine."""
        ranks = tuple(range(world))
        return cls(world, ranks, ranks, world, "127.0.0.1")

    @classmethod
    def joined(cls, rendezvous: Rendezvous, timeout_s: float) -> Seats:
        """The rank of a launch; waits for the launch's other processes.

        Raises:
            RunError: they did not come in time.
        """
        store = meet(rendezvous, timedelta(seconds=timeout_s))
        return cls(
            rendezvous.world_size, (rendezvous.rank,), (rendezvous.local_rank,),
            rendezvous.ranks_on_node, rendezvous.address, store,
        )  # fmt: skip

    @property
    def leads(self) -> bool:
        """Whether rank 0 is held here: this process decides and reports."""
        return 0 in self.ranks

    def share(self, key: str, text: str | None) -> str:
        """The leader's ``text``, on every process; each key once."""
        if self.store is None:
            assert text is not None
            return text
        if self.leads:
            assert text is not None
            self.store.set(f"{_PREFIX}/{key}", text)
            return text
        return self._read(self.store, key)

    def gather(self, key: str, text: str) -> list[str]:
        """Every process's text by its first rank; on the leader alone, elsewhere the own."""
        if self.store is None:
            return [text]
        self.store.set(f"{_PREFIX}/{key}/{self.ranks[0]}", text)
        if not self.leads:
            return [text]
        return [self._read(self.store, f"{key}/{rank}") for rank in range(self.world)]

    def gather_all(self, key: str, text: str) -> list[str]:
        """Every process's text by its first rank, on every process."""
        if self.store is None:
            return [text]
        self.store.set(f"{_PREFIX}/{key}/{self.ranks[0]}", text)
        return [self._read(self.store, f"{key}/{rank}") for rank in range(self.world)]

    def announce(self, key: str) -> None:
        """Tell whoever asks with `is_announced`."""
        if self.store is not None:
            self.store.set(f"{_PREFIX}/{key}", "1")

    def is_announced(self, key: str) -> bool:
        """Whether any process announced it."""
        return self.store is not None and self.store.check([f"{_PREFIX}/{key}"])

    def free_port(self) -> int:
        """A port of this host that is free now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    @contextmanager
    def meeting_point(self) -> Iterator[int]:
        """A port where ranks meet while this is open, held by the leader; 0 elsewhere.

        A port that was merely free a while ago may be another program's by the time they meet.
        """
        if not self.leads:
            yield 0
            return
        store = TCPStore(self.address, 0, is_master=True, wait_for_workers=False)
        yield store.port
        del store

    def environment(self, place: int, port: int) -> dict[str, str]:
        """What tells the rank at ``place`` of those held here who it is, as torchrun would."""
        return {
            "RANK": str(self.ranks[place]),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local_ranks[place]),
            "LOCAL_WORLD_SIZE": str(self.ranks_on_node),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # that of `meeting_point`
            "TORCHELASTIC_RESTART_COUNT": "0",
        }

    def _read(self, store: Store, key: str) -> str:
        name = f"{_PREFIX}/{key}"
        while True:
            try:
                store.wait([name], _PATIENCE)
            except DistError as error:
                if "imeout" in str(error):
                    continue
                raise RunError(
                    f"rank {self.ranks[0]} lost the process of rank 0",
                    why=str(error).splitlines()[0],
                    fix="see what that process says",
                ) from None
            return store.get(name).decode()
