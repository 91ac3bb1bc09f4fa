from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.planner.validation.rows import Row, RunsFile, Unreadable, parse_rows, read_runs
from shardwright.specs import InputError
from tests.planner.validation.rows import row, value
from tools.sources import ROOT

DATA = ROOT.parent / "shared" / "data"


def written(folder: Path, content: Any) -> Path:
    path = folder / "runs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def reason_of(item: Any) -> str:
    (found,) = parse_rows([item])
    assert isinstance(found, Unreadable)
    return found.reason


class TestReadRuns:
    def test_a_list_and_an_object_around_it_are_alike(self, tmp_path: Path) -> None:
        bare = read_runs(written(tmp_path, [value()]))
        assert bare == read_runs(written(tmp_path, {"rows": [value()]}))
        assert isinstance(bare.rows[0], Row)

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            ("[", "not valid JSON"),
            ("[]", "an empty list"),
            ('"runs"', "no list of runs"),
            ('{"a": 1}', "no list of runs"),
            ("[1, 2]", "none that can be read"),
        ],
    )
    def test_what_holds_no_rows_is_refused(self, tmp_path: Path, content: str, told: str) -> None:
        with pytest.raises(InputError, match=told):
            read_runs(written(tmp_path, content))

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="runs"):
            read_runs(tmp_path / "no.json")

    def test_one_bad_row_spoils_no_other(self, tmp_path: Path) -> None:
        found = read_runs(written(tmp_path, [value(), 7, value(id="b", model={"layers": -1})]))
        assert [type(item) for item in found.rows] == [Row, Unreadable, Unreadable]
        assert [item.id for item in found.rows] == ["run-1", "row 2", "b"]


class TestParseRows:
    def test_of_equal_ids_the_first_counts(self) -> None:
        first, second = parse_rows([value(), value()])
        assert isinstance(first, Row)
        assert isinstance(second, Unreadable)
        assert "given twice" in second.reason

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0, -1, "fast"])
    def test_a_time_that_is_none_makes_a_row_unreadable(self, bad: Any) -> None:
        assert "iteration_time_s" in reason_of(value(measured={"iteration_time_s": bad}))

    def test_a_row_without_an_id_is_named_by_its_place(self) -> None:
        (found,) = parse_rows([value(id=None)])
        assert found == Unreadable("row 1", found.reason)  # type: ignore[union-attr]

    def test_remarks_may_be_of_any_kind(self) -> None:
        (found,) = parse_rows([value(notes={"a": 1}, parallel={"other": ["x"]})])
        assert isinstance(found, Row)
        assert found.notes == '{"a": 1}'

    def test_parts_may_be_null(self) -> None:
        (found,) = parse_rows([value(model=None, derived=None)])
        assert isinstance(found, Row)
        assert found.model.layers is None


class TestRow:
    def test_step_time_is_measured_then_derived_then_from_the_rate(self) -> None:
        times = {"derived": {"iteration_time_s": 3.0}}
        rate = {"tokens_per_s_per_gpu": 512.0}
        none = {"iteration_time_s": None}
        assert row(**times).step_time_s == 2.0
        assert row(measured=none | rate, **times).step_time_s == 3.0
        assert row(measured=none | rate).step_time_s == 16 * 1024 / (512 * 8)
        assert row(measured=none | rate, parallel={"global_batch": None}).step_time_s is None

    def test_gib_are_binary_and_gb_are_decimal(self) -> None:
        assert row(measured={"peak_mem_gib": 2, "peak_mem_gb": None}).peak_memory_bytes == 2**31
        assert row(measured={"peak_mem_gb": 2}).peak_memory_bytes == 2e9

    def test_gpus_follow_from_the_degrees(self) -> None:
        assert row(hardware={"gpus": None}, parallel={"cp": 2}).num_gpus == 16

    def test_an_oom_row_with_a_peak_is_one_of_fragmentation(self) -> None:
        assert row(status="oom").is_fragmentation
        assert not row(status="oom", measured={"peak_mem_gb": None}).is_fragmentation
        assert not row().is_fragmentation

    @pytest.mark.parametrize(
        ("part", "field"),
        [
            *(("model", f) for f in ("layers", "hidden", "heads", "ffn_hidden", "vocab")),
            *(("parallel", f) for f in ("tp", "pp", "dp", "micro_batch", "global_batch")),
            ("hardware", "gpus"),
            ("measured", "iteration_time_s"),
        ],
    )
    def test_a_full_configuration_states_everything(self, part: str, field: str) -> None:
        assert row().is_full_configuration
        assert not row(**{part: {field: None}}).is_full_configuration

    def test_repeats_share_a_configuration_whatever_was_measured(self) -> None:
        again = row(id="b", measured={"iteration_time_s": 2.5}, model={"name": "the same"})
        assert again.configuration == row().configuration
        assert row(parallel={"micro_batch": 1}).configuration != row().configuration
        assert row(parallel={"other": "tokendrop"}).configuration != row().configuration

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"kind": "collective"}, "collective"),
            ({"kind": "layer_timing"}, "layer timing"),
            ({"measured": {"iteration_time_s": None, "peak_mem_gb": None}}, "neither"),
            ({"kind": "memory_only", "measured": {"peak_mem_gb": None}}, "neither"),
        ],
    )
    def test_what_has_nothing_to_compare_says_so(self, changes: dict[str, Any], told: str) -> None:
        assert told in str(row(**changes).why_not_scored)

    def test_memory_and_failures_are_compared_without_a_time(self) -> None:
        no_time = {"iteration_time_s": None}
        assert row(kind="memory_only", measured=no_time).why_not_scored is None
        assert row(status="oom", measured=no_time | {"peak_mem_gb": None}).why_not_scored is None

    def test_the_network_may_be_remembered(self) -> None:
        assert row(memory_hints={"hardware.inter_node": "x"}).network == "x"
        assert row(memory_hints={"hardware.inter_node": 3}).network is None

    def test_another_granularity_is_one_of_fp8(self) -> None:
        other = {"precision": "primary recipe precision (alternate granularity)"}
        assert row(parallel={"precision": None, "as_printed": other}).precision == "fp8-block"
        assert row(parallel={"precision": "mxfp8", "as_printed": other}).precision == "mxfp8"
        assert row(parallel={"precision": None, "as_printed": None}).precision is None


@pytest.mark.parametrize("name", ["published_runs.json", "layout_sweeps_a100.json"])
def test_every_row_of_the_collections_can_be_read(name: str) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"there is no {name} here")
    found: RunsFile = read_runs(DATA / name)
    assert [item for item in found.rows if isinstance(item, Unreadable)] == []
