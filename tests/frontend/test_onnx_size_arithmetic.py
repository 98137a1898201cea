"""Sizes computed from a shape, and what reads them: beside ONNX Runtime, at sizes small and large.

What runs there is never refused here, and what is taken here gives the same.
"""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnxruntime
import pytest

from frontend.onnx_build import F32, I64, evaluated, info, model, node
from tilewright.core.diag import ImportFailed
from tilewright.core.expr import bounds, evaluate, symbols
from tilewright.core.graph import Graph
from tilewright.frontend.onnx.importer import import_onnx

SIZES = (8, 9, 15, 16, 50, 51, 100, 128, 399, 400, 401, 408, 416, 512)


class Model:
    """Nodes on the size of ``x``'s first dimension, as a vector of one element."""

    def __init__(self, rows: int) -> None:
        table = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        self.constants = {"zero": np.array([0]), "row": np.ones((1, 3), np.float32), "three": np.array([3])}
        self.constants |= {"table": table, "point": np.array(0), "one": np.array(1)}
        self.nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"])]

    def add(self, op: str, *operands: str, **attributes: int) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, list(operands), [name], **attributes))
        return name

    def constant(self, value: float, dtype: type = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array([value], dtype)
        return name

    def size(self, choose: random.Random) -> str:
        """Some steps of arithmetic on the size, none of which leaves the numbers from 0 on."""
        value = "n"
        for _ in range(choose.randint(1, 3)):
            kind, k = choose.choice(("div", "div", "mul", "add", "floor", "ceil", "share")), choose.choice((2, 3, 4, 8))
            if kind in ("floor", "ceil"):
                value = self.add("Div", self.add("Cast", value, to=F32), self.constant(k, np.float32))
                value = self.add("Cast", self.add(kind.title(), value), to=I64)
            elif kind == "share":
                value = self.add("Mul", self.add("Cast", value, to=F32), self.constant(1 / 8, np.float32))
                value = self.add("Cast", value, to=I64)
            else:
                value = self.add(kind.title(), value, self.constant(k))
        return value

    def part(self, choose: random.Random, size: str) -> str:
        """Rows of the table: from its start, up to its end, or about its middle."""
        start, stop = choose.choice([("zero", size), (self.half(size), size), ("zero", self.half(size))])
        return self.add("Slice", "table", start, stop, "zero")

    def half(self, size: str) -> str:
        return self.add("Div", size, self.constant(2))

    def reader(self, choose: random.Random, size: str) -> str:
        kind = choose.choice(("slice", "slice", "expand", "range", "both", "sum"))
        if kind == "slice":
            return self.part(choose, size)
        if kind == "range":
            return self.add("Range", "point", self.add("Squeeze", size, "zero"), "one")
        wide = self.add("Expand", "row", self.add("Concat", size, "three", axis=0))
        if kind == "expand":
            return wide
        part = self.add("Slice", "table", "zero", size, "zero")
        return self.add("Add", wide, part) if kind == "sum" else self.add("Concat", wide, part, axis=0)

    def built(self, *outputs: str) -> onnx.ModelProto:
        return model(self.nodes, [info("x", ["n", 1])], list(outputs), self.constants)


def takes(g: Graph | None, n: int) -> bool:
    """Would a call with this size be let in?"""
    if g is None:
        return False
    (size,) = {s for d in g.inputs[0].shape for s in symbols(d)}
    lo, hi = bounds(size)
    inside = (lo is None or lo <= n) and (hi is None or n <= hi)
    return inside and all(evaluate(e, {size: n}) >= 0 for e in g.constraints)


def check_sizes(seed: int) -> None:
    choose = random.Random(seed)
    made = Model(choose.choice((50, 64, 7, 600)))
    m = made.built(made.reader(choose, made.size(choose)))
    try:
        g = import_onnx(m)
    except ImportFailed:
        g = None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for n in SIZES:
        x = np.ones((n, 1), np.float32)
        try:
            wanted = session.run(None, {"x": x})
        except Exception:  # a refusal; ONNX Runtime has several kinds
            assert not takes(g, n), (seed, n)
            continue
        assert g is not None and takes(g, n), (seed, n)
        (got,) = evaluated(g, {"x": x})
        np.testing.assert_array_equal(got, wanted[0], err_msg=f"{seed}, {n}")


@pytest.mark.parametrize("seed", range(40))
def test_random_size_arithmetic(seed: int) -> None:
    check_sizes(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_500_random_size_arithmetics() -> None:
    for seed in range(500):
        check_sizes(seed)
