"""Each block described once: operations, parameters, saved tensors and collectives of one rank."""
