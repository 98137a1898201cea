"""Every op that says how it is computed, on its own samples: native code against its NumPy reference.

Plain loops and the default schedule on this machine; the other x86 targets take their turn op by op.
"""

import numpy as np
import pytest

from codegen.native import HOST, Native
from ops.oracle import as_tuple, assert_close, bind_results, samples_of, temporaries
from ops.running import concrete
from tilewright.choose.default import schedule
from tilewright.core.compute import Buffer, Computation
from tilewright.core.expr import symbols
from tilewright.core.graph import Attrs
from tilewright.core.opdef import Trait
from tilewright.core.types import tensor_type_of
from tilewright.ops import ALL
from tilewright.target.target import Target
from tilewright.tile.lower import lower

OPS = [op for op in ALL if (op.compute or op.kernel) and op.samples]
OTHERS = [Target.parse("x86-64-v3"), Target.parse("x86-64")]
N_SAMPLES = 2
TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}


def computation_of(op, sample):
    """The op's stages over buffers of the sample's types, the expected results, and values of symbolic sizes."""
    types = tuple(tensor_type_of(a) for a in sample.arrays)
    attrs = Attrs(op.complete_attrs(sample.attrs))
    results = as_tuple(op.infer(types, attrs))
    expected = as_tuple(op.reference(sample.arrays, attrs))
    room = {s: s.hi for t in results for d in t.shape for s in symbols(d)}
    env = {}
    bind_results(results, expected, env)
    ins = tuple(Buffer(f"x{k}", t.dtype, t.shape) for k, t in enumerate(types))
    outs = tuple(Buffer(f"y{k}", t.dtype, t.shape) for k, t in enumerate(results))
    items = tuple((op.compute or op.kernel)(ins, outs, attrs))
    is_ordered = op.kernel is not None and Trait.PROGRAM not in op.traits  # as the compiler takes it
    return Computation(ins, outs, items, temporaries(items, {*ins, *outs}), is_ordered), expected, {**env, **room}


def check(tree, computation, sample, expected, env, target):
    given = {b.name: a for b, a in zip(computation.inputs, sample.arrays, strict=True)}
    arrays = {}
    for b in tree.params:
        shape = concrete(b.shape, env)
        data = given[b.name].reshape(shape) if b.name in given else np.ones(shape, b.dtype.numpy)
        arrays[b.name] = np.array(data, order="C")
    Native(tree, target)(*arrays.values(), sizes=tuple(env[s] for s in tree.sizes), threads=2)
    for b, want in zip(computation.outputs, expected, strict=True):
        got = arrays[b.name].reshape(concrete(b.shape, env))[tuple(map(slice, want.shape))]
        assert_close(got, want, TOLERANCE.get(want.dtype.name, 0))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("n", [1, pytest.param(N_SAMPLES, marks=pytest.mark.slow)], ids=["one", "all"])
def test_native_agrees_with_the_reference(op, n):
    """The last of them in a quick run, in which ``test_every_op`` compiles the first."""
    samples = [s for s in samples_of(op) if all(a.size for a in s.arrays)][:N_SAMPLES][-n:]
    for k, sample in enumerate(samples, OPS.index(op)):
        computation, expected, env = computation_of(op, sample)
        for target in (HOST, OTHERS[k % 2]):
            check(schedule(computation, target), computation, sample, expected, env, target)
        check(lower(computation), computation, sample, expected, env, HOST)
