"""Bugs to plant: edits of the compiler's own functions, each with a small net that shows it and what must be found.

A bug is a line of a function, what it becomes, and the verdict that names the place. The function keeps its identity
(its code is exchanged), so every table and caller that holds it runs the edited one.
"""

import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, bool_, f32, i8, i32, i64, u8


@contextmanager
def planted(where: str, old: str, new: str) -> Iterator[None]:
    """``module:function`` with ``old`` in its source replaced by ``new``."""
    module, _, path = where.partition(":")
    found = reduce(getattr, path.split("."), import_module(f"tilewright.{module}"))
    function: FunctionType = inspect.unwrap(found)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{where} has {source.count(old)} of {old!r}"
    flags = __future__.annotations.compiler_flag
    space = dict(function.__globals__)
    exec(compile(source.replace(old, new), where, "exec", flags, dont_inherit=True), space)  # noqa: S102
    original = function.__code__
    function.__code__ = space[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = original


@dataclass
class Net:
    """A graph in the making, with an array for each input; every op has a line of its own."""

    b: Builder = field(default_factory=lambda: Builder(Pool()))
    inputs: list[Node] = field(default_factory=list)
    arrays: list[np.ndarray] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    n_lines: int = 0

    def input(self, *shape: int | Sym, dtype=f32, array: np.ndarray | None = None, sizes: dict | None = None) -> Node:
        real = [d if isinstance(d, int) else (sizes or {})[d] for d in shape]
        if array is None:
            array = self.numbers(real, dtype)
        k = len(self.inputs)
        node = self.b.pool.input(f"x{k}", TensorType(dtype, tuple(shape)), Loc(f"input {k}"))
        self.inputs.append(node)
        self.arrays.append(array)
        return node

    def numbers(self, shape, dtype=f32) -> np.ndarray:
        if dtype.is_float:
            return self.rng.standard_normal(shape).astype(dtype.numpy)
        return self.rng.integers(0 if not dtype.is_signed else -100, 100, shape).astype(dtype.numpy)

    def const(self, *shape: int, dtype=f32, scale: float = 1.0) -> Node:
        return self.b.const((self.numbers(shape, dtype) * scale).astype(dtype.numpy))

    def value(self, x: Any, dtype=f32) -> Node:
        return self.b.const(x, dtype)

    def __call__(self, op, *operands, **attrs) -> Node:
        self.n_lines += 1
        return self.b.at(Loc(f"line {self.n_lines} ({op.name})"))(op, *operands, **attrs)

    def done(self, *outputs: Node) -> tuple[Graph, list[np.ndarray]]:
        names = tuple(f"y{k}" for k in range(len(outputs)))
        return Graph("net", self.b.pool, tuple(self.inputs), outputs, names), self.arrays


Made = tuple[Graph, list[np.ndarray]]


def conv(net: Net, x: Node, w: Node, pad: int = 1, stride: int = 1, **attrs) -> Node:
    window = {"strides": (stride, stride), "pads": ((pad, pad), (pad, pad)), "dilations": (1, 1), "groups": 1}
    return net(ops.conv, x, w, **{**window, **attrs})


# --- nets -----------------------------------------------------------------------------------------------------------


def point(build: Callable[[Net, Node], Node], *shape: int, dtype=f32) -> Callable[[], Made]:
    """A few ops on one input."""

    def made() -> Made:
        net = Net()
        return net.done(build(net, net.input(*(shape or (5, 19)), dtype=dtype)))

    return made


def mlp() -> Made:
    net = Net()
    x = net.input(7, 40)
    for n_in, n_out in ((40, 37), (37, 21)):
        x = net(ops.maximum, net(ops.add, net(ops.matmul, x, net.const(n_in, n_out)), net.const(n_out)), net.value(0.0))
    return net.done(x)


def product() -> Made:
    net = Net()
    return net.done(net(ops.add, net(ops.matmul, net.input(40, 24), net.const(24, 37)), net.const(37)))


def two_products() -> Made:
    net = Net()
    return net.done(net(ops.matmul, net(ops.cumsum, net(ops.matmul, net.input(5, 24), net.const(24, 24)), axis=0),
                        net.const(24, 24)))  # fmt: skip


def dynamic_mlp() -> Made:
    net = Net()
    n = Sym("n", 1)
    x = net.input(n, 8, sizes={n: 19})
    x = net(ops.exp, net(ops.mul, net(ops.add, net(ops.matmul, x, net.const(8, 20)), net.const(20)), net.value(0.1)))
    return net.done(net(ops.softmax, net(ops.matmul, x, net.const(20, 17, scale=0.1)), axis=1))


def image(build: Callable[[Net, Node], Node], size: int = 6, channels: int = 8) -> Callable[[], Made]:
    def made() -> Made:
        net = Net()
        return net.done(build(net, net.input(1, channels, size, size)))

    return made


def attention() -> Made:
    net = Net()
    q, k, v = (net.input(1, 2, 24, 16) for _ in range(3))
    scores = net(ops.mul, net(ops.matmul, q, net(ops.transpose, k, perm=(0, 1, 3, 2))), net.value(0.25))
    return net.done(net(ops.matmul, net(ops.softmax, scores, axis=3), v))


def chain(op=ops.cumsum, n: int = 5) -> Callable[[], Made]:
    """Kernels that can't fuse, of several sizes, so that memory is used again."""

    def made() -> Made:
        net = Net()
        x = first = net.input(6, 64)
        for k in range(n):
            x = net(op, net(ops.add, x, net.const(64)), axis=k % 2)
        return net.done(net(ops.add, x, first))

    return made


def skip() -> Made:
    """A value that is read long after it was made."""
    net = Net()
    early = net(ops.cumsum, net.input(6, 64), axis=0)
    x = early
    for _ in range(4):
        x = net(ops.cumsum, net(ops.mul, x, net.const(64)), axis=1)
    return net.done(net(ops.cumsum, net(ops.add, x, early), axis=0))


def dynamic_skip() -> Made:
    net = Net()
    n = Sym("n", 1)
    x = net.input(n, 16, sizes={n: 9})
    for _ in range(4):
        x = net(ops.cumsum, net(ops.mul, x, net.const(16)), axis=1)
    return net.done(x)


def branch() -> Made:
    net = Net()
    cond = net.input(dtype=bool_, array=np.asarray(True))
    x = net.input(6, 8)
    arms = []
    for name, op in (("then", ops.exp), ("else", ops.neg)):
        pool = Pool()
        p = pool.input("p", x.type)
        arms.append(Graph(name, pool, (p,), (Builder(pool)(op, p),), ("r",)))
    return net.done(net(ops.if_, cond, x, then_branch=arms[0], else_branch=arms[1], name="if"))


def branch_with_window() -> Made:
    net = Net()
    cond, x = net.input(dtype=bool_, array=np.asarray(True)), net.input(1, 8, 8, 8)
    arms = []
    for name, at in (("then", "line 7 (conv)"), ("else", "line 8 (conv)")):
        pool = Pool()
        p = pool.input("p", x.type)
        window = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1}
        result = Builder(pool, Loc(at))(ops.conv, p, pool.const(net.numbers((8, 8, 3, 3))), **window)
        arms.append(Graph(name, pool, (p,), (result,), ("r",)))
    return net.done(net(ops.if_, cond, x, then_branch=arms[0], else_branch=arms[1], name="if"))


