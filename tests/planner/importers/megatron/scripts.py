"""Launch scripts in the styles that people use, with what must be read from each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright.planner.importers.megatron.arguments import Arguments, parse_arguments
from shardwright.planner.importers.megatron.read import read_megatron
from shardwright.planner.importers.reading import Reading
from shardwright.planner.importers.shell.unknown import Unknowns

SIZES = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024"
BATCH = "--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64"


@dataclass(frozen=True)
class Script:
    """A script, files beside it, and a part of what it states."""

    text: str
    stated: Mapping[str, Any]
    name: str = "run.sh"
    files: Mapping[str, str] = field(default_factory=dict)


SCRIPTS = {
    "defaults and arrays": Script(
        f"""#!/bin/bash
set -euo pipefail
: "${{TP:=2}}"
NNODES=${{SLURM_NNODES:-2}}; GPUS=${{GPUS:-8}}
ARGS=({SIZES}  # shape
  {BATCH}
)
ARGS+=(--tensor-model-parallel-size $TP --bf16)
[[ "${{DRY:-0}}" == 1 ]] && NNODES=1
torchrun --nnodes=$NNODES --nproc-per-node=$GPUS pretrain_gpt.py "${{ARGS[@]}}" "$@"
""",
        {"tp": 2, "pp": None, "world": 16, "dp": 8, "layers": 8, "precision": "bf16",
         "global_batch": 64, "consistent": True},
    ),
    "slurm with one task per device": Script(
        f"""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=h100:8
options="{SIZES} {BATCH} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1"
cmd="python -u pretrain_gpt.py ${{options}} --fp16 --use-distributed-optimizer"
srun -l sh -c "${{cmd}}"
""",
        {"pp": 4, "vpp": 2, "world": 32, "dp": 8, "nodes": 4, "precision": "fp16",
         "distributed_optimizer": True},
        name="run.sbatch",
    ),
    "deepspeed with a configuration that the script writes": Script(
        f"""#!/bin/bash
ZERO=1; CFG=ds.json
cat <<EOT > $CFG
{{"zero_optimization": {{"stage": $ZERO}}, "fp16": {{"enabled": true}}}}
EOT
export CMD=" pretrain_gpt.py {SIZES} {BATCH} --fp16 --deepspeed --deepspeed_config ${{CFG}} \\
  --pipeline-model-parallel-size 4 --pp-partition-method 'type:transformer|embedding'"
deepspeed --hostfile hosts $CMD
""",
        {"pp": 4, "world": 16, "zero_stage": 1, "stages": [2, 3, 3, 0], "dp": 4},
        files={"hosts": "a slots=8\nb slots=8\n"},
    ),
    "arithmetic, mpirun and appended text": Script(
        f"""NODES=2; SLOTS=8; NP=$(( NODES * SLOTS ))
TP=4; PP=2; (( DP = NP / (TP * PP) )); MBS=2
OPTS="{SIZES} --max-position-embeddings 1024 --micro-batch-size $MBS"
OPTS+=" --global-batch-size $((MBS * DP * 8)) --tensor-model-parallel-size $TP --bf16"
OPTS="$OPTS --pipeline-model-parallel-size $PP --sequence-parallel"
OPTS+=" --recompute-granularity full --recompute-method block --recompute-num-layers 1"
mpirun -np $NP -N $SLOTS -x CUDA_DEVICE_MAX_CONNECTIONS=1 python pretrain_gpt.py $OPTS
""",
        {"tp": 4, "pp": 2, "world": 16, "nodes": 2, "dp": 2, "global_batch": 32,
         "sequence_parallel": True, "recompute": {"granularity": "full", "method": "block",
                                                  "num_layers": 1, "modules": None}},
    ),
    "an environment file and old names": Script(
        f"""HERE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
