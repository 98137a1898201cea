"""What fusion needs to know of a node, read off the stages that its op computes.

In: nodes of a decomposed graph. Out: ``Facts``: how a node may take part in a kernel. By structure,
and by how many bits constants of whole numbers have.
Not its business: which nodes go together (``partition.fuse``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tilewright import ops
from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Const,
    Fma,
    Index,
    IndexLike,
    Inside,
    Load,
    Select,
    Serial,
    Stage,
    Unary,
    Value,
    syms,
    walk,
)
from tilewright.core.expr import BinaryExpr, Dim, Sym, coef_of, substitute, symbols, terms_of
from tilewright.core.graph import CONST, Node
from tilewright.core.indices import chosen, is_chosen, placed, symbols_at, symbols_in, terms_at
from tilewright.core.opdef import Trait
from tilewright.core.types import product

SIMPLE_UNARY = frozenset("abs neg not floor ceil trunc rint isnan sqrt".split())
COSTLY_BINARY = frozenset("pow atan2 rem".split())


class Form(Enum):
    """How a node's value comes about."""

    SOURCE = "source"
    """An input or a constant: memory that exists already."""
    VIEW = "view"
    """The operand's memory under another shape."""
    MOVE = "move"
    """Copies of elements, or constants, chosen by index arithmetic."""
    POINT = "point"
    """Arithmetic on elements, one per element of the result."""
    ROW = "row"
    """A reduction that reads each operand element once."""
    CONTRACT = "contract"
    """A reduction that reads operand elements many times: products, convolutions, windows."""
    OPAQUE = "opaque"
    """Several results, recurrences, scatters, control flow: a kernel or step of its own."""


