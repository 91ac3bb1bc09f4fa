"""Who measures together, and who shares what."""

from __future__ import annotations

import pytest

from shardwright.hardware_profiles.discover import local_cluster
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.session import cluster_of
from shardwright.hardware_profiles.rank_environment import CoreClaim
from shardwright.specs import InputError


def _party(*claims: str, ranks_per_node: int = 2) -> Party:
    return Party.joined(
        claims, rank=0, ranks_per_node=ranks_per_node, meeting="tcp://10.0.0.1:1234"
    )


def test_all_ranks_of_this_machine() -> None:
    party = Party.local(3)
    assert (party.num_nodes, party.here, party.leads) == (1, (0, 1, 2), True)
    assert party.sharers(1) == [0, 1, 2]
    assert party.num_cores == len(CoreClaim.own().cores)
    names = [cluster.name for cluster in (cluster_of(party), local_cluster(3))]
    assert names[0] == names[1]
    assert Party.from_json(party.to_json()) == party


def test_hosts_of_their_own_share_nothing() -> None:
    party = _party("a:0,1", "a:0,1", "b:0,1", "b:0,1")
    assert party.num_nodes == 2
    assert party.sharers(2) == [2, 3]
    (group,) = cluster_of(party).groups
    (local,) = local_cluster(2).groups
    assert (group.num_nodes, group.devices_per_node) == (2, 2)
    assert group.inter_node is not None
    assert group.shared_resources == local.shared_resources
    assert party.num_nodes_on_machine == 1


def test_containers_of_one_machine_share_its_cores_and_memory() -> None:
    party = _party("a:0,1", "a:0,1", "a:0,1", "a:0,1")
    assert party.sharers(3) == [0, 1, 2, 3]
    assert party.num_nodes_on_machine == 2
    (group,) = cluster_of(party).groups
    (cores,) = group.shared_resources
    assert (cores.kind, cores.capacity, cores.ranks) == ("cores", 2, 4)
    (local,) = local_cluster(2).groups
    usable_bytes = group.accelerator.usable_memory_bytes
    assert usable_bytes < 0.6 * local.accelerator.usable_memory_bytes


def test_containers_with_cores_of_their_own() -> None:
    party = _party("a:0", "a:0", "a:1", "a:1")
    assert party.sharers(0) == [0, 1]
    assert party.num_cores == 1
    assert party.num_nodes_on_machine == 2


def test_unlike_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="equally many"):
        _party("a:0", "a:0", "b:0")
    with pytest.raises(InputError, match="rank 2 with 0"):
        cluster_of(_party("a:0", "a:0", "b:0", "b:1"))
