"""A linear least-squares client's own optimum, read out of its messages (Driouich 2022 and 2023), and the attribute from it.

Threat model: an honest-but-curious server that knows a client's public columns and targets, and receives its messages. The
client minimises `|X theta - y|^2 / m` by full-batch gradient descent of step `eta`, E steps per round. With H = X'X every
message obeys (Driouich 2022, proof of Proposition 2)

    u_t = theta_t (received) - theta_t (returned) = W theta_t - v,    W = I - (I - 2 eta H / m)^E,    v = W theta*.

So `theta_t = W^-1 u_t + theta*`: in the regression of received models on updates the local optimum is the intercept, for
any E and without knowing eta. All of it in NumPy and float64: messages of a deterministic run sink into few directions.
"""

import dataclasses
import warnings
from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from jaxfl import Messages, _check

IDENTIFIABLE, UNEXPLAINED, ROUNDED = 1e-5, 1e-3, 1e-3
"""`condition * eps` and `unexplained`, below which an optimum counts as identified (see `LocalOptimum`); by how much decoded
moments may lie outside what is possible."""


@dataclasses.dataclass(frozen=True)
class LocalOptimum:
    """What the messages tell. Host arrays, float64.

    Attributes:
      params: theta* `[parameters]`, in the order of the messages' features, the intercept last.
      inverse: W^-1 on the directions that were seen `[parameters, parameters]`.
      condition: condition number of the updates, each parameter brought to unit scale.
      rank: directions seen.
      unexplained: `|theta_t - W^-1 u_t - theta*|` over all rounds, relative to the received models' spread: about the rounding
        error for full batches, near 1 for the noise of small ones; NaN of d + 1 rounds or fewer, or equal models.
      identifiable: True if all directions were seen, `condition * eps < 1e-5` and `unexplained < 1e-3`.
      reason: why not, in words, or "".
    """

    params: np.ndarray
    inverse: np.ndarray
    condition: float
    rank: int
    unexplained: float
    identifiable: bool
    reason: str


def linear_parameters(tree: Any) -> np.ndarray:
    """A one-layer model's kernel `[rounds, features, 1]` and bias, as rows `[rounds, features + 1]`, the intercept last.

    Raises:
      ValueError: if the tree is not that of `jaxfl.linear`.
    """
    layers = list(tree.values()) if isinstance(tree, dict) else []
    if len(layers) != 1 or set(layers[0]) != {"kernel", "bias"} or np.ndim(layers[0]["kernel"]) != 3:
        raise ValueError("messages must be of a linear model: one layer with a kernel [rounds, features, 1] and a bias")
    kernel, bias = np.asarray(layers[0]["kernel"]), np.asarray(layers[0]["bias"])
    if kernel.shape[2] != 1:
        raise ValueError(f"messages are of a linear model with {kernel.shape[2]} outputs; it must have 1")
    return np.concatenate([kernel[:, :, 0], bias], 1)


