"""Messages that other frameworks recorded: files of PyTorch, Flower and others become the views
that attacks take.

>>> import jax, jaxfl
>>> model = jaxfl.mlp(3, (4,), 2)
>>> sent = {"fc1.weight": (4, 3), "fc1.bias": (4,), "fc2.weight": (2, 4), "fc2.bias": (2,)}
>>> print(layout_of(model, sent))
fc1.weight (4, 3) -> Dense_0/kernel (3, 4), transposed
fc1.bias (4,) -> Dense_0/bias (4,)
fc2.weight (2, 4) -> Dense_1/kernel (4, 2), transposed
fc2.bias (2,) -> Dense_1/bias (2,)
"""

from jaxfl.recordings.arrays import read_arrays
from jaxfl.recordings.layout import Layout, OtherModelError, Placed, layout_of
from jaxfl.recordings.recording import Recording, RecordingWarning
from jaxfl.recordings.rounds import messages_from, read_rounds

__all__ = [
    "Layout",
    "OtherModelError",
    "Placed",
    "Recording",
    "RecordingWarning",
    "layout_of",
    "messages_from",
    "read_arrays",
    "read_rounds",
]