@dataclass(frozen=True)
class Facts:
    """A node's form, the stages behind it over formal buffers, and what a repetition of it would cost.

    ``cost`` is in simple operations per element. ``is_affine``: every index is a sum of axes times numbers, so that
    whoever reads through this node walks memory with constant strides.
    """

    form: Form
    items: tuple[Stage | Serial, ...] = ()
    ins: tuple[Buffer, ...] = ()
    outs: tuple[Buffer, ...] = ()
    cost: int = 0
    is_affine: bool = True

    @property
    def main(self) -> Stage:
        """The stage that does the work: the reduction where there is one."""
        stages = [s for s in self.items if isinstance(s, Stage)]
        return next((s for s in stages if s.reduction), stages[-1])

    def reads(self, operand: int) -> list[Load]:
        """Every load of an operand."""
        found = [x for s in self.items if isinstance(s, Stage) for v in s.exprs for x in walk(v) if isinstance(x, Load)]
        return [x for x in found if x.buffer is self.ins[operand]]

    def reads_in_place(self, operand: int) -> bool:
        """Is the operand read only at the very position that is written? (0 is the position in a dimension of 1.)"""
        written, shape = self.main.index, self.main.out.shape
        return all(
            len(x.index) == len(written)
            and all(i == w or (d == 1 and i == 0) for i, w, d in zip(x.index, written, shape, strict=True))
            for x in self.reads(operand)
        )

    @property
    def is_widening(self) -> bool:
        """Is it only the conversion of one element to a type that holds more, as good as a load of the wide type?"""
        v = self.main.expr if self.form is Form.POINT else None
        return isinstance(v, Cast) and isinstance(v.a, Load) and v.dtype.is_float and v.a.dtype.bits < v.dtype.bits

    @property
    def is_padding(self) -> bool:
        """Is it one operand's elements at their distances, with something else around them?"""
        v = self.main.expr if self.form is Form.MOVE else None
        if not isinstance(v, Select) or not isinstance(v.cond, Inside) or not isinstance(v.a, Load):
            return False
        at, written = placed(v.a.index), placed(self.main.index)
        is_whole = len(at) == len(v.a.index) == len(written) and len(self.items) == 1
        return is_whole and all(not symbols(i - w) for i, w in zip(at, written, strict=True))

    def is_walked_by_window(self, operand: int) -> bool:
        """Is the operand of a reduction read at sums of the places of its result and of its reduction?"""
        found = [i for x in self.reads(operand) for i in x.index]
        return self.form is Form.CONTRACT and any(len(terms_at(i)) > 1 for i in found)

    def is_shared(self, operand: int) -> bool:
        """Is the operand of a reduction the same for all places along the last axis of its result?"""
        if self.form is not Form.CONTRACT or not self.main.axes:
            return False
        last = self.main.axes[-1].sym
        return all(last not in symbols_in(x.index) for x in self.reads(operand))

    @property
    def is_elementwise(self) -> bool:
        """Does a plain stage read each operand at the written position only, or at 0 where the operand is broadcast?"""
        if self.form not in (Form.POINT, Form.MOVE):
            return False
        written = self.main.index
        found = [x for x in walk(self.main.expr) if isinstance(x, Load)]
        return all(
            len(x.index) <= len(written)
            and all(i in (w, 0) for i, w in zip(x.index[::-1], written[::-1], strict=False))
            for x in found
        )

    @property
    def permutes_rows(self) -> bool:
        """Is it a copy of its one operand with all axes but the last in another order?"""
        x = self.main.expr
        if self.form is not Form.MOVE or not isinstance(x, Load) or len(x.index) != len(self.main.index):
            return False
        places = [i for i, d in zip(x.index, x.buffer.shape, strict=True) if d != 1]
        written = [w for w, d in zip(self.main.index, self.main.out.shape, strict=True) if d != 1]
        return len(set(places)) == len(places) and set(places) == set(written) and places[-1:] == written[-1:]

    @property
    def walks_memory(self) -> int | None:
        """For a copy of one operand with its axes in another order: which axis of it walks the operand's last one."""
        x, written = self.main.expr, self.main.index
        if self.form is not Form.MOVE or not isinstance(x, Load) or not self.is_affine:
            return None
        last = [i for i, d in zip(x.index, x.buffer.shape, strict=True) if d != 1][-1:]
        return written.index(last[0]) if last and last[0] in written and last[0] != written[-1] else None

    @property
    def spreads_rows(self) -> bool:
        """Is it a copy of elements of which no two lie next to each other, such as the real parts of pairs?"""
        steps = self.copied_steps
        return bool(steps) and all(s not in (1, -1) for s in steps)

    @property
    def copied_steps(self) -> list[int]:
        """How far apart in its operand neighbours along each axis of a copy are, in elements; axes of one have none.

        Empty where it is no copy of single elements at places that loops decide.
        """
        x, written = self.main.expr, self.main.index
        if self.form is not Form.MOVE or not self.is_affine or not isinstance(x, Load):
            return []
        at: Dim = 0
        for i, d in zip(x.index, x.buffer.shape, strict=True):
            if is_chosen(i):
                return []
            at = at * d + i
        rows = [w for w, d in zip(written, self.main.out.shape, strict=True) if d != 1]
        steps = [coef_of(at, w) for w in rows if isinstance(w, Sym)]
        return steps if len(steps) == len(rows) else []

    @property
    def reads_rows(self) -> bool:
        """Is it elements of one operand, those of the last axis next to each other, at places that the data choose?"""
        x = self.main.expr if self.items and isinstance(self.items[-1], Stage) else None
        if self.form not in (Form.MOVE, Form.POINT) or not isinstance(x, Load):
            return False
        return x.index[-1:] == self.main.index[-1:] and bool(chosen(x.index))

    def slides(self, operand: int) -> bool:
        """Is the operand read with the last axis of what is made walking its last axis: through a window that moves, or
        to prepare it for the reduction?
        """
        main, buffer = self.main, self.ins[operand]
        single = {a.sym: 0 for a in (*main.axes, *(main.reduction.axes if main.reduction else ())) if a.extent == 1}

        def plain(index: Sequence[IndexLike]) -> list[Dim]:
            return [substitute(i, single) for i in placed(index)]

        for s in [s for s in self.items if isinstance(s, Stage)]:
            for x in [x for v in s.exprs for x in walk(v) if isinstance(x, Load) and x.buffer is buffer]:
                place = plain(x.index)
                moves = s is not main or any(len(terms_of(d)) > 1 for d in place)
                if moves and place[-1:] == plain(s.index)[-1:]:
                    return True
        return False

    def pads(self, operand: int) -> bool:
        """Does a reduction of several elements along some axes of an operand read zeros around it?"""
        buffer, main = self.ins[operand], self.main
        if self.form is not Form.CONTRACT:
            return False
        selects = [x for v in main.exprs for x in walk(v) if isinstance(x, Select) and isinstance(x.cond, Inside)]
        return any(isinstance(x, Load) and x.buffer is buffer for s in selects for x in walk(s.a))

    def is_window_weight(self, operand: int) -> bool:
        """Is the operand what a window is multiplied by, while that moves over another operand?

        The same elements meet every place, and the places' axes are no part of how it is read.
        """
        if self.form is not Form.CONTRACT:
            return False
        main, buffer = self.main, self.ins[operand]
        assert main.reduction is not None
        reduced, across = {a.sym for a in main.reduction.axes}, {a.sym for a in main.axes}
        found = [x for x in walk(main.expr) if isinstance(x, Load)]
        moving = [
            {s for s in symbols_at(i) if s in across}
            for x in found
            if x.buffer is not buffer
            for i in x.index
            if symbols_at(i) & reduced and len(terms_at(i)) > 1
        ]
        own = {s for x in found if x.buffer is buffer for s in symbols_in(x.index)}
        return bool(own) and any(places and not places & own for places in moving)

    @property
    def keeps_rows(self) -> bool:
        """Does the last axis of the result walk the last axis of every operand?"""
        written = self.main.index
        found = [x for x in walk(self.main.expr) if isinstance(x, Load)]
        return all(x.index[-1:] == written[-1:] for x in found)

    @property
    def n_points(self) -> Dim:
        """How many times the main stage's expression runs."""
        s = self.main
        axes = s.axes + (s.reduction.axes if s.reduction else ())
        return product([a.extent for a in axes])


