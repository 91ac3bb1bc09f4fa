"""Real gloo ranks for tests: start N processes once, run a list of cases, collect, end them all."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

Case = Callable[[], Any]
"""Called on every rank inside the initialised world; picklable (a module's function, a partial)."""


class RanksFailedError(AssertionError):
    """A rank raised, ended early, or hung; the message holds each rank's traceback."""


def run_on_ranks(
    world_size: int, cases: Sequence[Case], *, timeout_s: float = 60.0
) -> list[list[Any]]:
    """``results[rank][case]`` of each case, run in order on ``world_size`` gloo ranks.

    Ranks are forked from a server that has imported torch already, so a launch costs little; still,
    put many cases in one launch. Results are pickled, so may be tensors.

    Raises:
        RanksFailedError: a case raised on some rank, or ``timeout_s`` passed. No process is left.
    """
    context = _context()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        readers: list[Connection] = []
        processes: list[ForkServerProcess] = []
        stack.callback(_end, processes)
        for rank in range(world_size):
            reader, writer = context.Pipe(duplex=False)
            stack.enter_context(reader)
            arguments = (writer, rank, world_size, str(Path(folder) / "store"), list(cases))
            process = context.Process(target=_rank_main, args=(*arguments, timeout_s), daemon=True)
            process.start()
            writer.close()
            readers.append(reader)
            processes.append(process)
        return _collect(readers, timeout_s)


_PRELOADED = [
    "torch.distributed",
    "torch._dynamo",  # what a dispatch mode imports: the ledger
    "torch.fx.experimental.symbolic_shapes",  # what ``backward`` imports when given a gradient
    "shardwright.runtime.step",
    "tests.distributed",
]
"""Imported once by the server, not by each rank, which would cost it seconds."""


@functools.cache
def _context() -> ForkServerContext:
    """A server that is ready: importing torch on a busy machine is not the ranks' time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    first = context.Process(target=_do_nothing, daemon=True)
    first.start()
    first.join(timeout=120.0)
    return context


def _do_nothing() -> None:
    pass


def _collect(readers: list[Connection], timeout_s: float) -> list[list[Any]]:
    """One message of each rank; on the first failure the others get a second to tell theirs."""
    results: dict[int, list[Any]] = {}
    failures: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    pending = {reader: rank for rank, reader in enumerate(readers)}
    while pending and (left := deadline - time.monotonic()) > 0:
        for ready in wait(list(pending), left):
            assert isinstance(ready, Connection)
            rank = pending.pop(ready)
            try:
                succeeded, value = pickle.loads(ready.recv_bytes())
            except EOFError:
                succeeded, value = False, "ended without a word"
            if succeeded:
                results[rank] = value
            else:
                failures[rank] = value
                deadline = min(deadline, time.monotonic() + 1.0)
    if failures or pending:
        silent = {rank: f"no answer within {timeout_s} s" for rank in pending.values()}
        parts = [f"rank {rank}: {text}" for rank, text in sorted((failures or silent).items())]
        raise RanksFailedError("\n".join(parts))
    return [results[rank] for rank in sorted(results)]


def _end(processes: list[ForkServerProcess]) -> None:
    for process in processes:
        process.join(0.5)
        process.kill()
    for process in processes:
        process.join()


def _rank_main(
    writer: Connection, rank: int, world_size: int, store: str, cases: list[Case], timeout_s: float
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    message: tuple[bool, Any]
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )  # fmt: skip
        message = True, [case() for case in cases]
    except BaseException:  # told to the parent, which raises it
        message = False, traceback.format_exc()
    with contextlib.suppress(BrokenPipeError):  # the parent has given up
        writer.send_bytes(pickle.dumps(message))
    if message[0]:
        dist.destroy_process_group()
