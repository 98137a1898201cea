"""What an op is: one record that holds everything the compiler knows of it.

In: the author's functions. Out: an ``OpDef`` that the pool, the interpreter, the passes, lowering, the text form and
the tests read. Not its business: any particular op (``ops``).

Exactly one of ``compute``, ``decompose`` and ``kernel`` says how it runs (structural ops have none):

* ``compute(ins, outs, attrs)`` gives stages over formal buffers (``core.compute``); they may be fused with others;
* ``decompose(builder, inputs, attrs)`` gives the same results by smaller ops;
* ``kernel(ins, outs, attrs)`` gives stages that stay a kernel of their own (sorting, selection, recurrences).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilewright.core.compute import Buffer, Serial, Stage
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim, Expr
from tilewright.core.types import Array, DType, TensorType

if TYPE_CHECKING:
    from tilewright.core.graph import Attrs, Builder, Node


class Trait(Enum):
    """Facts about an op that passes ask for instead of names."""

    ELEMENTWISE = "elementwise"
    """Each result element depends on the operands' elements at the same (NumPy-broadcast) position only."""
    COMMUTATIVE = "commutative"
    ASSOCIATIVE = "associative"
    VIEW = "view"
    """The result is the operand's elements in the same order under another shape."""
    MOVEMENT = "movement"
    """Each result element is a copy of an operand's element, or a constant."""
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    CONTROL = "control"
    """Has sub-graphs among its attributes."""
    RANDOM = "random"
    COMPOSITE = "composite"
    """Recognised as a whole because a fused form is better than its pieces; decomposes late."""
    STRUCTURAL = "structural"
    PROGRAM = "program"
    """Its kernel's loops are as a user wrote them, who need not have looked for the fastest order."""


AttrKind = Literal[
    "int", "ints", "dim", "dims", "float", "floats", "bool", "str", "strs", "dtype", "data", "graph", "pads"
]
REQUIRED: Any = object()

Infer = Callable[[Sequence[TensorType], "Attrs"], TensorType | tuple[TensorType, ...]]
Reference = Callable[[Sequence[Array], "Attrs"], Array | tuple[Array, ...]]
Compute = Callable[[tuple[Buffer, ...], tuple[Buffer, ...], "Attrs"], Sequence[Stage | Serial]]
Decompose = Callable[["Builder", tuple["Node", ...], "Attrs"], "Node | tuple[Node, ...]"]
Bound = Callable[[Sequence[TensorType], "Attrs"], Dim]
Routine = Callable[[Sequence[TensorType], "Attrs"], tuple[str, tuple[Dim, ...]] | None]


@dataclass(frozen=True)
class AttrDef:
    """An attribute's kind and default. ``pads`` is a tuple of ``(before, after)`` pairs of dimensions."""

    kind: AttrKind
    default: Any = REQUIRED