def local_optimum(messages: Messages) -> LocalOptimum:
    """Decode the local optimum from a client's messages (Driouich 2022, Algorithm 3; Driouich 2023, Proposition 3).

    One singular value decomposition serves all parameters, where the paper solves as many systems. Directions in which the
    updates do not move beyond rounding are left out, so that the answer stays near the received models there.

    Args:
      messages: of a linear model, more rounds than parameters; record them in float64.

    Warns:
      UserWarning: if the messages were recorded in float32.

    Raises:
      ValueError: if the model is not linear, or if there are fewer than two rounds.
    """
    received, returned = linear_parameters(messages.received), linear_parameters(messages.returned)
    if len(received) < 2:
        raise ValueError(f"messages holds {len(received)} rounds; the optimum needs at least 2")
    _check.finite(received=received, returned=returned)
    if received.dtype != np.float64:
        warnings.warn("messages are float32: the optimum is decoded to few digits; simulate with 64-bit types", stacklevel=2)
    recorded = received.dtype
    eps = float(np.finfo(recorded).eps)
    received, returned = received.astype(np.float64), returned.astype(np.float64)
    updates = received - returned
    centre, mean = received.mean(0), updates.mean(0)
    scale = np.maximum(np.abs(updates - mean).max(0), np.finfo(np.float64).tiny)
    left, singular, right = np.linalg.svd((updates - mean) / scale, full_matrices=False)
    kept = singular > len(received) * eps * singular[0]
    rank = int(kept.sum())
    inverse = (right[kept].T / singular[kept]) @ (left[:, kept].T @ (received - centre)) / scale[:, None]
    condition = float(singular[0] / singular[kept][-1]) if rank else np.inf
    missed = received - centre - (updates - mean) @ inverse
    spread = np.linalg.norm(received - centre)
    unexplained = np.linalg.norm(missed) / spread if len(received) > rank + 1 and spread > 0 else np.nan
    reason = ""
    if rank < updates.shape[1]:
        reason = f"the updates span {rank} of {updates.shape[1]} directions"
    elif not condition * eps < IDENTIFIABLE:
        reason = f"condition number {condition:.1e} leaves no digits in {recorded}"
    elif np.isnan(unexplained):
        reason = f"nothing tells noise in {len(received)} rounds; give at least {rank + 2}, of different models"
    elif not unexplained < UNEXPLAINED:
        reason = f"{unexplained:.1e} of the models is no affine map of the updates: they hold noise, see noisy_local_optimum"
    return LocalOptimum(centre - mean @ inverse, inverse.T, condition, rank, float(unexplained), not reason, reason)


@dataclasses.dataclass(frozen=True)
class Moments:
    """The client's sufficient statistics. Host arrays, float64; an intercept's column of ones comes last.

    Attributes:
      second: X'X / m `[parameters, parameters]`.
      cross: X'y / m `[parameters]`.
      learning_rate: the client's step size.
    """

    second: np.ndarray
    cross: np.ndarray
    learning_rate: float

    @property
    def optimum(self) -> np.ndarray:
        """theta* `[parameters]`; the shortest, if columns depend on each other."""
        return np.linalg.lstsq(self.second, self.cross, rcond=None)[0]


def local_moments(optimum: LocalOptimum, *, epochs: int = 1) -> Moments:
    """Decode X'X / m and X'y / m: `2 eta X'X / m = I - (I - W)^(1 / E)`, and eta by the intercept's own entry, which is 1.

    Args:
      optimum: an identified one.
      epochs: full-batch steps per round, E. For E > 1 the root needs `2 eta lambda_max(X'X / m) < 1`, which is more than
        stability asks for.

    Raises:
      ValueError: if the optimum is not identified, the root does not exist, or what is found are no second moments.
    """
    _check.positive_integer(epochs=epochs)
    if not optimum.identifiable:
        raise ValueError(f"optimum is not identified ({optimum.reason}); its moments are not determined")
    gain = np.linalg.inv(optimum.inverse)
    values, vectors = np.linalg.eigh((gain + gain.T) / 2)
    if values.max() >= 1 and epochs > 1:
        raise ValueError(f"epochs={epochs}: the step is too long for a root of I - W (largest eigenvalue {values.max():.3g})")
    steps = (vectors * (1 - (1 - values) ** (1 / epochs) if epochs > 1 else values)) @ vectors.T
    if not (steps[-1, -1] > 0 and np.linalg.eigvalsh(steps)[0] > -ROUNDED * np.abs(values).max()):
        raise ValueError(f"optimum.inverse is of no full-batch steps of least squares; its moments would be {steps.tolist()}")
    second = steps / steps[-1, -1]
    return Moments(second, second @ optimum.params, float(steps[-1, -1] / 2))


