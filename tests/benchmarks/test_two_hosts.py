"""Two emulated hosts: what is sent between them is slow, and nothing is left of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.two_hosts import TwoHosts, UnavailableError, why_unavailable

LIMIT_S = 400.0
"""For importing torch six times on a busy machine."""
LINK = """
import json, time, torch, torch.distributed as dist
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


@pytest.mark.multiprocess
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_link_is_slow_and_hosts_are_not(tmp_path: Path) -> None:
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    (tmp_path / "link.py").write_text(LINK)
    hosts = TwoHosts()
    try:
        with hosts:
            printed = hosts.launch([str(tmp_path / "link.py")], timeout_s=LIMIT_S, eager=True)
    except UnavailableError as error:
        pytest.skip(str(error))
    found = json.loads(printed)
    assert found["between 1"] >= 4e-3  # 2 ms there, 2 ms back
    assert found["between 250000"] >= 2 * 8e6 / 200e6  # 1 MB twice
    assert found["inside 250000"] < found["between 250000"]
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert not set(hosts.names) & set(left.stdout.split())


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert why_unavailable() == "emulated hosts need root"
    with pytest.raises(UnavailableError, match="root"), TwoHosts():
        pass
