"""Which ops treat each row of a batch alone, and what such an op is for fewer rows.

In: nodes. Out: answers, types and attributes. Not its business: what is done with them (``forms.in_parts``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.core.compute import Buffer, Index, Inside, Load, Stage, Value, every_stage, syms, walk
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim, Sym, symbols
from tilewright.core.graph import Attrs, Node
from tilewright.core.indices import symbols_at
from tilewright.core.opdef import Trait
from tilewright.core.types import TensorType


@dataclass(frozen=True)
class Meaning:
    """The stages of an op with one result, and the buffers that stand for its operands and its result."""

    ins: tuple[Buffer, ...]
    out: Buffer
    stages: tuple[Stage, ...]


def meaning_of(node: Node) -> Meaning | None:
    """What a node computes; None where its op is made of other ops, or of sub-graphs."""
    meaning = node.op.compute or node.op.kernel
    if meaning is None:
        return None
    ins = tuple(Buffer(f"x{k}", i.dtype, i.shape) for k, i in enumerate(node.inputs))
    out = Buffer("y", node.dtype, node.shape)
    return Meaning(ins, out, tuple(every_stage(meaning(ins, (out,), node.attrs))))


def is_by_rows(node: Node, cut: Sequence[bool]) -> bool:
    """Is each row of a result made of the same row of the operands that are ``cut``, and of all of the others?

    Rows are along axis 0. By the op's own stages: what is written of row ``b`` reads those operands at ``b``, and ``b``
    stands nowhere else.
    """
    op = node.op
    if Trait.VIEW in op.traits:
        return all(i.type.rank > 0 and i.shape[0] == node.shape[0] for i in node.inputs)
    meaning = meaning_of(node)
    if meaning is None or op.traits & {Trait.RANDOM, Trait.CONTROL}:
        return False
    rows = [b for b, is_cut in zip(meaning.ins, cut, strict=True) if is_cut]
    axis_of = dict.fromkeys([*rows, meaning.out], 0)
    return all(_keeps_row(s, axis_of, node.shape[0]) for s in meaning.stages)


def _keeps_row(stage: Stage, axis_of: dict[Buffer, int], batch: Dim) -> bool:
    """Does a stage write the row that it reads?

    ``axis_of`` says of buffers along which axis their rows lie, and learns it of temporaries that are made of rows.
    """
    values = [x for v in stage.values for x in walk(v)]
    read = [x.index[axis_of[x.buffer]] for x in values if isinstance(x, Load) and x.buffer in axis_of]
    written = [stage.index[axis_of[b]] for b in stage.outs if b in axis_of]
    if not read and not written:
        return True
    row = (*read, *written)[0]
    if not isinstance(row, Sym) or row not in syms([a for a in stage.axes if a.extent == batch]):
        return False
    at = [k for k, i in enumerate(stage.index) if row in symbols_at(i)]
    if len(at) != 1 or stage.index[at[0]] != row or any(axis_of.setdefault(b, at[0]) != at[0] for b in stage.outs):
        return False
    return all(_is_at_row(x, row, axis_of) for x in values)


def _is_at_row(value: Value, row: Sym, axis_of: Mapping[Buffer, int]) -> bool:
    """Does a value stand for the row ``row``, wherever it depends on rows?"""
    match value:
        case Load():
            axis = axis_of.get(value.buffer)
            others = [i for k, i in enumerate(value.index) if k != axis]
            return (axis is None or value.index[axis] == row) and not any(row in symbols_at(i) for i in others)
        case Index():
            return row not in symbols(value.expr)
        case Inside():
            return not any(row in symbols(e) for e in value.exprs)
    return True


def row_type(t: TensorType, n_rows: int) -> TensorType:
    """The type of so many rows."""
    return t.with_shape((n_rows, *t.shape[1:]))


def attrs_of_part(node: Node, operands: Sequence[TensorType], n_rows: int) -> Attrs | None:
    """A node's attributes for so many of its rows, or None where they can't be told.

    Those that begin with the number of rows, as a shape does, begin with the new one where the old one does not fit.
    """
    batch, wanted = node.shape[0], row_type(node.type, n_rows)
    changed = {
        k: (n_rows, *v[1:]) if isinstance(v, tuple) and v and type(v[0]) is int and v[0] == batch else v
        for k, v in node.attrs.items()
    }
    for attrs in (node.attrs, Attrs(changed)):
        try:
            found = node.op.infer(operands, attrs)
        except OpError:
            continue
        if found == wanted or found == (wanted,):
            return attrs
    return None
