"""How long a job of `local_model_experiment` takes and how much it holds, estimated from operation counts."""

import itertools
from typing import Any

from attacks.attributes.candidate_decoding.gls import KEPT
from benchmarks.jobs import Cost, Job
from benchmarks.local_model_experiment import applies, drift, measured, measures

SHAPES = {
    "adult_bachelors": (53, 2, 1211),
    "flight_airlines": (34, 1, 800),
    "leaf_synthetic": (100, 5, 2000),
    "leaf_milder": (100, 5, 2000),
    "att_faces": (5600, 40, 165),
}
"""Features, outputs, and records per client."""

COMPILE_SECONDS = {
    **{
        "simulation": 2.0,
        "network": 3.0,
        "network_literal": 3.0,
        "pseudo_records": 4.0,
        "optimum": 2.0,
        "records": 2.0,
    },
    **{"gls": 6.0, "cos": 3.0, "decode_sources": 3.0, "vote": 1.0, "invert_gradient": 4.0},
}
"""Per program, read off runs on two CPU cores."""


def cost(job: Job) -> Cost:
    """Estimated cost of a job."""
    cell = job.cell
    features, outputs, records = SHAPES[cell.dataset]
    if cell.dataset == "att_faces":
        features = int(str(cell["side"]).split(",")[0]) * int(str(cell["side"]).split(",")[1])
    records = min(records, cell["records"] or records)
    widths = (features, *(int(width) for width in str(cell["hidden"]).split(",") if width), outputs)
    weights = sum(a * b for a, b in itertools.pairwise(widths))
    clients, steps = cell["attacked"], cell["rounds"] // cell["every"]
    batch = records if cell["batch_size"] == "full" else min(cell["batch_size"], records)
    epoch = 6.0 * weights * records
    train = cell["optimum_steps"] * 6.0 * weights * batch
    looked_at = widths[: cell["layers"] + 1] if cell["layers"] else widths
    gram = 2.0 * (2 * records) ** 2 * 2 * sum(looked_at)
    # Simulated on both candidates of a bit; inner products are kept between passes.
    simulated = cell["orders"] * (2 * epoch * cell["epochs"] + 8.0 * weights * records)
    # With drift, in 64 bits: rows of noise for every record, products of changes beside those of both candidates' gradients.
    pieces, width = drift(cell), 2 if drift(cell) else 1
    rows, products = (1.0 + pieces) * records, pieces / 2 + pieces**2 / 4
    solved = rows**3 / 3 + rows**2 * records + 2 * rows * records**2
    decode = (
        width
        * cell["decoded"]
        * (cell["passes"] * (simulated + 1.5 * solved + products * gram) + gram)
    )
    held = 4.0 * width * min(cell["decoded"] * (2 * records) ** 2, KEPT)
    kept = held if job.method in ("gls", "records") else 0.0
    literal = 6.0 * 2 * weights * 32 * (cell["fit_steps"] * steps + cell["search_steps"])
    everyone = (cell["targets"] or records) * clients
    work = {
        "network_literal": literal,
        "network": 6.0 * 2 * steps * 32 * (cell["fit_steps"] * steps + cell["search_steps"]),
        "pseudo_records": 4 * 18.0 * weights * cell["pseudo"] * cell["pseudo_steps"]
        + 6.0 * weights * cell["pseudo"] * cell["finish"],
        "records": train,
        "optimum": train,
        "isolated": cell["rounds"] * cell["epochs"] * epoch,
        "gls": decode,
        "cos": cell["cos_steps"]
        * cell["matched"]
        * (18.0 * weights * records + 2.0 * records**2 * widths[1]),
        "decode_sources": (
            cell["source_messages"] * 4.0 * everyone**2 * sum(widths) + everyone**3 / 3
        )
        / clients,
        "drop": steps * 2.0 * weights * everyone,
        "drop_lda": steps * 2.0 * weights * everyone + 2.0 * everyone * features**2,
        "vote": steps * 2.0 * weights * everyone,
        "invert_gradient": cell["gradient_steps"] * 18.0 * weights * batch,
    }
    operations: dict[Any, float] = {
        (measured(cell), job.seed): cell["rounds"] * cell["epochs"] * epoch * cell["clients"]
    }
    operations[measured(cell), job.seed, job.method] = clients * work.get(job.method, 0.0)
    if job.method == "records" and applies(cell, "gls"):
        operations[measured(cell), job.seed, "gls"] = clients * work["gls"]
    if "zest" in measures(cell):
        operations[measured(cell), job.seed, "optimum"] = clients * work["optimum"]
        operations[measured(cell), job.seed, job.method, "zest"] = (
            clients * 4.0 * cell["zest_records"] * cell["zest_masks"] * weights
        )
    if "samples" in measures(cell):
        operations[measured(cell), job.seed, job.method, "samples"] = (
            clients * cell["inversion_steps"] * 6.0 * weights * outputs
        )
    shapes = (
        cell.dataset,
        *(
            cell[name]
            for name in ("hidden", "batch_norm", "records", "batch_size", "epochs", "defense")
        ),
    )
    compiling = {("simulation", *shapes): COMPILE_SECONDS["simulation"]}
    compiling[job.method, *shapes] = COMPILE_SECONDS.get(job.method, 0.5)
    return Cost(operations, compiling, 8.0 * weights * steps * clients + kept)
