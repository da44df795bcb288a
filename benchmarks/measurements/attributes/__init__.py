"""What is an attribute of each of a victim's records? (Lyu 2021; attribute inference)"""

from benchmarks.measurements.attributes.experiment import EXPERIMENT
from benchmarks.measurements.attributes.methods import METHODS, METRICS, PublicRecords, View

__all__ = ["EXPERIMENT", "METHODS", "METRICS", "PublicRecords", "View"]
