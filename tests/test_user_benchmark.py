"""The suite of paper 003, end to end on made-up pictures, and its published values."""

import dataclasses

import numpy as np
import pytest

from benchmarks import generative_experiment, linkability_experiment, representatives_experiment
from benchmarks.jobs import Job
from benchmarks.suites import song2020
from benchmarks.suites.grids import published_rows
from jaxfl.datasets import Dataset

TINY_LINKS = {"clients": 4, "records": 9, "widths": "2,2,4,4", "first": 2, "window": 6, "evaluations": 3, "images": 6}
TINY_LINKS |= {"siamese_epochs": 2, "siamese_batch": 4, "epoch": 2, "learning_rate": 0.05}
TINY_GAME = {"clients": 3, "records": 12, "widths": "2,2,4,4", "generator_width": 8, "rounds": 4, "every": 2, "evaluations": 2}
TINY_GAME |= {"images": 6, "auxiliary": 20, "batch": 10, "most_epochs": 1, "learning_rate": 0.05, "batch_size": 6}


@pytest.fixture
def images(monkeypatch):
    """Ten classes, each a picture of its own with noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 1600)
    x = np.tanh(rng.normal(size=(10, 28, 28, 1))[y] + 0.3 * rng.normal(size=(1600, 28, 28, 1)))
    data = Dataset("images", x.astype(np.float32), y.astype(np.int32), (), 10)
    for module in (linkability_experiment, generative_experiment, representatives_experiment):
        monkeypatch.setattr(module, "load_images", lambda name, data_dir, side: data)
    monkeypatch.setattr(linkability_experiment, "REFERENCES", 40)
    monkeypatch.setattr(linkability_experiment, "PAIRS", 50)
    monkeypatch.setattr(representatives_experiment, "BEFORE", 100)
    monkeypatch.setattr(generative_experiment, "JUDGES_EPOCHS", 1)
    monkeypatch.setattr(generative_experiment, "SAMPLES", 24)


def table(name):
    return next(t for t in song2020.TABLES if t.name == name)


def tiny(name, changes, **more):
    cell = table(name).cells("small", None)[0]
    return dataclasses.replace(cell, settings=tuple(sorted((dict(cell.settings) | changes | more).items())))


def test_every_method_links_at_every_interval(images):
    cells = [tiny("table3", TINY_LINKS, interval=k, epoch=e) for k, e in ((1, 2), (3, 1))]
    jobs = [Job(cell, method, 0) for method in linkability_experiment.METHODS for cell in cells]
    outcomes = [o for some in linkability_experiment.run(jobs, None) for o in some]
    found = {(o.job.method, o.job.cell["interval"], o.metric): o.value for o in outcomes}
    for method in linkability_experiment.METHODS:
        assert 0 <= found[method, 3, "precision"] <= 1
        assert {"tracking", "matching_accuracy", "auc"} <= {m for name, k, m in found if (name, k) == (method, 1)}
    # Three classes a client and one full-batch step a round: nothing needs to be learned.
    assert found["update", 1, "precision"] == 1
    assert all(o.chance == 0.25 for o in outcomes if o.metric == "precision")


def test_every_generator_is_judged(images):
    cell = tiny("table4", TINY_GAME)
    jobs = [Job(cell, method, 0) for method in generative_experiment.METHODS]
    jobs += [Job(tiny("fig10", TINY_GAME, round=4), method, 0) for method in ("none", "mgan_passive", "mgan_active")]
    outcomes = [o for some in generative_experiment.run(jobs, None) for o in some]
    found = {(o.job.method, o.metric): o for o in outcomes}
    for method in generative_experiment.METHODS:
        assert 1 <= found[method, "classifier_score"].value <= 10.001
        assert 0 <= found[method, "victim_like"].value <= 1
    assert found["mgan_passive", "victim_like"].images["for others"].shape == (3 * 28, 8 * 28)
    assert found["none", "shared_accuracy"].value == found["mgan_passive", "shared_accuracy"].value
    assert found["mgan_active", "shared_accuracy"].value is not None


def test_solvers_are_timed_on_the_same_update(images):
    cell = tiny("solvers", {"images": 6, "widths": "2,2,4,4", "steps": 3, "evaluations": 8})
    jobs = [Job(cell, method, 0) for method in representatives_experiment.METHODS]
    found = {(o.job.method, o.metric): o.value for some in representatives_experiment.run(jobs, None) for o in some}
    for method in representatives_experiment.METHODS:
        assert 0 < found[method, "objective"] < 1.5
        assert -1 <= found[method, "class_mean_correlation"] <= 1


def test_turned_digits_and_worn_glasses_make_the_victim(images):
    data = generative_experiment.load_images("mnist", None, "28,28")
    plain = generative_experiment.digits(data, tiny("table4", TINY_GAME), 0)
    world = generative_experiment.digits(data, tiny("fig7", TINY_GAME), 0)
    assert np.allclose(world.parts[0][0], generative_experiment.turned(plain.parts[0][0]))
    assert np.array_equal(world.parts[1][0], plain.parts[1][0])
    assert 0.45 < world.judges[2].mean() < 0.55
    rng = np.random.default_rng(1)
    people = Dataset("faces", rng.random((400, 64, 64, 1), np.float32), np.repeat(np.arange(40), 10).astype(np.int32), (), 40)
    faces = generative_experiment.faces(people, tiny("fig8", {}), 0)
    assert sorted(np.bincount(faces.parts[0][1])[[3, 18]].tolist()) == [5, 5]
    assert len(faces.parts[0][1]) == 10
    assert not np.isin(faces.judges[1], [3, 18]).any()
    held = np.concatenate([x.reshape(len(x), -1)[:, 0] for x, _ in (*faces.parts, faces.auxiliary)])
    assert len(np.unique(held)) == len(held) == 400


def test_records_that_are_not_there_are_named(images):
    with pytest.raises(ValueError, match="records=900"):
        linkability_experiment.federate(tiny("table3", TINY_LINKS, records=900), None, 0)


def test_every_published_value_belongs_to_a_cell():
    used = {
        (t.name, cell.dataset, method, row["metric"])
        for t in song2020.TABLES
        for cell in t.cells("paper", None)
        for method in t.methods
        for row in published_rows("song2020")
        if song2020.published(cell, method, row["metric"]) is not None
    }
    assert len(used) == len(published_rows("song2020"))