def structured_moments(
    messages: Messages, x: np.ndarray, y: np.ndarray, attribute: int, learning_rate: float, *, steps: int = 1
) -> Moments:
    """Decode the moments by what is known already: everything but one row of X'X / m and one number of X'y / m.

    With r_t = u_t / (2 eta), and p for the public columns (the intercept's among them), s for the attribute,

        r_t[p] = H_pp theta_t[p] + b theta_t[s] - X_p'y / m,     b = X_p's / m,
        r_t[s] = b'theta_t[p] + rho theta_t[s] - q,              rho = s's / m = b[intercept],  q = s'y / m.

    So two messages are enough, of a deterministic run too, where the generic decoder has nothing to go by. Beyond Driouich
    2022 and 2023.

    Args:
      messages: of a linear model whose client takes one full-batch step per round. With several `steps` the equations hold
        to first order at the centre of the local path, theta_t + (K - 1) / (2 K) (returned - theta_t).
      x: public records `[records, features]`; the attribute's column may hold anything.
      y: targets `[records]`.
      attribute: its position among the features; 0 or 1 in every record.
      learning_rate: the client's, eta.
      steps: local steps per round, K.

    Raises:
      ValueError: if shapes do not fit, the attribute does not exist, or no message gives it any weight.
    """
    received, returned = linear_parameters(messages.received), linear_parameters(messages.returned)
    _check.positive_integer(steps=steps)
    _check.finite(received=received, returned=returned)
    received, returned = received.astype(np.float64), returned.astype(np.float64)
    x, y, known = _public_part(x, y, attribute, received.shape[1] - 1)
    _check.positive(learning_rate=learning_rate)
    public, at = np.c_[x, np.ones(len(x))], np.append(known, received.shape[1] - 1)
    theta = received + (steps - 1) / (2 * steps) * (returned - received)
    slopes = (received - returned) / (2 * learning_rate * steps)
    weight = theta[:, attribute]
    if not (weight**2).sum() > 0:
        raise ValueError(f"attribute={attribute} has weight 0 in every message, which then tell nothing of it")
    size = received.shape[1]
    second, cross = np.zeros((size, size)), np.zeros(size)
    second[np.ix_(at, at)], cross[at] = public.T @ public / len(x), public.T @ y / len(x)
    missing = slopes[:, at] - theta[:, at] @ second[np.ix_(at, at)] + cross[at]
    row = weight @ missing / (weight**2).sum()
    second[attribute, at] = second[at, attribute] = row
    second[attribute, attribute] = row[-1]
    cross[attribute] = (theta @ second[attribute] - slopes[:, attribute]).mean()
    return Moments(second, cross, float(learning_rate))


@dataclasses.dataclass(frozen=True)
class NoisyOptimum:
    """Attributes:
    params: theta* `[parameters]`, float64, the intercept last.
    error: with probability `1 - delta` the distance to the true one is no larger; infinite if there are too few messages
      for the bound to hold.
    """

    params: np.ndarray
    error: float


def noisy_local_optimum(messages: Messages, *, delta: float = 0.05) -> NoisyOptimum:
    """Decode the optimum from noisy updates by ordinary least squares of u_t on (theta_t, -1) (Driouich 2023, Proposition 3).

    The error bound is Eq. 35 with a union bound over the d rows, all messages serving all rows. Three changes to Eq. 26: the
    logarithm keeps its d, which the paper loses between Eq. 33 and 34; its unstated constant is that of Hsu, Kakade and Zhang
    (2012), p + 2 sqrt(p t) + 2 t; and the noise, which the adversary does not know, is the residuals'. It assumes received
    models that do not depend on the client's earlier noise, and steps of at most `m / (2 lambda_max(X'X))`.

    Args:
      messages: of a linear model.
      delta: chance that the bound fails.

    Raises:
      ValueError: if the model is not linear, there are not more rounds than parameters, or delta is no probability.
    """
    received, returned = linear_parameters(messages.received), linear_parameters(messages.returned)
    _check.finite(received=received, returned=returned)
    received, returned = received.astype(np.float64), returned.astype(np.float64)
    rounds, size = received.shape
    if rounds <= size + 1:
        raise ValueError(f"messages holds {rounds} rounds; least squares for {size} parameters needs at least {size + 2}")
    _check.fraction(delta=delta)
    inputs = np.c_[received, -np.ones(rounds)]
    found, _, rank, singular = np.linalg.lstsq(inputs, received - returned, rcond=None)
    if rank <= size:
        return NoisyOptimum(np.full(size, np.nan), np.inf)
    gain, v = found[:-1].T, found[-1]
    params = np.linalg.solve(gain, v)
    variance = ((received - returned - inputs @ found) ** 2).sum(0).max() / (rounds - size - 1)
    t = np.log(2 * size / delta)
    tail = (size + 1) + 2 * np.sqrt((size + 1) * t) + 2 * t
    distance = np.sqrt(size * variance * tail) / singular[-1]  # of (W, v), in Frobenius norm
    least = np.linalg.svd(gain, compute_uv=False)[-1]
    # With W decoded, W (theta* - params) = dW theta* - dv: the error e satisfies least * e <= distance * (|params| + e + 1).
    slack = least - distance
    error = distance * (np.linalg.norm(params) + 1) / slack if slack > 0 else np.inf
    return NoisyOptimum(params, float(error))


