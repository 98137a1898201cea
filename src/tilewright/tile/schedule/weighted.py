"""Nests that average values by weights which a softmax gives: how they are recognised.

In: a kernel of plain nests, the name of the buffer that the averages are stored in. Out: a :class:`Weighted` that says
what is computed over one set of variables, or a ``ScheduleError`` naming the nest that is something else.
Not its business: computing it another way (``online``).

    S[b, i, j] = sum over k of q[b, i, k] * x[b, j, k]        T = f(S), or S itself
    M[b, i] = max over j of T       E = exp2((T - M) * c)       L[b, i] = sum over j of E
    O[b, i, d] = sum over j of w * v[b, j, d]                   Y = g(O, L)

where ``w`` is E, or rounds E times a value of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Const,
    IndexLike,
    Load,
    Select,
    Unary,
    Value,
    loads,
    rewrite_value,
    substitute_value,
    symbols_of_value,
)
from tilewright.core.compute import walk as walk_value
from tilewright.core.expr import Dim, Sym, symbols
from tilewright.core.indices import chosen, is_chosen
from tilewright.core.types import DType
from tilewright.tile.affine import never_negative
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel, Loop, Role, Stmt, Store, Update, walk, written
from tilewright.tile.rewrite import reads
from tilewright.tile.schedule.tree import find_place, makers_of, nest_of

PRIMITIVE = "online"


@dataclass(frozen=True)
class Weighted:
    """What the nests compute, over the variables of the last one.

    ``batches``, ``row`` and ``column`` are its loops; ``key`` and ``term`` are the loops that are summed over. The
    factors are narrow loads. ``score`` is a value of ``sums``, which stands for the products' sums; ``result`` one of
    ``averages`` and ``total``, the sum of the weights, neither divided yet. ``dtype`` is that of the rounded weights.
    """

    batches: tuple[Loop, ...]
    row: Loop
    column: Loop
    key: Loop
    term: Loop
    query: Load
    other: Load
    values: Load
    sums: Load
    score: Value
    factor: Const
    averages: Load
    total: Load
    dtype: DType
    index: tuple[IndexLike, ...]
    result: Value
    statements: tuple[Stmt, ...]
    temporaries: frozenset[Buffer]


@dataclass(frozen=True)
class _Read:
    """A stage: its loops, where it writes, what, and by which operation from which start."""

    loops: tuple[Loop, ...]
    index: tuple[IndexLike, ...]
    value: Value
    op: str | None
    start: Value | None

    @property
    def summed(self) -> tuple[Loop, ...]:
        """The loops that are reduced."""
        return tuple(x for x in self.loops if x.sym not in self.index)


def weighted(kernel: Kernel, root: str) -> Weighted:
    """Recognise the nests that end in ``root``; ``ScheduleError`` names what they are instead."""
    return _Recognition(kernel, root).run()


class _Recognition:
    """Follows loads back from the root; every stage's variables become those of the root."""

    def __init__(self, kernel: Kernel, root: str) -> None:
        self.kernel, self.root = kernel, root
        self.places = {p.buffer: p for p in kernel.places}
        self.statements: list[Stmt] = []
        self.temporaries: set[Buffer] = set()

    def run(self) -> Weighted:
        last = self._stage(find_place(self.kernel, self.root, PRIMITIVE).buffer)
        self._require(last.op is None and not chosen(last.index), "its last nest is no plain store")
        averages = self._only([x for x in loads(last.value) if self._is_product(x)], "products that it is made of")
        of_values = self._stage(averages.buffer)
        key = self._summed(of_values)
        self._is_within(averages, of_values, last.value, last.loops)
        weight, values = self._factors(self._at(of_values, averages))
        rounded, dtype, rows = self._weight(weight, values)
        result = last.value
        if rows is not None:  # a factor of the row is taken out of the sum
            product = Binary("mul", averages, rows)
            result = rewrite_value(last.value, lambda x: product if x == averages else None)
        exponential = self._at(self._stage(rounded.buffer), rounded)
        score, top, factor = self._below_top(exponential)
        self._is_reduced(top, "max", score, key)
        totals = [x for x in loads(result) if x != averages and x.buffer in self._makers()]
        total = self._only(totals, "sums of the weights")
        self._is_reduced(total, "add", rounded, key)
        sums, value = self._score(score)
        of_sums = self._stage(sums.buffer)
        self._is_within(sums, of_sums, value, (*last.loops, key))
        term = self._summed(of_sums)
        query, other = self._factors(self._at(of_sums, sums))
        if key.sym in symbols_of_value(query):
            query, other = other, query
        self._require(key.sym not in symbols_of_value(result), "a factor of weights that is not one of the row")
        shape = self._axes(last.loops, query, other, values, key, term)
        by_column = shape[-1].sym in symbols_of_value(value) | symbols_of_value(sums) | symbols_of_value(total)
        self._require(not by_column, "weights that depend on the values' columns")
        self._check_alone()
        return Weighted(
            *shape, key, term, _narrow(query), _narrow(other), _narrow(values), sums, value, factor, averages, total,
            dtype, last.index, result, tuple(self.statements), frozenset(self.temporaries)
        )  # fmt: skip

    def _require(self, holds: bool, rule: str) -> None:
        if not holds:
            raise ScheduleError(PRIMITIVE, self.root, rule)

    def _only(self, found: Sequence[Load], what: str) -> Load:
        self._require(len(found) == 1, f"{len(found)} {what}, where one is expected")
        return found[0]

    # --- stages ---

    def _makers(self) -> set[Buffer]:
        return {b for s in walk(self.kernel.body) for b in written(s)}

    def _stage(self, b: Buffer) -> _Read:
        made = makers_of(self.kernel.body, b)
        nests = [nest_of(s) for s in made]
        self._require(all(len(n.leaf) == 1 for n in nests), f"{b.name} is made beside something else")
        if b.name != self.root:
            self._require(self.places[b].role is Role.TMP, f"{b.name} is wanted by itself")
            self.temporaries.add(b)
        self.statements += [s for s in made if not any(s is x for x in self.statements)]
        leaves = [n.leaf[0] for n in nests]
        match leaves:
            case [Store() as only]:
                return _Read(nests[0].loops, only.index, only.value, None, None)
            case [Store() as first, Update() as rest]:
                return _Read(nests[1].loops, rest.index, rest.value, rest.op, first.value)
        raise ScheduleError(PRIMITIVE, self.root, f"{b.name} is neither one store nor one reduction")

    def _summed(self, stage: _Read) -> Loop:
        self._require(len(stage.summed) == 1, "a sum over more than one loop")
        return stage.summed[0]

    def _at(self, stage: _Read, load: Load) -> Value:
        """What a stage computes for the element that is loaded."""
        return substitute_value(stage.value, self._where(stage, load))

    def _where(self, stage: _Read, load: Load) -> dict[Sym, Dim]:
        found: dict[Sym, Dim] = {}
        for own, at in zip(stage.index, load.index, strict=True):
            if is_chosen(own) or is_chosen(at):
                raise ScheduleError(PRIMITIVE, self.root, f"{load.buffer.name} is indexed by data")
            if isinstance(own, Sym) and own not in found:
                found[own] = at
            else:
                self._require(own == at, f"{load.buffer.name} is stored at other places than it is read from")
        return found

    # --- what they have to be ---

    def _is_within(self, load: Load, stage: _Read, value: Value, loops: tuple[Loop, ...]) -> None:
        """Is there an element to load for all that the loops count, even where a condition in ``value`` leaves it out?

        Its factors are copied for whole tiles, whatever conditions say.
        """
        if not any(isinstance(x, Select) and load in loads(x) for x in walk_value(value)):
            return
        around, own = {x.sym: x.extent for x in loops}, {x.sym: x.extent for x in stage.loops}
        for sym, at in self._where(stage, load).items():
            is_there = sym in own and never_negative(at, around) and never_negative(own[sym] - 1 - at, around)
            self._require(is_there, f"{load.buffer.name} has no element where a condition says so")

    def _is_product(self, x: Load) -> bool:
        if x.buffer not in self._makers() or self.places[x.buffer].role is not Role.TMP:
            return False
        leaves = [nest_of(s).leaf for s in makers_of(self.kernel.body, x.buffer)]
        return any(isinstance(s, Update) and isinstance(s.value, Binary) and s.value.op == "mul" for (s, *_) in leaves)

    def _factors(self, value: Value) -> tuple[Value, Value]:
        match value:
            case Binary(op="mul", a=a, b=b):
                return a, b
        raise ScheduleError(PRIMITIVE, self.root, f"no sum of products: {value!r:.80}")

    def _weight(self, weight: Value, values: Value) -> tuple[Load, DType, Value | None]:
        """The unrounded weight, the dtype that it is rounded to, and the row's factor that it has."""
        match weight:
            case Cast(a=Load() as x, dtype=types.f32):
                inside = self._at(self._stage(x.buffer), x)
            case _:
                raise ScheduleError(PRIMITIVE, self.root, "weights that are not rounded to the values' dtype")
        self._require(isinstance(inside, Cast) and inside.dtype is _narrow(values).dtype, "weights of another dtype")
        assert isinstance(inside, Cast)
        match inside.a:
            case Binary(op="mul", a=Load(dtype=types.f32) as unrounded, b=rows):
                return unrounded, inside.dtype, rows
            case Load(dtype=types.f32) as unrounded:
                return unrounded, inside.dtype, None
        raise ScheduleError(PRIMITIVE, self.root, f"weights that are more than rounded: {inside.a!r:.80}")

    def _below_top(self, value: Value) -> tuple[Load, Load, Const]:
        match value:
            case Unary(
                op="exp2", a=Binary(op="mul", a=Binary(op="sub", a=Load() as x, b=Load() as top), b=Const() as c)
            ):
                self._require(0 < c.value < inf, f"the exponential's factor {c.value} is not positive")
                return x, top, c
        raise ScheduleError(PRIMITIVE, self.root, f"weights are no powers of two below the top: {value!r:.80}")

    def _is_reduced(self, load: Load, op: str, of: Load, key: Loop) -> None:
        """Is an element the reduction, by ``op``, of what is loaded over all keys?"""
        stage = self._stage(load.buffer)
        over = self._summed(stage)
        want = {"max": -inf, "add": 0.0}[op]
        starts = isinstance(stage.start, Const) and stage.start.value == want
        at = substitute_value(self._at(stage, load), {over.sym: key.sym})
        same = over.extent == key.extent and at == of
        self._require(
            stage.op == op and starts and same, f"{load.buffer.name} is no {op} of {of.buffer.name} over keys"
        )

    def _score(self, score: Load) -> tuple[Load, Value]:
        """The sums of products that a score is made of, and how."""
        stage = self._stage(score.buffer)
        if stage.op is not None:
            return score, score
        value = self._at(stage, score)
        return self._only([x for x in loads(value) if self._is_product(x)], "sums of products in a score"), value

    def _axes(
        self, loops: tuple[Loop, ...], query: Value, other: Value, values: Value, key: Loop, term: Loop
    ) -> tuple[tuple[Loop, ...], Loop, Loop]:
        """Batches, rows and columns of the result's loops."""
        of_query, of_others = symbols_of_value(query), symbols_of_value(other) | symbols_of_value(values)
        columns = [x for x in loops if x.sym in symbols_of_value(values) - of_query]
        rows = [x for x in loops if x.sym in of_query - of_others]
        self._require(len(columns) == 1 and bool(rows), "no rows of queries, or no columns of values")
        own = {x.sym for x in loops}
        self._require(columns[0].sym not in symbols_of_value(other), "keys that depend on the values' columns")
        self._require(symbols_of_value(query) <= own | {term.sym}, "queries that depend on keys")
        self._require(symbols_of_value(other) <= own | {key.sym, term.sym}, "keys that depend on something else")
        extents = [x.extent for x in (*loops, key, term)]
        self._require(not any(symbols(e) & own for e in extents), "extents that depend on rows")
        batches = tuple(x for x in loops if x is not rows[-1] and x is not columns[0])
        return batches, rows[-1], columns[0]

    def _check_alone(self) -> None:
        """Nothing else uses what is between, and nothing changes what is read."""
        first = min(k for k, s in enumerate(self.kernel.body) if any(s is x for x in self.statements))
        last = max(k for k, s in enumerate(self.kernel.body) if any(s is x for x in self.statements))
        read = {b for s in self.statements for x in walk((s,)) for b in self.places if reads(x, b)}
        for k, s in enumerate(self.kernel.body):
            if any(s is x for x in self.statements):
                continue
            inside = list(walk((s,)))
            others = {b for b in self.temporaries if any(reads(x, b) or b in written(x) for x in inside)}
            self._require(not others, "something else uses what is between")
            changed = first < k < last and any(b in read for x in inside for b in written(x))
            self._require(not changed, "what it reads is changed between")


def _narrow(factor: Value) -> Load:
    """A factor as it lies in memory, before it is widened."""
    match factor:
        case Cast(a=Load() as x, dtype=types.f32):
            return x
    raise ScheduleError(PRIMITIVE, "", f"a factor that is not a narrow element widened: {factor!r:.80}")
