"""Eight trainings whose GPU-hours, or times of a step, are published, with the source of each fact.

Nothing here is chosen to fit: layouts are those that were published; what was not is left to the
planner, and what has to be known all the same (how many GPUs of the two small Llama 3.1 models) is
marked as assumed. The software is the catalogue's entry for what was used, ``generic`` where that
is a house's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.cost_models.money import Terms

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a training with one batch, length, size and layout."""

    tokens: float
    gpus: int
    global_batch: int
    seq_len: int
    layout: str
    """Choices that are published, as ``plan --fix`` takes them."""
    forbid: tuple[str, ...] = ()
    """What did not exist yet, or is known not to have been used."""
    is_whole: bool = False
    """The layout is known in full: it is estimated, not planned."""
    ran_in_memory: bool = False
    """It is published that less was recomputed than our memory model allows: the search is then
    not held to the devices' memory."""
    is_ramp: bool = False
    """The batch is still growing, or the sequences are."""


@dataclass(frozen=True, slots=True)
class Published:
    """One training."""

    name: str
    model: str | dict[str, Any]
    """A preset, or a Hugging Face config."""
    cluster: str
    stack: str
    precision: str
    phases: tuple[Phase, ...]
    gpu_hours: float
    terms: Terms
    """Failures as published for this very run; else the catalogue's."""
    sources: tuple[str, ...]
    assumed: str
    """What no publication says and had to be supposed; what is known of the rest."""


NO_ZERO_BUBBLE = ("zb-h1", "zb-h2", "zb-v", "dualpipev")
"""Qi et al. (arXiv:2401.10241) is of January 2024; Llama 3's pipeline is interleaved 1F1B."""

_LLAMA3_PIPELINE = "tp=8,pp=16,micro_batch=1,recompute=none"
_DEEPSEEK_LAYOUT = (
    "tp=1,cp=1,pp=16,ep=64,zero=1,micro_batch=1,recompute=selective:norm+moe_act+mla_up_proj"
)

_MT_NLG_LAYOUT = "tp=8,pp=35,dp=8,vpp=1,cp=1,recompute=full,schedule=1f1b"

_BLOOM_LAYOUT = "tp=4,pp=12,dp=8,micro_batch=2,zero=1,recompute=full,schedule=1f1b"
_BLOOM_RAMP_SAMPLES = 9_765_625
_BLOOM_RAMP_BATCHES = range(256, 2049, 128)
"""From 192 by 16 up to 2,048, eight increments at a time."""
_BLOOM_RAMP = tuple(
    Phase(
        _BLOOM_RAMP_SAMPLES * 2048 / len(_BLOOM_RAMP_BATCHES), 384, batch, 2048, _BLOOM_LAYOUT,
        is_whole=True, is_ramp=True,
    )
    for batch in _BLOOM_RAMP_BATCHES
)  # fmt: skip

