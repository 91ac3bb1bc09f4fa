if not __name__.startswith("shardwright."):
    raise ImportError(
        "import shardwright.hardware_profiles, not the bare folder name hardware_profiles"
    )
