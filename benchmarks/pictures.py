"""Eight pipelines over pictures, and a product, that Halide publishes as its apps, written in the language for kernels.

In: nothing. Out: ``PIPELINES``: kernels by name, and ``arguments``, pictures for them. Not its business: right answers
(``tests/language/test_pictures.py``), the same pipelines in Halide (``halide_pipelines.py``), speed
(``halide_apps.py``).

A picture is a plane or planes, rows and columns: ``[colour, y, x]``. A place outside of one is that of its nearest
edge. Each level of a pyramid repeats its own edges, where Halide's apps repeat those of the picture alone and make the
levels ever wider instead.

References: J. Ragan-Kelley et al., "Halide: a language and compiler for optimizing parallelism, locality, and
recomputation in image processing pipelines", PLDI 2013; S. Paris, S. W. Hasinoff, J. Kautz, "Local Laplacian filters",
SIGGRAPH 2011; J. Chen, S. Paris, F. Durand, "Real-time edge-aware image processing with the bilateral grid",
SIGGRAPH 2007; C. Harris, M. Stephens, "A combined corner and edge detector", 1988.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import exp, pi, sqrt
from operator import add
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import lang as tl
from tilewright.core.types import Array

GRAY = (0.299, 0.587, 0.114)
N_STENCILS, N_LEVELS, N_SCALES = 32, 8, 10
SIGMA_SPACE, SIGMA_RANGE = 8, 0.1
GAUSSIAN = tuple(exp(-k * k / (2 * 1.5**2)) / (sqrt(2 * pi) * 1.5) for k in range(4))
REMAP_ALPHA = 1 / (N_LEVELS - 1)
EPSILON = 0.01

Reader = Callable[[Any, Any], Any]
"""An element of a plane at a row and a column."""


def edged(plane: tl.Tensor) -> Reader:
    """Elements of a plane, whose edges go on for ever."""
    h, w = plane.shape
    return lambda y, x: plane[tl.clamp(y, 0, h - 1), tl.clamp(x, 0, w - 1)]


def added(values: Iterable[Any]) -> Any:
    return reduce(add, values)


def gray_of(rgb: tl.Tensor, y: Any, x: Any) -> Any:
    return GRAY[0] * rgb[0, y, x] + GRAY[1] * rgb[1, y, x] + GRAY[2] * rgb[2, y, x]


# --- stencils -------------------------------------------------------------------------------------------------------


@tw.kernel
def blur(picture: tl.u16("h", "w")) -> Any:
    """The mean of 3 by 3, one axis after the other, of numbers whose sums of three fit 16 bits."""
    h, w = picture.shape
    across = tl.compute((h, w - 2), lambda y, x: (picture[y, x] + picture[y, x + 1] + picture[y, x + 2]) // 3)
    return tl.compute((h - 2, w - 2), lambda y, x: (across[y, x] + across[y + 1, x] + across[y + 2, x]) // 3)


@tw.kernel
def unsharp(rgb: tl.f32(3, "h", "w")) -> Any:
    """Sharper by the difference to a Gaussian of 7 by 7 of its gray."""
    h, w = rgb.shape[1:]
    gray = tl.compute((h, w), lambda y, x: gray_of(rgb, y, x))

    def smooth(at: Callable[[int], Any]) -> Any:
        return GAUSSIAN[0] * at(0) + added(GAUSSIAN[k] * (at(-k) + at(k)) for k in (1, 2, 3))

    down = tl.compute((h, w), lambda y, x: smooth(lambda k: edged(gray)(y + k, x)))
    ratio = tl.compute(
        (h, w), lambda y, x: (2 * gray[y, x] - smooth(lambda k: edged(down)(y, x + k))) / gray[y, x]
    )  # fmt: skip
    return tl.compute(rgb.shape, lambda c, y, x: ratio[y, x] * rgb[c, y, x])


@tw.kernel
def harris(rgb: tl.f32(3, "h", "w")) -> Any:
    """How much of a corner each place is, from 3 by 3 sums of products of derivatives of the gray."""
    h, w = rgb.shape[1:]
    gray = tl.compute((h, w), lambda y, x: gray_of(rgb, y, x))
    inner = h - 2, w - 2

    def along(y: Any, x: Any, dy: int, dx: int) -> Any:
        """The derivative along ``(dy, dx)`` of a place's three neighbours on either side, weighed 1, 2, 1."""
        sides = (gray[y + 1 + dy + k * dx, x + 1 + dx + k * dy] for k in (-1, 0, 1))
        back = (gray[y + 1 - dy + k * dx, x + 1 - dx + k * dy] for k in (-1, 0, 1))
        return added(c * (a - b) for c, a, b in zip((1 / 12, 2 / 12, 1 / 12), sides, back, strict=True))

    across = tl.compute(inner, lambda y, x: along(y, x, 0, 1))
    down = tl.compute(inner, lambda y, x: along(y, x, 1, 0))

    def summed(a: tl.Tensor, b: tl.Tensor) -> Any:
        products = tl.compute(inner, lambda y, x: a[y, x] * b[y, x])
        return tl.compute(
            (h - 4, w - 4), lambda y, x: added(products[y + j, x + i] for j in range(3) for i in range(3))
        )  # fmt: skip

    xx, yy, xy = summed(across, across), summed(down, down), summed(across, down)

    def corner(y: Any, x: Any) -> Any:
        trace = xx[y, x] + yy[y, x]
        return xx[y, x] * yy[y, x] - xy[y, x] * xy[y, x] - 0.04 * trace * trace

    return tl.compute((h - 4, w - 4), corner)


