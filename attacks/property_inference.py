"""Which clients have a property, from sums of their features (paper 002, PROLIN, and beyond).

Threat model: as in `attacks.detectors`. `prolin` is the paper's relaxed maximum likelihood. It looks for everyone's feature in
every round; but given who has the property, a sum of normal features is normal, so features need not be found. `box` and
`gibbs` start from that: with D_tk = A_tk (mu1_t - mu0_t), m participants and M = diag(m sqrt(v0_t)),

    b_t - m mu0_t ~ N(sum_k D_tk p_k, C),   C = (1 - rho) diag(v_t) + rho S A A' S + M (E + q^2 T) M

where v_t adds the participants' variances and S = diag(sqrt(v_t / m)). rho S A A' S says that a client's features in different
rounds are alike (its records are the same); E = 1/n between rounds of one detector, that the mean it was calibrated to is one
of n shadows; T = min(t, t'), that clients' features drift from the shadows' as the model learns their records and not the
adversary's. The drift's rate q is what explains the sums best, with p at its prior mean and variance.

`box` is weighted least squares over p in [0, 1]; `gibbs` samples p in {0, 1} with the assumed rate as prior. All functions
answer for several numbers of observed rounds at once.
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from attacks.candidate_decoding.constraints import minimize_quadratic
from attacks.disaggregation import Observations, prefix, ridge
from jaxfl import _check

Array = jax.Array
PASSES = 3
"""How often variances are computed anew from the decoded p: one pass takes them most of the way."""
DRIFTS = (0.0, *(0.4 * 2.0**-k for k in range(8)))
"""Of a client's feature in a round, in its deviations: the values of q that are compared."""


class Quadratic(NamedTuple):
    """Minus the log likelihood of p, `p' H p / 2 - g' p`. Attributes:
    matrix: H `[clients, clients]`.
    vector: g `[clients]`.
    """

    matrix: Array
    vector: Array


class _Sums(NamedTuple):
    """Of the rounds seen, zero or one elsewhere: `design [rounds, clients]` D, `found [rounds]` b - m mu0, `covariance [rounds,
    rounds]` C without drift, and what q^2 is multiplied by, `drift`."""

    design: Array
    found: Array
    covariance: Array
    drift: Array


def _sums(observations: Observations, seen: Array, p: Array) -> _Sums:
    a, b, rho = observations.participation, observations.features, observations.correlation
    (mean0, mean1), (var0, var1) = observations.mean.T, observations.variance.T
    inside = prefix(len(b), seen)
    members = a.sum(1)
    positives = a @ p
    total = (members - positives) * var0 + positives * var1
    spread = jnp.sqrt(total / jnp.maximum(members, 1)) * inside
    together = rho * spread[:, None] * (a @ a.T) * spread
    common = members * jnp.sqrt(var0) * inside
    common = common[:, None] * common
    calibration = common * (observations.detector[:, None] == observations.detector) / observations.calibrated_on
    own = jnp.diag(jnp.where(inside, (1 - rho) * total, 1))
    passed = 1.0 + observations.rounds
    drift = common * jnp.minimum(passed[:, None], passed)
    design = (mean1 - mean0)[:, None] * a * inside[:, None]
    return _Sums(design, (b - members * mean0) * inside, own + together + calibration, drift)


def likelihood(observations: Observations, seen: Array, p: Array, drift: float | Array = 0.0) -> Quadratic:
    """The likelihood of p, features integrated out, its variances those of an expected `p [clients]`; `drift` is q."""
    with jax.default_matmul_precision("highest"):
        sums = _sums(observations, seen, p)
        root = jnp.linalg.cholesky(sums.covariance + drift**2 * sums.drift)
        design, found = (jax.scipy.linalg.solve_triangular(root, each, lower=True) for each in (sums.design, sums.found))
        return Quadratic(design.T @ design, design.T @ found)


