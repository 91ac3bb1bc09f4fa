"""The search over layouts of every model family on software stacks.

Our own runtime's layouts are searched boundary by boundary (`planner.search`). Here every parallel
dimension is open, and boundaries follow from the priced work of the layers.
"""
