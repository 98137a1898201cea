"""Every op's samples, compiled to native code and run, against the op's NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import ops
from tilewright.build import driver
from tilewright.core.diag import CompileError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph, Pool
from tilewright.core.opdef import OpDef, Sample
from tilewright.core.types import Array, dtype_of, tensor_type_of

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-11}


def graph_of(op: OpDef, sample: Sample) -> Graph:
    """A graph of one op whose operands are inputs."""
    pool = Pool()
    inputs = tuple(pool.input(f"x{k}", tensor_type_of(a)) for k, a in enumerate(sample.arrays))
    operands = list(inputs)
    if op is ops.loop:  # the trip count bounds what the iterations append
        operands[0] = pool.const(sample.arrays[0])
    outputs = pool.results(pool.add(op, operands, sample.attrs))
    return Graph(op.name, pool, inputs, outputs, tuple(f"y{k}" for k in range(len(outputs))))


def has_no_bound(op: OpDef, sample: Sample) -> bool:
    """Does a loop carry a value that grows? Such a loop is refused."""
    if op is not ops.loop:
        return False
    body, n = sample.attrs["body"], sample.attrs["n_carried"]
    return any(a.shape != b.shape for a, b in zip(body.inputs[2 : 2 + n], body.outputs[1 : 1 + n], strict=True))


def assert_close(got: Array, want: Array) -> None:
    """Equal shapes and dtypes; floats within the dtype's tolerance of the largest value, others exactly."""
    assert got.dtype == want.dtype and got.shape == want.shape
    tolerance = TOLERANCE.get(want.dtype.name)
    if tolerance is None:
        if dtype_of(want.dtype).is_narrow:  # these compare by their values, NaN with NaN
            got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max()) if finite.size else 1.0
    np.testing.assert_allclose(a, b, rtol=tolerance * 4, atol=tolerance * min(scale, 1e30))


@pytest.mark.parametrize("op", [o for o in ops.ALL if o.samples is not None], ids=lambda o: o.name)
@pytest.mark.parametrize(
    "which", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.slow)], ids=["first", "rest"]
)
def test_native_code_equals_the_reference(op: OpDef, which: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_LAPACK", "off")  # whose vectors have other signs (test_decompositions)
    assert op.samples is not None
    for sample in list(op.samples(np.random.default_rng(0)))[which]:
        graph = graph_of(op, sample)
        with np.errstate(all="ignore"):
            want = evaluate_graph(graph, sample.arrays)
        if has_no_bound(op, sample):
            with pytest.raises(CompileError, match="no bound"):
                driver.compile_graph(graph, optimize=1)
            continue
        model = driver.compile_graph(graph, optimize=1)
        got = model(*sample.arrays)
        for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            assert_close(np.asarray(g), w)


def test_every_op_has_samples() -> None:
    assert [o.name for o in ops.ALL if o.samples is None] == []
