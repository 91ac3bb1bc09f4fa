"""A model as Megatron-LM's arguments: its GPT with attention and MLP or experts in every layer."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.planner.exporters.exported import Findings, Job
from shardwright.planner.exporters.megatron.arguments import Option
from shardwright.planner.exporters.megatron.bodies import attention_options, mlp_options
from shardwright.planner.exporters.megatron.experts import expert_options
from shardwright.planner.exporters.megatron.versions import MegatronVersion
from shardwright.specs import ModelSpec
from shardwright.specs.blocks import (
    EmbeddingBlock,
    HeadBlock,
    LayerBlock,
    PredictionBlock,
    ResidualBranch,
)
from shardwright.specs.bodies import (
    AttentionBlock,
    BranchBody,
    LatentAttentionBlock,
    MlpBlock,
    MoeBlock,
    NormBlock,
)

_KINDS = {"embedding", "layer", "norm", "head", "mtp"}


def model_options(job: Job, version: MegatronVersion, findings: Findings) -> list[Option]:
    """Sizes and kinds of the model; what its GPT does not have goes to ``findings``."""
    model = job.model
    if not _is_gpt(model, findings):
        return []
    layers = list(model.decoder.layers())
    for layer in {layer: None for layer in layers}:
        _check_layer(layer, findings)
    attentions = _distinct(layers, (AttentionBlock, LatentAttentionBlock))
    mlps, experts = _distinct(layers, (MlpBlock,)), _distinct(layers, (MoeBlock,))
    if len(attentions) != 1 or len(mlps) > 1 or len(experts) > 1:
        findings.refuse(
            "layers", f"layers of {len(attentions)} kinds of attention, {len(mlps)} of MLP and"
            f" {len(experts)} of experts; pretrain_gpt.py has one of each at most",
        )  # fmt: skip
        return []
    found: list[Option] = [
        ("--num-layers", str(len(layers))),
        ("--hidden-size", str(model.decoder.hidden_size)),
    ]
    found += attention_options(attentions[0], model, version, findings)
    found += mlp_options([*mlps, *experts], attentions[0], findings)
    found += _norm_options(model, findings)
    found += _ends(model, findings)
    found += _positions(job)
    if experts:
        found += expert_options(experts[0], layers, version, findings)
    found += _predictions(model, version, findings)
    found.append(("--init-method-std", f"{model.initializer_range:g}"))
    return found


def _is_gpt(model: ModelSpec, findings: Findings) -> bool:
    """Whether it is one decoder of layers with attention first, then an MLP or experts."""
    kinds = {block.kind for block in model.decoder.blocks}
    if len(model.towers) > 1 or not model.is_language_model or not kinds <= _KINDS:
        what = ", ".join([*(t.name for t in model.towers[:-1]), *sorted(kinds - _KINDS)])
        findings.refuse(
            "model", f"pretrain_gpt.py trains decoders only, and {model.name} has"
            f" {what or 'no vocabulary'} beside",
        )  # fmt: skip
        return False
    for layer in model.decoder.layers():
        bodies = [type(branch.body) for branch in layer.branches]
        is_usual = (
            len(bodies) == 2
            and issubclass(bodies[0], AttentionBlock | LatentAttentionBlock)
            and issubclass(bodies[1], MlpBlock | MoeBlock)
        )
        if not is_usual:
            words = " and ".join(branch.body.kind for branch in layer.branches) or "nothing"
            findings.refuse(
                "layers", f"a layer of {words}; those of pretrain_gpt.py are attention, then an MLP"
                " or experts",
            )  # fmt: skip
            return False
    return True


def _check_layer(layer: LayerBlock, findings: Findings) -> None:
    unusual = [
        "parallel branches" if layer.parallel else "",
        *(word for branch in layer.branches for word in _unusual_branch(branch)),
    ]
    for word in dict.fromkeys(filter(None, unusual)):
        findings.refuse("layers", f"layers have {word}, which pretrain_gpt.py has no option for")


def _unusual_branch(branch: ResidualBranch) -> Iterator[str]:
    if branch.pre_norm is None:
        yield "no norm before a branch"
    if branch.post_norm is not None:
        yield "a norm after a branch"
    if branch.scale is not None or branch.learned_scale:
        yield "scaled branches"


def _distinct(layers: list[LayerBlock], kinds: tuple[type, ...]) -> list[BranchBody]:
    bodies = (branch.body for layer in layers for branch in layer.branches)
    return list(dict.fromkeys(body for body in bodies if isinstance(body, kinds)))


def norms_of(model: ModelSpec) -> list[NormBlock]:
    """The different norms of its layers and of its end."""
    branches = (branch for layer in model.decoder.layers() for branch in layer.branches)
    found = [branch.pre_norm for branch in branches if branch.pre_norm is not None]
    return list(dict.fromkeys([*found, model.final_norm]))


def _norm_options(model: ModelSpec, findings: Findings) -> Iterator[Option]:
    norms = norms_of(model)
    norm = norms[0]
    is_rms = norm.type == "rms_norm"
    if len(norms) > 1 or not norm.weight or norm.bias == is_rms:
        findings.refuse(
            "norms", "norms differ, or lack a scale, or have a bias where Megatron-LM's have none",
        )  # fmt: skip
    yield ("--normalization", "RMSNorm" if is_rms else "LayerNorm")
    yield ("--norm-epsilon", f"{norm.epsilon:g}")
    if norm.unit_offset:
        yield ("--apply-layernorm-1p",)


def _ends(model: ModelSpec, findings: Findings) -> Iterator[Option]:
    embedding, head = model.embedding, model.head
    for word in (*_unusual_embedding(embedding), *_unusual_head(head)):
        findings.refuse("ends", f"{word}, which pretrain_gpt.py has no option for")
    if not head.tied:
        yield ("--untie-embeddings-and-output-weights",)


def _unusual_embedding(block: EmbeddingBlock) -> Iterator[str]:
    if block.num_token_types is not None:
        yield "the embedding has token types"
    if block.norm is not None:
        yield "a norm follows the embedding"
    if block.table_size is not None or block.shared or block.num_relative_positions:
        yield "the embedding's table is factorised, shared or relative"
    if block.scale is not None:
        yield "embeddings are scaled"


def _unusual_head(block: HeadBlock) -> Iterator[str]:
    if block.bias or block.transform is not None or block.table_size is not None:
        yield "the head has a bias or a transform"
    if block.scale is not None or block.softcap is not None or block.normalized:
        yield "logits are scaled, capped or normalised"


def _positions(job: Job) -> Iterator[Option]:
    """Learned positions are a table of that length; others only need room for a sequence."""
    learned = job.model.embedding.max_positions
    length = learned or max(job.model.max_seq_len or 0, job.training.seq_len)
    yield ("--max-position-embeddings", str(length))


def _predictions(
    model: ModelSpec, version: MegatronVersion, findings: Findings
) -> Iterator[Option]:
    block = prediction_of(model)
    if block is None:
        return
    last = list(model.decoder.layers())[-1]
    if not version.has_predictions:
        findings.refuse(
            "predictions", f"{version.rules.version} has no multi-token prediction", "main"
        )
    if block.layer.branches != last.branches:
        findings.refuse(
            "predictions", "the layer of multi-token prediction differs from the last layer, of"
            " which Megatron-LM makes it",
        )  # fmt: skip
    yield ("--mtp-num-layers", str(block.depth))


def prediction_of(model: ModelSpec) -> PredictionBlock | None:
    """The block of multi-token prediction, where there is one."""
    found = (block for block in model.decoder.blocks if isinstance(block, PredictionBlock))
    return next(found, None)