source "$HERE/job.env"
if [ -f "$HERE/local.env" ]; then . "$HERE/local.env"; fi
exec python -m torch.distributed.launch --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py \\
    {SIZES} {BATCH} --fp16 --DDP-impl local \\
    --model-parallel-size $MP --checkpoint-activations --checkpoint-num-layers 1
""",
        {"tp": 2, "world": 4, "dp": 2, "recompute": {"granularity": "full", "method": None,
                                                     "num_layers": 1, "modules": None}},
        files={"job.env": "export GPUS=4\nexport NODES=1\nMP=2  # of old\n"},
    ),
    "a layout string in a mapping": Script(
        """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
NODES: 2
GPUS_PER_NODE: 4
MODEL_ARGS:
  --num-layers: 7
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --max-position-embeddings: 1024
  --micro-batch-size: 1
  --global-batch-size: 32
  --pipeline-model-parallel-size: 2
  --pipeline-model-parallel-layout: "Et|(tt|)*2t*2mL"
  --mtp-num-layers: 1
  --position-embedding-type: rope
  --bf16: true
  --fp8-format: e4m3
  --fp8-recipe: mxfp8
""",
        {"pp": 2, "vpp": 2, "world": 8, "dp": 4, "stages": [3, 4],
         "virtual_stages": ["Et", "tt", "tt", "ttmL"], "precision": "bf16+fp8:e4m3:mxfp8"},
        name="run.yaml",
    ),
    "sizes chosen by an argument, hosts in a loop": Script(
        f"""#!/usr/bin/env bash
SIZE=${{1:-small}}
case $SIZE in
  small) L=8; H=512;;
  large) L=16; H=1024;;
  *) echo "usage: $0 small|large"; exit 1;;
esac
hosts=(n1 n2)
CMD="torchrun --nnodes=${{#hosts[@]}} --nproc_per_node=8 pretrain_gpt.py --num-layers $L"
CMD="$CMD --hidden-size $H --num-attention-heads 8 --seq-length 1024 {BATCH} --bf16"
for h in "${{hosts[@]}}"; do
  ssh $h "cd $PWD && $CMD > log.$h 2>&1" &
done
wait
""",
        {"layers": 8, "hidden": 512, "world": 16, "nodes": 2},
    ),
    "experts in a container, eval and a function": Script(
        f"""launch() {{
  local nodes=$1; shift
  eval "docker run --gpus all -v /d:/d -e NCCL_DEBUG=INFO nvcr.io/x:1 bash -c 'torchrun \\
    --nnodes=$nodes --nproc-per-node=8 pretrain_gpt.py $*'"
}}
MOE="--num-experts 16 --moe-router-topk 2 --expert-model-parallel-size 8"
launch $(echo "2*2" | bc) {SIZES} {BATCH} $MOE --moe-ffn-hidden-size=256 --swiglu --bf16 \\
  --group-query-attention --num-query-groups 4 --tensor-model-parallel-size 2 \\
  --expert-tensor-parallel-size 1
""",
        {"world": 32, "ep": 8, "etp": 1, "experts": 16, "moe_ffn": 256, "kv_heads": 4, "dp": 16},
    ),
    "a bare list of arguments": Script(
        f"""{SIZES.replace(' --', chr(10) + '--')}
# comment
{BATCH} --context-parallel-size 2 --use-tp-pp-dp-mapping
""",
        {"cp": 2, "layers": 8, "world": None, "dp": None, "precision": None},
        name="args.txt",
    ),
    "an answer that contradicts itself": Script(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size"
        " 3\n",
        {"tp": 3, "world": 8, "dp": None, "consistent": False},
    ),
}  # fmt: skip


def read_script(folder: Path, script: Script, **options: Any) -> Reading:
    """What is read of a script in a folder of its own."""
    for name, text in {script.name: script.text, **script.files}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return read_megatron(folder / script.name, **options)


def arguments_of(line: str) -> Arguments:
    """Parsed words of a line."""
    return parse_arguments(line.split(), Unknowns())
