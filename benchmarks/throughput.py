"""How fast are the attacks here: `python -m benchmarks.throughput [--beside "COMMAND"]`.

Times warm attacks on random data (MLP features-hidden-classes, five rounds), compile time apart: `cos` in milliseconds
per iteration, `closed_form` as a whole. `--beside` names another program that times one iteration of the same attack and
prints one line of JSON with "ms_min" and "ms_median"; it runs in turn with ours and the ratio of the minima is printed,
for `closed_form` against `--iterations` of the other's. Fix the number of cores from outside (`taskset -c 1`).
"""

import dataclasses
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from attacks.attribute_reconstruction import CosMatching, Knowledge, binary_column, cos_matching
from attacks.candidate_decoding import ClosedForm, closed_form
from jaxfl import Federated, LocalTraining, mlp, simulate, stack_clients


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Time attack iterations on this machine."""

    records: tuple[int, ...] = (100, 1000)
    """Sizes of the victim."""
    features: int = 600
    """Inputs of the model."""
    hidden: int = 128
    """Width of its hidden layer."""
    classes: int = 100
    """Its classes."""
    rounds: int = 5
    """Messages matched."""
    steps: int = 50
    """Iterations per timed attack."""
    repeats: int = 6
    """Timed attacks."""
    iterations: int = 300
    """Iterations of the other program that make up a whole attack."""
    beside: str | None = None
    """Another program's command; {records} is replaced by the size."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds per iteration, and seconds to compile."""

    best: float
    median: float
    compile_s: float


def time_attacks(arguments: Arguments, records: int) -> dict[str, Timing]:
    """Time the attacks on a victim of random binary records."""
    key = jax.random.key(0)
    x = jax.random.bernoulli(key, 0.2, (records, arguments.features)).astype(jnp.float32)
    y = jax.random.randint(key, (records,), 0, arguments.classes)
    model = mlp(arguments.features, (arguments.hidden,), arguments.classes)
    federated = Federated(rounds=arguments.rounds, training=LocalTraining(0.1))
    messages = simulate(model, model.init(key), stack_clients([(x, y)]), key, federated).messages(0)
    knowledge = Knowledge(x, y, (binary_column(arguments.features // 5, 0.2),))
    settings = CosMatching(steps=arguments.steps)

    def cos() -> object:
        return cos_matching(model, messages, knowledge, key, settings=settings).values

    def decoding() -> object:
        return closed_form(model, messages, knowledge, settings=ClosedForm(0.1)).reconstruction.values

    return {
        "cos, an iteration": _time(cos, arguments.repeats, arguments.steps),
        "closed_form, whole": _time(decoding, arguments.repeats, 1),
    }


def _time(attack: Callable[[], object], repeats: int, steps: int) -> Timing:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(attack())
        times.append(time.perf_counter() - start)
    warm = 1e3 * np.asarray(times[1:]) / steps
    return Timing(float(warm.min()), float(np.median(warm)), times[0] - float(np.median(times[1:])))


def time_other(command: str, records: int) -> Timing:
    """Run another program and read the last line it prints. Raises `ValueError` if that is no such line."""
    words = [word.replace("{records}", str(records)) for word in shlex.split(command)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ValueError(f"--beside {command!r} cannot be run ({error})") from error
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
        return Timing(float(found["ms_min"]), float(found["ms_median"]), 0.0)
    except (IndexError, KeyError, ValueError) as error:
        why = done.stderr.strip().splitlines()[-1:] or [repr(error)]
        raise ValueError(f"--beside {command!r} printed no JSON line with ms_min and ms_median ({why[0]})") from error


def main() -> int:
    """The command line. Returns the exit code."""
    arguments = tyro.cli(Arguments, prog="python -m benchmarks.throughput")
    title = f"milliseconds, {arguments.rounds} rounds, {jax.devices()[0].device_kind}, jax {jax.__version__}"
    table = Table(title=title)
    for name in ("attack", "records", "min", "median", "compile s", "beside: min", "median", "ratio of minima"):
        table.add_column(name, justify="left" if name == "attack" else "right", no_wrap=True)
    try:
        for records in arguments.records:
            ours = time_attacks(arguments, records)
            other = time_other(arguments.beside, records) if arguments.beside else None
            if other:  # ours on both sides of theirs, in case the machine's speed drifts
                again = time_attacks(arguments, records)
                ours = {name: dataclasses.replace(t, best=min(t.best, again[name].best)) for name, t in ours.items()}
            for name, t in ours.items():
                cells = [name, str(records), f"{t.best:.2f}", f"{t.median:.2f}", f"{t.compile_s:.1f}"]
                if other:
                    times = arguments.iterations if name.endswith("whole") else 1
                    cells += [f"{times * v:.2f}" for v in (other.best, other.median)] + [f"{times * other.best / t.best:.1f}"]
                table.add_row(*cells)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
