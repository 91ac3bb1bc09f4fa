"""Megatron-LM launch scripts and YAML files, read into our nouns."""
