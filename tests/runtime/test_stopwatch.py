"""Terms never overlap and sum to what was watched."""

from __future__ import annotations

import time

import pytest
import torch

from shardwright.cost_models.pipeline.schedules import schedule_of
from shardwright.runtime.models import build_rank
from shardwright.runtime.parallel.groups import ParallelGroups
from shardwright.runtime.step import TrainStep
from shardwright.runtime.stopwatch import TERMS, during, watching
from shardwright.specs import Recompute
from tests.runtime.plans import plan_of

CPU = torch.device("cpu")


def test_the_inner_term_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    with watching(CPU) as watch:  # 0
        with during("compute_backward"):  # 1
            with during("tp_comm"):  # 2
                pass  # 3
            with during("recompute"):  # 4
                pass  # 5
        # 6
        found = watch.seconds()  # 7
    assert found == {"other": 2.0, "compute_backward": 3.0, "tp_comm": 1.0, "recompute": 1.0}


def test_an_error_closes_its_term() -> None:
    with watching(CPU) as watch:
        with pytest.raises(ValueError, match="x"), during("tp_comm"):
            raise ValueError("x")
        time.sleep(0.01)
        assert watch.seconds()["other"] >= 0.01


def test_nothing_is_watched_by_itself() -> None:
    with during("tp_comm"):
        pass
    with watching(CPU) as watch:
        pass
    with during("tp_comm"):
        pass
    assert "tp_comm" not in watch.seconds()


def test_a_step_is_told_apart() -> None:
    """Of a rank alone: no communication, and recomputation where the layout has it."""
    plan = plan_of(micro_batch=4, recompute=(Recompute(policy="full"),))
    groups = ParallelGroups.alone()
    own = build_rank(plan.model, plan.layout, plan.training, groups)
    step = TrainStep(own, plan.layout, plan.training, groups, schedule_of(plan.layout))
    batches = [(torch.ones(4, 16, dtype=torch.int64),) * 2 for _ in range(2)]
    with watching(CPU) as watch:
        started = time.perf_counter()
        step.run(batches, 1e-3)
        found = watch.seconds()
        whole_s = time.perf_counter() - started
    for term in ("compute_forward", "compute_backward", "recompute", "optimizer"):
        assert found[term] > 0, term
    assert not {"tp_comm"} & found.keys()
    assert found.keys() <= set(TERMS)
    assert sum(found.values()) == pytest.approx(whole_s, rel=0.2)
