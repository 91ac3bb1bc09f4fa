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
SCHEDULED_CORE = (
    "gpt2/interleaved-pp2-odd-uneven",
    "gpt2/zb-h1-pp2-recompute",
    "llama-tied/zb-v-pp2-odd-uneven",
    "llama/zb-h2-pp2-head-alone",
    "gpt2/dualpipev-pp2-odd-empty",
    "llama-tied/interleaved-pp3-empty",
    "gpt2/zb-h1-pp3-middle-empty",
    "gpt2/zb-v-pp2-tp2-sp",
    "llama-tied/interleaved-pp2-tp2",
    "llama/dualpipev-pp2-tp2-sp",
    "llama-tied/zb-h1-pp2-tp2-sp",
    "llama/interleaved-pp2-dp2-zero3",
    "gpt2/interleaved-pp2-dp2-zero1",
    "gpt2/zb-h1-pp2-dp2-zero2",
    "gpt2/zb-h1-pp2-dp2-zero3-recompute",
    "llama-tied/zb-h2-pp2-dp2-zero3",
    "llama/zb-v-pp2-dp2",
    "gpt2/zb-v-pp2-dp2-zero2",
    "llama-tied/zb-v-pp2-dp2-zero3",
    "gpt2/dualpipev-pp2-dp2",
    "llama-tied/dualpipev-pp2-dp2-zero3-recompute",
)
"""Each schedule with tp, sp, dp, every ZeRO, tied ends, empty and uneven stages, odd counts."""


@pytest.mark.parametrize("names", [REPRESENTATIVE, SCHEDULED_CORE], ids=["plain", "scheduled"])
def test_representative_layouts_equal_one_process(names: tuple[str, ...]) -> None:
    cases = all_cases()
    found = errors_of([cases[name] for name in names], timeout_s=180.0)
    failed = {name: errors for name, errors in zip(names, found, strict=True) if not errors.passed}
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
    # What torch's DDP and FSDP2 do under a split backward without a word.
    ("no-dp-sum", "gpt2/zb-v-pp2-dp2", "gradient"),
    ("no-dp-sum", "llama/dualpipev-pp2-dp2", "gradient"),
    ("second-half-lost", "gpt2/zb-h1-pp2", "gradient"),
    ("second-half-lost", "llama/zb-v-pp2-dp2-zero3", "gradient"),
    ("own-slice-everywhere", "gpt2/zb-v-pp2-dp2-zero3", "gradient"),
    ("last-micro-batch-alone", "llama/zb-h1-pp2-dp2-zero2", "gradient"),
    ("no-tp-sum", "gpt2/zb-v-pp2-tp2-sp", "gradient"),
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
    assert {str(layout.schedule) for layout in layouts} == {
        "None", "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipev",
    }  # fmt: skip
    assert len(LAYOUTS) == len({str(sorted(choices.items())) for choices in LAYOUTS.values()})
