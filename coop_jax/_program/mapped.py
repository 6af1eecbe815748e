"""What `jax.shard_map` does around what a step does on each device."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

type Whole = Callable[..., list[Any]]
"""A function of whole arrays."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """How the arrays of one device make up those of all.

    Attributes:
      mesh: of the devices.
      reads: positions of what is read of the flat arguments, and of what `before` makes
        of them.
      in_specs: of these.
      out_specs: of the results.
      check_vma: whether JAX checks what varies from device to device.
      before: what is computed of whole arrays first, from the flat arguments.
      after: what is computed of whole arrays last, from the flat arguments and the
        results: the flat outputs. Without it the results are.
    """

    mesh: Any
    reads: tuple[int, ...]
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]
    check_vma: bool
    before: Whole | None = None
    after: Whole | None = None

    def around(self, function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """The step with `function` run on every device: flat arguments -> outputs.

        Args:
          function: of the flat arguments, and of what `before` makes of them; given
            None for those that nothing reads.
        """
        on_all = self._on_all(function)

        @functools.wraps(function)
        def whole(*values: Any) -> list[Any]:
            made = self.before(*values) if self.before else []
            results = on_all(*values, *made)
            return self.after(*values, *results) if self.after else results

        return whole

    def _on_all(self, function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def on_all(*values: Any) -> list[Any]:
            def local(*parts: Any) -> list[Any]:
                arguments: list[Any] = [None] * len(values)
                for k, part in zip(self.reads, parts, strict=True):
                    arguments[k] = part
                return function(*arguments)

            mapped = jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=self.in_specs,
                out_specs=list(self.out_specs),
                check_vma=self.check_vma,
            )
            return mapped(*(values[k] for k in self.reads))

        return on_all

    def placed(self, structs: Sequence[Any]) -> tuple[Any, ...]:
        """Flat arguments, those of no known sharding placed as the map reads them."""
        if not isinstance(self.mesh, Mesh):
            return tuple(structs)
        found = list(structs)
        for k, spec in zip(self.reads, self.in_specs, strict=True):
            if k < len(found) and found[k].sharding is None:
                found[k] = found[k].update(sharding=NamedSharding(self.mesh, spec))
        return tuple(found)

    def trace(self, function: Callable[..., list[Any]], avals: Sequence[Any]) -> Any:
        """The closed jaxpr of whole arrays, of `function` of arrays of these types."""
        specs = dict(zip(self.reads, self.in_specs, strict=True))
        structs = []
        for k, aval in enumerate(avals):
            spec = specs.get(k, PartitionSpec())
            struct = jax.ShapeDtypeStruct(
                self._whole_shape(aval.shape, spec),
                aval.dtype,
                sharding=NamedSharding(self.mesh, spec),
                weak_type=getattr(aval, "weak_type", False),
            )
            structs.append(struct)
        return jax.make_jaxpr(self._on_all(function))(*structs)

    def _whole_shape(self, shape: Sequence[int], spec: Any) -> tuple[int, ...]:
        whole = list(shape)
        for axis, names in enumerate(spec):
            for name in names if isinstance(names, tuple) else (names,):
                whole[axis] *= 1 if name is None else self.mesh.shape[name]
        return tuple(whole)
