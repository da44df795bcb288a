"""Whose record is it: what an adversary may learn from, and what judges hold, is no record of a
client that is attacked. Every scenario that divides a source is here; `sums` has its law in
`tests/benchmarks/test_properties.py`."""

import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks.scenarios import anonymous, generated, splits, victims
from benchmarks.scenarios.anonymous import AnonymousSettings
from benchmarks.scenarios.generated import GeneratedSettings
from jaxfl.datasets import Dataset, load


def numbered(records, classes):
    """Images that say which row they are."""
    rng = np.random.default_rng(0)
    x = np.tile(np.arange(records, dtype=np.float32)[:, None, None, None], (1, 2, 2, 1))
    return Dataset("numbered", x, rng.integers(0, classes, records).astype(np.int32), (), classes)


def rows_of(images):
    return set(np.asarray(images)[:, 0, 0, 0].astype(int).tolist())


def shared(sides):
    """Pairs of sides that have records in common, and how many."""
    pairs = itertools.combinations(sides.items(), 2)
    return {(a, b): len(p & q) for (a, p), (b, q) in pairs if p & q}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("participants", [1, 3])
@pytest.mark.parametrize("name", ["breast_cancer", "digits"])
def test_public_records_are_no_clients(name, participants, seed):
    data = load(name)
    settings = victims.VictimSettings(0, 50, participants=participants)
    rows = splits.split(data, settings.records, settings.participants, seed)
    sides = {"public": splits.public_rows(data, seed), "victim": rows.victim}
    sides |= {f"participant {i}": others for i, others in enumerate(rows.others, 1)}
    if participants == 1:
        sides["null"] = rows.null
    else:
        assert set(rows.null) == set(rows.others[0])
    distinct = {side: set(map(int, numbers)) for side, numbers in sides.items()}
    assert all(len(distinct[side]) == len(numbers) for side, numbers in sides.items())
    assert not shared(distinct)
    held_out = {"clients": set.union(*distinct.values()) - distinct.get("null", set())}
    assert not shared(held_out | {"test": set(map(int, rows.test))})


@pytest.mark.parametrize("split", ["iid", "classes"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_the_servers_own_federation_has_no_clients_record(split, disjoint):
    data, settings = (
        numbered(1200, 12),
        AnonymousSettings(clients=4, records=30, split=split, disjoint=disjoint),
    )
    for seed in range(5):
        rng = np.random.default_rng(seed)
        mine, other = anonymous._divide(rng, data, settings)
        assert not set(mine) & set(other)
        parts = {
            f"{side} {i}": set(map(int, part))
            for side, rows in (("client", mine), ("shadow", other))
            for i, part in enumerate(anonymous._parts(rng, data.y, rows, settings))
        }
        assert len(parts) == 8
        assert not shared(parts)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("participants", [1, 4])
def test_clients_that_a_table_names_hold_their_own_records(participants, seed):
    data = load("breast_cancer")
    group = np.random.default_rng(0).integers(0, 4, len(data))
    data = dataclasses.replace(data, group=group)
    records = int(splits.sure_records(data).min())
    rows = splits.split(data, records, participants, seed)
    held = [rows.victim, *rows.others]
    assert [set(group[mine]) for mine in held] == [{(seed + i) % 4} for i in range(participants)]
    assert set(group[rows.null]) == {(seed + 1) % 4}
    sides = {f"client {i}": set(map(int, mine)) for i, mine in enumerate(held)}
    assert [len(side) for side in sides.values()] == [records] * participants
    sides |= {"test": set(map(int, rows.test))}
    sides |= {"public": set(map(int, splits.public_rows(data, seed)))}
    assert not shared(sides)
    with pytest.raises(ValueError, match="0 of 4 clients of breast_cancer have so many"):
        splits.split(data, 200, 2, seed)


@pytest.mark.parametrize("seed", range(5))
def test_neither_adversary_nor_judges_hold_a_clients_digit(seed):
    data = numbered(9000, 10)
    world = generated.digits(data, GeneratedSettings(clients=4, records=60, auxiliary=500), seed)
    sides = {f"client {i}": rows_of(x) for i, (x, _) in enumerate(world.parts)}
    sides |= {
        "adversary": rows_of(world.auxiliary[0]),
        "test": rows_of(world.test[0]),
        "judges": rows_of(world.judges[0]),
    }
    assert not shared(sides)


@pytest.mark.parametrize("seed", range(5))
def test_neither_adversary_nor_judges_hold_a_clients_face(seed):
    """Judges and the test of the shared model have persons' pictures in common."""
    data = numbered(400, 40)
    ordered = Dataset("faces", data.x, np.repeat(np.arange(40, dtype=np.int32), 10), (), 40)
    settings = GeneratedSettings(clients=4, records=20, property="glasses")
    world = generated.faces(ordered, settings, seed)
    sides = {f"client {i}": rows_of(x) for i, (x, _) in enumerate(world.parts)}
    sides |= {"adversary": rows_of(world.auxiliary[0]), "judges": rows_of(world.judges[0])}
    assert not shared(sides)
