"""The experiments of Driouich 2023: a client's own model out of its messages, and what such a model gives away.

Settings beyond those of `benchmarks.federations`:
  measures: what is measured: "zest", "attribute", "source", "samples", comma-separated.
  decoded: messages that `gls` uses, from the first; orders, passes, drift, layers: as in `GLS` (0 layers for all).
  matched, cos_steps: messages and Adam iterations of `cos`.
  fit_steps, search_steps: of the mapping network (Eq. 7 and 8).
  pseudo, pseudo_steps, finish: made-up records, steps of their fit, most steps of training on them.
  zest_records, zest_masks: reference records of a client, and masks for each.
  targets: records per client whose source is asked for; 0 for all.
  source_messages: messages that `decode_sources` uses.
  inversion_steps, inversion_rate: of `invert_model`; `gradient_steps`: of `invert_gradient`.

Models that stand for a client's own: `global` and `last` (returned); reconstructed by `extrapolated`, `affine`,
`network_literal` (as published), `network` (normalised), `pseudo_records` (messages alone), `records` (public columns known);
`isolated`, what an active server gets that sends the client its own model back in every round (another threat model); and
`optimum`, the ceiling. Metrics of each: `zest` to the optimum, `train_loss`, `train_accuracy` or `mape` on the client's
records, `attribute_accuracy`, `source_accuracy` (balanced over clients; right is any that holds the record; where clients share
records `strict_source_accuracy` wants the one it was drawn from), `ssim` (of `global` and `last` at a tenth of the others' step
size, as in the paper; its chance is that of plain grey, with which inversion begins); means over the attacked clients. Attacks
without a model: `majority`, `cos`, `gls` (attribute), `vote`, `best_round` (chosen by the score), `drop`, `drop_lda`
(linear discriminants learned from its answers), `decode_sources` (source), `invert_gradient` (samples). `run_s` is per attacked
client and holds compilation.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    GLS,
    CosMatching,
    GradientInversion,
    Inversion,
    LocalModel,
    Mapping,
    PseudoRecords,
    Virtual,
    affine_optimum,
    by_discriminants,
    cos_matching,
    decode_sources,
    extrapolated,
    gls,
    infer_from_model,
    invert_gradient,
    invert_model,
    largest_drop,
    last_returned,
    least_loss,
    majority_of_rounds,
    mapping_network,
    pseudo_records,
)
from attacks.metrics import zest_similarity
from benchmarks.federations import Federation, epsilon_of, federate, isolated, optimum
from benchmarks.jobs import Cell, Job, Outcome, Value
from benchmarks.local_model_scores import (
    Score,
    accuracy_of,
    equivalent_count,
    explained,
    fit,
    likeness,
    majority_of,
    matched_likeness,
    mean,
    source_scores,
    strips,
    targets,
)
from jaxfl import Messages

Array = jax.Array

MODELS = (
    *(
        "global",
        "last",
        "extrapolated",
        "affine",
        "network_literal",
        "network",
        "pseudo_records",
        "records",
    ),
    *("isolated", "optimum"),
)
WITHOUT_MODEL = {
    **dict.fromkeys(("majority", "cos", "gls"), "attribute"),
    **dict.fromkeys(("vote", "best_round", "drop", "drop_lda", "decode_sources"), "source"),
    "invert_gradient": "samples",
}
METHODS = (*MODELS, *WITHOUT_MODEL)
SHOWN = 8
"""Images in a row of the report."""


def measures(cell: Cell) -> tuple[str, ...]:
    """What is measured in a cell."""
    return tuple(str(cell["measures"]).split(","))


def applies(cell: Cell, method: str) -> bool:
    """Records are reconstructed where attributes are, from models that do not mix records; a global model names no source."""
    decodes = method in ("gls", "records", "decode_sources")
    if decodes and cell["batch_norm"]:
        return False
    if method == "records" and "attribute" not in measures(cell):
        return False
    return method in MODELS or WITHOUT_MODEL[method] in measures(cell)


def measured(cell: Cell) -> Any:
    """What is run for a cell: those that differ in their tables and measures share their federations."""
    return cell.dataset, tuple(pair for pair in cell.settings if pair[0] != "measures")


def drift(cell: Cell) -> int:
    """For how many pieces of a path `gls` takes changes of records' gradients for noise: it can of clients without defences."""
    return int(cell["drift"]) if cell["defense"] == "none" else 0


