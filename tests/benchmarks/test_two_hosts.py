"""Two emulated hosts: what is sent between them is slow, and nothing is left of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.two_hosts import TwoHosts, UnavailableError, why_unavailable

LINK = """
import json, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def there_and_back(peer, numel):
    tensor = torch.zeros(numel)
    if rank == 0:
        start = time.perf_counter(); dist.send(tensor, peer); dist.recv(tensor, peer)
        return time.perf_counter() - start
    if rank == peer:
        dist.recv(tensor, 0); dist.send(tensor, 0)
found = {}
for peer, name in ((1, "inside"), (2, "between")):
    for numel in (1, 1, 250_000):
        found[f"{name} {numel}"] = there_and_back(peer, numel)
if rank == 0:
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def hosts() -> object:
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    return TwoHosts()


@pytest.mark.multiprocess
def test_the_link_is_slow_and_hosts_are_not(hosts: TwoHosts, tmp_path: Path) -> None:
    (tmp_path / "link.py").write_text(LINK)
    try:
        with hosts:
            found = json.loads(hosts.launch([str(tmp_path / "link.py")], timeout_s=120))
    except UnavailableError as error:
        pytest.skip(str(error))
    assert found["between 1"] >= 4e-3  # 2 ms there, 2 ms back
    assert found["between 250000"] >= 2 * 8e6 / 200e6  # 1 MB twice
    assert found["inside 250000"] < found["between 250000"] / 4
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert not set(hosts._names) & set(left.split())


@pytest.mark.multiprocess
def test_a_launch_that_fails_is_told(hosts: TwoHosts) -> None:
    try:
        with hosts, pytest.raises(subprocess.CalledProcessError) as told:
            hosts.launch(["-c", "raise SystemExit('this host is broken')"], timeout_s=60)
    except UnavailableError as error:
        pytest.skip(str(error))
    assert "this host is broken" in told.value.stderr