@dataclasses.dataclass(frozen=True)
class InferredAttribute:
    """A binary attribute of every record, and what can be said of its accuracy without the truth.

    Attributes:
      values: 0 or 1 `[records]`.
      scores: s~, the attribute that would bring the record's prediction to its target `[records]`.
      prior: decoded fraction of ones, rho.
      mse: decoded mean squared error of the model on the client's data.
      bound: at least this fraction of `values` is right (Driouich 2022, Proposition 3; Driouich 2023, Proposition 4). NaN if
        the moments are impossible, the rate outside [0, 1] or the error negative, and so tell nothing.
    """

    values: np.ndarray
    scores: np.ndarray
    prior: float
    mse: float
    bound: float


def infer_binary_attribute(
    x: np.ndarray,
    y: np.ndarray,
    attribute: int,
    moments: Moments,
    *,
    params: np.ndarray | None = None,
    rule: Literal["rank", "threshold"] = "rank",
) -> InferredAttribute:
    """The attribute under which a linear model fits its client's targets.

    "rank" (Driouich 2022, Algorithm 3): the ceil(rho m) records of the largest s~ have it. "threshold" (Driouich 2023, Eq. 9):
    those with s~ >= 1/2. In both at least 1 - 4 MSE / theta_s^2 are right, by ranks |1 - 2 rho| too. The bounds take rho and
    MSE from the decoded moments, no truth. Since by ranks exactly rho m ones are predicted, false ones and false zeros come
    in pairs, each of which costs m MSE at least theta_s^2 / 2 (Driouich 2022 prints the minimum where it needs the maximum).

    Args:
      x: public records `[records, features]`; the attribute's column may hold anything.
      y: targets `[records]`.
      attribute: its position among the features; 0 or 1 in every record.
      moments: the client's, see `local_moments` and `structured_moments`.
      params: the model `[features + 1]`, the intercept last; by default the client's optimum, from its moments.
      rule: "rank" or "threshold".

    Raises:
      ValueError: if shapes do not fit, or the attribute does not exist.
    """
    _check.one_of(("rank", "threshold"), rule=rule)
    x, y, known = _public_part(x, y, attribute, len(moments.cross) - 1)
    theta = moments.optimum if params is None else np.asarray(params, np.float64)
    _check.shape((len(moments.cross),), params=theta)
    weight = theta[attribute]
    rate, energy = float(moments.second[attribute, -1]), y @ y / len(y)
    error = float(energy - 2 * theta @ moments.cross + theta @ moments.second @ theta)
    prior, mse = float(np.clip(rate, 0, 1)), max(error, 0.0)
    possible = abs(rate - prior) < ROUNDED and error > -ROUNDED * energy
    residual = y - x @ theta[known] - theta[-1]
    if abs(weight) < 1e-12:  # the model does not use the attribute: the more frequent value is all there is
        scores = np.full(len(x), float(prior >= 0.5))
        return InferredAttribute(scores, scores, prior, mse, abs(1 - 2 * prior) if possible else np.nan)
    scores, bound = residual / weight, 1 - 4 * mse / weight**2 if possible else np.nan
    if rule == "threshold":
        return InferredAttribute((scores >= 0.5).astype(float), scores, prior, mse, bound)
    ones = prior * len(x)
    count = round(ones) if abs(ones - round(ones)) < 1e-3 else int(np.ceil(ones))
    values = np.zeros(len(x))
    values[np.argsort(-scores, kind="stable")[:count]] = 1
    return InferredAttribute(values, scores, prior, mse, float(np.maximum(abs(1 - 2 * prior), bound)))