def loop() -> Made:
    net = Net()
    x = net.input(6, 8)
    pool = Pool()
    i, go, v = (pool.input(n, t) for n, t in (("i", TensorType(i64, ())), ("go", TensorType(bool_, ())), ("v", x.type)))
    b = Builder(pool)
    body = Graph("body", pool, (i, go, v), (go, b(ops.mul, b(ops.tanh, v), b.const(1.5, f32))), ("again", "v"))
    trips, go_on = net.b.const(np.asarray(3)), net.b.const(np.asarray(True))
    return net.done(net(ops.loop, trips, go_on, x, body=body, n_carried=1))


def parts() -> Made:
    net = Net()
    x = net.input(6, 8)
    pool = Pool()
    p = pool.input("p", TensorType(f32, (2, 8)))
    body = Graph("part", pool, (p,), (Builder(pool)(ops.tanh, p),), ("r",))
    return net.done(net(ops.map_parts, x, body=body, n_parts=3, n_cut=1))


def sorted_values() -> Made:
    net = Net()
    both = net(ops.sort, net.input(4, 8), axis=1)
    return net.done(*net.b.results(both))


def passed_through() -> Made:
    net = Net()
    x = net.input(4, 6)
    y = net(ops.exp, x)
    return net.done(y, x)


def gathered() -> Made:
    net = Net()
    indices = net.input(9, dtype=i64, array=np.array([0, -1, 3, 11, -12, 5, 2, 2, -3]))
    return net.done(net(ops.gather, net.input(12, 5), indices, axis=0))


