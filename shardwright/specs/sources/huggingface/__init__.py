"""A `ModelSpec` from the facts of a Hugging Face ``config.json``.

One pydantic record per ``model_type`` states which fields decide the architecture, with the
defaults of the `transformers` library. A field that is neither read nor known to leave the
architecture alone is refused by name: a model that we do not fully understand is not planned for.
"""

from shardwright.specs.sources.huggingface.fields import ModelHead
from shardwright.specs.sources.huggingface.read import (
    ModelSource,
    model_from_config,
    supported_model_types,
)

__all__ = ["ModelHead", "ModelSource", "model_from_config", "supported_model_types"]
