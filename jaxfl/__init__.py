"""jaxfl: federated learning as pure functions, and what its messages give away."""

from jaxfl.clients import ClientData, one_client, stack_clients
from jaxfl.evaluation import Evaluation, evaluate
from jaxfl.federated import Federated, Keep
from jaxfl.models import (
    Model,
    Trunk,
    binary_cross_entropy,
    cross_entropy,
    label_smoothing,
    mean_loss,
    squared_error,
)
from jaxfl.models.adapters import from_flax
from jaxfl.models.architectures import lenet, linear, logistic, mlp, trunk_cnn
from jaxfl.plugins import PerClient, Plugin
from jaxfl.plugins.behaviors import Behavior
from jaxfl.plugins.canaries import Canaries, canary_directions
from jaxfl.plugins.class_weights import ClassWeights
from jaxfl.plugins.defenses import DPSGD, Mixup, Upload
from jaxfl.schema import Listed, Measured, Schema
from jaxfl.servers import HonestServer, IsolatingServer, Server, ServerState
from jaxfl.simulation import simulate
from jaxfl.training import (
    LocalTraining,
    client_round,
    clipped_sgd,
    local_update,
    sgd,
)
from jaxfl.transcript import Aggregates, AnonymousMessages, Messages, Transcript

__version__ = "0.1.0"

__all__ = [
    "DPSGD",
    "Aggregates",
    "AnonymousMessages",
    "Behavior",
    "Canaries",
    "ClassWeights",
    "ClientData",
    "Evaluation",
    "Federated",
    "HonestServer",
    "IsolatingServer",
    "Keep",
    "Listed",
    "LocalTraining",
    "Measured",
    "Messages",
    "Mixup",
    "Model",
    "PerClient",
    "Plugin",
    "Schema",
    "Server",
    "ServerState",
    "Transcript",
    "Trunk",
    "Upload",
    "binary_cross_entropy",
    "canary_directions",
    "client_round",
    "clipped_sgd",
    "cross_entropy",
    "evaluate",
    "from_flax",
    "label_smoothing",
    "lenet",
    "linear",
    "local_update",
    "logistic",
    "mean_loss",
    "mlp",
    "one_client",
    "sgd",
    "simulate",
    "squared_error",
    "stack_clients",
    "trunk_cnn",
]
