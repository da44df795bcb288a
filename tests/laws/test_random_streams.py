"""No random key is used twice: clients, rounds, epochs, batches and simulated orders each draw from
a stream of their own. A plug-in that changes nothing tells the keys that it was given."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from attacks import (
    GLS,
    CosMatching,
    Knowledge,
    RecordSearch,
    Virtual,
    binary_column,
    cos_matching,
    gls,
    reconstruct_records,
)
from attacks.attributes.candidate_decoding.simulated_client import RUNS
from attacks.records import reading
from jaxfl import (
    Federated,
    LocalTraining,
    Plugin,
    cross_entropy,
    from_flax,
    mlp,
    simulate,
    stack_clients,
)
from jaxfl.simulation import rounds
from tests.attacks.test_isolation import DATA, full_batch
from tests.attacks.test_isolation import MODEL as ONE_HIDDEN

pytestmark = pytest.mark.filterwarnings("ignore::attacks.FitWarning")
KEY, RECORDS, FEATURES, ROUNDS = jax.random.key(3), 12, 6, 3
TOLD = {"batch": [], "send": [], "stream": []}
"""Key and sum of the inputs of each call of a hook."""


def tell(hook, key, x):
    def keep(data, total):
        TOLD[hook].append((*np.asarray(data).tolist(), float(total)))

    jax.debug.callback(keep, jax.random.key_data(key), jnp.sum(x))


class TellingModule(nn.Module):
    """One dense layer, given the key of dropout."""

    @nn.compact
    def __call__(self, x, train=False):
        if train:
            tell("batch", self.make_rng("dropout"), x)
        return nn.Dense(2)(x)


@struct.dataclass
class Teller(Plugin):
    """Changes nothing."""

    scale: float = 1.0

    def batch(self, model, x, y, mask, key):
        tell("batch", key, x)
        return model, x, y

    def send(self, update, key):
        tell("send", key, 0.0)
        return update


@struct.dataclass
class Differences(Plugin):
    """Changes nothing, and tells how far the first two columns are apart."""

    scale: float = 1.0

    def batch(self, model, x, y, mask, key):
        tell("batch", key, jnp.abs(x[:, 0] - x[:, 1]))
        return model, x, y


@pytest.fixture
def told():
    for calls in TOLD.values():
        calls.clear()
    yield TOLD
    jax.clear_caches()


def keys(calls):
    jax.effects_barrier()
    return [key for *key, _ in calls]


def distinct(told):
    return len({tuple(key) for key in told})


def run(training, clients, model=None):
    rng = np.random.default_rng(0)
    parts = [
        (rng.normal(size=(RECORDS, FEATURES)).astype(np.float32), rng.integers(0, 2, RECORDS))
        for _ in range(clients)
    ]
    model = model or mlp(FEATURES, (4,), 2)
    federated = Federated(ROUNDS, training)
    return (
        parts,
        model,
        simulate(
            model, model.init(KEY), stack_clients(parts), jax.random.fold_in(KEY, 1), federated
        ),
    )


def recipe(**changes):
    return LocalTraining(0.1, batch_size=4, plugins=(Teller(),), **changes)


def test_clients_rounds_epochs_and_batches_have_streams_of_their_own(told):
    run(recipe(epochs=2), clients=3)
    steps = 3 * ROUNDS * 2 * (RECORDS // 4)
    batches, sent = keys(told["batch"]), keys(told["send"])
    assert len(batches) == steps
    assert distinct(batches) == steps, "two steps of two clients, rounds or epochs share a key"
    assert len(sent) == distinct(sent) == 3 * ROUNDS, "two uploads share a key"
    assert distinct(batches + sent) == steps + len(sent), "a step and an upload share a key"


def test_training_and_upload_have_streams_of_their_own(told, monkeypatch):
    """Not one stream from which both would draw the same numbers."""
    round_of = rounds.client_round

    def spy(model, params, data, key, training, plugins, send_key):
        tell("stream", key, 0.0)
        tell("stream", send_key, 0.0)
        return round_of(model, params, data, key, training, plugins, send_key)

    monkeypatch.setattr(rounds, "client_round", spy)
    run(recipe(drop_last=True), clients=3)
    streams = keys(told["stream"])
    assert len(streams) == distinct(streams) == 2 * 3 * ROUNDS, "training and upload share a stream"


@pytest.mark.very_slow
def test_each_pass_of_a_search_for_records_draws_from_streams_of_its_own(monkeypatch):
    """Which directions are used, which rounds are looked at, and where the search starts."""
    drawn, drawing, looked = [], reading._drawing, reading.search
    of = lambda key: tuple(jax.random.key_data(key).tolist())  # noqa: E731

    def draw(key):
        drawn.append(of(key))
        return drawing(key)

    def look(model, sight, moves, key, *arguments):
        drawn.append(of(key))
        return looked(model, sight, moves, key, *arguments)

    monkeypatch.setattr(reading, "_drawing", draw)
    monkeypatch.setattr(reading, "search", look)
    _, _, messages = full_batch(0, 12)
    few, schema = RecordSearch(starts=4, passes=6), DATA.schema()
    reconstruct_records(ONE_HIDDEN, messages, schema, LocalTraining(1.0), KEY, settings=few)
    assert len(drawn) > 6
    assert len(set(drawn)) == len(drawn), "two choices share a key"


def test_batches_of_a_client_are_drawn_anew_in_every_epoch_and_round(told):
    """By what is in them: sums of inputs."""
    run(recipe(epochs=2), clients=1)
    jax.effects_barrier()
    sums = np.sort(np.reshape([total for *_, total in told["batch"]], (-1, RECORDS // 4)))
    assert len(np.unique(sums.round(4), axis=0)) == ROUNDS * 2


def attacked(training, model=None):
    parts, model, transcript = run(training, 2, model)
    x, y = parts[0]
    x = x.copy()
    x[:, 0] = np.nan
    return model, transcript.messages(0), Knowledge(x, y, (binary_column(0, 0.5),))


@pytest.mark.slow
def test_gls_simulates_every_order_of_every_round_from_a_stream_of_its_own(told):
    """A noise that is the same in every round is no noise: it would be taken for the message."""
    training = LocalTraining(0.1, batch_size=4)
    _, messages, known = attacked(training, mlp(FEATURES, (), 2))
    model = from_flax(TellingModule(), (FEATURES,), cross_entropy, 2)
    # Of other people's records, so that the answer does not pass, and is judged again.
    others = dataclasses.replace(known, x=jnp.asarray(known.x).at[:, 1:].add(1))
    gls(model, messages, others, KEY, settings=GLS(training, orders=5, passes=2))
    # Alternatives of a record share a key: what differs between them is the record alone.
    passes_of_answer, passes_of_judge = 2 * 5, 2 * RUNS
    orders = ROUNDS * (passes_of_answer + passes_of_judge)
    told_apart = distinct(keys(told["batch"]))
    assert told_apart >= orders * (RECORDS // 4), "two orders, rounds or passes share a key"


@pytest.mark.parametrize("orders", [1, 3])
@pytest.mark.very_slow
def test_cos_draws_new_batches_in_every_step_round_and_order(told, orders):
    model, messages, known = attacked(LocalTraining(0.1, batch_size=4))
    virtual = Virtual("unrolled", recipe(), orders=orders)
    cos_matching(model, messages, known, KEY, settings=CosMatching(steps=6, virtual=virtual))
    runs = 6 * orders + RUNS  # of the steps, and of judging the answer
    told_apart = distinct(keys(told["batch"]))
    assert told_apart >= ROUNDS * runs * (RECORDS // 4), "two steps, rounds or orders share a key"


@pytest.mark.slow
def test_gumbel_noise_is_drawn_anew_in_every_step(told):
    """With a rate of nearly 0, guessed records differ by their noise alone."""
    model, messages, known = attacked(LocalTraining(0.1))
    virtual = Virtual("unrolled", LocalTraining(0.1, plugins=(Teller(),)))
    settings = CosMatching(steps=6, learning_rate=1e-9, noise=True, virtual=virtual)
    cos_matching(model, messages, known, KEY, settings=settings)
    jax.effects_barrier()
    assert len({round(total, 4) for *_, total in told["batch"]}) >= 6


@pytest.mark.slow
def test_gumbel_noise_differs_between_columns(told):
    """Of the same prior and unmoved logits, columns are guessed alike but for their noise; an
    answer that is judged has whole values."""
    model, messages, known = attacked(LocalTraining(0.1))
    x = np.asarray(known.x).copy()
    x[:, 1] = np.nan
    two = Knowledge(x, known.y, (binary_column(0, 0.5), binary_column(1, 0.5)))
    virtual = Virtual("unrolled", LocalTraining(0.1, plugins=(Differences(),)))
    settings = CosMatching(steps=2, learning_rate=1e-9, noise=True, virtual=virtual)
    cos_matching(model, messages, two, KEY, settings=settings)
    jax.effects_barrier()
    apart = [difference for *_, difference in told["batch"]]
    assert any(abs(gap - round(gap)) > 1e-3 for gap in apart), "two columns have the same noise"
