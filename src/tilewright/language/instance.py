"""A traced kernel for operands of certain types: an op like any other, with an author's schedule perhaps.

In: ``Traced``, steps. Out: an ``OpDef``. Not its business: calling it (``kernel``), strategies (``choose``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    Load,
    Reduction,
    Serial,
    Value,
    loop_symbol,
    rewrite_value,
)
from tilewright.core.diag import OpError
from tilewright.core.dims import known_under
from tilewright.core.expr import Dim, Expr, Sym, substitute, to_text
from tilewright.core.graph import Attrs
from tilewright.core.indices import is_chosen
from tilewright.core.opdef import AuthorSchedule, OpDef, Trait
from tilewright.core.types import Array, TensorType
from tilewright.language.trace import Item, Traced
from tilewright.partition.computation import computation_text
from tilewright.tile.interp import run
from tilewright.tile.lower import lower

Dims = Mapping[Sym, Dim]


def op_of(traced: Traced, author: AuthorSchedule | None) -> OpDef:
    """The op; kernels of equal computations and schedules have one name, and others never have it."""
    c = traced.computation
    text = computation_text(c) + repr(author)
    name = f"{traced.name}_{sha256(text.encode()).hexdigest()[:12]}"

    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType | tuple[TensorType, ...]:
        sizes = sizes_of(c, types)
        # Relations of sizes that only a call knows are its caller's to keep: :func:`relations`.
        for e in traced.constraints:
            if known_under(left := substitute(e, sizes), 0):
                raise OpError(f"needs {to_text(e)} >= 0, which is {left} here")
        found = tuple(TensorType(b.dtype, tuple(substitute(d, sizes) for d in b.shape)) for b in c.outputs)
        return found[0] if len(found) == 1 else found

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array | tuple[Array, ...]:
        ins = tuple(Buffer(b.name, b.dtype, a.shape) for b, a in zip(c.inputs, arrays, strict=True))
        sizes = sizes_of(c, [TensorType(b.dtype, b.shape) for b in ins])
        outs = tuple(Buffer(b.name, b.dtype, tuple(substitute(d, sizes) for d in b.shape)) for b in c.outputs)
        # The meaning is that of the plain loops, whatever the schedule.
        kernel = lower(instance(c, ins, outs), name)
        made = run(kernel, {b.name: a for b, a in zip(ins, arrays, strict=True)})
        return made[outs[0].name] if len(outs) == 1 else tuple(made[b.name] for b in outs)

    def stages(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], attrs: Attrs) -> tuple[Item, ...]:
        return instance(c, ins, outs).items

    return OpDef(
        name, tuple(b.name for b in c.inputs), {}, infer, reference, kernel=stages, author=author,
        traits=frozenset({Trait.PROGRAM}),
        doc=f"The kernel {traced.name}.",
    )  # fmt: skip


def sizes_of(c: Computation, types: Sequence[TensorType]) -> dict[Sym, Dim]:
    """What the sizes of a kernel are for operands of these types; ``OpError`` where they don't fit."""
    found: dict[Sym, Dim] = {}
    for b, t in zip(c.inputs, types, strict=True):
        if t.dtype is not b.dtype or len(t.shape) != len(b.shape):
            raise OpError(f"{b.name} is {t}, not {b.dtype} of {len(b.shape)} dimensions")
        for d, size in zip(b.shape, t.shape, strict=True):
            if isinstance(d, Sym):
                found.setdefault(d, size)
    for b, t in zip(c.inputs, types, strict=True):
        for k, (d, size) in enumerate(zip(b.shape, t.shape, strict=True)):
            if substitute(d, found) != size:
                raise OpError(f"{b.name} has {size} along axis {k}, where {to_text(d)} is {substitute(d, found)}")
    return found


def relations(traced: Traced, types: Sequence[TensorType]) -> tuple[Expr, ...]:
    """What callers with operands of these types, of symbolic sizes, have to keep at 0 or more."""
    sizes = sizes_of(traced.computation, types)
    return tuple(e for c in traced.constraints if isinstance(e := substitute(c, sizes), Expr))


def instance(c: Computation, ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Computation:
    """The computation over these buffers, with the sizes that they have."""
    sizes = sizes_of(c, [TensorType(b.dtype, b.shape) for b in ins])
    to: dict[Buffer, Buffer] = dict(zip((*c.inputs, *c.outputs), (*ins, *outs), strict=True))
    for b in c.temps:
        to[b] = Buffer(b.name, b.dtype, tuple(substitute(d, sizes) for d in b.shape))
    items = tuple(_rebuilt(x, sizes, to) for x in c.items)
    return Computation(tuple(ins), tuple(outs), items, tuple(to[b] for b in c.temps))


def _rebuilt(item: Item, dims: Dims, to: Mapping[Buffer, Buffer]) -> Item:
    if isinstance(item, Serial):
        (axis,), dims = _axes((item.axis,), dims)
        return Serial(axis, tuple(_rebuilt(x, dims, to) for x in item.body))
    axes, dims = _axes(item.axes, dims)
    outer, reduction = dims, item.reduction
    if reduction is not None:
        reduced, dims = _axes(reduction.axes, dims)
        reduction = Reduction(reduced, reduction.op, tuple(_value(v, outer, to) for v in reduction.init))
    return replace(
        item,
        outs=tuple(to[b] for b in item.outs),
        axes=axes,
        index=tuple(_value(i, outer, to) if is_chosen(i) else substitute(i, outer) for i in item.index),
        exprs=tuple(_value(v, dims, to) for v in item.exprs),
        reduction=reduction,
    )


def _axes(axes: Sequence[Axis], dims: Dims) -> tuple[tuple[Axis, ...], Dims]:
    """Loops with the bounds that their extents have now."""
    made: list[Axis] = []
    for a in axes:
        extent = substitute(a.extent, dims)
        made.append(Axis(loop_symbol(a.sym.name, extent), extent))
        dims = {**dims, a.sym: made[-1].sym}
    return tuple(made), dims


def _value(v: Value, dims: Dims, to: Mapping[Buffer, Buffer]) -> Value:
    return rewrite_value(v, lambda x: Load(to[x.buffer], x.index) if isinstance(x, Load) else None, dims)
