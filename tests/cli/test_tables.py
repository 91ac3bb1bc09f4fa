"""What people read agrees with the numbers that it is made of."""

from __future__ import annotations

import pytest
from rich.table import Table

from shardwright.cli import _output, _tables
from shardwright.specs import Candidate, Recompute, ScheduleName
from tests.cli import samples


def printed(capsys: pytest.CaptureFixture[str], table: Table) -> list[str]:
    _output.print_tables(table)
    return capsys.readouterr().out.splitlines()


def test_the_table_has_a_row_per_layout_with_the_chosen_one_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, _tables.candidates_table(_tables.ranked(samples.plan())))
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert rows[0][1] == "*"
    assert all(row[1] != "*" for row in rows[1:])
    assert " ".join(rows[0]) == (
        "1 * 1 1 2 1 2 0 1 none 2 s (1.8 - 2.2) 40.0% 6.0 GiB / 15.0 GiB compute 70%, bubble 20%"
    )


def test_the_columns_are_those_of_the_design() -> None:
    assert _tables.COLUMNS[:9] == (
        "rank", "tp", "cp", "pp", "vpp", "dp", "zero", "mb", "recompute",
    )  # fmt: skip


def test_each_layout_is_ranked_once_behind_the_chosen_one() -> None:
    ranked = _tables.ranked(samples.plan())
    assert [candidate.prediction.step_time_s for candidate in ranked] == [2.0, 2.1, 3.0]


def test_the_band_has_its_own_unit_where_that_differs() -> None:
    prediction = samples.prediction(step_time_s=1.0, step_time_band_s=(0.95, 1.2))
    assert _tables.step_in_words(prediction) == "1 s (950 ms - 1.2)"


def test_sequence_parallel_layouts_show_it() -> None:
    layout = samples.layout(pp=1, tp=2, sequence_parallel=True)
    cells = _tables.candidate_cells(Candidate(layout=layout, prediction=samples.prediction()))
    assert cells[0] == "2 sp"


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        (("none", "none"), "none"),
        (("full", "full"), "full"),
        (("none", "full"), "full on 1 of 2"),
    ],
)
def test_recompute_in_words(policies: tuple[str, str], words: str) -> None:
    entries = tuple(Recompute.model_validate({"policy": policy}) for policy in policies)
    assert _tables.recompute_in_words(samples.layout(recompute=entries)) == words


def test_the_certificate_says_how_each_layout_was_ruled_out() -> None:
    assert _tables.certificate_in_words(samples.certificate()) == (
        "1,000 layouts in 250 ms: 300 against the rules, 200 too big, 480 bounded out,"
        " 20 simulated; none better under this model"
    )


def test_huge_spaces_are_rounded() -> None:
    text = _tables.certificate_in_words(samples.certificate(considered=4_636_050 * 10**18))
    assert text.startswith("4.64e+24 layouts")


def test_an_open_gap_is_admitted() -> None:
    text = _tables.certificate_in_words(samples.certificate(optimal=False, gap=0.0312))
    assert "none better" not in text
    assert "480 bounded out or not reached" in text
    assert "3.12%" in text


def test_stages_in_words() -> None:
    assert _tables.stages_in_words(samples.layout(boundaries=(1,))) == "0-0 | 1-3"
    assert _tables.stages_in_words(samples.layout(boundaries=(0,))) == "none | 0-3"


def test_the_heading_states_what_was_assumed() -> None:
    text = "\n".join(_tables.plan_lines(samples.plan()))
    assert "1 node x 4 = 4 x CHIP-16GB (15.0 GiB usable)" in text
    assert "8 sequences x 16 tokens = 128 tokens a step" in text
    assert "assumed:  precision bf16" in text


def test_a_token_budget_becomes_days() -> None:
    training = samples.training().model_copy(update={"token_budget": 64 * 86400 * 10})
    plan = samples.plan(training=training)
    assert "10.0 days" in "".join(_tables.budget_in_words(plan))
    assert list(_tables.budget_in_words(samples.plan())) == []


def test_breakdown_and_memory_tables_show_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    prediction = samples.prediction()
    step = printed(capsys, _tables.breakdown_table(prediction))
    assert any("compute" in line and "1.4 s" in line and "70.0%" in line for line in step)
    memory = printed(capsys, _tables.memory_table(prediction))
    assert sum("6.0 GiB" in line for line in memory) == 2


def test_a_schedule_is_named_where_it_is_not_1f1b() -> None:
    layout = samples.plan().layout
    assert layout.schedule == "1f1b"
    assert _tables.pipeline_in_words(layout) == f"{layout.pp}"
    gpipe = layout.model_copy(update={"schedule": ScheduleName.GPIPE})
    assert _tables.pipeline_in_words(gpipe) == f"{layout.pp} gpipe"


def test_a_proof_over_a_part_of_the_space_says_so() -> None:
    text = _tables.certificate_in_words(samples.certificate(space="every tp; fixed: pp = 3"))
    assert text.endswith("none better under this model with what was ruled out")


def test_choices_that_few_layouts_make_have_a_column_where_there_are_any(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = Candidate(layout=samples.layout(pp=1, dp=4, zero=3), prediction=samples.prediction())
    change = {"offload": ("optimizer",), "loss_chunks": 4, "zero_shard_degree": 2}
    rare = Candidate(layout=plain.layout.model_copy(update=change), prediction=plain.prediction)
    assert _tables.zero_in_words(rare.layout) == "3 /2"
    assert _tables.others_in_words(rare.layout) == "offload optimizer, loss in 4"
    assert "other choices" not in "\n".join(printed(capsys, _tables.candidates_table([plain])))
    shown = "\n".join(printed(capsys, _tables.candidates_table([plain, rare])))
    assert "other choices" in shown
    assert "offload optimizer, loss in 4" in shown


@pytest.mark.parametrize(
    ("number", "words"),
    [(1_234_567, "1,234,567"), (4_640 * 10**21, "4.64e+24"), (10**400, "1.00e+400")],
)
def test_counts_of_any_size_can_be_read(number: int, words: str) -> None:
    assert _tables.large(number) == words
