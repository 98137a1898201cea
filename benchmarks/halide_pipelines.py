"""The pipelines of ``pictures.py`` in Halide, whose autoscheduler schedules them.

In: PyPI's ``halide``, a pipeline's name, a size. Out: ``HalideCall``: a compiled pipeline over arrays. Not its
business: the comparison (``halide_apps.py``).

Algorithms are the same ones, over the same sizes, which Halide is told as bounds of inputs and results. The edges of
what is computed in a pyramid repeat as ours do, by ``BoundaryConditions.repeat_edge``, which Halide's loops are parted
for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import halide as hl
import numpy as np
from benchmarks.pictures import (
    EPSILON,
    GAUSSIAN,
    GRAY,
    N_LEVELS,
    N_SCALES,
    N_STENCILS,
    REMAP_ALPHA,
    SIGMA_RANGE,
    SIGMA_SPACE,
    added,
)

from tilewright.core.types import Array

RIM = 64
"""Places around a picture whose edges a pipeline does not repeat: whole tiles may read beyond what is needed."""

x, y, c, k, z = (hl.Var(n) for n in "xyckz")
Made = tuple[Any, tuple[Any, ...], tuple[int, ...], type]
"""The last function, its inputs, the result's shape as NumPy has it, and its dtype."""


def f32(value: Any) -> Any:
    """A number of single precision: Python's are those of double precision otherwise."""
    return hl.f32(value)


def _image(dtype: Any, *shape: int, name: str = "picture", rim: int = 0) -> Any:
    """A parameter of NumPy's shape, whose dimensions Halide counts from the last; ``rim``: with places around it."""
    made = hl.ImageParam(dtype, len(shape), name)
    for d, n in enumerate(reversed(shape)):
        around = rim if d < 2 else 0
        made.dim(d).set_bounds(-around, n + 2 * around)
        made.dim(d).set_estimate(-around, n + 2 * around)
    return made


def _edged(function: Any, w: int, h: int) -> Any:
    return hl.BoundaryConditions.repeat_edge(function, [(0, w), (0, h)])


def _gray(rgb: Any) -> Any:
    return added(f32(GRAY[i]) * rgb[x, y, i] for i in range(3))


# --- stencils -------------------------------------------------------------------------------------------------------


def blur(h: int, w: int) -> Made:
    picture, across, out = _image(hl.UInt(16), h, w, rim=RIM), hl.Func("across"), hl.Func("out")
    across[x, y] = (picture[x, y] + picture[x + 1, y] + picture[x + 2, y]) // 3
    out[x, y] = (across[x, y] + across[x, y + 1] + across[x, y + 2]) // 3
    return out, (picture,), (h - 2, w - 2), np.uint16


def unsharp(h: int, w: int) -> Made:
    rgb = _image(hl.Float(32), 3, h, w)
    gray, down, ratio, out = (hl.Func(n) for n in ("gray", "down", "ratio", "out"))
    gray[x, y] = _gray(_edged(rgb, w, h))

    def smooth(at: Callable[[int], Any]) -> Any:
        return f32(GAUSSIAN[0]) * at(0) + added(f32(GAUSSIAN[i]) * (at(-i) + at(i)) for i in (1, 2, 3))

    # The gray of an edge repeated is an edge of the gray repeated, as is what is summed along the other axis.
    down[x, y] = smooth(lambda i: gray[x, y + i])
    ratio[x, y] = (f32(2) * gray[x, y] - smooth(lambda i: down[x + i, y])) / gray[x, y]
    out[x, y, c] = ratio[x, y] * rgb[x, y, c]
    return out, (rgb,), (3, h, w), np.float32


