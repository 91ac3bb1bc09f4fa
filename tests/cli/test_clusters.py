"""The catalogue as people and programs read it."""

from __future__ import annotations

import json

import pytest

from shardwright.cli import execute
from shardwright.cli.clusters import cell, facts
from shardwright.hardware_profiles import catalogue


def test_every_entry_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["clusters", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed["nodes"]] == catalogue.list_nodes()
    assert [row["name"] for row in listed["accelerators"]] == catalogue.list_accelerators()
    (h100,) = (row for row in listed["nodes"] if row["name"] == "dgx-h100")
    assert h100["intra_node_bytes_per_s"] == 450e9
    assert h100["inter_node_bytes_per_s"] == 50e9


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["clusters"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.split()[:4] == ["dgx-h100", "h100-sxm5-80gb", "8", "8"] and "450 GB/s" in line
        for line in lines
    )


def test_a_node_comes_with_its_accelerator_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["clusters", "dgx-h100"]) == 0
    out = capsys.readouterr().out
    assert "node dgx-h100" in out
    assert "accelerator h100-sxm5-80gb" in out
    assert "peak_dense.bf16" in out
    assert execute(["clusters", "dgx-h100", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert entries["node"]["intra_node"]["bandwidth"]["source"]
    assert entries["accelerator"]["slug"] == "h100-sxm5-80gb"


@pytest.mark.parametrize("slug", catalogue.list_accelerators())
def test_every_number_has_a_kind_and_a_source(slug: str) -> None:
    found = list(facts(catalogue.accelerator_entry(slug)))
    assert {"memory", "memory_bandwidth"} <= {path for path, _ in found}
    assert all(fact.kind and fact.source for _, fact in found)


def test_an_accelerator_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["clusters", "MI300X-192GB", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["accelerator"]


def test_an_unknown_name_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["clusters", "dgx-h10"]) == 2
    assert "dgx-h100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bf16_flops_per_s", 989e12, "989 TFLOP/s"),
        ("memory_bandwidth_bytes_per_s", 3.35e12, "3.35 TB/s"),
        ("usable_memory_bytes", 2**30, "1.0 GiB"),
        ("devices_per_node", 8, "8"),
        ("vendor", "AMD", "AMD"),
        ("inter_node_bytes_per_s", None, "-"),
    ],
)
def test_a_cell_shows_its_unit(name: str, value: float | str | None, text: str) -> None:
    assert cell(name, value) == text
