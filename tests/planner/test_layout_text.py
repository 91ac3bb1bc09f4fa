"""The text of layouts."""

from __future__ import annotations

import pytest

from shardwright.planner.layout_text import (
    NAMES,
    normalise_choices,
    parse_choices,
    recompute_from,
    recompute_text,
)
from shardwright.specs import InputError, Recompute


def test_text_becomes_names_and_values() -> None:
    text = "tp=8, pp=2,sp=on,mb=4,zero=3,recompute=full,schedule=gpipe,stages=0-5/5-10"
    assert parse_choices(text) == {
        "tp": 8, "pp": 2, "sequence_parallel": True, "micro_batch": 4, "zero": 3,
        "recompute": "full", "schedule": "gpipe", "stages": (5, 10),
    }  # fmt: skip


EVERY_NAME = {
    "tp": (2, 2), "cp": (2, 2), "cp_kind": ("all_gather", "all_gather"), "pp": (4, 4),
    "vpp": (2, 2), "dp": (2, 2), "ep": (2, 2), "etp": (2, 2), "micro_batch": (2, 2),
    "num_microbatches": (8, 8), "zero": (2, 2), "zero_shard_degree": (8, 8),
    "expert_zero_shard_degree": (8, 8), "reshard_after_forward": ("off", False),
    "sequence_parallel": ("yes", True), "compile": ("on", True), "loss_chunks": (8, 8),
    "recompute": ("selective:act+core_attn", "selective:core_attn+mlp_act"),
    "offload": ("parameters+optimizer", "optimizer+parameters"), "schedule": ("zb-v", "zb-v"),
    "rank_order": ("tp-cp-pp-dp", "tp-cp-pp-dp"), "stages": ("0-2/2-4", (2, 4)),
}  # fmt: skip


def test_every_name_is_read() -> None:
    assert set(EVERY_NAME) == set(NAMES)
    text = ",".join(f"{name}={given}" for name, (given, _) in EVERY_NAME.items())
    assert parse_choices(text) == {name: read for name, (_, read) in EVERY_NAME.items()}
    assert normalise_choices(parse_choices(text)) == parse_choices(text)


def test_recomputation_is_one_policy_or_one_for_each_stage() -> None:
    text = "full:2/none/selective/selective:norm+mlp"
    entries = recompute_from(text, 4)
    assert entries[0] == Recompute(policy="full", num_layers=2)
    assert entries[2] == Recompute(policy="selective")
    assert entries[3] == Recompute(policy="selective", modules=("norm", "mlp"))
    assert recompute_text(entries) == "full:2/none/selective/selective:norm+mlp"
    assert recompute_from("full", 3) == (Recompute(policy="full"),) * 3
    with pytest.raises(InputError, match="names 4 stages, but the layout has 3"):
        recompute_from(text, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "name=value"),
        ("tpp=8", "choose one of .*tp"),
        ("micro_bach=2", "micro_batch"),
        ("tp=0", "not a count"),
        ("tp=-2", "not a count"),
        ("tp=two", "not a count"),
        ("tp=²", "not a count"),
        ("tp=2,tp=4", "2 times"),
        ("sp=on,sequence_parallel=off", "2 times"),
        ("zero=4", "0, 1, 2, 3"),
        ("recompute=some", "none, full"),
        ("schedule=zb", "zb-h1"),
        ("sp=maybe", "true"),
        ("recompute=selective:core_atn", "core_attn"),
        ("recompute=full:0", "full:LAYERS"),
        ("recompute=full:x", "full:LAYERS"),
        ("offload=optimiser", "optimizer"),
        ("cp_kind=rings", "ring, all_to_all"),
        ("rank_order=tp-pp", "tp-cp-dp-pp"),
        ("expert_zero_shard_degree=0", "not a count"),
        ("stages=5", "0-5/5-10"),
        ("stages=0-5/6-10", "does not cover"),
        ("stages=1-5", "does not cover"),
        ("stages=0-5/5-3", "does not cover"),
    ],
)
def test_bad_text_is_refused_with_what_would_do(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_choices(text)
