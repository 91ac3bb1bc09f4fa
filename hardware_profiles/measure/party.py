"""`Party`: the ranks that measure together, on one node or several, and which of them are here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pydantic import PositiveInt, model_validator

from shardwright.hardware_profiles.rank_environment import CoreClaim, sharers
from shardwright.specs import InputError, Spec


class Party(Spec):
    """As many ranks on each of the nodes, numbered node by node; given to each rank as JSON."""

    world: PositiveInt
    ranks_per_node: PositiveInt
    claims: tuple[str, ...]
    """By rank: the cores that it may use (`CoreClaim.to_text`)."""
    here: tuple[int, ...]
    """Ranks that this process starts."""
    meeting: str | None = None
    """Where the ranks meet, ``tcp://HOST:PORT``; null: at a file of this machine."""

    @model_validator(mode="after")
    def _every_node_is_full(self) -> Party:
        assert len(self.claims) == self.world, (self.claims, self.world)
        if self.world % self.ranks_per_node:
            raise ValueError(
                f"{self.world} ranks on nodes of {self.ranks_per_node}: every node must have"
                " equally many"
            )
        return self

    @classmethod
    def local(cls, num_ranks: int) -> Party:
        """All on this machine."""
        claim = CoreClaim.own().to_text()
        return cls(
            world=num_ranks, ranks_per_node=num_ranks, claims=(claim,) * num_ranks,
            here=tuple(range(num_ranks)),
        )  # fmt: skip

    @classmethod
    def joined(
        cls, claims: Sequence[str], *, rank: int, ranks_per_node: int, meeting: str
    ) -> Party:
        """The ranks of a launch, of which one is here.

        Raises:
            InputError: nodes with unequal numbers of ranks.
        """
        return cls.from_value(
            {"world": len(claims), "ranks_per_node": ranks_per_node, "claims": tuple(claims),
             "here": (rank,), "meeting": meeting},
            source="this launch",
        )  # fmt: skip

    @property
    def num_nodes(self) -> int:
        return self.world // self.ranks_per_node

    @property
    def leads(self) -> bool:
        """Whether rank 0, which reports, is started here."""
        return 0 in self.here

    @cached_property
    def core_claims(self) -> tuple[CoreClaim, ...]:
        """Of every rank."""
        return tuple(map(CoreClaim.from_text, self.claims))

    def sharers(self, rank: int) -> list[int]:
        """The ranks that compete with a rank for cores, itself among them."""
        return sharers(self.core_claims, rank)

    @property
    def num_cores(self) -> int:
        """Cores of those that compete with rank 0."""
        return len(frozenset[int]().union(*(self.core_claims[r].cores for r in self.sharers(0))))

    @property
    def num_nodes_on_machine(self) -> int:
        """Nodes that share rank 0's memory: containers of one machine."""
        machine = self.core_claims[0].machine
        firsts = self.core_claims[:: self.ranks_per_node]
        return sum(claim.machine == machine for claim in firsts)

    def check_alike(self) -> None:
        """Refuse nodes of which only some share cores with others.

        Raises:
            InputError: with the ranks that differ.
        """
        sizes = [len(self.sharers(rank)) for rank in range(self.world)]
        other = next((rank for rank, size in enumerate(sizes) if size != sizes[0]), None)
        if other is not None:
            raise InputError(
                f"rank 0 shares its cores with {sizes[0] - 1} other ranks, rank {other} with"
                f" {sizes[other] - 1}",
                why="a profile describes nodes that are alike",
                fix="give every node the same number of cores and ranks",
            )