@tw.kernel
def stencil_chain(picture: tl.u16("h", "w")) -> Any:
    """Stencils of 5 by 5 one after the other, each over two places more to every side than the next; sums wrap."""
    h, w = picture.shape
    rim = 2 * N_STENCILS

    def stencil(at: Reader, y: Any, x: Any) -> Any:
        return added((j + 1) * (i + 1) * at(y + j, x + i) for j in range(5) for i in range(5))

    at = edged(picture)
    made = tl.compute((h + 2 * rim - 4, w + 2 * rim - 4), lambda y, x: stencil(at, y - rim, x - rim))
    for k in range(2, N_STENCILS + 1):
        left = 2 * rim - 4 * k
        made = tl.compute(
            (h + left, w + left), lambda y, x, made=made: stencil(lambda j, i: made[j, i], y, x)
        )  # fmt: skip
    return made


# --- pyramids -------------------------------------------------------------------------------------------------------


def halved(plane: tl.Tensor, taps: Mapping[int, float]) -> tl.Tensor:
    """Planes of half as many rows and columns, which ``taps`` weighs at a place's neighbours along each axis."""
    n, h, w = plane.shape

    def narrower(k: Any, y: Any, x: Any) -> Any:
        return added(c * plane[k, y, tl.clamp(2 * x + i, 0, w - 1)] for i, c in taps.items())

    narrow = tl.compute((n, h, (w + 1) // 2), narrower)

    def lower(k: Any, y: Any, x: Any) -> Any:
        return added(c * narrow[k, tl.clamp(2 * y + i, 0, h - 1), x] for i, c in taps.items())

    return tl.compute((n, (h + 1) // 2, (w + 1) // 2), lower)


def doubled(plane: tl.Tensor, like: tl.Tensor) -> tl.Tensor:
    """Planes as large as those of ``like``: each place is three parts of the nearest one and one of the next."""
    (n, h, w), (rows, columns) = plane.shape, like.shape[1:]

    def wider(k: Any, y: Any, x: Any) -> Any:
        near, other = plane[k, y, x // 2], plane[k, y, tl.clamp(x // 2 - 1 + 2 * (x % 2), 0, w - 1)]
        return 0.75 * near + 0.25 * other

    wide = tl.compute((n, h, columns), wider)

    def higher(k: Any, y: Any, x: Any) -> Any:
        near, other = wide[k, y // 2, x], wide[k, tl.clamp(y // 2 - 1 + 2 * (y % 2), 0, h - 1), x]
        return 0.75 * near + 0.25 * other

    return tl.compute((n, rows, columns), higher)


@tw.kernel
def local_laplacian(rgb: tl.u16(3, "h", "w")) -> Any:
    """Details stronger and edges kept: each place's Laplacian pyramid is one of a picture remapped around its gray."""
    h, w = rgb.shape[1:]
    n = N_LEVELS
    colour = tl.compute(rgb.shape, lambda c, y, x: rgb[c, y, x].cast(tl.f32) / 65535)
    gray = tl.compute((1, h, w), lambda k, y, x: gray_of(colour, y, x))

    def remapped_by(i: Any) -> Any:
        f = (i - (n - 1) * 256).cast(tl.f32) / 256
        return REMAP_ALPHA * f * tl.exp(-f * f / 2)

    remap = tl.compute(2 * (n - 1) * 256 + 1, remapped_by)

    def around(k: Any, y: Any, x: Any) -> Any:
        level = k.cast(tl.f32) * (1 / (n - 1))
        place = tl.clamp((gray[0, y, x] * ((n - 1) * 256)).cast(tl.i32), 0, (n - 1) * 256)
        return (gray[0, y, x] - level) + level + remap[place - 256 * k + (n - 1) * 256]

    taps = {-1: 1 / 8, 0: 3 / 8, 1: 3 / 8, 2: 1 / 8}
    levels, inside = [tl.compute((n, h, w), around)], [gray]
    for _ in range(n - 1):
        levels.append(halved(levels[-1], taps))
        inside.append(halved(inside[-1], taps))

    made = None
    for j in reversed(range(n)):
        wide = doubled(levels[j + 1], levels[j]) if made is not None else None
        grown = doubled(made, inside[j]) if made is not None else None

        def chosen(k: Any, y: Any, x: Any, j: int = j, wide: Any = wide, grown: Any = grown) -> Any:
            level = inside[j][0, y, x] * (n - 1)
            low = tl.clamp(level.cast(tl.i32), 0, n - 2)
            part = level - low.cast(tl.f32)
            below, above = (levels[j][low + i, y, x] for i in (0, 1))
            if wide is not None:
                below, above = below - wide[low, y, x], above - wide[low + 1, y, x]
            detail = (1 - part) * below + part * above
            return detail if grown is None else grown[0, y, x] + detail

        made = tl.compute(inside[j].shape, chosen)

    def coloured(c: Any, y: Any, x: Any) -> Any:
        value = made[0, y, x] * (colour[c, y, x] + EPSILON) / (gray[0, y, x] + EPSILON)
        return (tl.clamp(value, 0.0, 1.0) * 65535).cast(tl.u16)

    return tl.compute(rgb.shape, coloured)


@tw.kernel
def interpolate(rgba: tl.f32(4, "h", "w")) -> Any:
    """Places of no opacity filled from those around, by a pyramid of colours that are multiplied by their opacity."""
    levels = [
        tl.compute(rgba.shape, lambda c, y, x: tl.where(c < 3, rgba[c, y, x] * rgba[3, y, x], rgba[3, y, x]))
    ]  # fmt: skip
    for _ in range(N_SCALES - 1):
        levels.append(halved(levels[-1], {-1: 1 / 4, 0: 1 / 2, 1: 1 / 4}))
    made = levels[-1]
    for level in reversed(levels[:-1]):
        made = _blended(level, made)
    return tl.compute((3, *rgba.shape[1:]), lambda c, y, x: made[c, y, x] / made[3, y, x])


def _blended(level: tl.Tensor, below: tl.Tensor) -> tl.Tensor:
    """A level over the next smaller one, grown, where it is not opaque."""
    (n, _, columns), (h, w) = level.shape, below.shape[1:]

    def wider(c: Any, y: Any, x: Any) -> Any:
        return (below[c, y, x // 2] + below[c, y, tl.clamp((x + 1) // 2, 0, w - 1)]) / 2

    wide = tl.compute((n, h, columns), wider)

    def higher(c: Any, y: Any, x: Any) -> Any:
        grown = (wide[c, y // 2, x] + wide[c, tl.clamp((y + 1) // 2, 0, h - 1), x]) / 2
        return level[c, y, x] + (1 - level[3, y, x]) * grown

    return tl.compute(level.shape, higher)


# --- a grid over places and values ----------------------------------------------------------------------------------


@tw.kernel
def bilateral_grid(picture: tl.f32("h", "w")) -> Any:
    """Smooth within regions of like values: sums over cells of place and value, blurred, and read between cells."""
    h, w = picture.shape
    cell, n_values = SIGMA_SPACE, int(1 / SIGMA_RANGE + 0.5) + 1
    rows, columns, rim = (h - 1) // cell + 2, (w - 1) // cell + 2, 2
    # One cell more than a picture needs, two for the blur on either side; of values also.
    grid = n_values + 1 + 2 * rim
    shape = rows + 2 * rim, columns + 2 * rim, grid
    at = edged(picture)
    sums, counts = tl.zeros(shape), tl.zeros(shape)
    for y, x in tl.grid(*shape[:2]):
        for j, i in tl.grid(cell, cell):
            value = tl.clamp(at((y - rim) * cell + j - cell // 2, (x - rim) * cell + i - cell // 2), 0.0, 1.0)
            z = tl.clamp((value * (1 / SIGMA_RANGE) + 0.5).cast(tl.i32), 0, n_values - 1) + rim
            sums[y, x, z] += value
            counts[y, x, z] += 1.0

    def blurred(cells: tl.Tensor) -> tl.Tensor:
        def five(read: Callable[[int], Any]) -> Any:
            return read(0) + 4 * read(1) + 6 * read(2) + 4 * read(3) + read(4)

        values = tl.compute(
            (rows + 4, columns + 4, grid - 4), lambda y, x, z: five(lambda k: cells[y, x, z + k])
        )  # fmt: skip
        across = tl.compute(
            (rows + 4, columns, grid - 4), lambda y, x, z: five(lambda k: values[y, x + k, z])
        )  # fmt: skip
        return tl.compute((rows, columns, grid - 4), lambda y, x, z: five(lambda k: across[y + k, x, z]))

    smooth = blurred(sums), blurred(counts)

    def between(y: Any, x: Any) -> Any:
        value = tl.clamp(picture[y, x], 0.0, 1.0) * (1 / SIGMA_RANGE)
        z = tl.clamp(value.cast(tl.i32), 0, n_values - 1)
        part_z = value - z.cast(tl.f32)
        part_y, part_x = ((a % cell).cast(tl.f32) / cell for a in (y, x))

        def of(cells: tl.Tensor) -> Any:
            def mixed(a: Any, b: Any, part: Any) -> Any:
                return a + (b - a) * part

            def along_x(j: int, k: int) -> Any:
                return mixed(*(cells[y // cell + j, x // cell + i, z + k] for i in (0, 1)), part_x)

            return mixed(*(mixed(along_x(0, k), along_x(1, k), part_y) for k in (0, 1)), part_z)

        total, count = map(of, smooth)
        return total / count

    return tl.compute((h, w), between)


# --- products -------------------------------------------------------------------------------------------------------


@tw.kernel
def matmul(a: tl.f32("m", "k"), b: tl.f32("k", "n")) -> Any:
    (m, k), n = a.shape, b.shape[1]
    return tl.compute((m, n), lambda i, j: tl.sum(lambda p: a[i, p] * b[p, j], k))


PIPELINES: Mapping[str, Any] = {
    "blur": blur,
    "unsharp": unsharp,
    "harris": harris,
    "local_laplacian": local_laplacian,
    "bilateral_grid": bilateral_grid,
    "interpolate": interpolate,
    "stencil_chain": stencil_chain,
    "matmul": matmul,
}


def arguments(name: str, height: int, width: int, seed: int = 0) -> tuple[Array, ...]:
    """A picture of that size as the pipeline takes it; of ``matmul`` two matrices, the second one turned."""
    rng = np.random.default_rng(seed)
    if name in ("blur", "stencil_chain"):
        return (rng.integers(0, 1 << 14, (height, width), np.uint16),)
    if name == "local_laplacian":
        return (rng.integers(0, 1 << 16, (3, height, width), np.uint16),)
    if name == "matmul":
        return rng.random((height, width), np.float32), rng.random((width, height), np.float32)
    planes = {"bilateral_grid": (), "interpolate": (4,)}.get(name, (3,))
    return (rng.random((*planes, height, width), np.float32) * np.float32(0.98) + np.float32(0.01),)
