"""A linear least-squares client's own optimum, read out of its messages (Driouich 2022 and 2023), and the attribute from it.

Threat model: an honest-but-curious server that knows a client's public columns and targets, and receives its messages. The
client minimises `|X theta - y|^2 / m` by full-batch gradient descent of step `eta`, E steps per round. With H = X'X every
message obeys (Driouich 2022, proof of Proposition 2)

    u_t = theta_t (received) - theta_t (returned) = W theta_t - v,    W = I - (I - 2 eta H / m)^E,    v = W theta*.

All of it in NumPy and float64: messages of a deterministic run sink into few directions.
"""

from attacks.local_optimum.attribute import InferredAttribute, infer_binary_attribute, infer_by_logistic, infer_in_box
from attacks.local_optimum.moments import Moments, local_moments, structured_moments
from attacks.local_optimum.optimum import LocalOptimum, NoisyOptimum, linear_parameters, local_optimum, noisy_local_optimum

__all__ = [
    "InferredAttribute",
    "LocalOptimum",
    "Moments",
    "NoisyOptimum",
    "infer_binary_attribute",
    "infer_by_logistic",
    "infer_in_box",
    "linear_parameters",
    "local_moments",
    "local_optimum",
    "noisy_local_optimum",
    "structured_moments",
]
