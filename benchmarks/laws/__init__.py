"""Laws that bind every method of every experiment: a new row of a table gets them for nothing.

`laws_of(experiment, method)` maps the name of each law to a function of nothing, which raises
`BrokenLawError` where the method breaks it. An attack from outside is held to them the same way:

    @pytest.mark.parametrize("law", laws_of(OWN, "pull").values(), ids=str)
    def test_it_is_bound_by_the_laws(law):
        law()
"""

from collections.abc import Sequence

from benchmarks.harness.experiment import Experiment
from benchmarks.harness.jobs import Cell
from benchmarks.laws import attributes, calls, rows
from benchmarks.laws.bad_input.harmless import Harmless
from benchmarks.laws.law import BrokenLawError, Law
from benchmarks.measurements.attributes import EXPERIMENT
from benchmarks.suites.specimens import companions, specimen_of

__all__ = ["BrokenLawError", "Law", "laws_of"]


def laws_of(
    experiment: Experiment,
    method: str,
    cell: Cell | None = None,
    harmless: Sequence[Harmless] = (),
) -> dict[str, Law]:
    """Laws by name: of rows, and of what an attack on attributes answers.

    Args:
      experiment: with the method.
      method: its name.
      cell: a small one that takes the method; by default the specimen of experiments of this name.
        Of other questions than attributes the attacks that it calls are bound too.
        What an attack on attributes answers is looked at on clients of the laws' own; if it refuses
        these all, and a cell is given, its rows alone are bound.
      harmless: what is spoilt in calls of its attacks and yet is good: where, how, and why
        (`benchmarks.laws.bad_input.harmless`). Of attacks on attributes nothing is.

    Raises:
      ValueError: if there is no such method, or no cell that takes it.
    """
    record = experiment.method(method)
    tried = cell or specimen_of(experiment, method)
    beside = companions(tried) if cell is None else ()
    methods = beside if method in beside else (*beside[:1], method)
    laws = rows.laws_of(tried, method, methods)
    if experiment.name == EXPERIMENT.name and (cell is None or attributes.takes(record)):
        return attributes.laws_of(record) | laws
    turns = rows.turns_of(tried, methods)
    return calls.laws_of(record, lambda: turns.first[method].calls.all(), harmless) | laws
