"""Generators of Song 2020's suite, end to end on made-up pictures."""

import dataclasses

import numpy as np
import pytest

from benchmarks.measurements import generators
from benchmarks.measurements.generators import judges
from benchmarks.scenarios import generated
from benchmarks.scenarios.sources import pictures
from benchmarks.suites.specimens import TINY_GAME
from jaxfl.datasets import Dataset
from tests.benchmarks.cells import all_methods, cell_of, outcomes_of
from tests.laws.cases import cases


def tiny(table, changes, **more):
    """A cell on the pictures of the specimens, whose programs are the laws' too."""
    changes = changes | {name.replace("__", "."): value for name, value in more.items()}
    cell = cell_of(f"song2020/{table}", changes)
    return dataclasses.replace(cell, dataset="pictures_like")


def play(table, changes, seed, **more):
    return generators.Play("pictures_like", tiny(table, changes, **more).settings, None, seed)


@pytest.mark.very_slow
def test_every_generator_is_judged():
    jobs = all_methods(tiny("table4", TINY_GAME))
    methods = [job.method for job in jobs]
    judged = ("none", "mgan_passive", "mgan_active")
    jobs += all_methods(tiny("fig10", TINY_GAME, round=4), judged)
    outcomes = outcomes_of(jobs)
    found = {(o.job.method, o.metric): o for o in outcomes}
    for method in methods:
        assert 0.999 <= found[method, "classifier_score"].value <= 10.001  # but for rounding
        assert 0 <= found[method, "victim_like"].value <= 1
    assert found["mgan_passive", "victim_like"].images["for others"].shape == (3 * 28, 8 * 28)
    assert found["mgan_active", "shared_accuracy"].value is not None
    passive, adversarial = (
        found[m, "victim_like"].images["for the victim"]
        for m in ("mgan_passive", "mgan_adversarial_identity")
    )
    assert not np.array_equal(passive, adversarial)
    assert {m for m, metric in found if metric == "degraded_like"} == {"victim", "others"}


@pytest.mark.slow
@pytest.mark.parametrize("law", cases(generators.EXPERIMENT))
def test_methods_obey(law):
    law()


def test_turned_digits_and_worn_glasses_make_the_victim():
    data = pictures("pictures_like", None, (28, 28))
    plain = generated.digits(data, tiny("table4", TINY_GAME).settings, 0)
    world = generated.digits(data, tiny("fig7", TINY_GAME).settings, 0)
    assert np.allclose(world.parts[0][0], generated.turned(plain.parts[0][0]))
    assert np.array_equal(world.parts[1][0], plain.parts[1][0])
    assert 0.45 < world.judges[2].mean() < 0.55
    rng = np.random.default_rng(1)
    people = Dataset(
        "faces",
        rng.random((400, 64, 64, 1), np.float32),
        np.repeat(np.arange(40), 10).astype(np.int32),
        (),
        40,
    )
    faces = generated.faces(people, tiny("fig8", {}).settings, 0)
    assert sorted(np.bincount(faces.parts[0][1])[[3, 18]].tolist()) == [5, 5]
    assert len(faces.parts[0][1]) == 10
    assert not np.isin(faces.judges[1], [3, 18]).any()
    pixel = people.x[:, 0, 0, 0]
    worn = [
        pixel[10 * (person - 1) + n - 1]
        for person, numbers in generated.GLASSES.items()
        for n in numbers
    ]
    unworn = np.concatenate(
        [
            x[:, 0, 0, 0]
            for x in (*(x for x, _ in faces.parts[1:]), faces.auxiliary[0], faces.test[0])
        ]
    )
    assert not np.isin(unworn, worn).any()
    assert all(len(set(y)) <= 6 for _, y in faces.parts)
    bare = np.concatenate([x[:, 0, 0, 0] for x, _ in generated.unworn(faces)])
    assert sorted(bare) == sorted(
        set(pixel[[30 + k for k in range(10)] + [180 + k for k in range(10)]]) - set(worn)
    )
    # Clients, adversary and judges share no picture; of the wearers the judges have none.
    held = np.concatenate(
        [x.reshape(len(x), -1)[:, 0] for x, _ in (*faces.parts, faces.auxiliary, faces.judges[:2])]
    )
    assert len(np.unique(held)) == len(held) == 400


def test_degraded_copies_blend_only_what_is_alike():
    y, like = np.repeat([0, 1, 1], 40), np.repeat([False, False, True], 40)
    # Of each group one colour, which blending within the group and blurring leave as it is.
    x = np.broadcast_to(
        np.repeat([-0.9, 0.0, 0.9], 40)[:, None, None, None], (120, 8, 8, 1)
    ).astype(np.float32)
    before = x.copy()
    copies = judges.degraded(x, y, like, np.random.default_rng(0))
    assert np.array_equal(x, before)
    assert copies.dtype == x.dtype
    assert abs(copies).max() <= 1
    assert np.array_equal(copies, judges.degraded(x, y, like, np.random.default_rng(0)))
    assert not np.array_equal(copies, judges.degraded(x, y, like, np.random.default_rng(1)))
    bright = copies.mean((1, 2, 3))
    assert bright[80:].min() > bright[40:80].min() > bright[:40].min()
    assert (
        bright[:40].max() < -0.2
    )  # the darkest group stays dark: it was blended with nothing else
    # Every image has a partner of its own group: with two colours in a group, some copies lie
    # between them.
    mixed = np.where(np.arange(120)[:, None, None, None] % 2, x, -x)
    between = judges.degraded(mixed, y, like, np.random.default_rng(0)).mean((1, 2, 3))
    assert ((between[80:] > -0.2) & (between[80:] < 0.2)).any()


def test_a_full_batch_is_one_step():
    whole = tiny("fig7", TINY_GAME, training__batch_size=None)
    assert whole.settings.training.steps(12) == 1
    assert tiny("fig7", TINY_GAME).settings.training.steps(12) == 2


def test_the_attacking_client_has_not_the_class_it_wants():
    for seed in range(5):
        game = play("table4", TINY_GAME, seed, classes_held=3, clients=6)
        assert game.target in game.world.parts[0][1]
        assert game.target not in game.world.parts[game.attacker][1]
    everyone = play("table4", TINY_GAME, 0, classes_held=10)
    with pytest.raises(ValueError, match="classes_held=10: no client is without"):
        _ = everyone.attacker
