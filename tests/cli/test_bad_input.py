"""Bad input of every kind ends with one clear message, the right exit code, and nothing changed."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.runtime.checkpoint import CheckpointStore, RunFacts
from shardwright.runtime.pieces import Piece
from shardwright.specs import Plan
from tests.cli import samples
from tests.cli.endings import end_of
from tests.runtime import plans
from tools.sources import ROOT

DEMO = json.loads((ROOT / "examples" / "demo" / "config.json").read_text())
NAN, INFINITY = float("nan"), float("inf")
FINGERPRINT = "mock:307"
"""Of mock data for `plans.small_model`."""


@dataclass(frozen=True)
class Desk:
    """A user's folder."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def file(self, name: str, content: str | bytes) -> str:
        """A file with that content, in a folder of its own where its name has one."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def config(self, **changes: Any) -> str:
        return self.file("config.json", json.dumps(DEMO | changes))

    def cluster(self, **changes: Any) -> str:
        """A good cluster whose only group has those changes."""
        value = json.loads(samples.cluster().to_json())
        value["groups"][0] |= changes
        return self.file("cluster.json", json.dumps(value))

    def plan(self, change: Callable[[dict[str, Any]], object] = lambda plan: None) -> str:
        """A good plan for hardware that no machine has, changed."""
        value = json.loads(samples.plan().to_json())
        change(value)
        return self.file("plan.json", json.dumps(value))

    def plan_for_here(self, change: Callable[[dict[str, Any]], object] = lambda plan: None) -> str:
        """A good plan for one process of this machine, changed."""
        value = json.loads(local_plan().to_json())
        change(value)
        return self.file("plan.json", json.dumps(value))

    def found(self) -> str:
        """A plan as `plan` leaves it."""
        path = self.path("found.json")
        assert end_of(find("--gpus", "1", "-o", path)).code == 0
        return path

    def checkpoints(self, *, step: int = 3, fingerprint: str = FINGERPRINT) -> str:
        """A folder with a checkpoint of a run of `local_plan`."""
        weights = torch.zeros(local_plan().model.num_parameters)
        piece = Piece("weight/all", tuple(weights.shape), (0,), weights)
        facts = RunFacts.of(local_plan(), fingerprint)
        CheckpointStore(self.folder / "run").save(step, [piece], facts, local_plan())
        return self.path("run")

    def module(self, name: str, text: str) -> str:
        self.file(f"{name}.py", text)
        return f"{name}:build"


def local_plan() -> Plan:
    return plans.plan_of(cluster=local_cluster(1))


def setting(*keys: str | int, to: Any) -> Callable[[dict[str, Any]], object]:
    """A change of the value at the end of ``keys``."""

    def change(value: Any) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = to

    return change


def cost(
    model: str = "gpt2", cluster: str = "dgx-h100", layout: str = "tp=1", *more: str
) -> list[str]:
    return [
        "estimate",
        model,
        "--cluster",
        cluster,
        "--layout",
        layout,
        "--global-batch",
        "8",
        *more,
    ]


def find(*more: str, model: str = "gpt2", cluster: str = "dgx-h100") -> list[str]:
    return ["plan", model, "--cluster", cluster, "--global-batch", "8", *more]


def run(plan: str, *more: str, data: str = "mock", steps: str = "5") -> list[str]:
    return ["run", plan, "--data", data, "--steps", steps, *more]


Command = Callable[[Desk], list[str]]

BAD: dict[str, tuple[Command, int, str]] = {
    # Models
    "config-missing": (lambda d: ["model", d.path("no.json")], 2, "there is no model config file"),
    "config-broken-json": (lambda d: ["model", d.file("c.json", '{"a": ')], 2, "not valid JSON"),
    "config-empty": (lambda d: ["model", d.file("c.json", "")], 2, "not valid JSON"),
    "config-binary": (lambda d: ["model", d.file("c.json", b"\xff\xfe\x00")], 2, "not UTF-8"),
    "config-a-list": (lambda d: ["model", d.file("c.json", "[1]")], 2, "a list"),
    "config-too-deep": (lambda d: ["model", d.file("c.json", "[" * 100_000)], 2, "recursion"),
    "config-number-too-long": (
        lambda d: ["model", d.file("c.json", '{"vocab_size": ' + "9" * 5000 + "}")], 2, "digits"),
    "config-key-twice": (
        lambda d: ["model", d.file("c.json", '{"model_type": "llama", "model_type": "gpt2"}')],
        2, "'model_type' is given 2 times"),
    "config-half-a-character": (
        lambda d: ["model", d.file("c.json", r'{"model_type": "\ud800"}')], 2, "surrogate"),
    "config-folder-without-config": (lambda d: ["model", str(d.folder)], 2, "config.json"),
    "model-type-missing": (lambda d: ["model", d.file("c.json", "{}")], 2, "has no model_type"),
    "model-type-unknown": (lambda d: ["model", d.config(model_type="lama")], 2, "nearest: llama"),
    "model-type-endless": (lambda d: ["model", d.config(model_type="x" * 10_000)], 2, "xxx..."),
    "model-field-unknown": (lambda d: ["model", d.config(num_experts=8)], 2, "num_experts = 8"),
    "model-size-negative": (lambda d: ["model", d.config(hidden_size=-256)], 2, "(got -256)"),
    "model-size-zero": (lambda d: ["model", d.config(num_hidden_layers=0)], 2, "(got 0)"),
    "model-size-huge": (lambda d: ["model", d.config(num_hidden_layers=10**9)], 2, "512"),
    "model-size-nan": (lambda d: ["model", d.config(rms_norm_eps=NAN)], 2, "finite"),
    "model-size-infinite": (lambda d: ["model", d.config(rope_theta=INFINITY)], 2, "finite"),
    "model-size-in-words": (lambda d: ["model", d.config(vocab_size="many")], 2, "'many'"),
    "model-heads-do-not-divide": (
        lambda d: ["model", d.config(num_attention_heads=3)], 2, "not a multiple"),
    "preset-unknown": (lambda d: ["model", "llama-3.1-71b"], 2, "llama-3.1-70b"),
    "path-not-utf-8": (lambda d: ["model", "caf\udce9.json"], 2, "not UTF-8"),
    "factory-module-missing": (lambda d: ["model", "no.such:build"], 2, "ModuleNotFoundError"),
    "factory-missing": (
        lambda d: ["model", d.module("empty_one", "")], 2, "has no function build"),
    "factory-raises": (
        lambda d: ["model", d.module("raising", "def build():\n    return 1 / 0\n")],
        2, "ZeroDivisionError"),
    "factory-exits": (
        lambda d: ["model", d.module("exiting", "import sys\nsys.exit(0)\n")], 2, "SystemExit"),
    "factory-returns-else": (
        lambda d: ["model", d.module("wrong", "def build():\n    print(1)\n    return 1\n")],
        2, "returned a int"),
    "factory-model-wrong": (
        lambda d: ["model", d.module("torn", (
            "from tests.cli import samples\nfrom shardwright.specs import ModelSpec\n"
            "def build():\n    good = samples.model().model_dump()\n"
            "    return ModelSpec.model_validate(good | {'max_seq_len': -1})\n"))],
        2, "max_seq_len"),
    # Clusters
    "cluster-unknown": (lambda d: cost(cluster="dgx-h1000"), 2, "dgx-h100"),
    "cluster-file-missing": (lambda d: cost(cluster=d.path("no.json")), 2, "no.json"),
    "cluster-file-broken": (lambda d: cost(cluster=d.file("c.json", "{")), 2, "not valid JSON"),
    "cluster-toml-broken": (lambda d: cost(cluster=d.file("c.toml", "= 1")), 2, "not valid TOML"),
    "cluster-zero-nodes": (lambda d: cost(cluster="dgx-h100:0"), 2, "nodes = 0"),
    "cluster-huge": (lambda d: cost(cluster=d.cluster(num_nodes=10**12)), 2, "1048576"),
    "cluster-huge-by-name": (lambda d: cost(cluster=f"dgx-h100:{10**12}"), 2, "1048576"),
    "cluster-huge-by-product": (lambda d: cost(cluster=d.cluster(num_nodes=2**19)), 2, "2097152"),
    "cluster-slow-as-zero": (
        lambda d: cost(cluster=d.cluster(intra_node={
            "name": "wire", "bandwidth_bytes_per_s": 0, "latency_s": 0, "provenance": "user",
            "source": "here"})), 2, "bandwidth_bytes_per_s"),
    "cluster-of-two-islands": (
        lambda d: cost(cluster=d.file("two.json", json.dumps({"name": "two", "groups": [
            json.loads(samples.cluster().to_json())["groups"][0]] * 2}))), 2, "between_groups"),
    "cluster-inline-option": (lambda d: cost(cluster="h100-sxm5-80gb:8x2,memry=1GB"), 2, "memry"),
    "cluster-inline-unit": (lambda d: cost(cluster="h100-sxm5-80gb:8x2,memory=8Gs"), 2, "8Gs"),
    "cluster-accelerator-alone": (lambda d: cost(cluster="h100-sxm5-80gb"), 2, ":8x2"),
    "gpus-fill-no-nodes": (lambda d: find("--gpus", "12"), 2, "8 or 16"),
    "gpus-and-nodes": (lambda d: find("--gpus", "8", "--nodes", "1"), 2, "only one"),
    "gpus-zero": (lambda d: find("--gpus", "0"), 2, "--gpus"),
    "gpus-huge": (lambda d: find("--gpus", str(10**12)), 2, "1048576"),
    # Training and layouts
    "batch-not-whole": (lambda d: find("--global-batch", "1.5"), 2, "1.5"),
    "batch-huge": (lambda d: find("--global-batch", "1e15"), 2, "1,048,576"),
    "sequence-huge": (lambda d: find("--seq-len", "1e300"), 2, "2,147,483,648"),
    "sequence-nan": (lambda d: find("--seq-len", "nan"), 2, "nan"),
    "sequence-too-long-for-model": (lambda d: find("--seq-len", "1M"), 3, "1024 positions"),
    "tokens-negative": (lambda d: find("--tokens=-5"), 2, "-5"),
    "precision-unknown": (lambda d: find("--precision", "fp33"), 2, "fp32"),
    "objective-unknown": (lambda d: find("--objective", "fun"), 2, "step-time"),
    "top-zero": (lambda d: find("--top", "0"), 2, "--top"),
    "space-endless": (
        lambda d: find("--gpus", "720720", "--global-batch", "720720"), 2, "fewer divisors"),
    "degree-zero": (lambda d: cost(layout="tp=0"), 2, "tp = 0"),
    "degree-broken": (lambda d: cost(layout="tp=3.5"), 2, "tp = 3.5"),
    "degree-in-words": (lambda d: cost(layout="tp=two"), 2, "tp = two"),
    "degree-huge": (lambda d: cost(layout="pp=999999,vpp=999999"), 2, "more"),
    "degrees-unlike-the-world": (lambda d: cost(layout="tp=16,dp=1"), 3, "= 16, but the cluster"),
    "degree-beyond-heads": (lambda d: cost(cluster="dgx-h100:2", layout="tp=16"), 3, "12 att"),
    "layout-key-unknown": (lambda d: cost(layout="tensor=2"), 2, "tensor"),
    "layout-key-twice": (lambda d: cost(layout="tp=2,tp=4"), 2, "2 times"),
    "layout-without-values": (lambda d: cost(layout="tp"), 2, "name=value"),
    "layout-stages-torn": (lambda d: cost(layout="pp=2,stages=0-2/3-12"), 2, "does not cover"),
    "layout-schedule-endless": (
        lambda d: cost("gpt2", "dgx-h100", "pp=8", "--global-batch", "524288"), 3, "32,768"),
    "zero-unknown": (lambda d: cost(layout="zero=4"), 2, "0, 1, 2, 3"),
    "fix-unknown": (lambda d: find("--fix", "tq=2"), 2, "tp"),
    "fix-impossible": (lambda d: find("--fix", "tp=7"), 2, "1, 2, 4, 8"),
    "forbid-unknown": (lambda d: find("--forbid", "everything"), 2, "everything"),
    "forbid-all": (lambda d: find("--fix", "zero=1", "--forbid", "zero1"), 2, "nothing is left"),
    "does-not-fit": (lambda d: find("--gpus", "1", model="llama-3.1-70b"), 3, "bytes"),
    # Output
    "output-a-folder": (lambda d: find("-o", str(d.folder)), 2, "is a folder"),
    "output-another-file": (lambda d: find("-o", d.file("n.txt", "notes")), 2, "--force"),
    "output-below-a-file": (
        lambda d: find("--gpus", "1", "-o", d.file("f", "") + "/plan.json"), 2, "is no folder"),
    "output-name-too-long": (
        lambda d: find("--gpus", "1", "-o", d.path("x" * 300)), 2, "too long"),
    # Plans
    "plan-missing": (lambda d: ["explain", d.path("no.json")], 2, "there is no plan file"),
    "plan-a-folder": (lambda d: ["explain", str(d.folder)], 2, "Is a directory"),
    "plan-of-another-version": (
        lambda d: ["explain", d.plan(setting("schema_version", to="shardwright.plan/9"))],
        2, "schema_version"),
    "plan-field-unknown": (
        lambda d: ["explain", d.plan(setting("layout", "tq", to=1))], 2, "layout.tq"),
    "plan-field-missing": (
        lambda d: ["explain", d.plan(lambda plan: plan.pop("layout"))], 2, "layout"),
    "plan-with-nan": (lambda d: ["explain", d.plan(setting("layout", "tp", to=NAN))], 2, "tp"),
    "plan-with-infinite-step": (
        lambda d: ["explain", d.plan(setting("prediction", "step_time_s", to=INFINITY))],
        2, "step_time_s"),
    "plan-priced-for-fewer-stages": (
        lambda d: ["explain", d.plan(lambda plan: plan["prediction"]["memory"].pop())],
        2, "memory"),
    "plan-of-a-model-without-head": (
        lambda d: ["explain", d.plan(lambda plan: plan["model"]["towers"][0]["blocks"].pop())],
        2, "head"),
    "plan-priced-elsewhere": (
        lambda d: ["explain", d.plan(), "--why-not", "tp=4", "--cluster", "dgx-h100"],
        2, "priced from"),
    "why-not-nothing": (lambda d: ["explain", d.found(), "--why-not", ""], 2, "no layout is named"),
    "why-not-unknown": (lambda d: ["explain", d.found(), "--why-not", "tq=2"], 2, "tq"),
    # Runs, all refused before a process is started
    "run-for-other-hardware": (lambda d: run(d.plan()), 2, "CHIP-16GB"),
    "run-altered-model": (
        lambda d: run(d.plan_for_here(setting("model", "initializer_range", to=0.5))),
        2, "the model in the plan file is not what was planned"),
    "run-altered-cluster": (
        lambda d: run(d.plan_for_here(setting("cluster", "name", to="other"))),
        2, "the cluster in the plan file is not what was planned"),
    "run-altered-schedule": (
        lambda d: run(d.plan(setting("schedule", "ranks", 0, to="0B0 0F0"))), 2, "schedule"),
    "run-altered-layout": (
        lambda d: run(d.plan_for_here(setting("layout", "micro_batch", to=3))),
        2, "is not global_batch"),
    "run-stage-elsewhere": (
        lambda d: run(d.plan(setting("layout", "stages", 0, "rank", to=1))), 2, "stage 0 is"),
    "run-not-executable": (
        lambda d: run(d.plan_for_here(setting("layout", "loss_chunks", to=2))), 2, "loss_chunks"),
    "run-variable-no-name": (
        lambda d: run(d.plan_for_here(setting("environment", "A=B", to="1"))), 2, "environment"),
    "run-zero-steps": (lambda d: run(d.plan_for_here(), steps="0"), 2, "--steps"),
    "run-seed-huge": (lambda d: run(d.plan_for_here(), "--seed", str(2**64)), 2, "seed"),
    "resume-without-save": (lambda d: run(d.plan_for_here(), "--resume"), 2, "--save"),
    "resume-without-checkpoint": (
        lambda d: run(d.plan_for_here(), "--resume", "--save", d.path("none")),
        2, "there is no checkpoint"),
    "resume-when-done": (
        lambda d: run(d.plan_for_here(), "--resume", "--save", d.checkpoints(step=5)),
        2, "has done 5 of 5 steps"),
    "resume-another-run": (
        lambda d: run(d.plan_for_here(), "--resume", "--save", d.checkpoints(fingerprint="other")),
        2, "belongs to another run"),
    "resume-cut-checkpoint": (
        lambda d: run(d.plan_for_here(), "--resume", "--save", spoiled(d, lambda text: text[:40])),
        4, "cannot be read"),
    "resume-altered-checkpoint": (
        lambda d: run(d.plan_for_here(), "--resume", "--save",
                      spoiled(d, lambda text: text.replace('"seed": 0', '"seed": 1'))),
        4, "was altered"),
    "save-over-another-run": (
        lambda d: run(d.plan_for_here(), "--save", d.checkpoints()), 2, "add --resume"),
    "save-is-a-file": (
        lambda d: run(d.plan_for_here(), "--save", d.file("notes", "mine")), 2, "is no folder"),
    "data-missing": (lambda d: run(d.plan_for_here(), data=d.path("no")), 2, "there is no data"),
    "data-empty": (lambda d: run(d.plan_for_here(), data=d.file("e.txt", "")), 2, "is empty"),
    "data-folder-empty": (
        lambda d: run(d.plan_for_here(), data=str(Path(d.file("x/.h", "")).parent)), 2, "no files"),
    "data-binary": (
        lambda d: run(d.plan_for_here(), data=d.file("b.bin", b"\x00\xff" * 99)), 2, "no text"),
    "data-too-small": (
        lambda d: run(d.plan_for_here(), data=d.file("s.txt", "abc")), 2, "less than one sample"),
    "weights-missing": (
        lambda d: run(d.plan_for_here(), "--init-from", d.path("no")), 2, "no"),
    "profile-over-another-file": (
        lambda d: ["profile", "-o", d.file("n.txt", "notes")], 2, "--force"),
    "profile-reused-broken": (
        lambda d: ["profile", "--reuse", "-o", d.file("p.json", "{")], 2, "p.json"),
    "command-unknown": (lambda d: ["plna"], 2, "plan"),
    "option-unknown": (lambda d: ["models", "--jsn"], 2, "--json"),
}  # fmt: skip


def spoiled(desk: Desk, change: Callable[[str], str]) -> str:
    """A folder of checkpoints whose manifest was changed."""
    folder = desk.checkpoints()
    manifest = CheckpointStore(Path(folder)).path(3) / "manifest.json"
    manifest.write_text(change(manifest.read_text()))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, and nothing for a folder in it."""
    return {str(p): b"" if p.is_dir() else p.read_bytes() for p in sorted(folder.rglob("*"))}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A folder to work in; no process can be started from it, and caches are elsewhere."""

    def start(*arguments: object, **options: object) -> None:
        raise AssertionError("every check was passed and processes would start")

    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("shardwright.runtime.api.launch", start)
    monkeypatch.setattr("shardwright.hardware_profiles.measure.profile", start)
    return Desk(folder)


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind: str, desk: Desk) -> None:
    make, code, said = BAD[kind]
    command = make(desk)
    before = content(desk.folder)
    for options in ([], ["--json"]):
        ending = end_of([*command, *options])
        assert list(ending.json_faults() if options else ending.faults()) == [], ending
        assert (ending.code, said in ending.err) == (code, True), ending
    assert {p: b for p, b in content(desk.folder).items() if "__pycache__" not in p} == before


def test_at_least_forty_kinds_are_tried() -> None:
    assert len(BAD) >= 40


def test_the_unspoiled_files_are_good(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each kind is refused for what is wrong with it, and for nothing else."""
    for command in (
        ["model", desk.config()],
        ["model", desk.module("fine", "from tests.cli.samples import model as build\n")],
        ["explain", desk.plan()],
        cost("gpt2", desk.cluster(), "dp=4"),
        find("--gpus", "1", "-o", desk.path("new/plan.json")),
    ):
        ending = end_of(command)
        assert (ending.code, list(ending.faults())) == (0, []), ending
    assert Plan.load(Path(desk.path("new/plan.json"))).layout.world == 1


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_a_good_run_passes_every_check(desk: Desk, options: list[str]) -> None:
    save = desk.checkpoints() if options else desk.path("new/run")
    ending = end_of([*run(desk.plan_for_here()), "--save", save, *options])
    assert ending.code == 1
    assert "every check was passed" in ending.err


