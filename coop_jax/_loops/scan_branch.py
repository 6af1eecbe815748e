"""The cheapest choice within given bytes, between the corners. Imports no JAX.

At a price per byte the best choice is a minimum cut (`_planning/seam`); within given
bytes it is a knapsack problem on top. It is solved by branch and bound: the price at
which two cuts meet, one within the bytes and one over them, bounds the cost of all
choices from below (Lagrange relaxation, Everett 1963); where the bound leaves room, the
largest value that one of the two carries and the other does not is carried in one
branch and not in the other. The branch with the lowest bound comes first. After a
number of branches the best choice found is taken as it is, so it is not always the
optimum.
"""

import heapq
from dataclasses import dataclass

from .._planning.seam import Choice, SeamCuts, SeamProblem, narrowed
from .._planning.types import ValueId
from .scan_plan import Keeping, as_keeping

_MOST_BRANCHES = 24
_EQUAL = 1e-9
"""Share of the cost of both bodies below which costs are equal."""
_WORTH_A_BRANCH = 1e-3
"""Share that a branch must promise to save."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """Some values decided, and the two cuts between which the others are.

    Attributes:
      carried, gone: values decided.
      few: a choice within the bytes.
      many: a choice over them, as good as `few` at `price`.
      bound: no choice of the branch costs less.
    """

    carried: frozenset[ValueId]
    gone: frozenset[ValueId]
    few: Choice
    many: Choice
    price: float
    bound: float


def keep_within(body: SeamProblem, row: int) -> Keeping | None:
    """The cheapest choice found that stacks at most `row` bytes; None if none does."""
    search = _BranchAndBound(body, row)
    search.run()
    return search.best and as_keeping(body, search.best.repeated)


class _BranchAndBound:
    def __init__(self, body: SeamProblem, row: int) -> None:
        self.body = body
        self._cuts = SeamCuts(body)
        self.row = row
        self.best: Choice | None = None
        self._queue: list[tuple[float, int, _Branch]] = []
        self._count = 0

    def run(self) -> None:
        self._open(frozenset(), frozenset(), None)
        for _ in range(_MOST_BRANCHES):
            if not self._queue or self._is_beaten(self._queue[0][0]):
                return
            branch = heapq.heappop(self._queue)[2]
            value = self._largest_difference(branch)
            self._open(branch.carried | {value}, branch.gone, branch)
            self._open(branch.carried, branch.gone | {value}, branch)

    def _largest_difference(self, branch: _Branch) -> ValueId:
        values = self.body.problem.values
        differing = branch.many.carried - branch.few.carried
        return max(differing, key=lambda v: (values[v].size, v))

    def _open(
        self,
        carried: frozenset[ValueId],
        gone: frozenset[ValueId],
        parent: _Branch | None,
    ) -> None:
        """Bounds a branch and queues it, if it may hold a better choice."""

        def cut(price: float) -> Choice:
            return self._cuts.at(price, carried, gone)

        # What the parent knew and the branch allows need not be found again.
        few = parent.few if parent and carried == parent.carried else None
        many = parent.many if parent and gone == parent.gone else None
        if parent:
            near = cut(parent.price)
            few, many = (near, many) if near.row <= self.row else (few, near)
        few = few or cut(self.body.highest_price)
        if few.row > self.row or not self._is_possible(few, gone):
            return
        self._offer(few)
        many = many or cut(self.body.lowest_price)
        if many.row <= self.row:
            self._offer(many)
            return
        equal = _EQUAL * self.body.highest_price
        branch = None
        for found in narrowed(cut, few, many, self.row, equal):
            branch = _Branch(carried, gone, *found)
            self._offer(branch.few)
            if parent and self._is_beaten(branch.bound):
                return
        assert branch is not None
        self._count += 1
        heapq.heappush(self._queue, (branch.bound, self._count, branch))

    def _is_possible(self, choice: Choice, gone: frozenset[ValueId]) -> bool:
        """Whether the choice does without these values and repeats what may be."""
        ops = self.body.problem.ops
        can_repeat = all(ops[k].is_recomputable for k in choice.repeated)
        return can_repeat and not choice.carried & gone

    def _offer(self, choice: Choice) -> None:
        if self.best is None or choice.cost < self.best.cost:
            self.best = choice

    def _is_beaten(self, bound: float) -> bool:
        least = _WORTH_A_BRANCH * self.body.highest_price
        return self.best is not None and bound >= self.best.cost - least
