"""A linear client's second moments out of its messages: all that its optimum, and more, is computed
from.

Threat model: as in `attacks.local_models.optimum`.
"""

import dataclasses
import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Num
from scipy.optimize import least_squares

from attacks.fit import MisfitWarning, UncheckedWarning
from attacks.local_models.optimum import LocalOptimum, linear_parameters
from attacks.path import path_centre
from jaxfl import Messages, _check
from jaxfl.domains import Count, Index, NotNegative, Positive, checked
from jaxfl.watching import on_host

ROUNDED = 1e-3
"""By how much decoded moments may lie outside what is possible."""
TIGHT, HUGE = 1e-15, 1e100
"""Relative change at which moments of several steps are found; and what stands for a way that leads
nowhere."""
SUMMED, ROOTED = 16, 10
"""Relative errors of a client's mean of products, in units of its precision; and the root of a
number of records of which they are twice as large."""
FEWEST_DIGITS, WIDER, LOOSE = 1e-3, 10, 0.1
"""By how much a number of records may differ from a whole one, at least, and in units of rounding;
and from which difference on any number would do."""
UNDETERMINED = 1e-3
"""Share of a parameter in directions of which nothing is known, above which it is not determined:
far above what rounding brings about, far below the share of a column which depends on others."""


@dataclasses.dataclass(frozen=True)
class Moments:
    """The client's sufficient statistics. Host arrays, float64; an intercept's column of ones comes
    last.

    Attributes:
      second: X'X / m `[parameters, parameters]`.
      cross: X'y / m `[parameters]`.
      learning_rate: the client's step size.
      exact: False if the messages contradict them; then they bound nothing. True where nothing
        does, so that they are as right as the recipe that was told.
      rounding: by how much an entry may be off, since messages were recorded in so many digits.
    """

    second: Num[np.ndarray, "parameters parameters"]
    cross: Num[np.ndarray, "parameters"]
    learning_rate: float
    exact: bool = True
    rounding: NotNegative = 0.0

    @property
    def optimum(self) -> np.ndarray:
        """theta* `[parameters]`; the shortest, if columns depend on each other, to the digits that
        the messages have."""
        values, vectors, kept = self._directions()
        return vectors[:, kept] @ (vectors[:, kept].T @ self.cross / values[kept])

    def determines(self, parameter: int) -> bool:
        """Whether all optima have the same parameter, columns that depend on each other or not."""
        _, vectors, kept = self._directions()
        return bool(np.linalg.norm(vectors[parameter, ~kept]) < UNDETERMINED)

    def _directions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Eigenvalues of `second` `[parameters]`, eigenvectors as columns, and which of them stand
        out from what rounding may make of 0."""
        values, vectors = np.linalg.eigh((self.second + self.second.T) / 2)
        eps = float(np.finfo(np.float64).eps)
        least = len(values) * max(eps * np.abs(values).max(), float(self.rounding))
        return values, vectors, values > least


@checked
def local_moments(optimum: LocalOptimum, *, epochs: Count = 1) -> Moments:
    """Decode X'X / m and X'y / m: `2 eta X'X / m = I - (I - W)^(1 / E)`, and eta by the intercept's
    own entry, which is 1.

    The recipe is taken as told: other epochs, momentum or decay lead to other moments, and nothing
    in an optimum contradicts them. A rate that is known tells: it is `Moments.learning_rate`.

    Args:
      optimum: an identified one.
      epochs: full-batch steps per round, E. For E > 1 the root needs `2 eta lambda_max(X'X / m) <
        1`, which is more than stability asks for.

    Raises:
      ValueError: if the optimum is not identified, the root does not exist, or what is found are no
        second moments.
    """
    _check.finite(**{"optimum.params": optimum.params, "optimum.inverse": optimum.inverse})
    if not optimum.identifiable:
        raise ValueError(
            f"optimum is not identified ({optimum.reason}); its moments are not determined"
        )
    gain = np.linalg.inv(optimum.inverse)
    values, vectors = np.linalg.eigh((gain + gain.T) / 2)
    if values.max() >= 1 and epochs > 1:
        raise ValueError(
            f"epochs={epochs}: the step is too long for a root of I - W (largest eigenvalue "
            f"{values.max():.3g})"
        )
    steps = (vectors * (1 - (1 - values) ** (1 / epochs) if epochs > 1 else values)) @ vectors.T
    if not (steps[-1, -1] > 0 and np.linalg.eigvalsh(steps)[0] > -ROUNDED * np.abs(values).max()):
        raise ValueError(
            "optimum.inverse is of no full-batch steps of least squares; its moments would be "
            f"{steps.tolist()}"
        )
    second = steps / steps[-1, -1]
    return Moments(second, second @ optimum.params, float(steps[-1, -1] / 2))


@on_host("moments of one client, in NumPy")
@checked
def structured_moments(
    messages: Messages,
    x: Num[np.ndarray, "records features"],
    y: Num[np.ndarray, "records"],
    attribute: Index,
    learning_rate: Positive,
    *,
    steps: Count = 1,
) -> Moments:
    """Decode the moments by what is known already: everything but one row of X'X / m and one number
    of X'y / m.

    With r_t = u_t / (2 eta), and p for the public columns (the intercept's among them), s for the
    attribute,

        r_t[p] = H_pp theta_t[p] + b theta_t[s] - X_p'y / m,     b = X_p's / m,
        r_t[s] = b'theta_t[p] + rho theta_t[s] - q,              rho = s's / m = b[intercept],
                                                                 q = s'y / m.

    So two messages are enough, of a deterministic run too, where the generic decoder has nothing to
    go by. Of one message a wrong rate is contradicted by the number of records with the attribute
    alone, which is whole. Beyond Driouich 2022 and 2023.

    Args:
      messages: of a linear model whose client takes full-batch steps. With several `steps` per
        round theta_t is the mean of the models on its way: the moments are those whose own way
        leads to the models returned, by nonlinear least squares from the way's centre on.
      x: public records `[records, features]`; the attribute's column may hold anything.
      y: targets `[records]`.
      attribute: its position among the features; 0 or 1 in every record.
      learning_rate: the client's, eta.
      steps: local steps per round, K.

    Warns:
      MisfitWarning: if messages contradict each other, or what is known of the moments, by more
        than rounding may: they are of another rate or recipe, of noise, or of other records.
      UncheckedWarning: of one message of so few digits that any rate would do.

    Raises:
      ValueError: if shapes do not fit, the attribute does not exist, or no message gives it any
        weight.
    """
    received, returned = linear_parameters(messages.received), linear_parameters(messages.returned)
    _check.finite(received=received, returned=returned)
    digits = float(np.finfo(received.dtype).eps)
    received, returned = received.astype(np.float64), returned.astype(np.float64)
    x, y, known = public_part(x, y, attribute, received.shape[1] - 1)
    public, at = np.c_[x, np.ones(len(x))], np.append(known, received.shape[1] - 1)
    centre = path_centre(received, received - returned, steps)
    weight = centre[:, attribute]
    if not (weight**2).sum() > 0:
        raise ValueError(
            f"attribute={attribute} has weight 0 in every message, which then tell nothing of it"
        )
    step, size = float(learning_rate), received.shape[1]
    second, cross = np.zeros((size, size)), np.zeros(size)
    second[np.ix_(at, at)], cross[at] = public.T @ public / len(x), public.T @ y / len(x)
    slopes = (received - returned) / (2 * step * steps)
    equations = _Equations(received, slopes, second, cross, at, attribute, step)
    if steps == 1:
        theta, decoded = centre, equations.decoded(centre)
        amplified = float(1 / np.linalg.norm(weight))
    else:
        theta, decoded, amplified = equations.of_several(centre, returned, steps)
    # Every step of a client rounds its model.
    stored = digits * np.abs(received).max() / (2 * step)
    lengths = np.abs(public).T @ (np.abs(public) @ np.abs(theta[:, at]).T + np.abs(y)[:, None])
    summed = SUMMED * (1 + np.sqrt(len(x)) / ROOTED) * max(digits, _computed_in(received, returned))
    summed *= lengths.max() / len(x) + np.abs(theta[:, attribute]).max()
    least = 2 * stored + summed
    # The row's own errors come back multiplied by the other weights.
    pulled = 1 + np.abs(theta).sum(1).max() / np.linalg.norm(theta[:, attribute])
    left = max(decoded.left_of_public, decoded.left_of_attribute / pulled)
    exact = bool(left <= least)
    if not exact:
        _warn_of_other_steps(left / least, steps, step)
    rounding = float((stored if steps == 1 else 2 * stored) * amplified)
    if len(received) == 1 and exact:
        exact = _counts_records(float(decoded.second[attribute, -1]), len(x), rounding)
    return Moments(decoded.second, decoded.cross, step, exact, rounding)


def _counts_records(share: float, records: int, rounding: float) -> bool:
    """Whether a share of records with the attribute is of so many of them. Else warn, and where
    that cannot be told: of one message nothing else contradicts a wrong rate."""
    count, slack = share * records, max(FEWEST_DIGITS, WIDER * rounding * records)
    off = abs(count - round(count))
    if slack > LOOSE:
        warnings.warn(
            "structured_moments: of one message, of so few digits, nothing could contradict a "
            "wrong learning_rate",
            UncheckedWarning,
            stacklevel=4,
        )
        return True
    if off > slack or not 0 <= round(count) <= records:
        warnings.warn(
            f"structured_moments: one message tells, at this learning_rate, of {count:.4g} records "
            "with the attribute, which is no whole number: it is of another rate or recipe, or of "
            "other records",
            MisfitWarning,
            stacklevel=4,
        )
        return False
    return True


class _Decoded(NamedTuple):
    """Moments, and the most that messages leave of the equations of the public columns and of the
    attribute."""

    second: np.ndarray
    cross: np.ndarray
    left_of_public: float
    left_of_attribute: float


@dataclasses.dataclass(frozen=True)
class _Equations:
    """What messages say of the moments.

    Attributes:
      received: models `[rounds, parameters]`.
      slopes: mean gradients of half the loss on the way from each `[rounds, parameters]`.
      second, cross: the moments, as far as they are known, at `at`.
      at: places of what is known.
      attribute: the place of what is not.
      learning_rate: the client's.
    """

    received: np.ndarray
    slopes: np.ndarray
    second: np.ndarray
    cross: np.ndarray
    at: np.ndarray
    attribute: int
    learning_rate: float

    def decoded(self, theta: np.ndarray) -> _Decoded:
        """The moments, if these are the mean models on the way `[rounds, parameters]`."""
        at, weight = self.at, theta[:, self.attribute]
        missing = self.slopes[:, at] - theta[:, at] @ self.second[np.ix_(at, at)] + self.cross[at]
        row = weight @ missing / (weight**2).sum()
        second, cross = self.with_unknown(np.append(row, 0.0))
        told = theta @ second[self.attribute] - self.slopes[:, self.attribute]
        cross[self.attribute] = told.mean()
        left = np.abs(missing - np.outer(weight, row)).max(), np.abs(told - told.mean()).max()
        return _Decoded(second, cross, *map(float, left))

    def with_unknown(self, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The moments with the attribute's row, at what is known, and its product with the targets
        `[parameters]`."""
        second, cross = self.second.copy(), self.cross.copy()
        second[self.attribute, self.at] = second[self.at, self.attribute] = unknown[:-1]
        second[self.attribute, self.attribute] = unknown[-2]
        cross[self.attribute] = unknown[-1]
        return second, cross

    def of_several(
        self, centre: np.ndarray, returned: np.ndarray, steps: int
    ) -> tuple[np.ndarray, _Decoded, float]:
        """Mean models on the way of several steps, the moments whose way leads nearest to the
        models returned, by Levenberg and Marquardt from those of the way's centre on; and how many
        times as large as an error of the slopes theirs may be."""
        first = self.decoded(centre)
        start = np.append(first.second[self.attribute, self.at], first.cross[self.attribute])
        unit = 2 * self.learning_rate * steps

        def missed(unknown: np.ndarray) -> np.ndarray:
            _, ends = self._way(*self.with_unknown(unknown), steps)
            return np.nan_to_num(
                (ends - returned).ravel() / unit, nan=HUGE, posinf=HUGE, neginf=-HUGE
            )

        with np.errstate(over="ignore", invalid="ignore"):
            fitted = least_squares(
                missed, start, method="lm", x_scale="jac", ftol=TIGHT, xtol=TIGHT, gtol=TIGHT
            )
            second, cross = self.with_unknown(fitted.x)
            theta, _ = self._way(second, cross, steps)
        left = np.abs(fitted.fun.reshape(centre.shape))
        least = np.linalg.svd(fitted.jac, compute_uv=False)[-1]
        amplified = float(np.sqrt(left.size) / least) if least > 0 else np.inf
        of_public, of_attribute = left[:, self.at].max(), left[:, self.attribute].max()
        theta = theta if np.isfinite(theta).all() else centre
        return theta, _Decoded(second, cross, float(of_public), float(of_attribute)), amplified

    def _way(
        self, second: np.ndarray, cross: np.ndarray, steps: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean models on the way of so many steps, and its ends, each `[rounds, parameters]`. One
        step is linear in the model, a one, and the sum of the models so far."""
        size = len(cross)
        step = np.eye(2 * size + 1)
        step[:size, :size] -= 2 * self.learning_rate * second
        step[size, :size] = 2 * self.learning_rate * cross
        step[:size, size + 1 :] = np.eye(size)
        whole = np.linalg.matrix_power(step, steps)
        ended = np.c_[self.received, np.ones(len(self.received))] @ whole[: size + 1]
        return ended[:, size + 1 :] / steps, ended[:, :size]


def _warn_of_other_steps(times: float, steps: int, learning_rate: float) -> None:
    warnings.warn(
        f"structured_moments: messages leave {times:.2g} times what rounding may: they are not of "
        f"full-batch steps (steps={steps}, learning_rate={learning_rate}) on these records without "
        "noise; nothing is proven by these moments",
        MisfitWarning,
        stacklevel=4,
    )


def _computed_in(received: np.ndarray, returned: np.ndarray) -> float:
    """Relative spacing of the numbers in which a client computed: float32's, if all of its updates
    are such numbers but for the rounding of models (`Messages.from_gradients`)."""
    narrow, wide = (float(np.finfo(kind).eps) for kind in (np.float32, np.float64))
    update = received - returned
    off = np.abs(update - update.astype(np.float32))
    is_narrow = (off <= 2 * wide * np.maximum(np.abs(received), np.abs(returned))).all()
    return narrow if is_narrow else wide


def public_part(
    x: np.ndarray, y: np.ndarray, attribute: int, features: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Public columns `[records, features - 1]`, targets, and the columns' places. Raises
    `ValueError` on what does not fit."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    _check.shape((None, features), x=x)
    _check.shape((len(x),), y=y)
    _check.index(features, "features", attribute=attribute)
    known = np.delete(np.arange(features), attribute)
    _check.finite(**{"x (but the attribute)": x[:, known], "y": y})
    return x[:, known], y, known
