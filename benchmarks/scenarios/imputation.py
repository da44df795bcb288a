"""What of a victim's attributes can be guessed without any message."""

import jax.numpy as jnp
import numpy as np

from attacks import Knowledge, impute
from benchmarks.harness.engines import once
from benchmarks.scenarios.victims import (
    VictimSettings,
    attributes_of,
    public_rows,
    records_of,
    split,
    unknown_column,
)


@once
def imputed(name: str, data_dir: str | None, settings: VictimSettings, seed: int) -> float:
    """How much of a victim's attributes is named by its other columns and, if it is known, the
    label, learned on the seed's public records: the mean accuracy over its attributes."""
    data = records_of(settings, name, data_dir)
    rows, public = split(data, settings, seed).victim, public_rows(data, seed)
    attributes = attributes_of(data, settings, seed)
    columns = tuple(unknown_column(data, attribute, public) for attribute in attributes)
    labels = jnp.asarray(data.y[rows]) if settings.labels == "known" else None
    knowledge = Knowledge(jnp.asarray(data.x[rows]), labels, columns)
    values = impute(knowledge, data.x[public], data.y[public])
    truth = [data.values_of(attribute)[rows] for attribute in attributes]
    return float(np.mean([v == t for v, t in zip(values, truth, strict=True)]))
