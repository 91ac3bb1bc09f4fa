if not __name__.startswith("shardwright."):
    raise ImportError("import shardwright.runtime, not the bare folder name runtime")
