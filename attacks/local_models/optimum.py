"""The optimum of a linear least-squares client, out of its messages (Driouich 2022, section 4;
Driouich 2023).

Threat model: an honest-but-curious server that knows a client's public columns and targets, and
receives its messages. The client minimises `|X theta - y|^2 / m` by full-batch gradient descent of
step `eta`, E steps per round. With H = X'X every message obeys (Driouich 2022, proof of Proposition
2)

    u_t = theta_t (received) - theta_t (returned) = W theta_t - v,    W = I - (I - 2 eta H / m)^E,
    v = W theta*.

All of it in NumPy and float64: messages of a deterministic run sink into few directions.

Since `u_t = W (theta_t - theta*)`, also `theta_t = W^-1 u_t + theta*`: in the regression of
received models on updates the local optimum is the intercept, for any number of local steps and
without knowing their size. Messages that do not determine it still show the loss's slope and
curvature along the received models' differences, and so a model of less loss than the last
returned.
"""

import dataclasses
import warnings
from typing import Any

import numpy as np
from jaxtyping import Num

from attacks.fit import MisfitWarning
from jaxfl import Messages, _check
from jaxfl.domains import Fraction, checked
from jaxfl.watching import on_host

IDENTIFIABLE, UNEXPLAINED, LOST = 1e-5, 1e-3, 1e-4
"""`condition * eps`, `unexplained`, and the part of the updates' least direction that noise or
rounding may be: below these an optimum counts as identified (see `LocalOptimum`)."""
TRUSTED = 0.1
"""Slopes and curvatures are followed whose errors are at most this part of them."""
UNLIKE = 1e-2
"""By how much of its size a map of models to updates may be no symmetric, positive matrix."""
NO_DESCENT = (
    "updates grow with the models in a way that no gradient descent on squares has: they are of "
    "other rounds, received and returned exchanged, of another loss, or of steps so long that they "
    "diverge"
)
TOLD = 3
"""Asymmetries that tell a level of noise: one may be small by chance."""


@dataclasses.dataclass(frozen=True)
class LocalOptimum:
    """What the messages tell. Host arrays, float64.

    Attributes:
      params: theta*, if identifiable; else the nearest that the messages vouch for, see
        `local_optimum` `[parameters]`, in the order of the messages' features, the intercept last.
      inverse: W^-1 on the directions that were seen `[parameters, parameters]`.
      condition: condition number of the updates, each parameter brought to unit scale.
      rank: directions seen.
      unexplained: `|theta_t - W^-1 u_t - theta*|` over all rounds, relative to the received models'
        spread: about the rounding error for full batches, near 1 for the noise of small ones; NaN
        of d + 1 rounds or fewer, or equal models.
      identifiable: True if all directions were seen, `condition * eps < 1e-5`, `unexplained <
        1e-3`, noise and rounding are below 1e-4 of the direction seen least, and W is symmetric and
        positive, as that of full-batch steps is that do not diverge.
      reason: why not, in words, or "".
    """

    params: Num[np.ndarray, "parameters"]
    inverse: Num[np.ndarray, "parameters parameters"]
    condition: float
    rank: int
    unexplained: float
    identifiable: bool
    reason: str


@on_host("copies, in NumPy")
@checked
def linear_parameters(tree: Any) -> Num[np.ndarray, "rounds weights"]:
    """A one-layer model's kernel `[rounds, features, 1]` and bias, as rows `[rounds, features +
    1]`, the intercept last.

    Raises:
      ValueError: if the tree is not that of `jaxfl.linear`.
    """
    layers = list(tree.values()) if isinstance(tree, dict) else []
    if (
        len(layers) != 1
        or set(layers[0]) != {"kernel", "bias"}
        or np.ndim(layers[0]["kernel"]) != 3
    ):
        raise ValueError(
            "messages must be of a linear model: one layer with a kernel [rounds, features, 1] "
            "and a bias"
        )
    kernel, bias = np.asarray(layers[0]["kernel"]), np.asarray(layers[0]["bias"])
    if kernel.shape[2] != 1:
        raise ValueError(
            f"messages are of a linear model with {kernel.shape[2]} outputs; it must have 1"
        )
    return np.concatenate([kernel[:, :, 0], bias], 1)


