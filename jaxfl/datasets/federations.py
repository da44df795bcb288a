"""Public sources as Driouich 2022 and 2023 use them: which records, which columns, and whose they
are."""

import dataclasses

import numpy as np

from jaxfl.datasets.dataset import Table
from jaxfl.domains import Count, check

DEGREES = ("Bachelors", "Doctorate", "Masters", "Prof-school")
YOUNG, OLD = 38, 52
"""Ages that divide the doctorates among the first three clients: below 38, 38 to 52, above 52."""


def adult_bachelors(table: Table) -> Table:
    """Adult with at least a bachelor's degree: 12,110 records of 53 columns, the sensitive one
    being `sex`.

    Its groups are Driouich 2023's (Appendix C.1): doctorates younger than 38, from 38 to 52, older;
    and, as group 3, all other records, which the remaining clients share
    (`partitions.by_group_and_rest`). The paper prints 12,300 records. Of several codings this one
    has its 53 columns: one-hot on these records, the country as a flag for the United States and
    one for any other, "?" a category of its own.
    """
    place = {name: j for j, name in enumerate(table.names)}
    degree = np.asarray(table.categories[place["education"]])[
        table.values[:, place["education"]].astype(int)
    ]
    kept = np.isin(degree, DEGREES)
    values, degree = table.values[kept], degree[kept]
    names: list[str] = []
    categories: list[tuple[str, ...]] = []
    columns: list[np.ndarray] = []
    for name, options, column in zip(table.names, table.categories, values.T, strict=True):
        if name == "native-country":
            inside = column == options.index("United-States")
            names += ["native-us", "native-other"]
            categories += [("no", "yes")] * 2
            columns += [inside, ~inside]
            continue
        present = np.unique(column) if options else None
        names.append(name)
        categories.append(() if present is None else tuple(options[int(k)] for k in present))
        columns.append(column if present is None else np.searchsorted(present, column))
    age, doctor = values[:, place["age"]], degree == "Doctorate"
    group = np.where(doctor, (age >= YOUNG).astype(int) + (age > OLD), 3)
    return dataclasses.replace(
        table,
        name="adult_bachelors",
        values=np.stack(columns, 1).astype(np.float32),
        y=table.y[kept],
        names=tuple(names),
        categories=tuple(categories),
        group=group,
        sensitive="sex",
    )


def flight_airlines(
    table: Table, *, records: int = 8_000, clients: int = 10, seed: int = 0
) -> Table:
    """A stand-in for the booking data of Driouich 2022 and 2023, which is not public: seeded rows
    of Indian fares, by airline.

    All fares are one way; whether there are stops takes the place of the journey type, with the
    cabin class as a second, easier attribute. The largest client is halved until there are enough:
    the source has six airlines.

    Args:
      table: `flight_price`.
      records: rows drawn without replacement.
      clients: at least 6.
      seed: of the draw and the halving.

    Raises:
      ValueError: if there are fewer clients than airlines or fewer rows than asked for.
    """
    check("records", records, Count)
    check("clients", clients, Count)
    if records > len(table.values):
        raise ValueError(f"records={records} exceeds the {len(table.values)} rows of {table.name}")
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(table.values))[:records])
    values, place = table.values[rows].copy(), {name: j for j, name in enumerate(table.names)}
    stops, categories = place["stops"], list(table.categories)
    values[:, stops] = values[:, stops] != categories[stops].index("zero")
    categories[stops] = ("none", "some")
    group = values[:, place["airline"]].astype(int)
    if clients <= group.max():
        raise ValueError(f"clients={clients} must be at least the {group.max() + 1} airlines")
    for new in range(group.max() + 1, clients):
        largest = np.flatnonzero(group == np.bincount(group).argmax())
        group[rng.permutation(largest)[len(largest) // 2 :]] = new
    note = (
        f"{records} fares of six Indian airlines stand in for a set of ten European ones "
        "that is not public"
    )
    return dataclasses.replace(
        table,
        name="flight_airlines",
        values=values,
        y=table.y[rows],
        categories=tuple(categories),
        group=group,
        note=note,
        sensitive="stops",
    )


DERIVED = {
    "adult_bachelors": ("adult", adult_bachelors),
    "flight_airlines": ("flight_price", flight_airlines),
}
"""By name: the public source, and what makes a federation of its table."""
