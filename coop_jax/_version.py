"""The version, for `coop_jax.__version__` and for what plans are stamped with."""

__version__ = "0.1.0"
