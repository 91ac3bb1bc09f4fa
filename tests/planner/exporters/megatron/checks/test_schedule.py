"""Rules 50 to 55."""

from __future__ import annotations

from tests.planner.exporters.megatron.commands import DENSE, broken

LOAD = "--load somewhere"
ZERO1 = "--use-distributed-optimizer"


def changed(*lines: str) -> tuple[str, ...]:
    flags = {line.split()[0] for line in lines}
    return (*(line for line in DENSE if line.split()[0] not in flags), *lines)


def test_50_steps_or_samples_and_the_learning_rate() -> None:
    assert broken("--train-samples 100") == {50}
    assert broken("--lr-decay-samples 100") == {50}
    assert broken("--rampup-batch-size 16 16 1000") == {50}
    assert broken("--lr-warmup-fraction 0.1") == set()
    assert broken("--lr-warmup-fraction 0.1", "--lr-warmup-iters 3") == {50}
    assert broken("--min-lr 1") == {50}
    assert broken("--save out") == {50}
    assert broken("--save out", "--save-interval 10", "--save-retain-interval 15") == {50}
    assert broken("--log-memory-interval 3", "--log-interval 2") == {50}


def test_51_one_source_of_data() -> None:
    assert broken("--data-path a") == {51}
    assert broken("--data-path a", without=("--mock-data",)) == set()
    assert broken("--data-path a", "--train-data-path b", without=("--mock-data",)) == {51}
    assert broken("--fim-data") == {51}


def test_52_saving_beside_and_locally() -> None:
    assert broken("--async-save") == {52}
    assert broken("--async-save", "--use-persistent-ckpt-worker") == set()
    assert broken("--non-persistent-ckpt-type local") == {52}
    local = ("--non-persistent-ckpt-type local", "--non-persistent-local-ckpt-dir d")
    assert broken(*local) == set()
    assert broken("--replication", *local) == {52}
    assert broken("--replication", "--replication-jump 8", *local) == set()


def test_53_sizes_are_those_of_the_checkpoint() -> None:
    assert broken(LOAD, saved=DENSE) == set()
    assert broken(LOAD, saved=changed("--num-layers 24")) == {53}
    old = changed("--ckpt-format torch", "--tensor-model-parallel-size 4")
    assert broken(LOAD, saved=old) == {53}
    assert broken(saved=changed("--num-layers 24")) == set(), "nothing is loaded"


def test_54_optimizer_state_moves_only_when_saved_so() -> None:
    other = changed("--tensor-model-parallel-size 4", ZERO1)
    assert broken(LOAD, saved=other) == {54}
    assert broken(LOAD, "--no-load-optim", saved=other) == set()
    assert broken(LOAD, saved=(*other, "--dist-ckpt-optim-fully-reshardable")) == set()
    assert broken(LOAD, saved=changed(ZERO1)) == set(), "the grid is the same"


def test_55_an_old_kind_of_state_is_not_loaded_in_parallel() -> None:
    old = (*DENSE, "--distrib-optim-sharding-type dp_zero_gather_scatter")
    assert broken(LOAD, "--ckpt-fully-parallel-load", saved=old) == {55}
    assert broken(LOAD, saved=old) == set()
