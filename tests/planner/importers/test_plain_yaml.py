"""YAML of configurations, against a whole reader of YAML where one is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright.planner.importers.plain_yaml import load_yaml, parse_yaml
from shardwright.specs import InputError

TEXTS = {
    "accelerate": """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_offload_params: false   # a comment
  fsdp_min_num_params: 100000000
machine_rank: 0
mixed_precision: bf16
tpu_env: []
""",
    "lists": """\
# heading
---
args:
- --num-layers
- 61
-   name: x
    value: [1, 2.5, "a, b", {k: v, n: null}]
- - inner
  - list
- plain words here
empty:
last: end
""",
    "keys": """\
--num-layers: 61
--moe-layer-freq: "([0]*3+[1]*58)"
--recompute-modules: "mla_up_proj mlp"
--flag: true
"quoted key": 'it''s'
url: http://host:29500/path
ENV:
  A_B: 1e-5
  C: -3
  D: +4
  E: .5
  F: ~
  G: "tab\\tand \\"quotes\\""
""",
    "deep": "a:\n  b:\n    c:\n      - d: 1\n        e: 2\n      - d: 3\nf: [[1, 2], [3]]\n",
    "list": "- a\n- b: 1\n  c: 2\n",
}


def by_others(text: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load(text)


@pytest.mark.parametrize("name", TEXTS)
def test_as_others_read_it(name: str) -> None:
    found, expected = parse_yaml(TEXTS[name], source="t"), by_others(TEXTS[name])
    if name == "keys":
        expected["ENV"]["A_B"] = 1e-5  # YAML 1.1 wants a point in it
    assert found == expected


def test_values() -> None:
    found = parse_yaml(TEXTS["keys"], source="t")
    assert found["--num-layers"] == 61
    assert found["--moe-layer-freq"] == "([0]*3+[1]*58)"
    assert found["ENV"]["F"] is None
    assert found["url"] == "http://host:29500/path"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: &x 1\n", "line 1"),
        ("a: |\n  text\n", "line 1"),
        ("a: 1\n   b: 2\n", "line 2"),
        ("a: 1\na: 2\n", "second time"),
        ("a:\n\tb: 1\n", "tab"),
        ("a: [1, 2\n", "line 1"),
        ("a: 'x\n", "quote"),
        ("a: {1, 2}\n", "line 1"),
        ("a: " + "[" * 200 + "\n", "too deep"),
    ],
)
def test_what_is_no_plain_yaml_names_its_line(text: str, word: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, source="it")
    assert word in str(caught.value)


def test_nothing_and_files(tmp_path: Path) -> None:
    assert parse_yaml("# only\n", source="t") is None
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\n")
    assert load_yaml(path, what="test") == {"a": 1}
    with pytest.raises(InputError, match="there is no test file"):
        load_yaml(tmp_path / "b.yaml", what="test")


def test_nesting_without_end_is_refused() -> None:
    text = "".join(f"{' ' * depth}a:\n" for depth in range(500))
    with pytest.raises(InputError, match="too deep"):
        parse_yaml(text, source="t")
