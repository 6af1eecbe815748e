"""Measurements of `coop_jax` on whole training steps; not part of the package."""