def facts_of(node: Node, *, by_byte_pairs: bool = False) -> Facts:
    """The facts of one node; ops without stages (sources, control flow) are told by their traits.

    With ``by_byte_pairs``, for a machine that multiplies pairs of bytes where one of them has 7 bits, constants that
    have so few and are multiplied by unsigned bytes are of ``types.i7``.
    """
    op = node.op
    if op.traits & {Trait.CONTROL} or (op.compute is None and op.kernel is None):
        return Facts(Form.OPAQUE if node.inputs else Form.SOURCE)
    ins = tuple(Buffer(f"x{k}", i.dtype, i.shape) for k, i in enumerate(node.inputs))
    if by_byte_pairs and _has_seven_bits(node):
        ins = (ins[0], replace(ins[1], dtype=types.i7))
    outs = tuple(Buffer(f"y{k}", t.dtype, t.shape) for k, t in enumerate(node.types))
    compute = op.compute or op.kernel
    assert compute is not None
    items = tuple(compute(ins, outs, node.attrs))
    form = Form.OPAQUE if op.kernel else _form(items, outs, node)
    exprs = [v for s in items if isinstance(s, Stage) for v in s.exprs]
    return Facts(form, items, ins, outs, sum(map(cost_of, exprs)), all(map(is_affine, exprs)))


