"""What varies: lists, ranges, suffixes, percentages, and what is refused."""

from __future__ import annotations

import pytest

from shardwright.planner.what_if.axes import (
    Axis,
    axes_of,
    axis_of,
    factor_of,
    number_of,
    parse_vary,
    product,
)
from shardwright.specs import InputError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("gpus=64,128,256", ("64", "128", "256")),
        ("gpus=64..256:64", ("64", "128", "192", "256")),
        ("gpus=64..250:64", ("64", "128", "192")),
        ("gpus=8..64:x2", ("8", "16", "32", "64")),
        ("layers=3..5", ("3", "4", "5")),
        ("gpus=8,16..32:8,128", ("8", "16", "24", "32", "128")),
        ("seq_len=8k,32k", ("8k", "32k")),
        ("seq_len=8k..24k:8k", ("8192", "16384", "24576")),
        ("inter_node_bandwidth=50%,100%,200%", ("50%", "100%", "200%")),
        ("memory=80GiB,1.5x", ("80GiB", "1.5x")),
        ("cluster=dgx-a100-80gb,dgx-h100", ("dgx-a100-80gb", "dgx-h100")),
        (
            "cluster=h100-sxm5:8x2,inter=400GB/s,memory=90GiB,dgx-h100",
            ("h100-sxm5:8x2,inter=400GB/s,memory=90GiB", "dgx-h100"),
        ),
        ("precision=bf16, fp8", ("bf16", "fp8")),
        ("tp=1..8:x2", ("1", "2", "4", "8")),
        ("recompute=none,full", ("none", "full")),
    ],
)
def test_values_are_read(text: str, values: tuple[str, ...]) -> None:
    assert parse_vary(text).values == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus", "does not say what varies"),
        ("gpuz=1,2", "gpus"),
        ("gpus=", "no values"),
        ("gpus=0", "not a count"),
        ("gpus=1.5", "not a count"),
        ("gpus=64,64", "2 times"),
        ("gpus=64..32", "no range"),
        ("gpus=1..64:x1", "no range"),
        ("gpus=1..64:0", "not a count"),
        ("seq_len=long", "quantity"),
        ("memory=0%", "not possible"),
        ("memory=80parsecs", "quantity"),
        ("inter_node_bandwidth=1..3", "whole numbers"),
        ("recompute=1..x", "whole numbers|quantity"),
        ("micro_batch=1..1000000000", "more than"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        axes_of([text])


def test_other_names_mean_the_same() -> None:
    assert parse_vary("num_layers=2").name == "layers"
    assert parse_vary("mb=1,2").name == "micro_batch"


def test_python_values_do_as_well() -> None:
    assert axes_of({"gpus": [64, 128], "seq_len": "8k", "precision": ("bf16",)}) == (
        Axis("gpus", ("64", "128")),
        Axis("seq_len", ("8k",)),
        Axis("precision", ("bf16",)),
    )
    assert axis_of("gpus", range(8, 25, 8)).values == ("8", "16", "24")


def test_every_combination_comes_once_last_axis_fastest() -> None:
    points = product(axes_of(["gpus=8,16", "tp=1,2"]))
    assert points == [
        {"gpus": "8", "tp": "1"}, {"gpus": "8", "tp": "2"},
        {"gpus": "16", "tp": "1"}, {"gpus": "16", "tp": "2"},
    ]  # fmt: skip
    assert product(()) == [{}]


@pytest.mark.parametrize(
    "given", [["gpus=8", "gpus=16"], ["gpus=8", "nodes=1"], ["gpus=1..1000", "layers=1..500"]]
)
def test_axes_that_do_not_go_together_are_refused(given: list[str]) -> None:
    with pytest.raises(InputError):
        axes_of(given)


def test_values_as_numbers() -> None:
    assert number_of("seq_len", "8k") == 8192
    assert number_of("tokens", "15T") == 15e12
    assert number_of("memory", "50%") == 0.5
    assert number_of("memory", "80GiB") == 80 * 2**30
    assert number_of("tp", "8") == 8
    assert number_of("precision", "bf16") is None
    assert factor_of("1.5x") == 1.5
    assert factor_of("80GiB") is None
    assert parse_vary("gpus=8,16").is_numeric
    assert not parse_vary("memory=80GiB,1.5x").is_numeric
    assert not parse_vary("cluster=dgx-h100,local").is_numeric
