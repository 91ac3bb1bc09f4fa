"""Every sample is read as it must be; what is none gives one clear line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shardwright.planner.calibration.logs.reading import LogReading, MemoryKind
from shardwright.planner.calibration.logs.recognise import read_log, read_log_text
from shardwright.specs import InputError
from tests.planner.calibration.logs.samples import NAMES, fixture, sample

GIB, MIB = 2**30, 2**20


def _memory(kind: MemoryKind, unit: float) -> Callable[[LogReading], Sequence[float]]:
    return lambda log: [size / unit for size in log.memory_bytes(kind)]


def _printed_memory(kind: MemoryKind) -> Callable[[LogReading], Sequence[float]]:
    return lambda log: [float(one.text or "nan") for one in log.memory if one.kind == kind]


def _steps(field: str, scale: float = 1.0) -> Callable[[LogReading], Sequence[float]]:
    def read(log: LogReading) -> list[float]:
        values = [getattr(step, field) for step in log.steps]
        return [value * scale for value in values if value is not None]

    return read


def _timer(name: str) -> Callable[[LogReading], Sequence[float]]:
    return lambda log: [timers[name] * 1e3 for timers in log.timers]


READ: Mapping[str, Callable[[LogReading], Any]] = {
    "step_times_s": lambda log: log.step_times_s,
    "iterations": lambda log: log.iterations,
    "global_batch": lambda log: log.global_batches,
    "loss": lambda log: log.losses,
    "samples_per_s": lambda log: log.samples_per_s,
    "train_runtime_s": lambda log: log.runtimes_s,
    "tflops_per_gpu": _steps("flops_per_s_per_gpu", 1e-12),
    "mfu_percent": _steps("mfu_fraction", 100),
    "tokens_per_s_total": _steps("tokens_per_s"),
    "tokens_per_s_per_gpu": _steps("tokens_per_s_per_gpu"),
    "memory_mb_allocated": _memory("allocated", MIB),
    "memory_mb_max_allocated": _memory("max_allocated", MIB),
    "memory_mb_max_reserved": _memory("max_reserved", MIB),
    "memory_gb_allocated": _printed_memory("allocated"),
    "memory_gb_max_allocated": _printed_memory("max_allocated"),
    "memory_gib": _memory("max_reserved", GIB),
    "memory_percent": lambda log: [
        one.device_fraction * 100 for one in log.memory if one.device_fraction is not None
    ],
    "forward_microstep_ms": _timer("forward_microstep"),
    "backward_microstep_ms": _timer("backward_microstep"),
}
"""What each word of a sample means of a reading."""
SAME_KIND = {"megatron-fork": "megatron-lm", "other": "nanochat"}


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_read_as_it_must_be(name: str) -> None:
    log, known = sample(name)
    assert log.kind == SAME_KIND.get(known["kind"], known["kind"])
    expected = dict(known["expected"])
    theory = {word: size * MIB for word, size in expected.pop("theoretical_mb", {}).items()}
    assert log.theoretical_bytes == pytest.approx(theory)
    printed = expected.pop("step_times_printed", None)
    assert printed is None or [step.printed for step in log.steps] == printed
    for word, values in expected.items():
        assert list(READ[word](log)) == pytest.approx(values, rel=1e-6), word


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_read_of_a_sample_that_it_does_not_hold(name: str) -> None:
    log, known = sample(name)
    absent = {"step_times_s", "samples_per_s", "train_runtime_s", "mfu_percent"}
    for word in absent - known["expected"].keys():
        assert not READ[word](log), word


class TestNoLog:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "is empty"),
            (b" \n\n", "is empty"),
            (b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 8, "is no text"),
            (b"\x1f\x8b\x08\x00rest", "is packed (gzip)"),
            (b"Hello\nworld\n", "no line of"),
            (b" iteration   10/ 100 | consumed samples: 40 | elapsed time per iter", "no line of"),
            (b"{'eval_loss': 2.0, 'epoch': 1.0}\n", "no line of"),
        ],
    )
    def test_one_clear_line(self, tmp_path: Path, content: bytes, words: str) -> None:
        path = tmp_path / "x.log"
        path.write_bytes(content)
        with pytest.raises(InputError) as error:
            read_log(path)
        assert words in str(error.value)
        assert "\n" not in str(error.value)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there is no log"):
            read_log(tmp_path / "x.log")
        with pytest.raises(InputError, match="cannot read"):
            read_log(tmp_path)

    def test_two_trainings_in_one_file(self) -> None:
        text = (
            " iteration 10/ 100 | elapsed time per iteration (ms): 12.5 | lm loss: 1.0 |\n"
            "step 00004/21400 (0.35%) | loss: 8.8 | dt: 989.44ms | tok/sec: 529,882 |\n"
        )
        with pytest.raises(InputError, match="2 kinds: megatron-lm, nanochat"):
            read_log_text(text)

    def test_an_empty_text(self) -> None:
        with pytest.raises(InputError, match="is empty"):
            read_log_text(" \n")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bridge_step_time.log", "megatron-bridge"), ("deepspeed_pipeline.log", "deepspeed"),
        ("gpt_neox.log", "gpt-neox"), ("hf_progress.log", "hf-trainer"),
        ("megatron_core_arguments.log", "megatron-lm"), ("nemo_flops.log", "nemo"),
        ("megatron_deepspeed_tgs.log", "megatron-deepspeed"), ("mindspeed_npu.log", "megatron-lm"),
        ("shardwright_run.log", "shardwright"), ("torchtitan_2025.log", "torchtitan"),
        ("trainer_state.json", "hf-trainer"),
    ],
)  # fmt: skip
def test_the_software_is_recognised(name: str, kind: str) -> None:
    assert fixture(name).kind == kind


def test_a_trainer_s_own_steps_win_over_those_beneath() -> None:
    log = fixture("megatron_deepspeed_tgs.log")
    assert log.iterations == (199, 200)
    assert len(log.memory_bytes("max_allocated")) == 2


def test_a_saved_state_is_read_like_the_lines_that_it_printed() -> None:
    log = fixture("trainer_state.json")
    assert log.losses == (2.5, 2.4)
    assert log.iterations == (10, 20)
    assert log.runtimes_s == (50.0,)


def test_rates_of_flops_have_a_named_convention() -> None:
    assert "6 N + 12 l h q s" in (fixture("torchtitan_2025.log").flops_convention or "")
    assert fixture("shardwright_run.log").flops_convention is None
