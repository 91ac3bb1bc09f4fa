"""What a node says of itself: readers of captured outputs, and the cluster that they describe.

``read_topology(text)`` recognises the output of any of the tools and returns a `TopologyReading`;
``cluster_from_readings(readings)`` puts several together into a `ClusterSpec` in which every number
says where it came from. This package and `shardwright.hardware_profiles.device` are the only places
that know a vendor's tools.
"""

from shardwright.hardware_profiles.topology.readings import TopologyReading
from shardwright.hardware_profiles.topology.recognise import read_topology

__all__ = ["TopologyReading", "read_topology"]
