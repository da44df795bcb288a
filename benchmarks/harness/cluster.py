"""Groups spread over a Ray cluster."""

import dataclasses
import importlib
import logging
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.harness.devices import prepare_devices
from benchmarks.harness.engines import Run, with_room
from benchmarks.harness.jobs import Group, Job, Outcome

SECONDS = 5
"""That a cluster has to answer."""
RETRIES = 3
"""How often a group begins again whose machine or process died."""


def on_ray(
    run: Run, groups: Sequence[Group], address: str | None = None
) -> Iterator[tuple[Group, Sequence[Outcome]]]:
    """Groups spread over a Ray cluster, one accelerator each if there are any. Outcomes arrive
    method by method; a group whose machine dies begins again elsewhere, and fails as a row does if
    that happens too often.

    Args:
      run: from a group to its outcomes.
      groups: what is to be run.
      address: of the cluster, as "10.0.0.1:6379"; None for the one at `RAY_ADDRESS`, else a local
        one.

    Raises:
      ValueError: if Ray is not installed.
      ConnectionError: if no cluster answers at the address.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ValueError("engine='ray' needs Ray: pip install 'jaxfl[cluster]'") from error
    if address is not None:
        _check_answers(address)
    ray.init(address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    accelerators = 1 if ray.cluster_resources().get("GPU", 0) else 0

    @ray.remote(num_gpus=accelerators, num_returns="streaming", max_retries=RETRIES)
    def remote(group: Group) -> Iterator[Sequence[Outcome]]:
        small = group.jobs[0].cell.size == "small"
        # One device a worker, whose programs are kept for the other workers.
        prepare_devices(cores=False, soon=small)
        yield from with_room(run, group)

    pending = {remote.remote(group): _Pending(group) for group in groups}
    while pending:
        (ready,), _ = ray.wait(list(pending), num_returns=1)
        of = pending[ready]
        try:
            outcomes = of.own(ray.get(next(ready)))
        except StopIteration:
            del pending[ready]
            continue
        except ray.exceptions.RayError as error:
            del pending[ready]
            outcomes = of.lost(error)
        if outcomes:
            yield of.group, outcomes


def _check_answers(address: str) -> None:
    """Raise `ConnectionError` unless someone listens: Ray itself tries for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConnectionError(f"no Ray cluster answers at address={address!r} ({error})") from error


@dataclasses.dataclass
class _Pending:
    """A group that runs somewhere, and which of its jobs have rows."""

    group: Group
    done: set[str] = dataclasses.field(default_factory=set)

    def own(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Outcomes of this process's jobs: what came from another holds copies."""
        jobs: dict[str, Job] = {job.key: job for job in self.group.jobs}
        self.done |= {outcome.job.key for outcome in outcomes}
        return [dataclasses.replace(o, job=jobs[o.job.key]) for o in outcomes]

    def lost(self, error: Exception) -> list[Outcome]:
        """Failures of the jobs that have no rows."""
        status = f"{type(error).__name__}: {error}".splitlines()[0]
        left: list[Any] = [job for job in self.group.jobs if job.key not in self.done]
        return [Outcome(j, j.cell.experiment.metrics[0].name, None, status=status) for j in left]
