"""Every access of a kernel is inside of its tensor, whatever its sizes and data are.

In: a traced kernel. Out: the same with the relations between its sizes that a caller has to keep, or a ``KernelError``
at the line of an access that may go beyond. Not its business: what a caller does with relations (``kernel``).

An index is least and greatest where each loop stands at its first or last iteration. What then is left is a number,
or an expression of sizes, which becomes a relation: ``x[i + 1]`` in a loop of ``n`` asks for a tensor of ``n + 1``.
Under a ``where`` on indices, an access may also follow from what the condition says. Of an index that data choose,
their dtype and what ``clamp`` says of them has to be enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.core.compute import Buffer, IndexLike, Load, Serial, Stage, Value, index_text
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Expr, Sym, symbols
from tilewright.core.indices import chosen, is_chosen
from tilewright.core.ranges import Guards, range_of, under_guards
from tilewright.language.errors import KernelError
from tilewright.language.trace import Traced
from tilewright.tile.affine import least, never_negative

Extents = Mapping[Sym, Dim]


def checked(traced: Traced) -> Traced:
    """The kernel with its ``constraints``; ``KernelError`` names the access that may be outside."""
    check = _Check(traced)
    c = traced.computation
    for b in (*c.inputs, *c.outputs, *c.temps):
        for d in b.shape:
            check.need(d, {}, (), b, f"the size {d} of {b.name} may be negative")
    check.items(c.items, {})
    return replace(traced, constraints=tuple(check.constraints))


@dataclass
class _Check:
    traced: Traced
    constraints: dict[Expr, None] = field(default_factory=dict)

    def items(self, items: Sequence[Stage | Serial], extents: Extents) -> None:
        for x in items:
            if isinstance(x, Serial):
                self.items(x.body, {**extents, x.axis.sym: x.axis.extent})
            else:
                self.stage(x, extents)

    def stage(self, s: Stage, extents: Extents) -> None:
        extents = {**extents, **{a.sym: a.extent for a in s.axes}}
        for b in s.outs:
            self.access(b, s.index, extents, (), s)
        if s.reduction is not None:
            for v in s.reduction.init:
                self.value(v, extents, ())
            extents = {**extents, **{a.sym: a.extent for a in s.reduction.axes}}
        for v in (*s.exprs, *chosen(s.index)):
            self.value(v, extents, ())

    def value(self, v: Value, extents: Extents, guards: Guards) -> None:
        for x, known in under_guards(v, guards):
            if isinstance(x, Load):
                self.access(x.buffer, x.index, extents, known, x)

    def access(self, b: Buffer, index: Sequence[IndexLike], extents: Extents, guards: Guards, what: object) -> None:
        text = f"{b.name}[{', '.join(map(index_text, index))}]"
        for i, size in zip(index, b.shape, strict=True):
            low, high = range_of(i) if is_chosen(i) else (i, i)
            if low is None or high is None:
                rule = f"{text}: nothing bounds the index that the data choose"
                raise KernelError(self.traced.name, rule, _CLAMP, self.traced.lines.get(what))
            self.need(low, extents, guards, what, f"{text}: the index {index_text(i)} may be less than 0")
            rule = f"{text}: the index {index_text(i)} may be over the last, {size - 1}"
            self.need(size - 1 - high, extents, guards, what, rule)

    def need(self, e: Dim, extents: Extents, guards: Guards, what: object, rule: str) -> None:
        """Let ``e`` be at least 0: proved, or asked of callers."""
        # Where an access is made, every loop around it has an iteration.
        if any(never_negative(e - g, extents) for g in (0, *guards, *(n - 1 for n in extents.values()))):
            return
        left = least(e, extents)
        if is_known(left) or symbols(left) & extents.keys():
            raise KernelError(self.traced.name, rule, _CLAMP, self.traced.lines.get(what))
        self.constraints[left] = None


_CLAMP = (
    "write where(condition on the indices, ..., otherwise), clamp(index, 0, size - 1), or give a block's lanes a mask"
)
