"""From a step to its flat program, and from XLA's baseline to a problem."""
