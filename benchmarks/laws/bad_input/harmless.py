"""What the generator spoils and yet is good: where, how, and why."""

import re
from collections.abc import Callable, Iterable
from typing import Any

Harmless = tuple[str, str, str]
"""A function's name and a place within the function's arguments, as "accuracy values", a regular
expression; words of what is done there; and why that is good."""

NAMES = "a number of a round, a client or a detector is its name"
FEWER = "there may be as few"
NOT_READ = "the function does not read it"
FAILED = ("NaN", "infinity", "an entry -1")
ALL: tuple[Harmless, ...] = (
    (r"\b(rounds|detector_number|ids?|identities|\w*senders)$", "an entry", NAMES),
    (
        r"^(by_classes|dirichlet|overlapping_classes|hide) y$",
        "an entry",
        "any whole number is a class",
    ),
    (r"^by_discriminants sources$", "an entry", NAMES),
    (r"^accuracy (values|truth)$", "an entry 1000000", "a value that is nobody's"),
    (r"\.calibrated_on$", "an entry 1000000", "as many pairs may calibrate"),
    (r"\.pool$", "infinity", "shadows may be drawn from everybody"),
    (r"participation$", "less", FEWER),
    (r"^(unit|follow|cluster_updates|pair_similarities) descriptors$", "less", FEWER),
    (r"^majority_rate truth$", "less", FEWER),
    (r"^best_of answers.*(scores|status)", "", "an attack's own answer"),
    *((r"^best_of answers\[\d\]\.", how, "an attack may fail") for how in FAILED),
    (r"^accuracy values$", "another axis", "answers have any leading axes"),
    (r"^matched_filter (gradients|vectors)$", "less", FEWER),
    (r"^matched_filter vectors$", "another axis", "vectors have any leading axes"),
    (r"^fit_filter_noise gradients$", "less", FEWER),
    (r"^cluster_agreement names$", "an entry 1000000", "clusters have any names"),
    (r"\bseen$", "less", FEWER),
    (r"^(round_counts shares|split_variances variance|explain masks)$", "less", FEWER),
    (r"^(public_model|name_by_public_model|explain|lies_in_span) x$", "less", FEWER),
    (
        r"^(fit_public_model x_public|by_discriminants x|classifier_score probabilities)$",
        "less",
        FEWER,
    ),
    (r"^(by_classes|dirichlet|overlapping_classes) y$", "less", FEWER),
    (r"\bx$", "one axis more", "dense layers take records of any shape of as many features"),
    (
        r"^(infer_counts observed|(pooled_head|last_bias|updates_as_vectors) pseudo_gradient)$",
        "a leaf",
        NOT_READ,
    ),
    (r"^statistics messages\.received$", "a leaf of NaN", NOT_READ),
    (r"^observe aggregates\.received$", "a leaf of NaN", "models that diverged say nothing"),
    (r"^ssim (image|references)$", "another axis", "images have any leading axes"),
    (r"^matching_accuracy threshold$", "infinity", "all pairs, or none"),
    (r"^canary_directions params$", "a leaf", "any tree of numbers has directions"),
    (r"^canary_directions params$", "one more leaf", "any tree of numbers has directions"),
    (r"\.directions$", "a row less", "there may be fewer canaries"),
    (r"\b(received|returned|params)$", "a leaf of NaN", "a model may diverge"),
)


def reason(
    function: Callable[..., Any], place: str, done: str, more: Iterable[Harmless] = ()
) -> str | None:
    """Why it is good to spoil an argument so, or None; `more` is what others declare."""
    at = f"{function.__name__} {place}"
    told = (*ALL, *more)
    return next((why for where, how, why in told if re.search(where, at) and how in done), None)
