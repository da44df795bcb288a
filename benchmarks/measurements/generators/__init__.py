"""How does one client's data look to a generator? (Song 2020, sections VII-C to VII-E; user-level
inversion)"""

from benchmarks.measurements.generators.experiment import EXPERIMENT, METHODS, METRICS, Generating
from benchmarks.measurements.generators.play import GeneratorSettings, Play

__all__ = ["EXPERIMENT", "METHODS", "METRICS", "Generating", "GeneratorSettings", "Play"]
