"""The digit images that the example trains and tests on: scikit-learn's bundled 8x8 scans, no download.

Comes out: float32 images in NCHW with values in [0, 1] and their labels. The images lie in the order of the people
who wrote them, so the last ones, held out here, are by hands that training never saw.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

N_HELD_OUT = 540


class Digits(NamedTuple):
    """Images `[n, 1, 8, 8]` and the digit that each shows."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def load() -> tuple[Digits, Digits]:
    """The training digits and the held-out digits, always the same ones."""
    bunch = load_digits()
    images = (bunch.images[:, np.newaxis] / 16.0).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    training = Digits(images[:-N_HELD_OUT], labels[:-N_HELD_OUT])
    held_out = Digits(images[-N_HELD_OUT:], labels[-N_HELD_OUT:])
    return training, held_out
