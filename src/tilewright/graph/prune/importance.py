"""Which channels a model can best do without: those whose weights are small.

In: groups of channels, how many should go. Out: the labels of those that go. Not its business: removing them (``cut``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd

import numpy as np
import numpy.typing as npt

from tilewright.core.types import Array
from tilewright.graph.prune.coupling import ChannelGroup, Coupling

Scores = npt.NDArray[np.float64]

POWERS: Mapping[str, Callable[[Array], Array]] = {"l1": np.abs, "l2": np.square}
"""By the name of a norm: what is summed over the weights of a channel. Channels are compared by the sums, as roots of
them have the same order."""


def sizes_of(array: Array, norm: str) -> Scores:
    """The size of each number, f64 in its shape; what is no number is infinite, and goes last."""
    with np.errstate(over="ignore"):
        return np.nan_to_num(POWERS[norm](array.astype(np.float64)), nan=np.inf, posinf=np.inf)


def smallest_of_all(sizes: Sequence[Scores], amount: float) -> list[npt.NDArray[np.bool_]]:
    """Which numbers of these arrays are the part ``amount`` that is smallest, bool in their shapes.

    Of equal ones at the limit as many go as are missing, spread evenly: no array goes before another.
    """
    everywhere = np.concatenate([np.zeros(0), *map(np.ravel, sizes)])
    gone, n_gone = np.zeros(len(everywhere), bool), int(amount * len(everywhere))
    if n_gone:
        limit = np.partition(everywhere, n_gone - 1)[n_gone - 1]
        gone = everywhere < limit
        equal, missing = np.flatnonzero(everywhere == limit), n_gone - int(gone.sum())
        gone[equal[np.arange(missing) * len(equal) // missing]] = True
    ends = np.cumsum([s.size for s in sizes], dtype=np.int64)
    return [gone[end - s.size : end].reshape(s.shape) for end, s in zip(ends.tolist(), sizes, strict=True)]


def scores_of(coupling: Coupling, groups: Sequence[ChannelGroup], norm: str) -> list[Scores]:
    """For each channel of each group the size of all weights that make or read it, f64[n]."""
    sums: dict[int, float] = {}
    for product in coupling.products:
        size = sizes_of(product.weights.array(), norm)
        for k, axis in enumerate(product.weights.axes):
            each = size.sum(axis=tuple(i for i in range(size.ndim) if i != k))
            for label, n in zip(coupling.labels(axis).tolist(), each.tolist(), strict=True):
                sums[label] = sums.get(label, 0.0) + n
    return [np.array([sums.get(label, 0.0) for label in g.labels]) for g in groups]


def smallest(
    groups: Sequence[ChannelGroup], scores: Sequence[Scores], amount: float, is_global: bool, round_to: int
) -> list[tuple[int, ...]]:
    """For each group the places of the channels that go, in order, about ``amount`` of them and never all.

    With ``is_global`` the channels of all groups are compared, each by its size over the mean of its group; else every
    group loses the same part. What is left of a group is rounded to a multiple of ``round_to`` channels, unless it has
    not even two such multiples; heads are not rounded.
    """
    n_gone = [amount * len(s) for s in scores]
    if is_global and scores:
        n_gone = [float(gone.sum()) for gone in smallest_of_all([_relative(s) for s in scores], amount)]
    found = []
    for group, size, n in zip(groups, scores, n_gone, strict=True):
        step = round_to // gcd(round_to, group.width)
        step = 1 if group.is_heads or len(size) < 2 * step else step
        n_left = min(max(round((len(size) - n) / step) * step, step), len(size))
        order = np.argsort(size, kind="stable")
        found.append(tuple(sorted(order[: len(size) - n_left].tolist())))
    return found


def _relative(scores: Scores) -> Scores:
    """Over the mean of those that are finite."""
    finite = scores[np.isfinite(scores)]
    return scores / finite.mean() if finite.any() else scores
