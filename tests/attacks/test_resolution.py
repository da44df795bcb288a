"""Of which values noise leaves nothing: an answer that explains the messages may be wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from attacks import (
    GLS,
    ClosedForm,
    GaussNewton,
    Knowledge,
    L2Matching,
    SomeWrongWarning,
    Status,
    UncheckedWarning,
    UnrolledGLS,
    Virtual,
    binary_column,
    closed_form,
    cos_matching,
    decode_adam,
    gauss_newton,
    gls,
    gls_unrolled,
    l2_lbfgs,
)
from attacks.attributes.candidate_decoding.alternatives import Alternatives
from attacks.attributes.candidate_decoding.read_again import (
    ANY,
    beyond_chance,
    reordered,
    to_spacing,
)
from attacks.attributes.candidate_decoding.resolution import resolved, resolved_alone
from attacks.fit import LEAST_RESOLVED, MOSTLY_RESOLVED
from benchmarks.harness.call_order import unordered
from jaxfl import Federated, LocalTraining, Upload, mlp, simulate, stack_clients
from tests.attacks.right_recipes import BATCHES, KINDS, Kind, quietly
from tests.attacks.right_recipes import client as client_of
from tests.attacks.wrong_recipes import FEATURES, RATE, client, records

KEY = jax.random.key(7)


def sent_with(noise, seed):
    plugins = (Upload(clip=1.0, noise_multiplier=noise),)
    return client("right", LocalTraining(RATE), seed, plugins=plugins)


@pytest.mark.parametrize("noise", [1e-3, 5e-4, 3e-4, 1e-4])
def test_it_is_the_accuracy_beyond_chance_whatever_the_noise(noise):
    right, expected = [], []
    for seed in range(4):
        *seen, truth = sent_with(noise, seed)
        answer = quietly(closed_form, *seen, settings=ClosedForm(RATE, noise=noise))
        right.append(np.mean(answer.values[0] == truth))
        expected.append((1 + float(answer.fit.resolved)) / 2)
    assert np.mean(expected) == pytest.approx(np.mean(right), abs=0.05)


def test_an_answer_that_noise_hides_is_not_ok():
    *seen, truth = sent_with(1e-3, 0)
    with pytest.warns(UncheckedWarning, match=r"closed_form: noise and rounding .* drawn again"):
        answer = closed_form(*seen, settings=ClosedForm(RATE, noise=1e-3))
    assert np.mean(answer.values[0] == truth) < 0.8
    assert answer.fit.explained >= answer.fit.allowed > 0  # nothing else speaks against it
    assert answer.fit.misfit < 1
    assert answer.status == Status.UNCHECKED
    assert "drawn again" in answer.reason


def test_values_that_noise_hides_are_told():
    *seen, truth = sent_with(5e-4, 0)
    with pytest.warns(SomeWrongWarning, match=r"hide some of the values.* is resolved") as told:
        answer = closed_form(*seen, settings=ClosedForm(RATE, noise=5e-4))
    assert told[0].filename == __file__
    assert answer.status == Status.OK
    assert LEAST_RESOLVED < answer.fit.resolved < MOSTLY_RESOLVED
    assert 0.8 < np.mean(answer.values[0] == truth) < 0.95
    assert "hide some of the values" in answer.reason


@pytest.mark.parametrize("rate", [1.0, 1e-2])
def test_rounding_that_hides_nothing_is_no_reason(rate):
    kind = Kind(LocalTraining(rate), records=300)
    model, messages, known, truth = client_of(kind, 0)
    answer = closed_form(model, messages, known, settings=ClosedForm(rate))
    assert np.mean(answer.values[0] == truth[0]) == 1
    assert answer.fit.resolved > 0.99
    assert answer.status == Status.OK


def test_a_rate_whose_steps_rounding_hides_is_told():
    kind = Kind(LocalTraining(1e-6), records=300)
    model, messages, known, truth = client_of(kind, 0)
    with pytest.warns(UncheckedWarning, match="drawn again"):
        answer = closed_form(model, messages, known, settings=ClosedForm(1e-6))
    assert np.mean(answer.values[0] == truth[0]) < 0.65
    assert answer.fit.explained > 0.9  # of a gradient that most values share


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize(("bits", "rate"), [(16, 1e-2), (32, 1e-6)])
@pytest.mark.very_slow
def test_rounding_that_repeats_itself_hides_as_much_as_is_said(bits, rate, solver):
    """Models that hardly move are rounded the same way in every round."""
    kind = Kind(LocalTraining(rate), bits=bits)
    right, expected = [], []
    for seed in range(6):
        model, messages, known, truth = client_of(kind, seed)
        settings = ClosedForm(rate, solver=solver)
        answer = quietly(closed_form, model, messages, known, settings=settings)
        right.append(np.mean(answer.values[0] == truth[0]))
        expected.append((1 + float(answer.fit.resolved)) / 2)
    assert 0.65 < np.mean(right) < 0.85
    assert np.mean(expected) == pytest.approx(np.mean(right), abs=0.05)


BESIDE = {
    "cos_matching": lambda *seen: cos_matching(*seen, KEY),
    "gauss_newton": lambda *seen: gauss_newton(*seen, settings=GaussNewton(1e-6)),
    "gls_unrolled": lambda *seen: gls_unrolled(
        *seen, KEY, settings=UnrolledGLS(LocalTraining(1e-6, batch_size=150, shuffle=False))
    ),
    "l2_lbfgs": lambda *seen: l2_lbfgs(
        *seen, KEY, settings=L2Matching(virtual=Virtual(training=LocalTraining(1e-6)))
    ),
}
"""Attacks that take no covariance of noise into account, told of a rate of 1e-6 or of none."""


@pytest.mark.parametrize("name", BESIDE)
def test_attacks_without_least_squares_say_what_rounding_hides(name):
    batches = {"batch_size": 150, "shuffle": False} if name == "gls_unrolled" else {}
    hidden = Kind(LocalTraining(1e-6, **batches), records=300)
    model, messages, known, truth = client_of(hidden, 0)
    with pytest.warns(UncheckedWarning, match=f"{name}: noise and rounding .* drawn again"):
        answer = BESIDE[name](model, messages, known)
    assert np.mean(answer.values[0] == truth[0]) < 0.8
    assert answer.fit.explained >= answer.fit.allowed > 0  # nothing else speaks against it
    assert answer.fit.resolved < LEAST_RESOLVED
    assert answer.status == Status.UNCHECKED


def test_a_rate_that_rounding_does_not_hide_is_no_reason_for_them():
    kind = Kind(LocalTraining(1e-3))
    model, messages, known, _ = client_of(kind, 0)
    answer = quietly(cos_matching, model, messages, known, KEY)
    assert answer.fit.resolved > 0.99
    assert answer.status == Status.OK


def test_columns_that_are_changed_alone_count_where_they_change_something():
    """Three columns of three values: of each record the answer and nine others, three of them the
    answer again."""
    x = jnp.zeros((2, 10, 3)).at[:, 1:, 0].set(1.0).at[:, [3, 6, 9], 0].set(0)
    y, chosen = jnp.zeros((2, 10), int), jnp.zeros(2, int)
    each = Alternatives(x, y, chosen, jnp.zeros(2))
    moves = jnp.broadcast_to(jnp.diag(x[0, 1:, 0]), (2, 9, 9))
    assert resolved_alone(moves, each, jnp.asarray(1e-3)) == 1  # what changes nothing is no change
    hidden = float(resolved_alone(moves, each, jnp.asarray(1e3)))
    assert hidden == pytest.approx((1 / 2 - 1 / 7) / (6 / 7), abs=1e-3)  # of one of six others
    one_of_two = Alternatives(x[:, :2], y[:, :2], chosen, jnp.zeros(2))
    share = 1 - 2 * scipy.stats.norm.cdf(-1)  # half a distance of 1 is one deviation
    for answer in (0, 1):
        of_two = one_of_two._replace(chosen=jnp.full(2, answer))
        alone = resolved_alone(moves[:, :1, :1], of_two, jnp.asarray(0.5))
        assert float(alone) == pytest.approx(share, abs=1e-6)


def test_other_clients_have_the_answers_values():
    """In another order within labels, but for a tenth."""
    labels = np.repeat([0, 1, 2], 2_000)
    values = jnp.asarray(np.where(labels == 1, 1, 0))
    others = np.asarray(reordered(values, labels, 2, KEY))
    kept = np.asarray([(others[labels == k] == (k == 1)).mean() for k in range(3)])
    np.testing.assert_allclose(kept, 1 - ANY / 2, atol=0.02)
    mixed = np.asarray(reordered(values, None, 2, KEY))
    assert mixed[labels == 1].mean() == pytest.approx(1 / 3 * (1 - ANY) + ANY / 2, abs=0.03)
    numbers = np.linspace(0, 1, 6_000)
    halves = np.asarray(reordered(jnp.asarray(numbers > 0.5, int), numbers, 2, KEY))
    assert halves[3_000:].mean() == pytest.approx(1 - ANY / 2, abs=0.02)


def test_what_is_read_counts_beyond_chance():
    values = jnp.asarray([0] * 90 + [1] * 10)
    for read, share in (
        (values, 1.0),
        (1 - values, 0.0),
        (jnp.zeros(100, int), 0.0),  # nine in ten are right, and nothing is told
        (values.at[:45].set(1).at[90:95].set(0), 0.0),
        (values.at[90:95].set(0), 0.5),
        (2 * values, 0.0),  # a value that does not occur
    ):
        assert float(beyond_chance(values, read, 2, jnp.float32)) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_models_are_rounded_as_numbers_are(kind):
    numbers = np.random.default_rng(0).normal(size=1_000) * 2.0 ** np.arange(-2, 3).repeat(200)
    numbers = numbers[np.abs(numbers) > np.finfo(np.float16).smallest_normal]
    with jax.enable_x64(True):
        rounded = to_spacing(jnp.asarray(numbers), jnp.asarray(np.finfo(kind).eps, float))
        np.testing.assert_array_equal(rounded, numbers.astype(kind).astype(float))
    assert to_spacing(jnp.zeros(1), jnp.asarray(0.1)) == 0


@pytest.mark.very_slow
def test_adam_whose_steps_rounding_hides_is_told():
    kind = Kind(LocalTraining(1e-6, optimizer=optax.adam), records=300)
    model, messages, known, truth = client_of(kind, 0)
    with pytest.warns(UncheckedWarning, match="decode_adam: noise and rounding"):
        answer = decode_adam(model, messages, known)
    right = np.mean(np.asarray(answer.values[0]) == truth[0])
    assert right < 0.75
    assert answer.fit.explained >= answer.fit.allowed
    assert (1 + float(answer.fit.resolved)) / 2 == pytest.approx(right, abs=0.1)


def test_adam_of_an_ordinary_rate_is_resolved():
    kind = Kind(LocalTraining(1e-2, optimizer=optax.adam), records=40)
    model, messages, known, truth = client_of(kind, 0)
    answer = decode_adam(model, messages, known)
    assert np.mean(answer.values[0] == truth[0]) == 1
    assert answer.fit.resolved == 1
    assert answer.status == Status.OK


def test_values_within_bounds_are_resolved_where_they_are_not_without():
    """Of a softmax regression, whose equations hardly tell records apart."""
    attack, kind = KINDS["closed_form, logistic regression"]
    model, messages, known, truth = client_of(kind, 0)
    answer = attack(kind, model, messages, known, KEY)
    assert np.mean(answer.values[0] == truth[0]) == 1
    assert answer.fit.resolved > MOSTLY_RESOLVED
    small = dataclasses.replace(kind, training=LocalTraining(1e-3))
    *seen, truth = client_of(small, 0)
    answer = quietly(attack, small, *seen, KEY)
    assert np.mean(answer.values[0] == truth[0]) < 0.75
    assert answer.fit.resolved < LEAST_RESOLVED


def test_it_counts_what_another_draw_would_read():
    """Of one record that noise cannot turn, and one that it turns in half of the draws."""
    factor = jnp.diag(jnp.asarray([1e3, 1e-3]))
    share = resolved(factor, jnp.ones(2), 1.0, lambda w: (w > 0.5).astype(int))
    assert float(share) == pytest.approx(0.5, abs=0.25)
    chosen = jnp.asarray([0.0, 1.0, 0.0, 0.0])  # two records of three values

    def nearest(weights):
        each = weights.reshape(2, 2)
        return jnp.concatenate([1 - each.sum(1, keepdims=True), each], 1).argmax(1)

    for deviation, least, most in ((1e-3, 1, 1), (1e3, 0, 0.35)):
        share = float(resolved(jnp.eye(4), chosen, deviation, nearest))
        assert least - 1e-6 <= share <= most + 1e-6


@pytest.mark.parametrize("settings", [ClosedForm(), ClosedForm(by_round=True)])
def test_rates_that_are_not_told_leave_what_is_said_right(settings):
    right, expected = [], []
    for seed in range(6):
        kind = Kind(LocalTraining(3e-6), records=60, rounds=12)
        model, messages, known, truth = client_of(kind, seed)
        answer = quietly(closed_form, model, messages, known, settings=settings)
        right.append(np.mean(np.asarray(answer.values[0]) == truth[0]))
        expected.append((1 + float(answer.fit.resolved)) / 2)
    assert np.mean(expected) == pytest.approx(np.mean(right), abs=0.06)


def test_arithmetic_in_float32_under_an_outer_jit_of_64_bits_says_it_too():
    kind = Kind(LocalTraining(1e-6), records=300)
    model, messages, known, _ = client_of(kind, 0)

    @jax.jit
    def fit(seen):
        settings = ClosedForm(1e-6)
        return closed_form(model, seen, known, settings=settings, dtype=jnp.float32).fit

    with jax.enable_x64(True):
        assert fit(messages).resolved < LEAST_RESOLVED


@pytest.mark.parametrize("attack", [closed_form, decode_adam])
@pytest.mark.parametrize("prior", [0.1, 0.5])
def test_what_keeps_its_prior_is_not_resolved(prior, attack):
    """However near a prior is to the value that it makes the likelier."""
    inner = mlp(FEATURES, (32,), 2)

    def apply(params, x, **rest):
        return inner.apply(params, x.at[:, 4].set(0), **rest)

    blind = dataclasses.replace(inner, apply=apply, layers=None)
    x, y = (np.asarray(a) for a in records(0))
    optimizer = optax.adam if attack is decode_adam else optax.sgd
    federated = Federated(4, LocalTraining(0.01, optimizer=optimizer))
    run = simulate(blind, inner.init(KEY), stack_clients([(x, y)]), KEY, federated)
    x[:, 4] = np.nan
    known = Knowledge(x, y, (binary_column(4, prior),))
    settings = ClosedForm(0.01) if attack is closed_form else None
    answer = quietly(attack, blind, run.messages(0), known, settings=settings)
    assert answer.fit.resolved < 0.1
    assert answer.status == Status.UNCHECKED


@pytest.mark.parametrize("recorded", [np.float32, np.float64])
def test_models_of_more_digits_do_not_hide_that_a_column_is_not_used(recorded):
    inner = mlp(FEATURES, (32,), 2)

    def apply(params, x, **rest):
        return inner.apply(params, x.at[:, 4].set(0), **rest)

    blind = dataclasses.replace(inner, apply=apply, layers=None)
    x, y = (np.asarray(a) for a in records(0))
    with jax.enable_x64(recorded is np.float64):
        params = jax.tree.map(lambda a: a.astype(recorded), inner.init(KEY))
        data = stack_clients([(x.astype(recorded), y)])
        run = simulate(blind, params, data, KEY, Federated(4, LocalTraining(RATE)))
        seen = run.messages(0)
    x[:, 4] = np.nan
    known = Knowledge(x, y, (binary_column(4, 0.5),))
    answer = quietly(closed_form, blind, seen, known, settings=ClosedForm(RATE))
    assert jax.tree.leaves(seen.received)[0].dtype == recorded
    assert answer.fit.explained > 0.999
    assert answer.fit.resolved < 0.1
    assert answer.status == Status.UNCHECKED


def test_keys_may_be_mapped_over_for_messages_that_are_constants():
    model, messages, known, _ = client("right", BATCHES, 0, rounds=2)
    settings = GLS(BATCHES, orders=4, passes=1)
    keys = jax.random.split(KEY, 2)
    statuses = jax.lax.map(lambda k: gls(model, messages, known, k, settings=settings).status, keys)
    assert statuses.shape == (2,)


@pytest.mark.parametrize("members", [None, 40])
@pytest.mark.parametrize("rate", [None, RATE])
def test_its_calls_wait_for_those_before(rate, members):
    model, messages, known, _ = client("right", LocalTraining(RATE), 0, rounds=2)
    several = jax.tree.map(lambda a: jnp.stack([a, a]), messages)

    def answer(seen):
        return closed_form(model, seen, known, members=members, settings=ClosedForm(rate))

    assert not unordered(jax.make_jaxpr(jax.vmap(answer))(several))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-3])
def test_batches_hide_what_noise_does(noise):
    """Of clients of a small rate: their updates are little longer than the noise."""
    recipe = dataclasses.replace(BATCHES, learning_rate=1e-3)
    plugins = (Upload(1e6, noise / 1e6),) if noise else ()
    kind = Kind(dataclasses.replace(recipe, plugins=plugins), rounds=3)
    *seen, truth = client_of(kind, 0)
    settings = GLS(kind.training, orders=24)
    answer = quietly(gls, *seen, KEY, settings=settings)
    right = np.mean(answer.values[0] == truth[0])
    if noise:
        assert right < 0.75
        assert answer.fit.resolved < LEAST_RESOLVED
        assert answer.status == Status.UNCHECKED
    else:
        assert right == 1
        assert answer.fit.resolved > 0.99
        assert answer.status == Status.OK


@pytest.mark.slow
def test_batches_hide_what_rounding_does():
    """A rate so small that models hardly move: their last digit holds what tells records apart."""
    kind = Kind(LocalTraining(1e-6, batch_size=50, epochs=2), records=300, rounds=3)
    *seen, truth = client_of(kind, 0)
    with pytest.warns(UncheckedWarning, match="gls: noise and rounding"):
        answer = gls(*seen, KEY, settings=GLS(kind.training, orders=24))
    assert np.mean(answer.values[0] == truth[0]) < 0.9
    assert answer.fit.explained > 0.99
