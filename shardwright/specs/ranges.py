"""How large the numbers of a file may be.

Each range is wider than anything that is built or trained, and narrow enough that no product of
such numbers overflows and nothing that counts up to one of them takes forever. What lies outside is
a slip of the keyboard or a damaged file, and is refused by the name of its field.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

MOST_DEVICES: Final = 2**20
MOST_LAYERS: Final = 512
MOST_SEQUENCES: Final = 2**20
MOST_ELEMENTS: Final = 2**31
MOST_TOKENS: Final = 10**18

Degree = Annotated[int, Field(gt=0, le=MOST_DEVICES)]
"""A number of ranks, devices or nodes, or of parts that work is split into."""

Rank = Annotated[int, Field(ge=0, lt=MOST_DEVICES)]
"""The number of a rank, a stage or one of its chunks, from 0."""

LayerCount = Annotated[int, Field(gt=0, le=MOST_LAYERS)]

HeadCount = Annotated[int, Field(gt=0, le=100_000)]

LayerNumber = Annotated[int, Field(ge=0, le=MOST_LAYERS)]
"""A layer, from 0, or the one after the last."""

Extent = Annotated[int, Field(gt=0, le=MOST_ELEMENTS)]
"""Elements along one dimension of a tensor."""

SequenceCount = Annotated[int, Field(gt=0, le=MOST_SEQUENCES)]
"""Sequences, or groups of them, of one step."""

Bytes = Annotated[int, Field(gt=0, le=2**60)]
"""Of memory that exists."""

HeldBytes = Annotated[int, Field(ge=0, le=10**60)]
"""Of memory that would be needed."""

Rate = Annotated[float, Field(ge=1, le=1e24)]
"""Bytes or FLOPs per second."""

Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""A time of one event: up to 30 years."""

PositiveSeconds = Annotated[float, Field(ge=1e-12, le=1e9)]

Seed = Annotated[int, Field(ge=0, lt=2**63)]
