"""Whether Megatron Core's own classes take what exported arguments say, and place layers alike.

What Megatron-LM's ``core_transformer_config_from_args`` does with its arguments is done here with
exported ones: `TransformerConfig` with all its checks, `OptimizerConfig`,
`DistributedDataParallelConfig`. Then its functions say which layers each virtual stage builds and
which ranks make up each group, and both are compared with the plan.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any
from unittest import mock

from shardwright.planner.exporters.exported import Exported, Job
from shardwright.planner.exporters.megatron.arguments import Arguments

_NUMBERS = {
    "--num-layers": "num_layers",
    "--hidden-size": "hidden_size",
    "--num-attention-heads": "num_attention_heads",
    "--num-query-groups": "num_query_groups",
    "--ffn-hidden-size": "ffn_hidden_size",
    "--kv-channels": "kv_channels",
    "--tensor-model-parallel-size": "tensor_model_parallel_size",
    "--pipeline-model-parallel-size": "pipeline_model_parallel_size",
    "--context-parallel-size": "context_parallel_size",
    "--expert-model-parallel-size": "expert_model_parallel_size",
    "--expert-tensor-parallel-size": "expert_tensor_parallel_size",
    "--decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "--num-experts": "num_moe_experts",
    "--moe-ffn-hidden-size": "moe_ffn_hidden_size",
    "--moe-router-topk": "moe_router_topk",
    "--moe-router-num-groups": "moe_router_num_groups",
    "--moe-router-group-topk": "moe_router_group_topk",
    "--moe-shared-expert-intermediate-size": "moe_shared_expert_intermediate_size",
    "--mtp-num-layers": "mtp_num_layers",
    "--recompute-num-layers": "recompute_num_layers",
    "--cpu-offloading-num-layers": "cpu_offloading_num_layers",
    "--q-lora-rank": "q_lora_rank",
    "--kv-lora-rank": "kv_lora_rank",
    "--qk-head-dim": "qk_head_dim",
    "--qk-pos-emb-head-dim": "qk_pos_emb_head_dim",
    "--v-head-dim": "v_head_dim",
}
_WORDS = {
    "--normalization": "normalization",
    "--recompute-granularity": "recompute_granularity",
    "--recompute-method": "recompute_method",
    "--pipeline-model-parallel-layout": "pipeline_model_parallel_layout",
    "--moe-router-score-function": "moe_router_score_function",
    "--moe-token-dispatcher-type": "moe_token_dispatcher_type",
    "--cp-comm-type": "cp_comm_type",
    "--rope-type": "rope_type",
    "--fp8-format": "fp8",
    "--fp8-recipe": "fp8_recipe",
}
_FLAGS = {
    "--sequence-parallel": ("sequence_parallel", True),
    "--disable-bias-linear": ("add_bias_linear", False),
    "--add-qkv-bias": ("add_qkv_bias", True),
    "--swiglu": ("gated_linear_unit", True),
    "--qk-layernorm": ("qk_layernorm", True),
    "--moe-grouped-gemm": ("moe_grouped_gemm", True),
    "--moe-router-pre-softmax": ("moe_router_pre_softmax", True),
    "--moe-router-enable-expert-bias": ("moe_router_enable_expert_bias", True),
    "--rotary-interleaved": ("rotary_interleaved", True),
    "--bf16": ("bf16", True),
    "--fp16": ("fp16", True),
    "--no-rope-fusion": ("apply_rope_fusion", False),
    "--no-gradient-accumulation-fusion": ("gradient_accumulation_fusion", False),
}


def check_megatron(job: Job, exported: Exported) -> None:
    """Raises where Megatron Core refuses, or builds other stages or groups than planned."""
    arguments = Arguments(exported.arguments)
    with (
        warnings.catch_warnings(),
        mock.patch.dict(os.environ, exported.environment, clear=False),
    ):
        warnings.simplefilter("ignore")
        config = _transformer_config(arguments)
        _check_optimizer(arguments)
        _check_stages(job, config)
        _check_groups(job)


def _transformer_config(arguments: Arguments) -> Any:
    module = importlib.import_module("megatron.core.transformer.transformer_config")
    torch = importlib.import_module("torch")
    given: dict[str, Any] = {}
    for flag, name in _NUMBERS.items():
        if arguments.has(flag):
            given[name] = arguments.number(flag)
    for flag, name in _WORDS.items():
        if arguments.has(flag):
            given[name] = arguments.text(flag)
    for flag, (name, value) in _FLAGS.items():
        if arguments.has(flag):
            given[name] = value
    if arguments.has("--recompute-modules"):
        given["recompute_modules"] = list(arguments.values("--recompute-modules"))
    if arguments.has("--moe-layer-freq"):
        given["moe_layer_freq"] = _layer_list(arguments.text("--moe-layer-freq") or "")
    if arguments.has("--cpu-offloading-num-layers"):
        given["cpu_offloading"] = True
    given["virtual_pipeline_model_parallel_size"] = _virtual_stages(arguments)
    half = {"--bf16": torch.bfloat16, "--fp16": torch.float16}
    dtypes = [dtype for flag, dtype in half.items() if arguments.has(flag)] or [torch.float32]
    given |= {"pipeline_dtype": dtypes[0], "params_dtype": dtypes[0]}
    if given.get("gated_linear_unit"):
        given["activation_func"] = torch.nn.functional.silu
    given.setdefault("apply_rope_fusion", False)  # its kernels are Transformer Engine's
    is_latent = arguments.has("--multi-latent-attention")
    kind = module.MLATransformerConfig if is_latent else module.TransformerConfig
    if is_latent:
        given |= {"multi_latent_attention": True}
    return kind(**given)


def _layer_list(text: str) -> list[int]:
    """``([0]*3+[1]*58)`` as a list."""
    found: list[int] = []
    for part in text.strip("()").split("+"):
        value, _, count = part.partition("*")
        found += [int(value.strip("[]"))] * int(count or 1)
    return found


def _virtual_stages(arguments: Arguments) -> int | None:
    each = arguments.number("--num-layers-per-virtual-pipeline-stage")
    layers = arguments.number("--num-layers")
    if each is None or layers is None:
        return None
    return layers // arguments.degree("--pipeline-model-parallel-size") // each


def _check_optimizer(arguments: Arguments) -> None:
    module = importlib.import_module("megatron.core.optimizer")
    distributed = importlib.import_module("megatron.core.distributed")
    sharded = arguments.has("--use-distributed-optimizer")
    module.OptimizerConfig(
        optimizer=arguments.text("--optimizer"),
        lr=arguments.fraction("--lr", 0.0),
        min_lr=arguments.fraction("--min-lr", 0.0),
        bf16=arguments.has("--bf16"),
        fp16=arguments.has("--fp16"),
        use_distributed_optimizer=sharded,
        clip_grad=arguments.fraction("--clip-grad", 1.0),
    )
    is_fsdp = arguments.has("--use-megatron-fsdp")
    strategy = arguments.text("--data-parallel-sharding-strategy", "no_shard")
    distributed.DistributedDataParallelConfig(
        grad_reduce_in_fp32=not arguments.has("--grad-reduce-in-bf16"),
        overlap_grad_reduce=arguments.has("--overlap-grad-reduce"),
        overlap_param_gather=arguments.has("--overlap-param-gather"),
        use_distributed_optimizer=sharded,
        num_distributed_optimizer_instances=arguments.degree(
            "--num-distributed-optimizer-instances"
        ),
        use_megatron_fsdp=is_fsdp,
        data_parallel_sharding_strategy=strategy,
    )


def _check_stages(job: Job, config: Any) -> None:
    """The layers of every virtual stage, by Megatron Core's own functions."""
    layout = job.layout
    if layout.pp == 1:
        return
    block = importlib.import_module("megatron.core.transformer.transformer_block")
    enums = importlib.import_module("megatron.core.transformer.enums")
    for stage in layout.stages:
        placed = config.pipeline_model_parallel_layout
        if placed is None:
            found = block.get_num_layers_to_build(config, stage.chunk, stage.rank)
        else:
            found = placed.layout[stage.rank][stage.chunk].count(enums.LayerType.decoder)
        if found != stage.num_layers:
            raise ValueError(f"stage {stage.stage} builds {found} layers, not {stage.num_layers}")


def _check_groups(job: Job) -> None:
    """Ranks of every group of both grids."""
    layout = job.layout
    if layout.rank_order != "tp-cp-dp-pp":
        return  # our own arithmetic numbers ranks in the usual order only
    state = importlib.import_module("megatron.core.parallel_state")
    size, order = layout.world_size, "tp-cp-ep-dp-pp"
    dense = state.RankGenerator(
        tp=layout.tp, ep=1, dp=layout.dp, pp=layout.pp, cp=layout.cp, order=order
    )
    for axis in ("tp", "cp", "dp", "pp"):
        found = sorted(map(list, dense.get_ranks(axis)))
        if found != size.groups(axis):
            raise ValueError(f"groups of {axis} differ: {found[:2]}")
    assert size.edp is not None
    experts = state.RankGenerator(
        tp=layout.etp, ep=layout.ep, dp=size.edp, pp=layout.pp, cp=1, order=order
    )
    for axis, ours in (("tp", "etp"), ("ep", "ep"), ("dp", "edp"), ("pp", "pp")):
        found = sorted(map(list, experts.get_ranks(axis)))
        if found != size.expert_groups(ours):
            raise ValueError(f"groups of {ours} differ: {found[:2]}")
