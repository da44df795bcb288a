"""Decoding: a message as a weighted sum of candidate records' gradients, solved by least squares.

The gradient of a client's mean loss is a sum over its records, and each term depends on that record's own unknown alone.
Instead of the gradient *at the expected value* (paper 000, Eq. 2 and 3) take the *expected gradient* over the K candidate
values, with weights s_nk, sum_k s_nk = 1:

    u / (rate N^-1)  =  sum_n sum_k s_nk g_n(v_k)  =  sum_n g_n(v_0) + sum_n sum_{k>0} s_nk [g_n(v_k) - g_n(v_0)].

This is linear in s and exact where it matters, at the vertices (each record has one value). Over all rounds it is one
least-squares problem in (K-1)N unknowns: no temperature, step size, start, prior or iterations; any K and any coding. It
needs at least as many independent equations (rounds x parameters) as unknowns, and a client that takes one full-batch
step per round.

The normal equations need inner products of gradient differences only. Where all parameters belong to dense layers, a
record's gradient is a sum of outer products, input a times error d, and with Delta for differences between candidates

    <a1 d1' - a0 d0', b1 e1' - b0 e0'> = (a0.b0 + 1)(Dd.De) + (a0.Db)(Dd.e1) + (Da.b0)(d1.De) + (Da.Db)(d1.e1)

per layer (+ 1 for the bias), so no gradient is ever formed. Other models go through `vmap(grad)`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from attacks.attribute_reconstruction import Knowledge, Reconstruction, check_knowledge, erase
from jaxfl import Messages, Model, _check

Array = jax.Array

MOST_DIRECT = 8_000
"""Unknowns up to which the normal equations are formed; their matrix takes 512 MB there in float64, and several are held."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClosedForm:
    """Settings of `closed_form`.

    Attributes:
      learning_rate: the client's step size, or None if unknown: then it is one more unknown of the least squares.
      ridge: added to the normal equations, relative to their diagonal ("direct") or to their size along the right-hand
        side ("cg"); pulls towards the prior.
      solver: "direct" (Cholesky), or "cg" (conjugate gradients on products with the gradients' Jacobian, which is never
        formed, for many unknowns); None: "direct" up to 8,000 unknowns (static).
      iterations: at most, of "cg" (static).
    """

    learning_rate: Any = None
    ridge: Any = 1e-12
    solver: Literal["direct", "cg"] | None = dataclasses.field(default=None, metadata={"static": True})
    iterations: int = dataclasses.field(default=500, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """A `Reconstruction` with what least squares says about itself.

    Attributes:
      reconstruction: the answer; `scores` are the weights s, which a good answer has near 0 and 1.
      condition: condition number of the normal equations (squared: that of the problem); NaN with "cg".
      residual: squared residual of the real-valued solution, relative to the right-hand side.
      learning_rate: the given rate, or the one found.
      presence: sum of each record's weights `[records]`, near 1 for those that are the client's, or None if all are.
    """

    reconstruction: Reconstruction
    condition: Array
    residual: Array
    learning_rate: Array
    presence: Array | None = None


def closed_form(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    *,
    members: int | None = None,
    settings: ClosedForm | None = None,
    dtype: Any = jnp.float64,
) -> Decoding:
    """Reconstruct one unknown column, and labels if they are unknown too, from a full-batch client's messages.

    Args:
      model: the model that was trained (static). Gram identities are used where `model.layers` is there.
      messages: the client's messages in the rounds to be used; one full-batch SGD step per round.
      knowledge: what is known; exactly one unknown column. Unknown labels make every (value, label) pair a candidate.
      members: how many of the records are the client's (static), or None if all are. If given, being absent is one more
        candidate of every record, with a gradient of zero.
      settings: see `ClosedForm`.
      dtype: of the arithmetic (static). Normal equations square the condition number, so messages recorded in float32
        are decoded in float64, which is switched on for the call. Inside an outer `jit` that runs without 64-bit
        types, float32 is used.

    Returns:
      A `Decoding`. Memory of the direct solver grows with ((K-1) records)^2, and without dense layers also with (K-1)
      records x parameters; that of "cg" with records x K x features.

    Raises:
      ValueError: as `cos_matching`; if there is more than one unknown column; if `members` is not in [1, records].
    """
    knowledge = check_knowledge(model, messages, knowledge)
    if len(knowledge.columns) != 1:
        raise ValueError(f"columns has {len(knowledge.columns)} entries; closed_form decodes one unknown column")
    if members is not None and not 1 <= members <= len(knowledge.x):
        raise ValueError(f"members={members!r} must lie between 1 and the number of records, {len(knowledge.x)}")
    settings = settings or ClosedForm()
    _check.finite(ridge=settings.ridge)
    _check.positive_integer(iterations=settings.iterations)
    if settings.solver is not None:
        _check.one_of(("direct", "cg"), solver=settings.solver)
    rate = settings.learning_rate
    if rate is not None and not _check.is_traced(rate) and not 0 < float(rate) < float("inf"):
        raise ValueError(f"learning_rate={rate!r} must be positive, or None if unknown")
    traced = _check.is_traced(messages, knowledge, settings)
    with jax.enable_x64(jax.config.read("jax_enable_x64") if traced else dtype == jnp.float64):
        return _closed_form(model, messages, knowledge, settings, members, jnp.zeros((), dtype).dtype)


def _cast(tree: Any, floating: Any, integer: Any = None) -> Any:
    def cast(a: Any) -> Array:
        a = jnp.asarray(a)
        if jnp.issubdtype(a.dtype, jnp.floating):
            return a.astype(floating)
        return a if integer is None or not jnp.issubdtype(a.dtype, jnp.integer) else a.astype(integer)

    return jax.tree.map(cast, tree)


@functools.partial(jax.jit, static_argnames=("model", "members", "dtype"))
def _closed_form(
    model: Model, messages: Messages, knowledge: Knowledge, settings: ClosedForm, members: int | None, dtype: Any
) -> Decoding:
    messages, knowledge, settings = _cast((messages, knowledge, settings), dtype)
    x, y = candidate_records(model, knowledge)
    start = prior_weights(model, knowledge, x.shape[1])
    if members is not None:
        x, y = (jnp.concatenate([a[:, :1], a], 1) for a in (x, y))
        start = _with_absence(start, members / len(x), len(x))
    records, count = x.shape[:2]
    rate = settings.learning_rate
    if rate is None and members is None:
        start = jnp.append(start, 0)
    with jax.default_matmul_precision("highest"):
        if rate is None and members is not None:
            # Weights and rate enter as their product: its sum over records tells the rate, since members are counted.
            product, _, _ = _least_squares(model, messages, x, y, jnp.ones((), dtype), members, start, settings)
            rate = product.sum() / members
        solution, condition, misfit = _least_squares(model, messages, x, y, rate, members, start, settings)
        residual = misfit(solution)
        if rate is None:
            rate = 1 / solution[-1]
        weights = solution[: records * (count - 1)]
        decoded = _decoded(knowledge, weights.reshape(records, -1), members)
        objective = misfit(jnp.concatenate([decoded.rounded, solution[len(weights) :]]))
    failed = ~(jnp.isfinite(solution).all() & jnp.isfinite(objective))
    reconstruction = Reconstruction(
        values=(jnp.where(failed, -1, decoded.values),),
        scores=(decoded.scores,),
        labels=None if decoded.labels is None else jnp.where(failed, -1, decoded.labels),
        objective=jnp.where(failed, jnp.inf, objective),
        trace=jnp.zeros(0),
        gradient_norm=jnp.zeros(0),
        status=failed.astype(jnp.int32),
    )
    decoding = Decoding(reconstruction, condition, residual, jnp.asarray(rate), decoded.presence)
    # 64-bit arrays are left behind: outside, most operations would refuse them or warn.
    return _cast(decoding, jnp.float32, jnp.int32)


def _least_squares(
    model: Model,
    messages: Messages,
    x: Array,
    y: Array,
    rate: Array | None,
    members: int | None,
    start: Array,
    settings: ClosedForm,
) -> tuple[Array, Array, Callable[[Array], Array]]:
    """Solution, condition number, and the relative squared residual as a function of the unknowns."""
    if settings.solver == "direct" or (settings.solver is None and len(start) <= MOST_DIRECT):
        system = normal_equations(model, messages, x, y, rate, members)
        return *_solve(system, start, settings.ridge), functools.partial(_misfit, system)
    problem = linear_problem(model, messages, x, y, rate, members)
    return _solve_iteratively(problem, start, settings), jnp.asarray(jnp.nan), problem.misfit


def candidate_records(model: Model, knowledge: Knowledge) -> tuple[Array, Array]:
    """Every record with every candidate in its place: `x [records, K, features]`, `y [records, K]`.

    With unknown labels candidates are (value, label) pairs, the label running fastest.
    """
    column, base = knowledge.columns[0], erase(knowledge)
    x = jax.vmap(lambda v: base.at[:, column.positions].set(v))(column.candidates).swapaxes(0, 1)
    if knowledge.y is not None:
        return x, jnp.broadcast_to(knowledge.y[:, None], x.shape[:2])
    classes = model.classes or 0
    y = jnp.tile(jnp.arange(classes), x.shape[1])
    return jnp.repeat(x, classes, axis=1), jnp.broadcast_to(y, (len(x), len(y)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NormalEquations:
    """Least squares over all rounds, each weighted by 1 / |u|^2. With D the gradient differences (and, for an unknown
    rate, the negative update as one more row):

    Attributes:
      gram: D D' `[unknowns, unknowns]`.
      right: D r `[unknowns]`.
      square: r.r, of the right-hand side.
    """

    gram: Array
    right: Array
    square: Array


def normal_equations(
    model: Model, messages: Messages, x: Array, y: Array, learning_rate: Array | None, members: int | None = None
) -> NormalEquations:
    """The normal equations for the weights of candidates `x [records, K, features]`, `y [records, K]`.

    The first candidate is the base; unknowns are the weights of the others, record by record, and last the inverse
    learning rate if that is None. If only `members` of the records are the client's, the first candidate stands for
    absence: its gradient is zero.
    """
    averaged = len(x) if members is None else members
    updates = messages.pseudo_gradient
    products = _layer_products if model.layers is not None else _jacobian_products
    inputs = first_inputs(model, x, y, jax.tree.map(lambda a: a[0], messages.received))

    def one_round(received_update: tuple[Any, Any]) -> NormalEquations:
        received, update = received_update
        weight = 1 / jnp.maximum(_dot(update, update), jnp.finfo(x.dtype).tiny)
        gram, project, base = products(model, received, x, y, inputs, members is not None)
        if learning_rate is not None:
            target = jax.tree.map(lambda u, b: u * averaged / learning_rate - b, update, base)
            return NormalEquations(weight * gram, weight * project(target), weight * _dot(target, target))
        scaled = jax.tree.map(lambda u: -averaged * u, update)
        target = jax.tree.map(jnp.negative, base)
        cross = project(scaled)
        whole = jnp.block([[gram, cross[:, None]], [cross[None], _dot(scaled, scaled)[None, None]]])
        right = jnp.append(project(target), _dot(scaled, target))
        return NormalEquations(weight * whole, weight * right, weight * _dot(target, target))

    def add(total: NormalEquations, one: Any) -> tuple[NormalEquations, None]:
        return jax.tree.map(jnp.add, total, one_round(one)), None

    size = len(x) * (x.shape[1] - 1) + (learning_rate is None)
    zero = NormalEquations(jnp.zeros((size, size), x.dtype), jnp.zeros(size, x.dtype), jnp.zeros((), x.dtype))
    return jax.lax.scan(add, zero, (messages.received, updates))[0]


def _dot(a: Any, b: Any) -> Array:
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, a, b))


def inputs_and_errors(model: Model, params: Any, x: Array, y: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    """Input and error (derivative of the record's loss by the layer's output) of every dense layer, `[batch, width]`."""
    layers = model.layers
    assert layers is not None
    widths = {name: layers.parameters(params, name)["kernel"].shape[-1] for name in layers.names}
    zero = {name: jnp.zeros((len(x), width), x.dtype) for name, width in widths.items()}

    def total(offsets: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        outputs, inputs = layers.forward(params, x, offsets)
        return model.loss(outputs, y).sum(), inputs

    errors, inputs = jax.grad(total, has_aux=True)(zero)
    return inputs, errors


def split(a: Array, records: int) -> tuple[Array, Array, Array]:
    """Base `[records, w]`, other candidates `[unknowns, w]`, and their difference from the base, of `[records * K, w]`."""
    a = a.reshape(records, -1, a.shape[-1])
    return a[:, 0], a[:, 1:].reshape(-1, a.shape[-1]), (a[:, 1:] - a[:, :1]).reshape(-1, a.shape[-1])


def _input_products(base: Array, difference: Array, repeat: int) -> tuple[Array, Array, Array]:
    """`a0.b0`, `a0.Db` and `Da.Db` over unknowns `[unknowns, unknowns]`."""
    spread = functools.partial(jnp.repeat, repeats=repeat, axis=0)
    own = spread((base @ base.T).T)
    return spread(own.T), spread(base @ difference.T), difference @ difference.T


def first_inputs(model: Model, x: Array, y: Array, params: Any) -> Any:
    """Products of the first layer's inputs: no parameter comes before it, so they are the same in every round."""
    if model.layers is None:
        return None
    records, count = x.shape[:2]
    inputs, _ = inputs_and_errors(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    base, _, difference = split(inputs[model.layers.names[0]], records)
    return base, difference, _input_products(base, difference, count - 1)


def _layer_products(model: Model, params: Any, x: Array, y: Array, first: Any, absence: bool) -> tuple[Array, Any, Any]:
    """Gram matrix of the gradient differences, their products with a target, and the base's gradient, by layers."""
    layers = model.layers
    assert layers is not None
    records, count = x.shape[:2]
    inputs, errors = inputs_and_errors(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
    if absence:
        errors = jax.tree.map(lambda e: e.reshape(records, count, -1).at[:, 0].set(0).reshape(e.shape), errors)
    gram = jnp.zeros((records * (count - 1),) * 2, x.dtype)
    parts: dict[str, Any] = {}
    flat: dict[str, dict[str, Array]] = {}
    for name in layers.names:
        bias = "bias" in layers.parameters(params, name)
        if name == layers.names[0]:
            base, difference, products = first
        else:
            base, _, difference = split(inputs[name], records)
            products = _input_products(base, difference, count - 1)
        error0, error1, error_difference = split(errors[name], records)
        same, across, both = products
        mixed = across * (error_difference @ error1.T)
        gram += (same + bias) * (error_difference @ error_difference.T) + mixed + mixed.T + both * (error1 @ error1.T)
        parts[name] = (jnp.repeat(base, count - 1, axis=0), difference, error1, error_difference)
        flat[name] = {"kernel": base.T @ error0} | ({"bias": error0.sum(0)} if bias else {})

    def project(target: Any) -> Array:
        total = jnp.zeros(len(gram), x.dtype)
        for name, (base, difference, error1, error_difference) in parts.items():
            at = layers.parameters(target, name)
            total += ((base @ at["kernel"]) * error_difference + (difference @ at["kernel"]) * error1).sum(1)
            if "bias" in at:
                total += error_difference @ at["bias"]
        return total

    def place(path: Any, leaf: Array) -> Array:
        *name, parameter = (part.key for part in path)
        return flat["/".join(name)][parameter]

    return gram, project, jax.tree.map_with_path(place, params)


def difference_jacobian(model: Model, params: Any, x: Array, y: Array, absence: bool = False) -> tuple[Array, Array]:
    """Gradient differences of the other candidates from the base `[unknowns, parameters]`, and the sum of the base's
    gradients `[parameters]`, explicitly; for any model. With `absence` the base's gradients are zero."""

    def gradient(x: Array, y: Array) -> Array:
        return ravel_pytree(jax.grad(lambda p: model.loss(model.apply(p, x[None]), y[None]).sum())(params))[0]

    every = jax.vmap(jax.vmap(gradient))(x, y)
    if absence:
        every = every.at[:, 0].set(0)
    return (every[:, 1:] - every[:, :1]).reshape(-1, every.shape[-1]), every[:, 0].sum(0)


def _jacobian_products(model: Model, params: Any, x: Array, y: Array, first: Any, absence: bool) -> tuple[Array, Any, Any]:
    """As `_layer_products`, with the gradients written out."""
    jacobian, base = difference_jacobian(model, params, x, y, absence)
    return jacobian @ jacobian.T, lambda target: jacobian @ ravel_pytree(target)[0], ravel_pytree(params)[1](base)


def prior_weights(model: Model, knowledge: Knowledge, count: int) -> Array:
    """Prior weights of the candidates but the base, for every record; uniform where unknown."""
    column = knowledge.columns[0]
    values = len(column.candidates)
    prior = jnp.full(values, 1 / values) if column.prior is None else column.prior
    if knowledge.y is None:
        classes = count // values
        labels = jnp.full(classes, 1 / classes) if knowledge.label_prior is None else knowledge.label_prior
        prior = jnp.outer(prior, labels).reshape(-1)
    return jnp.tile(prior[1:], len(knowledge.x))


def _with_absence(prior: Array, present: float, records: int) -> Array:
    """Prior weights where being absent is the base: those of all real candidates, times the fraction present."""
    others = prior.reshape(records, -1)
    return present * jnp.concatenate([1 - others.sum(1, keepdims=True), others], 1).reshape(-1)


def _solve(system: NormalEquations, start: Array, ridge: Array) -> tuple[Array, Array]:
    """The ridge solution around `start`, and an estimate of the condition number by power iterations."""
    size = len(system.gram)
    # Unknowns of different scale (an inverse rate beside weights) are brought to unit diagonal.
    scale = jax.lax.rsqrt(jnp.maximum(jnp.diag(system.gram), jnp.finfo(system.gram.dtype).tiny))
    scaled = system.gram * scale[:, None] * scale[None] + ridge * jnp.eye(size, dtype=system.gram.dtype)
    factor = jax.scipy.linalg.cho_factor(scaled, lower=True)
    step = scale * jax.scipy.linalg.cho_solve(factor, scale * (system.right - system.gram @ start))

    def largest(apply: Any) -> Array:
        vector = jnp.ones(size, system.gram.dtype) + jnp.linspace(0, 1, size, dtype=system.gram.dtype)

        def iterate(_: int, v: Array) -> Array:
            return apply(v) / jnp.linalg.norm(v)

        return jnp.linalg.norm(jax.lax.fori_loop(0, 20, iterate, vector / jnp.linalg.norm(vector)))

    condition = largest(lambda v: scaled @ v) * largest(lambda v: jax.scipy.linalg.cho_solve(factor, v))
    return start + step, condition


@dataclasses.dataclass(frozen=True)
class LinearProblem:
    """The least-squares problem of `normal_equations` as products, every round divided by its update's length.

    Attributes:
      forward: from the unknowns to a pytree like the messages' updates.
      backward: its transpose.
      target: right-hand side.
    """

    forward: Callable[[Array], Any]
    backward: Callable[[Any], Array]
    target: Any

    def misfit(self, solution: Array) -> Array:
        """Squared residual relative to the right-hand side."""
        residual = jax.tree.map(jnp.subtract, self.forward(solution), self.target)
        return _dot(residual, residual) / _dot(self.target, self.target)


def linear_problem(
    model: Model, messages: Messages, x: Array, y: Array, learning_rate: Array | None, members: int | None = None
) -> LinearProblem:
    """As `normal_equations`, for any model: a weighted sum of gradients is the gradient of a weighted loss."""
    averaged, count = (len(x) if members is None else members), x.shape[1]
    updates = messages.pseudo_gradient
    lengths = jnp.sqrt(sum((u.reshape(len(u), -1) ** 2).sum(1) for u in jax.tree.leaves(updates)))
    scales = 1 / jnp.maximum(lengths, jnp.finfo(x.dtype).tiny)
    present = jnp.ones(count, x.dtype).at[0].set(0.0 if members is not None else 1.0)
    flat_x, flat_y = x.reshape(-1, *x.shape[2:]), y.reshape(-1)

    def losses(params: Any) -> Array:
        return model.loss(model.apply(params, flat_x), flat_y).reshape(y.shape) * present

    def gradients(weights: Array) -> Any:
        def one_round(received_scale: tuple[Any, Array]) -> Any:
            received, scale = received_scale
            gradient = jax.grad(lambda p: jnp.vdot(losses(p), weights))(received)
            return jax.tree.map(lambda g: scale * g, gradient)

        return jax.lax.map(one_round, (messages.received, scales))

    base = gradients(jnp.zeros(y.shape, x.dtype).at[:, 0].set(1))
    whole = jax.tree.map(lambda u: averaged * jax.vmap(jnp.multiply)(u, scales), updates)

    def forward(unknowns: Array) -> Any:
        weights = unknowns[: len(x) * (count - 1)].reshape(len(x), -1)
        found = gradients(jnp.concatenate([-weights.sum(1, keepdims=True), weights], 1))
        if learning_rate is not None:
            return found
        return jax.tree.map(lambda g, u: g - unknowns[-1] * u, found, whole)

    def backward(residual: Any) -> Array:
        def one_round(received_residual: tuple[Any, Any, Array]) -> Array:
            received, direction, scale = received_residual
            slopes = scale * jax.jvp(losses, (received,), (direction,))[1]
            return (slopes[:, 1:] - slopes[:, :1]).reshape(-1)

        slopes = jax.lax.map(one_round, (messages.received, residual, scales)).sum(0)
        return slopes if learning_rate is not None else jnp.append(slopes, -_dot(whole, residual))

    known = 0.0 if learning_rate is None else 1 / learning_rate
    return LinearProblem(forward, backward, jax.tree.map(lambda u, b: known * u - b, whole, base))


def _solve_iteratively(problem: LinearProblem, start: Array, settings: ClosedForm) -> Array:
    """The ridge solution around `start`, by conjugate gradients on the normal equations."""
    residual = jax.tree.map(jnp.subtract, problem.target, problem.forward(start))
    right = problem.backward(residual)

    def apply(v: Array) -> Array:
        return problem.backward(problem.forward(v))

    level = settings.ridge * jnp.vdot(right, apply(right)) / jnp.maximum(jnp.vdot(right, right), jnp.finfo(right.dtype).tiny)
    tolerance = 1e-8 if right.dtype == jnp.float64 else 1e-5
    step, _ = jax.scipy.sparse.linalg.cg(lambda v: apply(v) + level * v, right, tol=tolerance, maxiter=settings.iterations)
    return start + step


def _misfit(system: NormalEquations, solution: Array) -> Array:
    """Squared residual relative to the right-hand side."""
    total = solution @ system.gram @ solution - 2 * solution @ system.right + system.square
    return jnp.maximum(total, 0) / system.square


class _Decoded(NamedTuple):
    """Attributes:
    rounded: weights of the chosen candidates, 0 or 1, but the first `[unknowns]`.
    values: per record.
    labels: per record, if they were unknown.
    scores: weights of the values `[records, K]`.
    presence: sum of a record's weights, if not all are the client's.
    """

    rounded: Array
    values: Array
    labels: Array | None
    scores: Array
    presence: Array | None


def _decoded(knowledge: Knowledge, weights: Array, members: int | None) -> _Decoded:
    """One candidate per record, from the weights `[records, K - 1]` of all but the first."""
    scores = jnp.concatenate([1 - weights.sum(1, keepdims=True), weights], 1)
    rounded = jax.nn.one_hot(scores.argmax(1), scores.shape[1], dtype=scores.dtype)[:, 1:].reshape(-1)
    presence = None
    if members is not None:
        presence, scores = 1 - scores[:, 0], scores[:, 1:]
    values, labels = scores.argmax(1), None
    if knowledge.y is None:
        classes = scores.shape[1] // len(knowledge.columns[0].candidates)
        values, labels = values // classes, values % classes
        scores = scores.reshape(len(scores), -1, classes).sum(2)
    return _Decoded(rounded, values, labels, scores, presence)
