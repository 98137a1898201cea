"""Gradients by PyTorch's own calls, for ATen's backward calls that PyTorch does not take apart.

In: the arguments of such a call. Out: ``GRADIENTS``, decompositions by the names of overloads; among them forward calls
whose results mean to a backward call what depends on strides. Not its business: gradients that need a form of their own
(``torch.aten.backward``, ``torch.aten.pool_backward``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# --- distances ------------------------------------------------------------------------------------------------------


def _by_difference(grad: Tensor, difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """The gradient of norms of order ``p`` by the differences; 0 where a distance is 0, as in PyTorch.

    ``grad`` and ``distance`` have one axis less, the last, which is the norm's.
    """
    grad, distance = grad.unsqueeze(-1), distance.unsqueeze(-1)
    if p == 0:
        return difference * 0 * grad
    if p == 1:
        return difference.sign() * grad
    if math.isinf(p):
        return difference.sign() * grad * (difference.abs() == distance)
    size = difference.abs()
    if p == 2:
        found = difference * (grad / distance)
    elif p < 2:
        found = difference.sign() * size.pow(p - 1) * grad / distance.pow(p - 1)
    else:
        found = difference * size.pow(p - 2) * grad / distance.pow(p - 1)
    is_flat = (distance == 0) | (difference == 0) if p < 1 else distance == 0
    return found.masked_fill(is_flat, 0)


def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, distance: Tensor) -> Tensor:
    """By ``x1``: of [..., m, k], from distances of [..., m, n]."""
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return _by_difference(grad, difference, distance, p).sum(-2)


def _pdist_backward(grad: Tensor, x: Tensor, p: float, distance: Tensor) -> Any:
    import torch

    if not isinstance(x.shape[0], int):
        return NotImplemented
    left, right = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    found = _by_difference(grad, x[left] - x[right], distance, p)
    return torch.zeros_like(x).index_add(0, left, found).index_add(0, right, -found)


# --- determinants ---------------------------------------------------------------------------------------------------


def _factors(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factors and pivots as backward calls take them, which for a contiguous real matrix are its transpose's, and 1 or
    -1 by the number of rows that were swapped."""
    import torch

    made, pivots, _ = torch.linalg.lu_factor_ex(x.mT if x.is_contiguous() else x)
    own = torch.arange(1, x.shape[-1] + 1, dtype=pivots.dtype, device=x.device)
    return made, pivots, torch.where(pivots == own, 1.0, -1.0).to(x.dtype).prod(-1)


def _det(x: Tensor) -> Any:
    if x.is_complex():
        return NotImplemented
    made, pivots, parity = _factors(x)
    return made.diagonal(0, -2, -1).prod(-1) * parity, made, pivots


def _slogdet(x: Tensor) -> Any:
    if x.is_complex():
        return NotImplemented
    made, pivots, parity = _factors(x)
    diagonal = made.diagonal(0, -2, -1)
    return diagonal.sign().prod(-1) * parity, diagonal.abs().log().sum(-1), made, pivots


# --- copies and scales ----------------------------------------------------------------------------------------------


def _replication_pad_backward(grad: Tensor, x: Tensor, pads: list[Any]) -> Tensor:
    """Each gradient goes to the element of which its place is a copy, axis by axis from the last on."""
    import torch

    for k in range(len(pads) // 2):
        axis = x.dim() - 1 - k
        places = torch.arange(grad.shape[axis], device=grad.device) - pads[2 * k]
        shape = [x.shape[a] if a >= axis else grad.shape[a] for a in range(x.dim())]
        grad = grad.new_zeros(shape).index_add(axis, places.clamp(0, x.shape[axis] - 1), grad)
    return grad


def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: list[Any]) -> Tensor:
    """By the source, whose elements went to the true places in their order; those left over get 0."""
    import torch

    n = math.prod(sizes)
    mask = mask.expand(grad.shape).flatten()
    at = torch.where(mask, mask.long().cumsum(0) - 1, n)
    return grad.new_zeros((n + 1,)).scatter(0, at, grad.flatten())[:n].reshape(sizes)


