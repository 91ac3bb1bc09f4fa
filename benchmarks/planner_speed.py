"""How long a plan takes: whole processes of the command line, timed from outside on one core.

    python -m benchmarks.planner_speed [--growth] [--write]

What the interpreter, the command line and its libraries cost anyway is measured with
``shardwright models`` and taken off. Every problem is planned to the end, and again with 0.3 s:
the step of that answer over the final one says how good the first answers are. ``--growth`` plans
one model on more and more devices, and deeper and deeper ones. ``--write`` writes
``benchmarks/planner_speed.md`` and its plot.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPETITIONS = 3
EARLY_S = 0.3
MOST_S = 60
"""Of a search; one that is not over by then is stated with its gap."""
INFEASIBLE = 3

TEN_TRILLION = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 16384, "num_hidden_layers": 128, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 36864, "moe_intermediate_size": 3072,
    "n_routed_experts": 512, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8,
    "topk_group": 4, "first_k_dense_replace": 3, "moe_layer_freq": 1, "vocab_size": 129280,
    "max_position_embeddings": 163840, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0,
}  # fmt: skip
"""A model of 9.7 trillion parameters that nobody has trained: DeepSeek-V3's kind, larger."""
DENSE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
    "vocab_size": 128256, "max_position_embeddings": 8192, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
"""Llama-3.1-70B but for its layers."""


@dataclass(frozen=True, slots=True)
class Question:
    """A plan that is asked for, and the seconds that are wanted."""

    name: str
    model: str | dict[str, Any]
    options: str
    wanted_s: float | None = None


QUESTIONS = (
    Question("Llama-3.1-70B on 64 H100", "llama-3.1-70b",
             "--cluster dgx-h100 --gpus 64 --global-batch 128 --seq-len 8192", 1),
    Question("GPT-3 175B on 1,024 A100", "gpt-3-175b",
             "--cluster dgx-a100-80gb --gpus 1024 --global-batch 1536 --seq-len 2048", 1),
    Question("Llama-3.1-405B on 16,384 H100", "llama-3.1-405b",
             "--cluster dgx-h100 --gpus 16384 --global-batch 2048 --seq-len 8192", 3),
    Question("DeepSeek-V3 on 2,048 H800", "deepseek-v3",
             "--cluster deepseek-v3-h800 --gpus 2048 --global-batch 15360 --seq-len 4096"
             " --precision fp8-block", 10),
    Question("10T MoE on 100,352 GB200", TEN_TRILLION,
             "--cluster gb200-nvl72 --gpus 100352 --global-batch 12544 --seq-len 8192", 30),
)  # fmt: skip
GPUS = (64, 128, 256, 512, 1024, 2048)
LAYERS = (20, 40, 80, 120, 160)


@dataclass(frozen=True, slots=True)
class Answer:
    """One process and what it said."""

    wall_s: float
    cpu_s: float
    step_s: float
    certificate: dict[str, Any]

    @property
    def num_by_the_rules(self) -> int:
        """Layouts that obey the rules."""
        return int(self.certificate["considered"]) - int(self.certificate["excluded_by_rules"])


def ask(question: Question, folder: Path, limit_s: float) -> Answer:
    """Plan it in a process of its own."""
    model = question.model
    if isinstance(model, dict):
        path = folder / f"{question.name.replace(' ', '-').replace(',', '')}.json"
        path.write_text(json.dumps(model), encoding="utf-8")
        model = str(path)
    command = ["plan", model, *question.options.split(), "--time-limit", str(limit_s), "--json"]
    wall_s, cpu_s, said = _run(command)
    plan = json.loads(said)
    return Answer(wall_s, cpu_s, plan["prediction"]["step_time_s"], plan["certificate"])


def start() -> tuple[float, float]:
    """Wall and CPU seconds of a process that plans nothing: medians."""
    runs = [_run(["models"]) for _ in range(REPETITIONS)]
    return statistics.median(run[0] for run in runs), statistics.median(run[1] for run in runs)


