"""Lyu 2021: L. Lyu, C. Chen, "A Novel Attribute Reconstruction Attack in Federated Learning"
(2021).

Tables 1 to 13, and section 5.4 (unknown labels). Attributes count from 0. The paper reports the
best phase for `cos` and `statistics`, an oracle's choice, except in Tables 7 and 8; for membership,
the accuracy per candidate.
"""

from collections.abc import Callable, Sequence
from typing import Any

from attacks import GLS, CosMatching, L2Matching, Virtual
from benchmarks.harness.experiment import Method
from benchmarks.harness.jobs import Cell, Place, Suite, Table
from benchmarks.harness.settings import flatten, replace
from benchmarks.measurements import associations, attributes, membership
from benchmarks.scenarios.victims import VictimSettings
from benchmarks.suites.grids import product, published_by
from jaxfl import LocalTraining
from jaxfl.datasets.sources import at_hand

NAME = "lyu2021"
SIZES = {
    # the paper's |D_v|: Purchase and Genome {50, 100, 500, 1000}, Location {50, 100, 300}
    "paper": {50: 50, 100: 100, 300: 300, 500: 500, 1000: 1000},
    "small": {50: 25, 100: 50, 300: 75, 1000: 200},
}
"""By the paper's number of records, ours. Sizes differ by programs, which take most of a small
suite's time: so there is one less."""
ATTRIBUTES = {"purchase": (130, 595), "genome": (7, 17), "location": (1, 69)}
RECORDS: dict[str, tuple[int, ...]] = {"location": (50, 100, 300)}
RECORDS |= dict.fromkeys(("purchase", "purchase2", "genome"), (50, 100, 500, 1000))
FEW = (50, 100)
"""The paper's smaller numbers of records."""
PHASES = ("pre1", "pre2", "pre5", "gap10", "last5")
MOST_SIMULATED = 300
"""Records up to which training is simulated: beyond, minutes per victim."""
EVERYTHING = ("purchase", "genome", "location")
WITH_RIVAL = ("table2", "table3", "table4")
"""Tables for which the paper prints its rival `l2_lbfgs`, at either size: its programs take longest
to compile."""
BATCHES = (8, 32, None)
"""None: all records in one step."""


def method_settings(
    steps: int = 300,
    evaluations: int = 200,
    unrolled_steps: int = 300,
    unrolled_orders: int = 2,
    orders: int = 256,
    points: int = 8,
) -> dict[str, Any]:
    """Settings of the attacks on attributes.

    Args:
      steps: Adam iterations of `cos`.
      evaluations: budget of `l2_lbfgs`.
      unrolled_steps, unrolled_orders: Adam iterations of `cos_unrolled`, and simulated batch orders
        in each; of at most five rounds drawn at random.
      orders, points: simulated runs per round of `gls`, and points of its paths.
    """
    unrolled = Virtual("unrolled", orders=unrolled_orders, rounds_per_step=5)
    return {
        "cos": CosMatching(steps=steps),
        "cos_unrolled": CosMatching(steps=unrolled_steps, virtual=unrolled),
        "l2_lbfgs": L2Matching(evaluations),
        "gls": GLS(LocalTraining(), orders=orders, points=points, passes=3),
    }


def _steps(records: int, values: dict[str, Any]) -> int:
    """Adam iterations until the objective no longer moves: more unknowns take longer, a prior or
    more observed numbers less."""
    if records <= 100 or values.get("hidden", (128,))[0] == 1024:
        return 300
    return 500 if records <= 500 or values.get("prior", "known") == "known" else 750


def _sources(data_dir: str | None) -> dict[str, str]:
    """The paper's sources, or what stands in for them here."""
    return {
        "purchase": "purchase100" if at_hand("purchase100", data_dir) else "purchase_like",
        "genome": "genome_hs3d",
        "location": "location30",
        "purchase2": "purchase2_like",
    }


Places = Callable[[str, str | None], list[Place]]


def _grid(
    sources: Sequence[str],
    records: Sequence[int] | None = None,
    steps: int | None = None,
    strangers: bool = False,
    small_records: Sequence[int] | None = None,
    **varied: Sequence[Any],
) -> Places:
    """Cells of a table: sources x records (all of the source's by default) x attributes x codings x
    what else is varied; settings of the mixture if there are `strangers`' records. At the small
    size `small_records` where they are fewer: wide models and unknown priors take longest."""
    varied = {name.replace("__", "."): values for name, values in varied.items()}

    def one(size: str, dataset: str, values: dict[str, Any], count: int, attribute: int) -> Place:
        batch, budget = values.get("training.batch_size"), {"steps": steps or _steps(count, values)}
        if size == "small":
            budget |= {
                "evaluations": 100,
                "unrolled_steps": 100,
                "unrolled_orders": 1,
                "orders": 64,
            }
        if "phases" not in values and batch:
            values = values | {"simulated_phases": ("first20",)}
            budget |= {"orders": 64, "points": 1}
        given = method_settings(**budget)
        if strangers:
            given = {"mixture": method_settings(budget["steps"])["cos"]}
        return Place(dataset, replace(VictimSettings(attribute, count), values), given)

    def places(size: str, data_dir: str | None) -> list[Place]:
        names, made = _sources(data_dir), []
        for source in sources:
            codings = {"encoding": ("scalar", "onehot")} if source == "genome" else {}
            ours = SIZES[size]
            fewer = small_records if size == "small" else None
            every = fewer or records or RECORDS[source]
            counts = [ours[printed] for printed in every if printed in ours]
            made += [
                one(size, names[source], values, count, attribute)
                for values in product(codings | varied)
                for count in counts
                if (values.get("training.batch_size") or 0) <= count
                for attribute in ATTRIBUTES[source.rstrip("2")]
            ]
        return made

    return places


