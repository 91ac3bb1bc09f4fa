"""Starting ranks that measure, and ending them in every case."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from shardwright.hardware_profiles.measure.party import Party
from shardwright.hardware_profiles.measure.plan import MeasurePlan
from shardwright.hardware_profiles.measure.ranks import measure_on_ranks
from shardwright.specs import RunError

PLAN = MeasurePlan.quick()


class Ranks:
    """Ranks that run a small script instead of a measurement."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("PYTHONPATH", str(folder))

    def run(self, body: str, *, timeout_s: float = 20.0) -> list[dict[str, Any]]:
        """``body`` sees rank, world, send(text) and wait()."""
        prelude = f"""
            import json, os, sys, time
            rank, world, store, fd = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
            open(f"{self.folder}/pid-{{rank}}", "w").write(str(os.getpid()))
            send = lambda value: os.write(int(fd), (json.dumps(value) + "\\n").encode())
            def wait():
                while not all(os.path.exists(f"{self.folder}/pid-{{r}}") for r in range(world)):
                    time.sleep(0.01)
        """
        script = textwrap.dedent(prelude) + textwrap.dedent(body)
        (self.folder / "ranks_script.py").write_text(script)
        found: list[dict[str, Any]] = []
        measure_on_ranks(
            Party.local(2), "cpu", PLAN, found.append, timeout_s=timeout_s, module="ranks_script"
        )
        return found

    def are_gone(self) -> bool:
        pids = [int(path.read_text()) for path in self.folder.glob("pid-*")]
        assert len(pids) == 2
        return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(tmp_path, monkeypatch)


@pytest.mark.multiprocess
class TestRanks:
    def test_messages_arrive_whole_and_in_order(self, ranks: Ranks) -> None:
        found = ranks.run(
            """
            if rank == 0:
                for i in range(100):
                    send({"i": i, "text": "x" * 5000})
            wait()
            """
        )
        assert [message["i"] for message in found] == list(range(100))
        assert ranks.are_gone()

    def test_ranks_start_with_one_thread_and_their_plan(self, ranks: Ranks) -> None:
        found = ranks.run(
            """
            if rank == 0:
                send({"threads": os.environ["OMP_NUM_THREADS"], "plan": sys.argv[5]})
            wait()
            """
        )
        assert found[0]["threads"] == "1"
        assert MeasurePlan.from_json(found[0]["plan"]) == PLAN

    def test_a_rank_that_fails_is_named_with_its_last_words(self, ranks: Ranks) -> None:
        with pytest.raises(RunError, match=r"rank 1 ended with exit code 3: the device is gone"):
            ranks.run(
                """
                wait()
                if rank == 1:
                    print("the device is gone", file=sys.stderr, flush=True)
                    os._exit(3)
                time.sleep(4)
                """
            )
        assert ranks.are_gone()

    def test_a_rank_that_is_killed_is_named_before_those_that_fail_with_it(
        self, ranks: Ranks
    ) -> None:
        with pytest.raises(RunError, match=r"failed: rank 1 was killed by signal 9.*rank 0 ended"):
            ranks.run(
                """
                wait()
                if rank == 1:
                    os.kill(os.getpid(), 9)
                time.sleep(1)
                os._exit(1)
                """
            )
        assert ranks.are_gone()

    def test_ranks_that_hang_are_ended(self, ranks: Ranks) -> None:
        with pytest.raises(RunError, match="not done after 1 s"):
            ranks.run("time.sleep(60)", timeout_s=1.0)
        assert ranks.are_gone()

    def test_no_rank_outlives_a_receiver_that_raises(self, ranks: Ranks) -> None:
        def refuse(message: dict[str, Any]) -> None:
            raise KeyboardInterrupt

        (ranks.folder / "ranks_hang.py").write_text(
            "import os, sys, time\n"
            f'open(f"{ranks.folder}/pid-{{sys.argv[1]}}", "w").write(str(os.getpid()))\n'
            'if sys.argv[1] == "0":\n'
            f'    while not os.path.exists("{ranks.folder}/pid-1"): time.sleep(0.01)\n'
            '    os.write(int(sys.argv[4]), b"{}\\n")\n'
            "time.sleep(60)\n"
        )
        with pytest.raises(KeyboardInterrupt):
            measure_on_ranks(Party.local(2), "cpu", PLAN, refuse, timeout_s=20, module="ranks_hang")
        assert ranks.are_gone()

    def test_pipes_are_closed(self, ranks: Ranks) -> None:
        before = set(os.listdir("/proc/self/fd"))
        ranks.run("wait()")
        assert len(set(os.listdir("/proc/self/fd"))) == len(before)
