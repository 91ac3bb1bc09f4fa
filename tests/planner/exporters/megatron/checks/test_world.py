"""Rules 1 to 6."""

from __future__ import annotations

from tests.planner.exporters.megatron.commands import EXPERTS, broken


def test_01_the_dense_grid_divides_the_world() -> None:
    assert 1 in broken(world=18)
    assert broken("--context-parallel-size 2") == set()
    assert 1 in broken("--tensor-parallel-num-weight-shards 12")


def test_02_the_expert_grid_divides_the_world() -> None:
    assert broken("--expert-tensor-parallel-size 4", base=EXPERTS) == {2}
    assert broken("--expert-model-parallel-size 8", base=EXPERTS) == set()


def test_03_pp_before_dp_needs_equal_pipelines_of_both_grids() -> None:
    # world 16, tp 2, pp 2, ep 4, etp 1: upstream refuses it.
    assert broken("--use-tp-pp-dp-mapping", base=EXPERTS) == {3}
    same = ("--use-tp-pp-dp-mapping", "--expert-model-parallel-size 2")
    assert broken(*same, base=EXPERTS) == set()
    assert broken("--use-tp-pp-dp-mapping") == set(), "etp is tp where there are no experts"
    assert broken("--use-tp-pp-dp-mapping", "--context-parallel-size 2") == {3}


def test_04_the_batch_divides_over_replicas() -> None:
    assert broken("--global-batch-size 62") == {4}
    assert broken("--global-batch-size 2") == {4}
    assert broken("--global-batch-size 62", "--decrease-batch-size-if-needed") == set()


def test_04_a_schedule_of_batches_starts_at_zero_and_ascends() -> None:
    alone = ("--global-batch-size",)
    assert broken("--step-batch-size-schedule 0:64", without=alone) == set()
    assert broken("--step-batch-size-schedule 0:64") == {4}
    assert broken("--step-batch-size-schedule 1B:64", without=alone) == {4}
    assert broken("--step-batch-size-schedule 0:63", without=alone) == {4}


def test_05_hybrid_context_parallelism_needs_an_even_group() -> None:
    hybrid = ("--hybrid-context-parallel", "--calculate-per-token-loss",
              "--pipeline-model-parallel-size 1")  # fmt: skip
    assert broken(*hybrid) == set()
    assert 5 in broken(*hybrid, "--global-batch-size 63", world=6)


def test_06_optimizer_instances_divide_the_replicas_and_need_zero() -> None:
    shared = "--use-distributed-optimizer"
    assert broken("--num-distributed-optimizer-instances 2", shared) == set()
    assert broken("--num-distributed-optimizer-instances 3", shared) == {6}
    assert broken("--num-distributed-optimizer-instances 2") == {6}
