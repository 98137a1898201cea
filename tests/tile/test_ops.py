"""The default schedule of every op's own stages computes what its plain loops compute, and its kernel reads back."""

import numpy as np
import pytest

from ops.running import buffers, sample_calls
from ops.test_samples import OPS
from tile.kernels import SCALAR, SMALL, WIDE
from tilewright.choose.default import RULE_BROKE, schedule
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation
from tilewright.tile.interp import run
from tilewright.tile.lower import lower
from tilewright.tile.pack import packed_array
from tilewright.tile.text import kernel_text, parse_kernel
from tilewright.tile.verify import verify

MOST_CALLS = 3


def computation_of(op, call):
    ins = tuple(Buffer(f"in{k}", types.dtype_of(a.dtype), a.shape) for k, a in enumerate(call.arrays))
    outs = tuple(Buffer(f"out{k}", t.dtype, t.shape) for k, t in enumerate(call.infer()))
    items = tuple((op.compute or op.kernel)(ins, outs, call.attrs))
    temps = tuple(dict.fromkeys(b for b in buffers(items) if b not in {*ins, *outs}))
    return Computation(ins, outs, items, temps)


COMPUTED = [op for op in OPS if not op.decompose]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("op", COMPUTED, ids=lambda op: op.name)
@pytest.mark.parametrize("n_calls", [1, pytest.param(MOST_CALLS, marks=pytest.mark.slow)], ids=["one", "all"])
def test_every_op(op, n_calls):
    """The last of them in a quick run, in which others compile the first and the second."""
    check(op, SMALL, WIDE, n_calls)


@pytest.mark.slow
@pytest.mark.parametrize("op", COMPUTED, ids=lambda op: op.name)
def test_every_op_without_vectors(op):
    check(op, SCALAR, SCALAR, MOST_CALLS)


def check(op, machine, other, n_calls):
    """Scheduled kernels compute what the plain loops do: with operands, and with the last ones as constants."""
    for call in sample_calls(op)[:MOST_CALLS][-n_calls:]:
        computation = computation_of(op, call)
        arrays = {b.name: np.array(a, order="C") for b, a in zip(computation.inputs, call.arrays, strict=True)}
        arrays |= {b.name: np.zeros(b.shape, b.dtype.numpy) for b in computation.outputs}
        want = {k: v.copy() for k, v in arrays.items()}
        run(lower(computation), want)
        for target, constants in ((machine, ()), (other, computation.inputs[1:])):
            kernel = schedule(computation, target, constants)
            verify(kernel)
            assert not any(RULE_BROKE in note for note in kernel.notes)
            assert kernel_text(parse_kernel(kernel_text(kernel))) == kernel_text(kernel)
            given = {k: v.copy() for k, v in arrays.items()}
            given |= {p.param.name: packed_array(p, arrays[p.source.name]) for p in kernel.packed}
            got = run(kernel, given, reverse=True)
            for b in computation.outputs:
                a, c = (x[b.name].astype(np.float64).reshape(-1) for x in (want, got))
                np.testing.assert_allclose(c, a, rtol=1e-4, atol=1e-5)
