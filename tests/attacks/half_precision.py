"""What half precision costs: `python -m tests.attacks.half_precision 20` prints, of so many clients
whose models travel in each type, how many records are read, how often a misfit is called, and how
often that nothing could be; of right recipes, and of wrong ones."""

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from attacks import (
    GLS,
    ClosedForm,
    CosMatching,
    FitWarning,
    Status,
    closed_form,
    cos_matching,
    gls,
)
from jaxfl import LocalTraining
from tests.attacks.wrong_recipes import RATE, RIGHT, WRONG, client


def travelled(messages, dtype):
    """Messages whose models were rounded on their way, both ways."""
    return jax.tree.map(
        lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, messages
    )


def attacks_on(model, messages, known, told, key):
    """Answers by method."""
    yield (
        "closed_form",
        closed_form(model, messages, known, settings=ClosedForm(RATE)),
    )
    yield "cos", cos_matching(model, messages, known, key, settings=CosMatching(steps=200))


def batches_on(model, messages, known, told, key):
    """Answers by method, of a client of batches."""
    yield "gls", gls(model, messages, known, key, settings=GLS(told, orders=24))


def costs(clients):
    """Print the table."""
    warnings.simplefilter("ignore", FitWarning)
    for told, answers in ((LocalTraining(RATE), attacks_on), (RIGHT[0], batches_on)):
        for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
            right, states = {}, {}
            for seed in range(clients):
                model, messages, known, truth = client("right", told, seed)
                seen = travelled(messages, dtype)
                for name, answer in answers(model, seen, known, told, jax.random.key(seed)):
                    right.setdefault(name, []).append(np.mean(answer.values[0] == truth))
                    states.setdefault(name, []).append(int(answer.status))
            for name, shares in right.items():
                said = f"{np.mean(shares):.3f}, {_called(states[name])}"
                print(f"{name} {np.dtype(dtype).name}: {said}", flush=True)


def _called(states):
    misfits, unchecked = states.count(Status.MISFIT), states.count(Status.UNCHECKED)
    return f"{misfits} misfits, {unchecked} unchecked"


def told_wrongly(clients):
    """Print what `closed_form` says of clients that were told one full-batch step."""
    warnings.simplefilter("ignore", FitWarning)
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
        for kind in WRONG:
            states = []
            for seed in range(clients):
                model, messages, known, _ = client(kind, LocalTraining(RATE), seed)
                seen = travelled(messages, dtype)
                answer = closed_form(model, seen, known, settings=ClosedForm(RATE))
                states.append(int(answer.status))
            print(f"{kind} {np.dtype(dtype).name}: {_called(states)}", flush=True)


if __name__ == "__main__":
    costs(int(sys.argv[1]))
    told_wrongly(int(sys.argv[1]))
