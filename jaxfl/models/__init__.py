"""Models as three pure functions, so that a simulation and an attack can differentiate through
them.

`model` has the type and the losses, `adapters` what makes one of a Flax module, `architectures` the
papers' models, `probe` what can be told of a model by trying it.
"""

from jaxfl.models.model import (
    DenseLayers,
    Model,
    Trunk,
    binary_cross_entropy,
    check_labelled,
    check_parameters,
    check_record_shape,
    check_records,
    cross_entropy,
    inputs_and_errors,
    label_smoothing,
    log_probabilities,
    mean_loss,
    record_gradient,
    squared_error,
    zero_rows,
)

__all__ = [
    "DenseLayers",
    "Model",
    "Trunk",
    "binary_cross_entropy",
    "check_labelled",
    "check_parameters",
    "check_record_shape",
    "check_records",
    "cross_entropy",
    "inputs_and_errors",
    "label_smoothing",
    "log_probabilities",
    "mean_loss",
    "record_gradient",
    "squared_error",
    "zero_rows",
]
