"""What a reader must know of a recorded client beside how much is read of it, in words."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from attacks import Decoding, Diagnosis, Reconstruction
from attacks.diagnosis.advice import IN_ORDER
from attacks.fit import MOSTLY_RESOLVED, Fit
from benchmarks.audits.coding import Coding
from benchmarks.audits.recorded_clients import EVERYONE, Client
from jaxfl import LocalTraining

WHO_TOOK_PART = ". Were the same clients there in every round? --participation says who took part"
OUTSIDE = (
    "are not what the recipe leaves of this answer, and asked again the recipe explains them. So "
    "it is with one right client in a hundred, and with more that draw the same batches in every "
    "round."
)
OF_ALL = ". Batches are those of all clients together: tell the size of one client's"
OTHER_RATE = 0.02
"""Share by which a rate that was read differs from the one told, from which on the page says it."""
NEARLY_ALL = 0.99
"""Share of the updates' energy by which steps of the other sign explain them."""
OPTION_OF = {
    "several steps": "--batch-size and --epochs",
    "epochs": "--epochs",
    "batches": "--batch-size",
    "momentum": "--momentum",
    IN_ORDER: "--unshuffled",
    "weight decay": "--weight-decay",
    "class weights": "--class-weights",
    "label smoothing": "--label-smoothing",
    "another activation": "--activation",
    "Adam": "--optimizer adam",
    "learning rate": "--learning-rate",
    "rate and weight decay": "--learning-rate and --weight-decay",
    "noise": "--upload-noise",
}
"""Of causes that `attacks.diagnose` names."""


def side_by_side(client: Client, told: LocalTraining, taken: LocalTraining) -> list[str]:
    """That batches of several clients are taken for one's."""
    if taken.batch_size in (None, told.batch_size):
        return []
    return [
        f"Steps of {client.together} clients side by side, in batches of {told.batch_size}, are "
        f"taken for those of one client in batches of {taken.batch_size}. That is not exact: "
        "larger clients take more steps, and their records count more."
        + ("" if told.shuffle else " Nor are these batches cut in the order of the table.")
    ]


def why(client: str, diagnosis: Diagnosis) -> str:
    """What a client's updates say that are not explained."""
    if diagnosis.findings and diagnosis.findings[0].cause == "as told":
        more = "".join(f" {f.cause}: {f.evidence}." for f in diagnosis.findings[1:])
        return f"Updates of {client} {OUTSIDE}{more}"
    hint = f"{OF_ALL}{WHO_TOOK_PART}" if client == EVERYONE else ""
    return f"Updates of {client} are not explained. They say: {_asked_why(diagnosis)}{hint}"


def _asked_why(diagnosis: Diagnosis) -> str:
    """What updates say of their client, and the option that tells of the first cause."""
    cause = diagnosis.findings[0].cause if diagnosis.findings else ""
    if cause not in OPTION_OF or "TensorFloat" in diagnosis.findings[0].evidence:
        return "; ".join(str(diagnosis).splitlines())
    findings = "; ".join(f"{f.cause}: {f.evidence}" for f in diagnosis.findings)
    return f"{findings}. Is that so? Tell it by {OPTION_OF[cause]}, and ask again"


def unchecked(client: str, reason: str) -> str:
    """That nothing could contradict the answer."""
    return f"No answer to the updates of {client} can be checked: {reason}."


def short(client: str, fit: Fit) -> list[str]:
    """That some of an answer's values are wrong or hidden, as its fit says."""
    left, allowed = 1 - float(fit.explained), 1 - float(fit.allowed)
    if not left > allowed:
        hidden = float(fit.resolved) < MOSTLY_RESOLVED
        words = f"Noise and rounding hide some of the values of {client}: of what a guess leaves "
        return [f"{words}open, they leave {float(fit.resolved):.0%}."] if hidden else []
    return [
        f"Updates of {client} contradict nothing that was told, but the answer leaves {left:.2g} "
        f"of them unexplained, where a right one leaves {allowed:.2g} at most: some of its values "
        "are wrong."
    ]


def turned(client: str, answer: Reconstruction) -> list[str]:
    """That a client's updates have the other sign, where its answer explains them so."""
    rate = answer.learning_rate if isinstance(answer, Decoding) else jnp.zeros(())
    if rate.ndim or not rate < 0 or not answer.fit.explained > NEARLY_ALL:
        return []
    return [
        f"Updates of {client} are explained by steps against its gradients, at rate {rate:.3g}: "
        "they have the other sign. Do the files hold received - returned (--returned-as gradients) "
        "or returned - received (changes)? Or was what came back taken for what was sent?"
    ]


def renamed(
    client: str, columns: Sequence[str], values: np.ndarray, coding: Coding | None
) -> list[str]:
    """That the table's values are not those of training."""
    if coding is None:
        return []
    pairs = [
        f"{value(values[place])} was trained as {value(values[other])}"
        for place, other in enumerate(coding.renamed)
        if place != other
    ]
    return [
        f"The table has other values of {' + '.join(columns)!r} than {client} trained on: "
        f"{', '.join(pairs)}. They are counted as in training; is the column coded the other way "
        "round?"
    ]


def value(value: np.ndarray) -> str:
    """A value of columns, as the page has it."""
    return " ".join(f"{number:g}" for number in value)


def copies(attribute: str, clients: Sequence[Client], positions: np.ndarray) -> list[str]:
    """How many people no update tells apart."""
    alike = 0
    for client in clients:
        rest = np.delete(client.records.x, positions, 1), client.records.y[:, None]
        _, counts = np.unique(np.concatenate(rest, 1), axis=0, return_counts=True)
        alike += int(counts[counts > 1].sum())
    if not alike:
        return []
    people = sum(len(client.records.y) for client in clients)
    among = "them" if clients[0].name == EVERYONE else "the same client"
    return [
        f"{alike} of {people} people are like another one of {among} in the answer and in all "
        f"columns but {attribute!r}: of such people updates tell how many have which value, not "
        "who."
    ]


def as_others(
    client: str, method: str, answer: Reconstruction, training: LocalTraining, steps_as_told: bool
) -> list[str]:
    """In what a client whose updates are explained trains otherwise than was told."""
    notes = []
    if not steps_as_told and method == "gls_unrolled":
        notes.append(
            f"{client} cuts its batches from its records as the table has them (--unshuffled); "
            "they hide less than drawn ones do."
        )
    elif not steps_as_told:
        optimizer = "Adam" if method == "decode_adam" else "SGD"
        notes.append(f"{client} takes one step of {optimizer} on all of its records, not as told.")
    if isinstance(answer, Decoding) and answer.learning_rate.ndim:
        notes.append(
            f"{client} takes one step of another size in every round: its updates are clipped, or "
            "its learning rate follows a schedule."
        )
    elif isinstance(answer, Decoding) and not notes:
        notes += other_rate(client, float(answer.learning_rate), training)
    return notes


def other_rate(client: str, rate: float, training: LocalTraining) -> list[str]:
    """That a client's steps are of another size than was told."""
    told = float(training.learning_rate)
    if abs(rate / told - 1) < OTHER_RATE:
        return []
    return [f"{client} takes steps at rate {rate:.3g}, not {told:g} as told."]
