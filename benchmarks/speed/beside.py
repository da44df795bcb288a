"""Attacks and rounds of training, beside another program that times the same.

The other program prints one line of JSON with "ms_min" and "ms_median", or "s_min" and "s_median"
in seconds; it runs in turn with ours and the ratio of the minima is printed, for `closed_form`
against `iterations` of the other's.
"""

import dataclasses
import json
import math
import shlex
import subprocess
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from attacks import (
    GLS,
    ClosedForm,
    CosMatching,
    FitWarning,
    Knowledge,
    binary_column,
    closed_form,
    cos_matching,
    gls,
)
from benchmarks.harness.operations import operations
from benchmarks.speed.machine import Limits, measure_limits
from jaxfl import Federated, Keep, LocalTraining, mlp, simulate, stack_clients
from jaxfl.domains import Count


@dataclasses.dataclass(frozen=True)
class Duration:
    """Milliseconds, NaN where the machine's noise hides them, and seconds to compile."""

    best: float
    median: float
    compile_s: float = 0.0
    others: int = 1
    """How many of the other program's timed parts do the work of one of ours."""
    operations: float = math.nan
    """Operations of a timed part, counted from its equations."""
    dtype: str | None = "float32"
    """Type of the products; None where they are of two types."""

    def share(self, limits: Limits) -> float:
        """Share of what a product of square matrices of this type reaches; NaN where types
        differ."""
        rate = math.nan if self.dtype is None else limits.flops[self.dtype]
        return self.operations / (self.best / 1e3) / rate