def with_nans() -> Made:
    net = Net()
    x, y = (net.numbers((4, 33)) for _ in range(2))
    x[1, 3] = y[2, 30] = np.nan
    return net.done(net(ops.maximum, net.input(4, 33, array=x), net.input(4, 33, array=y)))


def integers(op, divisor: int | None = None, dtype=i32) -> Callable[[], Made]:
    def made() -> Made:
        net = Net()
        right = net.rng.integers(1, 7, (5, 21)).astype(dtype.numpy)
        if divisor is not None:
            right[:, ::4] = divisor
        return net.done(net(op, net.input(5, 21, dtype=dtype), net.input(5, 21, dtype=dtype, array=right)))

    return made


def wide_sum() -> Made:
    net = Net()
    return net.done(net(ops.exp, net(ops.mul, net.input(1031, 1031), net.value(0.5))))


def narrow_product() -> Made:
    net = Net()
    return net.done(net(ops.matmul, net.input(5, 30, dtype=u8), net.const(30, 40, dtype=i8), out_dtype=i32))


# --- bugs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bug:
    """An edit, a net, and what the comparison must say: the stage, and a word of the name, rule or op there."""

    where: str
    old: str
    new: str
    net: Callable[[], Made]
    stage: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    needs: str = ""
    """The capability of a target without which the edited lines emit nothing."""

    @property
    def id(self) -> str:
        return f"{self.where.replace(':', '.')}-{self.stage}"


def canonicalize(where: str, old: str, new: str, net: Callable[[], Made], rule: str) -> Bug:
    return Bug(f"graph.canonical.{where}", old, new, net, "pass", f"canonicalize {rule}")


