"""Eviction policies of the online executor, as values. Imports no JAX.

`COOP` is the paper's; three ablations; DTE and DTR as the authors of Coop ran them.
`SIZE_TERM` is Coop with the one thing that DTR weighs and Coop does not: bytes.
`LOOKAHEAD` is Coop for a planner that holds the whole step: what is evicted first is
what waits longest for its next use, not what has waited longest since its last.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """What to evict, and where values go.

    Evicted first is what has the least `cost / (staleness * size term)`; the cost is
    that of the op and its evicted neighbours, staleness is on the cost clock.

    Attributes:
      is_windowed: evict the cheapest contiguous window; else the single cheapest value
        anywhere, again and again until the allocation succeeds.
      size_term: 1, the value's bytes, or those and the free bytes next to it.
      is_partitioned: expensive outputs grow from the low end, cheap from the high end.
      is_in_place: outputs take the bytes of inputs that die; else they are copies.
      looks_ahead: the time to the next use takes the place of staleness.
    """

    name: str
    is_windowed: bool
    size_term: Literal["none", "size", "size and free"]
    is_partitioned: bool
    is_in_place: bool
    looks_ahead: bool = False


COOP = Policy("coop", True, "none", True, True)
NO_PARTITION = Policy("coop-no-partition", True, "none", False, True)
COPY_ON_WRITE = Policy("coop-copy-on-write", True, "none", True, False)
NO_WINDOW = Policy("coop-no-window", False, "size and free", True, True)
SIZE_TERM = Policy("coop-size-term", True, "size", True, True)
DTE = Policy("dte", False, "size and free", False, False)
DTR = Policy("dtr", False, "size", False, False)
LOOKAHEAD = Policy("coop-lookahead", True, "none", True, True, looks_ahead=True)
POLICIES = (COOP, NO_PARTITION, COPY_ON_WRITE, NO_WINDOW, SIZE_TERM, DTE, DTR)
