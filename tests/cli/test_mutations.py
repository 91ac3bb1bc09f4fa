"""Five hundred damaged files: each is refused in one clear message, or harmless; none hangs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardwright.hardware_profiles.catalogue import parameters_for
from shardwright.hardware_profiles.profile import Curve, HardwareProfile, Point, ProfileProvenance
from shardwright.runtime.preflight import check_plan
from shardwright.specs import Plan, ShardwrightError
from tests.cli import samples
from tests.cli.damage import HARMS_TO_TEXT, HARMS_TO_VALUES, mutate
from tests.cli.endings import REFUSALS, Ending, end_of
from tools.sources import ROOT

MUTATIONS_OF_EACH = 125
LIMIT_S = 5.0
"""Processor time of one command: a damaged size must not keep anyone waiting."""

TRAINING = ("--global-batch", "16", "--seq-len", "256")
CONFIG = ROOT / "examples" / "demo" / "config.json"


@dataclass(frozen=True)
class Files:
    """Good files of each kind, and the one that is damaged."""

    folder: Path

    def __getattr__(self, kind: str) -> str:
        return str(self.folder / f"{kind}.json")


def explain(files: Files) -> Ending:
    return end_of(["explain", files.damaged])


def explain_why_not(files: Files) -> Ending:
    return end_of(
        ["explain", files.damaged, "--why-not", "tp=2", "--cluster", files.profile, "--json"]
    )


def before_a_run(files: Files) -> Ending:
    """As `run` reads and checks a plan before it looks at this machine."""
    try:
        check_plan(Plan.load(Path(files.damaged)))
    except ShardwrightError as error:
        return Ending(error.exit_code, "", f"error: {error}\n")
    return Ending(0, "", "")


def describe_model(files: Files) -> Ending:
    return end_of(["model", files.damaged, "--json"])


def plan_model(files: Files) -> Ending:
    return end_of(["plan", files.damaged, "--cluster", files.cluster, *TRAINING])


def plan_on_cluster(files: Files) -> Ending:
    return end_of(["plan", str(CONFIG), "--cluster", files.damaged, *TRAINING, "--json"])


def estimate_on_cluster(files: Files) -> Ending:
    return end_of(
        ["estimate", str(CONFIG), "--cluster", files.damaged, "--layout", "tp=2,pp=2", *TRAINING]
    )


Check = Callable[[Files], Ending]

CHECKS: dict[str, tuple[Check, ...]] = {
    "config": (describe_model, plan_model),
    "cluster": (plan_on_cluster, estimate_on_cluster),
    "profile": (plan_on_cluster, estimate_on_cluster),
    "plan": (explain, explain_why_not, before_a_run),
}
"""What reads each kind of file."""


def measured_profile() -> HardwareProfile:
    """The sample cluster with a few curves of every sort."""
    points = tuple(Point(size, 1e-5 + size * 1e-9, 1e-6, 9) for size in (1e4, 1e6, 1e8))
    kinds = (
        ("flops", "matmul/forward@n=256,k=256", (1, 1), 1),
        ("flops", "attention/forward@head_dim=64,seq=256", (1, 1), 1),
        ("bytes", "elementwise/rms_norm", (1, 1), 1),
        ("flops", "shared/matmul", (1, 1), 1),
        ("flops", "shared/matmul", (1, 1), 4),
        ("bytes", "all_reduce", (4, 1), 1),
        ("bytes", "all_reduce", (2, 1), 2),
        ("bytes", "send_recv", (2, 1), 1),
    )
    cluster = samples.cluster()
    return HardwareProfile(
        provenance=ProfileProvenance(
            created_at="2026-01-01T00:00:00Z", host="here", software={"torch": "2"}
        ),
        devices=cluster,
        curves=tuple(
            Curve.model_validate(
                {"quantity": quantity, "op": op, "dtype": "bf16", "group_shape": shape,
                 "concurrency": busy, "points": points}
            )
            for quantity, op, shape, busy in kinds
        ),
        parameters=parameters_for(cluster.groups[0]),
        num_ranks=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    files = Files(tmp_path_factory.mktemp("files"))
    Path(files.config).write_text(CONFIG.read_text())
    Path(files.cluster).write_text(samples.cluster().to_json())
    Path(files.profile).write_text(measured_profile().to_json())
    ending = end_of(["plan", files.config, "--cluster", files.profile, *TRAINING, "--fix", "pp=2",
                     "-o", files.plan])  # fmt: skip
    assert ending.code == 0, ending
    return files


@pytest.mark.parametrize("kind", CHECKS)
def test_the_undamaged_file_is_good(kind: str, files: Files) -> None:
    Path(files.damaged).write_bytes(Path(getattr(files, kind)).read_bytes())
    for check in CHECKS[kind]:
        ending = check(files)
        assert (ending.code, list(ending.faults())) == (0, []), ending


@pytest.mark.parametrize("kind", CHECKS)
def test_no_damage_ends_in_a_traceback_or_without_end(kind: str, files: Files) -> None:
    document = Path(getattr(files, kind)).read_text()
    faults, codes = [], []
    for seed in range(MUTATIONS_OF_EACH):
        damaged, words = mutate(document, seed)
        Path(files.damaged).write_bytes(damaged)
        for check in CHECKS[kind]:
            ending = check(files)
            wrong = list(ending.faults())
            if ending.cpu_s > LIMIT_S:
                wrong.append(f"{ending.cpu_s:.1f} s")
            if wrong:
                faults.append(f"seed {seed} ({words}), {check.__name__}: {wrong} {ending.err:.300}")
            codes.append(ending.code)
    assert not faults, "\n".join(faults)
    assert sum(code in REFUSALS for code in codes) > len(codes) // 2, "damage must be real"
    assert 0 in codes, "and not all of it fatal"


def test_five_hundred_files_are_damaged_in_every_way() -> None:
    assert MUTATIONS_OF_EACH * len(CHECKS) >= 500
    done = " ".join(mutate(CONFIG.read_text(), seed)[1] for seed in range(MUTATIONS_OF_EACH))
    assert [harm.__name__ for harm in HARMS_TO_VALUES if harm.__name__ not in done] == []
    assert [harm.__name__ for harm in HARMS_TO_TEXT if harm.__name__ not in done] == []


def test_the_same_seed_does_the_same_damage() -> None:
    text = CONFIG.read_text()
    assert [mutate(text, seed) for seed in range(50)] == [mutate(text, seed) for seed in range(50)]
    assert len({mutate(text, seed)[0] for seed in range(50)}) > 40
    assert json.loads(text) == json.loads(CONFIG.read_text())
