"""torchtitan: its TOML configuration, and its models with a plan's sizes."""
