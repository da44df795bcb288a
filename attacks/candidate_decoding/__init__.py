"""Decoding: a message as a weighted sum of candidate records' gradients, solved by least squares.

`closed_form` is exact for clients that take one full-batch step a round; `gls` is to first order right for any other.
"""

from attacks.candidate_decoding.closed_form import (
    ClosedForm,
    Decoding,
    candidate_records,
    closed_form,
    normal_equations,
)
from attacks.candidate_decoding.gls import GLS, gls

__all__ = [
    "GLS",
    "ClosedForm",
    "Decoding",
    "candidate_records",
    "closed_form",
    "gls",
    "normal_equations",
]
