"""Compares what an op says of itself: infer against reference, and compute, kernel or decompose against reference."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ops.running import concrete
from tilewright.core.compute import Buffer, Computation, Serial
from tilewright.core.evaluate import evaluate_nodes
from tilewright.core.expr import Sym, symbols
from tilewright.core.graph import Attrs, Builder, Pool
from tilewright.core.opdef import OpDef, Sample
from tilewright.core.shapes import bind_shape
from tilewright.core.types import Array, TensorType, dtype_of, tensor_type_of
from tilewright.tile.interp import run
from tilewright.tile.lower import lower


def samples_of(op: OpDef, seed: int = 0) -> list[Sample]:
    assert op.samples is not None, f"{op.name} has no samples"
    return list(op.samples(np.random.default_rng(seed)))


def sample_cases(ops: tuple[OpDef, ...]) -> list[Any]:
    """(op, sample) pairs with readable ids, for ``pytest.mark.parametrize(..., ids=case_id)``."""
    return [(op, k) for op in ops for k in range(len(samples_of(op)))]


def case_id(case: tuple[OpDef, int]) -> str:
    return f"{case[0].name}-{case[1]}"


def check_case(case: tuple[OpDef, int], rtol: float = 0.0) -> None:
    op, k = case
    sample = samples_of(op)[k]
    check_op(op, sample.arrays, sample.attrs, rtol)


def check_op(op: OpDef, arrays: tuple[Array, ...], attrs: Mapping[str, Any], rtol: float = 0.0) -> tuple[Array, ...]:
    """Check one call with static shapes; returns the reference's results."""
    return check_symbolic(op, arrays, tuple(tensor_type_of(a) for a in arrays), attrs, rtol)


def check_symbolic(
    op: OpDef, arrays: tuple[Array, ...], types: tuple[TensorType, ...], attrs: Mapping[str, Any], rtol: float = 0.0
) -> tuple[Array, ...]:
    """Check one call whose operand types may hold symbols; the arrays give them values."""
    full = Attrs(op.complete_attrs(attrs))
    results = as_tuple(op.infer(types, full))
    env: dict[Sym, int] = {}
    for t, a in zip(types, arrays, strict=True):
        assert bind_shape(t.shape, a.shape, env) is None
    expected = as_tuple(op.reference(arrays, full.substituted(env)))
    room = {s: s.hi for t in results for d in t.shape for s in symbols(d) - env.keys()}
    bind_results(results, expected, env)
    for t, e in zip(results, expected, strict=True):
        assert (t.dtype.numpy, concrete(t.shape, env)) == (e.dtype, e.shape), f"infer says {t}, not {e.dtype}{e.shape}"
    if op.decompose:
        actual = decomposed(op, arrays, types, full, env)
    else:
        actual = computed(op, arrays, types, results, full, {**env, **room})
        actual = [a[tuple(map(slice, e.shape))] for a, e in zip(actual, expected, strict=True)]
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, rtol)
    return expected


def bind_results(results: tuple[TensorType, ...], expected: tuple[Array, ...], env: dict[Sym, int]) -> None:
    """Sizes that only the data decide are symbols of the results; their kernels run with room for the bound."""
    for t, e in zip(results, expected, strict=True):
        assert bind_shape(t.shape, e.shape, env) is None, f"infer says {t}, not {e.dtype}{e.shape}"


def computed(op, arrays, types, results, attrs, env) -> list[Array]:
    ins = tuple(Buffer(f"x{k}", t.dtype, t.shape) for k, t in enumerate(types))
    outs = tuple(Buffer(f"y{k}", t.dtype, t.shape) for k, t in enumerate(results))
    items = tuple((op.compute or op.kernel)(ins, outs, attrs))
    temps = temporaries(items, {*ins, *outs})
    kernel = lower(Computation(ins, outs, items, temps))
    memory = {b.name: np.ascontiguousarray(a).reshape(a.shape) for b, a in zip(ins, arrays, strict=True)}
    for b in outs:
        memory[b.name] = np.full(concrete(b.shape, env), 1, b.dtype.numpy)
    done = run(kernel, memory, {s.name: v for s, v in env.items()})
    return [done[b.name] for b in outs]


def temporaries(items, known: set[Buffer]) -> tuple[Buffer, ...]:
    """Buffers that stages write and that are neither operands nor results, in order."""
    found: dict[Buffer, None] = {}
    for item in items:
        inner = temporaries(item.body, known) if isinstance(item, Serial) else item.outs
        found.update(dict.fromkeys(b for b in inner if b not in known))
    return tuple(found)


def decomposed(op, arrays, types, attrs, env) -> list[Array]:
    pool = Pool()
    inputs = tuple(pool.input(f"x{k}", t) for k, t in enumerate(types))
    made = as_tuple(op.decompose(Builder(pool), inputs, attrs))
    return list(evaluate_nodes(made, dict(zip(inputs, arrays, strict=True)), env))


def as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def assert_close(actual: Array, expected: Array, rtol: float) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if rtol == 0 or expected.dtype.kind not in "fV":
        if dtype_of(expected.dtype).is_narrow:  # these compare by their values, NaN with NaN
            actual, expected = actual.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_array_equal(actual, expected)
        return
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(a, e, rtol=rtol, atol=rtol * max(1.0, float(np.abs(e[np.isfinite(e)]).max(initial=0))))