def estimate_drift(observations: Observations, seen: Array) -> Array:
    """q of the largest evidence among `DRIFTS`: the density of the sums, where p has its prior mean and variance."""
    rate = observations.rate
    with jax.default_matmul_precision("highest"):
        sums = _sums(observations, seen, jnp.full(observations.participation.shape[1], rate))
        unknown = sums.covariance + rate * (1 - rate) * sums.design @ sums.design.T
        unexplained = sums.found - rate * sums.design.sum(1)

        def evidence(q: Array) -> Array:
            root = jnp.linalg.cholesky(unknown + q**2 * sums.drift)
            white = jax.scipy.linalg.solve_triangular(root, unexplained, lower=True)
            return -(white @ white) / 2 - jnp.log(jnp.diag(root)).sum()

        drifts = jnp.asarray(DRIFTS, unexplained.dtype)
        return drifts[jnp.argmax(jax.lax.map(evidence, drifts))]


@functools.partial(jax.jit, static_argnames="iterations")
def box(observations: Observations, seen: Array, iterations: int = 500) -> Array:
    """Weighted least squares over p in [0, 1]: `[prefixes, clients]`; above 1/2 the property is more likely than not.

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.
      iterations: of projected gradients (static).
    """
    with jax.default_matmul_precision("highest"):
        return jax.vmap(lambda t: _box(observations, t, iterations)[0])(jnp.asarray(seen))


def _box(observations: Observations, seen: Array, iterations: int) -> tuple[Array, Quadratic]:
    rate = observations.rate
    start = jnp.full(observations.participation.shape[1], rate, observations.features.dtype)
    drift = estimate_drift(observations, seen)

    def again(p: Array, _: None) -> tuple[Array, None]:
        quadratic = likelihood(observations, seen, p, drift)
        # What no round tells keeps the assumed rate.
        faint = 1e-4 * jnp.trace(quadratic.matrix) / len(p)
        matrix = quadratic.matrix + faint * jnp.eye(len(p), dtype=p.dtype)
        # No eigenvalue is larger than the largest row sum.
        largest = abs(matrix).sum(1).max() + jnp.finfo(p.dtype).tiny
        slope = lambda q: matrix @ q - quadratic.vector - faint * rate  # noqa: E731
        return minimize_quadratic(slope, p, lambda q: jnp.clip(q, 0, 1), largest, iterations), None

    p, _ = jax.lax.scan(again, start, length=PASSES)
    return p, likelihood(observations, seen, p, drift)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gibbs:
    """Settings of `gibbs`.

    Attributes:
      chains: independent chains (static).
      sweeps: over all clients (static), the first quarter of which is not counted.
    """

    chains: int = dataclasses.field(default=32, metadata={"static": True})
    sweeps: int = dataclasses.field(default=400, metadata={"static": True})


