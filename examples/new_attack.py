"""An attack of one's own in one page: it runs in a sweep beside others, and is bound by the laws.

The attack: the weights of an input move where the records that have it pull them. So the sign of
what a column's weights moved by is a guess of the value that most records have.
"""

# %%
import dataclasses
import tempfile

import jax.numpy as jnp

from attacks import Reconstruction
from attacks.attributes.knowledge import answered, check_knowledge
from benchmarks import sweep
from benchmarks.harness.experiment import Method
from benchmarks.harness.jobs import Place, Suite, Table
from benchmarks.laws import BrokenLawError, laws_of
from benchmarks.measurements.attributes import EXPERIMENT, View
from benchmarks.scenarios.victims import VictimSettings


@dataclasses.dataclass(frozen=True)
class Pull:
    """Settings: whether the pull is taken as it is, or turned."""

    sign: float = 1.0


def pull(view: View, settings: Pull) -> Reconstruction:
    """One value for every record."""
    known = check_knowledge(view.model, view.messages, view.knowledge)
    update = view.messages.pseudo_gradient["Dense_0"]["kernel"]
    moved = settings.sign * update[:, known.columns[0].positions[0]].sum()
    values = jnp.full(len(known.x), (moved > 0).astype(int))
    failed = ~jnp.isfinite(moved)
    return answered(failed, (values,), (), objective=-jnp.abs(moved), trace=jnp.zeros(0))


# %% One row, one table, one suite.
METHOD = Method("pull", "the sign of a column's update", pull, Pull(), selects=True)
OWN = EXPERIMENT.with_methods(METHOD)


def places(size: str, data_dir: str | None) -> list[Place]:
    """The cells of the table."""
    return [Place("breast_cancer", VictimSettings(0, 40, rounds=6, phases=("pre5",)))]


SUITE = Suite("own", (Table("toy", "Beside cos", OWN, places, ("majority", "pull", "cos")),))


def main() -> None:
    """Sweep, then some of the laws: which hold, and which are broken."""
    sweep.main(["own", "--seeds", "2", "--out", tempfile.mkdtemp()], {"own": SUITE})
    laws = laws_of(OWN, "pull")
    for name in ("blind_to_another_clients_messages", "an_absent_column_is_not_found"):
        try:
            laws[name]()
            print(f"holds: {name}")
        except BrokenLawError as error:
            print(f"broken: {name}: {error}")


if __name__ == "__main__":
    main()
