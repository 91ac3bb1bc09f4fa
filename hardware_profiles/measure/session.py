"""`profile`: measure this machine with ranks of its own, and write down what was found."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Callable
from importlib import resources

from shardwright.hardware_profiles.device import current_device_type
from shardwright.hardware_profiles.discover import local_cluster
from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.ranks import Message, measure_on_ranks
from shardwright.hardware_profiles.profile import (
    Curve,
    HardwareProfile,
    Parameter,
    ProfileProvenance,
)
from shardwright.specs import AcceleratorSpec, ClusterSpec, InputError, LinkTier, SharedResource
from shardwright.specs.training import DType

START_S = 120.0
"""How long processes may take to start and end, beyond what they measure."""

SLACK = 4.0
"""How many times its planned length a measurement may last before it is given up."""


def profile(
    *,
    num_ranks: int,
    progress: Callable[[str, float], None] | None = None,
    plan: MeasurePlan | None = None,
) -> HardwareProfile:
    """Measure this machine with ``num_ranks`` ranks, which this function starts and ends.

    Args:
        progress: called with what is being measured and the share that is done, from 0 to 1.
        plan: which sizes to measure; default: everything, in under two minutes.

    Raises:
        InputError: fewer than one rank, or more than there are accelerators.
        RunError: a rank failed or hung. No process is left behind.
    """
    if num_ranks < 1:
        raise InputError(f"cannot profile with {num_ranks} ranks", fix="ask for at least 1")
    made = profile_party(Party.local(num_ranks), progress=progress, plan=plan)
    assert made is not None, "rank 0 is one of this machine's"
    return made


def profile_party(
    party: Party,
    *,
    progress: Callable[[str, float], None] | None = None,
    plan: MeasurePlan | None = None,
) -> HardwareProfile | None:
    """As `profile`, over several nodes: to be called by each process of a launch, with its ranks.

    Returns:
        The profile where rank 0 is started here, else None.
    """
    device_type = current_device_type()
    cluster = cluster_of(party)
    plan = plan or MeasurePlan.full(device_type)
    findings = Findings(progress)
    measure_on_ranks(
        party, device_type, plan, findings.add, timeout_s=START_S + SLACK * plan.budget_s
    )
    if not party.leads:
        return None
    return HardwareProfile(
        provenance=_provenance(),
        devices=with_measured_rates(cluster, findings.curves, findings.parameters),
        curves=tuple(findings.curves),
        parameters=(*findings.parameters, *accuracy(cluster)),
        num_ranks=party.world,
    )


def cluster_of(party: Party) -> ClusterSpec:
    """The party's nodes, all taken to be like this one; links between them are measured later.

    Raises:
        InputError: more ranks than accelerators, or nodes that are not alike.
    """
    cluster = local_cluster(party.ranks_per_node)
    if party.num_nodes == 1:
        return cluster
    party.check_alike()
    (group,) = cluster.groups
    device, shared = group.accelerator, group.shared_resources
    if device.vendor == "cpu":
        # Containers of one machine share its memory, and perhaps its cores.
        usable_bytes = device.usable_memory_bytes // party.num_nodes_on_machine
        device = device.model_copy(update={"usable_memory_bytes": max(1, usable_bytes)})
        together = len(party.sharers(0))
        if together != party.ranks_per_node:
            cores = SharedResource(kind="cores", capacity=party.num_cores, ranks=together)
            shared = (cores,)
    network = LinkTier(
        name="network", bandwidth_bytes_per_s=group.intra_node.bandwidth_bytes_per_s,
        latency_s=0.0, provenance="derived", source="unknown until profiled",
    )  # fmt: skip
    update = {
        "num_nodes": party.num_nodes,
        "accelerator": device,
        "inter_node": network,
        "shared_resources": shared,
    }
    name = f"{cluster.name}-x{party.num_nodes}"
    return cluster.model_copy(update={"name": name, "groups": (group.model_copy(update=update),)})


def accuracy(cluster: ClusterSpec) -> tuple[Parameter, ...]:
    """How far predictions from such profiles were from measured steps: band and tie ratio.

    From ``accuracy.json``, which tells machines whose ranks share cores from those where each rank
    has a core or device of its own.
    """
    text = resources.files(__package__).joinpath("accuracy.json").read_text(encoding="utf-8")
    kind = "shared_cores" if _share_of_a_core(cluster) < 1 else "own_cores"
    entries = json.loads(text)[kind]
    return tuple(Parameter.from_value(entry, source="accuracy.json") for entry in entries)


class Findings:
    """Collects what the ranks report."""

    def __init__(self, progress: Callable[[str, float], None] | None) -> None:
        self.curves: list[Curve] = []
        self.parameters: list[Parameter] = []
        self._progress = progress

    def add(self, message: Message) -> None:
        if "curve" in message:
            self.curves.append(Curve.from_value(message["curve"], source="a rank's message"))
        elif "parameter" in message:
            found = Parameter.from_value(message["parameter"], source="a rank's message")
            self.parameters.append(found)
        elif self._progress is not None:
            self._progress(message["progress"], message["done"])


def with_measured_rates(
    cluster: ClusterSpec, curves: list[Curve], parameters: list[Parameter]
) -> ClusterSpec:
    """The cluster with measured peaks, bandwidths and usable memory in place of what was stated.

    A rank's rates are those of its share of the cores: MFU on a machine with more ranks than cores
    relates to what the machine can do, not to a core for each rank.
    """
    group = cluster.groups[0]
    share = _share_of_a_core(cluster)
    values = {parameter.name: parameter.value for parameter in parameters}
    device = group.accelerator
    measured = device.model_copy(
        update={
            "peak_flops_per_s": _peaks(device, curves, share),
            "memory_bandwidth_bytes_per_s": share * _memory_rate(curves),
            "usable_memory_bytes": max(
                1, device.usable_memory_bytes - int(values["process_memory_bytes"])
            ),
            "provenance": "measured",
            "source": "shardwright profile on this machine",
        }
    )
    group = group.model_copy(
        update={
            "accelerator": measured,
            "intra_node": _measured_tier(group.intra_node, curves, crosses=False),
            "inter_node": group.inter_node
            and _measured_tier(group.inter_node, curves, crosses=True),
        }
    )
    return cluster.model_copy(update={"groups": (group,)})


def _share_of_a_core(cluster: ClusterSpec) -> float:
    group = cluster.groups[0]
    for resource in group.shared_resources:
        if resource.kind == "cores":
            return min(1.0, resource.capacity / resource.ranks)
    return 1.0


def _peaks(device: AcceleratorSpec, curves: list[Curve], share: float) -> dict[DType, float]:
    """The best measured rate of each dtype; a datasheet's peak where it states one."""
    dtypes = {curve.dtype for curve in curves if curve.op.startswith("matmul/")}
    measured = {
        dtype: share * _best_rate([c for c in curves if c.dtype == dtype], "matmul/forward")
        for dtype in sorted(dtypes)
    }
    stated = {} if device.provenance == "derived" else device.peak_flops_per_s
    return measured | stated


