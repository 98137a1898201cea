"""Every op with stages in every kind of dtype as machine code, against its reference.

The samples' own dtypes are compiled end to end by ``test_every_op``.
"""

import numpy as np
import pytest

from codegen.native import HOST, Native
from ops.running import Call, buffers, converted, describe, reference, same, sample_calls
from tilewright import ops
from tilewright.choose.default import schedule
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation
from tilewright.core.diag import OpError
from tilewright.core.graph import Attrs
from tilewright.core.opdef import Trait

# The sizes of these results come from the data: the runtime allocates them.
DATA_SIZED = {op for op in ops.ALL if op.bound is not None}
OPS = [
    op
    for op in ops.ALL
    if op.decompose is None and not op.traits & {Trait.CONTROL, Trait.STRUCTURAL} and op not in DATA_SIZED
]
every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
SWEEP = (types.f64, types.f16, types.bf16, types.i8, types.bool_)


@pytest.mark.one_in(4)
@every_op
def test_every_dtype_runs_natively(op):
    for dtype in SWEEP:
        for call in sample_calls(op):
            changed = converted(call, dtype)
            try:
                if changed is None or not changed.infer():
                    continue
            except OpError:
                continue
            check(op, changed)
            break


def check(op, call):
    expected = reference(op, call)
    for a, b in zip(run_native(op, call), expected, strict=True):
        assert same(a, b), f"{describe(op, call)}\n{a}\n{b}"


def run_native(op, call):
    ins = tuple(Buffer(f"in{k}", types.dtype_of(a.dtype), a.shape) for k, a in enumerate(call.arrays))
    outs = tuple(Buffer(f"out{k}", t.dtype, t.shape) for k, t in enumerate(call.infer()))
    items = tuple((op.compute or op.kernel)(ins, outs, call.attrs))
    temps = tuple(dict.fromkeys(b for b in buffers(items) if b not in {*ins, *outs}))
    kernel = schedule(Computation(ins, outs, items, temps), HOST)
    arrays = {b.name: np.ascontiguousarray(a).reshape(a.shape) for b, a in zip(ins, call.arrays, strict=True)}
    for b in kernel.params:
        arrays.setdefault(b.name, np.zeros(b.shape, b.dtype.numpy))
    Native(kernel)(*[arrays[b.name] for b in kernel.params])
    return [arrays[b.name].reshape(b.shape) for b in outs]


@pytest.mark.parametrize("width", [5, 16, 100])
@pytest.mark.parametrize("dtype", [types.f32, types.f16, types.i64])
def test_each_lane_reads_where_its_index_says(width, dtype):
    rng = np.random.default_rng(width)
    x = rng.integers(-90, 90, (7, 50)).astype(dtype.numpy)
    at = rng.integers(-50, 50, (7, width))
    call = Call(ops.gather_elements, (x, at), Attrs(ops.gather_elements.complete_attrs({"axis": 1})))
    (got,) = run_native(ops.gather_elements, call)
    np.testing.assert_array_equal(got, np.take_along_axis(x, at % 50, 1))


@pytest.mark.parametrize("width", [5, 16, 100])
@pytest.mark.parametrize("reduction", ["add", "max", "none"])
def test_rows_are_written_where_data_say(width, reduction):
    """Vectors along a row; rows of one index come one after the other."""
    rng = np.random.default_rng(width)
    x, updates = (rng.standard_normal((n, width)).astype(np.float32) for n in (6, 20))
    at = rng.integers(-6, 6, (20, 1))
    call = Call(ops.scatter_nd, (x, at, updates), Attrs(ops.scatter_nd.complete_attrs({"reduction": reduction})))
    check(ops.scatter_nd, call)
