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


def scores_of(coupling: Coupling, groups: Sequence[ChannelGroup], norm: str) -> list[Scores]:
    """For each channel of each group the size of all weights that make or read it, f64[n]."""
    sums: dict[int, float] = {}
    for product in coupling.products:
        size = POWERS[norm](product.weights.array().astype(np.float64))
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
        relative = [s / s.mean() if s.any() else s for s in scores]
        everywhere = np.sort(np.concatenate(relative))
        limit = everywhere[min(int(amount * len(everywhere)), len(everywhere) - 1)]
        n_gone = [float((s < limit).sum()) for s in relative]
    found = []
    for group, size, n in zip(groups, scores, n_gone, strict=True):
        step = round_to // gcd(round_to, group.width)
        step = 1 if group.is_heads or len(size) < 2 * step else step
        n_left = min(max(round((len(size) - n) / step) * step, step), len(size))
        order = np.argsort(size, kind="stable")
        found.append(tuple(sorted(order[: len(size) - n_left].tolist())))
    return found
