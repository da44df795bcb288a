"""What would a client's own model be, and what do models and messages give away? (Driouich 2023;
local model reconstruction, attribute inference, source inference, sample reconstruction)"""

from benchmarks.measurements.local_models.experiment import EXPERIMENT
from benchmarks.measurements.local_models.methods import METHODS, METRICS
from benchmarks.measurements.local_models.work import (
    First,
    FirstMessages,
    Images,
    LocalModels,
    LocalModelSettings,
    MapsOfClients,
    Sources,
    Values,
    View,
)

__all__ = [
    "EXPERIMENT",
    "METHODS",
    "METRICS",
    "First",
    "FirstMessages",
    "Images",
    "LocalModelSettings",
    "LocalModels",
    "MapsOfClients",
    "Sources",
    "Values",
    "View",
]
