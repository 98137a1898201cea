"""Runs one op three ways: by its reference, by its stages on the tile interpreter, by its smaller ops' references."""

from dataclasses import dataclass, replace

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Serial, loads
from tilewright.core.graph import CONST, INPUT, PROJ, Attrs, Builder, Pool
from tilewright.core.types import tensor_type_of
from tilewright.tile.interp import run
from tilewright.tile.lower import lower

TOLERANCE = {"f64": 1e-10, "f32": 3e-5, "f16": 4e-3, "bf16": 3e-2}


@dataclass(frozen=True)
class Call:
    """An op on concrete operands."""

    op: object
    arrays: tuple
    attrs: Attrs

    def infer(self):
        self.op.check_arity(len(self.arrays))
        result = self.op.infer([tensor_type_of(a) for a in self.arrays], self.attrs)
        return result if isinstance(result, tuple) else (result,)


def sample_calls(op, seed=0):
    return [
        Call(op, tuple(s.arrays), Attrs(op.complete_attrs(s.attrs))) for s in op.samples(np.random.default_rng(seed))
    ]


def describe(op, call):
    return f"{op.name}({', '.join(f'{a.dtype}{list(a.shape)}' for a in call.arrays)})[{call.attrs}]"


def reference(op, call):
    result = op.reference(list(call.arrays), call.attrs)
    return result if isinstance(result, tuple) else (result,)


def converted(call, dtype):
    """The call with every operand of its main dtype in ``dtype``; None when there is nothing to convert."""
    kinds = [types.dtype_of(a.dtype) for a in call.arrays]
    main = next((k for k in kinds if k is types.f32), kinds[0] if kinds else None)
    if main is None or dtype is main:
        return None
    arrays = tuple(convert(a, dtype) if k is main else a for a, k in zip(call.arrays, kinds, strict=True))
    return replace(call, arrays=arrays)


def convert(a, dtype):
    if dtype.is_integer and a.dtype.kind not in "iub":
        a = np.clip(np.nan_to_num(a.astype(np.float64)), 0 if not dtype.is_signed else -9, 9)
        a = np.where((a > -1) & (a < 0), -1, np.where((a > 0) & (a < 1), 1, a))  # divisors stay divisors
    elif dtype.is_integer and a.dtype.kind != "b":
        a = np.clip(a, 0 if not dtype.is_signed else -9, 9)
    with np.errstate(all="ignore"):
        return np.asarray(a).astype(dtype.numpy)


def run_compute(op, call):
    """The op's stages on the tile interpreter."""
    results = call.infer()
    ins = tuple(Buffer(f"in{k}", types.dtype_of(a.dtype), a.shape) for k, a in enumerate(call.arrays))
    outs = tuple(Buffer(f"out{k}", t.dtype, t.shape) for k, t in enumerate(results))
    items = tuple((op.compute or op.kernel)(ins, outs, call.attrs))
    known = {*ins, *outs}
    temps = tuple(dict.fromkeys(b for b in buffers(items) if b not in known))
    kernel = lower(Computation(ins, outs, items, temps))
    arrays = {b.name: np.ascontiguousarray(a).reshape(a.shape) for b, a in zip(ins, call.arrays, strict=True)}
    arrays |= {b.name: np.zeros(b.shape, b.dtype.numpy) for b in outs}
    run(kernel, arrays)
    return tuple(arrays[b.name] for b in outs)


def buffers(items):
    for item in items:
        if isinstance(item, Serial):
            yield from buffers(item.body)
            continue
        yield from item.outs
        for v in item.exprs:
            yield from (x.buffer for x in loads(v))


def run_decomposed(op, call):
    """The op's smaller ops by their references, all the way down to ops that do not decompose."""
    pool = Pool()
    inputs = tuple(pool.input(f"x{k}", tensor_type_of(a)) for k, a in enumerate(call.arrays))
    values = {n: (a,) for n, a in zip(inputs, call.arrays, strict=True)}
    result = op.decompose(Builder(pool), inputs, call.attrs)
    return tuple(evaluate(pool, r, values)[0] for r in (result if isinstance(result, tuple) else (result,)))


def evaluate(pool, node, values):
    if node not in values:
        arrays = [evaluate(pool, i, values) for i in node.inputs]
        values[node] = apply(pool, node, arrays)
    return values[node]


def apply(pool, node, arrays):
    if node.op is PROJ:
        return (arrays[0][node.attrs.index],)
    assert node.op is not INPUT
    if node.op is CONST:
        return (node.attrs.data.array,)
    call = Call(node.op, tuple(a[0] for a in arrays), node.attrs)
    results = run_decomposed(node.op, call) if node.op.decompose else reference(node.op, call)
    assert [tensor_type_of(r) for r in results] == list(node.types), describe(node.op, call)
    return results


def same(a, b):
    """Equal for integers; for floats close, with NaN and infinities in the same places."""
    dtype = types.dtype_of(a.dtype)
    if not dtype.is_float:
        return np.array_equal(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    limit = TOLERANCE[dtype.name]
    return np.allclose(x, y, rtol=limit, atol=limit, equal_nan=True)
