"""YAML of arguments."""

from __future__ import annotations

import pytest

from shardwright.planner.importers.megatron.yaml_files import command_of_yaml, launch_of_yaml
from shardwright.specs import InputError

YAML_CFG = """
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
model_parallel:
  tensor_model_parallel_size: 2
  sequence_parallel: true
micro_batch_size: 2
WORLD_SIZE: 16
"""


def test_fields_of_a_yaml_configuration_are_options() -> None:
    launch = launch_of_yaml(YAML_CFG, "x/gpt.yaml")
    assert launch.arguments[:2] == ("--num-layers", "24")
    assert "--sequence-parallel" in launch.arguments
    assert (launch.program, launch.gpus) == ("pretrain_gpt.py", 16)


def test_a_container_of_kubernetes_lists_a_command() -> None:
    text = (
        "spec:\n  containers:\n    - image: x\n"
        "      command: [torchrun, --nnodes=2, --nproc_per_node=8]\n"
        "      args:\n        - pretrain_gpt.py\n        - --num-layers=4\n"
    )
    command = command_of_yaml(text, "job.yaml")
    assert command == "torchrun --nnodes=2 --nproc_per_node=8 pretrain_gpt.py --num-layers=4"
    assert command_of_yaml(YAML_CFG, "x.yaml") is None


def test_the_program_is_that_of_the_model() -> None:
    launch = launch_of_yaml(YAML_CFG, "/home/albert/bert_large.yaml")
    assert launch.program == "pretrain_bert.py"
    assert launch_of_yaml(YAML_CFG, "/home/bert/gpt.yaml").program == "pretrain_gpt.py"


@pytest.mark.parametrize("text", ["[1, 2]", "a: 1", "just text", "a: [", "\tx: 1"])
def test_other_yaml_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        launch_of_yaml(text, "x.yaml")
