"""A group of nodes as one computation, with names that depend on structure alone.

In: a ``Group`` and the facts of its nodes. Out: a ``Computation`` over buffers ``in0, in1, ..., t0, ..., out0, ...``,
the nodes behind its inputs and outputs, and a text that is equal for equal kernels.
Not its business: which nodes go together (``partition.fuse``) or loops (``tile``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from tilewright.core.compute import (
    Buffer,
    Computation,
    Const,
    IndexLike,
    Load,
    Reduction,
    Serial,
    Stage,
    Value,
    index_text,
    rewrite_value,
    value_text,
)
from tilewright.core.dims import are_known
from tilewright.core.estimates import COPIED_LANES
from tilewright.core.expr import Sym, is_nonneg, symbols, to_text
from tilewright.core.graph import CONST, Node
from tilewright.core.indices import is_chosen
from tilewright.core.opdef import AuthorSchedule, Trait
from tilewright.core.types import DType, dtype_of, product
from tilewright.partition.facts import Facts
from tilewright.partition.fuse import Group, scalar_constant

Item = Stage | Serial


@dataclass(frozen=True)
class GroupComputation:
    """``inputs[k]`` is the node that buffer ``in<k>`` holds; the outputs are the root's results.

    ``constants`` are the input buffers whose numbers are known now, and the weights of windows, which a call lays out
    anew before they are read. ``text`` identifies the computation, and the schedule of its ``author``, if it has one.
    ``places`` has what symbols in its indices are here (:mod:`tilewright.partition.alike`).
    """

    computation: Computation
    inputs: tuple[Node, ...]
    constants: frozenset[Buffer]
    text: str
    author: AuthorSchedule | None = None
    places: Mapping[Sym, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The symbol of its kernel."""
        return "k_" + sha256(self.text.encode()).hexdigest()[:16]


def computation_of(group: Group, facts: dict[Node, Facts], order: dict[Node, int]) -> GroupComputation:
    """Concatenate the members' stages, connect their buffers and give canonical names.

    An op that its author scheduled keeps the names of its buffers, which the steps use.
    """
    if group.root.op.author is not None:
        assert len(group.members) == 1  # an op with a kernel of its own stands alone
        return _of_author(group.root, group.root.op.author)
    # The graph's order, so that equal groups have equal texts.
    members = sorted(group.members, key=lambda n: order[n])
    results: dict[Node, Buffer] = {}
    sources: dict[Node, Buffer] = {}
    temps: list[Buffer] = []
    items: list[Item] = []
    outputs: tuple[Buffer, ...] = ()
    read_as = _read_as(members, facts)
    for node in members:
        f = facts[node]
        to: dict[Buffer, Buffer | Const] = {}
        for formal, operand in zip(f.ins, node.inputs, strict=True):
            to[formal] = results[operand] if operand in results else _source(operand, read_as[operand], sources)
        if node is group.root:
            outputs = tuple(Buffer(f"out{k}", b.dtype, b.shape) for k, b in enumerate(f.outs))
            to.update(zip(f.outs, outputs, strict=True))
        else:
            results[node] = Buffer(f"t{len(temps)}", node.dtype, node.shape)
            temps.append(results[node])
            to[f.outs[0]] = results[node]
        for b in _written(f.items):
            if b not in to:
                # What stages of one op hand to each other.
                fresh = Buffer(f"t{len(temps)}", b.dtype, b.shape)
                temps.append(fresh)
                to[b] = fresh
        items.extend(_connect(x, to) for x in f.items)
    root = group.root.op
    is_ordered = root.kernel is not None and Trait.PROGRAM not in root.traits
    computation = Computation(tuple(sources.values()), outputs, tuple(items), tuple(temps), is_ordered)
    laid_out = window_weights(group, facts)
    constants = frozenset(b for n, b in sources.items() if n.op is CONST or n in laid_out)
    return GroupComputation(computation, tuple(sources), constants, computation_text(computation, constants))


def _of_author(node: Node, author: AuthorSchedule) -> GroupComputation:
    assert node.op.kernel is not None
    ins = tuple(Buffer(name, n.dtype, n.shape) for name, n in zip(node.op.operands, node.inputs, strict=True))
    outs = tuple(Buffer(name, t.dtype, t.shape) for name, t in zip(author.outputs, node.types, strict=True))
    items = tuple(node.op.kernel(ins, outs, node.attrs))
    temps = tuple(b for b in _written(items) if b not in outs)
    computation = Computation(ins, outs, items, temps)
    text = f"{computation_text(computation)}\n{author}"
    return GroupComputation(computation, node.inputs, frozenset(), text, author)


