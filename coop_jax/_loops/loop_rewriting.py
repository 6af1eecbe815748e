"""A step with its scan pairs rewritten, and bodies of its loops planned."""

from dataclasses import dataclass

from .._fitting.solve import Workbench
from .loop_plan import Variant
from .loop_report import BodyPlan, LoopPlan


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """A rewritten step, and its workbench.

    Attributes:
      variants: per pair.
      bodies: loops planned inside.
    """

    variants: tuple[Variant, ...]
    plans: tuple[LoopPlan, ...]
    bodies: tuple[BodyPlan, ...]
    bench: Workbench

    @property
    def cost(self) -> float:
        """Seconds beyond those of the step as written, by the cost model."""
        return sum(v.cost for v in self.variants) + sum(b.cost for b in self.bodies)
