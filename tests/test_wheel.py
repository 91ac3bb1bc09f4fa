"""A wheel, installed outside the checkout and without torch, plans."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.sources import HOUSES, LIBRARY, ROOT, python_files

WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv.pop(1))
import shardwright
assert shardwright.__file__.startswith(sys.path[0]), shardwright.__file__
from shardwright.cli import main
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves a build folder, and would pack what is left in one."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in LIBRARY:
        shutil.copytree(
            ROOT / folder, tree / folder, symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )  # fmt: skip
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    built = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(built), str(tree)],
        check=True, timeout=120,
    )  # fmt: skip
    (wheel_file,) = built.glob("*.whl")
    return wheel_file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target),
         str(wheel)],
        check=True, timeout=120,
    )  # fmt: skip
    return target


def test_the_wheel_holds_every_module_and_data_file_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    for path in python_files(*LIBRARY):
        inside = path.relative_to(ROOT)
        name = str(inside) if inside.parts[0] == "shardwright" else f"shardwright/{inside}"
        assert name in names
    for data in (ROOT / "hardware_profiles").rglob("*.json"):
        assert f"shardwright/{data.relative_to(ROOT)}" in names
    assert not {name.split("/")[0] for name in names} & {*HOUSES, "tests", "tools"}


def run_without_torch(
    site: Path, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(site), *arguments], cwd=folder,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_an_installed_wheel_plans_without_torch(installed: Path, tmp_path: Path) -> None:
    done = run_without_torch(
        installed, tmp_path, "plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "2",
        "--global-batch", "8", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["feasible"] is True


def test_training_without_torch_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    done = run_without_torch(
        installed, tmp_path, "plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "2",
        "--global-batch", "8", "-o", str(plan),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = run_without_torch(
        installed, tmp_path, "run", str(plan), "--data", "mock", "--steps", "2"
    )
    assert done.returncode == 2
    assert "shardwright[runtime]" in done.stderr
    assert "Traceback" not in done.stderr
