"""Operations that XLA's analysis leaves out where JAX draws random words in a loop.

For CPU JAX writes the rounds of Threefry as a loop of five iterations. The analysis
counts one of them: 65 operations less for each word than of the same rounds in a
straight line, as `coop_jax` writes them.
"""

import math

from coop_jax._program.threefry import WORDS
from coop_jax._program.trace import Program

LEFT_OUT = 65
"""Operations of a word."""


def left_out(program: Program) -> int:
    """Operations left out of a step as JAX compiles it, whose flat program this is."""
    drawn = (e for e in program.equations if e.primitive is WORDS)
    return LEFT_OUT * sum(math.prod(each.params["shape"]) for each in drawn)