@on_host("least squares of some tens of unknowns, in NumPy")
@checked
def local_optimum(messages: Messages) -> LocalOptimum:
    """Decode the local optimum from a client's messages (Driouich 2022, Algorithm 3; Driouich 2023,
    Proposition 3).

    One singular value decomposition serves all parameters, where the paper solves as many systems.
    Messages that do not determine the optimum, since they sink into few directions, are few, or
    hold noise, give in its place the last returned model, moved as far as they vouch for: but for
    noise never further from theta* in the metric of W. For one local step that is the loss on the
    client's records; for a few the loss mostly falls too. Where nothing is certain it is the last
    returned.

    Args:
      messages: of a linear model, more rounds than parameters to identify it; record them in
        float64.

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
        warnings.warn(
            "messages are float32: the optimum is decoded to few digits; simulate with 64-bit "
            "types",
            stacklevel=3,
        )
    recorded = received.dtype
    eps = float(np.finfo(recorded).eps)
    received, returned = received.astype(np.float64), returned.astype(np.float64)
    updates = received - returned
    centre, mean = received.mean(0), updates.mean(0)
    rounding = eps * np.maximum(np.abs(received), np.abs(returned)).max(0)
    scale = np.maximum(
        np.maximum(np.abs(updates - mean).max(0), rounding), np.finfo(np.float64).tiny
    )
    left, singular, right = np.linalg.svd((updates - mean) / scale, full_matrices=False)
    kept = singular > len(received) * eps * singular[0]
    rank = int(kept.sum())
    inverse = (
        (right[kept].T / singular[kept]) @ (left[:, kept].T @ (received - centre)) / scale[:, None]
    )
    condition = float(singular[0] / singular[kept][-1]) if rank else np.inf
    missed = received - centre - (updates - mean) @ inverse
    spread = np.linalg.norm(received - centre)
    tells = len(received) > rank + 1 and spread > 0
    unexplained = float(np.linalg.norm(missed) / spread) if tells else np.nan
    noise = np.maximum(_deviation(received - centre, updates - mean), rounding) / scale
    lost = np.sqrt(len(received)) * noise.max() / singular[kept][-1] if rank else np.inf
    if rank < updates.shape[1]:
        reason = f"the updates span {rank} of {updates.shape[1]} directions"
    else:
        reason = _what_hides_it(len(received), rank, condition, unexplained, float(lost), recorded)
    if not reason and not _is_of_descent(inverse):
        reason = NO_DESCENT
    params = _descended(received, returned, eps) if reason else centre - mean @ inverse
    return LocalOptimum(params, inverse.T, condition, rank, unexplained, not reason, reason)


def _is_of_descent(gain: np.ndarray, slack: float = 0.0) -> bool:
    """Whether W, or its inverse, is symmetric and positive, as that of gradient descent is, but for
    `slack` and `UNLIKE` of its size."""
    least = slack + UNLIKE * np.linalg.norm(gain)
    apart = np.linalg.norm(gain - gain.T) / 2
    return bool(apart <= least and np.linalg.eigvalsh((gain + gain.T) / 2)[0] >= -least)


def _what_hides_it(
    rounds: int, rank: int, condition: float, unexplained: float, lost: float, recorded: np.dtype
) -> str:
    """Why an optimum whose directions are all spanned is not identified; empty if it is."""
    if not condition * float(np.finfo(recorded).eps) < IDENTIFIABLE:
        return f"condition number {condition:.1e} leaves no digits in {recorded}"
    if np.isnan(unexplained):
        return (
            f"nothing tells noise in {rounds} rounds; give at least {rank + 2}, of different models"
        )
    if not unexplained < UNEXPLAINED:
        return (
            f"{unexplained:.1e} of the models is no affine map of the updates: they hold noise, "
            "see noisy_local_optimum"
        )
    if not lost < LOST:
        return (
            f"condition number {condition:.1e}, and {lost:.1e} of the least direction may be "
            "noise or rounding"
        )
    return ""


def _deviation(received: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Standard deviation `[parameters]` of the residuals of centred updates regressed on centred
    received models; 0 if there are too few rounds to tell."""
    left, singular, _ = np.linalg.svd(received, full_matrices=False)
    left = left[:, singular > len(received) * np.finfo(np.float64).eps * singular[0]]
    free = len(received) - 1 - left.shape[1]
    return (
        np.sqrt(((updates - left @ (left.T @ updates)) ** 2).sum(0) / free)
        if free > 0
        else np.zeros(updates.shape[1])
    )


