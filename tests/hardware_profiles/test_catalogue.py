"""The catalogue's facts, and the traps that they avoid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.hardware_profiles import catalogue
from shardwright.hardware_profiles.catalogue import Fact
from shardwright.specs import InputError, NodeGroup
from shardwright.specs.units import parse

DATA = Path(catalogue.__file__).parent / "catalogue_data"
FACT_UNITS = {
    "h",
    "min",
    "s",
    "GB",
    "GiB",
    "GB/s",
    "Gbit/s",
    "TFLOP/s",
    "W",
    "kW",
    "count",
    "us",
    "USD per GPU hour",
}
PRICED_BY = {
    "matmul_tile_m", "matmul_tile_n", "attention_efficiency.forward",
    "attention_efficiency.backward", "memory_bandwidth_efficiency", "launch_overhead_s",
    "collective_efficiency.intra_node", "collective_efficiency.inter_node",
    "collective_latency.base_s", "collective_latency.intra_node_s",
    "collective_latency.inter_node_s", "memory.context_bytes", "band.low_ratio", "band.high_ratio",
}  # fmt: skip


def parameters(group: NodeGroup) -> dict[str, float]:
    return {parameter.name: parameter.value for parameter in catalogue.parameters_for(group)}


def facts_in(value: object) -> list[Fact]:
    """Every number with a unit in a data file."""
    if isinstance(value, dict):
        if "unit" in value and "source" in value:
            return [Fact.from_value(value)]
        return [fact for item in value.values() for fact in facts_in(item)]
    return []


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.json")), ids=lambda path: path.name)
def test_no_number_without_unit_kind_and_source(path: Path) -> None:
    for fact in facts_in(json.loads(path.read_text())):
        assert fact.unit in FACT_UNITS
        assert fact.value > 0
        assert fact.source.strip()


@pytest.mark.parametrize("slug", catalogue.list_accelerators())
def test_accelerators(slug: str) -> None:
    entry, spec = catalogue.accelerator_entry(slug), catalogue.accelerator(slug)
    assert (entry.slug, spec.name) == (slug, slug)
    assert spec.usable_memory_bytes == spec.memory_bytes - catalogue.context_bytes()
    # A vendor's GB is 1e9 or 2**30 bytes, and error correction takes up to a sixteenth of GDDR.
    stated = entry.memory.value
    assert stated * 1e9 * 15 / 16 <= spec.memory_bytes <= stated * 2**30
    assert spec.peak_flops_per_s
    assert all(rate > 1e12 for rate in spec.peak_flops_per_s.values())


@pytest.mark.parametrize("slug", catalogue.list_nodes())
def test_nodes_have_all_that_pricing_reads(slug: str) -> None:
    group = catalogue.node(slug)
    assert (group.name, group.num_nodes) == (slug, 1)
    found = parameters(group)
    needed = {f"matmul_efficiency.{dtype}" for dtype in group.accelerator.peak_flops_per_s}
    assert found.keys() >= PRICED_BY | needed
    assert all(0 < found[name] <= 1 for name in found if "efficiency" in name)
    assert ("in_switch_all_reduce.gain" in found) == ("in_switch_all_reduce.min_ranks" in found)


def test_dense_rates_not_sparse_ones() -> None:
    rates = catalogue.accelerator("h100-sxm5-80gb").peak_flops_per_s
    assert (rates["bf16"], rates["fp8"]) == (989e12, 1979e12)
    assert catalogue.accelerator("l4-24gb").peak_flops_per_s["bf16"] == 121e12


def test_links_count_one_direction() -> None:
    group = catalogue.node("dgx-h100")
    assert group.intra_node.bandwidth_bytes_per_s == 450e9
    assert group.inter_node is not None
    assert group.inter_node.bandwidth_bytes_per_s == 50e9
    assert group.intra_node.pair_bandwidth_bytes_per_s is None


def test_one_peer_of_a_mesh_gets_one_link() -> None:
    mesh = catalogue.node("hgx-mi300x").intra_node
    assert (mesh.bandwidth_bytes_per_s, mesh.pair_bandwidth_bytes_per_s) == (448e9, 64e9)


def test_memory_is_what_the_device_reports() -> None:
    assert catalogue.accelerator("h100-sxm5-80gb").memory_bytes == int(79.11 * 2**30)
    assert catalogue.accelerator("b300-sxm-288gb").memory_bytes == int(276.6 * 2**30)


def test_a_package_of_two_dies_is_two_devices() -> None:
    die = catalogue.accelerator("mi250x-gcd-64gb")
    assert die.peak_flops_per_s["bf16"] == 191.5e12
    assert catalogue.node("ornl-frontier").devices_per_node == 8


def test_a_rack_is_one_scale_up_domain_of_trays() -> None:
    tray = catalogue.node("gb200-nvl72")
    assert (tray.devices_per_node, tray.scale_up_domain_gpus) == (4, 72)


def test_devices_share_what_adapters_there_are() -> None:
    group = catalogue.node("aws-p4d.24xlarge")
    assert group.inter_node is not None
    assert group.inter_node.bandwidth_bytes_per_s == 12.5e9
    (adapters,) = group.shared_resources
    assert (adapters.kind, adapters.capacity, adapters.ranks) == ("nic", 4, 8)
    assert catalogue.node("aws-p5.48xlarge").shared_resources == ()


def test_the_most_specific_parameter_wins() -> None:
    p5, a3 = catalogue.node("aws-p5.48xlarge"), catalogue.node("gcp-a3-highgpu-8g")
    name = "collective_efficiency.inter_node"
    by_tier, by_node = parameters(p5)[name], parameters(a3)[name]
    by_default = parameters(catalogue.node("dgx-h100"))[name]
    assert len({by_tier, by_node, by_default}) == 3
    # The tier rule of pcie speaks of links inside a node, whatever joins the nodes.
    inside = "collective_efficiency.intra_node"
    assert parameters(catalogue.node("aws-g5.48xlarge"))[inside] == 0.875


def test_unmeasured_accelerators_borrow_and_say_so() -> None:
    group = catalogue.node("mccx-d800")
    kinds = {parameter.name: parameter.kind for parameter in catalogue.parameters_for(group)}
    assert kinds["matmul_efficiency.bf16"] == "derived"
    assert not catalogue.is_measured("mtt-s4000-48gb")
    assert catalogue.is_measured("h100-sxm5-80gb")


def test_bands_are_wider_where_nothing_was_measured() -> None:
    """Published steps of the A100 with 40 GB were compared; its parts alone were not measured."""
    bands: dict[bool, set[tuple[float, float]]] = {}
    for slug in catalogue.list_accelerators():
        group = catalogue.node("dgx-h100").model_copy(
            update={"name": "own", "accelerator": catalogue.accelerator(slug)}
        )
        known = catalogue.is_measured(slug) or slug == "a100-sxm4-40gb"
        found = parameters(group)
        bands.setdefault(known, set()).add((found["band.low_ratio"], found["band.high_ratio"]))
    ((low, high),), ((lowest, highest),) = bands[True], bands[False]
    assert 0 < lowest < low < 1 < high < highest


def test_bands_are_those_of_the_benchmark() -> None:
    text = (Path(__file__).parents[2] / "benchmarks" / "published_steps.md").read_text()
    for slug, name in (
        ("dgx-h100", "pooled"),
        ("gcp-a3-highgpu-8g", "pooled"),
        ("dgx-2", "widest"),
    ):
        found = parameters(catalogue.node(slug))
        band = f"{found['band.low_ratio']:.3f} .. {found['band.high_ratio']:.3f}"
        assert f"{name} band: {band}\n" in text


def test_prices_are_dated_and_of_known_accelerators() -> None:
    rows = catalogue.prices()
    assert len(rows) > 60
    assert {row.accelerator for row in rows} <= set(catalogue.list_accelerators())
    assert all(row.as_of and row.source for row in rows)
    assert catalogue.node("nebius-h100").usd_per_gpu_hour == 2.95
    assert catalogue.node("dgx-h100").usd_per_gpu_hour is None


@pytest.mark.parametrize(
    ("text", "slug"),
    [("MI300X", "mi300x-192gb"), ("gb200", "gb200-186gb"), ("t4", "t4-16gb"), ("l4", "l4-24gb")],
)
def test_a_beginning_that_only_one_slug_has_is_enough(text: str, slug: str) -> None:
    assert catalogue.accelerator(text).name == slug


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a100-sxm4", "a100-sxm4-40gb, a100-sxm4-80gb"),
        ("h100-sxm5-81gb", "try h100-sxm5-80gb"),
        ("", "the catalogue has no"),
        ("../accelerators/t4-16gb", "the catalogue has no"),
    ],
)
def test_other_names_are_refused_with_the_nearest(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        catalogue.accelerator(text)


@pytest.mark.parametrize(
    ("slug", "devices", "tier", "bandwidth"),
    [
        ("h100-sxm5-80gb", 8, "nvlink", "450 GB/s"),
        ("h100-pcie-80gb", 2, "nvlink", "300 GB/s"),
        ("h100-pcie-80gb", 8, "pcie", "31.5 GB/s"),
        ("l4-24gb", 4, "pcie", "15.5 GB/s"),
        ("mi300x-192gb", 8, "xgmi", "448 GB/s"),
    ],
)
def test_bridges_do_not_reach_a_whole_node(
    slug: str, devices: int, tier: str, bandwidth: str
) -> None:
    links = catalogue.default_links(catalogue.accelerator_entry(slug), devices)
    assert links.name == tier
    assert links.bandwidth_bytes_per_s == parse(bandwidth, "bytes_per_s")


def test_the_weakest_kind_of_knowledge_counts() -> None:
    assert catalogue.weakest(["measured", "datasheet"]) == "datasheet"
    assert catalogue.weakest(["recalled", "derived", "measured"]) == "recalled"


@pytest.mark.parametrize(
    ("slug", "words"),
    [
        ("h100-sxm5-80gb", None),
        ("mtt-s5000-80gb", "datasheet only"),
        ("mi300x-192gb", "datasheet only but for measured matrix products"),
        ("cpu-of-mine", None),
    ],
)
def test_what_is_known_from_datasheets_only_says_so(slug: str, words: str | None) -> None:
    assert catalogue.evidence_in_words(slug) == words


def test_the_vendors_own_network() -> None:
    h100 = catalogue.accelerator_entry("h100-sxm5-80gb")
    tier = catalogue.own_network(h100, 8)
    assert tier is not None
    assert tier.bandwidth_bytes_per_s == 50e9
    assert catalogue.own_network(h100, 3) is None


def test_links_through_the_host() -> None:
    l40s = catalogue.accelerator_entry("l40s-48gb")
    assert catalogue.host_links(l40s).bandwidth_bytes_per_s == 15.5e9
    assert catalogue.host_links(l40s, direct=True).bandwidth_bytes_per_s == 31e9
    with pytest.raises(InputError, match="through their host"):
        catalogue.host_links(catalogue.accelerator_entry("b300-sxm-288gb"))


def test_fp8_of_an_accelerator_is_near_its_own_bf16_and_not_near_that_of_others() -> None:
    """An MI300X reaches half of its peak in bf16; where fp8 was not measured, likewise."""
    for node in ("hgx-mi300x", "hgx-mi355x", "dgx-h200", "dgx-b200"):
        group = catalogue.node(node)
        values = {p.name: p.value for p in catalogue.parameters_for(group)}
        ratio = values["matmul_efficiency.fp8"] / values["matmul_efficiency.bf16"]
        assert 0.85 < ratio < 1.05, node
