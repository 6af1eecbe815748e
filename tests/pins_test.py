"""What the user rules about recomputation holds, in straight lines and in scans."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import coop_jax
from coop_jax._fitting.compile import flat_step
from coop_jax._loops.loop_sites import find_sites
from coop_jax._program.pins import is_backward
from coop_jax._program.rules import Rules, make_rules, name_of

LAYERS, WIDTH, ROWS = 6, 32, 512


def block(x, w):
    """Two products with a cheap function between; both products are named."""
    up = checkpoint_name(x @ w, "up")
    down = checkpoint_name(jnp.sin(up) @ w.T, "down")
    return x + jnp.tanh(down)


def unrolled_loss(block, ws, x):
    for w in ws:
        x = block(x, w)
    return jnp.mean(x**2)


def scanned_loss(block, ws, x):
    return jnp.mean(lax.scan(lambda x, w: (block(x, w), None), x, ws)[0] ** 2)


def make_step(loss_of, block=block):
    def step(ws, x):
        loss, grads = jax.value_and_grad(functools.partial(loss_of, block))(ws, x)
        return ws - 0.1 * grads, loss

    return step


def arguments():
    keys = jax.random.split(jax.random.key(0), 2)
    ws = 0.2 * jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH))
    return ws, jax.random.normal(keys[1], (ROWS, WIDTH))


def flat(step, rules=None):
    args = arguments()
    traced = jax.jit(step, donate_argnums=0).trace(*args)
    return flat_step(traced, jax.tree.leaves(args), rules or Rules())


def planned(step, budget, **options):
    step = coop_jax.remat(step, budget, donate_argnums=0, time_limit=2, **options)
    return step, step.plan(*arguments())


def agrees(step, found):
    ws, x = arguments()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        found(ws, x),
        jax.jit(step)(*arguments()),
    )


def names(equations):
    return [name_of(e) for e in equations if name_of(e) is not None]


UNROLLED, SCANNED = make_step(unrolled_loss), make_step(scanned_loss)


# The flat program


def test_a_saved_name_pins_what_computes_it():
    program = flat(UNROLLED, Rules(save_names=("up",))).program
    pinned = [e for e in program.equations if e.is_pinned]
    assert [e.primitive.name for e in pinned] == ["dot_general"] * LAYERS
    assert names(program.equations).count("up") == LAYERS


def test_primitives_and_predicates_pin():
    def is_sine(eqn):
        return eqn.primitive is jax.lax.sin_p

    for rule in ("sin", ("sin",), jax.lax.sin_p, [jax.lax.sin_p], is_sine):
        rules = make_rules(False, False, (), (), rule)
        found = {
            e.primitive.name for e in flat(UNROLLED, rules).program.equations
            if e.is_pinned
        }  # fmt: skip
        assert found == {"sin"}


def test_a_recomputed_name_is_computed_again_for_the_backward_pass():
    as_written = flat(UNROLLED).program
    program = flat(UNROLLED, Rules(recompute_names=("up",))).program
    assert names(program.equations).count("up") == 2 * LAYERS
    late = [e for e in program.equations if is_backward(e)]
    assert names(late) == ["up"] * LAYERS
    assert sum(e.primitive.name == "cos" for e in late) == LAYERS
    early = {v for e in program.equations if not is_backward(e) for v in e.outputs}
    ups = {v for e in program.equations if name_of(e) == "up" for v in e.outputs}
    assert not any(v in early & ups for e in late for v in e.variables)
    # A product, its name and a barrier more in each layer; the cosine has moved.
    assert len(program.equations) == len(as_written.equations) + 3 * LAYERS
    agrees(UNROLLED, lambda *args: jax.jit(_function(program))(*args))


def _function(program):
    def function(*args):
        new, loss = program.evaluate(jax.tree.leaves(args))
        return new, loss

    return function


def test_names_that_the_backward_pass_does_not_read_change_nothing():
    def forward(ws, x):
        return unrolled_loss(block, ws, x)

    as_written, program = (
        flat(forward, Rules(recompute_names=names)).program for names in ((), ("up",))
    )
    assert len(program.equations) == len(as_written.equations)


# The user's own jax.checkpoint

BY_NAME = jax.checkpoint_policies.save_only_these_names("up")


def test_what_checkpoint_saves_by_name_is_pinned():
    step = make_step(unrolled_loss, jax.checkpoint(block, policy=BY_NAME))
    program = flat(step).program
    pinned = [e for e in program.equations if e.is_pinned]
    assert len(pinned) == LAYERS
    made = {v for e in pinned for v in e.outputs}
    ups = {v for e in program.equations if name_of(e) == "up" for v in e.inputs}
    assert made == ups
    program = flat(step, Rules(override_checkpoint=True)).program
    assert not any(e.is_pinned for e in program.equations)


# Two products and four for their gradients; under `jax.checkpoint`, the two again.
PRODUCTS = {False: 8, True: 6}


@pytest.mark.parametrize("overrides", [False, True])
def test_what_checkpoint_recomputes_stays_recomputed_by_default(overrides):
    step = make_step(unrolled_loss, jax.checkpoint(block))
    program = flat(step, Rules(override_checkpoint=overrides)).program
    products = sum(e.primitive.name == "dot_general" for e in program.equations)
    # The first layer has no gradient for its input.
    assert products == PRODUCTS[overrides] * LAYERS - 1


@pytest.mark.parametrize("overrides", [False, True])
@pytest.mark.parametrize("prevent_cse", [True, False])
def test_what_checkpoint_recomputes_in_a_scan_stays_recomputed(prevent_cse, overrides):
    step = make_step(scanned_loss, jax.checkpoint(block, prevent_cse=prevent_cse))
    program = flat(step, Rules(override_checkpoint=overrides)).program
    (site,) = find_sites(program, "cpu")
    ops = site.body.body.problem.ops
    products = sum(op.name == "dot_general" for op in ops)
    assert products == PRODUCTS[overrides]


def test_override_checkpoint_keeps_products_that_checkpoint_recomputes_in_a_scan():
    step = make_step(scanned_loss, jax.checkpoint(block))
    for overrides in (False, True):
        program = flat(step, Rules(override_checkpoint=overrides)).program
        (site,) = find_sites(program, "cpu")
        richest = site.choices.corners[0]
        row = ROWS * WIDTH * 4
        if overrides:
            assert richest.row > 3 * row
        else:
            assert richest.row == row


@pytest.mark.parametrize("loss_of", [unrolled_loss, scanned_loss])
def test_with_override_checkpoint_a_step_is_as_without_checkpoint(loss_of):
    step = make_step(loss_of, jax.checkpoint(block))
    written = coop_jax.measure(jax.jit(step, donate_argnums=0), *arguments())
    without = coop_jax.measure(
        jax.jit(make_step(loss_of), donate_argnums=0), *arguments()
    )
    respected = planned(step, 1.0)[1]
    overridden = planned(step, 1.0, override_checkpoint=True)[1]
    assert respected.unplanned.total <= written.total
    assert overridden.unplanned.total == pytest.approx(without.total, rel=0.01)
    assert written.total < 0.6 * without.total


def test_an_overridden_checkpoint_in_a_scan_is_planned_through():
    step = make_step(scanned_loss, jax.checkpoint(block))
    found, plan = planned(step, 0.7, override_checkpoint=True)
    assert plan.loops
    assert plan.budget is not None and plan.measured.total <= plan.budget
    agrees(step, found)


@pytest.mark.parametrize("budget", [0.85, 0.7])
def test_an_overridden_checkpoint_in_micro_batches_costs_what_its_plan_says(budget):
    """XLA's own count is that of the step without a checkpoint."""

    def accumulating(block):
        def step(ws, x):
            def add(total, x):
                grads = jax.grad(unrolled_loss, 1)(block, ws, x)
                return jax.tree.map(jnp.add, total, grads), None

            zeros = jax.tree.map(jnp.zeros_like, ws)
            return jax.lax.scan(add, zeros, x.reshape(2, -1, x.shape[-1]))[0]

        return step

    def flops(step):
        return step.lower(*arguments()).compile().cost_analysis()["flops"]

    step, plan = planned(
        accumulating(jax.checkpoint(block)), budget, override_checkpoint=True
    )
    without, _ = planned(accumulating(block), budget)
    assert plan.budget is not None and plan.measured.total <= plan.budget
    assert plan.bodies
    assert flops(step) < 1.01 * flops(without)


