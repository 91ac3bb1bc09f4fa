#!/usr/bin/env bash
# The whole path on this machine, four processes as four ranks: measure, plan, train, compare.
# Each step is a command that you can type yourself; nothing else happens here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

step() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

step shardwright profile --ranks 4 -o .shardwright/profile-4.json --reuse
step shardwright plan examples/demo/config.json --cluster .shardwright/profile-4.json --gpus 4 \
    --global-batch 16 --seq-len 256 --precision fp32 -o .shardwright/demo-plan.json
rm -rf .shardwright/demo-run # of the demo before; `run` never writes over checkpoints by itself
step shardwright run .shardwright/demo-plan.json --data python-stdlib --steps 60 \
    --save .shardwright/demo-run
