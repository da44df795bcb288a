"""Adam and AdamW, as an audit is told them."""

import functools
from typing import Any

import optax

ADAM_WITH_DECAY = functools.cache(lambda decay: functools.partial(optax.adamw, weight_decay=decay))
"""AdamW of a decay: one function for each, since recipes are told apart by it."""


def adam(weight_decay: float) -> Any:
    """Adam, or AdamW if the model decays."""
    return ADAM_WITH_DECAY(weight_decay) if weight_decay else optax.adam


def is_adam(optimizer: Any) -> bool:
    """Whether it is one of these."""
    return optimizer is optax.adam or getattr(optimizer, "func", None) is optax.adamw


def decay_of(optimizer: Any) -> float:
    """The weight decay of one of these; 0 of any other."""
    is_decayed = getattr(optimizer, "func", None) is optax.adamw
    return float(optimizer.keywords["weight_decay"]) if is_decayed else 0.0
