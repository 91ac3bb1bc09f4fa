"""Every way to name a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.hardware_profiles import discover
from shardwright.hardware_profiles.discover import cpu_cluster, read_host
from shardwright.hardware_profiles.profile import HardwareProfile
from shardwright.hardware_profiles.resolve import (
    evidence_in_words,
    list_clusters,
    resized,
    resolve_cluster,
)
from shardwright.specs import ClusterSpec, InputError, SoftwareSpec
from tests.specs.small import group, tier


def measured(num_ranks: int) -> HardwareProfile:
    """A profile file's content, as measuring this machine with some ranks would leave it."""
    cluster = cpu_cluster(read_host(), num_ranks)
    return resolve_cluster("dgx-h100").model_copy(
        update={"devices": cluster, "num_ranks": num_ranks}
    )


@pytest.mark.parametrize(
    ("text", "counts", "nodes", "devices"),
    [
        ("dgx-h100", {}, 1, 8),
        ("dgx-h100:16", {}, 16, 8),
        ("DGX-H100", {"gpus": 64}, 8, 8),
        ("dgx-h100", {"nodes": 3}, 3, 8),
        ("dgx-h100", {"gpus": 4}, 1, 4),
        ("dgx-h100:2", {"gpus": 16}, 2, 8),
        ("gb200-nvl72", {"gpus": 72}, 18, 4),
        ("h100-sxm5-80gb:8x16,inter=400GB/s", {}, 16, 8),
        ("l4:4x1", {}, 1, 4),
        ("l4:4x2,inter=200Gbit/s", {"nodes": 2}, 2, 4),
    ],
)
def test_names_and_counts(text: str, counts: dict[str, int], nodes: int, devices: int) -> None:
    profile = resolve_cluster(text, **counts)
    (only,) = profile.devices.groups
    assert (only.num_nodes, only.devices_per_node) == (nodes, devices)
    assert profile.devices.num_devices == nodes * devices
    assert profile.curves == ()
    assert profile.parameter("collective_efficiency.intra_node") > 0


def test_every_listed_cluster_resolves() -> None:
    assert "dgx-a100-80gb" in list_clusters()
    for slug in list_clusters():
        assert resolve_cluster(slug).devices.groups[0].name == slug


def test_part_of_a_node_shares_with_itself_only() -> None:
    (part,) = resolve_cluster("aws-p4d.24xlarge", gpus=2).devices.groups
    assert part.scale_up_domain_gpus == 2
    assert part.shared_resources[0].ranks == 2


def test_inline_options() -> None:
    text = "h100-sxm5-80gb:4x2,memory=64GiB,intra=100GB/s,inter=80GB/s"
    (only,) = resolve_cluster(text).devices.groups
    assert only.accelerator.memory_bytes == 64 * 2**30
    assert only.accelerator.usable_memory_bytes < 64 * 2**30
    assert only.intra_node.bandwidth_bytes_per_s == 100e9
    assert only.inter_node is not None
    assert only.inter_node.bandwidth_bytes_per_s == 20e9  # of 80 per node
    assert (only.intra_node.provenance, only.inter_node.provenance) != ("datasheet", "datasheet")


def test_groups_are_joined_by_a_line() -> None:
    found = resolve_cluster("dgx-a100-80gb:1+a100-sxm4-40gb:4x2,inter=1GB/s,between=10Gbit/s")
    cluster = found.devices
    assert [group.num_devices for group in cluster.groups] == [8, 8]
    assert cluster.between_groups_total_bytes_per_s == 1.25e9
    assert cluster.between_groups is not None
    # A device reaches no more than its own network gives it: a quarter of 1 GB/s.
    assert cluster.between_groups.bandwidth_bytes_per_s == 0.25e9
    assert "1.25 GB/s between them" in cluster.in_words()


