"""Plans over several groups of nodes: pipelines across groups, replicas of unequal grids.

A layout is made of sets of replicas. Each set has some of the groups, one behind the other as
segments of its pipeline, and a count of micro-batches of its own. `space` says which there are,
`units` prices what they are made of, `bounds` and `sets` find the best of one set for a share of
the batch, `search` the best arrangement of all, `engine` compares it with simpler uses.
"""
