"""What was learned goes into the profile with its origin, and nothing else changes."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.stacks import fitted, stack_parameters
from shardwright.planner.calibration.learn import learn
from shardwright.planner.calibration.profile import calibrated_profile
from shardwright.specs import SoftwareSpec
from tests.planner.calibration import hidden


@pytest.fixture(scope="module")
def made() -> HardwareProfile:
    lesson = learn(hidden.runs(hidden.TAUGHT[:2]))
    return calibrated_profile(
        hidden.cluster(), lesson, hidden.SOFTWARE, sources=["a.json", "b"], command="typed"
    )


def test_every_learned_number_states_where_it_is_from(made: HardwareProfile) -> None:
    known = {p.name: p for p in made.parameters}
    for name in hidden.HIDDEN:
        assert known[name].kind == "derived"
        assert known[name].spread is not None
        assert "2 runs of generic: a.json, b" in known[name].fitted_from
    assert "published runs" in known["band.low_ratio"].fitted_from
    assert len(known) == len(made.parameters)


def test_the_rest_stays(made: HardwareProfile) -> None:
    base = hidden.cluster()
    assert made.devices == base.devices
    assert made.provenance.host == base.provenance.host
    assert made.provenance.command == "typed"
    assert made.provenance.software.keys() == {"shardwright"}
    learned = ("stack.", "clock.", "layer.", "band.")
    kept = [p for p in base.parameters if not p.name.startswith(learned)]
    assert [p for p in made.parameters if not p.name.startswith(learned)] == kept


def test_it_round_trips_with_its_software(made: HardwareProfile) -> None:
    again = HardwareProfile.from_json(made.to_json())
    assert again == made
    assert again.software == hidden.SOFTWARE


def test_its_software_s_numbers_are_for_that_software_alone(made: HardwareProfile) -> None:
    own, other = stack_parameters("generic", made), stack_parameters("torchtitan", made)
    assert own["stack.compute_ratio"] == made.parameter("stack.compute_ratio")
    assert own["band.low_ratio"] == made.parameter("band.low_ratio")
    assert other["stack.compute_ratio"] == fitted().stacks["torchtitan"]["stack.compute_ratio"]
    assert other["band.low_ratio"] == fitted().band_seen.low
    assert not any(name.startswith("layer.") for name in other)
    assert own["clock.sustained_ratio"] == other["clock.sustained_ratio"]


def test_another_software_takes_the_place_of_the_first(made: HardwareProfile) -> None:
    software = SoftwareSpec(framework="torchtitan")
    lesson = learn(hidden.runs(hidden.TAUGHT[5:6], software=software))
    assert lesson.stack == "torchtitan"
    again = calibrated_profile(made, lesson, software, sources=["c"])
    assert again.software == software
    layers = [p.name for p in again.parameters if p.name.startswith("layer.")]
    assert layers == list(lesson.layers)
    assert (
        "1 run of torchtitan: c"
        in {p.name: p for p in again.parameters}["stack.host_s"].fitted_from
    )