def _has_seven_bits(node: Node) -> bool:
    """Is the node a product of unsigned bytes by constants that 7 bits hold?"""
    if node.op not in (ops.matmul, ops.conv) or (node.inputs[0].dtype, node.dtype) != (types.u8, types.i32):
        return False
    numbers = None if node.inputs[1].op is not CONST else node.inputs[1].attrs.data.array
    if numbers is None or numbers.dtype != types.i7.numpy or numbers.size < 2:
        return False
    return bool(types.i7.min <= numbers.min() and numbers.max() <= types.i7.max)


def _form(items: Sequence[Stage | Serial], outs: Sequence[Buffer], node: Node) -> Form:
    stages = [s for s in items if isinstance(s, Stage)]
    if len(stages) != len(items) or len(outs) != 1 or not all(_is_plain(s) for s in stages):
        return Form.OPAQUE
    reductions = [s for s in stages if s.reduction]
    if not reductions:
        if len(stages) != 1 or not _in_order(stages[0]):
            return Form.OPAQUE
        if Trait.VIEW in node.op.traits:
            return Form.VIEW
        return Form.MOVE if _only_moves(stages[0].expr) else Form.POINT
    if len(reductions) != 1:
        return Form.OPAQUE
    stage = reductions[0]
    assert stage.reduction is not None
    if stages[0] is not stage:  # what it reads is prepared before it
        return Form.CONTRACT if stages[-1].outs == outs else Form.OPAQUE
    points = product([a.extent for a in (*stage.axes, *stage.reduction.axes)])
    once = all(product(x.buffer.shape) == points for x in walk(stage.expr) if isinstance(x, Load))
    return Form.ROW if once and len(node.inputs) == 1 else Form.CONTRACT


def _is_plain(s: Stage) -> bool:
    """One output, each element written once at a place that the axes give, by a named reduction at most."""
    custom = s.reduction is not None and not isinstance(s.reduction.op, str)
    scatters = bool(chosen(s.index))
    whole = product([a.extent for a in s.axes]) == product(s.out.shape)
    return len(s.outs) == 1 and s.update is None and not custom and not scatters and whole


def _in_order(s: Stage) -> bool:
    """Is the written index the axes themselves, with 0 at dimensions of size 1?"""
    left = list(syms(s.axes))
    for i, d in zip(s.index, s.out.shape, strict=True):
        if i == 0 and d == 1:
            continue
        if not left or i != left.pop(0):
            return False
    return not left


def _only_moves(v: Value) -> bool:
    return all(isinstance(x, Load | Const | Index | Inside | Select) or _is_index_arithmetic(x) for x in walk(v))


def _is_index_arithmetic(x: Value) -> bool:
    return isinstance(x, Cast | Binary | Unary) and not any(isinstance(y, Load) for y in walk(x))


def row_space(facts: Facts) -> tuple[tuple[Dim, ...], tuple[int, ...]]:
    """For a reduction of form ``ROW``: the operand's shape and the axes that are reduced."""
    stage = facts.main
    assert stage.reduction is not None
    load = facts.reads(0)[0]
    reduced = {a.sym for a in stage.reduction.axes}
    return load.buffer.shape, tuple(a for a, i in enumerate(load.index) if i in reduced)


def cost_of(v: Value) -> int:
    """Simple operations to compute ``v`` once; a transcendental counts as ten."""
    total = 0
    for x in walk(v):
        if isinstance(x, Unary):
            total += 1 if x.op in SIMPLE_UNARY else 10
        elif isinstance(x, Binary):
            total += 10 if x.op in COSTLY_BINARY else 4 if x.op == "div" else 1
        elif isinstance(x, Fma | Select | Cast):
            total += 1
    return total


def is_affine(v: Value) -> bool:
    """No load of ``v`` has a quotient, remainder, minimum, maximum or run-time value in its index."""
    found = [x for x in walk(v) if isinstance(x, Load)]
    return all(not is_chosen(i) and _is_affine_dim(i) for x in found for i in x.index)


def _is_affine_dim(e: Dim) -> bool:
    return all(isinstance(a, Sym) or not isinstance(a, BinaryExpr) for a, _ in terms_of(e))
