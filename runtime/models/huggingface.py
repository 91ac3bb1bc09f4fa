"""Hugging Face weights in and out: names and layouts of gpt2, llama, qwen2 and mistral.

Ours are fused: one of our global tensors is several of theirs one behind the other along the first
dimension. GPT-2 stores its matrices transposed (``Conv1D``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from shardwright.runtime.parallel.shards import shard_of
from shardwright.specs.errors import InputError
from shardwright.specs.model import AttentionBlock, MlpBlock, ModelSpec

Read = Callable[[str], Tensor]
"""A whole tensor by its Hugging Face name; raises `KeyError` where there is none."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one of our global tensors comes from."""

    names: tuple[str, ...]
    """Hugging Face tensors that lie one behind the other in ours."""
    sizes: tuple[int, ...]
    """Their lengths along our first dimension."""
    transposed: bool = False


def sources(model: ModelSpec) -> dict[str, Source]:
    """Each of the model's global tensors by name.

    Raises:
        InputError: the family has no Hugging Face names that we know.
    """
    if model.family == "gpt2":
        return _gpt2_sources(model)
    if model.family in ("llama", "qwen2", "mistral"):
        return _llama_sources(model)
    raise InputError(
        f"no Hugging Face tensor names are known for models of the family {model.family!r}",
        fix="use a model of the families gpt2, llama, qwen2 or mistral",
    )


@torch.no_grad()
def load_hugging_face_(parameters: Iterable[nn.Parameter], model: ModelSpec, read: Read) -> None:
    """Give parameters with a ``shard`` their part of Hugging Face weights.

    Raises:
        InputError: a tensor is missing, or has another shape than the model.
    """
    where = sources(model)
    for parameter in parameters:
        shard = shard_of(parameter)
        full = _read_source(where[shard.name], read)
        if tuple(full.shape) != shard.global_shape:
            raise InputError(
                f"{' + '.join(where[shard.name].names)} has the shape {tuple(full.shape)}, the"
                f" model's {shard.name} {shard.global_shape}",
                fix="use weights of the same model as the plan",
            )
        parameter.copy_(shard.take(full))


def to_hugging_face(model: ModelSpec, full: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face tensors from our global ones; a tied head is left out, as they do."""
    out: dict[str, Tensor] = {}
    for name, source in sources(model).items():
        tensor = full[name].t() if source.transposed else full[name]
        parts = [tensor] if len(source.names) == 1 else tensor.split(source.sizes)
        out |= {
            part_name: part.contiguous()
            for part_name, part in zip(source.names, parts, strict=True)
        }
    return out


class HuggingFaceFolder:
    """A folder of safetensors files; calling it reads a tensor."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            InputError: the folder has no readable safetensors files.
        """
        self._folder = folder
        self._file_of = _files_by_tensor(folder)

    @property
    def names(self) -> tuple[str, ...]:
        """The Hugging Face names of its tensors."""
        return tuple(self._file_of)

    def __call__(self, name: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        path = self._folder / self._file_of[name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{path} cannot be read: {error}", fix="download the model's weights again"
            ) from None
        return tensor


def _files_by_tensor(folder: Path) -> dict[str, str]:
    from safetensors import SafetensorError, safe_open

    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.is_file():
            weight_map = json.loads(index.read_text())["weight_map"]
            return {str(name): str(file) for name, file in weight_map.items()}
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single.name)
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise InputError(
            f"{folder} has no readable safetensors weights: {error}",
            fix="give the folder of a model saved with save_pretrained(..., "
            "safe_serialization=True)",
        ) from None


def _read_source(source: Source, read: Read) -> Tensor:
    parts = [_read_either(name, read) for name in source.names]
    full = parts[0] if len(parts) == 1 else torch.cat(parts)
    return full.t() if source.transposed else full


def _read_either(name: str, read: Read) -> Tensor:
    """By its full name, or without the base model's prefix, as older files have it."""
    for candidate in (name, name.partition(".")[2]):
        try:
            return read(candidate)
        except KeyError:
            continue
    raise InputError(
        f"the weights have no tensor {name}", fix="use weights of the same model as the plan"
    )


def _bodies(model: ModelSpec) -> tuple[AttentionBlock, MlpBlock]:
    layer = next(model.decoder.layers())
    attention, mlp = (branch.body for branch in layer.branches)
    assert isinstance(attention, AttentionBlock)
    assert isinstance(mlp, MlpBlock)
    return attention, mlp


def _gpt2_sources(model: ModelSpec) -> dict[str, Source]:
    out = {
        "embedding.weight": _one("transformer.wte.weight"),
        "embedding.positions": _one("transformer.wpe.weight"),
        "final_norm.weight": _one("transformer.ln_f.weight"),
        "final_norm.bias": _one("transformer.ln_f.bias"),
    }
    names = {
        "attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.output": "attn.c_proj",
        "mlp_norm": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
    }  # fmt: skip
    for layer in range(model.decoder.num_layers):
        for ours, theirs in names.items():
            for kind in ("weight", "bias"):
                is_matrix = kind == "weight" and "norm" not in ours
                out[f"layers.{layer}.{ours}.{kind}"] = Source(
                    (f"transformer.h.{layer}.{theirs}.{kind}",), (0,), transposed=is_matrix
                )
    if not model.head.tied:
        out["head.weight"] = _one("lm_head.weight")
    return out


def _llama_sources(model: ModelSpec) -> dict[str, Source]:
    attention, mlp = _bodies(model)
    qkv_sizes = (attention.query_size, attention.kv_size, attention.kv_size)
    out = {
        "embedding.weight": _one("model.embed_tokens.weight"),
        "final_norm.weight": _one("model.norm.weight"),
    }
    for layer in range(model.decoder.num_layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        out[f"{ours}.attention_norm.weight"] = _one(f"{theirs}.input_layernorm.weight")
        out[f"{ours}.mlp_norm.weight"] = _one(f"{theirs}.post_attention_layernorm.weight")
        for kind in ("weight", "bias"):
            names = tuple(f"{theirs}.self_attn.{part}_proj.{kind}" for part in "qkv")
            out[f"{ours}.attention.qkv.{kind}"] = Source(names, qkv_sizes)
            out[f"{ours}.attention.output.{kind}"] = _one(f"{theirs}.self_attn.o_proj.{kind}")
            names = tuple(f"{theirs}.mlp.{part}_proj.{kind}" for part in ("gate", "up"))
            out[f"{ours}.mlp.gate_up.{kind}"] = Source(names, (mlp.ffn_size,) * 2)
            out[f"{ours}.mlp.down.{kind}"] = _one(f"{theirs}.mlp.down_proj.{kind}")
    absent = {
        "attention.qkv.bias": not attention.qkv_bias,
        "attention.output.bias": not attention.output_bias,
        "mlp.gate_up.bias": not mlp.bias,
        "mlp.down.bias": not mlp.bias,
    }
    out = {
        name: source
        for name, source in out.items()
        if not any(is_absent and name.endswith(end) for end, is_absent in absent.items())
    }
    if not model.head.tied:
        out["head.weight"] = _one("lm_head.weight")
    return out


def _one(name: str) -> Source:
    return Source((name,), (0,))
