"""How a dry run is told."""

from __future__ import annotations

import pytest

from shardwright.runtime.dry_report import Check, DryRunReport, RankReport, ranks_in_words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((3,), "3"),
        ((3, 7), "3 7"),
        (tuple(range(8)), "0-7 (8 ranks)"),
        (tuple(range(5, 64, 8)), "5-61 by 8 (8 ranks)"),
        ((0, 1, 5), "0 1 5"),
        ((4, 2, 0), "4 2 0"),
    ],
)
def test_ranks_are_told_without_loss(ranks: tuple[int, ...], words: str) -> None:
    assert ranks_in_words(ranks) == words


def report(*checks: Check, differences: tuple[str, ...] = ()) -> DryRunReport:
    rank = RankReport(rank=9, tp=1, dp=0, pp=2, checks=checks, differences=differences)
    return DryRunReport(model="tiny", num_ranks=16, layout="tp 2", ranks=(rank,), notes=("note",))


def test_checks_about_the_same_thing_share_a_row() -> None:
    told = report(
        Check(what="all_reduce in tp", unit="calls", planned=1, built=1, agrees=True),
        Check(what="all_reduce in tp", unit="bytes", planned=2048, built=2048, agrees=True),
        Check(what="FLOPs", unit="FLOPs", planned=10**6, built=10**6, agrees=True),
    ).as_text()
    assert "rank 9 (tp 1, dp 0, pp 2)" in told
    rows = [" ".join(line.split()) for line in told.splitlines()]
    same = "1 call, 2,048 B (2.0 KiB)"
    assert f"all_reduce in tp {same} {same}" in rows
    assert "FLOPs 1,000,000 1,000,000" in rows
    assert rows[-2:] == ["note", "rank 9 of 16: as planned"]


def test_what_differs_is_marked_and_told() -> None:
    wrong = Check(what="layers", planned="0-7 (8 layers)", built="0-6 (7 layers)", agrees=False)
    found = report(wrong, differences=("layers: 0-6 built, 0-7 planned",))
    assert found.differences == ("rank 9: layers: 0-6 built, 0-7 planned",)
    told = found.as_text()
    assert "<- differs" in told
    assert told.endswith("rank 9 of 16: 1 differences")
