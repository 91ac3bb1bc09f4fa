"""The scheduler's picture: ``scontrol show node``, ``show topology``, ``show hostnames``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from shardwright.hardware_profiles.topology.readings import MB_BYTES, FabricSwitch, SlurmNode

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)", re.DOTALL)
_HOST = re.compile(r"[A-Za-z][\w.\-]*\d[\w.\-]*|[A-Za-z][\w.\-]*\[[\d,\-]+\][\w.\-]*")
_MOST_HOSTS = 2**20


def read_nodes(text: str) -> tuple[SlurmNode, ...]:
    """The nodes of ``scontrol show node``, on one line each or on many."""
    blocks = re.split(r"(?:^|(?<=\s))(?=NodeName=)", text, flags=re.MULTILINE)
    return tuple(_node(block) for block in blocks if block.startswith("NodeName="))


def _node(block: str) -> SlurmNode:
    fields = {key: value.strip() for key, value in _FIELD.findall(block)}
    types, count = _gres(fields.get("Gres", ""))
    configured = _tres_gpus(fields.get("CfgTRES"))
    memory = re.match(r"\d+", fields.get("RealMemory", ""))
    cpus = re.match(r"\d+", fields.get("CPUTot") or fields.get("CPUs") or "")
    features = fields.get("ActiveFeatures") or fields.get("AvailableFeatures") or ""
    if not types and fields.get("CfgTRES"):
        types = re.findall(r"gres/gpu:([\w.\-]+)=", fields["CfgTRES"])
    return SlurmNode(
        name=fields["NodeName"].split()[0],
        gpu_type=types[0] if types else None,
        num_gpus=count or configured or 0,
        num_gpus_allocated=_allocated(fields),
        num_cpus=int(cpus[0]) if cpus else None,
        memory_bytes=int(memory[0]) * MB_BYTES if memory else None,
        state=(fields.get("State") or "").split(" ")[0] or None,
        features=tuple(word for word in features.split(",") if word and word != "(null)"),
    )


def _gres(text: str) -> tuple[list[str], int]:
    """Types and number of GPUs in ``gpu:a100:4(S:0-1),gpu:v100:2,lscratch:100``."""
    plain = re.sub(r"\([^)]*\)", "", text)
    types, count = [], 0
    for item in plain.split(","):
        parts = item.strip().removeprefix("gres/").split(":")
        if parts[0] != "gpu":
            continue
        amount = parts[-1] if parts[-1].isdigit() else "1"
        kind = parts[1:-1] if parts[-1].isdigit() else parts[1:]
        types += [":".join(kind)] if kind else []
        count += int(amount)
    return types, count


def _allocated(fields: dict[str, str]) -> int | None:
    if "AllocTRES" in fields:
        return _tres_gpus(fields["AllocTRES"]) or 0
    return _gres(fields["GresUsed"])[1] if "GresUsed" in fields else None


def _tres_gpus(text: str | None) -> int | None:
    """GPUs of all types in ``cpu=8,mem=128G,gres/gpu=2,gres/gpu:a100=2``."""
    if text is None:
        return None
    total = re.search(r"gres/gpu=(\d+)", text)
    if total:
        return int(total[1])
    typed = [int(count) for count in re.findall(r"gres/gpu:[\w.\-]+=(\d+)", text)]
    return sum(typed) if typed else None


def read_switches(text: str) -> tuple[FabricSwitch, ...]:
    """Switches and blocks of ``scontrol show topology`` or ``topology.conf``."""
    found = []
    for line in text.split("\n"):
        fields = {key: value.strip() for key, value in _FIELD.findall(line)}
        name = fields.get("SwitchName") or fields.get("BlockName")
        if name is None:
            continue
        level = fields.get("Level", "")
        found.append(
            FabricSwitch(
                name=name,
                level=int(level) if level.isdigit() else None,
                nodes=tuple(expand_hosts(fields.get("Nodes", ""))),
                switches=tuple(expand_hosts(fields.get("Switches", ""))),
                is_block="BlockName" in fields,
            )
        )
    return tuple(found)


def read_hostnames(text: str) -> tuple[str, ...]:
    """Hosts of a text that holds nothing else: one a line, or lists such as ``node[01-04,07]``."""
    words = [word for line in text.split("\n") for word in _split_hosts(line.strip()) if word]
    if not words or not all(_HOST.fullmatch(word) for word in words):
        return ()
    return tuple(dict.fromkeys(host for word in words for host in expand_hosts(word)))


def expand_hosts(text: str) -> Iterator[str]:
    """``a[01-03,7]-ib,b4`` -> ``a01-ib a02-ib a03-ib a7-ib b4``; widths are kept."""
    for word in _split_hosts(text):
        parts = re.split(r"(\[[^\]]*\])", word)
        choices = [list(_numbers(p[1:-1])) if p.startswith("[") else [p] for p in parts]
        for combined in itertools.islice(itertools.product(*choices), _MOST_HOSTS):
            yield "".join(combined)


def _split_hosts(text: str) -> list[str]:
    """At commas outside of brackets."""
    return [word.strip() for word in re.split(r",(?![^\[]*\])", text) if word.strip()]


def _numbers(text: str) -> Iterator[str]:
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not dash:
            yield item
        elif first.isdigit() and last.isdigit():
            for index in range(int(first), min(int(last), int(first) + _MOST_HOSTS) + 1):
                yield str(index).zfill(len(first))
