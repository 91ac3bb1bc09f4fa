if not __name__.startswith("shardwright."):
    raise ImportError("import shardwright.cost_models, not the bare folder name cost_models")