# Plans


@functools.cache
def plans():
    found = {"free": planned(UNROLLED, "min")}
    for name, options in {
        "save": {"save_names": ["up"]},
        "recompute": {"recompute_names": ["down"]},
        "never": {"never_recompute": "sin"},
        "claim": {"never_recompute": lambda eqn: eqn.primitive.name == "dot_general"},
    }.items():
        found[name] = planned(UNROLLED, "min", **options)
    return found


def again(plan):
    return {a.primitive for a in plan.actions if a.kind == "recomputed"}


def test_without_pins_the_smallest_plan_recomputes_products_and_sines():
    _, plan = plans()["free"]
    assert {"dot_general", "sin"} <= again(plan)


@pytest.mark.parametrize("name", ["save", "recompute", "never", "claim"])
def test_pinned_plans_fit_and_agree(name):
    step, plan = plans()[name]
    assert plan.is_planned
    assert plan.measured.total < plan.unplanned.total
    agrees(UNROLLED, step)


def test_what_must_not_run_again_does_not():
    assert "sin" not in again(plans()["never"][1])
    assert "dot_general" not in again(plans()["claim"][1])


def test_pins_are_in_the_digest_of_a_plan():
    origins = [plan.origin for _, plan in plans().values()]
    digests = [origin.program for origin in origins if origin is not None]
    assert len(set(digests)) == len(digests)


