"""The same attack on another client's messages: of these it learns nothing of the records."""

import math
import warnings
from collections.abc import Callable

from attacks import FitWarning


def null_of(read: Callable[[], float]) -> float:
    """What `read` names right out of another's messages; NaN where it cannot read them, so that the
    attack's own answer is kept. Misfits are expected, and not said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        try:
            return read()
        except (ValueError, ArithmeticError, RuntimeError) as error:
            warnings.warn(f"no null: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
            return math.nan
