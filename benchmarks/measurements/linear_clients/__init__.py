"""What is a binary attribute of a linear client's records? (Driouich 2022; attribute inference)"""

from benchmarks.measurements.linear_clients.client import Answer, LinearSettings, View
from benchmarks.measurements.linear_clients.experiment import EXPERIMENT
from benchmarks.measurements.linear_clients.methods import METHODS, METRICS

__all__ = ["EXPERIMENT", "METHODS", "METRICS", "Answer", "LinearSettings", "View"]