def _descended(received: np.ndarray, returned: np.ndarray, eps: float) -> np.ndarray:
    """The last returned model, moved to the least loss along the received models' differences (Ritz
    1909). Beyond Driouich 2022 and 2023.

    With orthonormal V for these directions, theta' the last returned model and u its update,
    messages are affine in what was received, so that their differences give W V. The distance of
    theta' + V c from theta* in the metric of W, which for one local step is the loss above the
    optimum's times 2 eta, is but for a constant

        2 c'V'W (theta' - theta*) + c'V'W V c,    V'W (theta' - theta*) = (V - W V)'u

    since W is symmetric.

    What is not symmetric in V'W V is noise, and tells how much of it the updates hold, rounding at
    least, if there are three directions or more.

    Args:
      received, returned: models `[rounds, parameters]`, float64.
      eps: relative rounding error of what was recorded.
    """
    updates = received - returned
    left, singular, right = np.linalg.svd(received - received.mean(0), full_matrices=False)
    moved = singular > len(received) * eps * singular[0]
    left, singular, basis = left[:, moved], singular[moved], right[moved].T
    gains = (updates - updates.mean(0)).T @ left / singular  # W V
    curvature = basis.T @ gains
    pairs = np.triu_indices(len(singular), 1)
    if len(pairs[0]) < TOLD:
        return returned[-1]
    skew = (curvature - curvature.T)[pairs] / np.hypot(*(1 / singular)[np.stack(pairs)])
    noise = max(eps * np.abs(received).max(), np.sqrt((skew**2).mean()))
    errors = noise / singular
    known = np.logical_and.accumulate(
        np.sqrt(len(basis)) * errors < TRUSTED * np.linalg.norm(gains, axis=0)
    )
    basis, gains, errors = basis[:, known], gains[:, known], errors[known]
    values, axes = np.linalg.eigh((curvature + curvature.T)[np.ix_(known, known)] / 2)
    slopes = axes.T @ ((basis - gains).T @ updates[-1])
    bent = np.sqrt((axes.T**2) @ errors**2)
    certain = (TRUSTED * values > bent) & (
        TRUSTED * np.abs(slopes) > np.hypot(noise, np.linalg.norm(updates[-1]) * bent)
    )
    return returned[-1] - basis @ (axes[:, certain] @ (slopes[certain] / values[certain]))


@dataclasses.dataclass(frozen=True)
class NoisyOptimum:
    """A linear client's optimum out of noisy messages.

    Attributes:
      params: theta* `[parameters]`, float64, the intercept last.
      error: with probability `1 - delta` the distance to the true one is no larger; infinite if
        there are too few messages for the bound to hold, or they contradict it.
    """

    params: np.ndarray
    error: float


@checked
def noisy_local_optimum(messages: Messages, *, delta: Fraction = 0.05) -> NoisyOptimum:
    """Decode the optimum from noisy updates by ordinary least squares of u_t on (theta_t, -1)
    (Driouich 2023, Proposition 3).

    The error bound is Eq. 35 with a union bound over the d rows, all messages serving all rows.
    Three changes to Eq. 26: the logarithm keeps its d, which the paper loses between Eq. 33 and 34;
    its unstated constant is that of Hsu, Kakade and Zhang (2012), p + 2 sqrt(p t) + 2 t; and the
    noise, which the adversary does not know, is the residuals'. It assumes received models that do
    not depend on the client's earlier noise, and steps of at most `m / (2 lambda_max(X'X))`.

    Args:
      messages: of a linear model.
      delta: chance that the bound fails.

    Warns:
      MisfitWarning: if the decoded W is farther from every symmetric, positive matrix than the
        bound allows: the messages are of no gradient descent of a linear model, and nothing is
        proven.

    Raises:
      ValueError: if the model is not linear, there are not more rounds than parameters, or delta is
        no probability.
    """
    received, returned = linear_parameters(messages.received), linear_parameters(messages.returned)
    _check.finite(received=received, returned=returned)
    recorded = received.dtype
    received, returned = received.astype(np.float64), returned.astype(np.float64)
    rounds, size = received.shape
    if rounds <= size + 1:
        raise ValueError(
            f"messages holds {rounds} rounds; least squares for {size} parameters needs at "
            f"least {size + 2}"
        )
    inputs = np.c_[received, -np.ones(rounds)]
    solution, _, rank, singular = np.linalg.lstsq(inputs, received - returned, rcond=None)
    if rank <= size:
        return NoisyOptimum(np.full(size, np.nan), np.inf)
    gain, v = solution[:-1].T, solution[-1]
    params = np.linalg.solve(gain, v)
    variance = ((received - returned - inputs @ solution) ** 2).sum(0).max() / (rounds - size - 1)
    t = np.log(2 * size / delta)
    tail = (size + 1) + 2 * np.sqrt((size + 1) * t) + 2 * t
    distance = np.sqrt(size * variance * tail) / singular[-1]  # of (W, v), in Frobenius norm
    # Where there is no noise, rounding is what is left.
    rounding = float(np.finfo(recorded).eps) * np.abs(received).max()
    rounding *= np.sqrt(rounds * size) / singular[-1]
    if not _is_of_descent(gain, distance + rounding):
        warnings.warn(
            f"noisy_local_optimum: {NO_DESCENT}; nothing is proven",
            MisfitWarning,
            stacklevel=3,
        )
        return NoisyOptimum(params, np.inf)
    least = np.linalg.svd(gain, compute_uv=False)[-1]
    # With W decoded, W (theta* - params) = dW theta* - dv: the error e satisfies least * e <=
    # distance * (|params| + e + 1).
    slack = least - distance
    error = distance * (np.linalg.norm(params) + 1) / slack if slack > 0 else np.inf
    return NoisyOptimum(params, float(error))