class Reconstructions:
    """Models that stand for the attacked clients' own, made when first asked for."""

    def __init__(self, federation: Federation, cell: Cell):
        """Of one federation."""
        self.federation, self.cell = federation, cell
        self.count = len(federation.messages)
        self.seconds: dict[str, float] = {}
        """What each method took, compilation included, however many metrics share its answer."""
        self.unexplained: dict[str, list[float]] = {}
        """What fitted maps miss of held-out updates' energy, per attacked client."""
        self.pictures: dict[str, dict[str, np.ndarray]] = {}
        """Reconstructed samples of the first client by method and caption."""
        self._made: dict[str, list[Any]] = {}

    def __call__(self, method: str) -> list[Any]:
        """One model per attacked client."""
        return self._timed(method, self._one)

    @property
    def attributes(self) -> list[np.ndarray]:
        """Values of the sensitive column that `gls` reconstructs, per attacked client."""
        return self._timed("gls", lambda _, c: self._decode(c))

    @functools.cached_property
    def explanations(self) -> list[Array]:
        """Of the optima, which all other models are compared with."""
        return [
            explained(self.federation, c, params, self.cell)
            for c, params in enumerate(self("optimum"))
        ]

    def _timed(self, method: str, one: Callable[[str, int], Any]) -> list[Any]:
        if method not in self._made:
            began = time.perf_counter()
            self._made[method] = jax.block_until_ready([one(method, c) for c in range(self.count)])
            self.seconds[method] = time.perf_counter() - began
        return self._made[method]

    def _checked(self, method: str, found: LocalModel) -> Any:
        """A model, what its fit left unexplained noted."""
        self.unexplained.setdefault(method, []).append(float(found.unexplained))
        return found.params

    def _decode(self, c: int) -> np.ndarray:
        federation, cell = self.federation, self.cell
        known, _ = federation.knowledge(c)
        settings = GLS(
            federation.training[c],
            orders=cell["orders"],
            passes=cell["passes"],
            drift=drift(cell),
            layers=cell["layers"] or None,
        )
        answer = gls(
            federation.model, self.seen(c, cell["decoded"]), known, self.key(c), settings=settings
        )
        return np.asarray(answer.values[0])

    def seen(self, c: int, count: int) -> Messages:
        """The first messages of a client."""
        return jax.tree.map(lambda a: a[:count], self.federation.messages[c])

    def key(self, c: int) -> Array:
        """Randomness of attacks on a client."""
        return jax.random.fold_in(self.federation.key, 1000 + c)

    def _one(self, method: str, c: int) -> Any:
        federation, cell, messages = self.federation, self.cell, self.federation.messages[c]
        if method == "global":
            return federation.final
        if method == "last":
            return last_returned(messages)
        if method == "extrapolated":
            return extrapolated(messages)
        if method == "affine":
            return affine_optimum(messages)
        if method.startswith("network"):
            mapping = Mapping(
                fit_steps=cell["fit_steps"],
                search_steps=cell["search_steps"],
                scaling="literal" if method == "network_literal" else "normalised",
            )
            return self._checked(method, mapping_network(messages, self.key(c), settings=mapping))
        if method == "pseudo_records":
            rows = federation.parts[c]
            settings = PseudoRecords(
                federation.training[c],
                local_records=len(rows),
                records=cell["pseudo"],
                steps=cell["pseudo_steps"],
                finish=cell["finish"],
            )
            shape = federation.data.x.shape[1:]
            return self._checked(
                method,
                pseudo_records(federation.model, messages, self.key(c), shape, settings=settings),
            )
        if method == "records":
            column = federation.data.column(federation.data.sensitive or 0)
            x = federation.data.x[federation.parts[c]].copy()
            guess = self.attributes[c]
            x[:, list(column.positions)] = np.where(
                guess[:, None] < 0, np.nan, column.values[guess]
            )
            other = dataclasses.replace(federation, key=self.key(c))  # batch orders are not known
            return optimum(other, c, cell["optimum_steps"], x)
        if method == "isolated":
            return isolated(federation, c, cell["rounds"])
        return optimum(federation, c, cell["optimum_steps"])


