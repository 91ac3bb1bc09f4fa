"""Software stacks of the catalogue: facts with sources, and few numbers each."""

from __future__ import annotations

import pytest

from shardwright.cost_models.stacks.parameters import STACK_PARAMETERS
from shardwright.hardware_profiles.profile import HardwareProfile, Parameter
from shardwright.hardware_profiles.resolve import resolve_cluster
from shardwright.hardware_profiles.stacks import (
    GENERIC,
    Fitted,
    FittedBand,
    defaults_of,
    device_key,
    fitted,
    framework_of_run,
    is_known,
    list_stacks,
    priors,
    stack_facts,
    stack_parameters,
)
from shardwright.specs import SoftwareSpec

H100 = resolve_cluster("dgx-h100:1")


@pytest.mark.parametrize("name", list_stacks())
class TestFacts:
    def test_every_stack_says_what_it_is_and_who_says_so(self, name: str) -> None:
        facts = stack_facts(name)
        assert facts.name == facts.software.framework == name
        assert len(facts.description) > 20
        assert len(facts.source) > 10

    def test_readers_of_runs_get_fields_of_software_and_defaults(self, name: str) -> None:
        found = defaults_of(name)
        facts = stack_facts(name)
        assert found["attention_kernel"] == facts.software.attention_kernel
        assert found.get("zero") == facts.defaults.zero
        assert "framework" not in found


def test_software_that_is_not_listed_does_what_is_customary() -> None:
    assert stack_facts("unheard of") == stack_facts(GENERIC) == stack_facts(None)


def test_a_gradient_dtype_belongs_to_a_precision() -> None:
    assert defaults_of("megatron-lm-2021", "fp16")["gradient_dtype"] == "fp16"
    assert "gradient_dtype" not in defaults_of("megatron-lm-2021", "bf16")
    with pytest.raises(ValueError, match="int3"):
        defaults_of("megatron-lm-2021", "int3")


class TestNumbers:
    def test_no_stack_has_more_than_six(self) -> None:
        assert len(STACK_PARAMETERS) <= 6
        for name, values in fitted().stacks.items():
            assert set(values) <= set(STACK_PARAMETERS), name

    def test_nothing_is_kept_by_model_or_by_run(self) -> None:
        assert fitted().layers == {}
        kernels = fitted().kernels
        assert len(kernels) <= 12
        assert not any(name.startswith(("layer.", "stack.")) for name in kernels)

    def test_stacks_with_numbers_have_facts(self) -> None:
        assert set(fitted().stacks) <= set(list_stacks())
        assert set(fitted().stacks) == {name for name in list_stacks() if is_known(name)}

    def test_every_parameter_has_a_prior_with_its_source(self) -> None:
        by_scope: dict[str, set[str]] = {}
        for one in priors():
            by_scope.setdefault(one.scope, set()).add(one.name)
            assert len(one.source) > 10, one.name
            assert not one.is_fraction or one.centre < 1
        assert by_scope["stack"] == set(STACK_PARAMETERS) == set(fitted().population)
        assert by_scope["device"] == {"clock.sustained_ratio"}
        assert by_scope["all"] <= set(fitted().kernels)

    def test_bands_surround_one_and_widen_with_what_is_not_known(self) -> None:
        bands = (fitted().band_seen, fitted().band_unseen, fitted().band_unmeasured)
        assert all(band.low < 1 < band.high for band in bands)
        widths = [band.high / band.low for band in bands]
        assert widths == sorted(widths)


def known(**changes: object) -> Fitted:
    base = fitted().model_dump() | {
        "stacks": {"one": {"stack.compute_ratio": 1.23}},
        "clocks": {"h100-sxm5-80gb": 0.77},
        "clock_population": (0.9, 0.08),
    }
    return Fitted.model_validate(base | changes)


