"""Valid calls of `jaxfl.recordings`, and of what reads the records behind a recording."""

from pathlib import Path

import jaxfl
from jaxfl import datasets, recordings

RUN = Path(__file__).parents[1] / "recordings" / "pytorch"


def recorded():
    model = jaxfl.mlp(8, (12,), 2)
    arrays = recordings.read_arrays(RUN / "round-0-client-ana.npz")
    back = recordings.read_arrays(RUN / "round-1-client-ana.npz")
    found = {"layers": {"0": "Dense_0"}, "transposed": True}
    files = {"sent": "round-{round}-sent", "returned": "round-{round}-client-{client}"}
    return {
        datasets.read_inputs: {
            "path": Path(__file__).with_name("inputs.csv"),
            "target": "income",
            "client": "sex",
            "drop": (),
            "separator": ",",
            "text_encoding": "utf-8",
        },
        recordings.read_arrays: {"path": RUN / "round-0-sent.safetensors"},
        recordings.layout_of: {"model": model, "arrays": arrays} | found,
        recordings.read_rounds: {"folder": RUN, "model": model, "after": None}
        | files
        | found
        | {"returned_as": "models"},
        recordings.messages_from: {
            "model": model,
            "received": [arrays, back],
            "returned": [back, arrays],
            "rounds": [0, 1],
            "returned_as": "models",
        }
        | found,
    }
