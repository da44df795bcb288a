"""Source inference: decoded where a client's records can be told apart, at chance on messages of
other clients."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attacks import by_discriminants, decode_sources, largest_drop, least_loss, majority_of_rounds
from attacks.fit import FitWarning, MisfitWarning, Status, UncheckedWarning
from attacks.membership.sources import losses
from jaxfl import DPSGD, Federated, LocalTraining, Messages, mlp, simulate, stack_clients

KEY = jax.random.key(0)
TRAINING = LocalTraining(0.05, batch_size=16)
SIZES = (40, 30, 50)


@pytest.fixture(scope="module")
def federation():
    """Three clients of one distribution: their models do not tell whose a record is."""
    rng = np.random.default_rng(0)
    rule = rng.normal(size=(20, 3))
    records = []
    for n in SIZES:
        x = rng.normal(size=(n, 20)).astype(np.float32)
        records.append((x, (x @ rule + rng.normal(size=(n, 3))).argmax(1)))
    model = mlp(20, (64,), 3)
    run = simulate(
        model, model.init(KEY), stack_clients(records), KEY, Federated(rounds=10, training=TRAINING)
    )
    x, y = (np.concatenate(part) for part in zip(*records, strict=True))
    return model, [run.messages(c) for c in range(3)], x, y, np.repeat(np.arange(3), SIZES), run


@pytest.mark.slow
def test_sources_are_decoded_where_losses_say_nothing(federation):
    model, messages, x, y, truth, _ = federation
    found = decode_sources(model, messages, SIZES, x, y, KEY, training=TRAINING)
    assert (np.asarray(found.sources) == truth).mean() >= 0.98
    assert (found.status == Status.OK).all()
    assert (found.fit.explained > found.fit.allowed).all()
    own = np.asarray(found.weights)[np.arange(len(truth)), truth]
    assert abs(own.mean() - 1) < 0.1
    last = jax.tree.map(
        lambda *leaves: jnp.stack([leaf[-1] for leaf in leaves]), *(m.returned for m in messages)
    )
    by_loss = np.asarray(least_loss(model, last, x, y)) == truth
    returned = jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *(m.returned for m in messages))
    by_vote = np.asarray(majority_of_rounds(model, returned, x, y).sources) == truth
    assert max(by_loss.mean(), by_vote.mean()) < 0.8


def test_equal_records_of_two_clients_are_said_to_be_a_guess(federation):
    model, _, x, y, truth, _ = federation
    x, y = x.copy(), y.copy()
    x[[45, 2]], y[[45, 2]] = x[[0, 1]], y[[0, 1]]
    full = LocalTraining(0.05)
    clients = stack_clients([(x[truth == c], y[truth == c]) for c in range(3)])
    run = simulate(model, model.init(KEY), clients, KEY, Federated(rounds=8, training=full))
    seen = [run.messages(c) for c in range(3)]
    with pytest.warns(UncheckedWarning, match="2 records are equal .* first: 0, 45"):
        answer = decode_sources(model, seen, SIZES, x, y, KEY, training=full)
    others = np.setdiff1d(np.arange(len(x)), [0, 45])
    assert (np.asarray(answer.sources) == truth)[others].all()


def test_records_that_nobody_holds_are_nobodys(federation):
    model, messages, x, y, truth, _ = federation
    rng = np.random.default_rng(1)
    extra = rng.normal(size=(20, 20)).astype(np.float32), rng.integers(0, 3, 20)
    every = np.concatenate([x, extra[0]]), np.concatenate([y, extra[1]])
    answer = decode_sources(model, messages, SIZES, *every, KEY, training=TRAINING)
    named = np.asarray(answer.sources)
    assert (named[: len(x)] == truth).mean() > 0.97
    assert (named[len(x) :] == -1).all()


@pytest.mark.slow
def test_clipping_makes_nobodys_records_of_none(federation):
    """It lowers all weights: of one record more than is held one is nobody's."""
    model, _, x, y, truth, _ = federation
    clipped = LocalTraining(0.05, plugins=(DPSGD(0.5, 0.0),))
    clients = stack_clients([(x[truth == c], y[truth == c]) for c in range(3)])
    run = simulate(model, model.init(KEY), clients, KEY, Federated(rounds=8, training=clipped))
    seen = [run.messages(c) for c in range(3)]
    every = np.concatenate([x, x[:1] + 1]), np.append(y, 0)
    answer = decode_sources(model, seen, SIZES, *every, KEY, training=clipped)
    own = np.asarray(answer.weights)[np.arange(len(x)), truth]
    assert (own < 0.5).mean() > 0.1
    assert (np.asarray(answer.sources)[:-1] == truth).mean() > 0.97
    assert answer.sources[-1] == -1


