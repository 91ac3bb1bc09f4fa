"""`Schedule`: what each pipeline rank does, in order, as data.

One action's text form is that of ``torch.distributed.pipelining`` (stage, kind, micro-batch):
``0F3`` forward of micro-batch 3 on stage 0, ``2B1`` full backward, ``2I1`` input gradient,
``2W1`` weight gradient, ``0SEND_F3``, ``1RECV_F3``, ``1SEND_B3``, ``0RECV_B3``, ``0UNSHARD``,
``0RESHARD``, ``0REDUCE_GRAD``, and as our superset ``0RECOMPUTE3``, ``0OFFLOAD3``, ``0RELOAD3`` and
the overlapped pair ``(0F3;1B0)OVERLAP_F_B``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, PlainSerializer

from shardwright.specs._base import Spec
from shardwright.specs.errors import InputError
from shardwright.specs.ranges import Degree, SequenceCount


class ActionKind(StrEnum):
    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_FORWARD = "SEND_F"
    RECV_FORWARD = "RECV_F"
    SEND_BACKWARD = "SEND_B"
    RECV_BACKWARD = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"
    RECOMPUTE = "RECOMPUTE"
    OFFLOAD = "OFFLOAD"
    RELOAD = "RELOAD"
    OVERLAP_F_B = "OVERLAP_F_B"


_ACTION = re.compile(r"(\d+)(" + "|".join(sorted(ActionKind, key=len, reverse=True)) + r")(\d*)")
_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


@dataclass(frozen=True, slots=True)
class Action:
    """One step of one pipeline rank. ``stage`` is the virtual stage, in model order."""

    stage: int
    kind: ActionKind
    micro_batch: int | None = None
    parts: tuple[Action, ...] = ()
    """The two actions of an overlapped pair; empty for every other kind."""

    def __str__(self) -> str:
        if self.kind is ActionKind.OVERLAP_F_B:
            return f"({self.parts[0]};{self.parts[1]})OVERLAP_F_B"
        return f"{self.stage}{self.kind}{'' if self.micro_batch is None else self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The action that ``text`` writes; raises `InputError` for any other text."""
        pair = _PAIR.fullmatch(text)
        if pair:
            parts = (cls.parse(pair[1]), cls.parse(pair[2]))
            return cls(parts[0].stage, ActionKind.OVERLAP_F_B, None, parts)
        match = _ACTION.fullmatch(text)
        if not match:
            raise InputError(
                f"{text!r} is not a schedule action", fix="write one such as 0F3, 1B0 or 2SEND_F1"
            )
        micro_batch = int(match[3]) if match[3] else None
        return cls(int(match[1]), ActionKind(match[2]), micro_batch)


def _parse_actions(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return tuple(Action.parse(token) for token in value.split())
        except InputError as error:
            raise ValueError(str(error)) from None
    return value


ActionRow = Annotated[
    tuple[Action, ...],
    BeforeValidator(_parse_actions),
    PlainSerializer(lambda row: " ".join(map(str, row)), return_type=str),
]
"""One rank's actions; in JSON, one string of space-separated texts."""


class Schedule(Spec):
    """The actions of every pipeline rank, in the order in which it performs them."""

    name: str
    """The generator (``1f1b``) or ``custom``."""
    num_stages: Degree
    num_micro_batches: SequenceCount
    ranks: tuple[ActionRow, ...]

    def violations(self) -> list[str]:
        """Every way in which this is not a complete, executable training step."""
        from collections import Counter

        done: Counter[tuple[int, str, int | None]] = Counter()
        for row in self.ranks:
            for action in row:
                for part in action.parts or (action,):
                    done[part.stage, part.kind, part.micro_batch] += 1
        found = []
        for stage in range(self.num_stages):
            for micro_batch in range(self.num_micro_batches):
                forwards = done[stage, ActionKind.FORWARD, micro_batch]
                full = done[stage, ActionKind.BACKWARD, micro_batch]
                split = (
                    done[stage, ActionKind.BACKWARD_INPUT, micro_batch],
                    done[stage, ActionKind.BACKWARD_WEIGHT, micro_batch],
                )
                if forwards != 1:
                    found.append(f"stage {stage} runs forward {micro_batch} {forwards} times")
                if (full, *split) not in ((1, 0, 0), (0, 1, 1)):
                    found.append(
                        f"stage {stage} runs backward of {micro_batch} as {full} full,"
                        f" {split[0]} input and {split[1]} weight parts"
                    )
        return found
