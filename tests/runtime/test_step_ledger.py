"""A step's collectives and kept bytes against the books; all cases run in `benchmarks`."""

from __future__ import annotations

import pytest

from benchmarks.parity_cases import all_cases
from benchmarks.step_ledger import Job, books_record, differences, run_step

pytestmark = pytest.mark.multiprocess

REPRESENTATIVE = (
    "gpt2/accumulate-12",
    "gpt2/tp2-sp-recompute",
    "llama-tied/dp2-zero3",
    "llama/dp2-zero1",
    "gpt2/dp2",
    "gpt2/pp2-1f1b-uneven",
    "gpt2/tp3-sp",
    "llama/tp4",
    "llama/tp4-sp-recompute",
    "gpt2/dp4-zero3-of-2",
    "llama/dp4-zero1-of-2",
    "gpt2/tp2-sp-dp2-zero3",
    "llama/pp2-dp2-zero1-gpipe",
    "llama-tied/pp2-dp2-zero3",
    "gpt2/interleaved-pp2-odd-uneven",
    "llama-tied/zb-v-pp2-recompute",
    "gpt2/dualpipev-pp2-dp2",
    "llama-tied/zb-v-pp2-dp2-zero3",
    "gpt2/zb-h1-pp2-dp2-zero2",
    "gpt2/zb-h1-pp2-tp2-sp",
    "llama/interleaved-pp2-dp2-zero1",
)


def test_a_step_makes_the_calls_and_keeps_the_bytes_that_the_books_say() -> None:
    cases = all_cases()
    assert list(differences([Job.of(cases[name]) for name in REPRESENTATIVE])) == []


def test_one_call_more_or_another_size_is_a_difference() -> None:
    """Negative control, on one rank: books of another layout do not fit."""
    plain, recomputing = (
        Job.of(all_cases()[f"llama/{name}"]) for name in ("accumulate-12", "recompute")
    )
    found = run_step(plain)
    assert found == books_record(plain, 0)
    assert not found.calls
    again = books_record(recomputing, 0)
    assert found.kept == again.kept
    assert found.flops < again.flops
    books = books_record(Job.of(all_cases()["llama/tp2"]), 0)
    assert found.calls != books.calls
    assert found.kept != books.kept
