"""From a problem to a compiled program that fits: search, emit, verify."""
