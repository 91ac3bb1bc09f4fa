"""Names of Megatron-LM's options that decide something here, of all generations."""

from __future__ import annotations

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FLAGS = _names(
    """
    embed-layernorm enable-expert-tensor-parallelism sequence-parallel
    use-distributed-optimizer bf16 fp16 swiglu quick-geglu squared-relu disable-bias-linear
    add-qkv-bias untie-embeddings-and-output-weights group-query-attention qk-layernorm
    multi-latent-attention apply-layernorm-1p use-rope-scaling rotary-interleaved
    use-rotary-position-embeddings no-position-embedding no-bias-gelu-fusion openai-gelu
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
    use-tp-pp-dp-mapping recompute-activations checkpoint-activations
    deepspeed-activation-checkpointing distribute-saved-activations
    distribute-checkpointed-activations grad-reduce-in-bf16
    accumulate-allreduce-grads-in-fp32 use-megatron-fsdp use-custom-fsdp use-torch-fsdp2
    torch-fsdp2-no-reshard-after-forward optimizer-cpu-offload offload-optimizer-states
    cpu-optimizer use-precision-aware-optimizer moe-shared-expert-gate
    moe-router-enable-expert-bias moe-grouped-gemm moe-router-pre-softmax deepspeed
    no-pipeline-parallel enable-zero-bubble zero-bubble-v-schedule bert-no-binary-head
    fine-grained-activation-offloading cpu-offloading overlap-grad-reduce
    overlap-param-gather attention-output-gate use-flash-attn use-mcore-models
    use-legacy-models fp8-param-gather fp8-hybrid fp8-e4m3 create-moe-param-group
    hybrid-context-parallel is-hybrid-model mlp-type use-multi-token-prediction
    disable-bias-attn-fc geglu moe-pad-expert-input-to-capacity no-bias swiglu-fusion
    empty-unused-memory-level
    """
)
"""Options without a value."""

VALUED = _names(
    """
    tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size
    expert-model-parallel-size expert-tensor-parallel-size
    num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank
    pipeline-model-parallel-layout decoder-first-pipeline-num-layers
    decoder-last-pipeline-num-layers pp-partition-method num-layers hidden-size
    ffn-hidden-size num-attention-heads num-query-groups kv-channels seq-length
    max-position-embeddings position-embedding-type rotary-base rotary-percent
    rotary-seq-len-interpolation-factor rope-scaling-factor normalization norm-epsilon
    window-size vocab-size padded-vocab-size pad-vocab-size-to make-vocab-size-divisible-by
    tokenizer-type tokenizer-model vocab-extra-ids glu-activation micro-batch-size
    global-batch-size num-experts moe-layer-freq moe-ffn-hidden-size moe-router-topk
    moe-latent-size moe-shared-expert-intermediate-size moe-router-score-function
    moe-router-num-groups moe-router-group-topk moe-expert-capacity-factor
    moe-token-dispatcher-type expert-interval q-lora-rank kv-lora-rank qk-head-dim
    qk-pos-emb-head-dim v-head-dim rope-type rotary-scaling-factor mtp-num-layers
    mtp-loss-scaling-factor recompute-granularity recompute-method recompute-num-layers
    recompute-modules activations-checkpoint-method activations-checkpoint-granularity
    activations-checkpoint-num-layers checkpoint-num-layers cp-comm-type fp8-format
    fp8-recipe fp4-format fp4-recipe optimizer lr min-lr adam-beta1 adam-beta2 adam-eps
    weight-decay clip-grad lr-warmup-iters lr-decay-iters train-iters train-samples
    train-tokens seed init-method-std exp-avg-dtype exp-avg-sq-dtype main-grads-dtype
    main-params-dtype data-parallel-sharding-strategy num-distributed-optimizer-instances
    zero-stage deepspeed-config cpu-offloading-num-layers zero-bubble-max-pending-backward
    offload-modules tensor-parallel-num-weight-shards
    expert-tensor-parallel-num-weight-shards encoder-num-layers decoder-num-layers
    encoder-seq-length decoder-seq-length encoder-tensor-model-parallel-size
    encoder-pipeline-model-parallel-size pipeline-model-parallel-split-rank
    relative-attention-num-buckets transformer-impl rampup-batch-size hybrid-layer-pattern
    hybrid-override-pattern hybrid-attention-ratio hybrid-mlp-ratio mamba-state-dim
    mamba-head-dim mamba-num-groups mamba-num-heads ds-sequence-parallel-size
    moe-router-load-balancing-type microbatch-group-size-per-virtual-pipeline-stage
    heterogeneous-layers-config-path yaml-cfg optimizer-offload-fraction
    outer-dp-sharding-strategy moe-router-dtype hierarchical-context-parallel-sizes
    """
)
"""Options with values that decide something here."""

