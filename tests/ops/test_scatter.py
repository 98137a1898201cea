"""scatter_elements, scatter_nd, dynamic_update_slice."""

import numpy as np
import pytest

from ops.oracle import case_id, check_case, check_symbolic, sample_cases
from tilewright import ops
from tilewright.build import driver, texts
from tilewright.build.options import Options
from tilewright.core import types as T
from tilewright.core.diag import OpError
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.ops import scatter as sc

OPS = (sc.scatter_elements, sc.scatter_nd, sc.dynamic_update_slice)
S = Sym("S", 0)


@pytest.mark.parametrize("case", sample_cases(OPS), ids=case_id)
def test_samples(case) -> None:
    check_case(case)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_symbolic_sizes_even_empty(n) -> None:
    """Nothing is written where a dimension turns out empty."""
    x, i, u = np.ones((n, 2), np.float32), np.array([[0, -1], [3, 9]]), np.full((2, 2), 3, np.float32)
    types = (TensorType(T.f32, (S, 2)), TensorType(T.i64, (2, 2)), TensorType(T.f32, (2, 2)))
    check_symbolic(sc.scatter_elements, (x, i, u), types, {"axis": 0, "reduction": "add"})
    pairs = (types[0], types[1], TensorType(T.f32, (2,)))
    check_symbolic(sc.scatter_nd, (x, i, u[0]), pairs, {"reduction": "none"})


def test_cache_update_at_a_run_time_position() -> None:
    cache, new = np.zeros((6, 2), np.float32), np.ones((1, 2), np.float32)
    types = (TensorType(T.f32, (S, 2)), TensorType(T.f32, (1, 2)), TensorType(T.i64, (2,)))
    (out,) = check_symbolic(sc.dynamic_update_slice, (cache, new, np.array([4, 0])), types, {})
    assert out[:, 0].tolist() == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("dtype", [T.f16, T.bf16, T.u8, T.bool_], ids=str)
def test_other_dtypes_add(dtype) -> None:
    x = np.ones(3, dtype.numpy)
    t = TensorType(dtype, (3,))
    args, types = (x, np.array([1, 1, -1]), x), (t, TensorType(T.i64, (3,)), t)
    check_symbolic(sc.scatter_elements, args, types, {"axis": 0, "reduction": "add"})


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        (sc.scatter_elements, [(2, 3), (2, 3), (2, 2)], {"axis": 0, "reduction": "none"}),
        (sc.scatter_elements, [(2, 3), (2, 4), (2, 4)], {"axis": 0, "reduction": "none"}),
        (sc.scatter_elements, [(2, 3), (2, 3), (2, 3)], {"axis": 0, "reduction": "avg"}),
        (sc.scatter_elements, [(0, 3), (2, 3), (2, 3)], {"axis": 0, "reduction": "add"}),
        (sc.scatter_nd, [(2, 3), (4, 3), (4,)], {"reduction": "none"}),
        (sc.scatter_nd, [(2, 3), (4, 1), (4, 2)], {"reduction": "none"}),
        (sc.scatter_nd, [(2, 0), (4, 2), (4,)], {"reduction": "none"}),
        (sc.dynamic_update_slice, [(2, 3), (3, 1), (2,)], {}),
    ],
)
def test_refused(op, shapes, attrs) -> None:
    with pytest.raises(OpError):
        op.infer([TensorType(T.i64, s) for s in shapes], Attrs(attrs))


def scattered_rows(axis: int) -> Graph:
    """Numbers added to zeros at places along ``axis`` that the data choose."""
    pool = Pool()
    at, updates = pool.input("at", TensorType(T.i64, (40, 5))), pool.input("updates", TensorType(T.f32, (40, 5)))
    b = Builder(pool)
    zeros = b(ops.expand, b.const(0.0, T.f32), shape=(40, 9))
    y = b(ops.scatter_elements, zeros, at, updates, axis=axis, reduction="add")
    return Graph("scattered", pool, (at, updates), (y,), ("y",))


def test_rows_are_changed_right_after_they_are_filled() -> None:
    """Row by row, and so on threads; where a row may be changed for any other one, all are filled before."""
    text = "\n".join(texts.kernel_texts(scattered_rows(1), Options(), "tile", "scatter"))
    assert text.count("\n    for ") == 1
    text = "\n".join(texts.kernel_texts(scattered_rows(0), Options(), "tile", "scatter"))
    assert text.count("\n    for ") == 2


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_are_filled_and_changed_are_right(axis: int) -> None:
    rng = np.random.default_rng(axis)
    at, updates = rng.integers(-9, 9, (40, 5)), rng.standard_normal((40, 5)).astype(np.float32)
    wanted = np.zeros((40, 9), np.float32)
    rows, columns = np.indices(at.shape)
    place = (rows, at % 9) if axis else (np.where(at < 0, at + 40, at), columns)
    np.add.at(wanted, place, updates)
    found = driver.compile_graph(scattered_rows(axis), threads=2)(at, updates)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_an_element_is_found_by_its_address_scale() -> None:
    """Its size is no number that is multiplied anew for each place."""
    text = "\n".join(texts.kernel_texts(scattered_rows(1), Options(), "llvm", "scatter"))
    assert "mul nsw i64 1," not in text
