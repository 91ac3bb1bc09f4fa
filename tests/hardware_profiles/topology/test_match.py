"""Names as drivers print them, and the catalogue's entries."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.topology.match import match_accelerator, nearest_slugs


@pytest.mark.parametrize(
    ("name", "memory_mib", "slug"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-sxm4-80gb"),
        ("A100-SXM-80GB", None, "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", 81559, "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl-94gb"),
        ("NVIDIA H200", 143771, "h200-sxm5-141gb"),
        ("NVIDIA H200 NVL", 143771, "h200-nvl-141gb"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96gb"),
        ("NVIDIA GB200", 189471, "gb200-186gb"),
        ("NVIDIA B300 SXM6 AC", 275040, "b300-sxm-288gb"),
        ("Tesla V100-SXM2-16GB", 16160, "v100-sxm2-16gb"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090-24gb"),
        ("NVIDIA L40S", 46068, "l40s-48gb"),
        ("NVIDIA A10G", 23028, "a10g-24gb"),
        ("NVIDIA RTX A6000", 49140, "rtx-a6000-48gb"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada-48gb"),
        ("AMD Instinct MI300X OAM", 196592, "mi300x-192gb"),
        ("MTT S5000", 81920, "mtt-s5000-80gb"),
        ("910B3", 65536, "ascend-910b-64gb"),
        ("Ascend910B2C", 65536, "ascend-910b-64gb"),
        ("nvidia_h100_80gb_hbm3", None, "h100-sxm5-80gb"),
    ],
)
def test_names_that_are_certain(name: str, memory_mib: int | None, slug: str) -> None:
    match = match_accelerator(name, memory_mib and memory_mib * 2**20)
    assert match is not None
    assert (match.entry.slug, match.doubts) == (slug, ())


@pytest.mark.parametrize(
    ("name", "memory_mib", "slug", "doubt"),
    [
        ("a100", None, "a100-sxm4-40gb", "may be any of a100-pcie-40gb"),
        ("Tesla V100-PCIE-32GB", 32510, "v100-sxm2-32gb", "no pcie form"),
        ("910B4", 32768, "ascend-910b-64gb", "reports 32.0 GiB"),
        ("NVIDIA H20-3e", 143771, "h20-96gb", "reports 140.4 GiB"),
    ],
)
def test_guesses_say_so(name: str, memory_mib: int | None, slug: str, doubt: str) -> None:
    match = match_accelerator(name, memory_mib and memory_mib * 2**20)
    assert match is not None
    assert match.entry.slug == slug
    assert match.is_guess
    assert any(doubt in words for words in match.doubts)


@pytest.mark.parametrize(
    "name", ["MetaX C500", "NVIDIA L40", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "unheard-of"]
)
def test_others_match_nothing(name: str) -> None:
    assert match_accelerator(name) is None


def test_the_nearest_are_offered() -> None:
    assert "l40s-48gb" in nearest_slugs("L40-48GB")
