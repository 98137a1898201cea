"""Walks StableHLO's blocks and builds our graph.

In: a block of operations whose arguments the caller has bound. Out: the values that it returns; problems of every
operation that has no form here are collected, so that the user sees them all at once.
Not its business: where programs come from (``importer``), and what each operation means (``ops``).

A region is one of three things. The body of a loop or a branch is a graph of its own: what it reads of the program
around it becomes an operand (``ValueScope``). A called function is walked where it is called. The scalars of a
reduction's, scatter's or sort's region are walked with whole tensors in their place (:meth:`BlockWalker.apply`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from tilewright.core.diag import CompileError, Loc, OpError, Problem
from tilewright.core.expr import Dim, Expr
from tilewright.core.graph import CONST, Builder, Node, Pool
from tilewright.core.types import TensorType
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.known import Known
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.table import CONVERTERS, REFUSED, nearest

CALLS = frozenset({"func.call", "stablehlo.composite"})
RETURNS = frozenset({"func.return", "stablehlo.return"})
MOST_CALLS = 200
"""How deep functions may call each other: JAX's call none of themselves."""
MOST_CALLED = 1 << 18
"""How many operations called functions may have in all: functions that each call the next one twice double them."""
MOST_REGIONS = 100
"""How deep branches and loops may be nested, which all passes recurse into; each case of a choice is a level."""

_FRAME = re.compile(r'(?:"([^"]*)"\()?"([^"]+)":(\d+)(?::\d+)?')


class Lost:
    """Stands for the value of an operation that could not be converted."""


LOST = Lost()


@dataclass(frozen=True)
class Several:
    """A tuple of the program: values that travel together, which the walker alone makes and takes apart."""

    members: tuple[Held, ...]


Held: TypeAlias = Value | Lost | Several
"""What stands for a value of the program."""

MAKES_TUPLE, TAKES_MEMBER = "stablehlo.tuple", "stablehlo.get_tuple_element"


def members_of(held: Sequence[Held]) -> list[Value]:
    """The values in results of which tuples are a part, in order; what is lost is left out."""
    found: list[Value] = []
    for x in held:
        if isinstance(x, Several):
            found += members_of(x.members)
        elif not isinstance(x, Lost):
            found.append(x)
    return found


def location_of(op: Any) -> Loc:
    """The user's line that an operation comes from, where the program keeps it; else its name."""
    text = str(op.location)
    frame = _FRAME.search(text)
    if frame is None:
        name = re.search(r'"([^"]+)"', text)
        return Loc(f'"{name.group(1)}"' if name else f"an operation {op.name}")
    function, file, line = frame.groups()
    inside = f" in {function}" if function and "/" not in function and ":" not in function else ""
    return Loc(f"{file}:{line}{inside}", file, int(line))


class ValueScope:
    """The values of one graph. What a sub-graph's scope lacks it takes from the scope around it, as an operand."""

    def __init__(self, pool: Pool, outer: ValueScope | None = None) -> None:
        self.pool, self.outer = pool, outer
        self.env: dict[Any, Held] = {}
        self.captured: dict[Node, Node] = {}
        """For each node of the scope around it that is an operand, the input that stands for it here."""

    def find(self, value: Any) -> Held:
        """What ``value`` is in this scope's graph."""
        found = self.env.get(value)
        if found is None:
            if self.outer is None:
                return LOST
            found = self.env[value] = self.inner(self.outer.find(value))
        return found

    def inner(self, value: Held) -> Held:
        """A value of the scope around this one, here."""
        if isinstance(value, Lost):
            return value
        if isinstance(value, Several):
            return Several(tuple(map(self.inner, value.members)))
        if isinstance(value, Pair):
            return Pair(self._capture(value.re), self._capture(value.im))
        return self._capture(value)

    def _capture(self, node: Node) -> Node:
        if node.op is CONST:
            return self.pool.add(CONST, (), node.attrs, node.loc)
        if node not in self.captured:
            name = f"capture_{len(self.captured)}"
            self.captured[node] = self.pool.input(name, TensorType(node.dtype, node.shape), node.loc)
        return self.captured[node]


