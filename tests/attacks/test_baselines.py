"""Attacks that only look at statistics of a gradient."""

import jax
import numpy as np
import pytest

from attacks import (
    Knowledge,
    binary_column,
    statistics,
)
from jaxfl import (
    mlp,
)
from tests.attacks.victims import D, explicit, make_victim


def test_statistics_equal_a_plain_loop():
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model, rounds=4)
    found = np.asarray(statistics(model, messages, Knowledge(x, y, (binary_column(6),))))
    for n in (0, 7, 23):
        table = np.zeros((6, 2, 4))
        for k in range(2):
            row = x[n].copy()
            row[6] = k
            for e in range(4):
                params = jax.tree.map(lambda a, e=e: np.asarray(a[e]), messages.returned)
                h = np.maximum(row @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"], 0)
                logits = h @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
                p = np.exp(logits - logits.max())
                p /= p.sum()
                gradient = np.outer(h, p - np.eye(3)[y[n]])
                loss = -np.log(p[y[n]])
                table[:, k, e] = (
                    p.argmax() == y[n],
                    p[y[n]],
                    -loss,
                    -loss,
                    np.linalg.norm(gradient),
                    gradient[:, y[n]].sum(),
                )
        scores = table.sum(2)
        scores[3] = table[3, :, -1]
        choices = scores.argmax(1)
        assert found[:6, n].tolist() == choices.tolist()
        assert found[6, n] == np.bincount(choices, minlength=2).argmax()


def test_statistics_need_labels_and_layers():
    model = mlp(D, (16,), 3)
    x, y, _, messages = make_victim(model)
    with pytest.raises(ValueError, match="needs known labels"):
        statistics(model, messages, Knowledge(x, None, (binary_column(6),)))
    with pytest.raises(ValueError, match="belong to dense layers"):
        statistics(explicit(model), messages, Knowledge(x, y, (binary_column(6),)))