def run(jobs: Sequence[Job], data_dir: str | None) -> Iterator[list[Outcome]]:
    """Run jobs of equal signature and seed: one federation, from which all methods work."""
    cell, seed = jobs[0].cell, jobs[0].seed
    federation = federate(cell, data_dir, seed)
    models = Reconstructions(federation, cell)
    for method in dict.fromkeys(job.method for job in jobs):
        wanted = [job for job in jobs if job.method == method]
        asked = {name for job in wanted for name in measures(job.cell)}
        if method == "records":  # made from what `gls` finds, which is timed apart
            _ = models.attributes
        began = time.perf_counter()
        found = dict(_measure(method, models, cell, asked))
        shared = {
            "run_s": models.seconds.get(method, time.perf_counter() - began) / models.count,
            "selection": "oracle" if method == "best_round" else "none",
            "device": jax.devices()[0].device_kind,
            "dtype": "float64" if method in ("gls", "records") and drift(cell) else "float32",
            "note": federation.data.note,
            "images": models.pictures.get(method, {}) if "samples" in asked else {},
        }
        detail: dict[str, Value] = {
            "simulation_s": round(federation.seconds, 1),
            **_spent(federation, cell),
        }
        if method in models.unexplained:
            detail["unexplained"] = round(mean(models.unexplained[method]), 3)
        yield [
            Outcome(
                job,
                metric,
                value,
                majority=majority,
                chance=chance,
                **shared | {"detail": detail | _scored(metric, models)},
            )
            for job in wanted
            for metric, (value, majority, chance) in found.items()
            if WANTED[metric] in (*measures(job.cell), "always")
        ]


WANTED = {
    **{
        "zest": "zest",
        "attribute_accuracy": "attribute",
        "source_accuracy": "source",
        "ssim": "samples",
    },
    "strict_source_accuracy": "source",
    **{"train_accuracy": "always", "mape": "always", "train_loss": "always"},
}
"""The measure that each metric belongs to."""


def _scored(metric: str, models: Reconstructions) -> dict[str, Value]:
    """How many records a mean of proportions is worth."""
    limit = models.cell["targets"] or None if metric.endswith("source_accuracy") else None
    return {
        "scored_records": equivalent_count(
            [len(rows[:limit]) for rows in models.federation.parts[: models.count]]
        )
    }


def _spent(federation: Federation, cell: Cell) -> dict[str, Value]:
    """Epsilon of the clients with most and with fewest records, where training is private."""
    privacy = federation.training[0].privacy
    if privacy is None:
        return {}
    sizes = [len(rows) for rows in federation.parts]
    found = {
        name: epsilon_of(federation, cell, sizes.index(choose(sizes)))
        for name, choose in (("most", max), ("fewest", min))
    }
    return {f"epsilon_of_{name}_records": round(value, 3) for name, value in found.items()}


def _measure(
    method: str, models: Reconstructions, cell: Cell, asked: set[str]
) -> Iterator[tuple[str, Score]]:
    """Metric, and value with majority and chance, of one method."""
    federation, count = models.federation, models.count
    if method in WITHOUT_MODEL:
        yield from _without_model(method, models, cell)
        return
    params = models(method)
    yield from fit(federation, params)
    if "zest" in asked:
        theirs = [explained(federation, c, params[c], cell) for c in range(count)]
        similarities = [
            float(zest_similarity(*pair)) for pair in zip(theirs, models.explanations, strict=True)
        ]
        yield "zest", (mean(similarities), None, None)
    if "attribute" in asked:
        scores, majorities = [], []
        for c in range(count):
            known, truth = federation.knowledge(c)
            scores.append(
                accuracy_of(np.asarray(infer_from_model(federation.model, params[c], known)), truth)
            )
            majorities.append(majority_of(truth))
        yield "attribute_accuracy", (mean(scores), mean(majorities), 0.5)
    if "source" in asked and method != "global":
        rows, holders = targets(federation, cell)
        x, y = jnp.asarray(federation.data.x[rows]), jnp.asarray(federation.data.y[rows])
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
        found = np.asarray(least_loss(federation.model, stacked, x, y))
        yield from source_scores([found], rows, holders, federation)
    if "samples" in asked:
        steps, rate = cell["inversion_steps"], cell["inversion_rate"]
        inversion = Inversion(steps, rate if method not in ("global", "last") else rate / 10)
        scores, greys = [], []
        for c in range(count):
            key = models.key(c) if cell["batch_norm"] else None
            images, _ = invert_model(
                federation.model, params[c], federation.data.x.shape[1:], key, settings=inversion
            )
            scores.append(likeness(federation, c, images))
            greys.append(likeness(federation, c, jnp.full_like(images, inversion.start)))
            if c == 0:
                x, y = (
                    federation.data.x[federation.parts[c]],
                    federation.data.y[federation.parts[c]],
                )
                shown = np.unique(y)[:SHOWN]
                firsts = np.stack([x[np.flatnonzero(y == k)[0]] for k in shown])
                caption = f"a record of each class, and what the model of client 0 ({method}) takes for the class"
                models.pictures[method] = {caption: strips(firsts, np.asarray(images)[shown])}
        yield "ssim", (mean(scores), None, mean(greys))


