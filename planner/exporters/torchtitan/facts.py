"""What torchtitan calls things, for reading and writing its configuration.

Read from release 0.2.2: ``torchtitan/config/job_config.py``, ``distributed/parallel_dims.py``,
``distributed/pipeline_parallel.py``, ``models/*/__init__.py``. Releases from 0.3.0 on are
configured in Python and read no TOML.
"""

from __future__ import annotations

from shardwright.specs import ScheduleName

VERSIONS = ("0.2.2", "0.2.1", "0.2.0")
"""Releases whose TOML has the fields that are written; the newest first."""

SCHEDULES: dict[ScheduleName, str] = {
    ScheduleName.GPIPE: "GPipe",
    ScheduleName.ONE_F_ONE_B: "1F1B",
    ScheduleName.INTERLEAVED: "Interleaved1F1B",
    ScheduleName.ZB_V: "ZBVZeroBubble",
    ScheduleName.DUALPIPE_V: "DualPipeV",
}

CP_METHODS = {"all_gather": "allgather", "ring": "alltoall"}
"""``context_parallel_rotate_method``: all pieces at once, or passed from rank to rank."""

FLAVORS: dict[tuple[str, str], str] = {
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "1.7B"): "qwen3-1.7b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "14B"): "qwen3-14b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("llama4", "17bx16e"): "llama-4-scout",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
"""The model and flavor of a configuration by the preset that has its sizes."""

MODULE = "planned_model"
"""Of the file that defines a model with sizes of its own; ``experimental.custom_import``."""
MODEL_NAME, FLAVOR = "planned", "plan"
"""Under which that file registers it."""