def harris(h: int, w: int) -> Made:
    rgb, gray = _image(hl.Float(32), 3, h, w, rim=RIM), hl.Func("gray")
    gray[x, y] = _gray(rgb)

    def derivative(name: str, dy: int, dx: int) -> Any:
        made = hl.Func(name)

        def side(sign: int, i: int) -> Any:
            return gray[x + 1 + sign * dx + i * dy, y + 1 + sign * dy + i * dx]

        made[x, y] = added(f32(a) * (side(1, i) - side(-1, i)) for a, i in ((1 / 12, -1), (2 / 12, 0), (1 / 12, 1)))
        return made

    across, down = derivative("across", 0, 1), derivative("down", 1, 0)

    def summed(name: str, a: Any, b: Any) -> Any:
        products, made = hl.Func(f"{name}_products"), hl.Func(name)
        products[x, y] = a[x, y] * b[x, y]
        made[x, y] = added(products[x + i, y + j] for j in range(3) for i in range(3))
        return made

    xx, yy, xy = summed("xx", across, across), summed("yy", down, down), summed("xy", across, down)
    trace, out = xx[x, y] + yy[x, y], hl.Func("out")
    out[x, y] = xx[x, y] * yy[x, y] - xy[x, y] * xy[x, y] - f32(0.04) * trace * trace
    return out, (rgb,), (h - 4, w - 4), np.float32


def stencil_chain(h: int, w: int) -> Made:
    picture = _image(hl.UInt(16), h, w)
    made = _edged(picture, w, h)
    for n in range(N_STENCILS):
        stage = hl.Func(f"stage{n}")
        stage[x, y] = added(
            hl.u16((j + 1) * (i + 1)) * made[x + i - 2, y + j - 2] for j in range(5) for i in range(5)
        )  # fmt: skip
        made = stage
    return made, (picture,), (h, w), np.uint16


# --- pyramids -------------------------------------------------------------------------------------------------------


def _halved(name: str, planes: Any, w: int, h: int, taps: Mapping[int, float]) -> Any:
    narrow, low, edged = hl.Func(f"{name}_narrow"), hl.Func(name), _edged(planes, w, h)
    narrow[x, y, k] = added(f32(a) * edged[2 * x + i, y, k] for i, a in taps.items())
    low[x, y, k] = added(f32(a) * narrow[x, 2 * y + i, k] for i, a in taps.items())
    return low


