"""How much a program has to compute, counted from its equations (its jaxpr), loops included.

XLA's own count (`Compiled.cost_analysis`) takes the body of a loop once, and of a library call such
as a Cholesky factorisation nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

MOVES = {
    "reshape", "broadcast_in_dim", "transpose", "squeeze", "expand_dims", "slice",
    "concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "pad", "rev", "iota",
    "copy", "copy_p", "convert_element_type", "device_put", "split", "bitcast_convert_type",
    "stop_gradient", "random_wrap", "random_unwrap", "random_bits", "random_fold_in",
    "random_split", "random_seed", "sharding_constraint", "optimization_barrier", "select_n",
    "name", "pvary",
}  # fmt: skip
"""Equations that move numbers and compute none."""
REDUCTIONS = (
    "reduce", "cumsum", "cumprod", "cummax", "cummin", "argmax", "argmin", "sort", "top_k",
    "scatter",
)  # fmt: skip
"""Beginnings of the names of those whose work goes with what enters, not with what comes out."""


@dataclasses.dataclass(frozen=True)
class Operations:
    """Operations of one run of a program.

    Attributes:
      products: additions and multiplications of products of matrices and of convolutions.
      factorisations: the same of Cholesky, QR, LU, eigen- and singular values and of triangular
        solves, to leading order.
      elementwise: single results of everything else that computes floating-point numbers.
      bytes: that products and factorisations read and write, each operand once.
      steps: of innermost loops.
      open_loops: loops whose number of steps only the run decides; each is counted once.
      largest: numbers of the largest array of the program.
    """

    products: float = 0.0
    factorisations: float = 0.0
    elementwise: float = 0.0
    bytes: float = 0.0
    steps: float = 0.0
    open_loops: int = 0
    largest: int = 0

    @property
    def total(self) -> float:
        """All floating-point operations."""
        return self.products + self.factorisations + self.elementwise

    def __add__(self, other: "Operations") -> "Operations":
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in _SUMMED}
        return Operations(**sums, largest=max(self.largest, other.largest))

    def times(self, count: int) -> "Operations":
        """Operations of a loop of so many steps, of which these are one step's."""
        scaled = {f.name: count * getattr(self, f.name) for f in _SUMMED if f.name != "open_loops"}
        steps = scaled.pop("steps") or float(count)
        return Operations(**scaled, steps=steps, open_loops=self.open_loops, largest=self.largest)


_SUMMED = [f for f in dataclasses.fields(Operations) if f.name != "largest"]


def operations(jaxpr: Any) -> Operations:
    """Operations of a program, from its (closed) jaxpr. Of branches the dearest counts."""
    total = Operations()
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        total = total + _of_equation(equation)
    return total


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program that hold no others."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inner = list(inner_of(equation))
        if not inner:
            yield equation
        for each in inner:
            yield from equations(each)


def inner_of(equation: Any) -> Iterator[Any]:
    """Programs that an equation holds; of a linear solve, what solves."""
    if equation.primitive.name == "custom_linear_solve":
        yield equation.params["jaxprs"].solve
        return
    for value in equation.params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(getattr(each, "jaxpr", each), "eqns"):
                yield each


def _of_equation(equation: Any) -> Operations:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return operations(params["jaxpr"]).times(params["length"])
    if name == "while":
        body = operations(params["body_jaxpr"]) + operations(params["cond_jaxpr"])
        once = body.times(1)
        return dataclasses.replace(once, open_loops=once.open_loops + 1)
    if name == "cond":
        return max(map(operations, params["branches"]), key=lambda each: each.total)
    if name in ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"):
        return operations(next(inner_of(equation)))  # the others are its derivatives
    inner = list(inner_of(equation))
    if inner:
        return sum(map(operations, inner), Operations())
    return _of_leaf(name, equation)


def _of_leaf(name: str, equation: Any) -> Operations:
    given = [v.aval for v in equation.invars if hasattr(v.aval, "shape")]
    made = [v.aval for v in equation.outvars]
    largest = max((a.size for a in (*given, *made)), default=0)
    if name in DEAR:
        place, count = DEAR[name]
        moved = sum(a.size * a.dtype.itemsize for a in (*given, *made))
        number, bytes_ = float(count(equation.params, given, made)), float(moved)
        if place == "products":
            return Operations(products=number, bytes=bytes_, largest=largest)
        return Operations(factorisations=number, bytes=bytes_, largest=largest)
    floating = any(jnp.issubdtype(a.dtype, jnp.inexact) for a in (*given, *made))
    if name in MOVES or not floating:
        return Operations(largest=largest)
    reduces = name.startswith(REDUCTIONS)
    sizes = [a.size for a in (given if reduces else made)]
    return Operations(elementwise=float(max(sizes, default=0)), largest=largest)


def _dot(params: Any, given: list[Any], made: list[Any]) -> float:
    (contracted, _), _ = params["dimension_numbers"]
    return 2.0 * made[0].size * math.prod(given[0].shape[i] for i in contracted)


def _convolution(params: Any, given: list[Any], made: list[Any]) -> float:
    """Every number that comes out is a sum over a filter; padding is counted as if multiplied."""
    filters = given[1].shape
    return 2.0 * made[0].size * given[1].size / filters[params["dimension_numbers"].rhs_spec[0]]


def _cubic(factor: float) -> Callable[[Any, list[Any], list[Any]], float]:
    """`factor` m n^2 of matrices `[..., m, n]`, m the longer side."""

    def count(params: Any, given: list[Any], made: list[Any]) -> float:
        *batch, m, n = given[0].shape
        return float(factor * np.prod(batch, dtype=float) * max(m, n) * min(m, n) ** 2)

    return count


def _triangular(params: Any, given: list[Any], made: list[Any]) -> float:
    """n operations for every number that is solved for."""
    return float(made[0].size * given[0].shape[-1])


DEAR: dict[str, tuple[str, Callable[[Any, list[Any], list[Any]], float]]] = {
    "dot_general": ("products", _dot),
    "conv_general_dilated": ("products", _convolution),
    "cholesky": ("factorisations", _cubic(1 / 3)),
    "lu": ("factorisations", _cubic(2 / 3)),
    "geqrf": ("factorisations", _cubic(4 / 3)),
    "qr": ("factorisations", _cubic(8 / 3)),
    "householder_product": ("factorisations", _cubic(4 / 3)),
    "eigh": ("factorisations", _cubic(9.0)),
    "svd": ("factorisations", _cubic(20.0)),
    "triangular_solve": ("factorisations", _triangular),
}
"""What an equation's operations count as, and how many there are (Golub & Van Loan 2013: Cholesky
4.2, LU 3.2, QR 5.2, symmetric eigenvalues 8.3, singular values 8.6)."""
