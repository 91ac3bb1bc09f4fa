"""Pipeline stages as Megatron-LM's arguments."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.planner.exporters.megatron.arguments import Option
from shardwright.planner.exporters.megatron.model import prediction_of
from shardwright.planner.exporters.megatron.versions import MegatronVersion
from shardwright.specs import Layout


def stage_options(job: Job, version: MegatronVersion, findings: Findings) -> Iterator[Option]:
    """Degree, virtual stages and layers of each stage, in the plainest option that says them."""
    layout = job.layout
    yield ("--pipeline-model-parallel-size", str(layout.pp))
    if layout.pp == 1:
        return
    counts = [stage.num_layers for stage in layout.stages]
    if len(set(counts)) == 1:
        if layout.vpp > 1:
            yield ("--num-layers-per-virtual-pipeline-stage", str(counts[0]))
    elif has_uneven_ends(layout):
        yield ("--decoder-first-pipeline-num-layers", str(counts[0]))
        yield ("--decoder-last-pipeline-num-layers", str(counts[-1]))
    elif version.rules.places_layers_freely:
        block = prediction_of(job.model)
        yield (
            "--pipeline-model-parallel-layout",
            layout_string(counts, 0 if block is None else block.depth),
        )
    elif layout.vpp == 1 and 0 in (counts[0], counts[-1]):
        findings.refuse(
            "layers",
            f"{version.rules.version} has no stage without layers, and the first has {counts[0]},"
            f" the last {counts[-1]}",
            "a layer at least on each stage",
        )


def has_uneven_ends(layout: Layout) -> bool:
    """Whether only the first and the last stage, neither empty, differ from equal others."""
    counts = [stage.num_layers for stage in layout.stages]
    inner = set(counts[1:-1])
    return (
        layout.vpp == 1 and counts[0] > 0 and counts[-1] > 0 and len(inner) <= 1 and 0 not in inner
    )


def layout_string(counts: list[int], num_predictions: int) -> str:
    """``Et*3|(t*4|)*6t*2mL``: the layers of each virtual stage in model order.

    E is the embedding, t a layer, m one of multi-token prediction, L the loss; ``|`` ends a stage,
    ``x*n`` and ``(..)*n`` repeat. Stage i is on pipeline rank i mod pp.
    """
    last = len(counts) - 1
    parts: list[str] = []
    index = 0
    for count, run in itertools.groupby(counts):
        length = len(list(run))
        first, stop = index, index + length
        index = stop
        inner = range(max(first, 1), min(stop, last))  # stages with nothing but layers
        if first == 0:
            parts.append(f"E{_repeat('t', count)}|")
        if len(inner) > 1:
            parts.append(f"({_repeat('t', count)}|)*{len(inner)}")
        elif inner:
            parts.append(f"{_repeat('t', count)}|")
        if stop == last + 1:
            parts.append(f"{_repeat('t', count)}{_repeat('m', num_predictions)}L")
    return "".join(parts)


def _repeat(letter: str, count: int) -> str:
    return letter * count if count < 3 else f"{letter}*{count}"


def parse_layout_string(text: str) -> list[str]:
    """The letters of each virtual stage, with every repetition written out.

    Raises:
        ValueError: a letter that is none of E, t, m, L, or a bracket without its pair.
    """
    text = text.replace(",", "").strip("\"'")
    text = _unroll(text)
    unknown = sorted(set(text) - set("EtmL|"))
    if unknown:
        raise ValueError(f"{''.join(unknown)!r} in a pipeline layout; its letters are E t m L |")
    return text.split("|")


def _unroll(text: str) -> str:
    text = re.sub(r"\(([^()]*)\)\*(\d{1,6})", lambda m: m[1] * min(int(m[2]), 10**5), text)
    return re.sub(r"(.)\*(\d{1,6})", lambda m: m[1] * min(int(m[2]), 10**5), text)
