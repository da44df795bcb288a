"""A linear client's binary attribute out of its decoded moments: by a model's fit, with a proven
bound, and better without.

Threat model: as in `attacks.local_models.optimum`; public columns, targets and messages are known.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Num
from scipy.optimize import brentq, minimize
from scipy.special import expit

from attacks.fit import MisfitWarning
from attacks.local_models.moments import ROUNDED, Moments, public_part
from jaxfl import _check
from jaxfl.domains import Index, checked
from jaxfl.watching import on_host

ERROR = 1e-12
"""Rounding error of a decoded mean squared error, relative to the targets' mean square."""

CONVERGED = 2
"""Times what the truth leaves that may be left."""
GRADIENT = 1e-9
"""Of the dual, where Newton's method ends: what equations may then leave beside their least."""

PULL = 1e-4
"""Pull of weights to their prior, in what their equations leave: so little that it moves no weight
across 1/2 where equations fix the weights, and enough to choose where they do not."""

IMPOSSIBLE = 0.1
"""By how much the decoded mean of a column may lie below 0 or above 1, as noise of messages makes
it."""
LEAST_SIZE = 1e-3
"""A column's size, relative to the largest, below which what rounds is as of this size."""
MOST_STEPS = 100
"""Steps of Newton's method, at most; it takes ten or twenty. Moments that are not of these records
have no likeliest weights, and the method would never end."""


@dataclasses.dataclass(frozen=True)
class InferredAttribute:
    """A binary attribute of every record, and what can be said of its accuracy without the truth.

    Attributes:
      values: 0 or 1 `[records]`.
      scores: s~, the attribute that would bring the record's prediction to its target `[records]`.
      prior: decoded fraction of ones, rho.
      mse: decoded mean squared error of the model on the client's data.
      bound: at least this fraction of `values` is right (Driouich 2022, Proposition 3; Driouich
        2023, Proposition 4); 0 proves nothing. NaN if the moments are not exact, or impossible,
        the rate outside [0, 1] or the error negative, or if the attribute depends on other columns
        or the moments are of other records.
        Messages with noise give moments of which nothing is proven.
    """

    values: np.ndarray
    scores: np.ndarray
    prior: float
    mse: float
    bound: float


@on_host("ranks of one column, in NumPy")
@checked
def infer_binary_attribute(
    x: Num[np.ndarray, "records features"],
    y: Num[np.ndarray, "records"],
    attribute: Index,
    moments: Moments,
    *,
    params: np.ndarray | None = None,
    rule: Literal["rank", "threshold"] = "rank",
) -> InferredAttribute:
    """The attribute under which a linear model fits its client's targets.

    "rank" (Driouich 2022, Algorithm 3): the ceil(rho m) records of the largest s~ have it.
    "threshold" (Driouich 2023, Eq. 9): those with s~ >= 1/2. In both at least 1 - 4 MSE / theta_s^2
    are right, by ranks |1 - 2 rho| too. The bounds take rho and MSE from the decoded moments, no
    truth. Since by ranks exactly rho m ones are predicted, false ones and false zeros come in
    pairs, each of which costs m MSE at least theta_s^2 / 2 (Driouich 2022 prints the minimum where
    it needs the maximum).

    Args:
      x: public records `[records, features]`; the attribute's column may hold anything.
      y: targets `[records]`.
      attribute: its position among the features; 0 or 1 in every record.
      moments: the client's, see `local_moments` and `structured_moments`.
      params: the model `[features + 1]`, the intercept last; by default the client's optimum, from
        its moments.
      rule: "rank" or "threshold".

    Warns:
      MisfitWarning: if exact moments are of other records, or moments of an attribute that is not 0
        or 1; then `bound` is NaN.

    Raises:
      ValueError: if shapes do not fit, the attribute does not exist, or moments or params are not
        finite.
    """
    _check_moments(moments)
    x, y, known = public_part(x, y, attribute, len(moments.cross) - 1)
    theta = moments.optimum if params is None else np.asarray(params, np.float64)
    _check.shape((len(moments.cross),), params=theta)
    _check.finite(params=theta)
    weight = theta[attribute]
    contradiction = _contradiction(x, y, attribute, moments)
    if contradiction:
        _warn(f"infer_binary_attribute: {contradiction}")
    rate, energy = float(moments.second[attribute, -1]), y @ y / len(y)
    error = float(energy - 2 * theta @ moments.cross + theta @ moments.second @ theta)
    prior, mse = float(np.clip(rate, 0, 1)), max(error, 0.0)
    possible = moments.exact and abs(rate - prior) < ROUNDED and error > -ROUNDED * energy
    possible &= not contradiction and (params is not None or moments.determines(attribute))
    # Rounding may hide so much.
    most = mse + ERROR * energy + moments.rounding * np.abs(np.append(theta, 1)).sum() ** 2
    residual = y - x @ theta[known] - theta[-1]
    if (
        abs(weight) < 1e-12
    ):  # the model does not use the attribute: the more frequent value is all there is
        scores = np.full(len(x), float(prior >= 0.5))
        return InferredAttribute(
            scores, scores, prior, mse, abs(1 - 2 * prior) if possible else np.nan
        )
    scores = residual / weight
    bound = float(np.maximum(1 - 4 * most / weight**2, 0)) if possible else np.nan
    if rule == "threshold":
        return InferredAttribute((scores >= 0.5).astype(float), scores, prior, mse, bound)
    ones = prior * len(x)
    count = round(ones) if abs(ones - round(ones)) < 1e-3 else int(np.ceil(ones))
    values = np.zeros(len(x))
    values[np.argsort(-scores, kind="stable")[:count]] = 1
    return InferredAttribute(
        values, scores, prior, mse, float(np.maximum(abs(1 - 2 * prior), bound))
    )


