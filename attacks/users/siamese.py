"""Siamese networks that learn to link (Song 2020, section VI; Eq. 11 and 12).

Threat model: as in `attacks.users.linkability`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import errors, struct
from jaxtyping import Int, Num

from jaxfl import Model, _check
from jaxfl.domains import Count, Domain, Key, NotNegative, Positive, checked, numbers_where
from jaxfl.parallel import map_clients, strategy_here

Array = jax.Array
Momentum = Annotated[
    float | Array, Domain("at least 0 and below 1", numbers_where(lambda v: (v >= 0) & (v < 1)))
]
ACCELERATOR_CHUNK = 64
"""Samples worked on at once where the backend likes batches."""


class Embedding(NamedTuple):
    """What a siamese network makes descriptors with.

    Attributes:
      init: `init(key) -> params`.
      apply: `apply(params, sample) -> [d]`.
    """

    init: Callable[[Array], Any]
    apply: Callable[[Any, Array], Array]


@checked
@functools.cache
def image_embedding(model: Model) -> Embedding:
    """Channels of the shared model's trunk, averaged over the plane and over a client's
    representatives `[images, height, width, channels]` (Song 2020, Figure 4); its parameters are
    the shared model's."""
    trunk = model.trunk
    if trunk is None:
        raise ValueError("image_embedding needs a model that names its trunk (see jaxfl.trunk_cnn)")
    return Embedding(
        model.init, lambda params, images: trunk.features(params, images).mean((0, 1, 2))
    )


@checked
@functools.cache
def vector_embedding(inputs: Count, width: Count = 256) -> Embedding:
    """One dense layer with LeakyReLU on an update `[inputs]`."""
    layer = nn.Dense(width)
    return Embedding(
        lambda key: layer.init(key, jnp.zeros(inputs)),
        lambda params, vector: nn.leaky_relu(jnp.asarray(layer.apply(params, vector)), 0.2),
    )


@functools.partial(jax.jit, static_argnums=0)
def describe(embedding: Embedding, params: Any, samples: Array) -> Array:
    """Descriptors `[samples, d]` of samples `[samples, ...]`, by an embedding (static) with its
    parameters."""
    return map_clients(
        functools.partial(embedding.apply, params), samples, strategy_here(ACCELERATOR_CHUNK)
    )


@struct.dataclass
class Siamese:
    """Settings of `train_siamese`. The paper names rate, momentum and equal weights of the losses.

    Attributes:
      epochs: passes over the samples, each with one partner (static).
      batch_size: pairs per step (static).
      learning_rate: of SGD.
      momentum: of SGD.
      embedding_rate: of the embedding's parameters, in units of `learning_rate`. The network after
        which the paper's is made gives a trunk that has learned already a tenth of its
        identification layer's (not in the paper).
      centred: whether both layers see descriptors less the mean that the samples' have at the
        start, in units of their spread about it (not in the paper; static). Descriptors as they are
        may differ by so little that the loss stays that of guessing; the embedding's gradient grows
        as the spread falls.
    """

    epochs: Count = struct.field(pytree_node=False, default=100)
    batch_size: Count = struct.field(pytree_node=False, default=64)
    learning_rate: Positive = 1e-3
    momentum: Momentum = 0.9
    embedding_rate: NotNegative = 1.0
    centred: bool = struct.field(pytree_node=False, default=False)


class Trained(NamedTuple):
    """A trained embedding, and its descriptors.

    Attributes:
      params: of the embedding.
      loss: mean over the pairs of each epoch `[epochs]`.
      descriptors: of `described` after each of `described_after`, leaves `[kept epochs, samples,
        d]`.
    """

    params: Any
    loss: Array
    descriptors: Any


@checked
def train_siamese(  # noqa: PLR0913 - a network, its samples, and what is kept of them
    embedding: Embedding,
    samples: Num[Array, "samples ..."],
    identities: Int[Array, "samples"],
    key: Key,
    *,
    start: Any = None,
    described: Any = (),
    described_after: Sequence[int] | None = None,
    settings: Siamese | None = None,
) -> Trained:
    """Fit an embedding to tell clients apart (Song 2020, Eq. 11 and 12; the latter as
    cross-entropy, with its minus sign).

    The identification layer names the client of each sample of a pair; the verification layer says
    from the squared difference of the two descriptors whether they are of one client. Half of the
    pairs are.

    Args:
      embedding: from a sample to its descriptor.
      samples: of the adversary's own federation `[samples, ...]`.
      identities: their clients `[samples]`, integers from 0.
      key: draws layers and pairs.
      start: parameters at which the embedding begins: the shared model, for images; fresh ones if
        None.
      described: samples whose descriptors are kept, leaves `[samples, ...]`.
      described_after: numbers of the epochs, from 1, after which they are; None: after every one.
      settings: see `Siamese`.

    Raises:
      ValueError: if settings or identities make no sense, or there is no such epoch.
    """
    settings = settings or Siamese()
    clients = int(np.max(np.asarray(identities))) + 1
    _check.labels(identities, len(samples), name="identities")
    check_several(identities)
    start_key, key = jax.random.split(key)
    start = embedding.init(start_key) if start is None else start
    _check_taken(embedding, start, "samples", samples)
    for _, leaf in jax.tree.leaves_with_path(described):
        _check_taken(embedding, start, "described", leaf)
    begun = describe(embedding, start, samples)
    middle, spread = jnp.zeros_like(begun[0]), jnp.ones((), begun.dtype)
    if settings.centred:
        middle = begun.mean(0)
        spread = jnp.maximum(jnp.sqrt(((begun - middle) ** 2).mean()), jnp.finfo(begun.dtype).tiny)
    network = _Siamese(embedding, clients, samples, jnp.asarray(identities), middle, spread)
    after = range(1, settings.epochs + 1) if described_after is None else described_after
    odd = [epoch for epoch in after if not 1 <= epoch <= settings.epochs]
    if odd:
        raise ValueError(
            f"described_after={described_after} names epoch {odd[0]}; there are 1 to "
            f"{settings.epochs}"
        )
    return _train(network, start, described, key, settings, tuple(after))


