"""How many nodes and devices a scheduler or MPI is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from shardwright.planner.importers.wrappers import base

_DIRECTIVE = re.compile(
    r"^[ \t]*#(SBATCH|BSUB|PBS|COBALT|PJM|flux:)[ \t]+(.*?)[ \t]*$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is stated; None where it is not."""

    nodes: int | None = None
    tasks: int | None = None
    """Processes in all."""
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    accelerator: str | None = None

    def over(self, outer: Sizes) -> Sizes:
        """These, and what the outer ones state where these do not."""
        given = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if getattr(self, one.name) is not None
        }
        return replace(outer, **given)


def directives(text: str) -> tuple[str, ...]:
    """A batch script's own lines for its scheduler, as the words of a command."""
    words: list[str] = []
    for match in _DIRECTIVE.finditer(text):
        names = {"SBATCH": "sbatch", "BSUB": "bsub", "PBS": "qsub", "COBALT": "qsub"}
        if not words:
            words.append(names.get(match[1], match[1].lower()))
        words += re.split(r"[ \t]+#", match[2])[0].split()
    return tuple(words)


def sizes_of(layer: tuple[str, ...]) -> Sizes:
    """What the words of one wrapper ask for."""
    name = base(layer[0]) if layer else ""
    if name in ("srun", "sbatch", "salloc"):
        return _slurm(layer)
    if name in (
        "mpirun",
        "mpiexec",
        "mpiexec.hydra",
        "orterun",
        "prun",
        "horovodrun",
        "mpirun_rsh",
    ):
        return _mpi(layer)
    if name == "jsrun":
        sets, gpus = _number(layer, "-n", "--nrs"), _number(layer, "-g", "--gpu_per_rs")
        hosted = _number(layer, "-r", "--rs_per_host")
        tasks = _number(layer, "-a", "--tasks_per_rs") or 1
        return Sizes(
            tasks=None if sets is None else sets * tasks,
            tasks_per_node=None if hosted is None else hosted * tasks,
            gpus_per_node=None if hosted is None or gpus is None else hosted * gpus,
        )
    if name == "bsub":
        return Sizes(nodes=_number(layer, "-nnodes"))
    if name == "flux":
        return Sizes(nodes=_number(layer, "-N", "--nodes"), tasks=_number(layer, "-n", "--ntasks"))
    return _pbs(layer) if name == "qsub" else Sizes()


def sizes_of_all(layers: Iterable[tuple[str, ...]]) -> Sizes:
    """Of wrappers from the outside in: the innermost that states a number holds."""
    found = Sizes()
    for layer in layers:
        inner = sizes_of(layer)
        if inner.tasks_per_node is not None and inner.tasks is None:
            found = replace(found, tasks=None)
        found = inner.over(found)
    return found


def variables_of(sizes: Sizes) -> dict[str, str]:
    """What Slurm tells a script of its sizes."""
    nodes, per_node = sizes.nodes, sizes.tasks_per_node
    tasks = sizes.tasks
    if tasks is None and nodes is not None:
        tasks = nodes * (per_node or 1)
    values = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks, "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_GPUS_PER_NODE": sizes.gpus_per_node, "SLURM_GPUS_ON_NODE": sizes.gpus_per_node,
        "SLURM_GPUS": sizes.gpus, "SLURM_TASKS_PER_NODE": per_node,
    }  # fmt: skip
    return {name: str(value) for name, value in values.items() if value is not None}


def option(layer: tuple[str, ...], *names: str) -> str | None:
    """The value of an option: ``--nodes 4``, ``--nodes=4``, ``-N 4``, ``-N4``; the last that
    is given."""
    found = None
    for place, word in enumerate(layer):
        for name in names:
            if word == name:
                found = layer[place + 1] if place + 1 < len(layer) else None
            elif name.startswith("--") and word.startswith(f"{name}="):
                found = word.partition("=")[2]
            elif not name.startswith("--") and re.fullmatch(f"{re.escape(name)}=?\\d.*", word):
                found = word.removeprefix(name).lstrip("=")
    return found


def _number(layer: tuple[str, ...], *names: str) -> int | None:
    text = option(layer, *names)
    return whole(text)


def whole(text: str | None) -> int | None:
    """``8``; the larger of ``2-4`` and ``2:4``; None for what is no number."""
    match = re.fullmatch(r"(?:\d{1,7}[-:])?(\d{1,7})", (text or "").strip("'\""))
    return int(match[1]) if match and int(match[1]) > 0 else None


def _slurm(layer: tuple[str, ...]) -> Sizes:
    per_node = option(layer, "--gpus-per-node") or _of_gres(option(layer, "--gres"))
    kind, _, count = (per_node or "").rpartition(":")
    total = (option(layer, "--gpus", "-G") or "").rpartition(":")
    per_task = _number(layer, "--gpus-per-task")
    tasks_per_node = _number(layer, "--ntasks-per-node", "--tasks-per-node")
    gpus_per_node = whole(count)
    if gpus_per_node is None and per_task is not None and tasks_per_node is not None:
        gpus_per_node = per_task * tasks_per_node
    return Sizes(
        nodes=_number(layer, "--nodes", "-N"),
        tasks=_number(layer, "--ntasks", "-n"),
        tasks_per_node=tasks_per_node,
        gpus_per_node=gpus_per_node,
        gpus=whole(total[2]),
        accelerator=(kind or total[0] or "").removeprefix("gpu:").strip(":") or None,
    )


def _of_gres(text: str | None) -> str | None:
    """``a100:8`` of ``gpu:a100:8,nvme:1``."""
    for part in (text or "").split(","):
        kind, _, rest = part.partition(":")
        if kind in ("gpu", "gres/gpu", "dcu", "npu", "musa"):
            return re.sub(r"\(.*", "", rest) or "1"
    return None


def _mpi(layer: tuple[str, ...]) -> Sizes:
    tasks = _number(layer, "-np", "-n", "-c", "--np", "--n")
    per_node = _number(layer, "-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost")
    mapped = re.search(r"ppr:(\d{1,4}):node", " ".join(layer))
    if per_node is None and mapped:
        per_node = int(mapped[1])
    hosts = option(layer, "-H", "--host", "-host", "--hosts", "-hosts")
    nodes = None
    if hosts and re.fullmatch(r"[\w.:,-]+", hosts):
        listed = [part for part in hosts.split(",") if part]
        nodes = len(listed)
        slots = {whole(part.partition(":")[2]) for part in listed}
        if per_node is None and len(slots) == 1:
            per_node = slots.pop()
    return Sizes(nodes=nodes, tasks=tasks, tasks_per_node=per_node)


def _pbs(layer: tuple[str, ...]) -> Sizes:
    text = ",".join(layer)
    select = re.search(r"select=(\d{1,6})", text) or re.search(r"nodes=(\d{1,6})", text)
    gpus = re.search(r"ngpus=(\d{1,3})", text) or re.search(r":gpus=(\d{1,3})", text)
    ranks = re.search(r"mpiprocs=(\d{1,3})", text)
    return Sizes(
        nodes=int(select[1]) if select else None,
        tasks_per_node=int(ranks[1]) if ranks else None,
        gpus_per_node=int(gpus[1]) if gpus else None,
    )
