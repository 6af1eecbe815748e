"""Says what to install where an optional library is missing."""

import importlib.util


def require(module: str, extra: str, purpose: str) -> None:
    """Raises an ImportError that names the extra if a library is missing.

    Args:
      module: the library, as it is imported.
      extra: of this package, which installs it.
      purpose: what it is needed for, in a word.
    """
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"{purpose} need {module}, which is not installed: "
            f"`pip install {module}`, or coop_jax with the extra `{extra}`. "
            "`print(plan)`, `plan.table()` and HTML need nothing."
        )