def _check_taken(embedding: Embedding, start: Any, name: str, samples: Any) -> None:
    try:
        jax.eval_shape(embedding.apply, start, samples[0])
    except (TypeError, ValueError, errors.FlaxError) as error:
        raise ValueError(
            f"{name} has samples of shape {jnp.shape(samples)[1:]}, which the embedding does not "
            f"take ({str(error).splitlines()[0]})"
        ) from None


@struct.dataclass
class _Siamese:
    """The two layers behind an embedding, which see descriptors from a middle and in a spread, and
    the samples that all are trained on."""

    embedding: Embedding = struct.field(pytree_node=False)
    clients: int = struct.field(pytree_node=False)
    samples: Array
    identities: Array
    middle: Array
    spread: Array

    @property
    def identify(self) -> nn.Dense:
        """From a descriptor to its client's logits."""
        return nn.Dense(self.clients)

    @property
    def verify(self) -> nn.Dense:
        """From a squared difference of descriptors to the logit of one client."""
        return nn.Dense(1)

    def loss(self, params: Any, first: Array, second: Array) -> Array:
        """Loss of pairs of samples, given as rows `[pairs]`."""
        trunk, (who, same) = params
        a, b = (
            (jax.vmap(functools.partial(self.embedding.apply, trunk))(rows) - self.middle)
            / self.spread
            for rows in (self.samples[first], self.samples[second])
        )
        named = sum(
            optax.softmax_cross_entropy_with_integer_labels(
                jnp.asarray(self.identify.apply(who, d)), self.identities[rows]
            ).mean()
            for d, rows in ((a, first), (b, second))
        )
        logits = jnp.asarray(self.verify.apply(same, (a - b) ** 2))[:, 0]
        alike = (self.identities[first] == self.identities[second]).astype(logits.dtype)
        return named / 2 + optax.sigmoid_binary_cross_entropy(logits, alike).mean()


@functools.partial(jax.jit, static_argnames="after")
def _train(
    network: _Siamese,
    start: Any,
    described: Any,
    key: Array,
    settings: Siamese,
    after: tuple[int, ...],
) -> Trained:
    count = len(network.samples)
    batch = min(settings.batch_size, count)
    head_key, key = jax.random.split(key)
    blank = jnp.zeros(network.middle.shape)
    id_key, pair_key = jax.random.split(head_key)
    heads = network.identify.init(id_key, blank), network.verify.init(pair_key, blank)
    optimizer = optax.sgd(settings.learning_rate, settings.momentum)

    def step(carry: Any, pair: Any) -> tuple[Any, Array]:
        params, state = carry
        value, slope = jax.value_and_grad(network.loss)(params, *pair)
        (trunk, heads), state = optimizer.update(slope, state)
        slower = optax.tree.scale(settings.embedding_rate, trunk)
        return (optax.apply_updates(params, (slower, heads)), state), value

    def described_by(trunk: Any) -> Any:
        return jax.tree.map(lambda some: describe(network.embedding, trunk, some), described)

    def nothing(trunk: Any) -> Any:
        return jax.tree.map(
            lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(described_by, trunk)
        )

    def epoch(carry: Any, one: tuple[Array, Array]) -> tuple[Any, Any]:
        key, wanted = one
        order_key, partner_key = jax.random.split(key)
        first = jax.random.permutation(order_key, count)[: count // batch * batch]
        second = partners(partner_key, network.identities, first)
        carry, values = jax.lax.scan(
            step, carry, (first.reshape(-1, batch), second.reshape(-1, batch))
        )
        return carry, (values.mean(), jax.lax.cond(wanted, described_by, nothing, carry[0][0]))

    params = start, heads
    wanted = jnp.zeros(settings.epochs, bool).at[np.asarray(after, int) - 1].set(True)
    (params, _), (values, descriptors) = jax.lax.scan(
        epoch, (params, optimizer.init(params)), (jax.random.split(key, settings.epochs), wanted)
    )
    kept = jax.tree.map(lambda a: a[np.asarray(after, int) - 1], descriptors)
    return Trained(params[0], values, kept)


def check_several(identities: Any) -> None:
    """Raise `ValueError` unless every sample has one of the same client beside it, and one of
    another: pairs are made of both."""
    if _check.is_unseen(identities):
        return
    numbers, counts = np.unique(np.asarray(identities), return_counts=True)
    if len(numbers) < 2 or counts.min() < 2:
        which = numbers[counts.argmin()]
        raise ValueError(
            f"identities names {len(numbers)} clients, and {which} for {counts.min()} of the "
            "samples; pairs need two samples of each client, and two clients"
        )


def partners(key: Array, identities: Array, first: Array) -> Array:
    """A second sample for each first one `[pairs]`: every other one of the same client (another
    sample), the rest of others."""
    alike = identities[first][:, None] == identities[None, :]
    wanted = (jnp.arange(len(first)) % 2 == 0)[:, None]
    itself = first[:, None] == jnp.arange(len(identities))[None, :]
    allowed = (alike == wanted) & ~itself
    return jnp.argmax(
        jnp.where(allowed, jax.random.uniform(key, allowed.shape, jnp.float32), -1.0), 1
    )
