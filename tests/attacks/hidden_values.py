"""Do values that noise hides count as told, and how near is `resolved` to what is read?

`python -m tests.attacks.hidden_values 10` prints, for each kind, of so many clients: the share of
values read, the share that `resolved` expects, and how answers end.
"""

import dataclasses
import sys

import jax
import numpy as np
import optax

from attacks import GLS, ClosedForm, Status, closed_form, decode_adam, gls
from jaxfl import DPSGD, LocalTraining, Upload
from tests.attacks.right_recipes import BATCHES, STEP, Kind, client, quietly

NOISY = {noise: Upload(clip=1.0, noise_multiplier=noise) for noise in (1e-4, 3e-4, 5e-4, 1e-3)}
KINDS = {
    **{
        f"closed_form, noise of {noise} on what is sent": Kind(
            dataclasses.replace(STEP, plugins=(upload,))
        )
        for noise, upload in NOISY.items()
    },
    **{
        f"closed_form, {records} records, rate {rate}": Kind(LocalTraining(rate), records=records)
        for records, rate in ((300, 0.1), (300, 1e-5), (300, 1e-6), (1000, 1e-4), (1000, 1e-5))
    },
    **{
        f"closed_form, models of 16 bits, {records} records, rate {rate}": Kind(
            LocalTraining(rate), records=records, bits=16
        )
        for records, rate in ((80, 1e-2), (80, 3e-3), (300, 0.1), (300, 0.03))
    },
    **{
        f"decode_adam, {records} records, rate {rate}": Kind(
            LocalTraining(rate, optimizer=optax.adam), records=records
        )
        for records, rate in ((80, 1e-6), (300, 1e-6))
    },
    **{
        f"gls, batches of 16, DP-SGD's noise {noise}": Kind(
            LocalTraining(0.1, batch_size=16, plugins=(DPSGD(1.0, noise),))
        )
        for noise in (0.03, 0.1, 0.5)
    },
    **{
        f"gls, batches of 50 of 300 records, rate {rate}": Kind(
            dataclasses.replace(BATCHES, learning_rate=rate, batch_size=50), records=300
        )
        for rate in (0.1, 1e-6)
    },
}
"""By what it is called."""


def answered(name, seed):
    """Share read, share expected and status of a client's answer."""
    kind = KINDS[name]
    *seen, truth = client(kind, seed)
    if name.startswith("gls"):
        settings = GLS(kind.training, orders=24)
        answer = quietly(gls, *seen, jax.random.key(seed), settings=settings)
    elif name.startswith("decode_adam"):
        answer = quietly(decode_adam, *seen)
    else:
        noise = sum(plugin.noise_multiplier for plugin in kind.training.plugins)
        settings = ClosedForm(kind.training.learning_rate, noise=noise)
        answer = quietly(closed_form, *seen, settings=settings)
    read = np.mean(np.asarray(answer.values[0]) == truth[0])
    return read, (1 + float(answer.fit.resolved)) / 2, Status(int(answer.status))


def main(clients, part=""):
    """Print a row for each kind whose name has a part."""
    for name in (name for name in KINDS if part in name):
        read, expected, statuses = zip(
            *(answered(name, seed) for seed in range(clients)), strict=True
        )
        counts = {str(s.name): statuses.count(s) for s in Status if s in statuses}
        print(
            f"{name}: {np.mean(read):.3f} read, {np.nanmean(expected):.3f} expected, {counts}",
            flush=True,
        )
        jax.clear_caches()  # each kind has programs of its own, and a process bears so many


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