def _without_model(method: str, models: Reconstructions, cell: Cell) -> Iterator[tuple[str, Score]]:
    federation, count = models.federation, models.count
    if method == "invert_gradient":
        found, greys = zip(*(_inverted(models, c, cell) for c in range(count)), strict=True)
        yield "ssim", (mean(found), None, mean(greys))
        return
    if WITHOUT_MODEL[method] == "source":
        rows, holders = targets(federation, cell)
        yield from source_scores(_sources(method, models, cell, rows), rows, holders, federation)
        return
    truths = [federation.knowledge(c)[1] for c in range(count)]
    majority = mean([majority_of(truth) for truth in truths])
    if method == "majority":
        guesses = [
            np.full(
                len(truth), int(np.argmax(np.asarray(federation.knowledge(c)[0].columns[0].prior)))
            )
            for c, truth in enumerate(truths)
        ]
    elif method == "gls":
        guesses = models.attributes
    else:
        guesses = [_cosine(models, c, cell) for c in range(count)]
    yield (
        "attribute_accuracy",
        (mean([accuracy_of(*pair) for pair in zip(guesses, truths, strict=True)]), majority, 0.5),
    )


def _sources(
    method: str, models: Reconstructions, cell: Cell, rows: np.ndarray
) -> Sequence[np.ndarray]:
    """Clients named for records, without a model `[records]`; of `best_round` one answer for each, the best of which counts."""
    federation = models.federation
    x, y = jnp.asarray(federation.data.x[rows]), jnp.asarray(federation.data.y[rows])
    if method == "decode_sources":
        sizes = [len(p) for p in federation.parts[: models.count]]
        seen = [models.seen(c, cell["source_messages"]) for c in range(models.count)]
        training = federation.training[int(np.argmax(sizes))]
        return [
            np.asarray(
                decode_sources(federation.model, seen, sizes, x, y, training=training).sources
            )
        ]
    returned = jax.tree.map(
        lambda *leaves: jnp.stack(leaves, 1), *(m.returned for m in federation.messages)
    )
    if method.startswith("drop"):
        found = largest_drop(federation.model, returned, x, y)
        return [by_discriminants(found, x) if method == "drop_lda" else np.asarray(found)]
    vote = majority_of_rounds(federation.model, returned, x, y)
    return [np.asarray(vote.sources)] if method == "vote" else list(np.asarray(vote.rounds))


def _cosine(models: Reconstructions, c: int, cell: Cell) -> np.ndarray:
    known, _ = models.federation.knowledge(c)
    settings = CosMatching(
        steps=cell["cos_steps"], virtual=Virtual(training=models.federation.training[c])
    )
    found = cos_matching(
        models.federation.model,
        models.seen(c, cell["matched"]),
        known,
        models.key(c),
        settings=settings,
    )
    return np.asarray(found.values[0])


def _inverted(models: Reconstructions, c: int, cell: Cell) -> tuple[float, float]:
    """Likeness of images out of one update to the client's records, each matched with one of its own; and of grey ones."""
    federation = models.federation
    batch = min(int(cell["batch_size"]), len(federation.parts[c]))
    settings = GradientInversion(steps=cell["gradient_steps"])
    shape = federation.data.x.shape[1:]
    images, _ = invert_gradient(
        federation.model, models.seen(c, 1), shape, batch, models.key(c), settings=settings
    )
    records = jnp.asarray(federation.data.x[federation.parts[c]])
    found, places = matched_likeness(images, records)
    if c == 0:
        caption = "images out of the first update of client 0, and below each the record it is matched with"
        models.pictures["invert_gradient"] = {
            caption: strips(np.asarray(images)[:SHOWN], np.asarray(records)[places[:SHOWN]])
        }
    return found, matched_likeness(jnp.full_like(images, 0.5), records)[0]