def reversed_(messages):
    returned = jax.tree.map(lambda a, b: 2 * a - b, messages.received, messages.returned)
    return dataclasses.replace(messages, returned=returned)


@pytest.mark.filterwarnings("ignore::attacks.SomeWrongWarning")
@pytest.mark.slow
def test_weights_that_no_record_can_have_are_a_misfit(federation):
    """The span of all records' gradients takes these messages off whole: weights of -1, and of
    twice a record's own."""
    model, messages, x, y, _, _ = federation
    full = LocalTraining(0.05)
    clients = [(x[:40], y[:40]), (x[40:70], y[40:70]), (x[70:], y[70:])]
    run = simulate(
        model, model.init(KEY), stack_clients(clients), KEY, Federated(rounds=8, training=full)
    )
    steps = [run.messages(c) for c in range(3)]
    for told, training in ((steps, full), (messages, TRAINING)):
        with pytest.warns(MisfitWarning):
            found = decode_sources(
                model, [reversed_(m) for m in told], SIZES, x, y, KEY, training=training
            )
        assert (found.status == Status.MISFIT).all()
    with pytest.warns(MisfitWarning):
        found = decode_sources(model, steps, (30, 40, 50), x, y, KEY, training=full)
    assert found.status.tolist() == [Status.OK, Status.MISFIT, Status.OK]
    found = decode_sources(model, steps, (40, 60, 50), x, y, KEY, training=full)
    assert (found.status == Status.OK).all()  # records may be missing, which others stand for


def test_a_size_or_rate_that_leaves_a_part_of_each_weight_is_a_misfit(federation):
    """Of too small a size most of a client's records would be called nobody's."""
    model, _, x, y, _, _ = federation
    clients, full = [(x[:40], y[:40]), (x[40:70], y[40:70]), (x[70:], y[70:])], LocalTraining(0.05)
    federated = Federated(rounds=8, training=full)
    run = simulate(model, model.init(KEY), stack_clients(clients), KEY, federated)
    seen = [run.messages(c) for c in range(3)]
    with pytest.warns(MisfitWarning):
        found = decode_sources(model, seen, (40, 12, 50), x, y, KEY, training=full)
    assert found.status.tolist() == [Status.OK, Status.MISFIT, Status.OK]
    with pytest.warns(MisfitWarning):
        found = decode_sources(model, seen, SIZES, x, y, KEY, training=LocalTraining(0.1))
    assert (found.status == Status.MISFIT).all()