@on_host("SciPy's L-BFGS-B")
@checked
def infer_by_logistic(
    x: Num[np.ndarray, "records features"],
    y: Num[np.ndarray, "records"],
    attribute: Index,
    moments: Moments,
) -> InferredAttribute:
    """The victim's own logistic regression of the attribute on everything else, fitted without
    seeing the attribute.

    With z = (public columns, target, 1) the likelihood needs of the attribute s only `sum_i s_i
    z_i`, and that is a column of the decoded moments. So the maximum-likelihood weights are those
    of a regression on the client's true attribute; nothing about the local optimum being a good
    model is needed. Beyond Driouich 2022 and 2023.

    Args:
      x: public records `[records, features]`; the attribute's column may hold anything.
      y: targets `[records]`.
      attribute: its position among the features; 0 or 1 in every record.
      moments: the client's, see `local_moments`.

    Warns:
      MisfitWarning: as `infer_binary_attribute`; and if no weights are the likeliest: the moments
        are of other records.

    Returns:
      As `infer_binary_attribute`; `scores` are log odds, `mse` and `bound` are NaN: there is none.

    Raises:
      ValueError: as `infer_binary_attribute`.
    """
    z, sums, _, contradiction = _attribute_equations(x, y, attribute, moments)
    minimum = minimize(
        lambda w: (np.logaddexp(0, z @ w).mean() - w @ sums, z.T @ expit(z @ w) / len(z) - sums),
        np.zeros(z.shape[1]),
        jac=True,
        hess=lambda w: (
            (z.T * (expit(z @ w) * expit(-z @ w))) @ z / len(z) + 1e-9 * np.eye(z.shape[1])
        ),
        method="trust-exact",
        options={"maxiter": MOST_STEPS},
    )
    if not minimum.success and not contradiction:
        missing = f"no likeliest weights within {MOST_STEPS} steps"
        contradiction = f"moments have {missing}; they are not of these records"
    if contradiction:
        _warn(f"infer_by_logistic: {contradiction}")
    scores = z @ minimum.x
    return InferredAttribute(
        (scores > 0).astype(float), scores, float(np.clip(sums[-1], 0, 1)), np.nan, np.nan
    )


@on_host("SciPy's bounded least squares")
@checked
def infer_in_box(
    x: Num[np.ndarray, "records features"],
    y: Num[np.ndarray, "records"],
    attribute: Index,
    moments: Moments,
) -> InferredAttribute:
    """Weights in [0, 1] that reproduce the decoded moments, nearest to their prior; rounded at 1/2.

    As many equations as columns: exact where there are no more records than those.

    Args:
      x: public records `[records, features]`; the attribute's column may hold anything.
      y: targets `[records]`.
      attribute: its position among the features; 0 or 1 in every record.
      moments: the client's, see `local_moments`.

    Returns:
      As `infer_by_logistic`; `scores` are the weights.

    Warns:
      MisfitWarning: as `infer_binary_attribute`; and if no values of the attribute have these
        moments: they are of other records. Of moments that are not exact only an impossible mean
        is told.
    """
    z, sums, rounding, contradiction = _attribute_equations(x, y, attribute, moments)
    prior, root = float(np.clip(sums[-1], 0, 1)), np.sqrt(len(z))
    scores = _in_box(z.T / root, sums * root, prior)
    gap = z.T @ scores / root - sums * root
    left = gap @ gap + PULL**2 * ((scores - prior) ** 2).sum()
    # The true attribute is in the box, and leaves its distance from the prior and rounding.
    truth = len(z) * (PULL**2 * prior * (1 - prior) + rounding @ rounding)
    if moments.exact and left > CONVERGED * truth and not contradiction:
        contradiction = "no values have these moments; they are not of these records"
    if contradiction:
        _warn(f"infer_in_box: {contradiction}")
    return InferredAttribute((scores > 0.5).astype(float), scores, prior, np.nan, np.nan)