def _run(arguments: Sequence[str]) -> tuple[float, float, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall_s = time.perf_counter() - start_s
    if done.returncode not in (0, INFEASIBLE):
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, done.stdout


def problems(folder: Path) -> Iterator[str]:
    """A row for each problem."""
    base_wall_s, base_cpu_s = start()
    yield f"`shardwright models` alone: {base_wall_s:.2f} s of wall, {base_cpu_s:.2f} s of CPU.\n"
    yield (
        "| problem | layouts by the rules | simulated | gap | wall (s) | CPU (s) | wanted (s) |"
        f" step (s) | after {EARLY_S} s, slower by |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for question in QUESTIONS:
        found, early = ask(question, folder, MOST_S), ask(question, folder, EARLY_S)
        yield (
            f"| {question.name} | {found.num_by_the_rules:,} | {found.certificate['simulated']:,}"
            f" | {found.certificate['gap']:.1%} | {found.wall_s - base_wall_s:.1f}"
            f" | {found.cpu_s - base_cpu_s:.1f} | {question.wanted_s:g} | {found.step_s:.4f}"
            f" | {early.step_s / found.step_s - 1:.1%} ({early.wall_s - base_wall_s:.1f} s) |"
        )


def growth(folder: Path) -> Iterator[tuple[str, int, Answer]]:
    """(what grows, its size, the answer)."""
    for gpus in GPUS:
        options = f"--cluster dgx-h100 --gpus {gpus} --global-batch {2 * gpus} --seq-len 8192"
        yield "devices", gpus, ask(Question("", "llama-3.1-70b", options), folder, MOST_S)
    for layers in LAYERS:
        model = {**DENSE, "num_hidden_layers": layers}
        options = "--cluster dgx-h100 --gpus 256 --global-batch 512 --seq-len 8192"
        yield "layers", layers, ask(Question(f"{layers} layers", model, options), folder, MOST_S)


def plot(rows: Sequence[tuple[str, int, Answer]], what: str) -> str:
    """CPU seconds over size, both logarithmic, as SVG."""
    points = [(size, answer.cpu_s) for name, size, answer in rows if name == what]
    (x0, x1), (y0, y1) = (
        (math.log(min(axis)), math.log(max(axis))) for axis in zip(*points, strict=True)
    )
    dots = [
        (60 + 320 * (math.log(x) - x0) / (x1 - x0), 230 - 190 * (math.log(y) - y0) / (y1 - y0))
        for x, y in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
    labels = "".join(
        f'<text x="{x:.1f}" y="252" text-anchor="middle">{size}</text>'
        f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{seconds:.1f} s</text>'
        for (x, y), (size, seconds) in zip(dots, points, strict=True)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="440" height="290" font-family="sans-serif"'
        f' font-size="11"><polyline points="{line}" fill="none" stroke="#0072b2"/>{labels}'
        f'<text x="220" y="275" text-anchor="middle">{what}</text>'
        '<text x="60" y="16">CPU seconds of a plan (logarithmic)</text></svg>\n'
    )


def main() -> None:
    """Print the tables; with ``--write`` into the folder of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = ["# Planner speed\n", "    python -m benchmarks.planner_speed --growth --write\n"]
    load = os.getloadavg()[0]
    lines.append(
        f"{time.strftime('%Y-%m-%d')}, one process each, one thread, Python"
        f" {sys.version.split()[0]}, {os.cpu_count()} cores, load average {load:.1f}.\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for line in problems(Path(folder)):
            lines.append(line)
            sys.stdout.write(line + "\n")
        if given.growth:
            rows = list(growth(Path(folder)))
            lines += ["", "| what grows | size | layouts by the rules | gap | CPU (s) |",
                      "|---|--:|--:|--:|--:|"]  # fmt: skip
            for what, size, answer in rows:
                lines.append(
                    f"| {what} | {size} | {answer.num_by_the_rules:,}"
                    f" | {answer.certificate['gap']:.1%} | {answer.cpu_s:.1f} |"
                )
                sys.stdout.write(lines[-1] + "\n")
            for what in ("devices", "layers"):
                lines.append(f"\n![CPU seconds over {what}](planner_speed_{what}.svg)")
                if given.write:
                    (HERE / f"planner_speed_{what}.svg").write_text(plot(rows, what))
    if given.write:
        (HERE / "planner_speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
