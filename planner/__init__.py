if not __name__.startswith("shardwright."):
    raise ImportError("import shardwright.planner, not the bare folder name planner")
