"""`explain` reads a plan back and answers for other layouts from the same prices."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shardwright.cli import execute
from shardwright.specs import Plan


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    command = ["plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "4", "--global-batch", "16"]
    assert execute([*command, "-o", str(path)]) == 0
    return path


def test_shares_sum_to_the_step(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", str(plan_file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    step_time_s = Plan.load(plan_file).prediction.step_time_s
    assert sum(part["seconds"] for part in answer["time"]) == pytest.approx(step_time_s)
    assert answer["why_not"] is None
    assert answer["stages"]


def test_text(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", str(plan_file)]) == 0
    out = capsys.readouterr().out
    assert "limit     the step goes to" in out
    assert "none better under this model" in out


@pytest.mark.parametrize(
    ("asked", "verdicts"),
    [
        ("tp=4", {"slower", "tied"}),
        ("tp=16", {"breaks_rules"}),
        ("pp=4", {"slower", "tied"}),
    ],
)
def test_why_not(
    plan_file: Path, capsys: pytest.CaptureFixture[str], asked: str, verdicts: set[str]
) -> None:
    assert execute(["explain", str(plan_file), "--why-not", asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["why_not"]
    assert answer["verdict"] in verdicts
    assert answer["reasons"]
    assert execute(["explain", str(plan_file), "--why-not", asked]) == 0
    assert "why not " in capsys.readouterr().out


def test_other_prices_than_the_plan_s_are_refused(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["explain", str(plan_file), "--why-not", "tp=4", "--cluster", "dgx-a100-80gb"]
    assert execute(command) == 2
    assert "not what the plan was priced from" in capsys.readouterr().err


def test_a_file_that_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"schema_version": "shardwright.plan/1"}')
    assert execute(["explain", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "cluster", "devices", "options"),
    [
        ("gpt2", "dgx-h100:2", 1, []),
        ("gpt2", "h100-sxm5-80gb:4x2,inter=100GB/s", 1, []),
        ("llama-3-8b", "dgx-h100:3", 16, ["--tokens", "1T", "--deadline", "100d"]),
    ],
)
def test_a_plan_on_a_part_of_the_cluster_is_priced_again(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    cluster: str,
    devices: int,
    options: list[str],
) -> None:
    path = tmp_path / "plan.json"
    command = ["plan", model, "--cluster", cluster, "--objective", "gpus", *options,
               "--global-batch", "480", "--fix", "tp=1,cp=1,pp=1"]  # fmt: skip
    assert execute([*command, "-o", str(path)]) == 0
    assert Plan.load(path).cluster.num_devices == devices
    capsys.readouterr()
    assert execute(["explain", str(path), "--why-not", "micro_batch=1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["why_not"]["verdict"] != "breaks_rules"
    assert answer["sensitivity"]


# Every number that is printed, worked out again from the plan's file.

SHARES = {
    "compute": ("compute_forward", "compute_backward"), "recompute": ("recompute",),
    "tp traffic": ("tp_comm",), "cp traffic": ("cp_comm",), "ep traffic": ("ep_comm",),
    "pp traffic": ("pp_comm",), "bubble": ("bubble",), "dp traffic": ("dp_comm_exposed",),
    "optimizer": ("optimizer",), "data": ("data",), "other": ("other",),
}  # fmt: skip
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Printed(NamedTuple):
    plan: Plan
    lines: list[str]
    answer: dict[str, Any]

    def rows(self, heading: str) -> list[list[str]]:
        """The cells below a table's heading, up to the empty line behind it."""
        start = next(i for i, line in enumerate(self.lines) if line.strip().startswith(heading))
        found: list[list[str]] = []
        for line in self.lines[start + 2 :]:
            if not line.strip():
                return found
            found.append(re.split(r" {2,}", line.strip()))
        return found

    def after(self, word: str) -> list[str]:
        return [line[10:] for line in self.lines if line.startswith(f"{word:10}")]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Printed:
    path = tmp_path_factory.mktemp("printed") / "plan.json"
    command = ["plan", "gpt2", "--cluster", "dgx-h100:2", "--global-batch", "64",
               "--fix", "pp=4,tp=2,cp=1"]  # fmt: skip
    assert execute([*command, "-o", str(path)]) == 0
    texts = []
    for option in ([], ["--json"]):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert execute(["explain", str(path), *option]) == 0
        texts.append(out.getvalue())
    return Printed(Plan.load(path), texts[0].splitlines(), json.loads(texts[1]))


def value_of(text: str, units: dict[str, Any]) -> float:
    number, unit = text.split()
    return float(number) * float(units[unit])


def of(fields: dict[str, float], what: str) -> float:
    return sum(fields[name] for name in SHARES[what])