def test_weights_that_cannot_be_told_are_not_judged_by_their_size():
    """Gradients of a logistic regression span ten directions or so, which say nothing of most
    weights."""
    rng, clients = np.random.default_rng(0), []
    for n in (60, 80, 100):
        x = rng.normal(size=(n, 8)).astype(np.float32)
        clients.append((x, (x[:, 0] + rng.normal(size=n) > 0).astype(int)))
    model, full = mlp(8, (), 2), LocalTraining(0.1)
    run = simulate(model, model.init(KEY), stack_clients(clients), KEY, Federated(40, full))
    x, y = (np.concatenate(part) for part in zip(*clients, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        seen = [run.messages(c) for c in range(3)]
        found = decode_sources(model, seen, (60, 80, 100), x, y, KEY, training=full)
    assert Status.MISFIT not in found.status.tolist()


def test_a_client_that_is_given_twice_is_refused(federation):
    model, messages, x, y, _, _ = federation
    twice = [messages[0], messages[1], messages[0]]
    with pytest.raises(ValueError, match=r"messages\[2\] are messages\[0\]; give each client once"):
        decode_sources(model, twice, (40, 30, 40), x, y, KEY, training=TRAINING)
    exchanged = [Messages(m.returned, m.received, m.rounds) for m in messages]
    with pytest.raises(ValueError, match="is what was received given as what was returned"):
        decode_sources(model, exchanged, SIZES, x, y, KEY, training=TRAINING)


@pytest.mark.slow
def test_clients_of_several_long_steps_are_simulated(federation):
    """To first order one in ten or twenty records is another client's, and all clients misfit."""
    model, _, x, y, truth, _ = federation
    epochs = 10
    long = LocalTraining(0.3, epochs)
    clients = stack_clients([(x[truth == c], y[truth == c]) for c in range(3)])
    run = simulate(model, model.init(KEY), clients, KEY, Federated(rounds=8, training=long))
    seen = [run.messages(c) for c in range(3)]
    answer = decode_sources(model, seen, SIZES, x, y, KEY, training=long)
    assert (answer.status == Status.OK).all()
    assert (np.asarray(answer.sources) == truth).all()
    shorter = LocalTraining(0.3, epochs - 1)
    with pytest.warns(MisfitWarning):
        wrong = decode_sources(model, seen, SIZES, x, y, KEY, training=shorter)
    assert (wrong.status == Status.MISFIT).all()


@pytest.mark.filterwarnings("ignore::attacks.SomeWrongWarning")
def test_records_of_nobody_have_no_source(federation):
    """Batches of the third client leave nearly as much of its updates under any records: where it
    is no misfit, the answer explains less than a right one would."""
    model, messages, x, y, truth, _ = federation
    misfits = 0
    for seed in range(4, 0, -1):
        others = np.random.default_rng(seed).normal(size=x.shape).astype(np.float32)
        with pytest.warns(MisfitWarning, match="decode_sources: no values of what is unknown"):
            found = decode_sources(model, messages, SIZES, others, y, KEY, training=TRAINING)
        assert (found.status[:2] == Status.MISFIT).all()
        assert (found.fit.explained < found.fit.allowed).all()
        misfits += int((found.status == Status.MISFIT).sum())
    assert misfits >= 10
    assert (
        abs((np.asarray(found.sources) == truth).mean() - 1 / 3)
        < 3 * np.sqrt(2 / 9 / len(truth)) + 0.1
    )
    # A record of a client has weight 1; these have none that differs from zero but by noise.
    weights = np.asarray(found.weights)
    assert np.abs(weights.mean(0)).max() < 0.3


def test_a_model_that_diverged_names_nobody(federation):
    model, messages, x, y, _, _ = federation
    returned = jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *(m.returned for m in messages))
    broken = jax.tree.map(lambda a: a.at[:, 1].set(jnp.nan), returned)
    last = jax.tree.map(lambda a: a[-1], broken)
    assert (np.asarray(least_loss(model, last, x, y)) == -1).all()
    assert (np.asarray(largest_drop(model, broken, x, y)) == -1).all()
    assert (np.asarray(majority_of_rounds(model, broken, x, y).sources) == -1).all()
    once = jax.tree.map(
        lambda a, b: a.at[0].set(b[0]), returned, broken
    )  # one lost round has no vote
    sound = np.asarray(
        majority_of_rounds(model, jax.tree.map(lambda a: a[1:], returned), x, y).sources
    )
    assert (np.asarray(majority_of_rounds(model, once, x, y).sources) == sound).all()


def test_the_least_loss_names_the_client(federation):
    model, messages, x, y, _, _ = federation
    last = jax.tree.map(
        lambda *leaves: jnp.stack([leaf[-1] for leaf in leaves]), *(m.returned for m in messages)
    )
    by_hand = np.stack(
        [losses(model, jax.tree.map(lambda a, c=c: a[c], last), x, y) for c in range(3)]
    )
    assert (np.asarray(least_loss(model, last, x, y)) == by_hand.argmin(0)).all()
    same = jax.tree.map(lambda a: jnp.stack([a[0]] * 3), last)
    with pytest.raises(ValueError, match="params holds one model for all 3 clients"):
        least_loss(model, same, x, y)
    received = jax.tree.map(lambda a: jnp.stack([a, a * 2]), same)
    for vote in (majority_of_rounds, largest_drop):
        with pytest.raises(ValueError, match="returned holds one model for all 3 clients"):
            vote(model, received, x, y)
    rounds = jax.tree.map(lambda a: jnp.stack([a, a, a[::-1]]), last)
    vote = majority_of_rounds(model, rounds, x, y)
    assert (np.asarray(vote.sources) == by_hand.argmin(0)).all()
    assert (np.asarray(vote.rounds[2]) == 2 - by_hand.argmin(0)).all()


def test_the_largest_drop_names_who_trained_on_a_record(federation):
    model, messages, x, y, _, _ = federation
    received = messages[0].received
    returned = jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *(m.returned for m in messages))
    at = lambda tree, *place: jax.tree.map(lambda a: a[place], tree)  # noqa: E731
    rounds = range(len(messages[0]))
    drops = np.stack(
        [
            np.mean(
                [
                    losses(model, at(received, t), x, y) - losses(model, at(returned, t, c), x, y)
                    for t in rounds
                ],
                0,
            )
            for c in range(3)
        ]
    )
    expected = (drops - drops.mean(1, keepdims=True)).argmax(0)
    assert (np.asarray(largest_drop(model, returned, x, y)) == expected).mean() > 0.99


