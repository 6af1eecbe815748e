"""The mesh benchmark's rows, on a step that is tiny and a mesh of one device."""

import jax
import jax.numpy as jnp
import pytest
from frontier_test import build
from jax.sharding import AxisType, PartitionSpec

from benchmarks import mesh
from benchmarks.models import POLICIES
from benchmarks.models.training_step import TrainingStep


def devices(count: int) -> jax.sharding.Mesh:
    types = (AxisType.Auto,)
    return jax.make_mesh((count,), ("devices",), axis_types=types)


def specs(split: str) -> list[PartitionSpec]:
    """Of weights of (16, 16), a bias of (16,), a number, a key and a batch of 256."""

    def make_args():
        state = [jnp.ones((16, 16)), jnp.ones(16), jnp.ones(()), jax.random.key(0)]
        return state, jnp.ones((256, 512))

    model = TrainingStep("types", "small", lambda state, x: (state, x), make_args)
    placed = mesh.arguments(model, devices(1), split)
    return [leaf.sharding.spec for leaf in jax.tree.leaves(placed)]


def test_the_batch_is_split_by_rows_and_weights_if_asked_by_their_longest() -> None:
    whole, row = PartitionSpec(), PartitionSpec("devices")
    batch = PartitionSpec("devices", None)
    assert specs("batch") == [PartitionSpec(None, None), PartitionSpec(None), whole,
                              whole, batch]  # fmt: skip
    assert specs("weights") == [batch, row, whole, whole, batch]


def test_every_policy_is_met_and_collectives_are_counted() -> None:
    rows = mesh.measure(
        lambda policy: build("tiny", policy=policy), devices(1), "batch"
    )
    by_program = {row.program: row for row in rows}
    for policy in POLICIES:
        for name in ("coop", "coop, sending again"):
            assert by_program[f"{name}: {policy}"].total <= by_program[policy].total
    assert by_program["coop: min"].total <= by_program["as written"].total
    assert {row.collectives for row in rows} == {0}
    lines = mesh.table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[2].startswith("| as written | ") and "| 1.000 | 0 | 0 |" in lines[2]
    beyond = mesh.table([mesh.Row("coop: 1, out of reach", 2_500_000)]).splitlines()[-1]
    assert beyond == "| coop: 1, out of reach | 2.5 | - | - | - | - |"


def test_what_is_sent_in_one_instruction_is_counted_by_arrays() -> None:
    text = """
      %a = (f32[2]{0}, f32[4]{0}) all-reduce(%x, %y), replica_groups={}
      %b = f32[8]{0} all-gather-start(%z), dimensions={0}
      %c = f32[8]{0} add(%z, %z)
    """
    sends = [match[1] for match in mesh._COLLECTIVE.finditer(text)]
    assert [types.count("[") for types in sends] == [2, 1]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
