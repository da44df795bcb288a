"""FedAvg, simulated: what the clients of a run send, and what a server makes of it.

`fedavg` is the entrance, `rounds` the compiled program, `host_held` rounds whose clients' records
stay on the host.
"""

from jaxfl.simulation.fedavg import simulate

__all__ = ["simulate"]
