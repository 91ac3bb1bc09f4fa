"""Rules 48 and 49."""

from __future__ import annotations

from tests.planner.exporters.megatron.commands import EXPERTS, broken

FP8 = ("--fp8-format hybrid", "--fp8-recipe tensorwise")


def test_48_formats_that_exclude_each_other() -> None:
    assert broken("--fp16") == {48}
    assert broken(*FP8) == set()
    assert broken(*FP8, "--fp4-format e2m1") == {48}
    assert broken(*FP8, "--fp8-param-gather") == {48}
    assert broken(*FP8, "--fp8-param-gather", "--use-distributed-optimizer") == set()
    assert broken("--fp4-param-gather") == {48}
    ends = "--first-last-layers-bf16"
    assert broken(*FP8, ends) == set()
    assert broken("--fp8-format hybrid", ends) == {48}
    assert broken(*FP8, ends, "--num-layers-at-start-in-bf16 7") == {48}
    assert broken(*FP8, "--fp8-output-proj") == {48}
    assert broken("--fp32-residual-connection", without=("--bf16",)) == {48}
    assert broken("--fp16", base=EXPERTS, without=("--bf16",)) == {48}


def test_49_fused_loss_and_blocks_of_rows() -> None:
    assert broken("--cross-entropy-fusion-impl te") == {49}
    assert broken(*FP8, "--seq-length 4088") == {49}, "2,044 tokens of a rank"
    assert broken("--fp8-format e4m3", "--fp8-recipe mxfp8", "--seq-length 4064") == {49}
    assert broken(*FP8, "--seq-length 4064") == set(), "2,032 = 16 x 127"
