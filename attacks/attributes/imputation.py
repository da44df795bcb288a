"""The guess that no message is needed for: an unknown column from the other columns and the label.

Threat model: an adversary that holds records of the same distribution with the column, and knows a
client's records but for it; it sees no message. What it names right was not leaked by training.
"""

import warnings
from typing import Any

import numpy as np

from attacks.attributes.hiding import UNLIKE
from attacks.attributes.knowledge import Knowledge, UnknownColumn
from attacks.fit import FitWarning
from jaxfl import _check
from jaxfl.domains import checked
from jaxfl.watching import on_host

INVERSE_PENALTY = 0.3
"""`C` of the logistic rule, for tables of all kinds: the rule is taken where it beats the other two
in validation."""
FOLDS = 3
"""Folds of the cross-validation by which a classifier is chosen."""
FEW, HALF = 0.05, 0.5
"""Shares of public records with no candidate's value above which that is said: where all are
nearest to one candidate, and else."""
EXPECTED = 10
"""Public records that should have a label, and of whom none has it where it is coded otherwise."""


@on_host("scikit-learn")
@checked
def impute(knowledge: Knowledge, x_public: Any, y_public: Any = None) -> tuple[np.ndarray, ...]:
    """`imputation`: unknown columns from what is known of the same record (on the host).

    Whichever of logistic regression, a random forest and the most frequent value names the column
    best in cross-validation on the public records.

    Args:
      knowledge: records `[records, features]` whose unknown columns may hold anything, and labels,
        which are features here, or None.
      x_public: records with the unknown columns `[public, features]`.
      y_public: their labels `[public]`; needed if `knowledge` has labels.

    Returns:
      Index of the named candidate `[records]`, per unknown column.

    Warns:
      FitWarning: if more than a half of the public records have the value of no candidate of an
        unknown column, or more than a twentieth where all are nearest to one candidate; or if none
        has a frequent label: then something is coded in another way there. Other columns may be
        distributed otherwise than a client's, and say nothing.

    Raises:
      ValueError: if public records are none, not finite, differ in features, or lack labels that
        are numbers.
    """
    known, public = np.array(knowledge.x, np.float64), np.array(x_public, np.float64)
    if public.ndim != 2 or public.shape[1] != known.shape[1]:
        raise ValueError(
            f"x_public has shape {public.shape}; knowledge.x has {known.shape[1]} features"
        )
    if not len(public):
        raise ValueError("x_public holds no records; give at least one")
    _check.finite(x_public=public)
    truths = [_values(public, column) for column in knowledge.columns]
    _warn_of_other_codes(truths, public, knowledge)
    for x in (known, public):
        for column in knowledge.columns:
            x[:, np.asarray(column.positions)] = 0
    _check.finite(x=known)
    if knowledge.y is not None:
        if y_public is None:
            raise ValueError("y_public=None: the labels of `knowledge` tell nothing without it")
        _check.shape((len(public),), y_public=y_public)
        _check_numbers(y_public)
        _check.finite(y_public=y_public, **{"knowledge.y": knowledge.y})
        values = np.unique(np.concatenate([y_public, knowledge.y]))
        _warn_of_other_labels(np.asarray(knowledge.y), np.asarray(y_public), values)
        known, public = (
            np.concatenate([x, _label_features(y, values)], 1)
            for x, y in ((known, knowledge.y), (public, y_public))
        )
    return tuple(_imputed(public, truth, known) for truth in truths)


def _warn_of_other_codes(truths: list[np.ndarray], x: np.ndarray, knowledge: Knowledge) -> None:
    """Warn if many public records have the value of no candidate, and all are nearest to one, or
    most of them do."""
    for number, (near, column) in enumerate(zip(truths, knowledge.columns, strict=True)):
        public = x[:, np.asarray(column.positions)]
        distances = np.abs(public - np.asarray(column.candidates)[near]).max(1)
        share = float((distances > UNLIKE).mean())
        if share <= (FEW if len(np.unique(near)) == 1 else HALF):
            continue
        other = public[int(distances.argmax())]
        warnings.warn(
            f"impute: {share:.0%} of x_public have none of the values that "
            f"knowledge.columns[{number}] may have (one of them: {other}), and were taken to have "
            "the nearest. Is the column coded in another way there, or in another place?",
            FitWarning,
            stacklevel=4,
        )


def _warn_of_other_labels(known: np.ndarray, public: np.ndarray, values: np.ndarray) -> None:
    """Warn of a class that should be frequent among public records, and is that of none."""
    if not _are_classes(values) or not len(known):
        return
    labels, counts = np.unique(known, return_counts=True)
    expected = np.where(np.isin(labels, public), 0, counts / len(known) * len(public))
    if expected.max() >= EXPECTED:
        label = labels[expected.argmax()]
        warnings.warn(
            f"impute: no public record has the label {label:g} of knowledge.y; y_public holds "
            f"{np.unique(public)[:5].tolist()}. Are labels counted in another way there?",
            FitWarning,
            stacklevel=4,
        )


def _are_classes(values: np.ndarray) -> bool:
    return len(values) <= 100 and np.array_equal(values, np.round(values))


def _check_numbers(y_public: Any) -> None:
    if np.asarray(y_public).dtype.kind not in "biuf":
        raise ValueError(
            f"y_public holds {np.asarray(y_public).tolist()[0]!r}; labels must be numbers"
        )


def _values(x: np.ndarray, column: UnknownColumn) -> np.ndarray:
    """Index of the candidate that stands in each record, the nearest one `[records]`."""
    there = x[:, None, np.asarray(column.positions)]
    return np.square(there - np.asarray(column.candidates, np.float64)).sum(-1).argmin(1)


def _label_features(y: Any, values: np.ndarray) -> np.ndarray:
    """Labels as one column each while they are classes, as they are where they are many."""
    y = np.asarray(y, np.float64)
    if not _are_classes(values):
        return y[:, None]
    return (y[:, None] == values).astype(np.float64)


def _imputed(public: np.ndarray, truth: np.ndarray, known: np.ndarray) -> np.ndarray:
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rules = (
        DummyClassifier(strategy="most_frequent"),
        make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=300)),
        RandomForestClassifier(100, min_samples_leaf=2, random_state=0),
    )
    counts = np.bincount(truth)
    if np.count_nonzero(counts) < 2 or counts[counts > 0].min() < FOLDS:
        # Too few of a value to hold any out: rare values are no folds of their own.
        rule = rules[0] if np.count_nonzero(counts) < 2 else rules[2]
    else:
        scores = [cross_val_score(rule, public, truth, cv=FOLDS).mean() for rule in rules]
        rule = rules[int(np.argmax(scores))]
    return np.asarray(rule.fit(public, truth).predict(known))
