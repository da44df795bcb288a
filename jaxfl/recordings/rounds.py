"""Reading a recorded run: files of models, or models at hand."""

import functools
import itertools
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxfl.domains import checked
from jaxfl.models import Model
from jaxfl.recordings.arrays import read_arrays
from jaxfl.recordings.layout import Layout, OtherModelError, layout_of
from jaxfl.recordings.recording import Recording, RecordingWarning, stacked_messages
from jaxfl.rounding import same_but_rounding
from jaxfl.transcript import Messages

Returned = Literal["models", "changes", "gradients"]
"""What a client returns: its model; returned - received; or received - returned, of a rate of 1."""
NEARLY_EQUAL = 1e-4
"""Share of the clients' changes below which models are one."""
CHECKED, MANY, ROUNDED = 3, 2, 8
"""Rounds that are looked at for what was sent; parameters for each client, of which fewer are
always nearly a mean of what came back; relative errors of such a mean, in units of the precision.
"""
AGAINST, LONGER, FEWEST_STEPS = -0.5, 10, 2
"""Cosine of what clients change together and of the global model's step below which one of the two
has the other sign; how many times as long makes one of another scale; and of how many steps."""
UNLIKE, ALIKE = 0.5, 0.9
"""Cosines with the model that was sent: of a change less than this, of a returned model more."""


