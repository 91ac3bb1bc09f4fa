"""How a training program is started: with which arguments, on how many nodes and devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shardwright.planner.importers.shell.reader import Invocation
from shardwright.planner.importers.shell.unknown import Unknowns, is_known
from shardwright.planner.importers.sizes import Sizes, option, sizes_of_all, whole
from shardwright.planner.importers.wrappers import base

_TORCHRUN_FLAGS = frozenset(
    ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env",
     "--use_env", "-m", "--module", "--no_python", "--ft-param-initial_rank_heartbeat_timeout")
)  # fmt: skip
_TORCH_MODULES = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run")
)
_ALL_GPUS = frozenset(("gpu", "auto", "cuda", "musa", "npu"))

Read = Callable[[str], str | None]


@dataclass(slots=True)
class Launch:
    """A training program and what starts it. Numbers are None where they are not stated."""

    program: str
    """The Python file or module."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    line: int
    launcher: str
    """``torchrun``, ``deepspeed``, ``accelerate``, ``srun``, ``mpirun``, or ``python`` alone."""
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    accelerator: str | None = None
    conditions: tuple[str, ...] = ()
    unread: list[str] = field(default_factory=list)


def launch_of(invocation: Invocation, read: Read, unknowns: Unknowns) -> Launch | None:
    """What an invocation starts; None where it is no Python program.

    ``read``: the text of a file beside the script.
    """
    sizes = sizes_of_all(invocation.layers)
    words = invocation.words
    name = base(words[0]) if words else ""
    if re.fullmatch(r"python[\d.]*|pypy\d?", name):
        module, rest = _python(words)
        if module in _TORCH_MODULES:
            words, name = ("torchrun", *rest), "torchrun"
        elif module in ("accelerate.commands.launch", "deepspeed.launcher.runner"):
            name = module.split(".")[0]
            words = (name, *rest)
        elif module is None:
            return None
        else:
            return _direct(invocation, module, rest, sizes)
    if name in ("torchrun", "ft_launcher"):
        return _torchrun(invocation, words, sizes, unknowns)
    if name == "deepspeed":
        return _deepspeed(invocation, words, sizes, read, unknowns)
    if name == "accelerate" and len(words) > 1:
        return _accelerate(invocation, words, sizes, unknowns)
    if name.endswith(".py"):
        return _direct(invocation, words[0], words[1:], sizes)
    return None


