"""The version, and the JAX versions it works with.

Imported before the rest of the package, so that an old JAX is refused in words and not
by a missing name somewhere.
"""

import jax

__version__ = "0.1.0"

OLDEST_JAX = (0, 11, 2)


def check_jax(version: str) -> None:
    """Raises an ImportError if this version of JAX is too old.

    Args:
      version: as in `jax.__version__`.
    """
    numbers = tuple(int(n) if n.isdigit() else 0 for n in version.split(".")[:3])
    if numbers < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        raise ImportError(
            f"coop_jax needs jax >= {oldest}, and this is jax {version}: XLA on CPU "
            "then removed the barriers that a plan is made of. Run "
            f"`pip install -U 'jax>={oldest}'`."
        )


check_jax(jax.__version__)