def test_a_saved_plan_is_refused_under_other_rules(tmp_path):
    _, plan = plans()["save"]
    same = coop_jax.remat(UNROLLED, plan=plan, save_names="up", donate_argnums=0)
    assert same.plan(*arguments()) is plan
    other = coop_jax.remat(UNROLLED, plan=plan, donate_argnums=0)
    with pytest.raises(coop_jax.PlanError, match="rules"):
        other.plan(*arguments())


def test_rules_are_in_the_cache_key(tmp_path):
    keys = set()
    for options in (
        {},
        {"override_checkpoint": True},
        {"save_names": "up"},
        {"recompute_names": "up"},
        {"never_recompute": "sin"},
        {"never_recompute": lambda eqn: eqn.primitive.name == "sin"},
        {"never_recompute": lambda eqn: eqn.primitive.name == "tanh"},
    ):
        step = coop_jax.remat(
            UNROLLED, 1.0, cache_dir=tmp_path, donate_argnums=0, **options
        )
        step.plan(*arguments())
        found = set(tmp_path.iterdir())
        assert len(found - keys) == 1, options
        keys = found


# Scans


def sites(rules):
    return find_sites(flat(SCANNED, rules).program, "cpu")


def test_a_saved_name_is_stacked_whatever_it_costs():
    (free,), (pinned,) = sites(Rules()), sites(Rules(save_names=("up",)))
    row = ROWS * WIDTH * 4
    assert free.choices.corners[-1].row == row
    assert pinned.choices.corners[-1].row == 2 * row
    assert free.choices.chunks and not pinned.choices.chunks


def test_a_recomputed_name_is_not_stacked_even_if_there_is_room():
    (free,), (pinned,) = sites(Rules()), sites(Rules(recompute_names=("up",)))
    assert pinned.choices.corners[0].row < free.choices.corners[0].row
    ops = pinned.body.body.problem.ops
    first = next(k for k, op in enumerate(ops) if op.name == "dot_general")
    for keeping in pinned.choices.corners:
        assert max(keeping.positions[first]) > pinned.body.body.seam


def test_a_scan_that_fits_recomputes_its_names_too():
    _, plan = planned(SCANNED, 1.0, recompute_names="up")
    _, free = planned(SCANNED, 1.0)
    assert not plan.loops
    assert plan.measured.total < free.measured.total


@pytest.mark.parametrize(
    "options",
    [
        {"save_names": "up"},
        {"recompute_names": "up"},
        {"recompute_names": ["up", "down"]},
        {"never_recompute": "dot_general"},
    ],
)
def test_pinned_scans_agree(options):
    step, plan = planned(SCANNED, "min", **options)
    assert plan.measured.total < plan.unplanned.total
    agrees(SCANNED, step)


def test_a_carry_that_the_backward_pass_reads_is_stacked_bytes():
    """A recurrent cell: the gradient reads what is carried out, tanh's own result."""

    def cell(x, w):
        return jnp.tanh(x @ w)

    (site,) = find_sites(flat(make_step(scanned_loss, cell)).program, "cpu")
    row = ROWS * WIDTH * 4
    assert site.choices.corners[0].row == 2 * row
    assert site.choices.corners[-1].row == row


# Many budgets, many batches


def test_a_frontier_plans_inside_loops_and_keeps_to_the_rules():
    step = make_step(scanned_loss, jax.checkpoint(block))
    options = {"donate_argnums": 0, "time_limit": 2, "override_checkpoint": True}
    curve = coop_jax.frontier(step, *arguments(), budgets=[0.7], **options)
    assert curve.plans[0].unplanned == planned(SCANNED, 1.0)[1].unplanned
    plan = curve.plans[-1]
    assert plan.loops
    again = coop_jax.remat(step, plan=plan, donate_argnums=0, override_checkpoint=True)
    assert coop_jax.measure(again, *arguments()) == plan.measured


def test_the_largest_batch_is_planned_inside_loops():
    def shapes(rows):
        ws, x = arguments()
        return ws, jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)

    budget = coop_jax.measure(jax.jit(SCANNED, donate_argnums=0), *shapes(128)).total
    found = coop_jax.largest_batch(
        shapes, SCANNED, budget, multiple_of=128, most=512, donate_argnums=0
    )
    assert found.size > 128
    assert found.plan.loops


# Mistakes


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"save_names": ["upp"]}, ValueError, "Did you mean 'up'"),
        ({"recompute_names": "left"}, ValueError, "'down', 'up'"),
        ({"never_recompute": "dot_generall"}, ValueError, "Did you mean 'dot_general'"),
        ({"save_names": "up", "recompute_names": "up"}, ValueError, "take it out"),
        ({"save_names": [1]}, TypeError, "names as strings, not int"),
        ({"never_recompute": [1]}, TypeError, "names as strings, not int"),
        (
            {"recompute_names": "up", "never_recompute": "dot_general"},
            ValueError,
            "cannot be computed again",
        ),
    ],
)
@pytest.mark.parametrize("step", [UNROLLED, SCANNED])
def test_mistakes_name_cause_and_remedy(step, options, error, said):
    with pytest.raises(error, match=said):
        planned(step, 1.0, **options)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