class BlockWalker:
    """Converts blocks into the graph of one scope; ``functions`` are those of the module, by name."""

    def __init__(self, functions: dict[str, Any], scope: ValueScope, parent: BlockWalker | None = None) -> None:
        self.functions, self.scope = functions, scope
        self.known = Known()
        self.problems: list[Problem] = [] if parent is None else parent.problems
        self.checks: dict[str, Node] | None = {} if parent is None else None
        self.constraints: list[Expr] = []
        """What the program asserts of sizes: each is at least 0. Those of a region bind who runs it."""
        self._depth: int = 0 if parent is None else parent._depth
        self._called: Iterator[int] = count() if parent is None else parent._called
        """Numbers for the operations of called functions, of which each is walked in every call."""
        self._regions: int = 0 if parent is None else parent._regions + 1
        self._is_inside_scalars = False

    def rules(self) -> tuple[Expr, ...]:
        """The constraints of this scope's graph."""
        return tuple(dict.fromkeys(self.constraints))

    def child(self, pool: Pool) -> BlockWalker:
        """A walker for a sub-graph of this one's, which reads what this one's has."""
        if self._regions >= MOST_REGIONS:
            raise NoForm(f"control flow inside {MOST_REGIONS} other regions", "write functions of fewer branches")
        return BlockWalker(self.functions, ValueScope(pool, self.scope), self)

    def block(self, block: Any, arguments: Sequence[Held]) -> list[Held]:
        """Convert a block's operations in order, its arguments standing for ``arguments``; what it returns."""
        self.scope.env.update(zip(block.arguments, arguments, strict=True))
        for op in block.operations:
            if op.operation.name in RETURNS:
                return [self.scope.find(x) for x in op.operation.operands]
            self._operation(op.operation)
        return []

    def function(self, name: str, arguments: Sequence[Held]) -> list[Held]:
        """Convert a function where it is called: its values are new ones in every call."""
        found = self.functions.get(name)
        if found is None or not found.regions[0].blocks:
            raise NoForm(f"a call of @{name}, which the module lacks", "export the whole program")
        if self._depth >= MOST_CALLS:
            raise NoForm(f"a call of @{name} within itself", "write the recursion as a loop")
        kept = self.scope.env
        self.scope.env = dict(kept) if self.scope.outer is None else {}
        self._depth += 1
        try:
            return self.block(found.regions[0].blocks[0], arguments)
        finally:
            self._depth -= 1
            self.scope.env = kept

    def apply(self, region: Any, arguments: Sequence[Value]) -> list[Value]:
        """A region of scalars on whole tensors: each of its operations takes each element alone."""
        before = self._is_inside_scalars
        self._is_inside_scalars = True
        n_problems = len(self.problems)
        try:
            found = self.block(region.blocks[0], arguments)
        finally:
            self._is_inside_scalars = before
        if len(self.problems) > n_problems:
            raise NoForm("its region holds operations without a form here", "see the problems listed before")
        made = [x for x in found if isinstance(x, Node | Pair)]
        if len(made) < len(found):
            raise NoForm("its region reads what could not be converted", "see the problems listed before")
        return made

    def called(self, call: Operation) -> Any:
        """The region of the function by which a custom call combines scalars."""
        names = [x.value for x in call.attribute("called_computations")]
        found = self.functions.get(names[0]) if len(names) == 1 else None
        if found is None or not found.regions[0].blocks:
            raise NoForm("a call by functions that the module lacks", "export the whole program")
        return found.regions[0]

    def static_shape(self, call: Operation) -> tuple[Dim, ...]:
        """The shape that the program states for an operation's result; its sizes must be numbers."""
        found = call.type().shape
        if any(n is None for n in found):
            raise NoForm("a result whose size is not stated", "export it anew")
        return tuple(n for n in found if n is not None)

    def _operation(self, op: Any) -> None:
        n_before = next(self._called) if self._depth else 0
        if n_before >= MOST_CALLED:
            self.scope.env.update(dict.fromkeys(op.results, LOST))
            if n_before == MOST_CALLED:
                self._fail(
                    op, f"called functions have more than {MOST_CALLED} operations", "write repetitions as loops"
                )
            return
        operands = [self.scope.find(x) for x in op.operands]
        if any(isinstance(x, Lost) for x in operands):
            self.scope.env.update(dict.fromkeys(op.results, LOST))  # silent: the cause has been named
            return
        given = tuple(x for x in operands if not isinstance(x, Lost))
        try:
            results = self._convert(op, given)
        except NoForm as e:
            self._fail(op, e.rule, e.remedy)
        except OpError as e:
            self._fail(op, e.message, e.remedy)
        except CompileError as e:
            self._fail(op, "; ".join(p.rule for p in e.problems), e.problems[0].remedy if e.problems else "")
        else:
            self.scope.env.update(zip(op.results, results, strict=True))

    def _fail(self, op: Any, rule: str, remedy: str) -> None:
        problem = Problem(location_of(op), op.name, rule, remedy)
        if problem not in self.problems:
            self.problems.append(problem)
        self.scope.env.update(dict.fromkeys(op.results, LOST))

    def _convert(self, op: Any, held: tuple[Value | Several, ...]) -> Sequence[Held]:
        name = op.name
        if name == MAKES_TUPLE:
            return [Several(held)]
        if name == TAKES_MEMBER and isinstance(held[0], Several):
            return [held[0].members[int(op.attributes["index"].value)]]
        if name in CALLS and not _is_native(op):
            callee = op.attributes["callee" if name == "func.call" else "decomposition"].value
            return self.function(callee, held)
        convert = CONVERTERS.get(_native_name(op))
        if convert is None:
            raise NoForm(*_refusal(name))
        if self._is_inside_scalars and (op.regions or any(len(getattr(r.type, "shape", ())) for r in op.results)):
            raise NoForm("a region whose operations are not of scalars", "use operations of single elements there")
        operands = tuple(x for x in held if not isinstance(x, Several))
        if len(operands) < len(held):
            raise NoForm("a tuple as an operand", "take its elements apart before")
        call = Operation(self, Builder(self.scope.pool, location_of(op)), op, operands)
        if _is_empty(op):
            return [_empty(call, k) for k in range(len(op.results))]
        results: Result = convert(call)
        return (results,) if isinstance(results, Node | Pair) else results


def _is_empty(op: Any) -> bool:
    """Has every result no elements? Then nothing is left to compute, as where no window fits into an operand."""
    types = [r.type for r in op.results]
    return bool(types) and all(hasattr(t, "rank") and t.has_static_shape and 0 in t.shape for t in types)


def _empty(call: Operation, k: int) -> Value:
    stated = call.type(k)
    none = call.b.const(np.zeros([n or 0 for n in stated.shape], stated.dtype.numpy))
    return Pair(none, none) if stated.is_complex else none


def _native_name(op: Any) -> str:
    """The name that converters are found by: of a composite its own."""
    return str(op.attributes["name"].value) if op.name == "stablehlo.composite" else str(op.name)


def _is_native(op: Any) -> bool:
    """Is the call a composite that has a form of its own here?"""
    return op.name == "stablehlo.composite" and _native_name(op) in CONVERTERS


def _refusal(name: str) -> tuple[str, str]:
    if name in REFUSED:
        return REFUSED[name]
    close = nearest(name)
    return "there is no such operation here", f"did you mean {close[0]}?" if close else "write it by other operations"
