"""Bad input of every kind ends with one clear message and the exit code of whose hands it is in."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli import execute
from shardwright.specs import Plan, RunError
from tests.cli import samples
from tools.sources import ROOT

DEMO_CONFIG = ROOT / "examples" / "demo" / "config.json"
ESTIMATE = ("estimate", str(DEMO_CONFIG), "--global-batch", "8", "--seq-len", "64")
USER_ERRORS = (2, 3, 4)


@dataclass(frozen=True)
class Workshop:
    """A folder with a good config, cluster and plan, to be spoiled."""

    folder: Path

    def write(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def config(self, **changes: Any) -> str:
        values = json.loads(DEMO_CONFIG.read_text()) | changes
        return self.write("config.json", json.dumps(values))

    def plan(self, change: Callable[[dict[str, Any]], object] = lambda plan: None) -> str:
        value = json.loads(samples.plan().to_json())
        change(value)
        return self.write("plan.json", json.dumps(value))


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    def launch(job: object) -> None:
        raise RunError("every check was passed and ranks would start")

    monkeypatch.setattr("shardwright.runtime.api.launch", launch)
    return Workshop(tmp_path)


def estimate(cluster: str, layout: str = "tp=1") -> list[str]:
    return [*ESTIMATE, "--cluster", cluster, "--layout", layout]


def run(plan: str, *options: str) -> list[str]:
    return ["run", plan, "--data", "mock", "--steps", "2", *options]


BAD: dict[str, tuple[Callable[[Workshop], list[str]], int, str]] = {
    "config-missing": (lambda w: ["model", f"{w.folder}/no.json"], 2, "no.json"),
    "config-is-broken-json": (lambda w: ["model", w.write("c.json", '{"a": ')], 2, "JSON"),
    "config-is-empty": (lambda w: ["model", w.write("c.json", "")], 2, "JSON"),
    "config-is-binary": (lambda w: ["model", w.write("c.json", b"\xff\xfe\x00")], 2, "UTF-8"),
    "config-is-a-list": (lambda w: ["model", w.write("c.json", "[1]")], 2, "c.json"),
    "config-nested-too-deep": (lambda w: ["model", w.write("c.json", "[" * 10**5)], 2, "JSON"),
    "config-folder-without-config": (lambda w: ["model", str(w.folder)], 2, "config.json"),
    "model-type-unknown": (lambda w: ["model", w.config(model_type="lama")], 2, "lama"),
    "model-negative-size": (lambda w: ["model", w.config(hidden_size=-256)], 2, "-256"),
    "model-zero-layers": (lambda w: ["model", w.config(num_hidden_layers=0)], 2, "0"),
    "model-size-in-words": (lambda w: ["model", w.config(vocab_size="many")], 2, "many"),
    "model-heads-do-not-group": (lambda w: ["model", w.config(num_key_value_heads=3)], 2, "3"),
    "model-name-unknown": (lambda w: ["model", "llama-3.1-71b"], 2, "llama-3.1-70b"),
    "factory-module-missing": (lambda w: ["model", "no.such.module:build"], 2, "no.such.module"),
    "cluster-name-unknown": (lambda w: estimate("dgx-h1000"), 2, "dgx-h100"),
    "cluster-file-missing": (lambda w: estimate(f"{w.folder}/no.json"), 2, "no.json"),
    "cluster-file-broken": (lambda w: estimate(w.write("c.json", "{")), 2, "JSON"),
    "cluster-zero-nodes": (lambda w: estimate("dgx-h100:0"), 2, "0"),
    "cluster-inline-option": (lambda w: estimate("h100-sxm5-80gb:8x2,memry=1GB"), 2, "memory"),
    "cluster-inline-unit": (lambda w: estimate("h100-sxm5-80gb:8x2,memory=80Gs"), 2, "80Gs"),
    "gpus-and-nodes": (
        lambda w: [*estimate("dgx-h100"), "--gpus", "8", "--nodes", "1"], 2, "nodes"
    ),
    "degree-zero": (lambda w: estimate("dgx-h100", "tp=0"), 2, "tp"),
    "degree-in-words": (lambda w: estimate("dgx-h100", "tp=two"), 2, "two"),
    "degree-unknown": (lambda w: estimate("dgx-h100", "tensor=2"), 2, "tensor"),
    "degrees-impossible": (lambda w: estimate("dgx-h100", "tp=16,pp=1,dp=1"), 3, "16"),
    "degrees-exceed-the-heads": (lambda w: estimate("dgx-h100:2", "tp=16,dp=1"), 3, "heads"),
    "stages-do-not-cover-the-model": (
        lambda w: estimate("dgx-h100:1", "pp=2,dp=4,stages=0-2/2-4"), 2, "stages"
    ),
    "zero-stage-unknown": (lambda w: estimate("dgx-h100", "zero=4"), 2, "zero"),
    "batch-not-whole": (lambda w: [*estimate("dgx-h100"), "--global-batch", "1.5"], 2, "1.5"),
    "sequence-too-long": (lambda w: [*estimate("dgx-h100"), "--seq-len", "1M"], 3, "512"),
    "precision-unknown": (lambda w: [*estimate("dgx-h100"), "--precision", "fp33"], 2, "fp32"),
    "plan-missing": (lambda w: ["explain", f"{w.folder}/no.json"], 2, "no.json"),
    "plan-is-a-folder": (lambda w: ["explain", str(w.folder)], 2, "cannot read"),
    "plan-of-another-version": (
        lambda w: ["explain", w.plan(lambda p: p.update(schema_version="shardwright.plan/9"))],
        2, "schema_version",
    ),
    "plan-with-an-unknown-field": (
        lambda w: ["explain", w.plan(lambda p: p["layout"].update(tq=1))], 2, "tq"
    ),
    "plan-with-nan": (
        lambda w: ["explain", w.plan(lambda p: p["layout"].update(tp=float("nan")))], 2, "tp"
    ),
    "plan-without-its-layout": (lambda w: ["explain", w.plan(lambda p: p.pop("layout"))], 2,
                                "layout"),
    "plan-for-other-hardware": (lambda w: run(w.plan()), 2, "chip-16gb"),
    "data-missing": (lambda w: ["run", w.plan(), "--data", "no-such-data", "--steps", "2"], 2, ""),
    "resume-without-save": (lambda w: run(w.plan(), "--resume"), 2, "--save"),
    "output-is-another-file": (
        lambda w: ["plan", *estimate("dgx-h100")[1:-2], "-o", w.write("n.txt", "notes")], 2,
        "--force",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind: str, workshop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    command, code, said = BAD[kind]
    assert execute(command(workshop)) == code
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    assert said in err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1


def test_a_full_disk(workshop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    """No file may grow: as on a disk without room, but for this process alone."""
    command = ["plan", *estimate("dgx-h100")[1:-2], "--gpus", "1", "-o"]
    target = workshop.folder / "plan.json"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        code = execute([*command, str(target)])
    assert code == 2
    assert str(target) in capfd.readouterr().err
    assert list(workshop.folder.iterdir()) == []


def test_a_folder_that_cannot_be_made(
    workshop: Workshop, capfd: pytest.CaptureFixture[str]
) -> None:
    blocked = workshop.write("file", "in the way")
    command = ["plan", *estimate("dgx-h100")[1:-2], "--gpus", "1", "-o", f"{blocked}/plan.json"]
    assert execute(command) == 2
    assert "file" in capfd.readouterr().err


STRANGE: tuple[Any, ...] = (
    0, -1, 1, 3, 2**40, 10**30, 1.5, 1e308, float("nan"), float("inf"), True, None, "", "x", "8",
    [], [1], {}, {"a": 1},
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


def mutated(text: str, chance: random.Random) -> str:
    """The text with one thing wrong: a value, a missing or unknown field, or broken characters."""
    kind = chance.choice(("value", "value", "value", "drop", "add", "cut", "byte"))
    if kind == "cut":
        return text[: chance.randrange(len(text))]
    if kind == "byte":
        at = chance.randrange(len(text))
        return text[:at] + chance.choice('{}[]",:x0-') + text[at + 1 :]
    value = json.loads(text)
    container, key = chance.choice(list(places(value)))
    if kind == "value":
        container[key] = chance.choice(STRANGE)
    elif kind == "drop":
        del container[key]
    elif isinstance(container, dict):
        container["unknown"] = chance.choice(STRANGE)
    else:
        container.append(chance.choice(STRANGE))
    return json.dumps(value)


COMMANDS: dict[str, tuple[Callable[[], str], Callable[[str], list[str]]]] = {
    "config": (
        DEMO_CONFIG.read_text,
        lambda path: ["estimate", path, "--cluster", "dgx-h100", "--gpus", "1", "--global-batch",
                      "2", "--seq-len", "16", "--layout", "micro_batch=1"],
    ),
    "cluster": (lambda: samples.cluster().to_json(), lambda path: estimate(path, "dp=4")),
    "plan": (lambda: samples.plan().to_json(), lambda path: ["explain", path]),
    "plan-to-run": (lambda: samples.plan().to_json(), run),
}  # fmt: skip
MUTATIONS_OF_EACH = 125


@pytest.mark.parametrize("what", COMMANDS)
def test_mutated_files_never_end_in_a_traceback(
    what: str, workshop: Workshop, capfd: pytest.CaptureFixture[str]
) -> None:
    original, command = COMMANDS[what]
    text = original()
    chance = random.Random(what)
    codes = []
    for number in range(MUTATIONS_OF_EACH):
        spoiled = mutated(text, chance)
        path = workshop.write(f"{what}.json", spoiled)
        code = execute(command(path))
        _, err = capfd.readouterr()
        assert code in (0, *USER_ERRORS), f"mutation {number}: {err}\n{spoiled}"
        assert "Traceback" not in err
        assert code == 0 or "error: " in err
        codes.append(code)
    assert sum(code in USER_ERRORS for code in codes) > MUTATIONS_OF_EACH // 3


def test_five_hundred_mutations_are_tried() -> None:
    assert MUTATIONS_OF_EACH * len(COMMANDS) >= 500
    assert len(BAD) >= 30


def test_the_unspoiled_files_are_good(workshop: Workshop) -> None:
    assert execute(["model", workshop.config()]) == 0
    assert execute(["explain", workshop.plan()]) == 0
    assert Plan.load(Path(workshop.plan())) == samples.plan()
    cluster = workshop.write("cluster.json", samples.cluster().to_json())
    assert execute(estimate(cluster, "dp=4")) == 0
