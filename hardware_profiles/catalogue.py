"""The catalogue: accelerators, nodes and how well software uses them, as data files with sources.

Names of the `Parameter`s in a catalogue profile (no curves were measured; a formula prices):

| name | unit | meaning |
|---|---|---|
| ``matmul_efficiency.<dtype>`` | 1 | best measured fraction of the dense peak for large matmuls |
| ``matmul_tile_m``, ``matmul_tile_n`` | elements | output tile of one work group, for wave counts |
| ``num_sm`` | count | work groups that run at once (SMs, CUs); absent where unknown |
| ``attention_efficiency.forward``, ``.backward`` | 1 | fraction of the bf16 peak of the attention \
kernel, by FLOPs that count the causal half only |
| ``memory_bandwidth_efficiency`` | 1 | achieved fraction of the memory bandwidth |
| ``launch_overhead_s`` | s | per kernel, where kernels are launched one by one |
| ``collective_efficiency.intra_node``, ``.inter_node`` | 1 | bus bandwidth of large ring \
collectives over the wire rate of the link tier |
| ``collective_latency.base_s`` | s | once per collective |
| ``collective_latency.intra_node_s``, ``.inter_node_s`` | s | per ring step inside a node and \
between nodes |
| ``in_switch_all_reduce.gain`` | 1 | all_reduce bandwidth through switches that add up (NVLS), \
over a ring's; absent where there are none |
| ``in_switch_all_reduce.min_ranks`` | count | smallest group in a node for which it is used |
"""

from __future__ import annotations
