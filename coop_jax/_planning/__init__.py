"""Problems in, schedules out: planners, arena, assignment model. No JAX."""
