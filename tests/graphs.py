"""Random valid graphs over all ops and dtypes, with inputs: what every stage is fuzzed with.

``random_graph(seed, n_ops)`` grows a graph node by node: pick an op, pick operands among what there is, let ``infer``
accept or reject. ``graphs()`` is the same as a hypothesis strategy. Every node is evaluated as it is made, so that
values stay moderate. Ops that jump (comparisons, rounding, casts to integers) take only operands that no rounding
precedes, or equal graphs could differ by more than rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from graph_with_arrays import RandomGraph
from ops.running import converted, sample_calls
from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import CompileError
from tilewright.core.evaluate import bind_inputs, evaluate_nodes
from tilewright.core.expr import Sym, symbols
from tilewright.core.graph import CONST, Attrs, Builder, Graph, Node, Pool
from tilewright.core.opdef import Trait
from tilewright.core.shapes import bind_shape
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops.control import operands_of_parts

LARGEST = 50.0  # of any value, so that nothing overflows an f16 or a sum
SMALLEST = 0.2  # of an operand that a division or logarithm would magnify
MOST_ELEMENTS = 4096

ELEMENTWISE = [op for op in ops.ALL if Trait.ELEMENTWISE in op.traits]
UNARY = [op for op in ELEMENTWISE if len(op.operands) == 1 and op not in (ops.cast, ops.bitcast)]
BINARY = [op for op in ELEMENTWISE if len(op.operands) == 2]
JUMPS = {
    ops.floor, ops.ceil, ops.round, ops.trunc, ops.sign, ops.floor_div, ops.mod, ops.fmod, ops.eq, ops.ne, ops.lt,
    ops.le, ops.gt, ops.ge, ops.isnan, ops.isinf,
}  # fmt: skip
MAGNIFIES = {
    ops.div, ops.reciprocal, ops.rsqrt, ops.sqrt, ops.log, ops.log2, ops.pow, ops.tan, ops.acosh, ops.atanh, ops.atan2,
    ops.floor_div, ops.mod, ops.fmod, ops.asin, ops.acos,
}  # fmt: skip
REDUCTIONS = [
    ops.reduce_sum, ops.reduce_max, ops.reduce_min, ops.reduce_mean, ops.reduce_l1, ops.reduce_any, ops.reduce_all,
]  # fmt: skip
RANDOM = (ops.random_uniform, ops.random_normal)
CUMULATIVE = [ops.cumsum, ops.cummax, ops.cummin]


@dataclass
class Grower:
    """Grows one graph: values of all nodes as they are made, and which of them no rounding precedes (``exact``)."""

    rng: np.random.Generator
    b: Builder = field(default_factory=lambda: Builder(Pool()))
    values: dict[Node, Array] = field(default_factory=dict)
    exact: set[Node] = field(default_factory=set)
    inputs: list[Node] = field(default_factory=list)
    sizes: dict[Sym, int] = field(default_factory=dict)
    wide: bool = False
    depth: int = 0

    # --- choosing

    def choose(self, items: Sequence):
        return items[int(self.rng.integers(len(items)))]

    def integer(self, low: int, high: int) -> int:
        """Between ``low`` and ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def shape(self) -> tuple[int, ...]:
        low = 0 if self.chance(0.05) else 1
        return tuple(self.size(low) for _ in range(self.integer(0, 4)))

    def size(self, low: int = 1) -> int:
        """Of a dimension: small, or now and then more than a vector holds where graphs are ``wide``."""
        return self.integer(6, 70) if self.wide and self.chance(0.3) else self.integer(low, 5)

    def numbers(self, shape: Sequence[int], dtype: DType) -> Array:
        if dtype.is_float:
            return (self.rng.integers(-24, 25, shape) / 8 + 1 / 16).astype(dtype.numpy)
        low, high = (0, 1) if dtype is types.bool_ else (-4 if dtype.is_signed else 0, 9)
        return self.rng.integers(low, high + 1, shape).astype(dtype.numpy)

    def node(self, keep: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """One of the nodes that fit, the newer ones more often."""
        fitting = [n for n in self.values if len(n.types) == 1 and keep(n)]
        return fitting[-1 - int(len(fitting) * self.rng.random() ** 2)] if fitting else None

    # --- growing

    def add_input(self, dtype: DType | None = None, shape: Sequence[int] | None = None) -> Node:
        dtype = dtype or (types.f32 if self.chance(0.6) else self.choose(types.DTYPES))
        shape = self.shape() if shape is None else shape
        array = self.numbers(shape, dtype)
        dims = list(array.shape)
        if dims and dims[0] > 0 and self.chance(0.15):
            dims[0] = self.symbol(dims[0])
        node = self.b.pool.input(f"x{len(self.inputs)}", TensorType(dtype, tuple(dims)))
        self.inputs.append(node)
        self.values[node] = array
        self.exact.add(node)
        return node

    def symbol(self, size: int) -> Sym:
        """The one that stands for a size in this graph."""
        for s in self.sizes:
            if s.name == f"n{size}":
                return s
        made = Sym(f"n{size}", 1, self.choose((None, 128)) if self.wide else 64)
        self.sizes[made] = size
        return made

    def const(self, array: Array) -> Node:
        node = self.b.const(array)
        self.values[node] = array
        self.exact.add(node)
        return node

    def keep(self, op, *operands: Node, **attrs) -> bool:
        """Add ``op`` to the graph if it is valid and its values stay moderate."""
        jumps = op in JUMPS or (op is ops.cast and not attrs["dtype"].is_float) or op in (ops.argmax, ops.argmin)
        if jumps and not all(n in self.exact or not n.dtype.is_float for n in operands):
            return False
        if op in MAGNIFIES and any(n.dtype.is_float and _too_small(self.values[n]) for n in operands):
            return False
        divides = op in (ops.div, ops.floor_div, ops.mod, ops.fmod)
        if divides and not operands[1].dtype.is_float and not self.values[operands[1]].all():
            return False
        made = self.make(op, *operands, keep=_is_moderate if op not in RANDOM else _is_any, **attrs)
        is_exact = Trait.MOVEMENT in op.traits or all(not t.dtype.is_float for n in operands for t in n.types)
        if op is ops.random_normal:
            is_exact = False
        for r in made:
            if (is_exact or not r.dtype.is_float) and all(n in self.exact for n in operands):
                self.exact.add(r)
        return bool(made)

    def make(
        self, op, *operands: Node, keep: Callable[[Array], bool] = lambda a: a.size <= MOST_ELEMENTS, **attrs
    ) -> tuple[Node, ...]:
        """The results of ``op``, added to the graph; nothing if it is not valid, or ``keep`` refuses a value."""
        if Trait.CONTROL in op.traits and not _show_sizes(operands):
            return ()
        try:
            node = self.b(op, *operands, **attrs)
        except CompileError:
            return ()
        results = self.b.results(node)
        if any(r.type.rank > 6 for r in results):
            return ()
        arrays = evaluate_nodes(results, self.values, self.sizes)
        if not all(keep(a) for a in arrays):
            return ()
        for r, a in zip(results, arrays, strict=True):
            bind_shape(r.shape, a.shape, self.sizes)
        self.values.update(zip(results, arrays, strict=True))
        return results

    def grow(self) -> bool:
        return bool(self.choose(MAKERS)(self))

    def graph(self) -> Graph:
        """The graph of what nothing else reads, and now and then of more."""
        made = [n for n in self.values if n.inputs]
        read = {i for n in made for i in n.inputs}
        outputs = [n for n in made if n not in read or self.chance(0.1)] or list(self.values)[:1]
        if self.chance(0.1):
            outputs.append(self.choose([n for n in self.values if len(n.types) == 1]))  # an input, or one twice
        names = tuple(f"out{k}" for k in range(len(outputs)))
        return Graph("random", self.b.pool, tuple(self.inputs), tuple(outputs), names)


def _show_sizes(operands: Sequence[Node]) -> bool:
    """Is each size a dimension by itself? Control flow's reference reads sizes off shapes, and not n off n // 2."""
    dims = {d for n in operands for d in n.shape}
    return not any(symbols(d) - dims for d in dims)


def _is_any(a: Array) -> bool:
    return True


def _is_moderate(a: Array) -> bool:
    if a.size > MOST_ELEMENTS:
        return False
    if a.dtype.kind in "iub":
        return a.dtype.kind == "b" or a.size == 0 or max(int(a.max()), -int(a.min())) < 2**15
    wide = a.astype(np.float64)
    return bool(np.isfinite(wide).all()) and float(np.abs(wide).max(initial=0)) < LARGEST


def _too_small(a: Array) -> bool:
    wide = np.abs(a.astype(np.float64))
    return bool((wide < SMALLEST).any() or (np.abs(wide - 1) < 0.05).any())


# --- makers: each adds one node, or says that it could not ----------------------------------------------------------


def _partner(g: Grower, x: Node) -> Node:
    """An operand that broadcasts with ``x``: a node of its type, a constant, or a part of it."""
    same = g.node(lambda n: n.type == x.type)
    if same is not None and g.chance(0.5):
        return same
    shape = [d if isinstance(d, int) and g.chance(0.7) else 1 for d in x.shape][g.integer(0, x.type.rank) :]
    if g.chance(0.3):
        return g.const(np.full(shape, g.choose([0, 1, 2, 1]), x.dtype.numpy))
    return g.const(g.numbers(shape, x.dtype))


def unary(g: Grower) -> bool:
    x = g.node()
    return x is not None and g.keep(g.choose(UNARY), x)


def binary(g: Grower) -> bool:
    x = g.node()
    if x is None:
        return False
    operands = [x, _partner(g, x)]
    return g.keep(g.choose(BINARY), *(operands if g.chance(0.7) else operands[::-1]))


def common(g: Grower) -> bool:
    """What models are made of, and what rules look for."""
    x = g.node(lambda n: n.dtype.is_float)
    return x is not None and g.keep(g.choose([ops.add, ops.mul, ops.sub, ops.maximum, ops.minimum]), x, _partner(g, x))


def select(g: Grower) -> bool:
    x = g.node()
    cond = x and g.node(lambda n: n.dtype is types.bool_ and n.shape in (x.shape, ()))
    if x is None:
        return False
    if cond is None:
        return g.keep(g.choose([ops.lt, ops.ge, ops.eq]), x, _partner(g, x))
    return g.keep(ops.where, cond, x, _partner(g, x))


def clamp(g: Grower) -> bool:
    x = g.node(lambda n: n.dtype is not types.bool_)
    if x is None:
        return False
    lo, hi = sorted(g.numbers((2,), x.dtype).tolist())
    bounds = [g.const(np.asarray(v, x.dtype.numpy)) for v in (lo, hi)]
    return g.keep(ops.clamp, x, *bounds)


def cast(g: Grower) -> bool:
    x = g.node()
    return x is not None and g.keep(ops.cast, x, dtype=g.choose(types.DTYPES))


def reduce(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0 and g.values[n].size > 0)
    if x is None:
        return False
    axes = sorted({g.integer(0, x.type.rank - 1) for _ in range(g.integer(1, 2))})
    return g.keep(g.choose(REDUCTIONS), x, axes=axes, keepdims=g.chance(0.5))


def along_axis(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0 and g.values[n].size > 0)
    if x is None:
        return False
    axis = g.integer(0, x.type.rank - 1)
    op = g.choose([ops.softmax, ops.log_softmax, ops.argmax, ops.argmin, *CUMULATIVE])
    return g.keep(op, x, axis=axis)


def norm(g: Grower) -> bool:
    x = g.node(lambda n: n.dtype.is_float and n.type.rank > 0 and isinstance(n.shape[-1], int) and n.shape[-1] > 1)
    if x is None:
        return False
    scale = g.const(g.numbers(x.shape[-1:], x.dtype))
    attrs = {"axis": x.type.rank - 1, "epsilon": 0.5}
    return g.keep(ops.rms_norm, x, scale, **attrs) if g.chance(0.5) else g.keep(ops.layer_norm, x, scale, **attrs)


def reshape(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0)
    if x is None:
        return False
    dims = list(x.shape)
    k = g.integer(0, len(dims) - 1)
    if g.chance(0.3):
        dims.insert(k, 1)
    elif k + 1 < len(dims) and g.chance(0.6):
        dims[k : k + 2] = [dims[k] * dims[k + 1]]
    elif isinstance(dims[k], int) and dims[k] % 2 == 0 and dims[k]:
        dims[k : k + 1] = [2, dims[k] // 2]
    return g.keep(ops.reshape, x, shape=dims)


def transpose(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 1)
    return x is not None and g.keep(ops.transpose, x, perm=[int(p) for p in g.rng.permutation(x.type.rank)])


def expand(g: Grower) -> bool:
    x = g.node()
    if x is None:
        return False
    shape = [g.integer(1, 4) if d == 1 else d for d in x.shape]
    return g.keep(ops.expand, x, shape=[g.integer(1, 3), *shape] if g.chance(0.5) else shape)


def slice_(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0)
    if x is None:
        return False
    starts, stops, steps = [], [], []
    for d in x.shape:
        if not isinstance(d, int) or d == 0 or g.chance(0.4):
            part = (0, d, 1)
        elif g.chance(0.2):
            part = (d - 1, -1, -1)
        else:
            start = g.integer(0, d - 1)
            part = (start, g.integer(start + 1, d), g.integer(1, 2))
        for values, v in zip((starts, stops, steps), part, strict=True):
            values.append(v)
    return g.keep(ops.slice, x, starts=starts, stops=stops, steps=steps)


def pad(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0 and g.values[n].size > 0)
    if x is None:
        return False
    pads = [(g.integer(-1 if isinstance(d, int) and d > 2 else 0, 2), g.integer(0, 2)) for d in x.shape]
    value = g.const(g.numbers((), x.dtype))
    return g.keep(ops.pad, x, value, pads=pads, mode=g.choose(["constant", "constant", "edge", "reflect", "wrap"]))


def concat(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0)
    if x is None:
        return False
    axis = g.integer(0, x.type.rank - 1)
    fits = [d for k, d in enumerate(x.shape) if k != axis]
    other = g.node(lambda n: n.dtype is x.dtype and [d for k, d in enumerate(n.shape) if k != axis] == fits
                   and n.type.rank == x.type.rank)  # fmt: skip
    return g.keep(ops.concat, x, other or x, axis=axis)


def copies(g: Grower) -> bool:
    """Tile, reverse, roll and triangles."""
    x = g.node(lambda n: n.type.rank > 1)
    if x is None:
        return False
    axis = g.integer(0, x.type.rank - 1)
    match g.integer(0, 3):
        case 0:
            return g.keep(ops.tile, x, repeats=[2 if k == axis else 1 for k in range(x.type.rank)])
        case 1:
            return g.keep(ops.reverse, x, axes=[axis])
        case 2:
            return g.keep(ops.roll, x, shifts=[g.integer(-2, 2)], axes=[axis])
    return g.keep(ops.trilu, x, k=g.integer(-1, 1), upper=g.chance(0.5))


def gather(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0 and all(isinstance(d, int) and d > 0 for d in n.shape))
    if x is None:
        return False
    axis = g.integer(0, x.type.rank - 1)
    shape = g.choose([(), (2,), (2, 1)])
    indices = g.const(g.rng.integers(-x.shape[axis], x.shape[axis], shape))
    return g.keep(ops.gather, x, indices, axis=axis)


def matmul(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 1 and n.dtype is not types.bool_)
    if x is None or not isinstance(x.shape[-1], int):
        return False
    other = g.node(lambda n: n.dtype is x.dtype and n.type.rank > 1 and n.shape[-2] == x.shape[-1])
    if other is None or g.chance(0.5):
        weight = g.numbers((x.shape[-1], g.size()), x.dtype)
        if g.wide and x.dtype.is_float:
            weight = (weight / 16).astype(x.dtype.numpy)  # or long sums would leave the moderate range
        other = g.const(weight)
    return g.keep(ops.matmul, x, other)


def conv(g: Grower) -> bool:
    x = g.node(lambda n: n.dtype in (types.f32, types.f64) and n.type.rank in (3, 4) and isinstance(n.shape[1], int))
    if x is None or g.values[x].size == 0:
        return False
    n = x.type.rank - 2
    groups = x.shape[1] if g.chance(0.2) else 1
    kernel = [g.integer(1, 3) for _ in range(n)]
    n_out = groups * (g.size() if g.wide and groups == 1 else g.integer(1, 3))
    weight = g.const(g.numbers((n_out, x.shape[1] // groups, *kernel), x.dtype) / (64 if g.wide else 8))
    window = {"strides": [g.integer(1, 2) for _ in range(n)], "pads": [(g.integer(0, 1), 1) for _ in range(n)]}
    if g.chance(0.3):
        pool = g.choose([ops.max_pool, ops.avg_pool])
        pads = [(0, min(k - 1, 1)) for k in kernel]
        return g.keep(pool, x, kernel=kernel, strides=window["strides"], pads=pads)
    return g.keep(ops.conv, x, weight, dilations=[1] * n, groups=groups, **window)


def _nested(g: Grower, arguments: Sequence[tuple[TensorType, Array, bool]]) -> Grower:
    """A grower of a sub-graph, grown; the arguments are types, arrays, and whether no rounding precedes them."""
    inner = Grower(g.rng, sizes=dict(g.sizes), wide=g.wide, depth=g.depth + 1)
    for k, (t, array, exact) in enumerate(arguments):
        node = inner.b.pool.input(f"p{k}", t)
        inner.inputs.append(node)
        inner.values[node] = array
        if exact:
            inner.exact.add(node)
    for _ in range(g.integer(1, 6)):
        inner.grow()
    return inner


def _last(inner: Grower, t: TensorType) -> Node:
    return [n for n in inner.values if len(n.types) == 1 and n.type == t][-1]


def _closed(inner: Grower, name: str, outputs: Sequence[Node]) -> Graph:
    names = tuple(f"r{k}" for k in range(len(outputs)))
    return Graph(name, inner.b.pool, tuple(inner.inputs), tuple(outputs), names)


def branch(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0)
    if x is None or g.depth:
        return False
    y = _partner(g, x)
    cond = g.add_input(types.bool_, ())
    arms = []
    for name in ("then", "else"):
        inner = _nested(g, [(n.type, g.values[n], n in g.exact) for n in (x, y)])
        arms.append(_closed(inner, name, [_last(inner, x.type), _last(inner, y.type)]))
    return g.keep(ops.if_, cond, x, y, then_branch=arms[0], else_branch=arms[1], name=f"if{len(g.values)}")


def repeat(g: Grower) -> bool:
    x = g.node(lambda n: n.type.rank > 0)
    if x is None or g.depth:
        return False
    y = _partner(g, x)
    known = g.chance(0.5)  # else the loop may not stack values: their memory would have no bound
    trips = g.const(np.asarray(g.integer(0, 3))) if known else g.add_input(types.i64, ())
    go = g.const(np.asarray(True))
    scalars = [(TensorType(types.i64, ()), np.asarray(0), True), (TensorType(types.bool_, ()), np.asarray(True), True)]
    carried = (x.type, g.values[x], not x.dtype.is_float)
    inner = _nested(g, [*scalars, carried, (y.type, g.values[y], y in g.exact)])
    again = _last(inner, TensorType(types.bool_, ()))
    sizes = {s for d in (*x.shape, *y.shape) for s in symbols(d)}  # what is stacked has one size in all iterations
    same = [n for n in inner.values if len(n.types) == 1 and {s for d in n.shape for s in symbols(d)} <= sizes]
    scanned = same[-1:] if known else []
    body = _closed(inner, "body", [again, _last(inner, x.type), *scanned])
    return g.keep(ops.loop, trips, go, x, y, body=body, n_carried=1, name=f"loop{len(g.values)}")


def _stays_moderate(body: Graph, operands: Sequence[Array]) -> bool:
    """Is what was asked of a body's values as it grew true of those for other operands?"""
    values = dict(zip(body.inputs, operands, strict=True))
    sizes = bind_inputs(body, operands)
    for n in body.nodes():
        if n in values or len(n.types) > 1:
            continue
        values[n] = evaluate_nodes((n,), values, sizes)[0]
        bind_shape(n.shape, values[n].shape, sizes)
        magnifies = n.op in MAGNIFIES and any(x.dtype.is_float and _too_small(values[x]) for x in n.inputs)
        if magnifies or not (n.op in (CONST, *RANDOM) or _is_moderate(values[n])):
            return False
    return True


def parts(g: Grower) -> bool:
    """Parts of a batch, one or more of whose operands are cut, at one time or in turn."""
    x = g.node(lambda n: n.type.rank > 0 and isinstance(n.shape[0], int) and n.shape[0] > 0)
    if x is None or g.depth:
        return False
    n_parts = g.choose([n for n in range(1, x.shape[0] + 1) if x.shape[0] % n == 0])
    cut = [x]
    other = g.node(lambda n: n.type.rank > 0 and isinstance(n.shape[0], int) and n.shape[0] % n_parts == 0)
    if other is not None and g.chance(0.5):
        cut.append(other)
    whole = [_partner(g, x)]

    def part_of(n: Node) -> tuple[TensorType, Array, bool]:
        rows = n.shape[0] // n_parts
        return n.type.with_shape((rows, *n.shape[1:])), g.values[n][:rows], n in g.exact

    inner = _nested(g, [*map(part_of, cut), *((n.type, g.values[n], n in g.exact) for n in whole)])
    sizes = {s for n in (*cut, *whole) for d in n.shape for s in symbols(d)}
    fitting = [
        n for n in inner.values
        if len(n.types) == 1 and n.type.rank > 0 and {s for d in n.shape for s in symbols(d)} <= sizes
    ]  # fmt: skip
    body = _closed(inner, f"part{len(g.values)}", list(dict.fromkeys([fitting[-1], g.choose(fitting)])))
    how = {"body": body, "n_parts": n_parts, "n_cut": len(cut), "n_threads": g.integer(1, n_parts)}
    if not _show_sizes((*cut, *whole)):
        return False
    given = [g.values[n] for n in (*cut, *whole)]
    if not all(_stays_moderate(body, operands) for operands in operands_of_parts(given, Attrs(how))):
        return False
    return g.keep(ops.map_parts, *cut, *whole, **how)


def rescale(g: Grower) -> bool:
    """Whole numbers times a factor, one for all or one for each place along an axis, rounded as TFLite does."""
    x = g.node(lambda n: n.dtype is types.i32)
    if x is None:
        return False
    known = [k for k, d in enumerate(x.shape) if isinstance(d, int)]
    axis = g.choose(known) if known and g.chance(0.5) else None
    shape = () if axis is None else (x.shape[axis],)
    multiplier = g.const(g.rng.integers(1 << 30, 1 << 31, shape).astype(np.int32))
    shift = g.const(g.rng.integers(-6, 3, shape).astype(np.int32))
    return g.keep(ops.rescale, x, multiplier, shift, **({} if axis is None else {"axis": axis}))


def sample(g: Grower) -> bool:
    """Any op at all, in any dtype, on operands of its own: an island that other ops may grow from."""
    op = g.choose([op for op in ops.ALL if op.samples is not None and Trait.CONTROL not in op.traits])
    calls = [s for s in sample_calls(op, g.integer(0, 2**31)) if op in RANDOM or all(map(_is_moderate, s.arrays))]
    if not calls:
        return False
    drawn = g.choose(calls)
    if g.chance(0.5):
        drawn = converted(drawn, g.choose(types.DTYPES)) or drawn
    if op not in RANDOM and not all(map(_is_moderate, drawn.arrays)):
        return False
    operands = []
    for a in drawn.arrays:
        # A graph within control flow has no inputs but what it is called with.
        if not g.depth and g.chance(0.5) and (a.dtype.kind not in "iub" or op in RANDOM):
            dims = [g.symbol(d) if 1 < d < 64 and g.chance(0.1) else d for d in a.shape]
            node = g.b.pool.input(f"x{len(g.inputs)}", TensorType(types.dtype_of(a.dtype), tuple(dims)))
            g.inputs.append(node)
            g.values[node] = a
            g.exact.add(node)
            operands.append(node)
        else:
            operands.append(g.const(a))
    names = {"count": f"count{len(g.values)}"} if "count" in op.attrs else {}
    return g.keep(op, *operands, **{**drawn.attrs, **names})


MAKERS: tuple[Callable[[Grower], bool], ...] = (
    unary, unary, binary, binary, common, common, select, clamp, cast, reduce, reduce, along_axis, norm, reshape,
    reshape, transpose, transpose, expand, slice_, pad, concat, copies, gather, matmul, conv, sample, sample, branch,
    repeat, parts, rescale,
)  # fmt: skip


def random_graph(seed: int, n_ops: int = 12, *, wide: bool = False) -> RandomGraph:
    """A valid graph of about ``n_ops`` ops; equal seeds give equal graphs. ``wide``: some dimensions fill vectors."""
    g = Grower(np.random.default_rng(seed), wide=wide)
    for _ in range(g.integer(1, 3)):
        g.add_input()
    made = 0
    for _ in range(8 * n_ops):
        made += g.grow()
        if made == n_ops:
            break
    graph = g.graph()
    return RandomGraph(graph, [g.values[n] for n in graph.inputs], seed)


def graphs(most_ops: int = 16) -> st.SearchStrategy[RandomGraph]:
    """Random graphs as a hypothesis strategy; a failure shrinks to fewer ops of one seed."""
    return st.builds(random_graph, st.integers(0, 2**32 - 1), st.integers(1, most_ops))
