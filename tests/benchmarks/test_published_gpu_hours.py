"""GPU-hours of eight published trainings: what is met, what is not, and that the sums are right."""

from __future__ import annotations

import re
from functools import cache

import pytest

from benchmarks.gpu_hours_facts import PUBLISHED
from benchmarks.published_gpu_hours import (
    CLOSE,
    WANTED,
    Decomposed,
    decomposed,
    num_close,
    report,
)


@cache
def rows() -> tuple[Decomposed, ...]:
    return tuple(map(decomposed, PUBLISHED))


def test_six_of_eight_are_met_within_20_per_cent() -> None:
    assert len(rows()) == 8
    assert num_close(rows()) >= WANTED, {row.name: row.error for row in rows()}


@pytest.mark.parametrize(
    ("name", "tokens", "gpu_hours"),
    [
        ("Llama-2 70B", 2.0e12, 1_720_320),
        ("Llama-3.1 8B", 15e12, 1.46e6),
        ("Llama-3.1 70B", 15e12, 7.0e6),
        ("Llama-3.1 405B", 15.6e12, 30.84e6),
        ("BLOOM 176B", 366e9, 1_082_990),
        ("OPT-175B", 300e9, 809_472),
        ("DeepSeek-V3", 14.8e12, 2.664e6),
        ("MT-NLG 530B", 270e9, 2.57e6),  # 68,665 steps of 60.1 s on 2,240 GPUs
    ],
)
def test_the_facts_are_those_that_are_published(name: str, tokens: float, gpu_hours: float) -> None:
    run = next(run for run in PUBLISHED if run.name == name)
    assert sum(phase.tokens for phase in run.phases) == pytest.approx(tokens, rel=1e-6)
    assert run.gpu_hours == pytest.approx(gpu_hours, rel=2e-3)
    assert all(re.search(r"arXiv:|github:|\.(com|io)", source) for source in run.sources)


def test_the_two_that_are_missed_are_published_far_below_what_their_house_reached() -> None:
    """Llama 3.1's small models: 15 and 27 % of peak over all published hours, where the same
    report has 38 to 43 % for the large one. The prediction is of the steps alone."""
    for row in rows():
        if abs(row.error) > CLOSE:
            assert row.name in ("Llama-3.1 8B", "Llama-3.1 70B")
            assert row.error < 0
            assert row.ideal / row.published < 0.3


def test_parts_are_the_whole() -> None:
    for row in rows():
        assert row.predicted == pytest.approx(row.steps + row.ramp + row.failures)
        assert row.ideal < row.steps
        assert row.failures >= 0
    assert "8B" in report(rows())
