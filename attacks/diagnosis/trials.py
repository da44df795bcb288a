"""Recipes that are tried on one client's messages.

Threat model: as of `attacks.diagnosis.causes`, which asks.
"""

import dataclasses
import functools
import warnings

import jax.numpy as jnp

from attacks.attributes.candidate_decoding.closed_form import Decoding, closed_form
from attacks.attributes.candidate_decoding.explanation import judge
from attacks.attributes.candidate_decoding.simulated_client import model_of_gradients
from attacks.attributes.knowledge import Knowledge
from attacks.fit import Fit, FitWarning
from attacks.fixed_draws import fixed_key
from attacks.path import LocalPath, at_place, local_path
from jaxfl import LocalTraining, Messages, Model


@dataclasses.dataclass(frozen=True)
class RecipeTrial:
    """Tries recipes on one client's messages."""

    model: Model
    messages: Messages
    knowledge: Knowledge
    training: LocalTraining

    @functools.cached_property
    def path(self) -> LocalPath:
        """Path of the recipe that is tried."""
        return local_path(self.training, len(self.knowledge.x))

    @property
    def length(self) -> float:
        """Length of the recipe's path, in steps of plain SGD along one gradient."""
        return float(self.path.total)

    @functools.cached_property
    def of_gradients(self) -> Model:
        """The model whose records' gradients enter the client's updates alike."""
        if self.knowledge.y is None:
            return self.model
        return model_of_gradients(self.model, self.training, jnp.asarray(self.knowledge.y))

    @functools.cached_property
    def decoded(self) -> Decoding:
        """Decoding as if of as many steps as are tried, whatever their rate."""
        seen = at_place(self.messages, self.path.centre)
        return decoded(self.of_gradients, seen, self.knowledge)

    def fit(self) -> Fit:
        """Fit of the recipe that is tried."""
        known = self.model, self.messages, self.knowledge, self.decoded
        return judge(*known, self.training, fixed_key())


def decoded(model: Model, messages: Messages, knowledge: Knowledge) -> Decoding:
    """What `closed_form` reads, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return closed_form(model, messages, knowledge)
