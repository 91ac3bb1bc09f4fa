"""Environment variables that Megatron-LM's rules ask for."""

from __future__ import annotations

from shardwright.planner.exporters.exported import Findings, Job

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"

_CAPABILITIES: tuple[tuple[tuple[str, ...], int], ...] = (
    (("v100", "t4"), 7),
    (
        (
            "a100",
            "a800",
            "a10",
            "a10g",
            "a30",
            "a40",
            "rtx-a6000",
            "rtx-3090",
            "l4",
            "l40",
            "l40s",
            "rtx-4090",
            "rtx-6000-ada",
        ),
        8,
    ),
    (("h100", "h800", "h200", "h20", "gh200"), 9),
    (("b100", "b200", "b300", "gb200", "gb300"), 10),
    (("rtx-5090", "rtx-pro-6000"), 12),
)
"""Compute capability by the first part of an accelerator's slug (NVIDIA's CUDA programming guide);
Ada (L4, L40, RTX 4090) is 8.9, Blackwell 10.0 and 12.0."""


def compute_capability(accelerator: str) -> int | None:
    """Its major number; None for what is not in the table, such as other vendors' devices."""
    slug = accelerator.lower()
    for names, major in _CAPABILITIES:
        if any(slug == name or slug.startswith(f"{name}-") for name in names):
            return major
    return None


def environment_of(job: Job, findings: Findings) -> dict[str, str]:
    """The plan's own variables, and the number of connections that its parallelism needs.

    Tensor and context parallelism need one connection before Blackwell, so that communication is
    queued in order; Megatron-FSDP needs more than one.
    """
    layout, found = job.layout, dict(job.environment)
    wanted = None
    if layout.zero >= 2:
        wanted = "8"
        if layout.tp > 1 or layout.cp > 1:
            findings.note(
                f"{CONNECTIONS}: Megatron-FSDP refuses 1, which tensor and context parallelism"
                " would overlap best with"
            )
    elif layout.tp > 1 or layout.cp > 1:
        wanted = "1"
    before = found.get(CONNECTIONS)
    if wanted is not None and before not in (None, wanted):
        findings.note(f"{CONNECTIONS}: {wanted} instead of the plan's {before}, which is refused")
    if wanted is not None:
        found[CONNECTIONS] = wanted
    return found
