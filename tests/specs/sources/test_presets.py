"""Presets have the parameters that their publishers count."""

from __future__ import annotations

import pytest

from shardwright.specs.sources import list_presets, preset
from shardwright.specs.sources.presets import find_preset

# From the model cards and papers, written here once more and not read from the presets.
KNOWN = {
    "bert-base-uncased": 109_482_240,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gpt-oss-120b": 116_829_156_672,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-3-175b": 174_604_259_328,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llava-1.5-7b": 7_063_427_072,
    "mamba2-2.7b": 2_702_599_680,
    "mixtral-8x22b": 140_630_071_296,
    "mistral-7b": 7_241_732_096,
    "qwen3-32b": 32_762_123_264,
    "qwen2.5-7b": 7_615_616_512,
    "smollm2-135m": 134_515_008,
    "t5-11b": 11_307_321_344,
    "tinyllama-1.1b": 1_100_048_384,
}


@pytest.mark.parametrize("slug", KNOWN)
def test_known_counts(slug: str) -> None:
    assert preset(slug).read().spec.num_parameters == KNOWN[slug]


@pytest.mark.parametrize("slug", list_presets())
def test_every_preset_reads_and_counts_as_published(slug: str) -> None:
    known = preset(slug)
    spec = known.read().spec
    assert (known.slug, spec.name) == (slug, slug)
    if known.published_parameters is not None:
        assert spec.num_parameters == known.published_parameters


def test_names_are_unique_and_found_in_any_case() -> None:
    presets = [preset(slug) for slug in list_presets()]
    names = [name.lower() for one in presets for name in {one.slug, *one.hub_ids}]
    assert len(names) == len(set(names)) > 60
    for one in presets:
        for name in (one.slug, *one.hub_ids):
            assert find_preset(f" {name.upper()} ") is one
    assert find_preset("llama-9") is None
