"""The rules that Megatron-LM sets for its arguments, by number."""
