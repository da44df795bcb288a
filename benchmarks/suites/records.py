"""Whole records: what a server reads of a table of which it knows the schema alone, and what stops
it. Beyond the papers."""

from collections.abc import Callable, Iterable
from typing import Any

from attacks import RecordSearch
from benchmarks.harness.experiment import Method
from benchmarks.harness.jobs import MethodSettings, Place, Suite, Table
from benchmarks.measurements.whole_records import EXPERIMENT
from benchmarks.scenarios.whole_records import WholeRecordsSettings
from jaxfl import DPSGD, LocalTraining, Upload, sgd

ONE_LAYER = {"reconstruct_records": RecordSearch(starts=512, sweeps=10, passes=48)}
"""Where the first layer alone is looked at, few starts arrive."""


MOST_MATCHED = 32
"""Records up to which matching runs: beyond, it takes minutes and reads none."""


def _takes_minutes(settings: WholeRecordsSettings, method: Method) -> bool:
    return method.name == "match_records" and settings.records > MOST_MATCHED


def _places(dataset: str, settings: Iterable[WholeRecordsSettings]) -> list[Place]:
    return [Place(dataset, each, _method_settings(each)) for each in settings]


def _method_settings(settings: WholeRecordsSettings) -> MethodSettings:
    several = settings.training.steps(settings.records) > 1
    return ONE_LAYER if len(settings.hidden) == 1 or several else {}


def _adult(size: str, data_dir: str | None) -> list[Place]:
    two = [(8, 100), (16, 100), (32, 100), (64, 128), (100, 256), (200, 512)]
    two += [(500, 1024)] if size == "paper" else []
    return _places(
        "adult",
        [WholeRecordsSettings(records, (width, width)) for records, width in two],
    )


def _one_layer(size: str, data_dir: str | None) -> list[Place]:
    return _places("adult", [WholeRecordsSettings(records, (100,)) for records in (8, 16, 32)])


def _trained(size: str, data_dir: str | None) -> list[Place]:
    steps = (0, 100, 1000)
    return _places("adult", [WholeRecordsSettings(32, warm=warm) for warm in steps])


def _models(size: str, data_dir: str | None) -> list[Place]:
    rates = (1.0, 0.1, 0.01)
    return _places(
        "adult",
        [
            WholeRecordsSettings(16, sends="model", training=LocalTraining(rate), rounds=rounds)
            for rate in rates
            for rounds in (1, 5)
        ],
    )


def _fedavg(size: str, data_dir: str | None) -> list[Place]:
    training = LocalTraining(0.05, epochs=3, batch_size=8)
    return _places(
        "adult",
        [
            WholeRecordsSettings(records, (width,), sends="model", training=training)
            for records, width in ((8, 100), (16, 100), (32, 256))
        ],
    )


def _wide(dataset: str) -> Callable[[str, str | None], list[Place]]:
    def places(size: str, data_dir: str | None) -> list[Place]:
        messages = [
            WholeRecordsSettings(20, (128, 128)),
            WholeRecordsSettings(50, (128, 128)),
            WholeRecordsSettings(100, (256, 256)),
            WholeRecordsSettings(100, (128,), rounds=20),
        ]
        if size == "paper":
            messages += [WholeRecordsSettings(200, (512, 512))]
            messages += [WholeRecordsSettings(300, (384,), rounds=20)]
        return _places(dataset, messages)

    return places


def _sums(size: str, data_dir: str | None) -> list[Place]:
    each = ((32, 1), (16, 2), (8, 4), (4, 8))
    gradients = [WholeRecordsSettings(records, clients=clients) for records, clients in each]
    averaged = LocalTraining(0.1, epochs=3)
    models = [
        WholeRecordsSettings(n, (256,), sends="model", training=averaged, clients=16 // n)
        for n in (16, 4)
    ]
    return _places("adult", gradients + models)


def _optimizers(size: str, data_dir: str | None) -> list[Place]:
    recipes = [
        LocalTraining(0.05, epochs=3, batch_size=8, optimizer=optimizer)
        for optimizer in (sgd(0.9), sgd(weight_decay=1e-3), sgd(0.9, 1e-3))
    ]
    return _places(
        "adult",
        [
            WholeRecordsSettings(n, (100,), sends="model", training=r)
            for n in (8, 16)
            for r in recipes
        ],
    )


def _defenses(size: str, data_dir: str | None) -> list[Place]:
    base: dict[str, Any] = {"records": 16}
    noises = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
    private = [
        LocalTraining(0.1, plugins=(DPSGD(clip, noise),))
        for clip, noise in ((0.1, 0.0), (1.0, 0.0), (1.0, 1e-3), (1.0, 1.0))
    ]
    return _places(
        "adult",
        [WholeRecordsSettings(**base)]
        + [WholeRecordsSettings(**base, upload=Upload(noise_multiplier=n)) for n in noises]
        + [WholeRecordsSettings(**base, upload=Upload(bits=bits)) for bits in (16, 8)]
        + [WholeRecordsSettings(**base, half=True)]
        + [WholeRecordsSettings(**base, training=training) for training in private],
    )


def _tables(size: str, data_dir: str | None) -> list[Place]:
    return _places("breast_cancer", [WholeRecordsSettings(n, (64, 64)) for n in (8, 16, 32)])


SUITE = Suite(
    "records",
    (
        Table(
            "adult",
            "One gradient of a fresh model, by records and widths",
            EXPERIMENT,
            _adult,
            skips=_takes_minutes,
        ),
        Table("one_layer", "The same with one hidden layer", EXPERIMENT, _one_layer),
        Table("trained", "Steps of training before", EXPERIMENT, _trained),
        Table("models", "Models returned in float32, by learning rate", EXPERIMENT, _models),
        Table("fedavg", "Three epochs of batches of 8, by records", EXPERIMENT, _fedavg),
        Table("optimizers", "The same with momentum and weight decay", EXPERIMENT, _optimizers),
        Table(
            "sums",
            "Of several clients' records by their sum, which secure aggregation leaves",
            EXPERIMENT,
            _sums,
        ),
        Table(
            "location",
            "A table of 446 answers of yes and no",
            EXPERIMENT,
            _wide("location30"),
            skips=_takes_minutes,
        ),
        Table(
            "purchase_like",
            "A table of 600 answers",
            EXPERIMENT,
            _wide("purchase_like"),
            skips=_takes_minutes,
        ),
        Table("defenses", "What stops it, one defence at a time", EXPERIMENT, _defenses),
        Table("binary", "Answers of yes and no alone: embedded data", EXPERIMENT, _tables),
    ),
)
