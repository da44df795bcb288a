"""Every method of some experiments once, at the tiny size, in a process whose CPU cores are
devices, as commands have it: `python -m tests.benchmarks.on_cores EXPERIMENT ...`. Run by
`test_cores.py`."""

import dataclasses
import sys

import jax

from benchmarks.harness.devices import prepare_devices
from benchmarks.harness.jobs import group
from benchmarks.harness.runner import run_safely
from benchmarks.suites.specimens import jobs_of


def main(experiments: list[str]) -> None:
    """Two seeds at once, where an experiment takes several; a line of statuses for each method."""
    prepare_devices()
    print(f"devices: {len(jax.devices())}", flush=True)
    for job in jobs_of("tiny"):
        if job.cell.experiment.name not in experiments:
            continue
        seeds = (0, 1) if job.cell.experiment.batched else (0,)
        jobs = [dataclasses.replace(job, seed=seed) for seed in seeds]
        batches = [batch for each in group(jobs) for batch in run_safely(each, None)]
        statuses = dict.fromkeys(str(outcome.status) for batch in batches for outcome in batch)
        print(job.cell.experiment.name, job.method, "; ".join(statuses), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
