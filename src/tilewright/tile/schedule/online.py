"""The primitive that makes a grid of averages by softmax weights: keys go by in tiles, no score is ever stored.

In: a kernel whose nests ``weighted`` recognises, the name of their result, sizes of tiles. Out: an equal kernel, but
for rounding. Not its business: which sizes (``choose``), copies that run ahead (``grids.pipeline``), instructions.

A softmax needs the row's maximum before its first weight. Here weights are taken below the greatest score *so far*
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018): where a tile of keys raises it from M to N,
all that was summed before is multiplied by ``exp2((M - N) * c)``, which is what later weights are smaller by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, inf

from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Const,
    Fma,
    IndexLike,
    Inside,
    Load,
    Select,
    Unary,
    Value,
    loads,
    rewrite_value,
    substitute_index,
    substitute_value,
    walk,
)
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import Dim, Sym, ceildiv, coef_of, floordiv, is_nonneg, minimum, mod, symbols
from tilewright.core.indices import is_chosen
from tilewright.core.types import DType
from tilewright.target.matrices import CHUNK_BYTES, SUMS, WARP, shape_for
from tilewright.tile.affine import linear
from tilewright.tile.errors import ScheduleError, TileVerifyError
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import For, If, Kernel, Kind, Loop, Place, Space, Stmt, Store, Update
from tilewright.tile.rewrite import Body
from tilewright.tile.schedule.tree import fresh_among, identifier, new_loop, with_body
from tilewright.tile.schedule.weighted import Weighted, weighted
from tilewright.tile.verify import verify

ROWS, COLUMNS = SUMS.rows, SUMS.columns
LOWEST = Const(-inf, types.f32)


def online(kernel: Kernel, root: str, turns: int, keys: int, warps: int) -> Kernel:
    """Averages by softmax weights as one grid: each warp has ``turns`` times 16 rows, and walks tiles of ``keys`` keys.

    Before: the nests that ``weighted`` lists. After, for a block of ``warps`` warps::

        for b: for i_o (block):
          for w (thread): Q[rows, terms] = q                              shared
          for w (thread): M = -inf; L = 0; O = 0                          registers of the warp
          for j_o:                                                        as far as a row of the block may see keys
            for w (thread): X[keys, terms] = x; V[keys, columns] = v        shared
            for w (thread): S = Q * X, f(S); N = max(M, S); A = exp2((M - N) * c); P = exp2((S - N) * c)
                            L = L * A + P; O = O * A + P * V; M = N
          for w (thread): Y = g(O, L)

    What no row of a block sees (``select(inside(..), .., -inf)``, rising with the row and falling with the key) is not
    walked; inside of a tile that all rows see, nothing is guarded. Sums come in another order, weights are rounded
    before they are divided, and one that is less than the least normal number, beside the greatest of 1, may be 0. A
    value of no weight is not looked at where its whole tile has none, so that infinities there don't matter. Fails: the
    nests are something else; factors have no matrix instruction; loops around are more than a grid has and of sizes
    known at run time; a size is not positive; there may be no keys.
    """
    found = weighted(kernel, root)
    if min(turns, keys, warps) < 1 or keys % (2 * COLUMNS):
        raise ScheduleError("online", root, f"tiles of {turns} by {keys} for {warps} warps")
    made = OnlineGrid(kernel, root, found, (turns, keys, warps)).run()
    try:
        verify(made)
    except TileVerifyError as e:
        raise ScheduleError("online", root, f"what it would make is no kernel: {e}") from e
    return made


@dataclass(frozen=True)
class SharedTile:
    """A factor's tile in shared memory: ``n`` rows by ``width`` elements, of which memory has ``extent``.

    ``row`` counts the rows in memory, of which the tile's begin at ``first``. Where the buffer has a part for each of
    several tiles, ``part`` says which.
    """

    buffer: Buffer
    value: Load
    row: Loop
    first: Dim
    n: int
    along: Sym
    extent: int
    width: int
    part: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class WarpRegisters:
    """What the registers of the block's warps hold.

    ``scores`` of a tile of keys and the rounded ``weights``; by row and column the ``averages``; by row and column in
    eights the ``total`` of the weights and the ``greatest`` scores; by row the greatest score so far (``top``) and with
    the present tile (``raised``), the same where it can be taken off (``base``), what that comes to behind the
    exponential's factor (``shift``), and by how much all that was summed before shrinks (``fading``).
    """

    scores: Buffer
    weights: Buffer
    averages: Buffer
    total: Buffer
    greatest: Buffer
    top: Buffer
    raised: Buffer
    base: Buffer
    shift: Buffer
    fading: Buffer


class OnlineGrid:
    """Writes the grid."""

    def __init__(self, kernel: Kernel, root: str, w: Weighted, sizes: tuple[int, int, int]) -> None:
        self.kernel, self.root, self.w = kernel, root, w
        self.turns, self.keys, self.warps = sizes
        self.rows = self.turns * ROWS
        self.taken: set[str] = set()
        self.places: list[Place] = []
        dtypes = {x.dtype for x in (w.query, w.other, w.values)}
        shape = shape_for(w.query.dtype, (ROWS, COLUMNS, 2 * COLUMNS)) if len(dtypes) == 1 else None
        if shape is None or w.dtype not in dtypes:
            names = sorted(str(d) for d in dtypes)
            raise ScheduleError("online", root, f"no matrix instruction for factors of {names}")
        if not is_known(w.term.extent) or not is_known(w.column.extent) or min(w.term.extent, w.column.extent) < 1:
            raise ScheduleError("online", root, "terms and columns are known at run time only, or there are none")
        if not is_nonneg(w.key.extent - 1):
            raise ScheduleError("online", root, "there may be no keys, whose averages are 0: none is divided by")
        self.depth = shape.extents[2]
        self.n_terms, self.n_columns = w.term.extent, w.column.extent
        self.n_padded_terms, self.n_padded_columns = _up(self.n_terms, self.depth), _up(self.n_columns, COLUMNS)

    # --- names ---

    def _name(self, base: str) -> str:
        return fresh_among(self.kernel, base, self.taken)

    def _loop(self, base: str, extent: Dim, kind: Kind = Kind.SERIAL) -> Loop:
        return new_loop(self._name(base), extent, kind)

    def _buffer(self, base: str, shape: Sequence[Dim], dtype: DType = types.f32, space: Space = Space.LOCAL) -> Buffer:
        b = Buffer(self._name(f"{identifier(self.root)}_{base}"), dtype, tuple(shape))
        self.places.append(Place(b, space))
        return b

    # --- the grid ---

    def run(self) -> Kernel:
        w = self.w
        blocks, batch = self._batches()
        block_rows = self.warps * self.rows
        n_blocks = ceildiv(w.row.extent, block_rows)
        at = self._loop(f"{w.row.sym.name}_o", n_blocks, Kind.BLOCK)
        # Rows that see most keys begin first, so that the last blocks to run are short ones.
        self.first_row: Dim = (n_blocks - 1 - at.sym) * block_rows
        self.warp = self._loop("w", self.warps, Kind.THREAD)
        self.batch = batch
        body = self._body(self._n_tiles())
        for loop in reversed((*blocks, at)):
            body = (For(loop, body),)
        kept: list[Stmt] = []
        for s in self.kernel.body:
            if s is w.statements[0]:  # the last nest stands where all that it reads is there
                kept += body
            elif not any(s is x for x in w.statements):
                kept.append(s)
        places = (*(p for p in self.kernel.places if p.buffer not in w.temporaries), *self.places)
        return with_body(replace(self.kernel, places=places), tuple(kept))

    def _batches(self) -> tuple[list[Loop], dict[Sym, Dim]]:
        """Block loops for the batches, and the batches' variables by theirs."""
        loops = self.w.batches
        if len(loops) < MAX_DIMENSIONS:
            return [replace(x, kind=Kind.BLOCK) for x in loops], {}
        if not all(known_over(x.extent, 0) for x in loops[1:]):
            raise ScheduleError("online", self.root, f"{len(loops)} loops of unknown sizes around its rows")
        n: Dim = 1
        for x in loops:
            n = n * x.extent
        made = self._loop("b", n, Kind.BLOCK)
        digits: dict[Sym, Dim] = {}
        rest: Dim = made.sym
        for x in reversed(loops[1:]):
            digits[x.sym] = mod(rest, x.extent)
            rest = floordiv(rest, x.extent)
        digits[loops[0].sym] = rest
        return [made], digits

    # --- guards of scores ---

    def _guards(self) -> tuple[list[Dim], Value]:
        """What must not be negative for a score to count, and the score where it does."""
        guards, value = list[Dim](), self.w.score
        while isinstance(value, Select) and isinstance(value.cond, Inside) and _is_lowest(value.b):
            guards += value.cond.exprs
            value = value.a
        return guards, value

    def _n_tiles(self) -> Dim:
        """Tiles of keys up to the last one that a row of the block may see."""
        row, key = self.w.row.sym, self.w.key
        most: Dim = key.extent
        last_row = self.first_row + (self.warps * self.rows - 1)
        for e in self._guards()[0]:
            slope = -coef_of(e, key.sym)
            rest = e + slope * key.sym
            if slope > 0 and _is_linear(e, row, key.sym):
                row_at = last_row if coef_of(e, row) > 0 else self.first_row
                most = minimum(most, floordiv(self._of_block(rest, row_at), slope) + 1)
        return ceildiv(most, self.keys)

    def _of_block(self, e: Dim, row: Dim) -> Dim:
        (found,) = self._indices((e,), {self.w.row.sym: row})
        assert not is_chosen(found)
        return found

    def _indices(self, index: Sequence[IndexLike], env: dict[Sym, Dim]) -> tuple[IndexLike, ...]:
        return tuple(substitute_index(i, {**self.batch, **env}) for i in index)

    def _value(self, v: Value, env: dict[Sym, Dim]) -> Value:
        return substitute_value(v, {**self.batch, **env})

    # --- loops of a warp ---

    def _each(self, name: str, n: int, body: Callable[[Dim], Body]) -> Body:
        """Copies of statements."""
        if n == 1:
            return body(0)
        loop = self._loop(name, n, Kind.UNROLL)
        return (For(loop, body(loop.sym)),)

    def _lanes(self, extents: Sequence[int], body: Callable[..., Body]) -> Body:
        """Warp loops around statements."""
        loops = [self._loop(name, n, Kind.WARP) for name, n in zip("mnk", extents, strict=False)]
        made = body(*[x.sym for x in loops])
        for loop in reversed(loops):
            made = (For(loop, made),)
        return made

    def _row(self, turn: Dim, m: Dim) -> Dim:
        """A row among the block's."""
        return self.rows * self.warp.sym + ROWS * turn + m

    def _of_rows(self, body: Callable[[Dim], Body]) -> Body:
        """Statements for each row of the warp; ``body`` takes the row among the block's."""
        return self._each("mt", self.turns, lambda t: self._lanes((ROWS,), lambda m: body(self._row(t, m))))

    def _of_tile(self, n: int, body: Callable[[Dim, Dim], Body]) -> Body:
        """Statements for each element of ``n`` columns, by row and column."""

        def one(turn: Dim, part: Dim) -> Body:
            return self._lanes((ROWS, COLUMNS), lambda m, c: body(self._row(turn, m), COLUMNS * part + c))

        return self._each("mt", self.turns, lambda t: self._each("nt", n // COLUMNS, lambda p: one(t, p)))

    def _product(self, sums: Buffer, n_terms: int, left: Buffer, right: Callable[[Dim, Dim], Load]) -> Body:
        """``sums += left * right`` by instructions; ``right`` takes term and column."""
        n = sums.shape[-1]
        assert is_known(n)

        def one(step: Dim, part: Dim, turn: Dim) -> Body:
            def update(m: Dim, c: Dim, k: Dim) -> Body:
                row, column, term = self._row(turn, m), COLUMNS * part + c, self.depth * step + k
                factors = (Cast(x, types.f32) for x in (Load(left, (row, term)), right(term, column)))
                return (Update(sums, (row, column), "add", Binary("mul", *factors)),)

            return self._lanes((ROWS, COLUMNS, self.depth), update)

        return self._each(
            "kt", n_terms // self.depth,
            lambda s: self._each("nt", n // COLUMNS, lambda p: self._each("mt", self.turns, lambda t: one(s, p, t))),
        )  # fmt: skip

    def _phase(self, *parts: Body) -> Stmt:
        return For(self.warp, tuple(s for body in parts for s in body))

    # --- what is computed ---

    def _body(self, n_tiles: Dim) -> Body:
        """Phases before the walk over the keys, in it, and behind it."""
        w, h = self.w, self._held()
        query, tile = self._query(), self._loop(f"{w.key.sym.name}_o", n_tiles)
        keys = (w.key, self.keys * tile.sym, self.keys)
        key_tile = self._copied("x", w.other, keys, w.term.sym, self.n_terms, self.n_padded_terms)
        value_tile = self._copied("v", w.values, keys, w.column.sym, self.n_columns, self.n_padded_columns)
        computed = self._phase(
            self._filled(h.scores, Const(0.0, types.f32)),
            self._product(
                h.scores, self.n_padded_terms, query.buffer, lambda k, j: Load(key_tile.buffer, (j, k))
            ),
            *self._weighted(h, tile.sym),
            self._rounded(h),
            self._faded(h),
            self._product(h.averages, self.keys, h.weights, lambda j, d: Load(value_tile.buffer, (j, d))),
        )  # fmt: skip
        inside = (self._copy(key_tile), self._copy(value_tile), computed)
        return (self._copy(query), self._begin(h), For(tile, inside), self._phase(*self._stored(h)))

    def _held(self) -> WarpRegisters:
        rows = self.warps * self.rows
        by_row = (self._buffer(n, (rows,)) for n in ("m", "n", "z", "c", "a"))
        scores, weights = self._buffer("s", (rows, self.keys)), self._buffer("p", (rows, self.keys), self.w.dtype)
        averages, total = self._buffer("o", (rows, self.n_padded_columns)), self._buffer("l", (rows, COLUMNS))
        return WarpRegisters(scores, weights, averages, total, self._buffer("g", (rows, COLUMNS)), *by_row)

    def _query(self) -> SharedTile:
        lines = (self.w.row, self.first_row, self.warps * self.rows)
        return self._copied("q", self.w.query, lines, self.w.term.sym, self.n_terms, self.n_padded_terms)

    def _begin(self, h: WarpRegisters) -> Stmt:
        """Nothing was seen yet."""
        zero = Const(0.0, types.f32)
        return self._phase(
            self._of_rows(lambda i: (Store(h.top, (i,), LOWEST),)),
            self._filled(h.total, zero),
            self._filled(h.averages, zero),
        )

    def _filled(self, b: Buffer, value: Const) -> Body:
        n = b.shape[-1]
        assert is_known(n)
        return self._of_tile(n, lambda i, j: (Store(b, (i, j), value),))

    def _weighted(self, h: WarpRegisters, tile: Dim) -> tuple[Body, ...]:
        """From a tile's sums of products to its weights, their total, and by how much all before shrinks."""
        return (
            *self._scored(h.scores, tile),
            self._greatest(h.greatest, h.scores),
            self._of_rows(lambda i: (Store(h.raised, (i,), Load(h.top, (i,))),)),
            self._of_tile(COLUMNS, lambda i, j: (Update(h.raised, (i,), "max", Load(h.greatest, (i, j))),)),
            # Of a row that has seen nothing yet, nothing is to be taken off: -inf less -inf would be no number.
            self._of_rows(lambda i: self._rebased(i, h)),
            self._of_tile(self.keys, lambda i, j: (Store(h.scores, (i, j), self._unrounded(h, i, j)),)),
            self._of_tile(COLUMNS, lambda i, j: (Update(h.total, (i, j), "mul", Load(h.fading, (i,))),)),
            self._folded("add", h.total, h.scores),
        )

    def _rounded(self, h: WarpRegisters) -> Body:
        return self._of_tile(
            self.keys, lambda i, j: (Store(h.weights, (i, j), Cast(Load(h.scores, (i, j)), self.w.dtype)),)
        )

    def _faded(self, h: WarpRegisters) -> Body:
        n = self.n_padded_columns
        return self._of_tile(n, lambda i, d: (Update(h.averages, (i, d), "mul", Load(h.fading, (i,))),))

    def _unrounded(self, h: WarpRegisters, row: Dim, column: Dim) -> Value:
        """A weight, made of the score in its place.

        Scores that are sums of products have errors of their own, which are no less than those of a difference that is
        multiplied out; so one instruction makes it. Numbers that are added to the sums may be huge and exact.
        """
        score = Load(h.scores, (row, column))
        if self._are_sums(self.w.score):
            return Unary("exp2_flushed", Fma(score, self.w.factor, Load(h.shift, (row,))))
        return self._below(score, h, row)

    def _are_sums(self, score: Value) -> bool:
        """Is a score the sums of products, but for what is not seen?"""
        while isinstance(score, Select) and _is_lowest(score.b):
            score = score.a
        return score == self.w.sums

    def _below(self, value: Value, h: WarpRegisters, row: Dim) -> Value:
        return Unary("exp2_flushed", Binary("mul", Binary("sub", value, Load(h.base, (row,))), self.w.factor))

    def _scored(self, scores: Buffer, tile: Dim) -> Iterator[Body]:
        """Scores made of the sums in place: what is computed of each, then what does not count."""
        w = self.w
        guards, value = self._guards()
        if mod(w.key.extent, self.keys) != 0:
            guards.append(w.key.extent - 1 - w.key.sym)
        if len(loads(value)) > 1:  # what is read beside the sums may be there for these rows and keys alone
            within = Inside((w.row.extent - 1 - w.row.sym, *guards))
            value, guards = Select(within, value, LOWEST), []
        if value != w.sums:
            yield self._each_score(value, scores, tile)
        for e in guards:
            body = self._each_score(Select(Inside((e,)), w.sums, LOWEST), scores, tile)
            if _is_linear(e, w.row.sym, w.key.sym):
                body = (If(Inside((-1 - self._least(e, tile),)), body),)
            yield body

    def _each_score(self, value: Value, scores: Buffer, tile: Dim) -> Body:
        return self._of_tile(self.keys, lambda i, j: (Store(scores, (i, j), self._score(value, scores, tile, i, j)),))

    def _score(self, value: Value, scores: Buffer, tile: Dim, row: Dim, key: Dim) -> Value:
        w = self.w
        env: dict[Sym, Dim] = {w.row.sym: self.first_row + row, w.key.sym: self.keys * tile + key}
        found, old = self._value(value, env), self._value(w.sums, env)
        return rewrite_value(found, lambda x: Load(scores, (row, key)) if x == old else None)

    def _least(self, e: Dim, tile: Dim) -> Dim:
        """The least value of a linear guard among the rows of a warp and the keys of a tile."""
        w = self.w
        row = self.first_row + self.rows * self.warp.sym + (0 if coef_of(e, w.row.sym) > 0 else self.rows - 1)
        key = self.keys * tile + (0 if coef_of(e, w.key.sym) > 0 else self.keys - 1)
        (found,) = self._indices((e,), {w.row.sym: row, w.key.sym: key})
        assert not is_chosen(found)
        return found

    def _greatest(self, greatest: Buffer, scores: Buffer) -> Body:
        """The greatest of every eighth score of a row, so that lanes ask each other once."""
        first = self._of_tile(COLUMNS, lambda i, j: (Store(greatest, (i, j), Load(scores, (i, j))),))
        return (*first, *self._folded("max", greatest, scores, begin=1))

    def _folded(self, op: str, into: Buffer, tile: Buffer, begin: int = 0) -> Body:
        """Every eighth element of a row combined, from the ``begin``-th eight on."""

        def more(turn: Dim, part: Dim) -> Body:
            def update(m: Dim, c: Dim) -> Body:
                row = self._row(turn, m)
                return (Update(into, (row, c), op, Load(tile, (row, COLUMNS * (part + begin) + c))),)

            return self._lanes((ROWS, COLUMNS), update)

        n = self.keys // COLUMNS - begin
        return self._each("mt", self.turns, lambda t: self._each("nt", n, lambda p: more(t, p)))

    def _rebased(self, i: Dim, h: WarpRegisters) -> Body:
        is_none = Binary("eq", Load(h.raised, (i,)), LOWEST)
        shift = Unary("neg", Binary("mul", Load(h.base, (i,)), self.w.factor))
        return (
            Store(h.base, (i,), Select(is_none, Const(0.0, types.f32), Load(h.raised, (i,)))),
            *([Store(h.shift, (i,), shift)] if self._are_sums(self.w.score) else []),
            Store(h.fading, (i,), self._below(Load(h.top, (i,)), h, i)),
            Store(h.top, (i,), Load(h.raised, (i,))),
        )

    def _stored(self, h: WarpRegisters) -> Iterator[Body]:
        """The result, of the warp's rows that there are."""
        w, rows = self.w, self.warps * self.rows
        averages, total = h.averages, h.total
        whole = self._buffer("t", (rows,))
        yield self._of_rows(lambda i: (Store(whole, (i,), Const(0.0, types.f32)),))
        yield self._of_tile(COLUMNS, lambda i, j: (Update(whole, (i,), "add", Load(total, (i, j))),))
        divided: dict[Value, Buffer] = {x: self._buffer("r", (rows,)) for x in _quotients(w.result, w.total)}
        if divided:
            yield self._of_rows(
                lambda i: tuple(
                    Store(b, (i,), self._of_result(x, {}, averages, whole, i, 0)) for x, b in divided.items()
                )
            )

        def store(i: Dim, d: Dim) -> Body:
            env: dict[Sym, Dim] = {w.row.sym: self.first_row + i, w.column.sym: d}
            value = self._of_result(w.result, divided, averages, whole, i, d)
            guards = [w.row.extent - 1 - (self.first_row + i)]
            guards += [self.n_columns - 1 - d] if self.n_columns % COLUMNS else []
            buffer = _stored_by(w.statements[0])
            return (If(Inside(tuple(guards)), (Store(buffer, self._indices(w.index, env), value),)),)

        yield self._of_tile(self.n_padded_columns, store)

    def _of_result(
        self, value: Value, divided: dict[Value, Buffer], averages: Buffer, total: Buffer, i: Dim, d: Dim
    ) -> Value:
        w = self.w
        marked = rewrite_value(value, lambda x: Load(divided[x], (w.row.sym,)) if x in divided else None)
        held = {b: Load(b, (i,)) for b in divided.values()}
        found: dict[Buffer, Load] = {
            w.averages.buffer: Load(averages, (i, d)),
            w.total.buffer: Load(total, (i,)),
            **held,
        }
        env: dict[Sym, Dim] = {w.row.sym: self.first_row + i, w.column.sym: d}
        moved = self._value(marked, env)
        return rewrite_value(moved, lambda x: found.get(x.buffer) if isinstance(x, Load) else None)

    # --- tiles of keys and values ---

    def _copied(
        self, name: str, value: Load, lines: tuple[Loop, Dim, int], along: Sym, extent: int, width: int
    ) -> SharedTile:
        """A tile whose rows are longer than it by one access: those that one instruction reads lie in other banks."""
        pad = CHUNK_BYTES // value.dtype.n_bytes
        b = self._buffer(name, (lines[2], width + pad), value.dtype, Space.SHARED)
        return SharedTile(b, value, *lines, along, extent, width)

    def _copy(self, c: SharedTile, within: Sequence[Dim] = ()) -> Stmt:
        """The tile is brought by all lanes, neighbours in memory by neighbouring lanes; zeros beyond the edges.

        Zeros it is where one of ``within`` is negative, too.
        """
        n = _run(c.value, c.along)
        chunks = c.width // n
        count, threads = c.n * chunks, self.warps * WARP
        lane, turn = self._loop("lane", WARP, Kind.WARP), self._loop("turn", -(-count // threads), Kind.UNROLL)
        at = threads * turn.sym + WARP * self.warp.sym + lane.sym
        v = self._loop("v", n, Kind.VECTOR)
        row, column = floordiv(at, chunks), n * mod(at, chunks) + v.sym
        line = c.first + row
        guards = [e for e in within if not is_nonneg(e)]
        guards += [] if mod(c.row.extent, c.n) == 0 else [c.row.extent - 1 - line]
        if c.width != c.extent:  # the same for all elements of a run, where there are whole ones
            run = gcd(n, c.extent)
            guards.append(c.extent // run - 1 - floordiv(column, run))
        value: Value = self._value(c.value, {c.row.sym: line, c.along: column})
        if guards:
            value = Select(Inside(tuple(guards)), value, Const(0, c.value.dtype))
        body: Body = (For(v, (Store(c.buffer, (*c.part, row, column), value),)),)
        if count % threads:
            body = (If(Inside((count - 1 - at,)), body),)
        return self._phase((For(lane, (For(turn, body),)),))


def _run(x: Load, along: Sym) -> int:
    """How many elements one lane copies: of those that lie side by side, as many as all runs are aligned to."""
    n = CHUNK_BYTES // x.dtype.n_bytes
    flat = linear(x.buffer, x.index)
    if flat is None or coef_of(flat, along) != 1 or not _is_linear(flat, along):
        return 1
    while mod(flat - along, n) != 0:
        n //= 2
    return n


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _is_lowest(v: Value) -> bool:
    return isinstance(v, Const) and v.value == -inf


def _is_linear(e: Dim, *variables: Sym) -> bool:
    """Is it numbers times the variables, and something that is the same for all of them?"""
    for s in variables:
        e = e - coef_of(e, s) * s
    return not symbols(e) & {*variables}


def _quotients(value: Value, total: Load) -> list[Binary]:
    """The quotients by the weights' sum alone, each of which is computed once for a row."""
    found = (x for x in walk(value) if isinstance(x, Binary) and x.op == "div")
    return [x for x in found if isinstance(x.a, Const) and x.b == total]


def _stored_by(s: Stmt) -> Buffer:
    """What a nest of one store writes."""
    while isinstance(s, For):
        s = s.body[0]
    assert isinstance(s, Store)
    return s.buffer
