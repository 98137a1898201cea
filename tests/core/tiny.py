"""A handful of ops for tests of the core, which knows none."""

import numpy as np

from tilewright.core.diag import OpError
from tilewright.core.expr import Sym
from tilewright.core.graph import Graph
from tilewright.core.opdef import AttrDef, OpDef, Trait
from tilewright.core.types import TensorType, dtype_named, i64


def _same(types, attrs):
    if len({t.dtype for t in types}) != 1:
        raise OpError("operands differ in dtype")
    return types[0]


def _elementwise(name, operands, fn, *traits):
    return OpDef(name, operands, {}, _same, lambda a, _: fn(*a), lambda i, o, a: (), traits=frozenset(traits))


add = _elementwise("add", ("a", "b"), np.add, Trait.ELEMENTWISE, Trait.COMMUTATIVE)
mul = _elementwise("mul", ("a", "b"), np.multiply, Trait.ELEMENTWISE, Trait.COMMUTATIVE)
neg = _elementwise("neg", ("x",), np.negative, Trait.ELEMENTWISE)
reshape = OpDef(
    "reshape", ("x",), {"shape": AttrDef("dims")},
    lambda t, a: t[0].with_shape(a["shape"]), lambda x, a: x[0].reshape(a["shape"]), lambda i, o, a: (),
)  # fmt: skip
everything = OpDef(
    "everything", ("*xs",),
    {
        "i": AttrDef("int", 1), "f": AttrDef("float", 0.0), "fs": AttrDef("floats", ()), "b": AttrDef("bool", False),
        "s": AttrDef("str", ""), "ss": AttrDef("strs", ()), "t": AttrDef("dtype", i64), "p": AttrDef("pads", ()),
    },
    lambda t, a: t[0], lambda x, a: x[0], lambda i, o, a: (),
)  # fmt: skip
split2 = OpDef(
    "split2", ("x",), {}, lambda t, a: (t[0], t[0]), lambda x, a: (x[0], x[0]),
    decompose=lambda b, ins, a: (ins[0], b(neg, ins[0])),
)  # fmt: skip
count = OpDef(
    "count", ("x",), {"count": AttrDef("str")},
    lambda t, a: TensorType(i64, (Sym(a["count"], 0, 8),)), lambda x, a: x[0], kernel=lambda i, o, a: (),
    bound=lambda t, a: 8,
)  # fmt: skip
call = OpDef(
    "call", ("*xs",), {"body": AttrDef("graph"), "n": AttrDef("int", 0)},
    lambda t, a: a["body"].outputs[0].type, lambda x, a: x[0], traits=frozenset({Trait.CONTROL}),
)  # fmt: skip
OPS = {op.name: op for op in (add, mul, neg, reshape, everything, split2, count, call)}


def typed(dtype, *shape):
    return TensorType(dtype_named(dtype), shape)


def graph_of(pool, inputs, *outputs, name="g"):
    return Graph(name, pool, tuple(inputs), outputs, tuple(f"out{i}" for i in range(len(outputs))))


N = Sym("n", 1, 64)