@contextmanager
def no_file_may_grow_beyond(num_bytes: int) -> Iterator[None]:
    """As on a full disk, for this process alone: writing more raises an `OSError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("older", [None, "an older plan"])
def test_a_full_disk_leaves_what_was_there(desk: Desk, older: str | None) -> None:
    target = desk.plan() if older else desk.path("plan.json")
    before = content(desk.folder)
    with no_file_may_grow_beyond(100):
        ending = end_of(find("--gpus", "1", "-o", target))
    assert (ending.code, list(ending.faults())) == (2, []), ending
    assert f"cannot write {target}: File too large" in ending.err
    assert content(desk.folder) == before


def test_a_full_disk_under_the_token_cache(desk: Desk) -> None:
    text = desk.file("text.txt", "some words of a text that is long enough\n" * 200)
    command = run(desk.plan_for_here(), data=text)
    with no_file_may_grow_beyond(100):
        ending = end_of(command)
    assert (ending.code, list(ending.faults())) == (2, []), ending
    assert "cannot write the token cache" in ending.err


def test_an_older_plan_is_replaced_and_nothing_else(desk: Desk) -> None:
    target = desk.plan()
    assert end_of(find("--gpus", "1", "-o", target)).code == 0
    assert Plan.load(Path(target)).model.name == "gpt2"
    shutil.rmtree(desk.folder)