class TestParameters:
    def test_a_stack_has_its_own_and_the_population_for_the_rest(self) -> None:
        found = stack_parameters("one", H100, known())
        assert found["stack.compute_ratio"] == 1.23
        for name in STACK_PARAMETERS[1:]:
            assert found[name] == known().population[name][0]

    @pytest.mark.parametrize("name", ["unheard of", None])
    def test_an_unknown_stack_is_the_population(self, name: str | None) -> None:
        found = stack_parameters(name, H100, known())
        assert {n: found[n] for n in STACK_PARAMETERS} == {
            n: centre for n, (centre, _) in known().population.items()
        }

    def test_clocks_are_the_devices_own_or_the_populations(self) -> None:
        assert stack_parameters(None, H100, known())["clock.sustained_ratio"] == 0.77
        a100 = resolve_cluster("dgx-a100-80gb:1")
        assert stack_parameters(None, a100, known())["clock.sustained_ratio"] == 0.9

    def test_a_devices_own_numbers_win(self) -> None:
        profile = with_parameter("memory_bandwidth_efficiency", 0.5)
        assert stack_parameters("one", profile, known())["memory_bandwidth_efficiency"] == 0.5

    def test_numbers_of_software_count_for_the_stack_they_were_calibrated_on(self) -> None:
        plain = with_parameter("stack.compute_ratio", 2.5)
        calibrated = plain.model_copy(update={"software": SoftwareSpec(framework="one")})
        assert stack_parameters("one", calibrated, known())["stack.compute_ratio"] == 2.5
        assert stack_parameters("one", plain, known())["stack.compute_ratio"] == 1.23
        other = stack_parameters("other", calibrated, known())
        assert other["stack.compute_ratio"] == known().population["stack.compute_ratio"][0]

    def test_a_profiles_efficiencies_are_there(self) -> None:
        found = stack_parameters(None, H100)
        own = {one.name: one.value for one in H100.parameters if not one.name.startswith("band.")}
        assert {name: found[name] for name in own} == own

    def test_bands_go_by_stack_and_device(self) -> None:
        band = known(band_seen=FittedBand(low=0.8, high=1.1).model_dump())
        profile = with_parameter("band.low_ratio", 0.1)
        assert stack_parameters("one", profile, band)["band.low_ratio"] == 0.8
        unseen = stack_parameters("other", profile, band)
        assert unseen["band.low_ratio"] == band.band_unseen.low
        never_timed = resolve_cluster("mtt-s5000:8x1")
        found = stack_parameters("one", never_timed, band)
        assert found["band.high_ratio"] == band.band_unmeasured.high


def with_parameter(name: str, value: float) -> HardwareProfile:
    more = Parameter(name=name, value=value, unit="1", kind="user", fitted_from="a test")
    return H100.model_copy(update={"parameters": (*H100.parameters, more)})


class TestDeviceKey:
    def test_a_catalogued_part_is_its_slug(self) -> None:
        assert device_key(H100.devices.accelerator) == "h100-sxm5-80gb"

    def test_another_parts_memory_makes_another_key(self) -> None:
        device = H100.devices.accelerator
        near, far = (
            device.model_copy(
                update={"memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s * r}
            )
            for r in (1.02, 0.6)
        )
        assert device_key(near) == "h100-sxm5-80gb"
        assert device_key(far) == "h100-sxm5-80gb@2010GB/s"

    def test_a_device_of_the_users_own_is_its_name(self) -> None:
        own = H100.devices.accelerator.model_copy(update={"name": "my own"})
        assert device_key(own) == "my own"


@pytest.mark.parametrize(
    ("stack", "zero", "found"),
    [("megatron-lm-2021", 3, "deepspeed-zero3-2021"), ("megatron-lm-2021", 0, "megatron-lm-2021"),
     ("megatron-deepspeed", 0, "megatron-deepspeed-2023"),
     ("megatron-deepspeed", 1, "megatron-deepspeed"), ("other", None, "other"), (None, 3, GENERIC)],
)  # fmt: skip
def test_the_framework_of_a_published_run(stack: str | None, zero: int | None, found: str) -> None:
    assert framework_of_run(stack, zero) == found
