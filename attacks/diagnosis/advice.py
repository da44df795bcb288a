"""Which attack to use, by what messages say of the client."""

from attacks.attributes.knowledge import Knowledge
from attacks.path import is_linear
from jaxfl import LocalTraining

NO_STEP = "no full-batch step"
BY_ROUND = "another rate in every round"
BY_ARRAY = "a rate for every array"
FROZEN = "arrays that are not trained"
SIGNS = "signs"
DRAWN = "drawn batches"
IN_ORDER = "batches in the records' order"
UNCHANGED = "nothing came back changed"
ROUND_LATE = "rounds off by one"
ONE_ROUND = "one round of something else"
LABELS = "other labels"
UNKNOWN = "unknown records or model"


def advice(cause: str, training: LocalTraining, knowledge: Knowledge | None) -> str:
    """Which attack to use on messages of a cause, of a client that was told a recipe."""
    one_step = knowledge is None or training.steps(len(knowledge.x)) == 1
    in_order = knowledge is not None and training.repeats_batches(len(knowledge.x))
    linear = "gls" if is_linear(training.optimizer) and not in_order else "gls_unrolled"
    unknown_rate = "`closed_form` with `learning_rate=None`, or the rate found"
    by_round = "`closed_form` with `ClosedForm(by_round=True)`"
    known = {
        "as told": "`closed_form`" if one_step else f"`{linear}` with this recipe",
        "several steps": "`gls` with the client's batch size and epochs",
        "epochs": "`gls` with so many epochs",
        "batches": "`gls` with this recipe",
        "momentum": "`gls` with this recipe",
        DRAWN: "`gls` with `shuffle=True` in the recipe",
        IN_ORDER: "`gls_unrolled` with `shuffle=False` in the recipe",
        "weight decay": "`gls` with `jaxfl.sgd(weight_decay=...)` in the recipe",
        "label smoothing": "the same attack on `jaxfl.label_smoothing(model, ...)`",
        "class weights": "a `Model` whose loss has them, or `gls` with `jaxfl.ClassWeights`",
        "Adam": "`decode_adam` for one full-batch step a round, else `gls_unrolled`",
        "learning rate": unknown_rate if one_step else "`gls` with this rate",
        BY_ROUND: by_round,
        BY_ARRAY: "the same attack on messages whose updates are divided by these rates; an array "
        "that is not trained says nothing",
        FROZEN: "the same attack on a `Model` in which these arrays are constants",
        SIGNS: "none: all but the signs of the changes is lost",
        "clipped": by_round
        if one_step
        else "the recipe with this clipping, simulated: `gls_unrolled`, `cos_matching`",
        "another activation": "the same attack on the model with that activation",
        "layout of arrays": "the same attack on messages in that layout",
        "no training": "other rounds",
        UNCHANGED: "messages whose models were sent before the round, and came back after it",
        ROUND_LATE: "the same attack on messages that pair each model with what came back of it",
        ONE_ROUND: "the same attack without that round",
        LABELS: "the same attack with the right labels, or with unknown ones (`y=None`)",
        NO_STEP: "`diagnose` with `training=LocalTraining(rate)`, the client's learning rate",
        "noise": "`gls` with `jaxfl.Upload` of this noise in the recipe: the likeliest values",
        UNKNOWN: "none before records, labels, model, loss and optimiser are compared with the "
        "client's: give each as it is, and `diagnose` again",
        "cannot be judged": "more rounds, or fewer unknown columns",
    }
    return known.get(cause, "the attack on a `Model` or `LocalTraining` that has this cause in it")