def _doubled(name: str, planes: Any, w: int, h: int) -> Any:
    wide, high, edged = hl.Func(f"{name}_wide"), hl.Func(name), _edged(planes, w, h)
    wide[x, y, k] = f32(0.75) * edged[x // 2, y, k] + f32(0.25) * edged[x // 2 - 1 + 2 * (x % 2), y, k]
    high[x, y, k] = f32(0.75) * wide[x, y // 2, k] + f32(0.25) * wide[x, y // 2 - 1 + 2 * (y % 2), k]
    return high


def _sizes(w: int, h: int, n: int) -> list[tuple[int, int]]:
    found = [(w, h)]
    for _ in range(n - 1):
        found.append(((found[-1][0] + 1) // 2, (found[-1][1] + 1) // 2))
    return found


def local_laplacian(h: int, w: int) -> Made:
    rgb, n, taps = _image(hl.UInt(16), 3, h, w), N_LEVELS, {-1: 1 / 8, 0: 3 / 8, 1: 3 / 8, 2: 1 / 8}
    colour, gray, remap, out = (hl.Func(a) for a in ("colour", "gray", "remap", "out"))
    colour[x, y, c] = hl.f32(rgb[x, y, c]) / f32(65535)
    gray[x, y, k] = added(f32(GRAY[i]) * colour[x, y, i] for i in range(3))
    f = hl.f32(x) / f32(256)
    remap[x] = f32(REMAP_ALPHA) * f * hl.exp(-f * f / f32(2))
    level = hl.f32(k) * f32(1 / (n - 1))
    place = hl.clamp(hl.i32(gray[x, y, 0] * f32((n - 1) * 256)), 0, (n - 1) * 256)
    around = hl.Func("around")
    around[x, y, k] = (gray[x, y, 0] - level) + level + remap[place - 256 * k]
    levels, inside, sizes = [around], [gray], _sizes(w, h, n)
    for j in range(1, n):
        levels.append(_halved(f"level{j}", levels[-1], *sizes[j - 1], taps))
        inside.append(_halved(f"inside{j}", inside[-1], *sizes[j - 1], taps))
    made = None
    for j in reversed(range(n)):
        at = inside[j][x, y, 0] * f32(n - 1)
        low = hl.clamp(hl.i32(at), 0, n - 2)
        part = at - hl.f32(low)
        laplacian = hl.Func(f"laplacian{j}")
        if made is None:
            laplacian[x, y, k] = levels[j][x, y, k]
        else:
            laplacian[x, y, k] = levels[j][x, y, k] - _doubled(f"wide{j}", levels[j + 1], *sizes[j + 1])[x, y, k]
        detail = (f32(1) - part) * laplacian[x, y, low] + part * laplacian[x, y, low + 1]
        grown = hl.Func(f"made{j}")
        grown[x, y, k] = detail if made is None else _doubled(f"grown{j}", made, *sizes[j + 1])[x, y, 0] + detail
        made = grown
    value = made[x, y, 0] * (colour[x, y, c] + f32(EPSILON)) / (gray[x, y, 0] + f32(EPSILON))
    out[x, y, c] = hl.u16(hl.clamp(value, f32(0), f32(1)) * f32(65535))
    return out, (rgb,), (3, h, w), np.uint16


def interpolate(h: int, w: int) -> Made:
    rgba, first, out = _image(hl.Float(32), 4, h, w), hl.Func("first"), hl.Func("out")
    first[x, y, k] = hl.select(k < 3, rgba[x, y, k] * rgba[x, y, 3], rgba[x, y, 3])
    levels, sizes = [first], _sizes(w, h, N_SCALES)
    for j in range(1, N_SCALES):
        levels.append(_halved(f"level{j}", levels[-1], *sizes[j - 1], {-1: 1 / 4, 0: 1 / 2, 1: 1 / 4}))
    made = levels[-1]
    for j in reversed(range(N_SCALES - 1)):
        wide, high, edged = hl.Func(f"wide{j}"), hl.Func(f"made{j}"), _edged(made, *sizes[j + 1])
        wide[x, y, k] = (edged[x // 2, y, k] + edged[(x + 1) // 2, y, k]) / f32(2)
        grown = (wide[x, y // 2, k] + wide[x, (y + 1) // 2, k]) / f32(2)
        high[x, y, k] = levels[j][x, y, k] + (f32(1) - levels[j][x, y, 3]) * grown
        made = high
    out[x, y, c] = made[x, y, c] / made[x, y, 3]
    return out, (rgba,), (3, h, w), np.float32


# --- a grid over places and values ----------------------------------------------------------------------------------


def bilateral_grid(h: int, w: int) -> Made:
    picture, cell, top = _image(hl.Float(32), h, w), SIGMA_SPACE, int(1 / SIGMA_RANGE + 0.5)
    sums, out, window = hl.Func("sums"), hl.Func("out"), hl.RDom([(0, cell), (0, cell)])
    value = hl.clamp(
        _edged(picture, w, h)[x * cell + window.x - cell // 2, y * cell + window.y - cell // 2], f32(0), f32(1)
    )  # fmt: skip
    at = hl.clamp(hl.i32(value * f32(1 / SIGMA_RANGE) + f32(0.5)), 0, top)
    sums[x, y, z, c] = f32(0)
    sums[x, y, at, c] += hl.select(c == 0, value, f32(1))

    def five(read: Callable[[int], Any]) -> Any:
        return read(-2) + f32(4) * read(-1) + f32(6) * read(0) + f32(4) * read(1) + read(2)

    values, across, smooth = (hl.Func(n) for n in ("values", "across", "smooth"))
    values[x, y, z, c] = five(lambda i: sums[x, y, z + i, c])
    across[x, y, z, c] = five(lambda i: values[x + i, y, z, c])
    smooth[x, y, z, c] = five(lambda i: across[x, y + i, z, c])
    own = hl.clamp(picture[x, y], f32(0), f32(1)) * f32(1 / SIGMA_RANGE)
    below = hl.clamp(hl.i32(own), 0, top)
    part_z, part_y, part_x = own - hl.f32(below), hl.f32(y % cell) / f32(cell), hl.f32(x % cell) / f32(cell)
    mixed, xs, ys = hl.Func("mixed"), x // cell, y // cell

    def between(a: Any, b: Any, part: Any) -> Any:
        return a + (b - a) * part

    def along_x(j: int, i: int) -> Any:
        return between(*(smooth[xs + m, ys + j, below + i, c] for m in (0, 1)), part_x)

    mixed[x, y, c] = between(*(between(along_x(0, i), along_x(1, i), part_y) for i in (0, 1)), part_z)
    out[x, y] = mixed[x, y, 0] / mixed[x, y, 1]
    return out, (picture,), (h, w), np.float32


# --- products -------------------------------------------------------------------------------------------------------


def matmul(h: int, w: int) -> Made:
    """Of ``h`` by ``w`` with ``w`` by ``h``."""
    a, b = _image(hl.Float(32), h, w, name="a"), _image(hl.Float(32), w, h, name="b")
    product, out, p = hl.Func("product"), hl.Func("out"), hl.RDom([(0, w)])
    product[x, y] = f32(0)
    product[x, y] += a[p, y] * b[x, p]
    out[x, y] = product[x, y]
    return out, (a, b), (h, h), np.float32


BUILDERS: Mapping[str, Callable[[int, int], Made]] = {
    "blur": blur,
    "unsharp": unsharp,
    "harris": harris,
    "local_laplacian": local_laplacian,
    "bilateral_grid": bilateral_grid,
    "interpolate": interpolate,
    "stencil_chain": stencil_chain,
    "matmul": matmul,
}


class HalideCall:
    """A pipeline scheduled for so many threads, ready to be called with arrays of its size."""

    def __init__(self, name: str, height: int, width: int, scheduler: str, threads: int) -> None:
        _plugin(scheduler)
        out, self.inputs, shape, dtype = BUILDERS[name](height, width)
        self.rim = RIM if name in ("blur", "harris") else 0
        self.result = np.empty(shape, dtype)
        for d, n in enumerate(reversed(shape)):
            out.output_buffer().dim(d).set_bounds(0, n)
        out.set_estimates([(0, n) for n in reversed(shape)])
        self.pipeline = hl.Pipeline(out)
        target = hl.get_host_target()
        parameters = {"parallelism": str(threads)}
        found = self.pipeline.apply_autoscheduler(target, hl.AutoschedulerParams(scheduler, parameters))
        self.schedule = found.schedule_source
        self.pipeline.compile_jit(target)
        self.buffer = hl.Buffer(self.result)

    def set(self, *arrays: Array) -> None:
        for parameter, array in zip(self.inputs, arrays, strict=True):
            if not self.rim:
                parameter.set(hl.Buffer(array))
                continue
            around = [(0, 0)] * (array.ndim - 2) + [(self.rim, self.rim)] * 2
            self.padded = np.pad(array, around, mode="edge")  # a buffer of Halide's does not keep it
            given = hl.Buffer(self.padded)
            given.set_min([-self.rim] * 2 + [0] * (array.ndim - 2))
            parameter.set(given)

    def __call__(self) -> Array:
        self.pipeline.realize(self.buffer)
        return self.result


def _plugin(scheduler: str) -> None:
    """Load a scheduler from the package's own folder, which the system's loader does not look into."""
    folder = Path(hl.__file__).parent / "lib64"
    ctypes.CDLL(str(folder / f"libautoschedule_{scheduler.lower()}.so"), mode=ctypes.RTLD_GLOBAL)
