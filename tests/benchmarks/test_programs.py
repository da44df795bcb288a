"""Programs that are watched, and what is counted of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import CosMatching, Knowledge, binary_column, cos_matching
from benchmarks.harness.engines import run_members
from benchmarks.harness.operations import operations
from benchmarks.harness.programs import HostError, host_calls, watched
from jaxfl import Federated, LocalTraining, simulate

RNG = np.random.default_rng(0)
A, B = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in ((5, 7), (7, 3)))
SQUARE = A @ A.T + 5 * jnp.eye(5)


def counted(function, *arguments):
    return operations(jax.make_jaxpr(function)(*arguments))


def test_products_and_convolutions_are_counted_as_xla_counts_them():
    image, filters = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 4))
    conv = lambda x, w: jax.lax.conv_general_dilated(  # noqa: E731
        x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    batched = jax.vmap(jnp.matmul)
    for function, arguments in (
        (jnp.matmul, (A, B)),
        (batched, (jnp.stack([A, A]), jnp.stack([B, B]))),
        (conv, (image, filters)),
        (jax.grad(lambda a: ((a @ B) ** 2).sum()), (A,)),
    ):
        xla = jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]
        assert counted(function, *arguments).products == pytest.approx(xla, rel=0.05)


def test_a_loop_counts_as_often_as_it_runs_and_an_open_one_is_named():
    step = lambda x, _: (x @ SQUARE, None)  # noqa: E731
    once = counted(jnp.matmul, SQUARE, SQUARE)
    many = counted(lambda x: jax.lax.scan(step, x, None, 9)[0], SQUARE)
    assert many.products == 9 * once.products == 9 * 2 * 5**3
    assert many.bytes == 9 * once.bytes == 9 * 3 * 4 * 25
    assert (many.steps, many.open_loops) == (9, 0)
    nested = counted(
        lambda x: jax.lax.scan(lambda c, _: (jax.lax.scan(step, c, None, 4)[0], None), x, None, 3)[
            0
        ],
        SQUARE,
    )
    assert (nested.products, nested.steps) == (12 * once.products, 12)
    asked = counted(
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c @ SQUARE, x), A[:, :5]
    )
    assert (asked.products, asked.open_loops) == (once.products, 1)


def test_the_dearer_branch_counts_and_derivatives_rules_do_not():
    choose = lambda x: jax.lax.cond(x.sum() > 0, lambda c: c @ SQUARE, lambda c: c, x)  # noqa: E731
    assert counted(choose, SQUARE).products == 2 * 5**3
    assert counted(jax.nn.relu, A).products == 0
    assert counted(jax.nn.relu, A).elementwise <= 2 * A.size


def test_factorisations_are_counted_to_leading_order():
    n = 64
    matrix = jnp.eye(n)
    assert counted(jnp.linalg.cholesky, matrix).factorisations == pytest.approx(n**3 / 3)
    assert counted(lambda a: jax.scipy.linalg.solve_triangular(a, a), matrix).factorisations == n**3
    singular = counted(lambda a: jnp.linalg.svd(a, compute_uv=False), matrix)
    assert 4 * n**3 / 3 < singular.factorisations < 30 * n**3


def double(x):
    return 2 * x


def test_groups_and_calls_are_watched_and_answer_as_ever(world):
    calls, members = [], jnp.arange(6.0).reshape(3, 2)
    with watched(calls, repeats=1):
        together = run_members(double, members).results
        run = simulate(world.model, world.params, world.clients, world.key, Federated())
    assert np.array_equal(together, 2 * members)
    plain = simulate(world.model, world.params, world.clients, world.key, Federated())
    assert all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(run.params), jax.tree.leaves(plain.params), strict=True)
    )
    assert [call.program.name for call in calls] == ["double", "simulate"]
    assert [call.members for call in calls] == [3, 1]
    assert calls[0].program.shapes[0].shape == (2,)
    assert all(call.seconds > 0 for call in calls)
    assert calls[1].program.operations.products > 0
    known = len(calls)
    simulate(world.model, world.params, world.clients, world.key, Federated())
    assert len(calls) == known, "a call outside was watched"


@pytest.mark.filterwarnings("ignore::attacks.SomeWrongWarning")
@pytest.mark.slow
def test_calls_within_a_call_are_not_watched(world):
    x, y = world.records[0]
    run = simulate(
        world.model, world.params, world.clients, world.key, Federated(3, LocalTraining(0.1))
    )
    knowledge, calls = Knowledge(jnp.asarray(x), jnp.asarray(y), (binary_column(3, 0.4),)), []
    with watched(calls, repeats=0):
        settings = CosMatching(steps=2)
        cos_matching(world.model, run.messages(0), knowledge, world.key, settings=settings)
        more = CosMatching(steps=3)
        cos_matching(world.model, run.messages(0), knowledge, world.key, settings=more)
        cos_matching(world.model, run.messages(0), knowledge, world.key, settings=more)
    assert [call.program.name for call in calls] == 3 * ["cos_matching"]
    assert calls[0].program != calls[1].program == calls[2].program
    assert np.isnan(calls[0].seconds)
    assert "stablehlo" in calls[0].program.lower().as_text()


def test_what_looks_at_values_has_no_program():
    from attacks import split_variances

    calls = []
    with watched(calls, repeats=0):
        split_variances(np.abs(RNG.normal(size=(20, 2))), seed=0)
    (call,) = calls
    with pytest.raises(HostError, match="split_variances looks at values on the host"):
        _ = call.program.operations


def test_what_waits_for_the_host_is_named():
    def asks(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def prints(x):
        return jax.lax.scan(lambda c, _: (c, jax.debug.print("{c}", c=c)), x, None, 3)[0]

    for function, named in ((asks, ["pure_callback"]), (prints, ["debug_print"]), (jnp.sin, [])):
        assert host_calls(jax.make_jaxpr(function)(A)) == named