def test_groups_without_a_line_meet_on_their_networks() -> None:
    cluster = resolve_cluster("dgx-a100-80gb:1+dgx-1v-32gb:2,latency=1ms").devices
    assert cluster.between_groups_total_bytes_per_s is None
    assert cluster.between_groups is not None
    assert cluster.between_groups.latency_s == 1e-3
    slower = cluster.groups[1].inter_node
    assert slower is not None
    assert cluster.between_groups.bandwidth_bytes_per_s == slower.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a100-sxm4-80gb:8x1+dgx-1v-32gb:1", "nothing is known of what joins"),
        ("dgx-a100-80gb:1+dgx-1v-32gb:1,between=0Gbit/s", "must be positive"),
        ("dgx-a100-80gb:1+nothing:1", "nothing"),
    ],
)
def test_groups_that_cannot_be_joined(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_cluster(text)


def test_an_inline_network_may_be_the_vendors_own() -> None:
    (inline,) = resolve_cluster("h100-sxm5-80gb:8x4").devices.groups
    (own,) = resolve_cluster("dgx-h100:4").devices.groups
    assert inline.inter_node == own.inter_node


@pytest.mark.parametrize(
    ("text", "counts", "message"),
    [
        ("dgx-h100", {"gpus": 12}, "use 8 or 16 devices"),
        ("dgx-h100:2", {"gpus": 12}, "drop one of the two counts"),
        ("dgx-h100:2", {"nodes": 3}, "drop one of the two counts"),
        ("dgx-h100", {"gpus": 8, "nodes": 1}, "give only one of the two"),
        ("dgx-h100", {"gpus": 0}, "gpus = 0"),
        ("dgx-h100", {"nodes": -1}, "nodes = -1"),
        ("dgx-h100:0", {}, "nodes = 0"),
        ("dgx-h101", {}, "try dgx-h100"),
        ("h100-sxm5-80gb", {}, "write h100-sxm5-80gb:8x2"),
        ("mccx-d800:2", {}, "no network between nodes"),
        ("l4:4x2", {}, "inter=100GB/s"),
        ("l4:0x2,inter=1GB/s", {}, "devices per node = 0"),
        ("l4:4x2,speed=1GB/s", {}, "'speed=1GB/s' is not an option"),
        ("l4:4x2,inter", {}, "'inter' is not an option"),
        ("l4:4x2,inter=1GB", {}, "not a quantity in bytes per second"),
        ("l4:4x2,inter=0", {}, "inter=0 must be positive"),
        ("l4:4x1,memory=1MB", {}, "less than a process's context"),
        ("local", {"nodes": 2}, "local is one node"),
        ("absent.json", {}, "there is no cluster or profile file"),
        ("", {}, "no node type ''"),
        ("x" * 5000, {}, "no node type"),
    ],
)
def test_what_names_no_cluster(text: str, counts: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        resolve_cluster(text, **counts)
    assert caught.value.fix


def test_a_cpu_must_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "current_device_type", lambda: "cpu")
    with pytest.raises(InputError, match=r"has not been measured .*shardwright profile -o"):
        resolve_cluster("local")


def test_a_profile_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    profile = measured(4)  # once: the host's free memory changes from call to call
    file.write_text(profile.to_json())
    assert resolve_cluster(str(file)) == profile
    assert resolve_cluster(str(file), gpus=4) == profile
    assert resolve_cluster(str(file), nodes=1) == profile


@pytest.mark.parametrize("counts", [{"gpus": 2}, {"nodes": 2}])
def test_a_profile_holds_for_its_own_ranks(tmp_path: Path, counts: dict[str, Any]) -> None:
    file = tmp_path / "profile.json"
    file.write_text(measured(4).to_json())
    with pytest.raises(InputError, match=r"holds for 4 devices on 1 nodes.*profile again"):
        resolve_cluster(str(file), **counts)


def test_a_profile_without_measurements_may_be_resized(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    profile = resolve_cluster("dgx-h100:2").model_copy(
        update={"software": SoftwareSpec(framework="torchtitan")}
    )
    file.write_text(profile.to_json())
    found = resolve_cluster(str(file), gpus=32)
    assert found.devices.num_devices == 32
    assert (found.parameters, found.software) == (profile.parameters, profile.software)
    assert resolve_cluster(str(file), nodes=2) == profile
    with pytest.raises(InputError, match="use 8 or 16 devices"):
        resolve_cluster(str(file), gpus=12)


def test_a_calibrated_profile_is_more_than_a_data_sheet() -> None:
    sheet = resolve_cluster("mtt-s5000-8gpu")
    assert "datasheet only" in str(evidence_in_words(sheet))
    calibrated = sheet.model_copy(update={"software": SoftwareSpec(framework="generic")})
    assert evidence_in_words(calibrated) is None


def test_a_cluster_file_gets_parameters_and_may_be_resized(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(ClusterSpec(name="toy", groups=(group(2, 4),)).to_json())
    assert resolve_cluster(str(file)).devices.num_devices == 8
    assert resolve_cluster(str(file), nodes=5).devices.num_devices == 20
    assert resolve_cluster(str(file)).parameter("matmul_efficiency.bf16") > 0


def test_a_cluster_of_several_node_types_cannot_be_resized(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    both = ClusterSpec(
        name="mixed", groups=(group(2, 4), group(1, 2)), between_groups=tier("ethernet", 1e9)
    )
    file.write_text(both.to_json())
    assert resolve_cluster(str(file), nodes=3).devices == both
    with pytest.raises(InputError, match="with nodes of several types, holds for 10 devices"):
        resolve_cluster(str(file), gpus=8)


def test_a_cluster_file_may_be_toml(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    spec = group(1, 2).model_copy(update={"inter_node": None})
    lines = ['name = "mine"', "[[groups]]"]
    for name, value in spec.model_dump(mode="json", exclude_none=True).items():
        lines.append(f"{name} = {inline_toml(value)}")
    lines.append('inter_node = { name = "ethernet", bandwidth_bytes_per_s = 1e9, latency_s = 0,'
                 ' provenance = "user", source = "me" }')  # fmt: skip
    file.write_text("\n".join(lines))
    assert resolve_cluster(str(file)).devices.num_devices == 2


def inline_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken.json", b"{", "is not valid JSON"),
        ("deep.json", b"[" * 100_000, "is not valid JSON"),
        ("broken.toml", b"= 3", "is not valid TOML"),
        ("binary.json", b"\xff\xfe", "not UTF-8"),
        ("list.json", b"[]", "is not a valid ClusterSpec"),
        ("empty.json", b"{}", "name: Field required"),
        ("devices.json", b'{"devices": 3}', "is not a valid HardwareProfile"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        resolve_cluster(str(file))


def test_what_joins_islands_leads_to_no_other_node(tmp_path: Path) -> None:
    pairs = group(1, 4, domain=2).model_copy(update={"inter_node": tier("pcie", 1e10)})
    file = tmp_path / "pairs.json"
    file.write_text(ClusterSpec(name="pairs", groups=(pairs,)).to_json())
    assert resolve_cluster(str(file)).devices.num_devices == 4
    with pytest.raises(InputError, match="no network between nodes"):
        resolve_cluster(str(file), nodes=2)


def test_what_is_known_from_datasheets_only_says_so() -> None:
    assert evidence_in_words(resolve_cluster("dgx-h100")) is None
    words = evidence_in_words(resolve_cluster("mtt-s5000-80gb:8x2"))
    assert words == "mtt-s5000-80gb: datasheet only"


def test_a_resized_cluster_is_the_one_that_its_count_names() -> None:
    sixteen = resolve_cluster("dgx-h100:16")
    assert resized(sixteen, nodes=4).devices == resolve_cluster("dgx-h100:4").devices
    assert resized(sixteen, gpus=3).devices == resolve_cluster("dgx-h100", gpus=3).devices
    named = sixteen.devices.model_copy(update={"name": "mine"})
    own = sixteen.model_copy(update={"devices": named})
    assert resized(own, nodes=4).devices.name == "mine"
