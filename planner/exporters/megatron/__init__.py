"""Megatron-LM: arguments by version, and its own rules for them."""
