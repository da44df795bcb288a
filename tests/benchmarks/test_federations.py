"""The experiments of Driouich 2022 and 2023, end to end on small federations."""

import csv
import dataclasses
import types

import jax
import numpy as np
import pytest

from benchmarks import sweep
from benchmarks.harness.intervals import equivalent_count
from benchmarks.harness.jobs import Job
from benchmarks.harness.programs import watched
from benchmarks.harness.settings import flatten
from benchmarks.laws.rows import lowers
from benchmarks.measurements import local_models
from benchmarks.measurements.local_models.scores import source_scores
from benchmarks.scenarios import federations
from benchmarks.scenarios.federations import isolated, optimum, recipe
from benchmarks.suites import SUITES
from benchmarks.suites.grids import published_rows
from jaxfl import Federated, simulate, stack_clients
from tests.benchmarks.cells import all_methods, cell_of, outcomes_of
from tests.conftest import assert_same, largest_difference
from tests.laws.cases import cases

TINY = {
    "hidden": (16,),
    "clients": 4,
    "records": 60,
    "training.batch_size": 32,
    "rounds": 40,
    "every": 4,
    "attacked": 2,
    "optimum_steps": 200,
    "zest_masks": 250,
    "zest_records": 4,
    "targets": 0,
    "inversion.steps": 20,
    "side": (12, 12),
}
DECODING = {"attack.orders": 4, "attack.passes": 2}
ATTACKS = {
    "pseudo_records": {"records": 8, "steps": 20, "finish": 20},
    "cos": {"attack.steps": 20},
    "network": {"fit_steps": 20, "search_steps": 5},
    "network_literal": {"fit_steps": 20, "search_steps": (5,)},
    "invert_gradient": {"steps": 20},
    "gls": DECODING,
    "records": DECODING,
}


def tiny(table, dataset, **changed):
    changes = {name.replace("__", "."): value for name, value in changed.items()}
    return cell_of(f"driouich2023/{table}", TINY | changes, ATTACKS, dataset)


def federate(cell):
    return federations.federate(cell.dataset, cell.settings, None, 0)


def source(cell):
    return federations.records_of(cell.dataset, cell.settings, None)


def divide(data, cell, seed):
    return federations.divide(cell.dataset, data, cell.settings, seed)


def scores(cell, methods=None, data_dir=None):
    outcomes = outcomes_of(all_methods(cell, methods), data_dir)
    return {(o.job.method, o.metric): o.value for o in outcomes}, outcomes


@pytest.mark.very_slow
def test_a_table_of_clients():
    """The first client holds nearly one class: its records' errors are nearly parallel, which hides
    the attribute best."""
    cell = tiny("table1", "leaf_milder")
    found, outcomes = scores(cell)
    data = source(cell)
    values = [
        data.values_of(data.column(data.sensitive).name)[rows] for rows in divide(data, cell, 0)
    ]
    frequent = np.bincount(np.concatenate(values)).argmax()
    assert found["gls", "attribute_accuracy"] >= 0.85
    assert found["majority", "attribute_accuracy"] == pytest.approx(
        np.mean([(v == frequent).mean() for v in values[:2]])
    )
    assert found["optimum", "zest"] == pytest.approx(1, abs=1e-5)
    assert found["records", "zest"] > found["last", "zest"]
    assert found["optimum", "train_loss"] < found["last", "train_loss"]
    assert found["decode_sources", "source_accuracy"] >= 0.9
    assert ("global", "source_accuracy") not in found
    assert all(np.isfinite(o.value) for o in outcomes)
    maps = [o for o in outcomes if o.job.method == "network_literal"]  # fitted in 20 steps
    assert {o.status for o in maps} == {"misfit"}
    assert all(o.explained < 0 for o in maps)


@pytest.mark.slow
@pytest.mark.parametrize("law", cases(local_models.EXPERIMENT))
def test_methods_obey(law):
    law()


def test_maps_are_the_papers_client_by_client():
    """Driouich 2023, Tables 5 to 8."""
    expected = {
        ("flight_airlines", 7): (64, 1e-5, 7000, 5e-3),
        ("adult_bachelors", 6): (32, 1e-4, 100, 1e-2),
        ("adult_bachelors", 9): (16, 1e-4, 1000, 1e-1),
        ("leaf_synthetic", 5): (32, 1e-3, 5000, 1e-2),
        ("att_faces", 3): (64, 1e-4, 10_000, 1e-3),
    }
    cells = SUITES["driouich2023"].table("table1").cells("driouich2023", "paper", None)
    for (dataset, c), numbers in expected.items():
        cell = next(cell for cell in cells if cell.dataset == dataset)
        client = dict(cell.method_settings)["network_literal"].of(c)
        printed = client.hidden[0], client.fit_rate, client.search_steps, client.search_rate
        assert printed == numbers
        assert client.scaling == "literal"


