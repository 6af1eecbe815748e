"""The planners a user can choose from, by name."""

from ._planner import plan
from ._solve import Planner

PLANNERS: dict[str, Planner] = {"coop": plan}
"""Planner by the name that `coop_jax.remat(..., policy=...)` takes."""