def _in_box(a: np.ndarray, b: np.ndarray, prior: float) -> np.ndarray:
    """The weights `[records]` in [0, 1] of least |a w - b|^2 + PULL^2 |w - prior|^2, for equations
    `[columns, records]`: by the dual, which has a number per column, by Newton's method."""

    def weights(dual: np.ndarray) -> np.ndarray:
        return np.clip(prior - a.T @ dual, 0, 1)

    def gradient(dual: np.ndarray) -> np.ndarray:
        return PULL**2 * dual + b - a @ weights(dual)

    dual = np.zeros(len(b))
    for _ in range(MOST_STEPS):
        slope = gradient(dual)
        if np.abs(slope).max() < GRADIENT:
            break
        inside = np.abs(prior - a.T @ dual - 0.5) < 0.5
        step = -np.linalg.solve((a * inside) @ a.T + PULL**2 * np.eye(len(b)), slope)
        # The dual is convex, and quadratic in pieces: whole steps may go to and fro for good.
        dual = dual + _least_along(gradient, dual, step) * step
    return weights(dual)


def _least_along(
    gradient: Callable[[np.ndarray], np.ndarray], place: np.ndarray, step: np.ndarray
) -> float:
    """How many steps downhill a convex function is least."""

    def slope(steps: float) -> float:
        return float(step @ gradient(place + steps * step))

    most = 1.0
    while slope(most) < 0:
        most *= 2
    return float(brentq(slope, 0.0, most))


def _warn(text: str) -> None:
    warnings.warn(text, MisfitWarning, stacklevel=4)


def _check_moments(moments: Moments) -> None:
    _check.finite(**{"moments.second": moments.second, "moments.cross": moments.cross})


class _AttributeEquations(NamedTuple):
    """What an attribute's values must fulfil.

    Attributes:
      known: of every record, standardised `[records, columns]`; the last column is 1.
      sums: mean of `known` where the attribute is 1, times rho `[columns]`.
      rounding: by how much the sums may be off `[columns]`.
      contradiction: why the moments are not of these records, in words, or "".
    """

    known: np.ndarray
    sums: np.ndarray
    rounding: np.ndarray
    contradiction: str


def _attribute_equations(
    x: np.ndarray, y: np.ndarray, attribute: int, moments: Moments
) -> _AttributeEquations:
    """Those of records `[records, features]` and of the moments of them all."""
    _check_moments(moments)
    x, y, known = public_part(x, y, attribute, len(moments.cross) - 1)
    contradiction = _contradiction(x, y, attribute, moments)
    columns = np.concatenate([x, y[:, None]], 1)
    prior = moments.second[attribute, -1]
    sums = np.append(moments.second[attribute, known], moments.cross[attribute])
    mean, deviation = columns.mean(0), columns.std(0)
    varies = deviation > 0
    z = (columns[:, varies] - mean[varies]) / deviation[varies]
    sums_z = np.append((sums - prior * mean)[varies] / deviation[varies], prior)
    eps = np.finfo(np.float64).eps * len(columns)
    off = moments.rounding + eps * np.abs(columns).max(0)
    rounding = np.append((off * (1 + np.abs(mean)))[varies] / deviation[varies], moments.rounding)
    return _AttributeEquations(np.c_[z, np.ones(len(x))], sums_z, rounding, contradiction)


def _contradiction(x: np.ndarray, y: np.ndarray, attribute: int, moments: Moments) -> str:
    """Why exact moments are not of records with these public columns `[records, features - 1]` and
    targets, or moments not of an attribute that is 0 or 1, in words; or ""."""
    square, rate = moments.second[attribute, attribute], moments.second[attribute, -1]
    reason = _of_others(x, y, attribute, moments) if moments.exact else ""
    if not reason and moments.exact and abs(square - rate) - 2 * moments.rounding > ROUNDED:
        return (
            f"the attribute has the mean {rate:.3g} and the mean square {square:.3g}; these are "
            f"one number of a column that is 0 or 1. Is attribute={attribute} its place?"
        )
    outside = max(-rate, rate - 1) - moments.rounding
    if not reason and outside > IMPOSSIBLE:
        return (
            f"the attribute has the mean {rate:.3g}, which no column of 0 and 1 has; the moments "
            "are of noise, of another recipe, or of another column"
        )
    return reason


def _of_others(x: np.ndarray, y: np.ndarray, attribute: int, moments: Moments) -> str:
    """Why moments are not of records with these public columns and targets, in words; or ""."""
    each = np.c_[x, np.ones(len(x)), y]
    sizes = np.sqrt((each**2).mean(0))
    sizes = np.maximum(sizes, LEAST_SIZE * sizes.max())
    places = np.delete(np.arange(len(moments.cross)), attribute)
    decoded = np.c_[moments.second[np.ix_(places, places)], moments.cross[places]]
    products = (each.T @ each / len(x))[:-1]
    apart = np.maximum(np.abs(decoded - products) - moments.rounding, 0)
    apart /= np.outer(sizes[:-1], sizes)
    if apart[:, :-1].max() > ROUNDED:
        return "the public columns have other mean products than x; the moments are not of x"
    if apart[:, -1].max() > ROUNDED:
        return "y has other mean products with x than the moments say; is it in the order of x?"
    return ""