@pytest.mark.slow
def test_faces_and_batch_normalisation(data_dir, cache):
    cell = tiny("table1", "att_faces", batch_norm=True, attacked=1, training__batch_size=16)
    with pytest.raises(ValueError, match="method='gls' cannot run here: batch_norm=True"):
        Job(cell, "gls", 0)
    calls = []
    with watched(calls, repeats=0):
        found, outcomes = scores(cell, ["last", "invert_gradient"], data_dir)
    for program in dict.fromkeys(call.program for call in calls):
        lowers(program)
    assert {metric for _, metric in found} >= {"zest", "ssim", "source_accuracy", "train_accuracy"}
    assert 0 < found["last", "ssim"] < 1
    for method in ("last", "invert_gradient"):
        (picture,) = next(o for o in outcomes if o.job.method == method).images.values()
        assert picture.shape == (2 * 12, 8 * 12)
        assert picture.std() > 0


def test_an_isolated_client_trains_alone():
    cell = tiny("table10", "leaf_synthetic", training__batch_size=None)
    federation = federate(cell)
    alone = isolated(federation, 1, 20)
    assert largest_difference(alone, optimum(federation, 1, 20)) < 1e-5
    assert largest_difference(alone, federation.final) > 1e-3


def test_an_optimum_ends_at_the_fit_that_is_asked_for():
    cell = tiny("table9", "leaf_synthetic")
    federation = federate(cell)
    data = federation.client(1)
    params = [optimum(federation, 1, 3000, fit=fit) for fit in (0.6, 0.9)]
    fits = [federations.fit_of(federation.model, p, data) for p in params]
    assert 0.6 <= fits[0] < 0.9 <= fits[1]
    once = optimum(federation, 1, 100, fit=2.0)  # which no model has
    assert federations.fit_of(federation.model, once, data) < 0.9


@pytest.mark.very_slow
def test_private_clients_say_what_they_spend():
    found, outcomes = scores(tiny("table10", "leaf_synthetic", defense="dp"), ["last", "gls"])
    assert outcomes[0].detail["epsilon_of_fewest_records"] <= 10.01
    assert found["gls", "attribute_accuracy"] < 0.9
    plain, _ = scores(tiny("table10", "leaf_synthetic"), ["gls"])
    assert plain["gls", "attribute_accuracy"] > found["gls", "attribute_accuracy"] + 0.05


@pytest.mark.slow
def test_private_clients_add_the_noise_that_their_own_records_ask_for(monkeypatch):
    cell = tiny("table10", "leaf_synthetic", defense="dp", training__batch_size=10)
    ragged = [np.arange(c, c + n) for c, n in ((0, 60), (60, 30), (120, 20))]
    monkeypatch.setattr(federations, "divide", lambda *arguments: ragged)
    federation = federate(cell)
    noises = [float(t.privacy.noise_multiplier) for t in federation.training]
    assert noises == sorted(noises)
    assert noises[2] > 1.2 * noises[0]
    spent = [federations.epsilon_of(federation, cell.settings.rounds, c) for c in range(3)]
    assert all(9.5 < epsilon <= 10.01 for epsilon in spent)
    # The first message is that of a client trained alone, with that noise.
    for c in range(2):
        key = jax.random.split(jax.random.key(0), 3)[1]
        clients = stack_clients([(federation.data.x[r], federation.data.y[r]) for r in ragged])
        everyone = Federated(1, federation.training[c])
        run = simulate(federation.model, federation.start, clients, key, everyone)
        first = jax.tree.map(lambda a: a[0], federation.messages[c].returned)
        expected = jax.tree.map(lambda a: a[0], run.messages(c).returned)
        assert_same(first, expected, "a client adds the noise of another")


def test_who_holds_what():
    cell = tiny("fig4", "leaf_synthetic")
    parts = divide(source(cell), cell, 0)
    assert [len(p) for p in parts] == [60] * 4
    assert recipe(cell.settings, 60).steps(60) == 2
    assert recipe(cell.settings, 20).batch_size == 20
    federation = federate(cell)
    assert len(federation.messages) == 2  # of the attacked clients alone
    assert len(federation.messages[0]) == 10
    known, truth = federation.knowledge(1)
    assert np.isnan(np.asarray(known.x)[:, 0]).all()
    assert set(truth) == {0, 1}


@pytest.mark.parametrize("size", ["small", "paper"])
def test_in_figure_4_every_client_is_a_candidate(size):
    cells = SUITES["driouich2023"].table("fig4").cells("driouich2023", size, None)
    counts = {(cell.dataset, cell.settings.clients) for cell in cells}
    assert len(counts) == len(cells) == 7
    assert all(cell.settings.attacked == cell.settings.clients for cell in cells)


