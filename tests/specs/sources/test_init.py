"""Every way to name a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.specs import InputError
from shardwright.specs.sources import preset, read_model, resolve_model

MODULE = """
from shardwright.specs.sources import resolve_model

def small():
    return resolve_model("gpt2")

def text():
    return "gpt2"

def broken():
    raise RuntimeError("not today")

constant = 3
"""


@pytest.fixture
def config_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(preset("llama-3.2-1b").config))
    return folder


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("llama-3.1-70b", "llama-3.1-70b"),
        ("LLAMA-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/meta-llama-3.1-70b-instruct", "llama-3.1-70b"),
        ("openai-community/gpt2", "gpt2"),
    ],
)
def test_slugs_and_hub_ids(text: str, slug: str) -> None:
    assert resolve_model(text) == preset(slug).read().spec


def test_a_config_file_or_its_folder(config_folder: Path) -> None:
    by_folder = resolve_model(str(config_folder))
    by_file = resolve_model(str(config_folder / "config.json"))
    assert by_folder == by_file
    assert (by_file.name, by_file.num_parameters) == ("my-llama", 1_235_814_400)
    assert by_file.source == str(config_folder / "config.json")
    other = config_folder / "other.json"
    other.write_text((config_folder / "config.json").read_text())
    assert resolve_model(str(other)).name == "other"


def test_notes_come_with_the_model() -> None:
    assert "dropout" in read_model("gpt2").notes[0]
    assert read_model("llama-3-8b").notes == ()


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with a module of factories, made the working folder; its name is unique."""
    name = f"factories_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    return name


def test_a_python_factory(module_folder: str) -> None:
    assert resolve_model(f"{module_folder}:small") == resolve_model("gpt2")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("text", "returned a str, not a ModelSpec"),
        ("broken", "RuntimeError: not today"),
        ("constant", "has no function constant"),
        ("absent", "has no function absent"),
    ],
)
def test_bad_factories(module_folder: str, function: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_model(f"{module_folder}:{function}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama-3.1-71b", "try llama-3.1-70b"),
        ("meta-llama/Llama-3.1-71B", "try llama-3.1-70b"),
        ("", "no preset, hub id or file"),
        ("absent.json", "there is no model config file absent.json"),
        ("no.such.module:factory", "ModuleNotFoundError"),
    ],
)
def test_what_names_nothing(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_model(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[]", "holds no model config"),
        (b'{"model_type": "rwkv"}', "'rwkv' .* is not supported"),
    ],
)
def test_bad_config_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        resolve_model(str(tmp_path))
