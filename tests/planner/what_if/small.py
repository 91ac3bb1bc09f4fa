"""Outcomes made by hand, so that tests know every number, and a question that is planned fast."""

from __future__ import annotations

from typing import Any

from shardwright.planner.what_if.points import Outcome, Point

QUICK = Point("gpt2", "dgx-h100", {"gpus": "2", "global_batch": "8"}, fix="vpp=1,cp=1,pp=1")


def planned(
    step_time_s: float = 1.0,
    num_devices: int = 8,
    *,
    model: str = "tiny",
    usd_per_gpu_hour: float | None = 2.0,
    power_watts: float | None = 8000.0,
    tokens_per_step: int = 1000,
    optimal: bool = True,
) -> Outcome:
    rate = None if usd_per_gpu_hour is None else num_devices * usd_per_gpu_hour / 3600
    asked: dict[str, Any] = {
        "model": model, "num_parameters": 10, "layers": 2, "cluster": "box",
        "cluster_in_words": "1 node", "gpus": num_devices, "nodes": 1, "seq_len": 10,
        "global_batch": 100, "tokens_per_step": tokens_per_step, "precision": "bf16",
        "optimizer": "adamw", "trainable": "full", "software": "generic",
    }  # fmt: skip
    return Outcome(
        "planned",
        asked=asked,
        layout={"tp": 1},
        layout_text="micro_batch=1",
        prediction={
            "step_time_s": step_time_s,
            "step_time_band_s": [step_time_s * 0.9, step_time_s * 1.2],
            "tokens_per_s": tokens_per_step / step_time_s,
            "mfu": 0.4,
            "peak_memory_bytes": [2**30, 2**31],
            "memory_capacity_bytes": 2**32,
        },
        certificate={
            "optimal": optimal,
            "gap": 0.0 if optimal else 0.1,
            "considered": 9,
            "excluded_by_rules": 1,
        },
        assumed={"precision": "bf16"},
        rates={
            "num_devices": num_devices,
            "usd_per_s": None if rate is None else [rate / 2, rate, rate * 2],
            "power_watts": power_watts,
        },
        sources={"price": "2 USD per GPU hour (test)", "power": "1000 W (test)"},
    )


def infeasible(reason: str = "100 bytes too many") -> Outcome:
    return Outcome("infeasible", reason=reason, asked=planned().asked)