def test_more_clients_with_faces_are_copies():
    settings = cell_of(
        "driouich2023/fig4", {"clients": 13, "attacked": 13}, dataset="att_faces"
    ).settings
    data = types.SimpleNamespace(y=np.repeat(np.arange(40), 10))
    parts = federations.divide("att_faces", data, dataclasses.replace(settings, records=0), 0)
    assert {len(part) for part in parts} == {148, 220}  # Table 4
    assert len({tuple(part) for part in parts[:10]}) == 10
    assert {tuple(part) for part in parts[10:]} < {tuple(part) for part in parts[:10]}


def test_clients_keep_their_distribution_whatever_their_size():
    few, many = (tiny("fig2", "leaf_synthetic", records=records) for records in (50, 200))
    data, more = source(few), source(many)
    assert [len(rows) for rows in divide(more, tiny("fig2", "leaf_synthetic", records=0), 0)] == [
        2000
    ] * 4
    for small, large in zip(divide(data, few, 0), divide(more, many, 0), strict=True):
        assert len(small) == 50
        assert set(map(tuple, data.x[small])) <= set(map(tuple, more.x[large]))
    assert [rows.tolist() for rows in divide(data, few, 1)] != [
        rows.tolist() for rows in divide(data, few, 0)
    ]


def test_chance_of_naming_a_holder_counts_all_who_hold_a_record():
    federation = types.SimpleNamespace(
        parts=[np.arange(4), np.arange(2, 6), np.arange(6, 10)], messages=[None] * 3
    )
    rows, holders = np.concatenate(federation.parts), np.repeat(np.arange(3), 4)

    def scored(*answers):
        return dict(source_scores(answers, rows, holders, federation))

    draws = [scored(found) for found in np.random.default_rng(0).integers(0, 3, (3000, 12))]
    for metric, chance in (
        ("source_accuracy", (0.5 + 0.5 + 1 / 3) / 3),
        ("strict_source_accuracy", 1 / 3),
    ):
        assert draws[0][metric][2] == pytest.approx(chance)
        assert np.mean([draw[metric][0] for draw in draws]) == pytest.approx(chance, abs=0.01)
    other = np.where(
        rows == 2, 1 - holders, holders
    )  # the record is both the first's and the second's
    assert scored(other)["source_accuracy"][0] == 1
    assert scored(other)["strict_source_accuracy"][0] == pytest.approx(1 - 1 / 6)
    assert scored(holders * 0, holders)["source_accuracy"][0] == 1
    assert np.isnan(scored(holders - 1)["source_accuracy"][0])
    assert scored(holders - 1, holders)["source_accuracy"][0] == 1
    alone = types.SimpleNamespace(parts=[np.arange(4), np.arange(4, 8)], messages=[None] * 2)
    assert [
        name
        for name, _ in source_scores([np.zeros(8, int)], np.arange(8), np.repeat([0, 1], 4), alone)
    ] == ["source_accuracy"]
    assert equivalent_count([100, 100]) == 200
    assert equivalent_count([10, 1000]) == 40


@pytest.mark.slow
def test_linear_clients(data_dir, cache, tmp_path):
    """Table 1 of Driouich 2022 on Adult: ranks on the exact optimum stay below the majority, the
    moments do not."""
    methods = "majority,last,decoded,decoded_alone,optimum,threshold,moments_box,moments_logistic"
    where = [
        "--where",
        "dataset=adult_bachelors",
        "client=mean",
        "--methods",
        methods,
        "--seeds",
        "1",
    ]
    assert (
        sweep.main(["driouich2022/table1", *where, "--data-dir", data_dir, "--out", str(tmp_path)])
        == 0
    )
    with (tmp_path / "results.csv").open() as file:
        rows = {(r["method"], r["metric"]): float(r["value"]) for r in csv.DictReader(file)}
    assert rows["decoded", "optimum_error"] < 1e-9
    assert 1e-9 < rows["decoded_alone", "optimum_error"] < rows["last", "optimum_error"]
    assert rows["decoded", "attribute_accuracy"] == rows["optimum", "attribute_accuracy"]
    assert rows["decoded", "bound"] <= rows["decoded", "attribute_accuracy"]
    assert rows["threshold", "attribute_accuracy"] < rows["majority", "attribute_accuracy"]
    assert (
        min(
            rows["moments_box", "attribute_accuracy"],
            rows["moments_logistic", "attribute_accuracy"],
        )
        >= 0.86
    )


@pytest.mark.parametrize("name", ["driouich2022", "driouich2023"])
def test_every_published_number_belongs_to_a_cell(name):
    used, suite = set(), SUITES[name]
    for table in suite.tables:
        metrics = [metric.name for metric in table.experiment.metrics]
        for cell in table.cells(name, "paper", None):
            place = cell.table, cell.dataset, str(flatten(cell.settings))
            used |= {
                (*place, method, metric)
                for method in table.methods
                for metric in metrics
                if suite.published(cell, method, metric) is not None
            }
    assert len(used) == len(published_rows(name))
