"""Text on disk to batches in memory: corpus -> tokenizer -> memory-mapped token file -> batches."""