OLD_NAMES = {
    "model-parallel-size": "tensor-model-parallel-size",
    "tensor-parallel-size": "tensor-model-parallel-size",
    "pipeline-parallel-size": "pipeline-model-parallel-size",
    "pipe-parallel-size": "pipeline-model-parallel-size",
    "batch-size": "micro-batch-size",
    "num-key-value-heads": "num-query-groups",
    "layernorm-epsilon": "norm-epsilon",
    "moe-expert-parallel-size": "expert-model-parallel-size",
    "expert-parallel-size": "expert-model-parallel-size",
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "topk": "moe-router-topk",
    "mtp-depth": "mtp-num-layers",
    "distribute-checkpointed-activations": "distribute-saved-activations",
    "rotary-embedding-base": "rotary-base",
    "use-custom-fsdp": "use-megatron-fsdp",
    "norm-type": "normalization",
    "hybrid-override-pattern": "hybrid-layer-pattern",
    "no-position-embeddings": "no-position-embedding",
    "kv-heads": "num-query-groups",
    "deepspeed-configuration": "deepspeed-config",
    "moe-topk": "moe-router-topk",
}
MANY = frozenset(("recompute-modules", "offload-modules", "rampup-batch-size", "moe-layer-freq"))
"""Options with several values, or with one that may hold blanks."""

WITHOUT_EFFECT = re.compile(
    r"(?:no-)?(?:data|train-data|valid-data|test-data|per-split|save|load|log|tensorboard|wandb|ckpt"
    r"|dist-ckpt|async|use-dist-ckpt|use-checkpoint|use-persistent|auto-detect|eval|eod|split|vocab"
    r"|merge|tokenizer|tiktoken|timing|profile|exit|num-workers|num-dataset|dataloader|mock-data|lr"
    r"|decoupled|warmup|min-|loss|hysteresis|initial-loss|seed|init-method|distributed|local|use-cpu"
    r"|use-ring|nccl|master|rank|manual-gc|check|rerun|one-logger|override|reset|finetune|attention"
    r"|hidden-dropout|dropout|masked|bias-|persist|gradient-acc|transformer|use-mcore|use-legacy"
    r"|moe-aux|moe-z|moe-router|moe-token|moe-permute|moe-per-layer|moe-use|moe-enable|moe-deepep"
    r"|moe-flex|moe-grouped|moe-input|moe-shared-expert-overlap|moe-load|moe-layer-recompute"
    r"|moe-hybridep|moe-device|moe-comm|moe-noaux|overlap|tp-comm|ddp|DDP|delay|cuda-graph"
    r"|enable-cuda|te-|use-te|high-priority|align|deterministic|cross-entropy|use-sharp|sft|short"
    r"|mask|weight-decay|start|end-weight|optimizer|muon|sgd|use-nccl|calculate|defer|wgrad"
    r"|first-last|num-layers-at|fp8|fp4|async-tensor|contiguous|scatter|skip|strict|onnx|empty"
    r"|memory|record|abort|inference|bert|retro|iteration|clip|adlr|create|enable|disable|use-flash"
    r"|synchronize|pipeline-model-parallel-comm|barrier|universal|deepspeed|zero|partition|inject"
    r"|codecarbon|kill|tensor-parallel-comm|rope|rotary|mtp|mla|apply|cache|norm|num-pass|use-fused"
    r"|test-mode|fused|replication|straggler|config-logger|max-tokens|straggle|activation-func"
    r"|experimental|export|force|mid|max-pos|embedding|output|name|group|job|ft|calc|logging|object"
    r"|trust|legacy|tokens|extra-vocab|make-vocab|apply-residual|patch|img|image|json|append|keys"
    r"|workers|online|p2p|verify|verbose|debug|report|otel|energy|qk-clip|dsa|use-fsdp|torch|accum"
    r"|fsdp|suggested|grad|init-model|meta-device|use-mup|perform|batch-p2p|null|ncp|wd|train-mode"
    r"|untie|position|kitchen|sequence-p|pin|non-persistent|outer|process|local_rank|node|hybrid)"
    r"[\w-]*"
)
"""Data, checkpoints, logs, schedules of the learning rate, kernels and their like."""
