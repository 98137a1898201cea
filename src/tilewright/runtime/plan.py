"""What a call with certain input shapes needs: sizes for the code, and the shapes of its outputs.

In: a manifest and the compiled ``tw_plan``. Out: for a tuple of input shapes a ``Plan``, or an ``InputError`` that
lists every rule they break. Not its business: memory and the call itself (``model``).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.errors import ExecutionError, InputError, Violation
from tilewright.runtime.expressions import ParsedExpr
from tilewright.runtime.manifest import MAX_DIMS, Manifest
from tilewright.runtime.plain import dataclass
from tilewright.runtime.shapes import MAX_VALUE, Shape, ShapeBinder, compile_size, evaluate
from tilewright.runtime.values import dtype_of


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """An output buffer: its dtype, its shape (an upper bound where ``sizes`` is set) and size.

    ``sizes`` are the final shape's expressions where data decide it.
    """

    dtype: np.dtype[Any]
    shape: Shape
    n_bytes: int
    sizes: tuple[int | ParsedExpr, ...] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a call that follows from its input shapes."""

    dims: list[int]
    symbols: dict[str, int]
    arena_bytes: int
    outputs: tuple[OutputPlan, ...]
    is_dynamic: bool
    """Whether data decide the shape of an output."""
    is_empty: bool = False
    """Whether no output has an element, and the code, which is for larger sizes, is not to run."""


Ask = Callable[[Any, Any], None]
"""The compiled ``tw_plan``: dims in, sizes out."""


class Planner:
    """Makes plans. ``ValueError`` at construction when the manifest contradicts itself."""

    def __init__(self, manifest: Manifest) -> None:
        check_manifest(manifest)
        self._binder = ShapeBinder(manifest.inputs, manifest.symbols, manifest.constraints)
        self._n_dims = manifest.n_dims
        self._names = [s.name for s in manifest.symbols]
        self._bounds = [0 if s.hi is None else compile_size(s.hi) for s in manifest.computed]
        computed = {s.name: i for i, s in enumerate(manifest.computed, len(manifest.symbols))}
        self._computed = computed
        self._n_planned = [o.n_planned for o in manifest.outputs]
        self._outputs = [
            (dtype_of(o.dtype), sizes, any(isinstance(s, ParsedExpr) and s.symbols & computed.keys() for s in sizes))
            for o in manifest.outputs
            for sizes in [tuple(compile_size(s) for s in o.shape)]
        ]

    def check(self, shapes: Sequence[Shape | None]) -> list[Violation]:
        """Everything that is wrong with some inputs' shapes; None is a shape that could not be read."""
        return self._binder.bind(shapes)[1]

    def plan(self, shapes: Sequence[Shape], tw_plan: Ask) -> Plan:
        """Bind the symbols, ask the code for sizes."""
        values, violations = self._binder.bind(shapes)
        if violations:
            plan = self._empty(shapes)
            if plan is None:
                raise input_error(violations)
            return plan
        dims = [values[name] for name in self._names]
        dims += [evaluate(bound, values) or 0 for bound in self._bounds]
        dims += [0] * (self._n_dims - len(dims))
        sizes = self._ask(dims, tw_plan) if max(dims, default=0) <= MAX_VALUE else None
        if sizes is None or min(sizes) < 0:
            given = ", ".join(f"{name} = {value}" for name, value in values.items())
            if sizes is None:
                rule, remedy = "sizes that follow from these shapes are beyond 64 bits", "use smaller inputs"
            else:
                rule, remedy = "a size of a result would be below 0", "use larger inputs"
            raise InputError(f"{given}: {rule}", remedy=remedy)
        outputs, at = [], 1
        for (dtype, expressions, is_dynamic), n_planned in zip(self._outputs, self._n_planned, strict=True):
            shape = tuple(sizes[at : at + len(expressions)])
            at += n_planned
            n_bytes = math.prod(shape) * dtype.itemsize
            outputs.append(OutputPlan(dtype, shape, n_bytes, expressions if is_dynamic else None))
        return Plan(dims, values, sizes[0], tuple(outputs), any(o.sizes for o in outputs))

    def _empty(self, shapes: Sequence[Shape]) -> Plan | None:
        """The plan of a call with sizes of 0 where the code is for 1 and more: there is nothing to compute where each
        result is empty. None for other calls.

        A size that is 0 for 1 and more does not say what it is for 0: a range from n - 1 up to 0 has an element then.
        """
        values, violations = self._binder.bind(shapes, may_be_empty=True)
        outputs = []
        for dtype, expressions, is_dynamic in self._outputs:
            found = [evaluate(e, values) for e in expressions]
            shape = tuple(n for n in found if n is not None and n >= 0)
            vanishes = any(n == 0 and not isinstance(e, int) for e, n in zip(expressions, found, strict=True))
            if violations or is_dynamic or len(shape) != len(found) or not vanishes:
                return None
            outputs.append(OutputPlan(dtype, shape, 0, None))
        return Plan([], values, 0, tuple(outputs), is_dynamic=False, is_empty=True) if outputs else None

    def final_shape(self, output: OutputPlan, plan: Plan, dims: Sequence[int]) -> Shape:
        """The shape that the data decided, once the code has written its dimensions."""
        assert output.sizes is not None
        values = plan.symbols | {name: dims[slot] for name, slot in self._computed.items()}
        shape = tuple(-1 if (size := evaluate(s, values)) is None else size for s in output.sizes)
        if min(shape) < 0 or math.prod(shape) * output.dtype.itemsize > output.n_bytes:
            raise ExecutionError(f"the code computed shape {shape} for a buffer of shape {output.shape}")
        return shape

    def _ask(self, dims: Sequence[int], tw_plan: Ask) -> list[int] | None:
        """What the code plans; None where that is beyond 64 bits."""
        n_sizes = 1 + sum(self._n_planned)
        sizes = (ctypes.c_int64 * n_sizes)()
        tw_plan((ctypes.c_int64 * max(len(dims), 1))(*dims), sizes)
        return None if sizes[0] < 0 else list(sizes)


