"""What of a victim's attributes can be guessed without any message."""

import jax
import jax.numpy as jnp
import numpy as np

from attacks import Knowledge, impute
from benchmarks.harness.engines import once
from benchmarks.scenarios.federations import Federation
from benchmarks.scenarios.splits import public_rows, split
from benchmarks.scenarios.streams import Stream, stream
from benchmarks.scenarios.victims import (
    VictimSettings,
    attributes_of,
    records_of,
    unknown_column,
)

MOST_PUBLIC = 2000
"""Records of other clients from which a client's are guessed, at most."""


def imputed_in(federation: Federation, c: int) -> float | None:
    """How much of client `c`'s sensitive column is named by its other columns and its labels,
    learned on other clients' records; None if there are none."""
    held = set(federation.parts[c].tolist())
    others = [i for rows in federation.parts for i in rows.tolist() if i not in held]
    if not others:
        return None
    key = jax.random.fold_in(stream(federation.key, Stream.IMPUTATION), c)
    order = np.asarray(jax.random.permutation(key, len(others)))[:MOST_PUBLIC]
    public, (knowledge, truth) = np.asarray(others)[order], federation.knowledge(c)
    (values,) = impute(knowledge, federation.data.x[public], federation.data.y[public])
    return float(np.mean(values == truth))


@once
def imputed(name: str, data_dir: str | None, settings: VictimSettings, seed: int) -> float:
    """How much of a victim's attributes is named by its other columns and, if it is known, the
    label, learned on the seed's public records: the mean accuracy over its attributes."""
    data = records_of(settings, name, data_dir)
    rows = split(data, settings.records, settings.participants, seed).victim[: settings.known]
    public = public_rows(data, seed)
    attributes = attributes_of(data, settings, seed)
    columns = tuple(unknown_column(data, attribute, public) for attribute in attributes)
    labels = jnp.asarray(data.y[rows]) if settings.labels == "known" else None
    knowledge = Knowledge(jnp.asarray(data.x[rows]), labels, columns)
    values = impute(knowledge, data.x[public], data.y[public])
    truth = [data.values_of(attribute)[rows] for attribute in attributes]
    return float(np.mean([v == t for v, t in zip(values, truth, strict=True)]))
