"""Decoding: a message as a weighted sum of candidate records' gradients, solved by least squares.

`closed_form` is exact for clients that take one full-batch step a round, `gauss_newton` extends it
to several unknown columns at once, and `gls` is to first order right for any other client that
draws its batches and whose optimiser is linear in gradients: SGD, with or without momentum, weight
decay or a proximal term. `decode_adam` reads clients that take one full-batch step of Adam,
`decode_partial` those of whose records only some are known, `decode_numbers` a column of numbers
between two bounds, and `gls_unrolled` any client whose training can be simulated: of Adam in
batches, for example, and exactly those that draw nothing at random.
"""

from attacks.attributes.candidate_decoding.adam import AdamDecoding, decode_adam
from attacks.attributes.candidate_decoding.candidates import candidate_records
from attacks.attributes.candidate_decoding.closed_form import ClosedForm, Decoding, closed_form
from attacks.attributes.candidate_decoding.gauss_newton import GaussNewton, gauss_newton
from attacks.attributes.candidate_decoding.gls import gls
from attacks.attributes.candidate_decoding.gls_round import GLS
from attacks.attributes.candidate_decoding.normal_equations import normal_equations
from attacks.attributes.candidate_decoding.numbers import (
    DecodedNumbers,
    NumberDecoding,
    decode_numbers,
)
from attacks.attributes.candidate_decoding.partial import PartialDecoding, decode_partial
from attacks.attributes.candidate_decoding.unrolled import UnrolledGLS, gls_unrolled

__all__ = [
    "GLS",
    "AdamDecoding",
    "ClosedForm",
    "DecodedNumbers",
    "Decoding",
    "GaussNewton",
    "NumberDecoding",
    "PartialDecoding",
    "UnrolledGLS",
    "candidate_records",
    "closed_form",
    "decode_adam",
    "decode_numbers",
    "decode_partial",
    "gauss_newton",
    "gls",
    "gls_unrolled",
    "normal_equations",
]