PUBLISHED = (
    Published(
        name="Llama-2 70B",
        model="llama-2-70b",
        cluster="meta-rsc",
        stack="megatron-lm-2022",
        precision="bf16",
        phases=(Phase(2.0e12, 1024, 1024, 4096, "cp=1", NO_ZERO_BUBBLE),),
        gpu_hours=1_720_320,
        terms=Terms(),
        sources=(
            "model and sequence parallelism as of Korthikanti et al. 2022: arXiv:2302.13971, 2.4,"
            " whose setup Llama 2 says to keep",
            "2.0T tokens, 4M tokens a batch, 4,096 tokens, 1,720,320 A100-80GB hours:"
            " arXiv:2307.09288 and github:meta-llama/llama-models models/llama2/MODEL_CARD.md",
        ),
        assumed="1,024 GPUs of RSC; layout not published",
    ),
    Published(
        name="Llama-3.1 8B",
        model="llama-3.1-8b",
        cluster="meta-24k-ib",
        stack="generic",
        precision="bf16",
        phases=(Phase(15.0e12, 1024, 1024, 8192, "cp=1", NO_ZERO_BUBBLE),),
        gpu_hours=1_460_000,
        terms=Terms(),
        sources=(
            "15T+ tokens, 1.46M H100-80GB hours: github:meta-llama/llama-models"
            " models/llama3_1/MODEL_CARD.md",
            "smaller models on the InfiniBand cluster: arXiv:2407.21783, section 3.3.1",
        ),
        assumed="1,024 GPUs, 8M tokens a batch; layout not published. 1.46M hours are 15 % of peak",
    ),
    Published(
        name="Llama-3.1 70B",
        model="llama-3.1-70b",
        cluster="meta-24k-ib",
        stack="generic",
        precision="bf16",
        phases=(Phase(15.0e12, 1024, 1024, 8192, "cp=1", NO_ZERO_BUBBLE),),
        gpu_hours=7_000_000,
        terms=Terms(),
        sources=(
            "15T+ tokens, 7.0M H100-80GB hours: github:meta-llama/llama-models"
            " models/llama3_1/MODEL_CARD.md",
            "smaller models on the InfiniBand cluster: arXiv:2407.21783, section 3.3.1",
        ),
        assumed="1,024 GPUs, 8M tokens a batch; layout not published. 7.0M hours are 27 % of peak",
    ),
    Published(
        name="Llama-3.1 405B",
        model="llama-3.1-405b",
        cluster="meta-24k-roce",
        stack="generic",
        precision="bf16",
        phases=(
            Phase(
                0.252e12,
                8192,
                1024,
                4096,
                f"{_LLAMA3_PIPELINE},cp=1",
                NO_ZERO_BUBBLE,
                is_ramp=True,
                ran_in_memory=True,
            ),
            Phase(
                2.618e12,
                8192,
                1024,
                8192,
                f"{_LLAMA3_PIPELINE},cp=1",
                NO_ZERO_BUBBLE,
                is_ramp=True,
                ran_in_memory=True,
            ),
            Phase(
                11.93e12,
                16384,
                2048,
                8192,
                f"{_LLAMA3_PIPELINE},cp=1",
                NO_ZERO_BUBBLE,
                ran_in_memory=True,
            ),
            Phase(0.8e12, 16384, 128, 131072, "tp=8,cp=16,pp=16,micro_batch=1", NO_ZERO_BUBBLE),
        ),
        gpu_hours=30_840_000,
        terms=Terms(),
        sources=(
            "30.84M H100-80GB hours: github:meta-llama/llama-models models/llama3_1/MODEL_CARD.md",
            "15.6T tokens; 4M tokens of 4,096 until 252M, 8M until 2.87T, 16M after; about 800B"
            " tokens of long context: arXiv:2407.21783, sections 3.4.1 and 3.4.2 (recalled)",
            "8K sequences without activation checkpointing: arXiv:2407.21783, section 3.3.2",
            "layouts of Table 4, as in glennklockwood.com/garden/llama-3.1",
            "419 interruptions in 54 days: arXiv:2407.21783, section 3.3.4",
        ),
        assumed="8,192 GPUs up to 2.87T; long context at its last length throughout",
    ),
    Published(
        name="BLOOM 176B",
        model="bloom-176b",
        cluster="dgx-a100-80gb",
        stack="megatron-deepspeed",
        precision="bf16",
        phases=(
            *_BLOOM_RAMP,
            Phase(
                366e9 - _BLOOM_RAMP_SAMPLES * 2048, 384, 2048, 2048, _BLOOM_LAYOUT, is_whole=True
            ),
        ),
        gpu_hours=1_082_990,
        terms=Terms(device_mtbf_s=384 * 7 * DAY_S / 1.5, checkpoint_s=40, interval_s=3 * HOUR_S),
        sources=(
            "366B tokens, 1,082,990 A100-80GB hours: arXiv:2211.02001 (Luccioni et al.)",
            "layout, batch ramp 192 by 16 over 9,765,625 samples:"
            " github:bigscience-workshop/bigscience train/tr11-176B-ml",
            "1 to 2 failures a week, a checkpoint of 40 s every 3 hours: BLOOM paper and"
            " github:stas00/ml-engineering (failures recalled)",
        ),
        assumed="DGX A100 nodes stand in for Jean Zay's",
    ),
    Published(
        name="OPT-175B",
        model={
            "model_type": "opt",
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "ffn_dim": 49152,
            "hidden_size": 12288,
            "max_position_embeddings": 2048,
            "num_attention_heads": 96,
            "num_hidden_layers": 96,
            "vocab_size": 50272,
            "word_embed_proj_dim": 12288,
        },
        cluster="azure-ndm-a100-v4",
        stack="megatron-lm-2021",
        precision="fp16",
        phases=(Phase(300e9, 992, 992, 2048, "tp=8,pp=1,cp=1,zero=3,recompute=full"),),
        gpu_hours=809_472,
        terms=Terms(device_mtbf_s=992 * 56 * DAY_S / 53.5),
        sources=(
            "992 A100-80GB, FSDP with Megatron-LM's tensor parallelism, 2M tokens a batch:"
            " arXiv:2205.01068",
            "300B tokens, 809,472 GPU hours: metaseq's logbook (34 days of 992 GPUs) and"
            " arXiv:2211.05100, section on other models' footprints (recalled)",
            "53 or 54 restarts in 56 days: zrss.github.io notes on the logbook",
        ),
        assumed="tensor parallelism of 8, one recomputation, restarts of 11 minutes",
    ),
    Published(
        name="DeepSeek-V3",
        model="deepseek-v3",
        cluster="deepseek-v3-h800",
        stack="generic",
        precision="fp8-block",
        phases=(
            Phase(0.469e12, 2048, 9216, 4096, _DEEPSEEK_LAYOUT, is_ramp=True, ran_in_memory=True),
            Phase(14.331e12, 2048, 15360, 4096, _DEEPSEEK_LAYOUT, ran_in_memory=True),
        ),
        gpu_hours=2_664_000,
        terms=Terms(),
        sources=(
            "14.8T tokens, 2.664M H800 hours, 2,048 GPUs, batch 3,072 to 15,360 over 469B tokens,"
            " pp 16, ep 64, ZeRO 1, FP8; norms, MLA's up-projections and SwiGLU recomputed:"
            " arXiv:2412.19437, sections 3.2, 3.3 and 4.2",
        ),
        assumed="the ramp at its middle; DualPipe by the schedule that the planner chooses",
    ),
    Published(
        name="MT-NLG 530B",
        model={
            "model_type": "gpt2",
            "vocab_size": 50257,
            "n_positions": 2048,
            "n_embd": 20480,
            "n_layer": 105,
            "n_head": 128,
            "activation_function": "gelu_new",
            "tie_word_embeddings": True,
            "layer_norm_epsilon": 1e-5,
            "initializer_range": 0.02,
        },
        cluster="nvidia-selene",
        stack="megatron-deepspeed",
        precision="bf16",
        phases=(Phase(270e9, 2240, 1920, 2048, _MT_NLG_LAYOUT),),
        gpu_hours=270e9 / (1920 * 2048) * 60.1 * 2240 / 3600,
        terms=Terms(device_mtbf_s=float("inf"), checkpoint_s=0),
        sources=(
            "270B tokens; 1,920 sequences of 2,048; tp 8, pp 35, dp 8; 1F1B; 60.1 s a step on 280"
            " DGX A100: arXiv:2201.11990, sections 2.4 and 3",
        ),
        assumed="the total is the published step time times all steps: no total is published, so"
        " that failures and the ramp of the batch are left out on both sides",
    ),
)
