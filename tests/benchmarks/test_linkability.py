"""Linkability and solvers of Song 2020's suite, end to end on made-up pictures, and the suite's
published values."""

import dataclasses
import operator

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks.users import linkability as link
from benchmarks.harness.jobs import Job
from benchmarks.laws.programs import compilations
from benchmarks.measurements import linkability, solvers
from benchmarks.measurements.linkability.scores import linked
from benchmarks.scenarios import anonymous
from benchmarks.suites import SUITES
from benchmarks.suites.grids import published_rows
from benchmarks.suites.specimens import TINY_LINKS, specimen_of
from jaxfl import stack_clients
from jaxfl.training import local_update
from tests.benchmarks.cells import all_methods, cell_of, outcomes_of
from tests.laws.cases import cases

METHODS = linkability.METHODS


def tiny(table, changes, **more):
    """A cell on the pictures of the specimens, whose programs are the laws' too."""
    cell = cell_of(f"song2020/{table}", changes | more)
    return dataclasses.replace(cell, dataset="pictures_like")


def draw(cell):
    return anonymous.draw(cell.dataset, cell.settings, None, 0)


@pytest.mark.slow
@pytest.mark.parametrize("law", cases(linkability.EXPERIMENT) + cases(solvers.EXPERIMENT))
def test_methods_obey(law):
    law()


@pytest.mark.slow
def test_every_method_is_scored():
    cells = [tiny("table3", TINY_LINKS, interval=k, epoch=e) for k, e in ((1, 2), (3, 1))]
    jobs = [Job(cell, method.name, 0) for method in METHODS for cell in cells]
    outcomes = outcomes_of(jobs)
    assert all(o.chance == 0.25 for o in outcomes if o.metric == "precision")
    trained = {o.job.method: o.detail for o in outcomes if "loss" in o.detail}
    assert all(name.startswith("siamese") for name in trained)
    assert len(trained) == 4
    assert {d["loss_of_guessing"] for d in trained.values()} == {2.079}  # four clients, one or two
    found = {(o.job.method, o.job.cell.settings.interval, o.metric): o.value for o in outcomes}
    for method in METHODS:
        assert 0 <= found[method.name, 3, "precision"] <= 1
        metrics = {m for name, k, m in found if (name, k) == (method.name, 1)}
        assert {"tracking", "matching_accuracy", "auc"} <= metrics
    # Three classes a client and one full-batch step a round: nothing needs to be learned.
    assert found["update", 1, "precision"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"training.learning_rate": 1e30}, "diverged"),
        ({"clients": 2, "window": 2, "shadow_every": 1, "trunk_round": 2}, "ok"),
    ],
)
def test_the_matched_filter_of_few_clients_or_diverged_ones_has_rows(changes, status):
    cell = tiny("table3", TINY_LINKS, **changes)
    outcomes = outcomes_of([Job(cell, "matched_filter", 0)])
    assert {o.status for o in outcomes} == {status}
    assert all((o.value is None) == (status != "ok") for o in outcomes)


def test_a_siamese_network_begins_with_the_model_of_its_round():
    cell = tiny("table3", TINY_LINKS, trunk_round=4)
    view = draw(cell).view
    expected = jax.tree.map(operator.itemgetter(4 - TINY_LINKS["first"]), view.clients.received)
    chex.assert_trees_all_equal(linkability.Linking(view, cell.settings, [1]).trunk, expected)
    for outside in (1, 8):
        with pytest.raises(ValueError, match=f"trunk_round={outside}"):
            draw(tiny("table3", TINY_LINKS, trunk_round=outside))


@pytest.mark.slow
def test_two_federations_and_their_scores_are_few_programs():
    """On an accelerator the compiler takes longer than all else here (docs/results/speed.md)."""
    cell = tiny("table3", TINY_LINKS, clients=5)  # a size of its own: nothing is compiled already
    with compilations() as of_federations:
        drawn = draw(cell)
    sides = [
        link.unit(link.last_bias(drawn.view.model, side.pseudo_gradient))
        for side in (drawn.view.clients, drawn.view.shadow)
    ]
    with compilations() as of_scores:
        linked(drawn, *sides, interval=1, pairs=300)
    with compilations() as of_another_interval:
        linked(drawn, *sides, interval=2, pairs=300)
    assert len(of_federations) < 40, of_federations
    assert len(of_scores) < 10, of_scores
    assert len(of_another_interval) == 1, of_another_interval


@pytest.mark.slow
def test_both_federations_are_seen_through_the_window():
    """Every update is what its sender's model moved by: of the clients' in the order of their
    shuffled names."""
    cell = tiny("table3", TINY_LINKS, shadow_every=2, first=1, window=4, trunk_round=2)
    attacked = draw(cell)
    assert (np.sort(attacked.clients.senders) == np.arange(4)).all()
    assert (attacked.clients.senders != np.arange(4)).any(1).sum() > 1
    # The window ends with the training: averaging what was sent last gives the model of the end.
    last = jax.tree.map(
        lambda w, u: w[-1] - u[-1].mean(0),
        *attacked.clients.updates,
    )
    chex.assert_trees_all_close(last, attacked.clients.params, atol=1e-6)
    train = jax.jit(
        lambda params, data: local_update(
            attacked.view.model, params, data, jax.random.key(0), cell.settings.training
        )
    )
    for side, rounds in ((attacked.clients, 4), (attacked.shadow, 2)):
        assert side.senders.shape == (rounds, 4)
        data = stack_clients(
            [(attacked.data.x[part], attacked.data.y[part]) for part in side.parts]
        )
        for t, place in np.ndindex(rounds, 4):
            received = jax.tree.map(operator.itemgetter(t), side.updates.received)
            sent = jax.tree.map(operator.itemgetter((t, place)), side.updates.pseudo_gradient)
            returned = train(
                received, jax.tree.map(operator.itemgetter(side.senders[t, place]), data)
            )
            chex.assert_trees_all_close(
                jax.tree.map(jnp.subtract, received, returned), sent, atol=1e-6
            )


@pytest.mark.slow
def test_solvers_are_timed_on_the_same_update():
    outcomes = outcomes_of(all_methods(specimen_of(solvers.EXPERIMENT, "adam")))
    found = {(o.job.method, o.metric): o.value for o in outcomes}
    for method in ("adam", "lbfgsb", "adam_batched"):
        assert 0 < found[method, "objective"] < 1.5
        assert -1 <= found[method, "class_mean_correlation"] <= 1


def test_records_that_are_not_there_are_named():
    with pytest.raises(ValueError, match="records=900"):
        draw(tiny("table3", TINY_LINKS, records=900))


def test_every_published_value_belongs_to_a_cell():
    suite, rows = SUITES["song2020"], published_rows("song2020")
    used = {
        (t.name, cell.dataset, method, row["metric"])
        for t in suite.tables
        for cell in t.cells("song2020", "paper", None)
        for method in t.methods
        for row in rows
        if suite.published(cell, method, row["metric"]) is not None
    }
    assert len(used) == len(rows)