def test_printed_times_and_shares_are_those_of_the_plan(printed: Printed) -> None:
    fields = printed.plan.prediction.breakdown.model_dump()
    assert {name for names in SHARES.values() for name in names} == set(fields)
    rows = printed.rows("where the step goes")
    for what, time, share in rows:
        assert value_of(time, SECONDS) == pytest.approx(of(fields, what), rel=6e-3), what
        step_time_s = printed.plan.prediction.step_time_s
        assert share == f"{of(fields, what) / step_time_s:.1%}", what
    unsaid = set(SHARES) - {what for what, _, _ in rows}
    assert all(of(fields, what) == 0 for what in unsaid), unsaid
    for part in printed.answer["time"]:
        assert part["seconds"] == pytest.approx(of(fields, part["what"]))


def test_printed_memory_is_that_of_the_plan(printed: Printed) -> None:
    prediction = printed.plan.prediction
    rows = printed.rows("pipeline rank  weights")
    assert len(rows) == len(prediction.memory) == 4
    for (rank, *cells), memory in zip(rows, prediction.memory, strict=True):
        parts = [*memory.model_dump().values()]
        assert len(cells) == len(parts) + 1
        for cell, num_bytes in zip(cells, [*parts, sum(parts)], strict=True):
            assert value_of(cell, BYTES) == pytest.approx(num_bytes, rel=6e-2, abs=0.5), rank
    for stage, memory in zip(printed.answer["stages"], prediction.memory, strict=True):
        assert stage["memory"] == memory.model_dump()
        peak = sum(memory.model_dump().values())
        assert stage["free_bytes"] == prediction.memory_capacity_bytes - peak
    (limit,) = printed.after("limit")
    peak = max(prediction.peak_memory_bytes)
    fullest = re.search(r"rank (\d+) is fullest, with ([\d.]+ \w+) \((\d+)% of usable", limit)
    assert fullest is not None
    assert prediction.peak_memory_bytes[int(fullest[1])] == peak
    assert value_of(fullest[2], BYTES) == pytest.approx(peak, rel=6e-2)
    assert int(fullest[3]) == round(peak / prediction.memory_capacity_bytes * 100)


def test_each_printed_rank_spends_the_whole_step(printed: Printed) -> None:
    step_time_s = printed.plan.prediction.step_time_s
    rows = printed.rows("pipeline rank  layers")
    for cells, stage in zip(rows, printed.answer["stages"], strict=True):
        fields = stage["breakdown"]
        assert sum(fields.values()) == pytest.approx(step_time_s)
        busy = 1 - fields["bubble"] / sum(fields.values())
        assert f"{busy:.1%}" in cells
        said = dict(re.findall(r"([a-z][a-z ]*?) ([\d.]+ [mun]?s)", cells[-1]))
        assert said
        for what, time in said.items():
            assert value_of(time, SECONDS) == pytest.approx(of(fields, what), rel=6e-3), what
        unsaid = {what: of(fields, what) for what in SHARES if what not in said}
        assert max(unsaid.values()) < 0.005 * step_time_s, (cells, unsaid)


def test_printed_gains_are_tokens_over_those_of_the_plan(printed: Printed) -> None:
    rows = printed.rows("what would help")
    tokens_per_s = printed.plan.prediction.tokens_per_s
    assert len(rows) == len(printed.answer["sensitivity"]) == 6
    for (_, more, twice, _), one in zip(rows, printed.answer["sensitivity"], strict=True):
        gains = {gain["factor"]: gain["tokens_per_s"] / tokens_per_s - 1 for gain in one["gains"]}
        for cell, factor in ((more, 1.1), (twice, 2.0)):
            assert cell == (f"{gains[factor]:+.1%}" if factor in gains else "-"), one["what"]
        for gain in one["gains"]:
            assert gain["gain"] == pytest.approx(gains[gain["factor"]], abs=1e-12)


def test_printed_runners_up_and_ties_lose_what_the_plan_says(printed: Printed) -> None:
    chosen = printed.plan.prediction
    for line, other in zip(printed.after("runner-up"), printed.plan.alternatives, strict=True):
        more = other.prediction.step_time_s / chosen.step_time_s - 1
        assert f": {more:.2%} slower" in line or (more < 5e-5 and "equally fast" in line)
        own, theirs = (one.breakdown.model_dump() for one in (chosen, other.prediction))
        for what, sign, time in re.findall(r"([a-z][a-z ]*?) ([+-])([\d.]+ [mun]?s)", line):
            seconds = value_of(time, SECONDS) * (1 if sign == "+" else -1)
            assert seconds == pytest.approx(of(theirs, what) - of(own, what), rel=6e-3), line
    (ties,) = printed.after("ties")
    slowest_s = max(one.prediction.step_time_s for one in printed.plan.ties)
    assert ties.startswith(f"{len(printed.plan.ties)} more layout")
    assert f"within {slowest_s / chosen.step_time_s - 1:.2%} of this step" in ties