def window_weights(group: Group, facts: dict[Node, Facts]) -> set[Node]:
    """Run-time weights of the group's windows, but for those that are surely read too seldom for a copy to pay."""
    found: set[Node] = set()
    for node in group.members:
        for k, operand in enumerate(node.inputs):
            f = facts[node]
            if not f.is_window_weight(k) or is_nonneg(COPIED_LANES * product(operand.shape) - 1 - f.n_points):
                continue
            while operand in group.members and len(operand.inputs) == 1:
                operand = operand.inputs[0]
            is_static = are_known(operand.shape)
            if operand not in group.members and operand.op is not CONST and is_static:
                found.add(operand)
    return found


def _read_as(members: Sequence[Node], facts: dict[Node, Facts]) -> dict[Node, DType]:
    """The type in which a kernel reads each operand: its own, unless all members know it for a narrower one."""
    found: dict[Node, DType] = {}
    for node in members:
        for formal, operand in zip(facts[node].ins, node.inputs, strict=True):
            found[operand] = formal.dtype if found.get(operand, formal.dtype) is formal.dtype else operand.dtype
    return found


def _source(node: Node, dtype: DType, sources: dict[Node, Buffer]) -> Buffer | Const:
    if scalar_constant(node):
        array = node.attrs.data.array
        return Const(array.reshape(()).item(), dtype_of(array.dtype))
    if node not in sources:
        sources[node] = Buffer(f"in{len(sources)}", dtype, node.shape)
    return sources[node]


def _written(items: Sequence[Item]) -> list[Buffer]:
    found: dict[Buffer, None] = {}
    for x in items:
        found.update(dict.fromkeys(x.outs if isinstance(x, Stage) else _written(x.body)))
    return list(found)


def _connect(item: Item, to: dict[Buffer, Buffer | Const]) -> Item:
    """``item`` with its formal buffers replaced."""
    if isinstance(item, Serial):
        return replace(item, body=tuple(_connect(x, to) for x in item.body))

    def leaf(v: Value) -> Value | None:
        if not isinstance(v, Load) or v.buffer not in to:
            return None
        target = to[v.buffer]
        return Load(target, v.index) if isinstance(target, Buffer) else target

    def go(v: Value) -> Value:
        return rewrite_value(v, leaf)

    red = item.reduction
    outs = tuple(b for b in (to.get(o, o) for o in item.outs) if isinstance(b, Buffer))
    return replace(
        item,
        outs=outs,
        index=tuple(go(i) if is_chosen(i) else i for i in item.index),
        exprs=tuple(go(v) for v in item.exprs),
        reduction=None if red is None else Reduction(red.axes, red.op, tuple(go(v) for v in red.init)),
    )


def sizes_of(computation: Computation) -> tuple[Sym, ...]:
    """The symbolic dimensions of all buffers, by name."""
    buffers = (*computation.inputs, *computation.outputs, *computation.temps)
    found = {s for b in buffers for d in b.shape for s in symbols(d)}
    return tuple(sorted(found, key=lambda s: s.name))


def computation_text(c: Computation, constants: frozenset[Buffer] = frozenset()) -> str:
    """A text that two computations share only when they are equal up to the identity of buffers."""
    lines = [f"{'const' if b in constants else 'in'} {b!r}" for b in c.inputs]
    lines += [f"out {b!r}" for b in c.outputs] + [f"temp {b!r}" for b in c.temps]
    lines += [f"size {s.name} {s.lo} {s.hi}" for s in sizes_of(c)]
    for x in c.items:
        _item_text(x, "", lines.append)
    return "\n".join(lines)


def _axes_text(item: Stage | Reduction) -> str:
    return ", ".join(f"{a.sym.name}<{to_text(a.extent)}" for a in item.axes)


def _indices(index: tuple[IndexLike, ...]) -> str:
    return ", ".join(index_text(i) for i in index)


def _item_text(x: Item, indent: str, write: Callable[[str], None]) -> None:
    if isinstance(x, Serial):
        write(f"{indent}serial {x.axis.sym.name}<{to_text(x.axis.extent)}")
        for y in x.body:
            _item_text(y, indent + "  ", write)
        return
    names = ", ".join(b.name for b in x.outs)
    values = "; ".join(value_text(v) for v in x.exprs)
    line = f"{indent}{names}[{_indices(x.index)}] {x.update or ''}= {values} for {_axes_text(x)}"
    if x.reduction is not None:
        op = x.reduction.op
        how = op if isinstance(op, str) else "; ".join(value_text(v) for v in op.result)
        line += f" fold {how} from {'; '.join(value_text(v) for v in x.reduction.init)} over {_axes_text(x.reduction)}"
    write(line)