@jax.jit
def gibbs(observations: Observations, seen: Array, key: Array, settings: Gibbs | None = None) -> Array:
    """Posterior probability that a client has the property `[prefixes, clients]`, by Gibbs sampling. The prior is the rate that
    the adversary assumes (`observations.rate`).

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.
      key: randomness of the chains.
      settings: see `Gibbs`.
    """
    settings = settings or Gibbs()
    clients = observations.participation.shape[1]
    prior = jnp.log(observations.rate) - jnp.log1p(-observations.rate)

    def one(t: Array, key: Array) -> Array:
        _, (matrix, vector) = _box(observations, t, 200)
        start_key, key = jax.random.split(key)
        own = jnp.diag(matrix)

        def visit(p: Array, arguments: tuple[Array, Array]) -> tuple[Array, Array]:
            k, draw = arguments
            log_odds = prior + vector[k] - p @ matrix[k] + own[k] * p[:, k] - own[k] / 2
            return p.at[:, k].set((draw < jax.nn.sigmoid(log_odds)).astype(p.dtype)), jax.nn.sigmoid(log_odds).mean()

        def sweep(p: Array, key: Array) -> tuple[Array, Array]:
            order_key, draw_key = jax.random.split(key)
            order = jax.random.permutation(order_key, clients)
            draws = jax.random.uniform(draw_key, (clients, settings.chains), p.dtype)
            p, chance = jax.lax.scan(visit, p, (order, draws))
            return p, jnp.zeros_like(chance).at[order].set(chance)

        start = jax.random.bernoulli(start_key, observations.rate, (settings.chains, clients)).astype(matrix.dtype)
        _, chances = jax.lax.scan(sweep, start, jax.random.split(key, settings.sweeps))
        return chances[settings.sweeps // 4 :].mean(0)

    seen = jnp.asarray(seen)
    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(seen, jax.random.split(key, len(seen)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prolin:
    """Settings of `prolin`.

    Attributes:
      objective: "paper", a client's features are all of one law or all of the other, log likelihood; or "code", the authors':
        every feature is a mixture of its own, log(1 + density) (static).
      penalty: of the ridge estimate that the second constraint refers to, the paper's lambda.
      learning_rate: of MTAdam.
      iterations: at most (static).
      patience: it stops after so many iterations without progress (static).
    """

    objective: Literal["paper", "code"] = dataclasses.field(default="code", metadata={"static": True})
    penalty: float | Array = 5.0
    learning_rate: float | Array = 1e-3
    iterations: int = dataclasses.field(default=200_000, metadata={"static": True})
    patience: int = dataclasses.field(default=100, metadata={"static": True})


class ProlinAnswer(NamedTuple):
    """Attributes:
    p: probability of the property `[prefixes, clients]`; NaN if the losses were never finite.
    iterations: used `[prefixes]`.
    losses: L1, L2, L3 at the answer `[prefixes, 3]`.
    """

    p: Array
    iterations: Array
    losses: Array


def prolin(observations: Observations, seen: Array, weights: Array, key: Array, settings: Prolin | None = None) -> ProlinAnswer:
    """PROLIN (paper 002, section 5.2.4 and appendix A): everyone's feature in every round and p, by three balanced losses.

    L1 is minus the likelihood of features x and p; L2 asks that a round's features add up to what was seen; L3 that a client's
    mean feature is the ridge estimate's. MTAdam (Malkiel, Wolf 2021) scales their gradients to a common norm.

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.
      weights: of the rounds `[rounds]`, 1 - OVL.
      key: where x and p start, uniform in [0, 1].
      settings: see `Prolin`.
    """
    settings = settings or Prolin()
    _check.one_of(("paper", "code"), objective=settings.objective)
    return _prolin(observations, jnp.asarray(seen), weights, key, settings)


@jax.jit
def _prolin(observations: Observations, seen: Array, weights: Array, key: Array, settings: Prolin) -> ProlinAnswer:
    a, b = observations.participation, observations.features
    targets = ridge(observations, seen, weights, settings.penalty)
    # Features of those who did not take part appear in no loss.
    there, who = jax.lax.top_k(a, observations.cohort or a.shape[1])

    def density(x: Array, law: int) -> Array:
        deviation = jnp.sqrt(observations.variance[:, law, None])
        return jax.scipy.stats.norm.logpdf(x, observations.mean[:, law, None], deviation)

    def by_client(features: Array) -> Array:
        return jnp.zeros(a.shape[1], b.dtype).at[who].add(features)

    def likelihood_loss(x: Array, p: Array, there: Array) -> Array:
        without, with_ = density(x, 0), density(x, 1)
        if settings.objective == "code":
            return -jnp.log1p(there * (p[who] * jnp.exp(with_) + (1 - p[who]) * jnp.exp(without))).sum()
        mixed = [jnp.log(q + 1e-12) + by_client(there * law) for q, law in ((p, with_), (1 - p, without))]
        return -jnp.logaddexp(*mixed).sum()

    def sum_loss(x: Array, there: Array, inside: Array) -> Array:
        return (weights * inside * (b - (there * x).sum(1)) ** 2).sum()

    def mean_loss(x: Array, there: Array, means: Array) -> Array:
        return ((by_client(there * x) - by_client(there) * means) ** 2).sum()

    def one(arguments: tuple[Array, Array, Array]) -> ProlinAnswer:
        t, means, key = arguments
        inside = prefix(len(b), t).astype(b.dtype)
        seen_there = there * inside[:, None]
        keys = jax.random.split(key)
        x = jnp.take_along_axis(jax.random.uniform(keys[0], a.shape, b.dtype), who, 1)
        free = x, jax.random.uniform(keys[1], (a.shape[1],), b.dtype)

        def losses(free: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            """The three losses `[3]`, and their gradients `[3, ...]` for features and p; the last two have none for p."""
            x, p = free
            first, (x_first, p_first) = jax.value_and_grad(likelihood_loss, (0, 1))(x, p, seen_there)
            second, x_second = jax.value_and_grad(sum_loss)(x, seen_there, inside)
            third, x_third = jax.value_and_grad(mean_loss)(x, seen_there, means)
            slopes = jnp.stack([x_first, x_second, x_third]), jnp.stack([p_first, 0 * p, 0 * p])
            return jnp.stack([first, second, third]), slopes

        def go_on(state: dict[str, Any]) -> Array:
            return (state["step"] < settings.iterations) & (state["idle"] < settings.patience)

        def step(state: dict[str, Any]) -> dict[str, Any]:
            now, slopes = losses(state["free"])
            total = now.sum()
            better = total < state["least"] - 1e-5
            # A loss that is not finite yet (features far from both laws) pulls nowhere.
            slopes = jax.tree.map(lambda g: jnp.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0), slopes)
            moved = [
                _mtadam(u, g, m, state["step"] + 1, settings.learning_rate)
                for u, g, m in zip(state["free"], slopes, state["moments"], strict=True)
            ]
            x, p = (m[0] for m in moved)
            return {
                "free": (x, jnp.clip(p, 0, 1)),
                "moments": tuple(m[1] for m in moved),
                "step": state["step"] + 1,
                "idle": jnp.where(better, 0, state["idle"] + 1),
                "least": jnp.where(better, total, state["least"]),
                "best": jnp.where(better, state["free"][1], state["best"]),
                "losses": jnp.where(better, now, state["losses"]),
            }

        state: dict[str, Any] = {
            "free": free,
            "moments": tuple(
                (jnp.zeros(3, b.dtype), jnp.zeros((3, *u.shape), b.dtype), jnp.zeros((3, *u.shape), b.dtype)) for u in free
            ),
            "step": jnp.asarray(0),
            "idle": jnp.asarray(0),
            "least": jnp.asarray(jnp.inf, b.dtype),
            "best": jnp.full_like(free[1], jnp.nan),
            "losses": jnp.zeros(3, b.dtype),
        }
        state = jax.lax.while_loop(go_on, step, state)
        return ProlinAnswer(*(state[name] for name in ("best", "step", "losses")))

    return jax.lax.map(one, (seen, targets, jax.random.split(key, len(seen))))


def _mtadam(u: Array, slopes: Array, moments: Any, step: Array, rate: float | Array) -> tuple[Array, Any]:
    """One step of MTAdam for one array, from the three losses' gradients `[3, ...]`: each is scaled to the first one's running
    norm, has moments of its own, and all are divided by the largest of their deviations."""
    norms, first, second = moments
    wide = (-1, *[1] * u.ndim)
    size = jnp.sqrt((slopes**2).sum(tuple(range(1, slopes.ndim))))
    norms = jnp.where(step == 1, size, 0.9 * norms + 0.1 * size)
    large = norms > 1e-10
    anchor = norms[jnp.argmax(large)]
    slopes *= jnp.where(large, anchor / jnp.where(large, norms, 1), 1).reshape(wide)
    first = 0.9 * first + 0.1 * slopes
    second = 0.999 * second + 0.001 * slopes**2
    deviation = jnp.sqrt(second / (1 - 0.999**step)).max(0) + 1e-8
    return u - rate * first.sum(0) / (1 - 0.9**step) / deviation, (norms, first, second)