@dataclass(frozen=True)
class Sample:
    """A valid call for tests and fuzzing: operand arrays and attributes."""

    arrays: tuple[Array, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AuthorSchedule:
    """The schedule that an op's author gives to its kernel, in the place of the rules'.

    ``steps`` are lines as a file of schedules has them (``tile.schedule.book``), for the loops that ``OpDef.kernel``
    spells; of its buffers, the inputs are called as the op's operands are, the outputs by ``outputs``. ``is_normal``:
    the steps are for the loops of the computation after ``choose.normalize``.
    """

    steps: str
    outputs: tuple[str, ...]
    is_normal: bool = False


@dataclass(frozen=True, eq=False)
class OpDef:
    """One op, compared by identity.

    ``operands`` are names; a last name that starts with ``*`` takes any number. ``reference`` is the meaning, in
    NumPy, on concrete arrays and attributes without symbols. ``samples`` draws valid calls from a generator.
    ``bound`` is for ops whose data decide a size, which their attribute ``count`` names: the most that it can be.
    ``routine`` is for an op with a ``kernel`` that a library has too: its name in ``runtime.cpu.routines``, and the
    sizes that it is told, or None where the kernel is better. Where the process has that library, it is called instead.
    ``author`` is for an op with a ``kernel`` whose author wrote its schedule.
    """

    name: str
    operands: tuple[str, ...]
    attrs: Mapping[str, AttrDef]
    infer: Infer
    reference: Reference
    compute: Compute | None = None
    decompose: Decompose | None = None
    kernel: Compute | None = None
    traits: frozenset[Trait] = frozenset()
    samples: Callable[[np.random.Generator], Iterable[Sample]] | None = None
    doc: str = ""
    bound: Bound | None = None
    routine: Routine | None = None
    author: AuthorSchedule | None = None

    def __post_init__(self) -> None:
        n_ways = sum(f is not None for f in (self.compute, self.decompose, self.kernel))
        if n_ways != (0 if self.traits & {Trait.STRUCTURAL, Trait.CONTROL} else 1):
            raise ValueError(f"op {self.name!r} has {n_ways} of compute, decompose, kernel")
        if ("count" in self.attrs) != (self.bound is not None):
            raise ValueError(f"op {self.name!r} has one of the attribute count and a bound for it")
        if self.routine is not None and self.kernel is None:
            raise ValueError(f"op {self.name!r} has a routine and no kernel for where the routine is missing")
        if self.author is not None and self.kernel is None:
            raise ValueError(f"op {self.name!r} has a schedule of its author's, and no kernel that it is for")

    def __repr__(self) -> str:
        return f"op {self.name}"

    def check_arity(self, n: int) -> None:
        """Raise ``OpError`` unless the op takes ``n`` operands."""
        variadic = bool(self.operands) and self.operands[-1].startswith("*")
        least = len(self.operands) - variadic
        if n < least or (n > least and not variadic):
            many = "at least " if variadic else ""
            raise OpError(f"takes {many}{least} operands ({', '.join(self.operands)}), got {n}")

    def complete_attrs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes in declaration order with defaults filled in and kinds checked; raises ``OpError``."""
        values: dict[str, Any] = {}
        n_given = 0
        for name, attr in self.attrs.items():
            if name in given:
                n_given += 1
                value = given[name]
                values[name] = value if value is attr.default else _coerced(name, attr.kind, value)
            elif attr.default is not REQUIRED:
                values[name] = attr.default
        if n_given < len(given) or len(values) < len(self.attrs):
            unknown, missing = given.keys() - self.attrs.keys(), [k for k in self.attrs if k not in values]
            raise OpError(f"unknown attributes {sorted(unknown)}, missing attributes {missing}")
        return values


_PLAIN: dict[str, type] = {"int": int, "dim": int, "float": float, "bool": bool, "str": str, "dtype": DType}
_ELEMENT: dict[str, AttrKind] = {"ints": "int", "dims": "dim", "floats": "float", "strs": "str"}


def _coerced(name: str, kind: AttrKind, value: Any) -> Any:
    """``value`` in the form that nodes store: lists become tuples, NumPy scalars become Python numbers."""
    plain = _PLAIN.get(kind)
    if plain is not None:
        return value if type(value) is plain else _converted(name, kind, value)
    element = _ELEMENT.get(kind)
    if element is not None:
        if not isinstance(value, tuple | list) and (isinstance(value, str) or not isinstance(value, Sequence)):
            raise OpError(f"attribute {name} must be a sequence, not {value!r}")
        plain = _PLAIN[element]
        return tuple([v if type(v) is plain else _converted(name, element, v) for v in value])
    if kind == "pads":
        return tuple([(_coerced(name, "dim", lo), _coerced(name, "dim", hi)) for lo, hi in value])
    return value


def _converted(name: str, kind: AttrKind, value: Any) -> Any:
    """A single value that is not of its kind's plain type yet; raises ``OpError`` where it can't be."""
    if isinstance(value, np.generic):
        value = value.item()
    if kind == "float" and isinstance(value, int):
        return float(value)
    fits = isinstance(value, _PLAIN[kind]) or (kind == "dim" and isinstance(value, Expr))
    if not fits or (isinstance(value, bool) and kind != "bool"):
        raise OpError(f"attribute {name} must be of kind {kind}, not {value!r}")
    return value
