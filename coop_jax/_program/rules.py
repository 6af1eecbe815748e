"""What the user has ruled about what may be computed again, and what must be."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.extend.core as jexc

type Never = Iterable[str | jexc.Primitive] | Callable[[jexc.JaxprEqn], bool]
"""Primitives, by themselves or by name, or a claim about an equation."""

_NAMING = "name"
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that hold for every plan of a step.

    Attributes:
      override_checkpoint: whether plans see through the step's `jax.checkpoint`s.
      recompute_collectives: whether communication may be done again.
      save_names: values of these names (`checkpoint_name`) are computed once.
      recompute_names: values of these names are not kept for the backward pass.
      never_recompute: names of primitives that run once, or a claim about equations.
    """

    override_checkpoint: bool = False
    recompute_collectives: bool = False
    save_names: tuple[str, ...] = ()
    recompute_names: tuple[str, ...] = ()
    never_recompute: tuple[str, ...] | Callable[[jexc.JaxprEqn], bool] = ()

    def pins(self, eqn: jexc.JaxprEqn) -> bool:
        """Whether the equation must not run again, or holds one that must not."""
        if not self.never_recompute and not self.save_names:
            return False
        return self._never(eqn) or any(
            self._never(each) or name_of(each) in self.save_names
            for body in jexc.jaxprs_in_params(eqn.params)
            for each in _equations(body)
        )

    def key(self, closed: Any) -> dict[str, Any]:
        """All that decides plans of this step, to be written as JSON."""
        never = self.never_recompute
        if callable(never):
            never = [k for k, eqn in enumerate(_equations(closed)) if never(eqn)]
        return {
            "override_checkpoint": self.override_checkpoint,
            "recompute_collectives": self.recompute_collectives,
            "save_names": self.save_names,
            "recompute_names": self.recompute_names,
            "never_recompute": never,
        }

    def check(self, closed: Any) -> None:
        """Makes sure that all names occur in the step.

        Raises:
          ValueError: one does not.
        """
        names = dict.fromkeys(map(name_of, _equations(closed)))
        named = sorted(name for name in names if name is not None)
        for option in ("save_names", "recompute_names"):
            for name in getattr(self, option):
                _require(option, name, named, "`checkpoint_name`s")
        if isinstance(self.never_recompute, tuple):
            present = sorted({eqn.primitive.name for eqn in _equations(closed)})
            for name in self.never_recompute:
                _require("never_recompute", name, present, "primitives")

    def _never(self, eqn: jexc.JaxprEqn) -> bool:
        if isinstance(self.never_recompute, tuple):
            return eqn.primitive.name in self.never_recompute
        return bool(self.never_recompute(eqn))


NO_RULES = Rules()


def make_rules(
    override_checkpoint: Any,
    recompute_collectives: Any,
    save_names: Any,
    recompute_names: Any,
    never_recompute: Any,
) -> Rules:
    """Rules as `coop_jax.remat` takes them.

    Raises:
      TypeError: names are not strings, or primitives not primitives.
      ValueError: a name is to be saved and recomputed.
    """
    save = _strings("save_names", save_names)
    again = _strings("recompute_names", recompute_names)
    if both := sorted(set(save) & set(again)):
        raise ValueError(
            f"{both[0]!r} is in `save_names` and in `recompute_names`: take it out of "
            "one of them."
        )
    rules = Rules(bool(override_checkpoint), bool(recompute_collectives), save, again)
    if callable(never_recompute):
        return replace(rules, never_recompute=never_recompute)
    return replace(rules, never_recompute=_primitive_names(never_recompute))


def name_of(eqn: Any) -> str | None:
    """The name that an equation (of JAX's or ours) gives its value, if it does."""
    return eqn.params["name"] if eqn.primitive.name == _NAMING else None


def _strings(option: str, names: Any) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    for name in found:
        if not isinstance(name, str):
            raise TypeError(
                f"`{option}` takes names as strings, not {type(name).__name__}: write "
                f'`{option}=("attention",)`.'
            )
    return tuple(sorted(set(found)))


def _primitive_names(primitives: Any) -> tuple[str, ...]:
    if isinstance(primitives, str | jexc.Primitive):
        primitives = (primitives,)
    names = [getattr(primitive, "name", primitive) for primitive in primitives]
    return _strings("never_recompute", names)


def _require(option: str, name: str, present: list[str], kind: str) -> None:
    if name in present:
        return
    near = difflib.get_close_matches(name, present, 1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(map(repr, present[:_MOST_LISTED])) or "none"
    if len(present) > _MOST_LISTED:
        listed += f", and {len(present) - _MOST_LISTED} more"
    raise ValueError(
        f"`{option}`: {name!r} does not occur in this step, whose {kind} are: "
        f"{listed}.{meant}"
    )


def _equations(closed: Any) -> Iterator[jexc.JaxprEqn]:
    """All equations of a jaxpr and of those inside them, in order."""
    for eqn in getattr(closed, "jaxpr", closed).eqns:
        yield eqn
        for body in jexc.jaxprs_in_params(eqn.params):
            yield from _equations(body)
