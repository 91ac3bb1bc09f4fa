"""Layouts against one process in float64; the whole list runs in `benchmarks.parity`."""

from __future__ import annotations

import pytest

from benchmarks.parity import errors_of
from benchmarks.parity_cases import LAYOUTS, all_cases

pytestmark = pytest.mark.multiprocess

REPRESENTATIVE = (
    "gpt2/accumulate-12",
    "llama/recompute",
    "llama/tp2-sp-recompute",
    "gpt2/dp2-zero2",
    "gpt2/dp2-zero3-recompute",
    "gpt2/pp2-embedding-alone",
    "llama/pp2-head-alone-recompute",
    "gpt2/tp3-sp",
    "llama/dp3-zero1",
    "gpt2/pp3-gpipe-middle-empty",
    "llama/tp4",
    "llama-tied/tp4",
    "gpt2/tp2-sp-dp2-zero3",
    "llama/pp2-dp2-zero1-gpipe",
    "gpt2/dp4-zero3-of-2",
    "llama/tp3-sp-dp2-zero3-recompute",
    "gpt2/tp2-pp3-gpipe-uneven",
    "gpt2/tp2-sp-pp2-dp2-zero3-recompute",
    "llama-tied/tp2-sp-pp2-dp2-zero1",
)


def test_representative_layouts_equal_one_process() -> None:
    cases = all_cases()
    found = errors_of([cases[name] for name in REPRESENTATIVE], timeout_s=60.0)
    failed = {
        name: errors
        for name, errors in zip(REPRESENTATIVE, found, strict=True)
        if not errors.passed
    }
    assert failed == {}


FAULTY = (
    ("no-tp-sum", "gpt2/tp2-sp", "gradient"),
    ("no-tp-sum", "llama/tp4", "gradient"),
    ("no-dp-sum", "llama/dp2", "gradient"),
    ("mean-over-dp", "gpt2/dp2-zero1", "gradient"),
    ("no-embedding-sum", "gpt2/pp2-1f1b-uneven", "gradient"),
    ("last-micro-batch-alone", "llama/dp2-zero3", "gradient"),
    ("own-slice-everywhere", "gpt2/dp2-zero3", "gradient"),
    ("unpublished-weights", "llama/dp2-zero1", "weight"),
    ("norm-of-all-copies", "llama/dp2", "grad_norm"),
    ("norm-of-all-copies", "gpt2/tp2", "grad_norm"),
    ("norm-of-all-copies", "gpt2/pp2-1f1b-uneven", "grad_norm"),
)


@pytest.mark.parametrize("world", [2, 4])
def test_a_broken_reduction_is_seen(world: int) -> None:
    """Negative controls: the check that passes above fails with each fault, where it must."""
    cases = all_cases()
    faulty = [(f, cases[name], seen) for f, name, seen in FAULTY]
    here = [(f, case, seen) for f, case, seen in faulty if case.layout.world == world]
    found = errors_of([case for _, case, _ in here], faults=[fault for fault, _, _ in here])
    assert found
    for (fault, case, seen), errors in zip(here, found, strict=True):
        assert not errors.passed, (fault, case.id)
        assert getattr(errors, seen) > 1e-6, (fault, case.id, errors)


def test_the_whole_list_is_as_long_and_as_wide_as_promised() -> None:
    cases = all_cases().values()
    for model in ("gpt2", "llama"):
        own = [case for case in cases if case.model_id == model]
        assert len(own) >= 30
        assert {case.layout.world for case in own} == set(range(1, 9))
    layouts = [case.layout for case in cases]
    assert {layout.zero for layout in layouts} == {0, 1, 2, 3}
    assert {str(layout.schedule) for layout in layouts} == {"None", "gpipe", "1f1b"}
    assert len(LAYOUTS) == len({str(sorted(choices.items())) for choices in LAYOUTS.values()})
