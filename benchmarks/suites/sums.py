"""What one round's sum tells of one participant (Ngo et al. 2024). Beyond the papers."""

from collections.abc import Callable
from typing import Any, Literal

from benchmarks.harness.jobs import Place, Suite, Table
from benchmarks.harness.settings import replace
from benchmarks.measurements.sum_games import EXPERIMENT
from benchmarks.scenarios.sum_games import SumGamesSettings

PARTICIPANTS = (2, 11, 31, 101)
SMALL: dict[str, Any] = {"rounds": 50}


def _places(asked: Literal["client", "record"]) -> Callable[[str, str | None], list[Place]]:
    def places(size: str, data_dir: str | None) -> list[Place]:
        sized = SumGamesSettings(asked)
        if size == "small":
            sized = replace(sized, SMALL)
        crowds = [Place("mnist", replace(sized, {"clients_per_round": n})) for n in PARTICIPANTS]
        widths = [Place("mnist", replace(sized, {"hidden": h})) for h in ((), (8,), (256,))]
        return crowds + widths

    return places


SUITE = Suite(
    "sums",
    (
        Table(
            "client",
            "Whose data set is in a sum, by number of participants and width of the model",
            EXPERIMENT,
            _places("client"),
        ),
        Table(
            "record",
            "Which record one participant has, by the same",
            EXPERIMENT,
            _places("record"),
        ),
    ),
)
