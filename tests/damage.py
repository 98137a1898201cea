"""Damaged ONNX files by seed, and what must become of each: a typed error or the right result.

``python -m damage FIRST LAST`` checks a range in its own process, which a test starts, so that a crash, a hang or a
large allocation in native code is seen and names its seed. Each seed is printed before it is tried.
"""

from __future__ import annotations

import faulthandler
import resource
import sys
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto

import tilewright as tw
from frontend.onnx_build import I64, info, model, node
from frontend.test_onnx_fuzz import controlled, convolutional
from graphs import RandomGraph
from tilewright.core.diag import CompileError
from tilewright.core.expr import evaluate, symbols
from tilewright.core.graph import Graph
from tilewright.core.types import Array, TensorType
from tilewright.frontend.onnx.importer import import_onnx

SECONDS = 60  # more than any small model takes on a busy machine
MEMORY = 12 << 30
MOST_ELEMENTS = 1e6  # of a tensor in a model that is run
NUMBERS = (0, 1, -1, 2, -2, 3, 5, 7, 64, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
SPECIAL = (0.0, -0.0, 1e-45, 3.4e38, float("nan"), float("inf"), float("-inf"))
OPS = (
    "Add Gemm Concat Transpose TopK Expand Loop Pad Conv Softmax Slice Gather Reshape ReduceMax Div Cast Squeeze "
    "Unsqueeze GatherND ScatterND CumSum Where Tile Resize NonZero OneHot Split LayerNormalization MatMul Relu Erf"
).split()


def recurrent() -> onnx.ModelProto:
    """A recurrence, indexing, sorting and a size that the data decide."""
    nodes = [
        node("LSTM", ["x", "w", "r"], ["h", "last"], hidden_size=4, direction="forward"),
        node("Squeeze", ["h", "one"], ["s"]), node("TopK", ["s", "two"], ["t", "at"], axis=-1),
        node("Gather", ["table", "ids"], ["g"]), node("NonZero", ["ids"], ["nz"]),
        node("ReduceSum", ["t", "one"], ["sum"], keepdims=0), node("Pad", ["g", "pads"], ["p"], mode="edge"),
        node("ScatterND", ["table", "where", "rows"], ["u"]),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((1, 16, 3), np.float32), "r": rng.standard_normal((1, 16, 4), np.float32),
        "one": np.array([1]), "two": np.array([2]), "table": rng.standard_normal((6, 2), np.float32),
        "pads": np.array([0, 1, 1, 0, 0, 2]), "where": np.array([[1], [4]]), "rows": np.ones((2, 2), np.float32),
    }  # fmt: skip
    inputs = [info("x", ["T", 2, 3]), info("ids", ["A", "B"], I64)]
    return model(nodes, inputs, ["sum", "at", "nz", "p", "u", "last"], constants)


@cache
def originals() -> tuple[bytes, ...]:
    return tuple(m.SerializeToString() for m in (convolutional(), controlled(), recurrent()))


def damaged(seed: int) -> bytes:
    """One of the originals: cut short, with bytes changed, or with fields changed so that the file stays readable."""
    rng = np.random.default_rng(seed)
    data = originals()[seed % len(originals())]
    kind = rng.integers(8)
    if kind == 0:
        return data[: rng.integers(len(data))]
    if kind <= 2:
        changed = bytearray(data)
        for _ in range(rng.integers(1, 6)):
            changed[rng.integers(len(data))] = rng.integers(256)
        return bytes(changed)
    m = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        change_field(m, rng)
    return m.SerializeToString()


def change_field(m: onnx.ModelProto, rng: np.random.Generator) -> None:
    def pick(items):
        return items[rng.integers(len(items))]

    n = pick(m.graph.node)
    names = sorted({name for x in m.graph.node for name in (*x.input, *x.output)})
    match pick("attribute attribute input input output op dims ints ints floats floats dtype size size".split()):
        case "attribute" if n.attribute:
            a = pick(n.attribute)
            a.i = pick(NUMBERS)
            a.ints[:] = [pick(NUMBERS) for _ in range(len(a.ints) if rng.random() < 0.7 else rng.integers(6))]
        case "input" if n.input:
            n.input[rng.integers(len(n.input))] = pick(names)
        case "output":
            n.output[0] = pick(names)
        case "op":
            n.op_type = pick(OPS)
        case "dims":
            pick(m.graph.initializer).dims[:] = [pick(NUMBERS) for _ in range(rng.integers(5))]
        case "dtype":
            pick(m.graph.initializer).data_type = int(rng.integers(27))
        case "size":
            dims = pick(m.graph.input).type.tensor_type.shape.dim
            if dims:
                pick(dims).dim_value = pick(NUMBERS)
        case "ints" | "floats":
            t = pick(m.graph.initializer)
            kind, values = (np.int64, NUMBERS) if t.data_type == I64 else (np.float32, SPECIAL)
            if t.data_type in (I64, TensorProto.FLOAT) and t.raw_data:
                a = np.frombuffer(t.raw_data, kind).copy()
                a[rng.integers(a.size)] = pick(values)
                t.raw_data = a.tobytes()


def check(seed: int) -> str:
    """Import, compile and run a damaged file; says how it ended. Anything but that raises."""
    data = damaged(seed)
    return judged(lambda: (import_onnx(data), tw.compile(data, cache=False, threads=1 + seed % 2)), seed)


def judged(made: Callable[[], tuple[Graph, tw.CompiledModel]], seed: int) -> str:
    """How a file ended whose graph and code ``made`` gives: refused, stopped, or run with the reference's results."""
    try:
        graph, compiled = made()
    except CompileError as e:
        assert str(e)
        return "refused"
    arrays = arguments(graph, seed)
    if arrays is None:
        return "too large to run"
    try:
        result = compiled(*arrays)
    except tw.TilewrightError as e:
        return f"stopped: {type(e).__name__}"
    got = result if isinstance(result, tuple) else (result,)
    case = RandomGraph(graph, arrays, seed)
    try:
        expected = case.expected()
        values = case.rounded().values()
    except (tw.TilewrightError, IndexError, ValueError) as e:
        return f"native ran, the reference refuses: {type(e).__name__}"
    for g, e in zip(got, expected, strict=True):
        assert g.shape == e.shape and g.dtype == e.dtype, f"{g.dtype}{g.shape} for {e.dtype}{e.shape}"
    if not all(_is_moderate(v) for v in values):
        return "ran, with overflows"
    case.assert_close(got, factor=1024)
    return "ran"


def _is_moderate(a: Array) -> bool:
    """Is it certain that rounding and the order of operations can't turn these numbers into infinities?"""
    return a.dtype.kind in "iub" or bool((np.abs(a.astype(np.float64)) < 1e15).all())


def arguments(graph: Graph, seed: int) -> list[Array] | None:
    """Arrays that fit the graph's inputs; None when they or a result would be large."""
    rng = np.random.default_rng(seed)
    sizes = {s: min(max(2, s.lo or 0), s.hi or 2) for s in graph.symbols()}

    def shape_of(t: TensorType) -> list[int]:
        return [evaluate(d, sizes) if symbols(d) <= sizes.keys() else 1 for d in t.shape]

    types = [t for n in (*graph.inputs, *graph.nodes()) for t in n.types]
    if any(np.prod([float(d) for d in shape_of(t)]) > MOST_ELEMENTS for t in types):
        return None
    return [rng.integers(0, 2, shape_of(n.type)).astype(n.dtype.numpy) for n in graph.inputs]


def main(first: int, last: int, check: Callable[[int], str] = check) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for seed in range(first, last):
        print(f"{seed}: ", end="", flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print(check(seed), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
