"""Membership inference (MIA) by decoding: the weight of every record in a client's messages; one
column may be unknown.

Threat model: an honest-but-curious server that sees the messages of a client that takes one
full-batch step a round, holds records with their labels, of which some are the client's, and knows
how many. A record that was not there has weight 0 in the messages
(`attacks.attributes.candidate_decoding`), whatever the model makes of it.
"""

from typing import Any

import numpy as np

from attacks.attributes.candidate_decoding.closed_form import ClosedForm, Decoding, closed_form
from attacks.attributes.knowledge import (
    Knowledge,
    check_knowledge,
    check_one_column,
    erase,
)
from attacks.fit import Status
from attacks.membership.alike import warn_of_alike
from attacks.membership.mixture import Membership
from jaxfl import Messages, Model
from jaxfl.domains import Count, checked
from jaxfl.watching import on_host


@checked
def decode_membership(
    model: Model,
    messages: Messages,
    knowledge: Knowledge,
    members: Count,
    *,
    settings: ClosedForm | None = None,
) -> tuple[Membership, Decoding]:
    """Membership and the unknown column at once, from a full-batch client's messages (see
    `closed_form`).

    Args:
      model: the model that was trained.
      messages: the client's messages in the rounds to be used.
      knowledge: records that may or may not be the client's, labels known, one unknown column.
      members: how many of them are; FedAvg weighs clients by it, so the server knows.
      settings: see `ClosedForm`.

    Returns:
      The membership, and the decoding with the values of the unknown column.

    Warns:
      UncheckedWarning: if records are equal in all that is known, and some are members.

    Raises:
      ValueError: as `closed_form`; if labels are unknown, or `members` exceeds the records.
    """
    knowledge = check_knowledge(model, messages, knowledge)
    check_one_column("decode_membership", knowledge)
    decoding = closed_form(model, messages, knowledge, members=members, settings=settings)
    assert decoding.presence is not None
    known = erase(knowledge)
    warn_of_alike("decode_membership", known, knowledge.y, decoding.presence[:, None])
    return judge_presence(decoding.presence, decoding.status), decoding


@on_host("a threshold, in NumPy")
@checked
def judge_presence(presence: Any, status: Any) -> Membership:
    """The decoder's part of `decode_membership`, on the presence of every record `[records]`."""
    scores = np.where(int(status) == Status.FAILED, np.nan, np.asarray(presence))
    return Membership(members=scores > 0.5, scores=scores, status=int(status))