def _rrelu_backward(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, is_result: bool
) -> Any:
    import torch

    if training and upper - lower > 1e-6:
        return grad * noise
    return torch.ops.aten.leaky_relu_backward(grad, x, (lower + upper) / 2, is_result)


def _weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, axis: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By the direction ``v`` and the length ``g``; ``norms`` are those of ``v`` along all other axes."""
    norms = norms.to(g.dtype)
    others = [k for k in range(v.dim()) if k != axis % v.dim()]
    along = (grad * v).sum(others, keepdim=True)
    return g / norms * (grad - v * (along / norms / norms)), along / norms


# --- bags of rows ---------------------------------------------------------------------------------------------------

MEAN, MAX = 1, 2


def _owners(offsets: Tensor, n_bags: Any, indices: Tensor) -> Tensor:
    """The bag of each index."""
    import torch

    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets[:n_bags], places, right=True) - 1


def _embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, owners: Tensor, sizes: Tensor, greatest: Tensor, n_rows: Any,
    scale_grad_by_freq: bool, mode: int, sparse: bool, weights: Tensor | None, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """By the table's rows; ``sizes`` and ``greatest`` are those that the forward call found.

    PyTorch 2.13 scales by the frequencies of other indices than those it means to; that is left to it.
    """
    if sparse or scale_grad_by_freq:
        return NotImplemented
    table = grad.new_zeros((n_rows, grad.shape[1]))
    if mode == MAX:
        is_filled = (sizes > 0).unsqueeze(-1)
        return table.scatter_add(0, (greatest * is_filled).long(), grad * is_filled)
    owners = _owners(offsets, grad.shape[0], indices)
    if mode == MEAN:
        grad = grad / sizes.clamp(min=1).unsqueeze(-1).to(grad.dtype)
    rows = grad[owners]
    if weights is not None:
        rows = rows * weights.unsqueeze(-1)
    if padding_idx >= 0:
        rows = rows.masked_fill((indices == padding_idx).unsqueeze(-1), 0)
    return table.index_add(0, indices, rows)


def _bag_weights_backward(
    grad: Tensor, table: Tensor, indices: Tensor, offsets: Tensor, owners: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    """By the factor of each index."""
    found = (grad[_owners(offsets, grad.shape[0], indices)] * table[indices]).sum(-1)
    return found.masked_fill(indices == padding_idx, 0) if padding_idx >= 0 else found


# --- sampling at coordinates ----------------------------------------------------------------------------------------

NEAREST, CUBIC, A = 1, 2, -0.75
BORDER, REFLECTION = 1, 2
Taps = list[tuple["Tensor", "Tensor", "Tensor"]]
"""Whole places along one axis, their weights, and how fast those grow with the coordinate."""


def _folded(at: Tensor, low: float, span: Any) -> tuple[Tensor, Tensor]:
    """Coordinates folded back at ``low`` and ``low + span``, and the sign with which they then move."""
    import torch

    if span == 0:
        return at * 0, at * 0
    moved = at - low
    flips = (moved.abs() / span).floor()
    rest = moved.abs() - flips * span
    is_odd = flips % 2 != 0
    sign = torch.where(moved < 0, -1.0, 1.0).to(at.dtype)
    return torch.where(is_odd, span - rest, rest) + low, torch.where(is_odd, -sign, sign)


def _kept(at: Tensor, size: Any, padding: int, align: bool) -> tuple[Tensor, Tensor]:
    """Coordinates brought inside by the rule for those outside, and how fast they then move."""
    import torch

    speed = torch.ones_like(at)
    if padding == REFLECTION:
        at, speed = _folded(at, 0.0, size - 1) if align else _folded(at, -0.5, size)
    if padding:
        speed = speed * ((at > 0) & (at < size - 1))
        at = at.clamp(0, size - 1)
    return at, speed


def _cubic(t: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The weights at the distances 1 + t, t, 1 - t, 2 - t (Keys 1981), and how they grow with ``t``."""

    def far(d: Tensor) -> tuple[Tensor, Tensor]:
        return ((A * d - 5 * A) * d + 8 * A) * d - 4 * A, (3 * A * d - 10 * A) * d + 8 * A

    def near(d: Tensor) -> tuple[Tensor, Tensor]:
        return ((A + 2) * d - (A + 3)) * d * d + 1, (3 * (A + 2) * d - 2 * (A + 3)) * d

    (a, da), (b, db), (c, dc), (d, dd) = far(1 + t), near(t), near(1 - t), far(2 - t)
    return [(a, da), (b, db), (c, -dc), (d, -dd)]


