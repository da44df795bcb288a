"""Laws of methods of experiments that have no file in `tests/benchmarks`."""

import pytest

from benchmarks.measurements import associations, linear_clients, membership
from tests.laws.cases import cases

CASES = cases(associations.EXPERIMENT) + cases(linear_clients.EXPERIMENT)


@pytest.mark.parametrize("law", CASES + cases(membership.EXPERIMENT))
def test_methods_obey(law):
    law()
