"""Joining the other ranks of a run, and what their loss looks like from here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous as meet_at

from shardwright.hardware_profiles.device import collective_backend, torch_device
from shardwright.hardware_profiles.rank_environment import CoreClaim, pin_among, pin_to_core
from shardwright.runtime.job import LostPeerError
from shardwright.runtime.rendezvous import Rendezvous
from shardwright.specs import RunError, ShardwrightError

_Result = TypeVar("_Result")

_STOP_AFTER = "stop-after-step"


@dataclass(frozen=True, slots=True)
class Membership:
    """This process as a rank of an initialised world."""

    rank: int
    device: torch.device
    store: Store
    timeout: timedelta

    def ask_to_stop(self, after_step: int) -> None:
        """Make every rank end the run after ``after_step``, which this rank must not have begun.

        No rank can have finished a step that this one has not begun, because every step ends in
        a collective of the whole world. So all ranks read the wish before they finish that step.
        """
        self.store.compare_set(_STOP_AFTER, "", str(after_step))

    def must_stop(self, step: int) -> bool:
        """Whether the run ends now that ``step`` is done; every rank gets the same answer."""
        if not self.store.check([_STOP_AFTER]):
            return False
        return int(self.store.get(_STOP_AFTER)) <= step


@contextlib.contextmanager
def membership(
    rendezvous: Rendezvous, timeout_s: float, *, pins: bool = False
) -> Iterator[Membership]:
    """Meet the other ranks; on leaving, take down the process groups.

    Args:
        pins: give this rank a core of its own, for good, where there is one for each.

    Raises:
        RunError: the others did not come in time, or the meeting point cannot be used.
        InputError: there is no device for this rank.
    """
    device = torch_device(rendezvous.local_rank)
    timeout = timedelta(seconds=timeout_s)
    store = meet(rendezvous, timeout)
    if pins:
        settle_on_cores(rendezvous, device, store)  # before gloo starts its threads
    dist.init_process_group(
        collective_backend(device.type),  # type: ignore[arg-type]
        store=PrefixStore("shardwright", store),
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    try:
        yield Membership(rendezvous.rank, device, store, timeout)
    finally:
        dist.destroy_process_group()


def settle_on_cores(rendezvous: Rendezvous, device: torch.device, store: Store) -> None:
    """Pin this rank to a core. Where cores compute, nodes may be containers of one machine, so that
    ranks learn from each other who shares cores."""
    if device.type != "cpu":
        pin_to_core(rendezvous.local_rank, rendezvous.ranks_on_node)
        return
    store.set(f"cores/{rendezvous.rank}", CoreClaim.own().to_text())
    ranks = range(rendezvous.world_size)
    claims = [CoreClaim.from_text(store.get(f"cores/{rank}").decode()) for rank in ranks]
    pin_among(claims, rendezvous.rank)


def meet(rendezvous: Rendezvous, timeout: timedelta) -> Store:
    """The store of a launch, once all its ranks are there.

    Raises:
        RunError: they did not come in time, or the meeting point cannot be used.
    """
    os.environ["MASTER_ADDR"] = rendezvous.address
    os.environ["MASTER_PORT"] = str(rendezvous.port)
    place = f"{rendezvous.address}:{rendezvous.port}"
    try:
        store, _, _ = next(
            meet_at("env://", rendezvous.rank, rendezvous.world_size, timeout=timeout)
        )
    except dist.DistError as error:
        taken = "EADDRINUSE" in str(error) or "already in use" in str(error)
        raise RunError(
            f"rank {rendezvous.rank} cannot meet the other {rendezvous.world_size - 1} ranks at"
            f" {place}",
            why="that port is in use" if taken else _first_line(error),
            fix="set MASTER_PORT to a free port"
            if taken
            else f"check that all {rendezvous.world_size} ranks were started and can reach {place}",
        ) from None
    assert isinstance(store, Store)
    return store


def together(action: Callable[[], _Result]) -> list[_Result]:
    """Run ``action`` on every rank and return all results; if any failed, all ranks raise.

    Raises:
        InputError, RunError: what the first rank that failed raised; an `OSError` as a `RunError`.
    """
    outcome: _Result | ShardwrightError
    try:
        outcome = action()
    except ShardwrightError as error:
        outcome = error
    except OSError as error:
        outcome = RunError(f"{reason_of(error)} (rank {_rank()})")
    outcomes = [outcome]
    if dist.is_initialized():
        outcomes *= dist.get_world_size()
        dist.all_gather_object(outcomes, outcome)
    results: list[_Result] = []
    for each in outcomes:
        if isinstance(each, ShardwrightError):
            each.on_every_rank = True
            raise each
        results.append(each)
    return results


def reason_of(error: BaseException) -> str:
    """One line for what a file, a peer or the system refused."""
    if isinstance(error, ShardwrightError):
        return error.problem
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} at {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {_first_line(error)}"


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


@contextlib.contextmanager
def explained(rank: int, doing: str) -> Iterator[None]:
    """Turn the loss of another rank, and lack of memory, into one line.

    Raises:
        LostPeerError: another rank is gone, or was silent for the time-out.
        RunError: this rank's memory is full.
    """
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise RunError(
                f"rank {rank} ran out of memory {doing}",
                why=_first_line(error),
                fix="plan with more memory headroom, a smaller micro-batch, or recompute",
            ) from error
        if is_lost_peer(error):
            raise LostPeerError(
                f"rank {rank} lost the connection to another rank {doing}",
                why=_first_line(error),
                fix="see what the other rank says",
            ) from error
        raise


def is_lost_peer(error: RuntimeError) -> bool:
    """Gloo raises plain `RuntimeError`s that name its source files."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def is_out_of_memory(error: RuntimeError) -> bool:
    """An accelerator's allocator has a type of its own; the CPU's has only its words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
