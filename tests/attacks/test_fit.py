"""Attacks say when no answer explains the messages: on wrong recipes, never on right ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    GLS,
    ClosedForm,
    CosMatching,
    GaussNewton,
    Knowledge,
    MisfitWarning,
    SomeWrongWarning,
    Status,
    UncheckedWarning,
    UnknownColumn,
    Virtual,
    binary_column,
    closed_form,
    cos_matching,
    gauss_newton,
    gls,
)
from attacks.fit import rounding
from jaxfl import (
    DPSGD,
    Federated,
    LocalTraining,
    Messages,
    Upload,
    cross_entropy,
    from_flax,
    mlp,
    simulate,
)
from jaxfl.clients import stack_clients
from tests.attacks.half_precision import travelled
from tests.attacks.wrong_recipes import FEATURES, RATE, RIGHT, WRONG, Act, client, records

KEY = jax.random.key(5)


def full_batch(kind, seed):
    model, messages, known, truth = client(kind, LocalTraining(RATE), seed)
    decoding = closed_form(model, messages, known, settings=ClosedForm(RATE))
    return decoding, truth


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_assumption_is_a_misfit(kind):
    with pytest.warns(MisfitWarning, match="no values of what is unknown explain these messages"):
        answer, _ = full_batch(kind, 0)
    assert answer.status == Status.MISFIT
    assert answer.fit.misfit > 100
    assert "recipe" in answer.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("decay", "rate", "momentum"),
        *(
            pytest.param(kind, marks=pytest.mark.very_slow)
            for kind in ("smoothing", "half", "topk")
        ),
    ],
)
def test_a_wrong_recipe_of_batches_is_a_misfit(kind):
    told = LocalTraining(RATE, batch_size=16, epochs=2)
    model, messages, known, _ = client(kind, told, 1)
    with pytest.warns(MisfitWarning):
        answer = gls(model, messages, known, KEY, settings=GLS(told, orders=24))
    assert answer.status == Status.MISFIT


@pytest.mark.slow
@pytest.mark.parametrize("told", RIGHT)
def test_a_right_recipe_fits(told):
    for seed in range(2):
        model, messages, known, truth = client("right", told, seed)
        answer = gls(model, messages, known, KEY, settings=GLS(told, orders=24))
        assert answer.status == Status.OK
        assert answer.fit.misfit < 1
        assert (np.asarray(answer.values[0]) == truth).mean() > 0.9


def test_what_an_answer_explains_says_whether_it_is_right():
    """The truth explains all but rounding; every wrong value costs some."""
    answer, truth = full_batch("right", 0)
    assert (np.asarray(answer.values[0]) == truth).all()
    assert answer.fit.explained >= answer.fit.allowed
    model, messages, known, truth = client("right", LocalTraining(RATE), 0)
    settings = CosMatching(steps=3)
    with pytest.warns(
        SomeWrongWarning, match=r"some of its values are wrong\. It leaves .* a right one"
    ):
        poor = cos_matching(model, messages, known, KEY, settings=settings)
    assert (np.asarray(poor.values[0]) == truth).mean() < 0.95
    assert poor.fit.explained < poor.fit.allowed
    assert poor.status == Status.OK  # the recipe is right all the same
    assert "some of its values are wrong" in poor.reason
    assert "nothing contradicts it" in answer.reason


def test_cosine_matching_does_not_mind_the_length_of_updates():
    model, messages, known, _ = client("rate", LocalTraining(RATE), 0)
    with pytest.warns(SomeWrongWarning):
        answer = cos_matching(model, messages, known, KEY, settings=CosMatching(steps=3))
    assert answer.status == Status.OK
    with pytest.warns(MisfitWarning):
        answer = gauss_newton(model, messages, known, settings=GaussNewton(RATE, passes=2))
    assert answer.status == Status.MISFIT


@pytest.mark.filterwarnings("ignore::attacks.SomeWrongWarning")
@pytest.mark.slow
def test_updates_of_the_other_sign_are_a_misfit_whatever_their_length():
    for told in (LocalTraining(RATE), RIGHT[0]):
        model, messages, known, _ = client("right", told, 0)
        returned = jax.tree.map(lambda a, b: 2 * a - b, messages.received, messages.returned)
        turned = Messages.from_arrays(messages.received, returned)
        settings = CosMatching(steps=20, virtual=Virtual(training=told))
        assert cos_matching(model, messages, known, KEY, settings=settings).fit.misfit <= 1
        with pytest.warns(MisfitWarning):
            answer = cos_matching(model, turned, known, KEY, settings=settings)
        assert answer.status == Status.MISFIT


@pytest.mark.filterwarnings("ignore::attacks.SomeWrongWarning")
def test_a_wrong_answer_that_points_the_other_way_is_no_misfit():
    """Near the optimum a column of 0 and 5 turns the whole update round; the recipe is right."""
    told, key = LocalTraining(RATE), jax.random.key(0)
    x, y = records(0)
    x[:, 4] *= 5
    model = mlp(FEATURES, (32,), 2)
    run = simulate(
        model, model.init(key), stack_clients([(x, y)]), key, Federated(1500, training=told)
    )
    column = UnknownColumn(jnp.asarray([4]), jnp.asarray([[0.0], [5.0]]))
    known = Knowledge(jnp.asarray(x).at[:, 4].set(jnp.nan), y, (column,))
    seen = run.messages(0).select(range(1495, 1500))
    answer = cos_matching(model, seen, known, key, settings=CosMatching(steps=50))
    assert (np.asarray(answer.values[0]) == (x[:, 4] > 0)).mean() < 0.9
    assert answer.status == Status.OK


@pytest.mark.parametrize("seed", range(4))
def test_another_clients_messages_are_a_misfit_whatever_the_rate(seed):
    """The rate that fits best may be below 0, which is a misfit and no failure."""
    model, _, known, _ = client("right", LocalTraining(RATE), seed)
    _, others, _, _ = client("right", LocalTraining(RATE), seed + 10)
    with pytest.warns(MisfitWarning):
        answer = closed_form(model, others, known)
    assert answer.status == Status.MISFIT
    assert answer.fit.misfit > 100


def test_several_settings_warn_once_of_what_is_answered():
    model, messages, known, _ = client("decay", LocalTraining(RATE), 0)
    with pytest.warns(MisfitWarning) as warned:
        cos_matching(model, messages, known, KEY, settings=[CosMatching(steps=2)] * 2)
    assert [w.filename for w in warned] == [__file__]


@pytest.mark.parametrize(("multiplier", "status"), [(1e-4, Status.OK), (1e-3, Status.UNCHECKED)])
@pytest.mark.filterwarnings("ignore::attacks.fit.UncheckedWarning")
def test_noise_that_is_known_is_no_misfit(multiplier, status):
    noise = Upload(clip=1.0, noise_multiplier=multiplier)
    model, messages, known, _ = client("right", LocalTraining(RATE), 0, plugins=(noise,))
    with pytest.warns(MisfitWarning):
        closed_form(model, messages, known, settings=ClosedForm(RATE))
    told = closed_form(model, messages, known, settings=ClosedForm(RATE, noise=multiplier))
    assert told.status == status
    assert told.fit.misfit < 1


@pytest.mark.slow
@pytest.mark.parametrize(("multiplier", "status"), [(0.1, Status.OK), (0.5, Status.UNCHECKED)])
@pytest.mark.filterwarnings("ignore::attacks.fit.UncheckedWarning")
def test_private_training_fits_its_own_recipe(multiplier, status):
    told = LocalTraining(RATE, batch_size=16, plugins=(DPSGD(1.0, multiplier),))
    model, messages, known, _ = client("right", told, 0)
    answer = gls(model, messages, known, KEY, settings=GLS(told, orders=16))
    assert answer.status == status
    assert answer.fit.misfit < 1
    half = LocalTraining(RATE, batch_size=16, plugins=(DPSGD(1.0, multiplier / 2),))
    with pytest.warns(MisfitWarning):
        gls(model, messages, known, KEY, settings=GLS(half, orders=16))


def test_as_many_unknowns_as_equations_judge_nothing():
    model, messages, known, _ = client("decay", LocalTraining(RATE), 0, hidden=(1,), rounds=1)
    assert sum(a.size for a in jax.tree.leaves(model.init(KEY))) < len(known.x)
    with pytest.warns(UncheckedWarning, match="nothing could contradict it"):
        answer = closed_form(model, messages, known, settings=ClosedForm(RATE))
    assert np.isnan(answer.fit.misfit)
    assert answer.status == Status.UNCHECKED


def test_noise_as_large_as_the_messages_checks_no_answer():
    noise = Upload(clip=1.0, noise_multiplier=1.0)
    model, messages, known, _ = client("right", LocalTraining(RATE), 0, plugins=(noise,))
    with pytest.warns(UncheckedWarning, match="nothing could contradict it"):
        answer = closed_form(model, messages, known, settings=ClosedForm(RATE, noise=1.0))
    assert answer.fit.allowed < 0
    assert answer.status == Status.UNCHECKED
    assert "no better than a guess" in answer.reason


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_hides_no_wrong_recipe_and_calls_no_right_one_wrong(dtype):
    """Each number is rounded by half a spacing at most, which leaves room for little else."""
    told = LocalTraining(RATE)
    for seed in range(3):
        model, messages, known, _ = client("right", told, seed)
        right = closed_form(model, travelled(messages, dtype), known, settings=ClosedForm(RATE))
        assert right.status == Status.OK
        assert right.fit.explained >= right.fit.allowed > 0
    for kind in ("batches", "epochs", "adam", "momentum", "weights", "rate", "noise"):
        model, messages, known, _ = client(kind, told, 0)
        with pytest.warns(MisfitWarning):
            closed_form(model, travelled(messages, dtype), known, settings=ClosedForm(RATE))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_what_rounding_leaves_is_below_its_bound(dtype):
    """Of models of few and of many numbers, small and large: in at most 1 of 100 cases above."""
    above = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        size, scale = rng.choice([5, 20, 60, 150, 300]), 10 ** rng.uniform(-2, 2)
        models = rng.normal(size=(2, 1, size)) * scale
        models[1] = models[0] + 1e-2 * scale * rng.normal(size=size)
        received, returned = (np.asarray(jnp.asarray(m, dtype), float) for m in models)
        updates = jnp.asarray(received - returned)
        left = jnp.sum((models[0] - models[1] - updates) ** 2) / jnp.sum(updates**2)
        bound = rounding(jnp.asarray(received), updates, jnp.zeros(1), float(jnp.finfo(dtype).eps))
        above.append(float(left / bound[0]))
    assert max(above) < 1
    assert np.median(above) > 0.1


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_uploads_of_16_bits_in_wider_arrays_are_no_misfit(dtype):
    """What was sent keeps its bits, and nothing but the numbers says what came back in few."""

    def uploaded(kind):
        model, messages, known, truth = client(kind, LocalTraining(RATE), 0)
        short = jax.tree.map(lambda a: a.astype(dtype).astype(a.dtype), messages.returned)
        return model, messages.replace(returned=short), known, truth

    *given, truth = uploaded("right")
    answer = closed_form(*given, settings=ClosedForm(RATE))
    assert answer.status == Status.OK
    assert np.mean(answer.values[0] == truth) > 0.98
    with pytest.warns(MisfitWarning):
        closed_form(*uploaded("momentum")[:3], settings=ClosedForm(RATE))


def test_where_a_client_returns_what_it_received_there_is_nothing_to_explain():
    """Whatever the rate and the solver; other attacks obey the law of `tests/laws`."""
    model, messages, known, _ = client("right", LocalTraining(RATE), 0, rounds=2)
    same = dataclasses.replace(messages, returned=messages.received)
    for settings in (None, ClosedForm(RATE), ClosedForm(RATE, solver="cg")):
        with pytest.warns(MisfitWarning, match="no returned model differs") as told:
            answer = closed_form(model, same, known, settings=settings)
        assert told[0].filename == __file__
        assert answer.status == Status.FAILED
        assert (np.asarray(answer.values[0]) == -1).all()


@pytest.mark.slow
def test_models_that_mix_records_are_refused_or_not_judged():
    x, y = records(0)
    model = mlp(FEATURES, (16,), 2, batch_norm=True)
    run = simulate(model, model.init(KEY), stack_clients([(x, y)]), KEY, Federated(2))
    known = Knowledge(x, y, (binary_column(4),))
    for refusing in (
        lambda: closed_form(model, run.messages(0), known),
        lambda: gls(model, run.messages(0), known, KEY, settings=GLS(LocalTraining())),
    ):
        with pytest.raises(ValueError, match="mixes the records of a batch"):
            refusing()
    with pytest.warns(UncheckedWarning, match="batch normalisation"):
        answer = cos_matching(model, run.messages(0), known, KEY, settings=CosMatching(steps=3))
    assert answer.status == Status.UNCHECKED
    assert np.isnan(answer.fit.misfit)


@pytest.mark.slow
def test_judging_changes_no_answer_and_runs_where_attacks_run():
    """Under `jit` and `vmap`, in 32 bits."""
    model, messages, known, _ = client("decay", LocalTraining(RATE), 0)
    settings = GaussNewton(RATE, passes=2)

    def attack(messages):
        return gauss_newton(model, messages, known, settings=settings)

    with pytest.warns(MisfitWarning):
        plain = attack(messages)
    inside = jax.jit(attack)(messages)
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), messages)
    mapped = jax.vmap(attack)(stacked)
    assert inside.status == Status.MISFIT
    assert (mapped.status == Status.MISFIT).all()
    assert (np.asarray(inside.values[0]) == np.asarray(plain.values[0])).all()


def test_another_activation_is_a_misfit():
    x, y = records(0)
    tanh = from_flax(Act((32,), 2, jnp.tanh), (FEATURES,), cross_entropy, 2)
    relu = from_flax(Act((32,), 2, jax.nn.relu), (FEATURES,), cross_entropy, 2)
    run = simulate(tanh, tanh.init(KEY), stack_clients([(x, y)]), KEY, Federated(3))
    known = Knowledge(x, y, (binary_column(4),))
    assert closed_form(tanh, run.messages(0), known).status == Status.OK
    with pytest.warns(MisfitWarning):
        closed_form(relu, run.messages(0), known)


def test_a_square_layer_that_was_not_transposed_is_a_misfit():
    x, y = records(0)
    model = mlp(FEATURES, (FEATURES,), 2)
    run = simulate(model, model.init(KEY), stack_clients([(x, y)]), KEY, Federated(3)).messages(0)

    def turned(tree):
        first = tree["Dense_0"]
        return {**tree, "Dense_0": {**first, "kernel": first["kernel"].swapaxes(1, 2)}}

    seen = dataclasses.replace(run, received=turned(run.received), returned=turned(run.returned))
    with pytest.warns(MisfitWarning):
        closed_form(model, seen, Knowledge(x, y, (binary_column(4),)))


def test_wrong_recipes_are_wrong():
    """The clients of these tests differ from the honest one where they should."""
    honest = client("right", LocalTraining(RATE), 0)[1]
    for kind in (kind for kind in WRONG if kind != "half"):
        other = client(kind, LocalTraining(RATE), 0)[1]
        pairs = zip(jax.tree.leaves(honest.returned), jax.tree.leaves(other.returned), strict=True)
        assert max(float(jnp.abs(a - b).max()) for a, b in pairs) > 1e-6
