"""What is written of a graph so far: tensors of PyTorch, as its own tracing sees them.

In: nodes of the graph and writers of ops. Out: a tensor for each result, and the steps that made them, which
``torch.export`` traces again. Not its business: which call is which op (``writer.table``).

A step is taken first on tensors without memory (``FakeTensorMode``), where a call that PyTorch refuses is one more
problem of a list; only a graph without problems is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, Mul, Sym, const_of, terms_of
from tilewright.core.graph import CONST, PROJ, Graph, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, DType, TensorType
from tilewright.frontend.spellings.writing import NodeWriter

if TYPE_CHECKING:
    from torch import Tensor

Writer: TypeAlias = "Callable[[TorchValues, Node], None]"
"""Computes a node whose operands are there; ``OpError`` where this form of an op has no counterpart in PyTorch."""
Step = tuple[Node, Writer]

MOVED_ONLY = (types.u16, types.u32, types.u64)
"""Types whose elements PyTorch stores, and hardly computes with."""
_MOVES = (ops.reshape, ops.expand, ops.transpose, ops.with_sizes, ops.slice, ops.full)
"""What only looks at elements in another order, which is possible of all types."""


class TorchValues(NodeWriter):
    """Tensors for the results of the nodes that are written.

    ``stored`` gives the tensor of a constant, each time the same. ``plans`` is what writers of control flow
    found out about sub-graphs when they were written first; without it, this is that time.
    """

    FORMAT = "PyTorch"

    def __init__(
        self,
        graph: Graph,
        writers: Mapping[OpDef, Writer],
        stored: Callable[[Array], Tensor],
        given: Sequence[Tensor],
        plans: dict[Node, Any] | None = None,
    ) -> None:
        super().__init__(graph, writers)
        import torch

        self.torch: Any = torch
        self.functions: Any = torch.nn.functional
        self.aten: Any = torch.ops.aten
        self.stored = stored
        self.steps: list[Step] = []
        """What was called, in order."""
        self.spelled: dict[Node, tuple[Node, ...]] = {}
        """Nodes that are the results of others."""
        self._tensors: list[Tensor] = []
        self.is_first = plans is None
        self.plans: dict[Node, Any] = {} if plans is None else plans
        self._sizes: dict[Sym, Any] = {}
        for node, tensor in zip(graph.inputs, given, strict=bool(given)):
            self.give(node, tensor)

    # --- tensors ----------------------------------------------------------------------------------------------------

    def dtype(self, dtype: DType) -> Any:
        """PyTorch's name of a type; ``OpError`` where it has none."""
        found = getattr(self.torch, dtype.numpy.name, None)
        # Of elements that are parts of bytes PyTorch has names, and nothing that takes them.
        if found is None or (dtype.bits < 8 and dtype is not types.bool_):
            raise OpError(f"PyTorch has no elements of type {dtype}")
        return found

    def constant(self, node: Node) -> str:
        return self._named(self.stored(node.attrs["data"].array))

    def value(self, node: Node) -> Tensor:
        """The tensor of a node's only result."""
        name = self.name(node)
        if not name:  # the node is a problem already: one like it stands in, so that others can be found
            return self.empty(node.type)
        return self._tensors[int(name)]

    def values(self, node: Node) -> list[Tensor]:
        """The tensors of a node's operands."""
        return [self.value(x) for x in node.inputs]

    def give(self, node: Node, *tensors: Tensor) -> None:
        """The results of ``node``: of its types, or PyTorch means something else by the call."""
        for tensor, t in zip(tensors, node.types, strict=True):
            shape: tuple[Any, ...] = tuple(tensor.shape)  # numbers, or PyTorch's symbols
            same = all(not (isinstance(n, int) and is_known(d)) or n == d for n, d in zip(shape, t.shape, strict=False))
            if tensor.dtype is not self.dtype(t.dtype) or len(shape) != t.rank or not same:
                raise OpError(f"PyTorch gives {tensor.dtype} {list(shape)} here, not {t}")
            for size, d in zip(shape, t.shape, strict=True):
                if isinstance(d, Sym):
                    self._sizes.setdefault(d, size)
        self.give_values(node, [self._named(t) for t in tensors])

    def _named(self, tensor: Tensor) -> str:
        self._tensors.append(tensor)
        return str(len(self._tensors) - 1)

    def empty(self, t: TensorType) -> Tensor:
        """A tensor of a type, of which nobody reads an element."""
        made: Tensor = self.torch.empty(self.sizes(t.shape), dtype=self.dtype(t.dtype))
        return made

    # --- steps ------------------------------------------------------------------------------------------------------

    def _try(self, node: Node) -> tuple[Node, ...] | None:
        made = super()._try(node)
        if made is None:
            self.steps.append((node, self.writers[node.op]))
        else:
            self.spelled[node] = made
        return made

    def replay(self, found: TorchValues) -> None:
        """Take the steps that another walk over the same graph found."""
        self.spelled = found.spelled
        for node, writer in found.steps:
            writer(self, node)

    def name(self, node: Node) -> str:
        owner = node.inputs[0] if node.op is PROJ else node
        if owner not in self.names and owner in self.spelled:
            self.give_values(owner, [self.name(n) for n in self.spelled[owner]])
        return super().name(node)

    # --- sizes ------------------------------------------------------------------------------------------------------

    def sizes(self, dims: Iterable[Dim]) -> list[Any]:
        """Sizes as PyTorch counts them: numbers, and its own symbols."""
        return [self.size(d) for d in dims]

    def size(self, d: Dim) -> Any:
        """One size, computed of the sizes of tensors that are there."""
        if is_known(d):
            return d
        if isinstance(d, Sym):
            if d not in self._sizes:
                raise OpError(f"the size {d} is no size of an input or of what was written before")
            return self._sizes[d]
        if isinstance(d, Mul):
            product: Any = 1
            for factor in d.factors:
                product = product * self.size(factor)
            return product
        if isinstance(d, BinaryExpr):
            a, b = self.size(d.a), self.size(d.b)
            if d.op == "floordiv":
                return a // b
            if d.op == "mod":
                return a % b
            return self.torch.sym_min(a, b) if d.op == "min" else self.torch.sym_max(a, b)
        total: Any = const_of(d)
        for atom, coefficient in terms_of(d):
            total = total + coefficient * self.size(atom)
        return total


def number_of(node: Node) -> bool | int | float | None:
    """The number that a constant is everywhere, where it is one of Python's."""
    if node.op is not CONST or node.attrs["data"].array.size != 1:
        return None
    array = node.attrs["data"].array.reshape(())
    return array.item() if array.dtype.kind in "bui" else float(array)


def guarded(writer: Writer) -> Writer:
    """A writer whose call PyTorch may refuse, which is then a reason like any other."""

    def write(w: TorchValues, node: Node) -> None:
        if any(t.dtype in MOVED_ONLY for t in (*(x.type for x in node.inputs), *node.types)) and node.op not in _MOVES:
            raise OpError(f"PyTorch computes nothing of {', '.join(str(d) for d in MOVED_ONLY)}")
        try:
            writer(w, node)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as e:
            if isinstance(e, OpError):
                raise
            raise OpError(f"PyTorch refuses it: {str(e).splitlines()[0]}") from e

    return write