@dataclasses.dataclass(frozen=True)
class Attacks:
    """Time iterations of `cos`, and `closed_form` as a whole."""

    records: tuple[Count, ...] = (100, 1000)
    """Sizes of the victim."""
    features: Count = 600
    """Inputs of the model."""
    hidden: tuple[Count, ...] = (128,)
    """Widths of its hidden layers."""
    classes: Count = 100
    """Its classes."""
    rounds: Count = 5
    """Messages matched."""
    steps: Count = 50
    """Iterations per timed attack."""
    repeats: Count = 6
    """Timed attacks."""
    iterations: Count = 300
    """Iterations of the other program that make up a whole attack."""
    beside: str | None = None
    """Another program's command; {records} is replaced by the size."""

    def time(self, records: int) -> dict[str, Duration]:
        """Both attacks on a victim of random binary records, one step a round."""
        x_key, y_key, init_key, run_key, key = jax.random.split(jax.random.key(0), 5)
        x = jax.random.bernoulli(x_key, 0.2, (records, self.features)).astype(jnp.float32)
        y = jax.random.randint(y_key, (records,), 0, self.classes)
        model = mlp(self.features, self.hidden, self.classes)
        federated = Federated(rounds=self.rounds, training=LocalTraining(0.1))
        messages = simulate(
            model, model.init(init_key), stack_clients([(x, y)]), run_key, federated
        ).messages(0)
        knowledge = Knowledge(x, y, (binary_column(self.features // 5, 0.2),))

        def match(steps: int) -> Duration:
            def work(seen: Any) -> Any:
                settings = CosMatching(steps=steps)
                return cos_matching(model, seen, knowledge, key, settings=settings).values

            return _time(work, messages, self.repeats, 1)

        def decode(seen: Any) -> Any:
            return closed_form(model, seen, knowledge, settings=ClosedForm(0.1)).values

        return {
            "cos, an iteration": _between(match(self.steps), match(2 * self.steps), self.steps),
            "closed_form, whole": dataclasses.replace(
                _time(decode, messages, self.repeats, 1), others=self.iterations, dtype="float64"
            ),
        }


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Time a round of federated averaging."""

    records: tuple[Count, ...] = (2000,)
    """Records of a client."""
    clients: Count = 10
    """Clients."""
    features: Count = 100
    """Inputs of the model."""
    hidden: tuple[Count, ...] = (256, 256, 256)
    """Widths of its hidden layers."""
    classes: Count = 5
    """Its classes."""
    batch_size: Count = 512
    """Records per step; a round is one epoch."""
    rounds: Count = 10
    """Rounds per timed run."""
    clients_per_round: Count | None = None
    """Clients that take part in a round; all if not said."""
    devices: Count = 1
    """Devices that share them. A CPU counts as JAX_NUM_CPU_DEVICES devices."""
    rounds_on_device: Count | None = None
    """Rounds whose records are on the device at a time; everyone's records if not said."""
    repeats: Count = 6
    """Timed runs."""
    beside: str | None = None
    """Another program's command; {records} is replaced by the size."""

    def time(self, records: int) -> dict[str, Duration]:
        """Rounds of clients with random records. Raises `ValueError` on more devices than there
        are."""
        here = jax.devices()
        if self.devices > len(here):
            raise ValueError(f"devices={self.devices} are more than the {len(here)} there are")
        init_key, key = jax.random.split(jax.random.key(0))
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.clients, records, self.features), np.float32)
        y = rng.integers(0, self.classes, (self.clients, records))
        model = mlp(self.features, self.hidden, self.classes)
        held = self.rounds_on_device is not None
        clients = stack_clients(list(zip(x, y, strict=True)), on_host=held)
        params = model.init(init_key)
        federated = Federated(
            rounds=self.rounds,
            training=LocalTraining(0.01, batch_size=self.batch_size),
            clients_per_round=self.clients_per_round,
            devices=None if self.devices == 1 else tuple(here[: self.devices]),
            rounds_on_device=self.rounds_on_device,
            keep=Keep(clients=()),
        )

        def work(start: Any) -> Any:
            return simulate(model, start, clients, key, federated).params

        # Blocks of rounds are programs of their own, which are not counted.
        return {"simulate, a round": _time(work, params, self.repeats, self.rounds, not held)}


@dataclasses.dataclass(frozen=True)
class Messages:
    """Time `gls`, per message it reads."""

    records: tuple[Count, ...] = (1646,)
    """Sizes of the victim."""
    features: Count = 53
    """Inputs of the model."""
    hidden: tuple[Count, ...] = (256, 256, 256)
    """Widths of its hidden layers."""
    classes: Count = 2
    """Its classes."""
    batch_size: Count = 512
    """Records per local step; a round is one epoch."""
    rounds: Count = 10
    """Messages read at once."""
    orders: Count = 8
    """Simulated batch orders per message."""
    layers: Count = 1
    """Dense layers whose gradients are looked at, from the first."""
    repeats: Count = 3
    """Timed attacks."""
    beside: str | None = None
    """Another program's command; {records} is replaced by the size."""

    def time(self, records: int) -> dict[str, Duration]:
        """Decoding a random binary column of random records."""
        x_key, column_key, y_key, init_key, key = jax.random.split(jax.random.key(0), 5)
        x = jax.random.normal(x_key, (records, self.features))
        x = x.at[:, 0].set(jax.random.bernoulli(column_key, 0.5, (records,)))
        y = jax.random.randint(y_key, (records,), 0, self.classes)
        model, training = (
            mlp(self.features, self.hidden, self.classes),
            LocalTraining(0.01, batch_size=self.batch_size),
        )
        federated = Federated(rounds=self.rounds, training=training)
        run = simulate(model, model.init(init_key), stack_clients([(x, y)]), key, federated)
        messages, knowledge = run.messages(0), Knowledge(x, y, (binary_column(0, 0.5),))
        settings = GLS(training, orders=self.orders, layers=self.layers)

        def work(seen: Any) -> Any:
            answer = gls(model, seen, knowledge, key, settings=settings)
            return answer.values, answer.fit

        # Its verdict is in float64.
        timed = _time(work, messages, self.repeats, self.rounds)
        return {"gls, a message": dataclasses.replace(timed, dtype=None)}


def _time(
    work: Callable[[Any], Any], given: Any, repeats: int, parts: int, counted: bool = True
) -> Duration:
    """Time and operations per part of `work(given)`; what the first run takes longer is
    compiling."""
    times = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # of answers that nobody reads
        for _ in range(repeats + 1):
            start = time.perf_counter()
            jax.block_until_ready(work(given))
            times.append(time.perf_counter() - start)
    warm = 1e3 * np.asarray(times[1:]) / parts
    total = operations(jax.make_jaxpr(work)(given)).total if counted else math.nan
    return Duration(
        float(warm.min()),
        float(np.median(warm)),
        times[0] - float(np.median(times[1:])),
        operations=total / parts,
    )


def _between(short: Duration, long: Duration, parts: int) -> Duration:
    """Time per part of what a long run has more than a short one: without what either does once,
    such as judging its answer. NaN where a busy machine took longer for the short run."""
    best = (long.best - short.best) / parts
    counted = (long.operations - short.operations) / parts
    if best <= 0:
        return Duration(math.nan, math.nan, short.compile_s, operations=counted)
    median = max(best, (long.median - short.median) / parts)
    return Duration(best, median, short.compile_s, operations=counted)


def time_other(command: str, records: int) -> Duration:
    """Run another program and read the last line it prints. Raises `ValueError` if that is no such
    line."""
    try:
        words = [word.replace("{records}", str(records)) for word in shlex.split(command)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except (OSError, ValueError, IndexError) as error:  # no such program, no words
        raise ValueError(f"--beside {command!r} cannot be run ({error})") from error
    try:
        printed = json.loads(done.stdout.strip().splitlines()[-1])
        unit, scale = ("s", 1e3) if "s_min" in printed else ("ms", 1.0)
        return Duration(
            scale * float(printed[f"{unit}_min"]), scale * float(printed[f"{unit}_median"])
        )
    except (IndexError, KeyError, TypeError, ValueError) as error:
        why = done.stderr.strip().splitlines()[-1:] or [repr(error)]
        raise ValueError(
            f"--beside {command!r} printed no JSON line with ms_min and ms_median, or s_min and "
            f"s_median ({why[0]})"
        ) from error


Timed = list[tuple[str, int, Duration, Duration | None]]
"""What was timed, for how many records, ours, and the other program's."""


def timed(arguments: Attacks | Rounds | Messages, records: int) -> Timed:
    """Both programs' times at one size. Raises `ValueError` as `time_other`."""
    ours = arguments.time(records)
    other = None if arguments.beside is None else time_other(arguments.beside, records)
    if other:  # ours on both sides of theirs, in case the machine's speed drifts
        again = arguments.time(records)
        ours = {
            name: dataclasses.replace(t, best=float(np.fmin(t.best, again[name].best)))
            for name, t in ours.items()
        }
    return [(name, records, t, other) for name, t in ours.items()]


def line(
    name: str, records: int, ours: Duration, other: Duration | None, limits: Limits
) -> list[str]:
    """A line of the table."""
    share = ours.share(limits)
    cells = [name, str(records), f"{ours.best:.2f}", f"{ours.median:.2f}", f"{ours.compile_s:.1f}"]
    cells.append("" if math.isnan(ours.operations) else f"{ours.operations / 1e9:.3g}")
    cells.append("" if math.isnan(share) else f"{share:.0%}")
    if other is None:
        return cells
    theirs = ours.others * other.best, ours.others * other.median
    return cells + [f"{value:.2f}" for value in theirs] + [f"{theirs[0] / ours.best:.1f}"]


def show(arguments: Attacks | Rounds | Messages, console: Console) -> None:
    """Print the table. Raises `ValueError` as `time_other`."""
    measured = [each for records in arguments.records for each in timed(arguments, records)]
    limits = measure_limits()
    peak = ", ".join(f"{rate / 1e9:.3g} in {dtype}" for dtype, rate in limits.flops.items())
    device = f"{limits.device}, jax {jax.__version__}"
    title = f"milliseconds, {arguments.rounds} rounds, {device}; products, GFLOP/s: {peak}"
    table = Table(title=title)
    for name in (
        *("what", "records", "min", "median", "compile s", "GFLOP", "of product"),
        *("beside: min", "median", "ratio of minima"),
    ):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=True)
    for each in measured:
        table.add_row(*line(*each, limits))
    console.print(table)
