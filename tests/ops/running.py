"""Runs one op three ways: by its reference, by its stages on the tile interpreter, by its smaller ops' references."""

from dataclasses import dataclass, replace

import numpy as np

from tilewright.core import expr, types
from tilewright.core.compute import Buffer, Computation, Serial, loads
from tilewright.core.graph import CONST, INPUT, PROJ, Attrs, Builder, Pool
from tilewright.core.types import TensorType, tensor_type_of
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
        return infer(self.op, [tensor_type_of(a) for a in self.arrays], self.attrs)


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


def run_compute(op, call, types_in=None, sizes=None):
    """The op's stages on the tile interpreter; with ``types_in`` the operands' dimensions are symbols of ``sizes``."""
    types_in = types_in or [tensor_type_of(a) for a in call.arrays]
    sizes = sizes or {}
    ins = tuple(Buffer(f"in{k}", t.dtype, t.shape) for k, t in enumerate(types_in))
    outs = tuple(Buffer(f"out{k}", t.dtype, t.shape) for k, t in enumerate(infer(op, types_in, call.attrs)))
    items = tuple((op.compute or op.kernel)(ins, outs, call.attrs))
    known = {*ins, *outs}
    temps = tuple(dict.fromkeys(b for b in buffers(items) if b not in known))
    kernel = lower(Computation(ins, outs, items, temps))
    arrays = {b.name: np.ascontiguousarray(a).reshape(a.shape) for b, a in zip(ins, call.arrays, strict=True)}
    arrays |= {b.name: np.zeros(concrete(b.shape, sizes), b.dtype.numpy) for b in outs}
    run(kernel, arrays, {s.name: n for s, n in sizes.items()})
    return tuple(arrays[b.name] for b in outs)


def infer(op, operands, attrs):
    op.check_arity(len(operands))
    result = op.infer(operands, attrs)
    return result if isinstance(result, tuple) else (result,)


def concrete(shape, sizes):
    return tuple(expr.evaluate(d, sizes) for d in shape)


def symbolic(call):
    """The operands' types with a symbol for every size above 1, and the symbols' sizes."""
    of_size = {n: expr.Sym(f"size{n}", 1) for a in call.arrays for n in a.shape if n > 1}
    operands = [TensorType(types.dtype_of(a.dtype), tuple(of_size.get(n, n) for n in a.shape)) for a in call.arrays]
    return operands, {s: n for n, s in of_size.items()}


def buffers(items):
    for item in items:
        if isinstance(item, Serial):
            yield from buffers(item.body)
            continue
        yield from item.outs
        for v in item.exprs:
            yield from (x.buffer for x in loads(v))


def run_decomposed(op, call, types_in=None, sizes=None):
    """The op's smaller ops by their references, all the way down to ops that do not decompose."""
    pool = Pool()
    types_in = types_in or [tensor_type_of(a) for a in call.arrays]
    inputs = tuple(pool.input(f"x{k}", t) for k, t in enumerate(types_in))
    values = {n: (a,) for n, a in zip(inputs, call.arrays, strict=True)}
    result = op.decompose(Builder(pool), inputs, call.attrs)
    results = result if isinstance(result, tuple) else (result,)
    assert tuple(r.type for r in results) == infer(op, types_in, call.attrs), describe(op, call)
    return tuple(evaluate(pool, r, values, sizes or {})[0] for r in results)


def evaluate(pool, node, values, sizes):
    if node not in values:
        arrays = [evaluate(pool, i, values, sizes) for i in node.inputs]
        values[node] = apply(pool, node, arrays, sizes)
    return values[node]


def apply(pool, node, arrays, sizes):
    if node.op is PROJ:
        return (arrays[0][node.attrs.index],)
    assert node.op is not INPUT
    if node.op is CONST:
        return (node.attrs.data.array,)
    call = Call(node.op, tuple(a[0] for a in arrays), node.attrs.substituted(sizes))
    results = run_decomposed(node.op, call) if node.op.decompose else reference(node.op, call)
    expected = [(t.dtype, concrete(t.shape, sizes)) for t in node.types]
    assert [(types.dtype_of(r.dtype), r.shape) for r in results] == expected, describe(node.op, call)
    return results


def same(a, b, summed=0.0):
    """Equal for integers; for floats close, with NaN and infinities in the same places.

    ``summed`` is the size of what may have cancelled in a sum, whose rounding is relative to that.
    """
    dtype = types.dtype_of(a.dtype)
    if dtype.is_narrow:
        return np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True)
    if not dtype.is_float:
        return np.array_equal(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    limit = TOLERANCE[dtype.name]
    return np.allclose(x, y, rtol=limit, atol=limit * max(1.0, summed), equal_nan=True)