CHANNELS = 8
BUGS = (
    # graph passes
    canonicalize("arithmetic:_sub", "b.const(np.negative(array))", "b.const(array)",
                 point(lambda n, x: n(ops.sub, x, n.const(19))), "sub"),
    canonicalize("arithmetic:_mul_neg", "b.const(np.negative(array))", "b.const(array)",
                 point(lambda n, x: n(ops.mul, n(ops.neg, x), n.const(19))), "mul-neg"),
    canonicalize("arithmetic:_neg", "x.inputs[1], x.inputs[0]", "x.inputs[0], x.inputs[1]",
                 point(lambda n, x: n(ops.neg, n(ops.sub, x, n(ops.exp, x)))), "neg"),
    canonicalize("arithmetic:_div", "(1 / array", "(2 / array",
                 point(lambda n, x: n(ops.div, x, n.value(4.0))), "div"),
    canonicalize("arithmetic:_pow", "b(ops.mul, b(ops.mul, x, x), x)", "b(ops.mul, x, x)",
                 point(lambda n, x: n(ops.pow, x, n.value(3.0))), "pow"),
    canonicalize("arithmetic:_where", "cond.inputs[0], y, x", "cond.inputs[0], x, y",
                 point(lambda n, x: n(ops.where, n(ops.logical_not, n(ops.isnan, x)), x, n(ops.exp, x))), "where"),
    canonicalize("arithmetic:_merge_clamps", "min(max(inner_hi, lo), hi)", "inner_hi",
                 point(lambda n, x: n(ops.clamp, n(ops.clamp, x, n.value(-1.0), n.value(2.0)), n.value(0.0),
                                      n.value(1.0))), "merge-clamps"),
    canonicalize("arithmetic:_const_chain", "_regrouped(b, node)", "node.inputs[0]",
                 point(lambda n, x: n(ops.add, n(ops.add, x, n.value(3, i32)), n.value(4, i32)), 5, 19, dtype=i32),
                 "const-chain"),
    canonicalize("movement:_transpose", '[x.attrs["perm"][p] for p in perm]', '[perm[p] for p in x.attrs["perm"]]',
                 point(lambda n, x: n(ops.transpose, n(ops.transpose, x, perm=(1, 2, 0)), perm=(0, 2, 1)), 4, 4, 4),
                 "transpose"),
    canonicalize("movement:_slice_of_slice", 'inner.attrs["starts"][k] + start', "start",
                 point(lambda n, x: n(ops.slice, n(ops.slice, x, starts=(1, 2), stops=(5, 18), steps=(1, 2)),
                                      starts=(0, 1), stops=(4, 7), steps=(1, 3))), "slice"),
    canonicalize("movement:_slice_of_concat", "start - offset, stop - offset", "start, stop",
                 point(lambda n, x: n(ops.slice, n(ops.concat, n.const(3, 19), x, axis=0), starts=(3, 0), stops=(5, 19),
                                      steps=(1, 1))), "slice"),
    canonicalize("movement:_pad", "(a + c, d + e)", "(a + e, d + c)",
                 point(lambda n, x: n(ops.pad, n(ops.pad, x, (v := n.value(0.0)), pads=((1, 0), (0, 2))), v,
                                      pads=((0, 0), (3, 0)))), "pad"),
    Bug("graph.canonical.fold:_fold",
        "return b.const(np.asarray(results))", "return b.const(np.asarray(results)[::-1])",
        point(lambda n, x: n(ops.add, x, n(ops.exp, n.const(19)))), "pass", "fold-constants"),
    Bug("graph.forms.affine:_batch_norm", "bias - mean * factor", "bias - mean",
        image(lambda n, x: n(ops.batch_norm, x, *(n.b.const(n.rng.random(8).astype(np.float32)) for _ in range(4)),
                             axis=1, epsilon=0.01)), "pass", "fold-affine"),
    Bug("graph.forms.affine:_scale_result", "b(ops.add, scaled, b(node.op, shift, c))", "b(ops.add, scaled, shift)",
        point(lambda n, x: n(ops.mul, n(ops.add, n(ops.matmul, x, n.const(19, 6)), n.const(6)), n.const(6))),
        "pass", "fold-affine"),
    Bug("graph.forms.affine:_scaled_result", "weight * scale.reshape(-1, *[1] * (weight.ndim - 1))",
        "weight * scale.reshape(1, -1, *[1] * (weight.ndim - 2))",
        image(lambda n, x: n(ops.mul, conv(n, x, n.const(8, 8, 3, 3)), n.const(8, 1, 1))), "pass", "fold-affine"),
    Bug("graph.forms.affine:_scale_operand", "weight * scale.reshape(-1, 1)", "weight * scale",
        point(lambda n, x: n(ops.matmul, n(ops.mul, x, n.const(19)), n.const(19, 19))), "pass", "fold-affine"),
    Bug("graph.forms.layout:Transposes.window", "inverse(to_last(rank))", "to_last(rank)",
        image(lambda n, x: conv(n, x, n.const(8, 8, 3, 3)), 8), "pass", "layout"),
    Bug("graph.forms.layout:Transposes.window", "b(node.op, x, *node.inputs[1:]",
        "b(node.op, b(ops.neg, x), *node.inputs[1:]", branch_with_window, "pass", "layout conv"),
    Bug("graph.forms.layout:moved", "result[p] = values[k]", "result[k] = values[p]",
        image(lambda n, x: conv(n, n(ops.pad, conv(n, x, n.const(8, 8, 3, 3)), n.value(1.0),
                                     pads=((0, 0), (0, 0), (1, 0), (0, 1))), n.const(8, 8, 3, 3))), "pass", "layout"),
    Bug("graph.forms.hoist:_transpose", "(k, k + 1) if k == at", "(k + 1, k) if k == at",
        point(lambda n, x: n(ops.transpose, n(ops.reshape, n(ops.matmul, x, n.const(4, 5)), shape=(2, 9, 5)),
                             perm=(0, 2, 1)), 2, 3, 3, 4), "pass", "hoist-arithmetic"),
    Bug("graph.recognise.composites:_silu", "b(ops.silu, x)", "b(ops.sigmoid, x)",
        point(lambda n, x: n(ops.mul, x, n(ops.sigmoid, x))), "pass", "recognise"),
    Bug("graph.recognise.attention:_unscaled", "factor * number if", "factor / number if",
        attention, "pass", "recognise"),
    Bug("ops.norm:_scale_to_one", "_k(b, epsilon, x)", "_k(b, 0.0, x)",
        point(lambda n, x: n(ops.rms_norm, x, n.const(19), axis=1, epsilon=0.5)), "pass",
        "decompose decompose-rms_norm"),
    Bug("ops.norm:_log_softmax", "b(ew.sub, _shifted", "b(ew.add, _shifted",
        point(lambda n, x: n(ops.log_softmax, x, axis=1)), "pass", "decompose decompose-log_softmax"),
    Bug("ops.winograd:transformed_weights", "np.kron(high, wide)", "np.kron(high, wide[::-1])",
        image(lambda n, x: conv(n, x, n.const(32, 32, 3, 3)), 24, 32), "pass", "winograd"),
    Bug("graph.precision:rounded_array", "array.astype(types.bf16.numpy)", "np.abs(array).astype(types.bf16.numpy)",
        point(lambda n, x: n(ops.matmul, x, n.const(64, 64)), 32, 64), "pass", "precision", {"precision": "bf16"}),
    # what an op says of itself
    Bug("ops.contract:_load", "0 if d == 1 else i", "i if d == 1 else 0",
        point(lambda n, x: n(ops.matmul, x, n.const(2, 7, 4)), 2, 3, 7), "op", "matmul", {"optimize": 1}),
    Bug("ops.convolution:window_positions", "k * d - lo", "k * d", image(lambda n, x: conv(n, x, n.const(8, 8, 3, 3))),
        "op", "conv"),
    Bug("ops.index:_gather_compute", "wrapped(Load(indices, tuple(at[a.axis : end])), x.shape[a.axis])",
        "wrapped(Load(indices, tuple(at[a.axis : end])), x.shape[a.axis] - 1)", gathered, "op", "gather"),
    # groups
    Bug("partition.computation:computation_of", "results[operand] if operand in results else",
        "next(iter(results.values())) if operand in results else",
        point(lambda n, x: n(ops.sin, n(ops.exp, n(ops.mul, x, x)))), "fusion", "sin"),
    Bug("partition.facts:_form", "if Trait.VIEW in node.op.traits:", "if Trait.MOVEMENT in node.op.traits:",
        point(lambda n, x: n(ops.cumsum, n(ops.transpose, n(ops.cumsum, x, axis=0), perm=(1, 0)), axis=0)), "partition",
        "view transpose"),
    # before loops
    Bug("choose.normalize:inline", "lies_at(maker.index, x.index)",
        "lies_at(maker.index, x.index[::-1])", point(lambda n, x: n(ops.add, n(ops.exp, x), x), 6, 6),
        "normalize", "normalize"),
    Bug("choose.normalize:_padded", "(e, sym + lo)", "(e, sym)",
        image(lambda n, x: conv(n, x, n.const(8, 8, 3, 3))), "normalize", "normalize"),
    # schedules
    Bug("tile.schedule.loops:split", "minimum(factor, n - base)", "minimum(factor, n - base - 1)",
        point(lambda n, x: n(ops.exp, x), 3, 45), "schedule", "split"),
    Bug("tile.schedule.loops:divide", "full + last_loop.sym", "last_loop.sym", dynamic_mlp, "schedule", "divide"),
    Bug("tile.schedule.loops:merge", "{b.loop.sym: a.loop.sym}", "{b.loop.sym: 0}",
        attention, "schedule", "merge"),
    Bug("tile.schedule.stages:_moved", "side.base + substitute(side.offset, local)", "substitute(side.offset, local)",
        product, "schedule", "compute_at"),
    Bug("tile.schedule.partials:_Partials.partials", "blocks * block + rest // w * w", "blocks * block",
        point(lambda n, x: n(ops.reduce_sum, x, axes=(1,), keepdims=False), 6, 301), "schedule", "rfactor"),
    Bug("tile.schedule.partials:identity_of", "else -inf", "else 0.0",
        point(lambda n, x: n(ops.reduce_max, n(ops.sub, n(ops.neg, n(ops.abs, x)), n.value(1.0)), axes=(1,),
                             keepdims=False), 6, 301), "schedule", "rfactor"),
    Bug("tile.pack:_copy_strided", "a.start + k * a.steps[axis]", "a.start", mlp, "schedule", "pack"),
    Bug("tile.schedule.operands:_form", "zip(grid, syms, strict=False)", "zip(grid, syms[::-1], strict=False)", mlp,
        "schedule", "pack"),
    Bug("tile.schedule.loops:split", "minimum(base, n - factor), factor", "minimum(base, n - factor - 1), factor",
        point(lambda n, x: n(ops.transpose, x, perm=(1, 0)), 77, 95), "schedule", "split"),
    Bug("tile.schedule.stages:cache", "Store(old, at, Load(new, at))", "Store(old, at, Load(new, at[::-1]))",
        image(lambda n, x: conv(n, x, n.const(8, 8, 3, 3))), "schedule", "cache"),
    # polynomials
    Bug("tile.elementary.exponential:exp", "c(1.0, r)", "c(1.001, r)", point(lambda n, x: n(ops.exp, x)), "math",
        "exp"),
    Bug("tile.elementary.trigonometric:sin", "_cosine(r), _sine(r)", "_sine(r), _cosine(r)",
        point(lambda n, x: n(ops.sin, x)), "math", "sin"),
    Bug("tile.elementary.special:erf", "c(1.0, x) - (", "c(0.999, x) - (",
        point(lambda n, x: n(ops.erf, n(ops.mul, x, n.value(2.0)))), "math", "erf"),
    # machine code
    Bug("codegen.llvm.convert:cast", "_saturating(a, v, source, target)",
        'a.convert("fptosi", v, VALUE_TYPE[source], VALUE_TYPE[target])',
        point(lambda n, x: n(ops.cast, n(ops.mul, x, n.value(200.0)), dtype=i8)), "codegen", "cast"),
    Bug("codegen.llvm.arith:Arith._extreme", "return result if _is_number(a)",
        "return result if True", with_nans, "codegen",
        "maximum"),
    Bug("codegen.llvm.arith:Arith._divide", 'self.instruction("sub", element, zero, a), q', "a, q", integers(ops.div,
        -1),
        "codegen", "div"),
    Bug("codegen.llvm.arith:Arith._shift", '"ashr" if fills', '"lshr" if fills', integers(ops.shift_right), "codegen",
        "shift_right"),
    Bug("codegen.llvm.arith:Arith._compare", '"s" if dtype.is_signed', '"u" if dtype.is_signed', integers(ops.lt),
        "codegen",
        "lt"),
    Bug("codegen.llvm.convert:cast", '"sext" if source.is_signed', '"zext" if source.is_signed',
        point(lambda n, x: n(ops.cast, x, dtype=i32), dtype=i8), "codegen", "cast"),
    Bug("codegen.llvm.convert:_to_float", '"sitofp" if', '"uitofp" if',
        point(lambda n, x: n(ops.cast, x, dtype=f32), dtype=i32), "codegen", "cast"),
    Bug("codegen.llvm.loops:Loops._ragged", "point[-1] < extent", "point[-1] < extent - 1",
        point(lambda n, x: n(ops.exp, x), 3, 45), "codegen", "exp"),
    Bug("codegen.llvm.function:KernelFunction._tree", "list(range(half, 2 * half))", "list(range(half))",
        point(lambda n, x: n(ops.reduce_sum, x, axes=(1,), keepdims=False), 6, 64), "codegen", "reduce_sum"),
    Bug("codegen.llvm.index:IndexSpace._division", "Val(str(divisor - 1), 0, 0)", "Val(str(divisor), 0, 0)",
        point(lambda n, x: n(ops.depth_to_space, x, block=2), 1, 8, 5, 3), "codegen", "depth_to_space"),
    Bug("codegen.cpu.dot:_emit", "Val(str((1 << bits) - 1), 0, 0)",
        "Val(str((1 << bits - 8) - 1), 0, 0)", narrow_product,
        "codegen", "matmul", needs="has_vnni"),
    # threads
    Bug("codegen.cpu.parallel:_dispatch", "add i64 {extent.text}, {chunk}",
        "add i64 {extent.text}, 1", wide_sum, "threads",
        "parallel"),
    # memory, weights, the entry function
    Bug("partition.memory:_overlap", "a.first <= b.last and b.first <= a.last", "a.first < b.last and b.first < a.last",
        chain(), "memory", "plan"),
    Bug("partition.places:Places.touch", "max(s.last, step)", "s.last", skip, "memory", "plan"),
    Bug("partition.places:Places.allot", "largest(type_.n_bytes, self.caps), step, step",
        "largest(type_.n_bytes, self.caps) // 2, step, step", skip, "memory", "plan"),
    Bug("partition.memory:_place_symbolic", "_overlap(storages[k], storages[j])",
        "storages[j].first < storages[k].last and storages[k].first < storages[j].last", dynamic_skip, "memory",
        "plan"),
    Bug("partition.places:Places._place_outputs", "self.copies.append((node, place))", "pass", passed_through,
        "memory", "outputs"),
    Bug("partition.weights:Weights.add", "-(-size // ALIGNMENT) * ALIGNMENT", "size // ALIGNMENT * ALIGNMENT",
        mlp, "compile", "partition.weights"),
    Bug("partition.weights:Weights.add", "key = (data, layout)", "key = (data.array.shape, layout)", two_products,
        "weights", "in1_p"),
    Bug("partition.plan:GraphPlan._call", "range(len(group.root.types))", "reversed(range(len(group.root.types)))",
        sorted_values, "weights", "arguments"),
    Bug("partition.control:_branch", "then_program, else_program =", "else_program, then_program =", branch,
        "partition", "if_"),
    Bug("codegen.cpu.control:branch", "label %{yes}, label %{no}",
        "label %{no}, label %{yes}", branch, "entry",
        "tw_run"),
    Bug("codegen.cpu.control:repeat", "icmp slt i64 {i}, {trips}", "icmp sle i64 {i}, {trips}", loop, "entry",
        "tw_run"),
    Bug("codegen.cpu.control:_go_on", "mul i64 {turn}, {size}", "mul i64 0, {size}", parts, "entry", "tw_run"),
    Bug("codegen.cpu.program:Function.copy", "ptr {target}, ptr {source}", "ptr {source}, ptr {target}", passed_through,
        "entry", "tw_run"),
)  # fmt: skip
