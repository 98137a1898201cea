"""A suite of random graphs by seed: code for every machine that there is a target of, made and not run.

In: seeds. Out: passed, or refused by a typed error. An abort within LLVM ends the worker, which ``fuzz`` reports as a
crash of that seed. The graphs mix element types: casts, selections with known and unknown masks, reductions, sorts,
scatters and products over rows that end within a vector. Not its business: values (``fuzz_graphs``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphs import BINARY, CUMULATIVE, MAKERS, REDUCTIONS, UNARY, Grower, RandomGraph, _is_any
from tilewright import ops
from tilewright.build import driver
from tilewright.build.options import Clock, Options
from tilewright.core import types
from tilewright.core.diag import CompileError
from tilewright.core.expr import Sym
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.target.target import named_targets
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "machines"
COUNT = 20_000
TARGETS_PER_SEED = 3
LARGEST_SIZE = 150
MACHINES = tuple(t.name for t in named_targets())
WITH_BF16 = ("znver4", "sapphirerapids", "native")
TYPES = (*types.DTYPES, types.bf16, types.f16, types.bf16, types.i16, types.i8)


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(str(seed), "mixed") for seed in range(first, last)]


def targets(seed: int) -> list[str]:
    """A machine that rounds to bf16 by an instruction, and others in turn."""
    rest = [MACHINES[(TARGETS_PER_SEED * seed + k) % len(MACHINES)] for k in range(TARGETS_PER_SEED)]
    return list(dict.fromkeys([WITH_BF16[seed % len(WITH_BF16)], *rest]))


def run_case(case: Case) -> tuple[Status, str]:
    made = mixed_graph(int(case.name))
    for target in targets(int(case.name)):
        for optimize in (1, 0, "size") if target == "native" else (2,):
            try:
                driver.build(made.graph, Options(target, optimize=optimize), Clock())
            except CompileError:
                continue
            except Exception as e:
                e.add_note(f"seed {case.name}, optimize={optimize}, target={target}")
                raise
    return "passed", ""


def mixed_graph(seed: int) -> RandomGraph:
    """A valid graph of some ops in many types; equal seeds give equal graphs."""
    g = Mixer(np.random.default_rng(seed))
    for _ in range(g.integer(2, 4)):
        g.add_input(g.choose(TYPES))
    for _ in range(g.integer(2, 9)):
        g.choose(MIXERS)(g)
    graph = g.graph()
    return RandomGraph(graph, [g.values[n] for n in graph.inputs], seed)


class Mixer(Grower):
    """Grows graphs whose rows end anywhere within a register, and whose values may be what they like."""

    def size(self, low: int = 1) -> int:
        return self.integer(1, 8) if self.chance(0.6) else self.integer(9, LARGEST_SIZE)

    def node(self, keep: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """One whose numbers a machine computes with."""
        return super().node(lambda n: not n.dtype.is_narrow and keep(n))

    def shape(self) -> tuple[int, ...]:
        """Often that of what there is, so that operands meet."""
        known = [a.shape for a in self.values.values() if a.shape]
        if known and self.chance(0.6):
            shape = self.choose(known)
            return shape[self.integer(0, len(shape) - 1) :]
        shape = tuple(self.size() for _ in range(self.integer(1, 3)))
        return shape if np.prod(shape) <= 4096 else shape[:1]

    def symbol(self, size: int) -> Sym:
        found = next((s for s in self.sizes if s.name == f"n{size}"), None)
        if found is None:
            found = Sym(f"n{size}", 1, self.choose((None, LARGEST_SIZE)))
            self.sizes[found] = size
        return found

    def keep(self, op, *operands: Node, **attrs) -> bool:
        with np.errstate(all="ignore"):
            return bool(self.make(op, *operands, **attrs))

    def in_type(self, x: Node, dtype: types.DType) -> Node:
        """``x``, cast where it has another type."""
        if x.dtype is dtype:
            return x
        with np.errstate(all="ignore"):
            return self.make(ops.cast, x, keep=_is_any, dtype=dtype)[0]

    def mask(self, shape: Sequence[int]) -> Array:
        """The beginning of each row, or anything."""
        if self.chance(0.5):
            return np.broadcast_to(np.arange(shape[-1]) < self.integer(0, shape[-1]), shape).copy()
        return self.rng.random(shape) < self.choose((0.1, 0.5, 0.95))


def casts(g: Mixer) -> bool:
    x = g.node()
    return x is not None and g.keep(ops.cast, x, dtype=g.choose(TYPES))


def arithmetic(g: Mixer) -> bool:
    """An op of two operands whose types are made one."""
    x, y = g.node(), g.node()
    if x is None or y is None:
        return False
    dtype = g.choose((x.dtype, y.dtype, g.choose(TYPES)))
    return g.keep(g.choose(BINARY), g.in_type(x, dtype), g.in_type(y, dtype))


def function(g: Mixer) -> bool:
    x = g.node()
    return x is not None and g.keep(g.choose(UNARY), x)


def selection(g: Mixer) -> bool:
    """By a comparison, a mask that is an input, or one that is known."""
    x, y = g.node(), g.node()
    if x is None or y is None or not g.values[x].shape:
        return False
    dtype = g.choose((x.dtype, y.dtype))
    a, b = g.in_type(x, dtype), g.in_type(y, dtype)
    shape = g.values[x].shape
    match g.integer(0, 2):
        case 0:
            by = g.choose([n for n in g.values if len(n.types) == 1])
            cond = g.make(ops.gt, by, g.const(np.zeros((), by.dtype.numpy)))
            return bool(cond) and g.keep(ops.where, cond[0], a, b)
        case 1:
            return g.keep(ops.where, g.const(g.mask(shape)), a, b)
    node = g.add_input(types.bool_, shape)
    return g.keep(ops.where, node, a, g.const(g.numbers((), dtype)))


def reduction(g: Mixer) -> bool:
    x = g.node(lambda n: n.type.rank > 0 and g.values[n].size > 0)
    if x is None:
        return False
    axis = g.integer(0, x.type.rank - 1)
    if g.chance(0.4):
        along = [ops.softmax, ops.log_softmax, ops.argmax, ops.argmin, ops.cumprod, *CUMULATIVE]
        return g.keep(g.choose(along), x, axis=axis)
    return g.keep(g.choose([*REDUCTIONS, ops.reduce_prod, ops.reduce_l2]), x, axes=[axis], keepdims=g.chance(0.5))


def ordering(g: Mixer) -> bool:
    x = g.node(lambda n: n.type.rank > 0)
    if x is None:
        return False
    axis = g.integer(0, x.type.rank - 1)
    n = g.values[x].shape[axis]
    if n and g.chance(0.5):
        return g.keep(ops.top_k, x, k=g.integer(1, n), axis=axis, largest=g.chance(0.5))
    return g.keep(ops.sort, x, axis=axis, descending=g.chance(0.5))


def scatter(g: Mixer) -> bool:
    x = g.node(lambda n: n.type.rank > 0)
    if x is None or 0 in g.values[x].shape:
        return False
    shape, axis = g.values[x].shape, g.integer(0, x.type.rank - 1)
    indices = g.const(g.rng.integers(0, shape[axis], shape))
    return g.keep(ops.scatter_elements, x, indices, x, axis=axis, reduction=g.choose(("none", "add", "max", "mul")))


def selected(g: Mixer) -> bool:
    """The elements that a mask names, as many as there are."""
    x = g.node(lambda n: n.type.rank > 0)
    if x is None or not g.values[x].size:
        return False
    found = g.make(ops.argwhere, g.const(g.mask(g.values[x].shape)), count=f"count{len(g.values)}")
    return bool(found) and g.keep(ops.gather_nd, x, found[0])


def product(g: Mixer) -> bool:
    x = g.node(lambda n: n.type.rank > 1 and n.dtype is not types.bool_)
    if x is None:
        return False
    weight = g.numbers((g.values[x].shape[-1], g.size()), x.dtype)
    return g.keep(ops.matmul, x, g.const(weight) if g.chance(0.5) else g.add_input(x.dtype, weight.shape))


def narrow(g: Mixer) -> bool:
    """What is stored in few bits, and read again."""
    x = g.node(lambda n: n.dtype in (types.f32, types.f16, types.bf16))
    if x is None:
        return False
    stored = g.choose([t for t in types.NARROW if t not in types.WHOLE])
    made = g.make(ops.encode, x, dtype=stored)
    return bool(made) and g.keep(ops.decode, made[0])


def anything(g: Mixer) -> bool:
    return bool(g.choose(MAKERS)(g))


MIXERS: tuple[Callable[[Mixer], bool], ...] = (
    casts, casts, casts, arithmetic, arithmetic, function, selection, selection, selection, reduction, ordering,
    scatter, selected, product, narrow, anything, anything, anything,
)  # fmt: skip
