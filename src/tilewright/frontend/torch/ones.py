"""Sizes below two, of which an exported program's trace did not think, since PyTorch takes free sizes for two and more.

In: an exported program, and the graph made of it. Out: the symbols of which a one, or a zero, gives a call another
shape than the trace says, or makes it raise; and what must hold for slices to stay inside where several sizes together
are small. Not its business: what becomes of that (``torch.export``), and conditions that PyTorch notes
(``torch.guards``).

``x[:, :2]`` has two columns in a trace, without a guard: two fit into any size from two on. Run on one column, the
program gives one, and ``x.narrow(1, 0, 2)`` raises. Code made for two columns would read behind the end. Therefore the
program's calls are followed once for each such size, on tensors without memory. ``x.reshape(-1)[:4]`` of two free sizes
is safe at one and eight, as in the example, but not at one and three: there the slice says what must hold.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tilewright import ops
from tilewright.core.expr import Expr, Sym, is_nonneg, substitute, symbol_order, symbols
from tilewright.core.graph import Node, topological
from tilewright.frontend.torch.fx.symbols import TRACED_FROM
from tilewright.frontend.torch.tracing import tracing

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class _DiffersError(Exception):
    """A call's result has another shape than in the trace."""


# --- one size is one, the others are as in the example ---------------------------------------------------------------


def least_sizes(program: ExportedProgram) -> dict[Any, int]:
    """Of sympy symbols that have to be more than their ranges say, how much: 2, or 1 where a range begins with 0.

    A range that begins with 2 may be PyTorch's own assumption.
    """
    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    shapes = [size for value in values for size in getattr(value, "shape", (value,)) if hasattr(size, "node")]
    sizes = {size.node.expr: size.node.hint for size in shapes}
    named = {s for size in sizes for s in size.free_symbols}
    free = [s for s, r in program.range_constraints.items() if s in named and r.lower <= TRACED_FROM and r.upper > 1]
    example = _example(sizes)
    if named - example.keys():
        return dict.fromkeys(free, TRACED_FROM)
    found = {s: TRACED_FROM for s in free if not _may_be(program, values, example, s, 1)}
    for s in free:
        if s not in found and program.range_constraints[s].lower < 1 and not _may_be(program, values, example, s, 0):
            found[s] = 1
    return found


def _example(sizes: Mapping[Any, int | None]) -> dict[Any, int]:
    """What each symbol is in the example, as far as the sizes there tell.

    A dimension that the user derives (``2 * Dim("half")``) may be the only place of its symbol.
    """
    found: dict[Any, int] = {}
    for size, n in sorted(sizes.items(), key=lambda item: not item[0].is_Symbol):
        if n is None or len(size.free_symbols) != 1:
            continue
        (symbol,) = size.free_symbols
        slope, base = size.diff(symbol), size.subs(symbol, 0)
        if symbol not in found and slope.is_Integer and base.is_Integer:
            found[symbol] = (n - int(base)) // int(slope)
    return found


def _may_be(program: ExportedProgram, values: Sequence[Any], example: Mapping[Any, int], symbol: Any, n: int) -> bool:
    """May a size be ``n``?

    Where that alone raises, the sizes that are its equals in the example become ``n`` as well: a call may want as many
    indices as rows, which is a condition of its own.
    """
    holds = _holds(program, values, {**example, symbol: n})
    if holds is None:
        holds = _holds(program, values, {s: n if v == example[symbol] else v for s, v in example.items()})
    return bool(holds)


def _holds(program: ExportedProgram, values: Sequence[Any], sizes: Mapping[Any, int]) -> bool | None:
    """Has every result the shape that the trace says, for these numbers? None where a call does not take them.

    Calls that data decide end the walk.
    """
    import torch
    from torch._subclasses import fake_tensor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    class Followed(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            if isinstance(n.target, torch._ops.HigherOrderOperator):  # branches and loops, which take only a tracer's
                raise NotImplementedError
            result = super().run_node(n)
            if not _agrees(n.meta.get("val"), result, sizes):
                raise _DiffersError
            return result

    unknown = (
        fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException, GuardOnDataDependentSymNode, NotImplementedError,
    )  # fmt: skip
    with tracing(), _quiet(), fake_tensor.FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        arguments = [_argument(value, sizes) for value in values]
        try:
            with suppress(*unknown):
                Followed(program.graph_module).run(*arguments, enable_io_processing=False)
        except _DiffersError:
            return False
        except Exception:  # whatever a call raises that does not take these sizes
            return None
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch logs what a tensor without memory raises; here that is an answer."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _argument(value: Any, sizes: Mapping[Any, int]) -> Any:
    """What stands for a placeholder."""
    import torch

    if isinstance(value, torch.Tensor):
        shape = [_number(size, sizes) for size in value.shape]
        return torch.empty(shape, dtype=value.dtype, device=value.device)
    return _number(value, sizes) if hasattr(value, "node") else value


def _number(size: Any, sizes: Mapping[Any, int]) -> Any:
    """A size of the trace as a number; None where only data decide it."""
    if not hasattr(size, "node"):
        return size
    found = size.node.expr.subs(sizes)
    return int(found) if found.is_Integer else None


def _agrees(traced: Any, result: Any, sizes: Mapping[Any, int]) -> bool:
    if isinstance(traced, tuple | list) and isinstance(result, tuple | list):
        return len(traced) == len(result) and all(_agrees(t, r, sizes) for t, r in zip(traced, result, strict=True))
    if not hasattr(traced, "shape") or not hasattr(result, "shape"):
        return True
    wanted = [_number(size, sizes) for size in traced.shape]
    return len(wanted) == len(result.shape) and all(
        w is None or w == size for w, size in zip(wanted, result.shape, strict=True)
    )


# --- several sizes are small -----------------------------------------------------------------------------------------


def slices_inside(inputs: Sequence[Node], outputs: Sequence[Node]) -> list[Expr]:
    """What must be 0 or more for each slice to stay inside, where that follows only from sizes of two and more."""
    given = [s for n in inputs for d in n.shape for s in sorted(symbols(d), key=symbol_order)]
    larger = {s: Sym(s.name, TRACED_FROM, s.hi) for s in given if (s.lo or 0) < TRACED_FROM and s.hi != 1}
    found: dict[Expr, None] = {}
    for node in topological(outputs):
        if node.op is not ops.slice:
            continue
        for n, start, length, step in zip(
            node.inputs[0].shape, node.attrs["starts"], node.shape, node.attrs["steps"], strict=True
        ):
            last = start + (length - 1) * step
            for e in (start, n - 1 - last) if step > 0 else (last, n - 1 - start):
                if isinstance(e, Expr) and not is_nonneg(e) and is_nonneg(substitute(e, larger)):
                    found[e] = None
    return list(found)
