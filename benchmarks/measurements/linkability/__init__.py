"""Which anonymous updates come from the same client? (Song 2020, section VII-B; linkability)"""

from benchmarks.measurements.linkability.experiment import EXPERIMENT
from benchmarks.measurements.linkability.methods import METHODS, METRICS
from benchmarks.measurements.linkability.work import Linking, LinkSettings

__all__ = ["EXPERIMENT", "METHODS", "METRICS", "LinkSettings", "Linking"]
