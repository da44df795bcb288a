"""Which clients have a property, by weighted least squares (beyond Kerkouche 2023).

Threat model: as in `attacks.properties.detectors`. Features need not be found: given who has the
property, a sum of normal features is normal (`attacks.properties.law_of_sums`).
"""

from jaxtyping import Int, Num

from attacks.properties.best_in_box import ITERATIONS, Array, boxes
from attacks.properties.exchanges import warn_of_exchanged_rounds
from attacks.properties.observations import Observations, check_observed
from attacks.properties.surprise import warn_of_surprise
from jaxfl.domains import Count, checked


@checked
def box(
    observations: Observations, seen: Int[Array, "prefixes"], iterations: Count = ITERATIONS
) -> Num[Array, "prefixes clients"]:
    """Weighted least squares over p in [0, 1]: `[prefixes, clients]`; above 1/2 the property is
    more likely than not.

    Args:
      observations: see there.
      seen: how many rounds are used `[prefixes]`.
      iterations: of projected gradients (static).

    Warns:
      MisfitWarning: if the sums contradict any answer (`attacks.surprise`); and where it is sure of
        a client, though of exchanged rounds half or more explain the sums better.

    Raises:
      ValueError: as `least_squares`; if iterations are no positive integer.
    """
    seen = check_observed(observations, seen)
    p = boxes(observations, seen, iterations)
    warn_of_surprise("box", observations, seen, p)
    warn_of_exchanged_rounds("box", observations, seen, p)
    return p