def infer_by_logistic(x: np.ndarray, y: np.ndarray, attribute: int, moments: Moments) -> InferredAttribute:
    """The victim's own logistic regression of the attribute on everything else, fitted without seeing the attribute.

    With z = (public columns, target, 1) the likelihood needs of the attribute s only `sum_i s_i z_i`, and that is a column of
    the decoded moments. So the maximum-likelihood weights are those of a regression on the client's true attribute; nothing
    about the local optimum being a good model is needed. Beyond Driouich 2022 and 2023.

    Args:
      x: public records `[records, features]`; the attribute's column may hold anything.
      y: targets `[records]`.
      attribute: its position among the features; 0 or 1 in every record.
      moments: the client's, see `local_moments`.

    Returns:
      As `infer_binary_attribute`; `scores` are log odds, `mse` and `bound` are NaN: there is none.

    Raises:
      ValueError: as `infer_binary_attribute`.
    """
    z, sums = _attribute_equations(x, y, attribute, moments)
    weights = minimize(
        lambda w: (np.logaddexp(0, z @ w).mean() - w @ sums, z.T @ expit(z @ w) / len(z) - sums),
        np.zeros(z.shape[1]),
        jac=True,
        hess=lambda w: (z.T * (expit(z @ w) * expit(-z @ w))) @ z / len(z) + 1e-9 * np.eye(z.shape[1]),
        method="trust-exact",
    ).x
    scores = z @ weights
    return InferredAttribute((scores > 0).astype(float), scores, float(sums[-1]), np.nan, np.nan)


def infer_in_box(x: np.ndarray, y: np.ndarray, attribute: int, moments: Moments) -> InferredAttribute:
    """Weights in [0, 1] that reproduce the decoded moments, nearest to their prior; rounded at 1/2.

    As many equations as columns: exact where there are no more records than those. Arguments and returns as
    `infer_by_logistic`; `scores` are the weights.
    """
    z, sums = _attribute_equations(x, y, attribute, moments)
    prior, pull = float(np.clip(sums[-1], 0, 1)), 1e-4
    root = np.sqrt(len(z))

    def misfit(s: np.ndarray) -> tuple[float, np.ndarray]:
        gap, away = (z.T @ s / root - sums * root), pull * (s - prior)
        return float(gap @ gap + away @ away), 2 * (z @ gap / root + pull * away)

    options = {"maxiter": 20_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 50}
    start = np.full(len(z), prior)
    scores = minimize(misfit, start, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(z), options=options).x
    return InferredAttribute((scores > 0.5).astype(float), scores, prior, np.nan, np.nan)


def _public_part(x: np.ndarray, y: np.ndarray, attribute: int, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Public columns `[records, features - 1]`, targets, and the columns' places. Raises `ValueError` on what does not fit."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    _check.shape((None, features), x=x)
    _check.shape((len(x),), y=y)
    _check.index(features, "features", attribute=attribute)
    known = np.delete(np.arange(features), attribute)
    _check.finite(**{"x (but the attribute)": x[:, known], "y": y})
    return x[:, known], y, known


def _attribute_equations(x: np.ndarray, y: np.ndarray, attribute: int, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """What is known of every record, standardised, `[records, columns]`, and its mean where the attribute is 1, times rho."""
    x, y, known = _public_part(x, y, attribute, len(moments.cross) - 1)
    columns = np.concatenate([x, y[:, None]], 1)
    prior = moments.second[attribute, -1]
    sums = np.append(moments.second[attribute, known], moments.cross[attribute])
    mean, deviation = columns.mean(0), columns.std(0)
    varies = deviation > 0
    z = (columns[:, varies] - mean[varies]) / deviation[varies]
    return np.c_[z, np.ones(len(x))], np.append((sums - prior * mean)[varies] / deviation[varies], prior)
