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
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from attacks.attribute_reconstruction import Knowledge, Reconstruction, check_knowledge, erase
from jaxfl import Messages, Model, _check

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClosedForm:
    """Settings of `closed_form`.

    Attributes:
      learning_rate: the client's step size, or None if unknown: then it is one more unknown of the least squares.
      ridge: added to the normal equations, relative to their mean diagonal; pulls towards the prior.
    """

    learning_rate: Any = None
    ridge: Any = 1e-12


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoding:
    """A `Reconstruction` with what least squares says about itself.

    Attributes:
      reconstruction: the answer; `scores` are the weights s, which a good answer has near 0 and 1.
      condition: condition number of the normal equations (squared: that of the problem).
      residual: squared residual of the real-valued solution, relative to the right-hand side.
      learning_rate: the given rate, or the one found.
    """

    reconstruction: Reconstruction
    condition: Array
    residual: Array
    learning_rate: Array


def closed_form(
    model: Model, messages: Messages, knowledge: Knowledge, *, settings: ClosedForm | None = None, dtype: Any = jnp.float64
) -> Decoding:
    """Reconstruct one unknown column, and labels if they are unknown too, from a full-batch client's messages.

    Args:
      model: the model that was trained (static). Gram identities are used where `model.layers` is there.
      messages: the client's messages in the rounds to be used; one full-batch SGD step per round.
      knowledge: what is known; exactly one unknown column. Unknown labels make every (value, label) pair a candidate.
      settings: see `ClosedForm`.
      dtype: of the arithmetic (static). Normal equations square the condition number, so messages recorded in float32
        are decoded in float64, which is switched on for the call. Inside an outer `jit` that runs without 64-bit
        types, float32 is used.

    Returns:
      A `Decoding`. Memory grows with ((K-1) records)^2; without dense layers also with (K-1) records x parameters.

    Raises:
      ValueError: as `cos_matching`; and if there is more than one unknown column.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    if len(knowledge.columns) != 1:
        raise ValueError(f"columns has {len(knowledge.columns)} entries; closed_form decodes one unknown column")
    settings = settings or ClosedForm()
    _check.finite(ridge=settings.ridge)
    rate = settings.learning_rate
    if rate is not None and not _check.is_traced(rate) and not 0 < float(rate) < float("inf"):
        raise ValueError(f"learning_rate={rate!r} must be positive, or None if unknown")
    traced = _check.is_traced(messages, knowledge, settings)
    with jax.enable_x64(jax.config.read("jax_enable_x64") if traced else dtype == jnp.float64):
        return _closed_form(model, messages, knowledge, settings, jnp.zeros((), dtype).dtype)


def _cast(tree: Any, floating: Any, integer: Any = None) -> Any:
    def cast(a: Any) -> Array:
        a = jnp.asarray(a)
        if jnp.issubdtype(a.dtype, jnp.floating):
            return a.astype(floating)
        return a if integer is None or not jnp.issubdtype(a.dtype, jnp.integer) else a.astype(integer)

    return jax.tree.map(cast, tree)


@functools.partial(jax.jit, static_argnames=("model", "dtype"))
def _closed_form(model: Model, messages: Messages, knowledge: Knowledge, settings: ClosedForm, dtype: Any) -> Decoding:
    messages, knowledge, settings = _cast((messages, knowledge, settings), dtype)
    x, y = candidate_records(model, knowledge)
    records, count = x.shape[:2]
    rate_known = settings.learning_rate is not None
    with jax.default_matmul_precision("highest"):
        system = normal_equations(model, messages, x, y, settings.learning_rate)
        start = prior_weights(model, knowledge, count)
        if not rate_known:
            start = jnp.append(start, 0)
        solution, condition = _solve(system, start, settings.ridge)
        residual = _misfit(system, solution)
    if rate_known:
        weights, rate = solution, jnp.asarray(settings.learning_rate)
    else:
        weights, rate = solution[:-1], 1 / solution[-1]
    weights = weights.reshape(records, count - 1)
    scores = jnp.concatenate([1 - weights.sum(1, keepdims=True), weights], 1)
    decoding = _decoded(knowledge, system, scores, solution, condition, residual, rate)
    # 64-bit arrays are left behind: outside, most operations would refuse them or warn.
    return _cast(decoding, jnp.float32, jnp.int32)


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


def normal_equations(model: Model, messages: Messages, x: Array, y: Array, learning_rate: Array | None) -> NormalEquations:
    """The normal equations for the weights of candidates `x [records, K, features]`, `y [records, K]`.

    The first candidate is the base; unknowns are the weights of the others, record by record, and last the inverse
    learning rate if that is None.
    """
    records = len(x)
    updates = messages.pseudo_gradient
    products = _layer_products if model.layers is not None else _jacobian_products
    inputs = first_inputs(model, x, y, jax.tree.map(lambda a: a[0], messages.received))

    def one_round(received_update: tuple[Any, Any]) -> NormalEquations:
        received, update = received_update
        weight = 1 / jnp.maximum(_dot(update, update), jnp.finfo(x.dtype).tiny)
        gram, project, base = products(model, received, x, y, inputs)
        if learning_rate is not None:
            target = jax.tree.map(lambda u, b: u * records / learning_rate - b, update, base)
            return NormalEquations(weight * gram, weight * project(target), weight * _dot(target, target))
        scaled = jax.tree.map(lambda u: -records * u, update)
        target = jax.tree.map(jnp.negative, base)
        cross = project(scaled)
        whole = jnp.block([[gram, cross[:, None]], [cross[None], _dot(scaled, scaled)[None, None]]])
        right = jnp.append(project(target), _dot(scaled, target))
        return NormalEquations(weight * whole, weight * right, weight * _dot(target, target))

    def add(total: NormalEquations, one: Any) -> tuple[NormalEquations, None]:
        return jax.tree.map(jnp.add, total, one_round(one)), None

    size = records * (x.shape[1] - 1) + (learning_rate is None)
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


def _layer_products(model: Model, params: Any, x: Array, y: Array, first: Any) -> tuple[Array, Any, Any]:
    """Gram matrix of the gradient differences, their products with a target, and the base's gradient, by layers."""
    layers = model.layers
    assert layers is not None
    records, count = x.shape[:2]
    inputs, errors = inputs_and_errors(model, params, x.reshape(-1, *x.shape[2:]), y.reshape(-1))
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