@checked
def read_rounds(  # noqa: PLR0913 - what nobody overrides is how files are usually named
    folder: str | Path,
    model: Model,
    *,
    sent: str | None = "round-{round}-sent",
    returned: str | None = "round-{round}-client-{client}",
    after: str | None = None,
    returned_as: Returned = "models",
    layers: Mapping[str, str] | None = None,
    transposed: bool | None = None,
) -> Recording:
    """Read a run whose models are one file each (see `read_arrays` for formats).

    Args:
      folder: where the files are.
      model: the model that was trained.
      sent: file name, without its ending, of what clients were sent in a round.
      returned: of what a client returned; None if nobody recorded that.
      after: of the global model after a round, as Flower's documentation saves it
        (`"round-{round}-weights"`): what was sent in the next one. In place of `sent`.
      returned_as: what clients return: "models", "changes" (returned - received), or "gradients"
        (received - returned, of a rate of 1).
      layers, transposed: see `layout_of`.

    Warns:
      RecordingWarning: if what came back looks like changes and is called models, or the reverse;
        or what clients change goes against all steps of the global model, or is ten times as long.

    Raises:
      ValueError: if no file fits a name, a file is unreadable or of another model, a client's round
        has no model that was sent, two clients returned the same model (then it is a sum), or what
        is called sent is what clients' models of that round average to.
      FileNotFoundError: if there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"folder={str(folder)!r} is no folder")
    name, pattern = ("after", after) if after is not None else ("sent", sent)
    if pattern is None:
        raise ValueError("sent=None and after=None leave out what clients were sent; give one")
    reader = _Reader(model, layers or {}, transposed)
    globals_by_round = {
        int(t) + (after is not None): reader.params(path)
        for (t, _), path in _files(folder, name, pattern).items()
    }
    came_back = {} if returned is None else _files(folder, "returned", returned)
    by_client: dict[str, dict[int, Any]] = {}
    for (number, client), path in came_back.items():
        if number not in globals_by_round:
            if after is not None and number < min(globals_by_round):
                continue  # nobody saved what the first round was sent
            raise ValueError(f"{path.name} is of round {number}, of which {pattern!r} has no file")
        back = _model_of(globals_by_round[number], reader.params(path), returned_as)
        by_client.setdefault(client, {})[number] = back
    _check_different(by_client)
    if after is None:
        check_sent_before(globals_by_round, by_client)
    if by_client:
        _doubt_kind(_pairs(globals_by_round, by_client), returned_as)
        _doubt_direction(globals_by_round, by_client)
    return Recording(reader.layout, globals_by_round, by_client)


@checked
def messages_from(
    model: Model,
    received: Sequence[Any],
    returned: Sequence[Any],
    *,
    rounds: Sequence[int] | None = None,
    returned_as: Returned = "models",
    layers: Mapping[str, str] | None = None,
    transposed: bool | None = None,
) -> Messages:
    """One client's messages from models at hand: state_dicts, or lists of arrays as Flower's
    strategies get them.

    Args:
      model: the model that was trained.
      received: what the client was sent, round by round.
      returned: what it returned; None where it was absent.
      rounds: their numbers; 0, 1, ... by default.
      returned_as, layers, transposed: see `read_rounds`.

    Warns:
      RecordingWarning: if what came back looks like changes and is called models, or the reverse.

    Raises:
      ValueError: if lengths differ, or a model is not of this kind.
    """
    numbers = list(range(len(received))) if rounds is None else list(rounds)
    if not len(received) == len(returned) == len(numbers):
        raise ValueError(
            f"received has {len(received)} rounds, returned {len(returned)}, rounds "
            f"{len(numbers)}: give one of each for every round; returned holds None where the "
            "client was absent, and rounds=None numbers them from 0"
        )
    reader = _Reader(model, layers or {}, transposed)
    pairs = []
    for number, sent, back in zip(numbers, received, returned, strict=True):
        if back is not None:
            if sent is None:
                raise ValueError(
                    f"received[{number}] is None, but returned[{number}] is a model: what was sent "
                    "in that round is missing"
                )
            before = reader.placed(_named(sent), f"received[{number}]")
            after = reader.placed(_named(back), f"returned[{number}]")
            pairs.append((before, _model_of(before, after, returned_as), number))
    if not pairs:
        raise ValueError("returned holds no model: the client was absent in every round")
    _doubt_kind([(before, after) for before, after, _ in pairs], returned_as)
    return stacked_messages(*map(list, zip(*pairs, strict=True)))


class _Reader:
    """Finds the layout of every kind of file: those of a server may have no names."""

    def __init__(self, model: Model, layers: Mapping[str, str], transposed: bool | None) -> None:
        self._find = functools.partial(layout_of, model, layers=layers, transposed=transposed)
        self._known: dict[tuple[str, ...], Layout] = {}

    @property
    def layout(self) -> Layout:
        """The layout of the first file."""
        return next(iter(self._known.values()))

    def params(self, path: Path) -> Any:
        return self.placed(read_arrays(path), path.name)

    def placed(self, arrays: dict[str, np.ndarray], where: str) -> Any:
        names = tuple(arrays)
        try:
            if names not in self._known:
                self._known[names] = self._find(arrays)
            return self._known[names].params(arrays)
        except ValueError as error:
            kind = OtherModelError if isinstance(error, OtherModelError) else ValueError
            raise kind(f"{where}: {error}") from None


def _named(arrays: Any) -> dict[str, np.ndarray]:
    if isinstance(arrays, Mapping):
        return {str(name): _host(array) for name, array in arrays.items()}
    return {f"arr_{i}": _host(array) for i, array in enumerate(arrays)}


def _host(array: Any) -> np.ndarray:
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def _files(folder: Path, argument: str, name: str) -> dict[tuple[int, str], Path]:
    """Files of a name, by round and client, in the order of rounds."""
    if "{round}" not in name or ("{client}" in name) != (argument == "returned"):
        needed = "{round} and {client}" if argument == "returned" else "{round} alone"
        raise ValueError(f"{argument}={name!r} must hold {needed}")
    parts = re.escape(name).replace(r"\{", "{").replace(r"\}", "}")
    pattern = parts.replace("{round}", r"(?P<round>\d+)").replace("{client}", "(?P<client>.+)")
    matches = [(re.fullmatch(pattern, path.stem), path) for path in sorted(folder.iterdir())]
    held: dict[tuple[int, str], Path] = {}
    for match, path in matches:
        if match is None:
            continue
        place = int(match["round"]), match.groupdict().get("client", "")
        if place in held:
            raise ValueError(
                f"{held[place].name} and {path.name} are two files of one model; keep one"
            )
        held[place] = path
    if not held:
        shown = ", ".join(path.name for _, path in matches[:5]) or "nothing"
        raise ValueError(f"{argument}={name!r} is the name of no file in {str(folder)!r}: {shown}")
    return dict(sorted(held.items()))


def _model_of(sent: Any, back: Any, returned_as: Returned) -> Any:
    """The model that a client returned."""
    if returned_as == "models":
        return back
    sign = 1 if returned_as == "changes" else -1
    return jax.tree.map(lambda w, v: np.asarray(w, np.float64) + sign * v, sent, back)


def _check_different(by_client: Mapping[str, Mapping[int, Any]]) -> None:
    """Raise `ValueError` if two clients returned the same model: it is a sum, or one client's file
    twice."""
    first: dict[tuple[int, bytes], str] = {}
    for client, models in by_client.items():
        for number, model in models.items():
            content = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(model))
            other = first.setdefault((number, content), client)
            if other != client:
                raise ValueError(
                    f"clients {other!r} and {client!r} returned the same model in round {number}: "
                    "their files hold sums, as secure aggregation makes them, or one client's twice"
                )


def check_sent_before(sent: Mapping[int, Any], by_client: Mapping[str, Mapping[int, Any]]) -> None:
    """Raise `ValueError` if what was sent is a mean of what came back in the same round, in all of
    the first rounds of which this can be told, or if all that ever came back is what was sent."""
    _check_changed(sent, by_client)
    told = {}
    for number in list(sent)[:CHECKED]:
        models = [back[number] for back in by_client.values() if number in back]
        start, *others = (_flat(model) for model in (sent[number], *models))
        moved = [model for model in others if (model != start).any()]
        if len(moved) >= 2 and MANY * len(moved) <= len(start):
            told[number] = _is_mean(start, np.stack(moved, 1))
    if told and all(told.values()):
        raise ValueError(
            f"what is called sent in round {min(told)} is a mean of what came back in it: it is "
            "the global model after the round. Name these files by after=, not by sent="
        )


def _pairs(
    sent: Mapping[int, Any], by_client: Mapping[str, Mapping[int, Any]]
) -> list[tuple[Any, Any]]:
    """What was sent and what came back, of all clients and rounds."""
    return [
        (sent[number], model)
        for back in by_client.values()
        for number, model in back.items()
        if number in sent
    ]


def _doubt_kind(pairs: Sequence[tuple[Any, Any]], returned_as: Returned) -> None:
    """Warn if what came back looks everywhere like changes and is called models, or the reverse. A
    model that was sent as zeros tells neither."""
    told = []
    for sent, back in pairs:
        start = _flat(sent)
        held = _flat(back) if returned_as == "models" else _flat(back) - start
        lengths = float(np.linalg.norm(start)), float(np.linalg.norm(held))
        if not lengths[0]:
            return
        if not lengths[1]:
            continue
        sign = -1 if returned_as == "gradients" else 1
        told.append((sign * float(start @ held) / (lengths[0] * lengths[1]), lengths))
    if not told:
        return
    if returned_as == "models" and all(c < UNLIKE and held < sent for c, (sent, held) in told):
        mend = 'they may be changes: say returned_as="changes", or "gradients"'
        kind = "models"
    elif (
        returned_as != "models"
        and len({id(sent) for sent, _ in pairs}) > 1  # a model begun at 0 is its first change
        and all(c > ALIKE and held > sent / 2 for c, (sent, held) in told)
    ):
        mend, kind = "they may be models", returned_as
    else:
        return
    middle = float(np.median([cosine for cosine, _ in told]))
    warnings.warn(
        f"files of what came back are called {kind} (returned_as={returned_as!r}), but their "
        f"cosine with the model that was sent is {middle:.2f}: {mend}",
        RecordingWarning,
        stacklevel=4,
    )


def _doubt_direction(sent: Mapping[int, Any], by_client: Mapping[str, Mapping[int, Any]]) -> None:
    """Warn if clients' mean change, and each one's, goes against every step of the global model, or
    the mean is many times as long as a step of its direction."""
    told, numbers = [], list(sent)
    for number, following in itertools.pairwise(numbers):
        models = [_flat(back[number]) for back in by_client.values() if number in back]
        start, end = _flat(sent[number]), _flat(sent[following])
        if not models or following != number + 1 or (start == end).all():
            continue
        step, change = end - start, np.mean(models, 0) - start
        length, far = float(np.linalg.norm(change)), float(np.linalg.norm(step))
        if length:
            along = any(float((model - start) @ step) > 0 for model in models)
            told.append((float(change @ step) / (length * far), length / far, along))
    if len(told) < FEWEST_STEPS:
        return
    cosine, times, _ = np.median(told, 0)
    if all(c < AGAINST and not along for c, _, along in told):
        doubt = "goes against the global model's next step: is its sign the other (returned_as)?"
    elif all(c > ALIKE and ratio > LONGER for c, ratio, _ in told):
        doubt = (
            "is too long for the global model's next step: were changes weighed by records, or is "
            "the server's rate small?"
        )
    else:
        return
    warnings.warn(
        f"what clients change together {doubt} (cosine {cosine:.2f}, {times:.3g} times as long)",
        RecordingWarning,
        stacklevel=4,
    )


def _check_changed(sent: Mapping[int, Any], by_client: Mapping[str, Mapping[int, Any]]) -> None:
    pairs = _pairs(sent, by_client)
    if pairs and all(
        same_but_rounding(zip(*map(jax.tree.leaves, pair), strict=True)) for pair in pairs
    ):
        raise ValueError(
            "every model that came back is what is called sent in its round: if that is the global "
            "model after the round, name these files by after=, not by sent="
        )


def _is_mean(start: np.ndarray, models: np.ndarray) -> bool:
    """Whether a model `[parameters]` is a mean of others `[parameters, clients]`, with any weights,
    to the digits of float32."""
    changes = models - start[:, None]
    last, rest = changes[:, -1:], changes[:, :-1] - changes[:, -1:]
    weights = np.linalg.lstsq(rest, -last[:, 0], rcond=None)[0]
    left = np.linalg.norm(rest @ weights + last[:, 0])
    positive = weights.min() > -NEARLY_EQUAL and weights.sum() < 1 + NEARLY_EQUAL
    rounded = ROUNDED * float(np.finfo(np.float32).eps) * np.linalg.norm(models)
    return bool(positive and left < min(rounded, NEARLY_EQUAL * np.linalg.norm(changes)))


def _flat(model: Any) -> np.ndarray:
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in jax.tree.leaves(model)])
