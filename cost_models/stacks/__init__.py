"""What a step costs on software with fused kernels, for every model family.

`cost_models.blocks` describes our runtime's own kernels, one by one. This package describes the
same mathematics as mature training stacks run it: fused element-wise kernels, any parallel
dimension, overlapped communication. Tests hold the two together where both cover a model.
"""
