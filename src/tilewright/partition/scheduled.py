"""What a program needs to know of scheduled kernels.

In: (by whoever schedules, ``build.kernels``) each group's kernel. Out: records that ``partition.plan`` reads.
Not its business: loops and code (``tile``, ``codegen``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.core.compute import Computation
from tilewright.core.estimates import Times
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Node
from tilewright.partition.grouped import Grouped, GroupedGraph
from tilewright.partition.weights import Fill

LAY_OUT = "lay_out"
"""What the report calls kernels that lay out run-time operands."""


@dataclass(frozen=True)
class Packing:
    """A constant parameter's layout: a name that tells layouts apart, its size, and the function that re-lays it.

    ``fill(out, array)`` writes ``array`` into ``n_bytes`` zeros. ``computation`` is the same for a kernel: an operand
    whose numbers only a call knows is laid out in each call.
    """

    layout: str
    n_bytes: int
    fill: Fill
    computation: Computation


@dataclass(frozen=True)
class KernelSpec:
    """What a program needs to know of a scheduled kernel.

    Parameters are what it reads, the computation's outputs, then scratch of ``scratch`` bytes each. ``reads`` has, per
    parameter, the input's position and, for a constant that was re-laid, the layout; a constant may have several.
    Without ``times`` no other kernel may run at the same time.
    """

    name: str
    sizes: tuple[Sym, ...]
    scratch: tuple[Dim, ...]
    reads: tuple[tuple[int, Packing | None], ...]
    times: Times | None = None


@dataclass(frozen=True)
class KernelVersion:
    """A kernel that takes another one's place where ``symbol`` is ``size``.

    It writes the same results. ``inputs`` are the nodes that it reads: operands of the group, and constants of its own.
    """

    symbol: Sym
    size: int
    inputs: tuple[Node, ...]
    spec: KernelSpec


@dataclass(frozen=True)
class ScheduledGroup:
    """A group with its kernel, unless it is control flow, and the versions of it for some sizes.

    ``laid_out`` has, by parameter, the layouts that a call makes of run-time operands, with the kernels that do it.
    """

    grouped: Grouped
    spec: KernelSpec | None = None
    laid_out: Mapping[int, tuple[Packing, KernelSpec]] = field(default_factory=dict)
    versions: tuple[KernelVersion, ...] = ()


@dataclass(frozen=True)
class ScheduledGraph:
    """A graph's groups with their kernels, in the groups' order, and those of its control flow by node."""

    of: GroupedGraph
    groups: tuple[ScheduledGroup, ...]
    inner: Mapping[Node, tuple[ScheduledGraph, ...]]
