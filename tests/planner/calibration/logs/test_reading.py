"""The one form of all logs."""

from __future__ import annotations

from shardwright.planner.calibration.logs.reading import (
    LoggedMemory,
    LoggedStep,
    LogReading,
    Notes,
)


def test_lists_hold_what_was_printed() -> None:
    steps = (LoggedStep(iteration=1, time_s=2.0, global_batch=8, loss=1.0), LoggedStep(iteration=2))
    log = LogReading("x", "nemo", steps, (LoggedMemory("reserved", 5.0),))
    assert log.iterations == (1, 2)
    assert log.step_times_s == (2.0,)
    assert log.global_batches == (8,)
    assert log.losses == (1.0,)
    assert log.memory_bytes("reserved") == (5.0,)
    assert log.memory_bytes("allocated") == ()


def test_a_step_is_ordered_by_what_grows() -> None:
    assert LoggedStep(iteration=3, order=19).number == 19
    assert LoggedStep(iteration=3).number == 3


def test_a_configuration_alone_measures_nothing() -> None:
    notes = Notes()
    notes.stated["tp"] = 4
    assert notes.measured_nothing()
    assert not notes.add("nemo")
    assert notes.measured_nothing()
    assert notes.add("nemo", LoggedStep())
    assert not notes.measured_nothing()
