"""Which clients have a property, seen through secure aggregation? (Kerkouche 2023; property
inference)"""

from benchmarks.measurements.properties.experiment import EXPERIMENT
from benchmarks.measurements.properties.methods import MEAN_OVER, PropertySettings

__all__ = ["EXPERIMENT", "MEAN_OVER", "PropertySettings"]
