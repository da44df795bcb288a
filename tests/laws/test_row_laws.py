"""Laws of methods of experiments that have no file in `tests/benchmarks`."""

import pytest

from benchmarks.measurements import associations, linear_clients, membership
from tests.laws.cases import cases

EXPERIMENTS = associations.EXPERIMENT, linear_clients.EXPERIMENT, membership.EXPERIMENT


@pytest.mark.parametrize("law", [case for each in EXPERIMENTS for case in cases(each)])
def test_methods_obey(law):
    law()
