"""Shell scripts, read without running anything: what they would start, and with which words."""
