"""3x3 convolutions of stride 1 in their direct form and in tiles of 2x2 and 4x4, one after the other in one run.

    python -m benchmarks.winograd
    python -m benchmarks.winograd groups      those of several groups alone

In: nothing. Out: a line per shape: milliseconds of CPU time of one thread (best of many calls, interleaved), how many
times faster the tiled forms are, the share of the FMA peak of the same run counted in direct-form FLOPs, and which form
the compiler chooses. Not its business: whole networks (``benchmarks/latency.py``).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from tilewright import ops
from tilewright.build import driver
from tilewright.codegen.cpu.peak import PeakMeter
from tilewright.core.graph import Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.graph.forms.winograd import Winograd
from tilewright.ops.winograd import transformed_weights
from tilewright.target.target import Target

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "ResNet": [(56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512)],
    "VGG": [
        (224, 64, 64),
        (112, 64, 128),
        (112, 128, 128),
        (56, 128, 256),
        (56, 256, 256),
        (28, 512, 512),
        (14, 512, 512),
    ],
    "UNet": [(128, 32, 32), (64, 64, 64), (32, 128, 128)],
    "DenseNet": [(56, 128, 32), (28, 128, 32), (14, 128, 32)],
    "odd": [(19, 100, 257), (37, 17, 17)],
    "groups": [
        (56, 64, 64, 2),
        (28, 256, 256, 4),
        (56, 256, 512, 16),
        (56, 512, 512, 32),
        (28, 512, 512, 32),
        (28, 1024, 512, 32),
        (14, 1024, 1024, 32),
    ],
}
"""Sides of the image, channels read and made, and groups where they are several."""


def convolution(size: int, n_in: int, n_out: int, groups: int, tile: int) -> Graph:
    """relu(conv(x) + bias), channels last, padding 1; ``tile`` 0 is the direct form."""
    rng, depth = np.random.default_rng(0), n_in // groups
    w = (rng.standard_normal((n_out, depth, 3, 3)) / np.sqrt(9 * depth)).astype(np.float32)
    pool = Pool()
    x, pads = pool.input("x", TensorType(f32, (1, size, size, n_in))), ((1, 1), (1, 1))
    if tile:
        tiled = {"tile": tile, "pads": pads, "groups": groups}
        node = pool.add(ops.winograd_conv, [x, pool.const(transformed_weights(w, tile))], tiled)
    else:
        attrs = {"strides": (1, 1), "pads": pads, "dilations": (1, 1), "groups": groups, "layout": "NHWC"}
        node = pool.add(ops.conv, [x, pool.const(w)], attrs)
    bias = pool.const(rng.standard_normal(n_out).astype(np.float32))
    (y,) = pool.results(pool.add(ops.add, (*pool.results(node), bias), {}))
    (y,) = pool.results(pool.add(ops.relu, [y], {}))
    return Graph("conv", pool, (x,), (y,), ("y",))


def measure(name: str, shape: tuple[int, ...], seconds: float, peak: PeakMeter) -> None:
    size, n_in, n_out, groups = (*shape, 1)[:4]
    graph = convolution(size, n_in, n_out, groups, 0)
    chosen = [n.attrs["tile"] for n in Winograd(peak.lanes).run(graph).nodes() if n.op is ops.winograd_conv]
    graphs = {tile: convolution(size, n_in, n_out, groups, tile) for tile in (0, 2, 4)}
    models = {tile: driver.compile_graph(g, threads=1, accuracy="exact") for tile, g in graphs.items()}
    x = np.random.default_rng(1).standard_normal((1, size, size, n_in)).astype(np.float32)
    best, top, end = dict.fromkeys(models, float("inf")), 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end or min(best.values()) == float("inf"):
        top = max(top, peak.fma_gflops(0.004))
        for tile, model in models.items():
            for _ in range(3):
                start = time.thread_time()
                model(x)
                best[tile] = min(best[tile], time.thread_time() - start)
    share = 18e-9 * size * size * n_in * n_out / groups / min(best[2], best[4]) / top
    times = " | ".join(f"{t * 1e3:.2f}" for t in best.values())
    form = f"{chosen[0]}x{chosen[0]}" if chosen else "direct"
    apart = f" in {groups}" if groups > 1 else ""
    print(f"| {name} {size}x{size}, {n_in}-{n_out}{apart} | {times}", end="")
    print(f" | {best[0] / best[2]:.2f} | {best[0] / best[4]:.2f} ", end="")
    print(f"| {share:.2f} | {form} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each shape")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in SHAPES]:
        parser.error(f"no shapes are called {' or '.join(unknown)}: there are {', '.join(SHAPES)}")
    peak = PeakMeter(Target.parse("native"))
    print("| convolution | direct | 2x2 | 4x4 | direct / 2x2 | direct / 4x4 | share of peak, better | chosen |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.names or SHAPES:
        for shape in SHAPES[name]:
            measure(name, shape, options.seconds, peak)


if __name__ == "__main__":
    main()