def _measured_tier(tier: LinkTier, curves: list[Curve], *, crosses: bool) -> LinkTier:
    """Latency and bandwidth of messages between two ranks of a node, or of two nodes."""
    messages = [
        curve
        for curve in curves
        if curve.op == "send_recv"
        and curve.concurrency == 1
        and (curve.group_shape[1] > 1) == crosses
    ]
    if not messages:
        return tier
    return tier.model_copy(
        update={
            "bandwidth_bytes_per_s": _best_rate(messages, "send_recv"),
            "latency_s": min(point.median_s for curve in messages for point in curve.points),
            "provenance": "measured",
            "source": "shardwright profile: messages between two ranks",
        }
    )


def _best_rate(curves: list[Curve], op_prefix: str) -> float:
    """The most of x per second on any curve whose operation starts so."""
    return max(
        point.x / point.median_s
        for curve in curves
        if curve.op.startswith(op_prefix)
        for point in curve.points
    )


def _memory_rate(curves: list[Curve]) -> float:
    """Bytes per second of the largest operation that only streams."""
    streams = [c for c in curves if c.op == "elementwise"]
    return max(c.points[-1].x / c.points[-1].median_s for c in streams)


def _provenance() -> ProfileProvenance:
    software = {"python": platform.python_version(), "system": platform.platform()}
    software |= {name: importlib.metadata.version(name) for name in ("torch",)}
    return ProfileProvenance(
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        software=software,
        command=shlex.join(sys.argv),
    )