def _taps(at: Tensor, size: Any, mode: int, padding: int, align: bool) -> Taps:
    import torch

    if mode == CUBIC:
        floor = at.floor()
        places = [_kept(floor + k, size, padding, align)[0] for k in (-1, 0, 1, 2)]
        return [(p, *w) for p, w in zip(places, _cubic(at - floor), strict=True)]
    at, speed = _kept(at, size, padding, align)
    if mode == NEAREST:
        return [(at.round(), torch.ones_like(at), torch.zeros_like(at))]
    floor = at.floor()
    return [(floor, floor + 1 - at, -speed), (floor + 1, at - floor, speed)]


def _grid_sampler_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align: bool, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """By the image, of [batch, channels, *sizes], and by the coordinates, of [batch, *points, len(sizes)]."""
    import torch

    n, sizes, points = x.dim() - 2, x.shape[2:], grid.shape[1:-1]
    # sums of many products, which half precision would round one by one
    wide = torch.float64 if grid.dtype == torch.float64 else torch.float32
    rows, image = grad.to(wide).flatten(2), x.to(wide).flatten(2)
    scales = [(size - 1 if align else size) / 2 for size in sizes]
    taps = []
    for k, size in enumerate(sizes):  # the grid's last axis counts from the last spatial axis on
        at = (grid[..., n - 1 - k].to(wide).flatten(1) + 1) * scales[k]
        taps.append(_taps(at if align else at - 0.5, size, mode, padding, align))
    by_image, by_grid = torch.zeros_like(image), [torch.zeros_like(taps[0][0][0]) for _ in sizes]
    for corner in itertools.product(*taps):
        flat, is_inside = torch.zeros_like(corner[0][0], dtype=torch.int64), torch.ones_like(corner[0][0])
        for (place, _, _), size in zip(corner, sizes, strict=True):
            is_inside = is_inside * ((place >= 0) & (place <= size - 1))
            # taps beyond the image are clamped, as `gather` needs a place, and have the weight 0
            flat = flat * size + place.to(torch.int64).clamp(0, size - 1)
        flat = flat.unsqueeze(1).expand(rows.shape)
        if wanted[0]:
            weight = math.prod((w for _, w, _ in corner), start=is_inside)
            by_image = by_image.scatter_add(2, flat, rows * weight.unsqueeze(1))
        if wanted[1] and mode != NEAREST:  # the nearest element does not change with the coordinate
            value = (image.gather(2, flat) * rows).sum(1) * is_inside
            for k in range(n):
                others = (w for j, (_, w, _) in enumerate(corner) if j != k)
                by_grid[k] = by_grid[k] + math.prod(others, start=value * corner[k][2])
    # the chain rule for the step from [-1, 1] to elements
    moved = torch.stack([by_grid[k] * scales[k] for k in reversed(range(n))], -1)
    return (
        by_image.reshape(x.shape).to(x.dtype) if wanted[0] else None,
        moved.reshape(*grid.shape[:1], *points, n).to(grid.dtype) if wanted[1] else None,
    )


GRADIENTS: Mapping[str, Callable[..., Any]] = {
    "_linalg_det.default": _det,
    "_linalg_slogdet.default": _slogdet,
    **{f"replication_pad{n}d_backward.default": _replication_pad_backward for n in (1, 2, 3)},
    "masked_scatter_backward.default": _masked_scatter_backward,
    "rrelu_with_noise_backward.default": _rrelu_backward,
    "_weight_norm_interface_backward.default": _weight_norm_backward,
    "_cdist_backward.default": _cdist_backward,
    "_pdist_backward.default": _pdist_backward,
    "_embedding_bag_backward.default": _embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward.default": _bag_weights_backward,
    "grid_sampler_2d_backward.default": _grid_sampler_backward,
    "grid_sampler_3d_backward.default": _grid_sampler_backward,
}
