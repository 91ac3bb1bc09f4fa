from __future__ import annotations

import pytest

from benchmarks.fidelity_report import (
    Target,
    mean_over_choices,
    parameters_text,
    percent,
    sections,
    signed,
    table,
    targets,
)
from benchmarks.fidelity_scores import Anchored, Evidence, Sweeps
from shardwright.hardware_profiles.stacks import priors
from shardwright.planner.validation.cross import HeldOut
from shardwright.planner.validation.results import RowResult, evaluate
from tests.benchmarks.test_fidelity_scores import TWO_SECONDS, items


def results(*measured: float, **changes: object) -> tuple[RowResult, ...]:
    """Rows that are predicted to take two seconds, and took these."""
    rows = items(*({"measured": {"iteration_time_s": s}} | changes for s in measured))
    return tuple(evaluate(rows, TWO_SECONDS))


def evidence() -> Evidence:
    rows = results(2.0, 4.0)
    sweeps = Sweeps(results(2.0, 2.5), results(1.0))
    return Evidence(
        items=(), catalogue=rows, unseen_stack=HeldOut(rows, ()), unseen_model=HeldOut(rows, ()),
        anchored=(Anchored("some-stack", 2, 0, ((rows[0],), (rows[1],))),), sweeps=sweeps,
        plain_sweeps=sweeps,
    )  # fmt: skip


class TestTarget:
    @pytest.mark.parametrize(
        ("value", "most", "least", "is_met", "wanted"),
        [
            (0.05, 0.05, None, True, "<= 5.0 %"),
            (0.051, 0.05, None, False, "<= 5.0 %"),
            (0.95, None, 0.95, True, ">= 95.0 %"),
            (0.94, None, 0.95, False, ">= 95.0 %"),
            (0.95, 0.9, 0.7, False, "70.0 % to 90.0 %"),
            (-0.04, 0.03, -0.03, False, "-3.0 % to 3.0 %"),
            (None, 0.05, None, None, "<= 5.0 %"),
        ],
    )
    def test_is_met_up_to_its_limits(
        self, value: float | None, most: float | None, least: float | None, is_met: bool | None,
        wanted: str,
    ) -> None:  # fmt: skip
        one = Target("x", "1", "MAPE", value, most, least)
        assert one.is_met is is_met
        assert one.wanted == wanted

    def test_figures_follow_from_the_rows(self) -> None:
        found = {(one.of, one.figure): one for one in targets(evidence())}
        assert found["A100 sweeps, 2-8 GPUs", "MAPE"].value == pytest.approx(0.1)
        assert found["A100 sweeps, 512 GPUs", "MAPE"].value == pytest.approx(1.0)
        assert found["unseen stack, A100/H100", "median"].value == pytest.approx(0.25)
        assert found["unseen stack, Blackwell", "median"].value is None
        anchored = found["unseen stack, one run seen", "median, mean over stacks"]
        assert anchored.value == pytest.approx(0.25)

    def test_a_skipped_row_counts_as_all_wrong(self) -> None:
        (skipped,) = items({"hardware": {"accelerator": None, "gpu": "no such thing"}})
        rows = (*results(2.0), *evaluate([skipped], TWO_SECONDS))
        made = evidence()
        made = Evidence(
            made.items, made.catalogue, made.unseen_stack, HeldOut(rows, ()), made.anchored,
            made.sweeps, made.plain_sweeps,
        )  # fmt: skip
        found = {(one.of, one.figure): one for one in targets(made)}
        median = found["seen stack, unseen model", "median"]
        assert median.coverage == "2, 1 skipped"
        assert median.value == pytest.approx(0.5)


def test_means_over_choices_leave_out_what_is_not_known() -> None:
    (right,) = results(2.0)
    part = Anchored("s", 2, 0, ((right,), ()))
    assert mean_over_choices(part, "median") == 0.0
    assert mean_over_choices(Anchored("s", 1, 0, ()), "median") is None


def test_every_section_has_text_and_peers_stand_beside_ours() -> None:
    found = {part.key: part.text for part in sections(evidence(), [])}
    assert all(found.values())
    assert "| Calculon | 38.9 % | 15.3 % | 10.0 % | 1.3 % |" in found["sweeps"]
    assert "| **this model** | 10.0 % | 100.0 % |" in found["sweeps"]
    assert "some-stack" in found["stacks"]
    assert "**no**" in found["targets"]


def test_every_parameter_has_its_source() -> None:
    text = parameters_text()
    for one in priors():
        assert f"`{one.name}`" in text
        assert one.source in text


def test_cells() -> None:
    assert (percent(0.1234), percent(None)) == ("12.3 %", "-")
    assert (signed(-0.1), signed(None)) == ("-10.0 %", "-")
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