def test_discriminants_correct_answers_where_records_are_distributed_apart():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 100)
    scale = rng.uniform(0.01, 100, 30)  # units do not count
    x = (rng.normal(size=(4, 30))[truth] + rng.normal(size=(400, 30))) * scale
    wrong = rng.random(400) < 0.4
    answers = np.where(wrong, rng.integers(0, 4, 400), truth)
    found = by_discriminants(np.where(rng.random(400) < 0.2, -1, answers), x)
    assert (found == truth).mean() >= 0.98 > 0.8 > (answers == truth).mean()
    perm = np.asarray([2, 0, 3, 1])
    assert (by_discriminants(perm[answers], x) == perm[by_discriminants(answers, x)]).all()
    images = x.reshape(-1, 5, 6)
    assert (by_discriminants(answers, images) == by_discriminants(answers, x)).all()


def test_discriminants_know_nothing_that_answers_do_not():
    rng = np.random.default_rng(1)
    truth = np.repeat(np.arange(4), 100)
    x = rng.normal(size=(4, 30))[truth] + rng.normal(size=(400, 30))
    with pytest.warns(UncheckedWarning, match="records do not tell these clients apart"):
        found = by_discriminants(rng.integers(0, 4, 400), x)
    # Whole clusters fall to one name, so that the score scatters as that of four clients, not of
    # 400 records.
    with pytest.warns(UncheckedWarning):
        scores = [(by_discriminants(rng.integers(0, 4, 400), x) == truth).mean() for _ in range(40)]
    assert abs(np.mean(scores) - 0.25) < 4 * np.std(scores) / np.sqrt(40)
    assert set(found) <= set(range(4))


def test_discriminants_lose_what_answers_knew_where_records_are_distributed_alike(federation):
    model, messages, x, y, truth, _ = federation
    answers = np.asarray(
        decode_sources(model, messages, SIZES, x, y, KEY, training=TRAINING).sources
    )
    with pytest.warns(UncheckedWarning, match="so that answers are lost"):
        learned = by_discriminants(answers, x)
    assert (learned == truth).mean() < 0.8 < (answers == truth).mean()


@pytest.mark.filterwarnings("error")  # one record has no covariance
def test_a_client_named_once_is_no_class_of_discriminants():
    rng = np.random.default_rng(2)
    answers = np.repeat(np.arange(3), 20)
    x = rng.normal(size=(60, 5)) + answers[:, None]
    once, none = answers.copy(), answers.copy()
    once[7], none[7] = 9, -1
    assert (by_discriminants(once, x) == by_discriminants(none, x)).all()


def test_too_few_answers_are_left_as_they_are():
    x = np.eye(4)
    for answers in ([-1, -1, -1, -1], [2, 2, 2, -1], [0, 1, 2, 3], [0, 0, 0, 1]):
        assert by_discriminants(np.asarray(answers), x).tolist() == answers
    with pytest.raises(ValueError, match=r"3 records as in sources"):
        by_discriminants(np.zeros(3, int), x)
    with pytest.raises(ValueError, match="x holds 1 values that are not finite"):
        by_discriminants(np.zeros(4, int), x + np.diag([np.nan, 0, 0, 0]))


def test_bad_input(federation):
    model, messages, x, y, _, _ = federation
    later = dataclasses.replace(messages[0], rounds=messages[0].rounds + 1)
    with pytest.raises(ValueError, match="must be of the same rounds"):
        decode_sources(model, [later, *messages[1:]], SIZES, x, y, KEY, training=TRAINING)
    with pytest.raises(ValueError, match="x has records of shape"):
        decode_sources(model, messages, SIZES, x[:, :3], y, KEY, training=TRAINING)
    with pytest.raises(ValueError, match="y holds the label"):
        decode_sources(model, messages, SIZES, x, y + 3, KEY, training=TRAINING)
    with pytest.raises(ValueError, match="hold no rounds"):
        decode_sources(model, [], [], x, y, KEY, training=TRAINING)
    with pytest.raises(ValueError, match="ridge=-1"):
        decode_sources(model, messages, SIZES, x, y, KEY, training=TRAINING, ridge=-1)


def test_only_updates_that_are_gradients_are_decoded(federation):
    model, messages, x, y, _, _ = federation
    adam = dataclasses.replace(TRAINING, optimizer=optax.adam)
    with pytest.raises(ValueError, match=r"optimizer=.*adam.* is not optax\.sgd"):
        decode_sources(model, messages, SIZES, x, y, KEY, training=adam)


def test_one_label_for_all_records_is_refused(federation):
    model, _, x, y, _, run = federation
    last = jax.tree.map(lambda a: a[-1], run.returned)
    with pytest.raises(ValueError, match=r"y has shape \(1,\)"):
        least_loss(model, last, x, y[:1])
    with pytest.raises(ValueError, match=r"y has shape \(1,\)"):
        largest_drop(model, run.returned, x, y[:1])
