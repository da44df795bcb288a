"""Suites: one file per paper, its tables as grids. `SUITES[name]` lists a suite's tables in order."""

from benchmarks.jobs import Table
from benchmarks.suites import (
    driouich2022,
    driouich2023,
    frontier,
    kerkouche2023,
    lyu2021,
    quick,
    song2020,
)

SUITES: dict[str, tuple[Table, ...]] = {
    "quick": quick.TABLES,
    "lyu2021": lyu2021.TABLES,
    "driouich2022": driouich2022.TABLES,
    "driouich2023": driouich2023.TABLES,
    "kerkouche2023": kerkouche2023.TABLES,
    "song2020": song2020.TABLES,
    "frontier": frontier.TABLES,
}