def difference_jacobian(model: Model, params: Any, x: Array, y: Array) -> tuple[Array, Array]:
    """Gradient differences of the other candidates from the base `[unknowns, parameters]`, and the sum of the base's
    gradients `[parameters]`, explicitly; for any model."""

    def gradient(x: Array, y: Array) -> Array:
        return ravel_pytree(jax.grad(lambda p: model.loss(model.apply(p, x[None]), y[None]).sum())(params))[0]

    every = jax.vmap(jax.vmap(gradient))(x, y)
    return (every[:, 1:] - every[:, :1]).reshape(-1, every.shape[-1]), every[:, 0].sum(0)


def _jacobian_products(model: Model, params: Any, x: Array, y: Array, first: Any) -> tuple[Array, Any, Any]:
    """As `_layer_products`, with the gradients written out."""
    jacobian, base = difference_jacobian(model, params, x, y)
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


def _misfit(system: NormalEquations, solution: Array) -> Array:
    """Squared residual relative to the right-hand side."""
    total = solution @ system.gram @ solution - 2 * solution @ system.right + system.square
    return jnp.maximum(total, 0) / system.square


def _decoded(
    knowledge: Knowledge,
    system: NormalEquations,
    scores: Array,
    solution: Array,
    condition: Array,
    residual: Array,
    rate: Array,
) -> Decoding:
    """Round to one candidate per record, and measure the misfit of the rounded answer."""
    chosen = scores.argmax(1)
    rounded = jax.nn.one_hot(chosen, scores.shape[1], dtype=scores.dtype)[:, 1:].reshape(-1)
    objective = _misfit(system, jnp.concatenate([rounded, solution[len(rounded) :]]))
    failed = ~(jnp.isfinite(solution).all() & jnp.isfinite(objective))
    values, labels = chosen, None
    if knowledge.y is None:
        classes = scores.shape[1] // len(knowledge.columns[0].candidates)
        values, labels = chosen // classes, jnp.where(failed, -1, chosen % classes)
        scores = scores.reshape(len(scores), -1, classes).sum(2)
    reconstruction = Reconstruction(
        values=(jnp.where(failed, -1, values),),
        scores=(scores,),
        labels=labels,
        objective=jnp.where(failed, jnp.inf, objective),
        trace=jnp.zeros(0),
        gradient_norm=jnp.zeros(0),
        status=failed.astype(jnp.int32),
    )
    return Decoding(reconstruction, condition, residual, rate)
