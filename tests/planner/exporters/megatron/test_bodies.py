"""Attention, positions and MLPs one by one."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.planner.exporters.exported import Findings
from shardwright.planner.exporters.megatron.bodies import attention_options, mlp_options
from shardwright.planner.exporters.megatron.versions import version_of
from shardwright.specs.bodies import AttentionBlock, MlpBlock, RotaryPositions
from tests.planner.exporters.jobs import model_of


def attention(version: str = "main", **changes: Any) -> tuple[set[tuple[str, ...]], list[str]]:
    given: dict[str, Any] = {
        "hidden_size": 256, "num_heads": 8, "num_kv_heads": 8, "head_dim": 32, "qkv_bias": False,
        "output_bias": False, "rotary": RotaryPositions(base=10000), **changes,
    }  # fmt: skip
    findings = Findings()
    body = AttentionBlock(**given)
    options = attention_options(body, model_of(), version_of(version), findings)
    return set(options), [one.problem for one in findings.refused]


def mlp(
    attention_changes: dict[str, Any], **changes: Any
) -> tuple[set[tuple[str, ...]], list[str]]:
    given: dict[str, Any] = {
        "hidden_size": 256, "ffn_size": 1024, "activation": "silu", "gated": True, "bias": False,
        **changes,
    }  # fmt: skip
    seen = AttentionBlock(
        hidden_size=256, num_heads=8, num_kv_heads=8, head_dim=32, rotary=None,
        **{"qkv_bias": False, "output_bias": False, **attention_changes},
    )  # fmt: skip
    findings = Findings()
    options = mlp_options([MlpBlock(**given)], seen, findings)
    return set(options), [one.problem for one in findings.refused]


def test_plain_attention_says_little() -> None:
    options, refused = attention()
    assert options == {
        ("--num-attention-heads", "8"), ("--position-embedding-type", "rope"),
        ("--rotary-base", "10000"),
    }  # fmt: skip
    assert not refused


def test_heads_of_another_width_windows_and_norms() -> None:
    options, refused = attention(head_dim=64, qk_norm="head", sliding_window=128)
    assert {("--kv-channels", "64"), ("--qk-layernorm",), ("--window-size", "127,0")} <= options
    assert not refused


@pytest.mark.parametrize(
    ("rotary", "option"),
    [
        ({"size": 16}, ("--rotary-percent", "0.5")),
        ({"interleaved": True}, ("--rotary-interleaved",)),
        ({"scaling": "linear", "factor": 4}, ("--rotary-seq-len-interpolation-factor", "4")),
        ({"scaling": "llama3", "factor": 32}, ("--rope-scaling-factor", "32")),
    ],
)
def test_rotations(rotary: dict[str, Any], option: tuple[str, ...]) -> None:
    options, refused = attention(rotary=RotaryPositions(base=10000, **rotary))
    assert option in options
    assert not refused


@pytest.mark.parametrize(
    "changes",
    [
        {"sinks": True}, {"alibi": True}, {"softcap": 50.0}, {"gated": True}, {"causal": False},
        {"qk_norm": "width"}, {"chunked": True, "sliding_window": 64}, {"scale": 0.5},
        {"clip": 8.0}, {"rotary": RotaryPositions(base=10000, scaling="yarn", factor=4)},
        {"rotary": RotaryPositions(base=10000.5)},
        {"rotary": RotaryPositions(base=1e4, scaling="llama3", factor=8, high_freq_factor=8)},
    ],
)  # fmt: skip
def test_what_it_cannot_say_is_refused(changes: dict[str, Any]) -> None:
    assert attention(**changes)[1]


def test_core_09_scales_rotations_by_8_alone() -> None:
    eight = RotaryPositions(base=10000, scaling="llama3", factor=8)
    options, refused = attention("core_r0.9.0", rotary=eight)
    assert ("--use-rope-scaling",) in options
    assert not refused
    assert attention("core_r0.9.0", rotary=eight.model_copy(update={"factor": 32.0}))[1]


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"activation": "silu"}, "--swiglu"),
        ({"activation": "gelu", "gated": False}, "--no-bias-gelu-fusion"),
        ({"activation": "relu_squared", "gated": False}, "--squared-relu"),
        ({"activation": "gelu_quick"}, "--quick-geglu"),
    ],
)
def test_activations(changes: dict[str, Any], flag: str) -> None:
    options, refused = mlp({}, **changes)
    assert (flag,) in options
    assert not refused
    assert mlp({}, activation="relu", gated=False)[1]


def test_biases_everywhere_on_inputs_or_nowhere() -> None:
    everywhere = {"qkv_bias": True, "output_bias": True}
    assert not any("bias-linear" in option[0] for option in mlp(everywhere, bias=True)[0])
    options, refused = mlp({"qkv_bias": True})
    assert {("--disable-bias-linear",), ("--add-qkv-bias",)} <= options
    assert not refused
    assert mlp(everywhere)[1]
    assert mlp({}, bias=True)[1]