def _facts(cell: Cell, method: str, metric: str) -> dict[str, str]:
    known = flatten(cell.settings)
    names = {name: name for name in ("attribute", "participants", "hidden", "phases")}
    names["batch_size"] = "training.batch_size"
    facts = {key: str(known.get(name)) for key, name in names.items()}
    sizes = (n for n, ours in SIZES[cell.size].items() if ours == known.get("records"))
    source = cell.dataset.split("_")[0].rstrip("0123456789")
    if source == "genome" and known["encoding"] == "onehot" and cell.table != "table1":
        source = "genome in one-hot columns"  # the paper's columns are numbers
    return facts | {"source": source, "records": str(next(sizes, ""))}


def _simulates_too_many(settings: VictimSettings, method: Method) -> bool:
    return method.simulates and settings.records > MOST_SIMULATED


def _table(name: str, title: str, places: Places, methods: tuple[str, ...] = ()) -> Table:
    """All methods for one unknown column that the paper has here, if none are named."""
    without: tuple[str, ...] = ()
    if not methods:
        without = ("gauss_newton",) if name in WITH_RIVAL else ("gauss_newton", "l2_lbfgs")
    return Table(name, title, attributes.EXPERIMENT, places, methods, _simulates_too_many, without)


def _summaries(size: str, data_dir: str | None) -> list[Place]:
    names = _sources(data_dir)
    return [
        Place(names[source], associations.Attribute(attribute))
        for source in EVERYTHING
        for attribute in ATTRIBUTES[source]
    ]


def _membership(name: str, title: str, source: str) -> Table:
    places = _grid(
        [source],
        strangers=True,
        phases=[("pre5",)],
        training__batch_size=BATCHES,
        training__learning_rate=(0.1, 1.0),
    )
    return Table(name, title, membership.EXPERIMENT, places)


SUITE = Suite(
    NAME,
    (
        Table(
            "table1",
            "Data check: distribution of the attributes (Table 1)",
            associations.EXPERIMENT,
            _summaries,
        ),
        _table("table2", "Purchase-100 (Table 2)", _grid(["purchase"])),
        _table("table3", "Location-30 (Table 3)", _grid(["location"])),
        _table("table4", "Genome HS3D, scalar and one-hot (Table 4)", _grid(["genome"])),
        _table(
            "table5",
            "Participants; 1 is isolation (Table 5)",
            _grid(EVERYTHING, [100], participants=(1, 2, 10)),
        ),
        _table(
            "table6",
            "Batch size (Table 6)",
            _grid(EVERYTHING, [100], training__batch_size=BATCHES),
        ),
        _table(
            "table7",
            "Training phases (Table 7)",
            _grid(EVERYTHING, [100], phases=[(phase,) for phase in PHASES]),
        ),
        _table("table8", "Local data size, pre5 (Table 8)", _grid(EVERYTHING, phases=[("pre5",)])),
        _table(
            "table9",
            "Model width, Location (Table 9)",
            _grid(
                ["location"],
                small_records=FEW,
                hidden=((128,), (1024,), (1024, 256)),
            ),
        ),
        _membership("table10", "Membership unknown, Purchase (Table 10)", "purchase"),
        _membership("table11", "Membership unknown, Location (Table 11)", "location"),
        _table(
            "table12",
            "Prior unknown, Location (Table 12)",
            _grid(["location"], training__batch_size=BATCHES, prior=["unknown"]),
        ),
        _table(
            "table13",
            "Prior unknown, Purchase (Table 13)",
            _grid(
                ["purchase"],
                small_records=FEW,
                training__batch_size=BATCHES,
                prior=["unknown"],
            ),
        ),
        _table(
            "labels",
            "Labels unknown (section 5.4): Purchase in two classes, Genome",
            _grid(["purchase2", "genome"], steps=1000, labels=["unknown"], phases=[("pre5",)]),
        ),
        _table(
            "minibatch",
            "Batches of 8: matching a gradient, matching the simulated training, decoding",
            _grid(
                ["location"],
                [300],
                training__batch_size=[8],
                phases=[(phase,) for phase in ("pre5", "first20", "first50")],
            ),
            ("majority", "cos", "cos_unrolled", "gls"),
        ),
    ),
    published_by(NAME, _facts),
)