def input_error(violations: Sequence[Violation]) -> InputError:
    """One error that lists everything wrong with a call."""
    if len(violations) == 1:
        v = violations[0]
        text, remedy = str(Violation(v.input, v.given, v.rule, "", v.dim, v.symbol)), v.remedy
        return InputError(text, remedy=remedy, violations=violations)
    lines = "".join(f"\n  {v}" for v in violations)
    return InputError(f"{len(violations)} things are wrong with this call:{lines}", violations=violations)


def check_manifest(manifest: Manifest) -> None:
    """``ValueError`` unless the manifest's parts agree with each other (its shapes are ``ShapeBinder``'s to check)."""
    names = [s.name for s in (*manifest.symbols, *manifest.computed)]
    for kind, items in (
        ("symbol", names), ("input", [i.name for i in manifest.inputs]), ("output", [o.name for o in manifest.outputs])
    ):  # fmt: skip
        if len(set(items)) != len(items):
            raise ValueError(f"two {kind}s have one name")
    if not len(names) <= manifest.n_dims <= MAX_DIMS:
        raise ValueError(f"n_dims = {manifest.n_dims} does not fit {len(names)} symbols")
    if manifest.failures and manifest.failures[0]:
        raise ValueError("failures[0] stands for success and must be empty")
    if manifest.locations and len(manifest.locations) != len(manifest.failures):
        raise ValueError("locations and failures differ in length")
    given = {s.name for s in manifest.symbols}
    sizes = [(s, set(names)) for o in manifest.outputs for s in o.shape]
    sizes += [(s.hi, given) for s in manifest.computed if s.hi is not None]
    for size, known in sizes:
        expr = compile_size(size)
        if isinstance(expr, ParsedExpr) and not expr.symbols <= known:
            raise ValueError(f"{expr.text!r} uses {sorted(expr.symbols - known)}, which no input determines")