def _python(words: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The file or module that Python runs, and its arguments."""
    place = 1
    while place < len(words):
        word = words[place]
        if word == "-m":
            rest = words[place + 1 :]
            return (rest[0], rest[1:]) if rest else (None, ())
        if not word.startswith("-"):
            return word, words[place + 1 :]
        if word == "-c":
            return None, ()
        place += 2 if word in ("-W", "-X") else 1
    return None, ()


def _program(words: tuple[str, ...], flags: frozenset[str]) -> int:
    """Where a launcher's own options end."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        place += 1 if words[place] in flags or "=" in words[place] else 2
    if (
        place < len(words)
        and not base(words[place]).endswith(".py")
        and not (set(words[:place]) & {"-m", "--module", "--no-python", "--no_python"})
    ):
        files = [at for at, word in enumerate(words) if base(word).endswith(".py")]
        return files[0] if files else place
    return place


def _torchrun(
    invocation: Invocation, words: tuple[str, ...], sizes: Sizes, unknowns: Unknowns
) -> Launch | None:
    place = _program(words, _TORCHRUN_FLAGS)
    if place >= len(words):
        return None
    own = words[:place]
    started = _started(invocation, "torchrun", words[place], words[place + 1 :], sizes)
    environment = invocation.environment
    nodes = option(own, "--nnodes", "--nnode") or environment.get("PET_NNODES", "1")
    each = option(own, "--nproc_per_node", "--nproc-per-node") or environment.get(
        "PET_NPROC_PER_NODE", "1"
    )
    started.nodes = _count(nodes, "the number of nodes", unknowns, started)
    if each in _ALL_GPUS:
        started.gpus_per_node = sizes.gpus_per_node
        if sizes.gpus_per_node is None:
            started.unread.append("the processes per node: one for each device that a node has")
    else:
        started.gpus_per_node = _count(each, "the processes per node", unknowns, started)
    return _multiplied(started)


def _count(text: str, what: str, unknowns: Unknowns, started: Launch) -> int | None:
    """A number; None with a word where it is not known."""
    if not is_known(text):
        started.unread.append(f"{what}: {unknowns.reasons(text)}")
        return None
    found = whole(text)
    if found is None:
        started.unread.append(f"{what}: {text!r} is no number")
    return found


def _multiplied(started: Launch) -> Launch:
    if started.nodes is not None and started.gpus_per_node is not None:
        started.gpus = started.nodes * started.gpus_per_node
    return started


def _started(
    invocation: Invocation, launcher: str, program: str, arguments: tuple[str, ...], sizes: Sizes
) -> Launch:
    return Launch(
        program, arguments, invocation.environment, invocation.line, launcher,
        accelerator=sizes.accelerator, conditions=invocation.conditions,
    )  # fmt: skip


def _deepspeed(
    invocation: Invocation, words: tuple[str, ...], sizes: Sizes, read: Read, unknowns: Unknowns
) -> Launch | None:
    files = [place for place, word in enumerate(words) if base(word).endswith(".py")]
    if not files:
        return None
    own = words[: files[0]]
    started = _started(invocation, "deepspeed", words[files[0]], words[files[0] + 1 :], sizes)
    hosts = _hosts(option(own, "--hostfile", "-H"), read)
    nodes, each = option(own, "--num_nodes"), option(own, "--num_gpus")
    started.nodes = len(hosts) or sizes.nodes
    if nodes is not None:
        started.nodes = _count(nodes, "the number of nodes", unknowns, started)
    slots = set(hosts.values())
    started.gpus_per_node = slots.pop() if len(slots) == 1 else sizes.gpus_per_node
    if each is not None:
        started.gpus_per_node = _count(each, "the GPUs per node", unknowns, started)
        if nodes is None and not hosts and option(own, "--hostfile", "-H") is None:
            started.nodes = started.nodes or 1
    _include(option(own, "--include", "-i"), started)
    return _multiplied(started)


def _include(text: str | None, started: Launch) -> None:
    """``--include worker-0@worker-1:0,2``: nodes joined by @, with their devices."""
    if text is None or not is_known(text):
        return
    parts = text.split("@")
    started.nodes = len(parts)
    counts = {len(part.partition(":")[2].split(",")) for part in parts if ":" in part}
    if len(counts) == 1:
        started.gpus_per_node = counts.pop()


def _hosts(path: str | None, read: Read) -> dict[str, int | None]:
    """``host slots=8`` of each line of a file beside the script."""
    text = read(path) if path else None
    found: dict[str, int | None] = {}
    for line in (text or "").splitlines():
        words = line.partition("#")[0].split()
        if words:
            slots = re.search(r"(?:slots|max_slots)=(\d{1,4})", line) or re.search(
                r":(\d{1,4})", line
            )
            found[words[0]] = int(slots[1]) if slots else None
    return found


def _accelerate(
    invocation: Invocation, words: tuple[str, ...], sizes: Sizes, unknowns: Unknowns
) -> Launch | None:
    files = [place for place, word in enumerate(words) if base(word).endswith(".py")]
    if not files:
        return None
    own = words[: files[0]]
    started = _started(invocation, "accelerate", words[files[0]], words[files[0] + 1 :], sizes)
    total, nodes = option(own, "--num_processes", "--num-processes"), option(
        own, "--num_machines", "--num-machines"
    )  # fmt: skip
    if total is not None:
        started.gpus = _count(total, "the number of processes", unknowns, started)
    if nodes is not None:
        started.nodes = _count(nodes, "the number of nodes", unknowns, started)
    elif started.gpus is not None:
        started.nodes = 1
    if started.gpus is not None and started.nodes and started.gpus % started.nodes == 0:
        started.gpus_per_node = started.gpus // started.nodes
    return started


def _direct(
    invocation: Invocation, program: str, arguments: tuple[str, ...], sizes: Sizes
) -> Launch:
    """Python without a launcher of its own: a process per task of Slurm or MPI, or one."""
    names = [base(layer[0]) for layer in invocation.layers]
    known = [name for name in names if name in ("srun", "mpirun", "mpiexec", "mpiexec.hydra",
             "orterun", "prun", "horovodrun", "jsrun", "aprun", "flux", "mpirun_rsh")]  # fmt: skip
    started = _started(invocation, known[-1] if known else "python", program, arguments, sizes)
    world = whole(invocation.environment.get("WORLD_SIZE"))
    if not known:
        started.gpus = world
        started.gpus_per_node = whole(invocation.environment.get("LOCAL_WORLD_SIZE"))
        return started
    each = sizes.tasks_per_node
    total = sizes.tasks
    if total is None and sizes.nodes is not None:
        total = sizes.nodes * (each or 1) if each or names[-1] == "srun" else None
    nodes = sizes.nodes
    if nodes is None and total is not None and each is not None and total % each == 0:
        nodes = total // each
    if each is None and total is not None and nodes is not None and total % nodes == 0:
        each = total // nodes
    started.nodes, started.gpus = nodes, total or world
    started.gpus_per_node = each or sizes.gpus_per_node
    return started
