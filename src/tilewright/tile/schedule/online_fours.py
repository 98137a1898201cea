"""The primitive ``online`` by matrix instructions of four warps, which go on while their warps compute weights.

In: a kernel whose nests ``weighted`` recognises, the name of their result, sizes of tiles. Out: an equal kernel, but
for rounding. Not its business: which sizes (``choose``); what the registers hold and what is computed of them
(``online``); the order of asynchronous instructions, which code generation keeps (``codegen.ptx.warpgroups``).

Two products alternate with what lies between them: scores, weights, averages. A turn of the walk begins the scores of
the next tile and the averages by the weights of the last one, so that matrix units have work while the warps make
weights of scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Cast, Const, Load
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, maximum, mod
from tilewright.target.matrices import GROUP_WARPS, group_shape_for
from tilewright.tile.errors import ScheduleError, TileVerifyError
from tilewright.tile.ir import For, Kernel, Kind, Loop, Place, Space, Update
from tilewright.tile.rewrite import Body
from tilewright.tile.schedule.online import ROWS, OnlineGrid, SharedTile
from tilewright.tile.schedule.weighted import weighted
from tilewright.tile.swizzle import is_swizzlable
from tilewright.tile.verify import verify


def online_fours(kernel: Kernel, root: str, keys: int, groups: int, parts: int) -> Kernel:
    """As ``online``, by instructions of four warps: ``groups`` times four of them, of 16 rows each, and tiles of keys.

    Of keys and values so many ``parts`` lie in shared memory, which are filled by copies some turns ahead. After::

        for b: for i_o (block):
          for w (thread): X[0] = x of tile 0                                    shared, swizzled
          for p < parts - 1: for w (thread): V[p] = v of tile p; X[p + 1] = x of tile p + 1
          for w (thread): Q[rows, terms] = q
          for w (thread): M = -inf; L = 0; O = 0; S = Q * X[0]; S = weights by S, M; L, A
          for j_o < tiles - 1:
            for w (thread): P = S; S = Q * X[(j_o + 1) % parts]; O = O * A; O = O + P * V[j_o % parts]
            for w (thread): V[(j_o + parts - 1) % parts] = ..; X[(j_o + parts) % parts] = ..
            for w (thread): S = weights by S, M; L, A
          for w (thread): P = S; O = O * A; O = O + P * V[(tiles - 1) % parts]; Y = g(O, L)

    A turn ends while its last product goes on. Fails: as ``online`` does; no instruction has such factors; rows of the
    factors are no whole pieces of 128 bytes; there are fewer than two parts.
    """
    found = weighted(kernel, root)
    if min(keys, groups) < 1 or parts < 2:
        raise ScheduleError("online_fours", root, f"tiles of {keys} keys for {groups} times four warps, {parts} parts")
    made = _OfFours(kernel, root, found, (1, keys, GROUP_WARPS * groups)).in_parts(parts).run()
    try:
        verify(made)
    except TileVerifyError as e:
        raise ScheduleError("online_fours", root, f"what it would make is no kernel: {e}") from e
    return made


class _OfFours(OnlineGrid):
    """Writes the grid."""

    parts = 2

    def in_parts(self, parts: int) -> _OfFours:
        """The same with so many parts; refused where no instruction is for its tiles."""
        self.parts = parts
        for n in (self.keys, self.n_columns):
            if group_shape_for(self.w.dtype, (ROWS, n, self.depth)) is None:
                raise ScheduleError("online_fours", self.root, f"no instruction of four warps has {n} columns")
        if self.keys % self.depth:
            raise ScheduleError("online_fours", self.root, f"{self.keys} keys are no whole terms of an instruction")
        return self

    def _body(self, n_tiles: Dim) -> Body:
        w, h = self.w, self._held()
        query = self._query()
        ring = f"{w.key.sym.name}_o"
        keys, values = self._ring("x", w.other, w.term.sym), self._ring("v", w.values, w.column.sym)
        last = maximum(n_tiles - 1, 0)
        first, turn = self._loop(f"{ring}_p", self.parts - 1), self._loop(ring, n_tiles - 1)

        def copies(at: Dim) -> Body:
            """A turn's values, and the keys of the next one."""
            brought = ((values, at), (keys, at + 1))
            return tuple(self._copy(self._part(x, tile), (n_tiles - 1 - tile,)) for x, tile in brought)

        def scores(tile: Dim) -> Body:
            x = self._part(keys, tile)
            zero = self._filled(h.scores, Const(0.0, types.f32))
            made = self._product(h.scores, self.n_terms, query.buffer, lambda k, j: Load(x.buffer, (*x.part, j, k)))
            return *zero, *made

        def averages(tile: Dim) -> Body:
            v = self._part(values, tile)
            return self._product(h.averages, self.keys, h.weights, lambda j, d: Load(v.buffer, (*v.part, j, d)))

        inside = (
            self._phase(self._rounded(h), scores(turn.sym + 1), self._faded(h), averages(turn.sym)),
            *copies(turn.sym + (self.parts - 1)),
            self._phase(*self._weighted(h, turn.sym + 1)),
        )
        return (
            self._copy(self._part(keys, 0)),
            For(first, copies(first.sym)),
            self._copy(query),
            self._begin(h),
            self._phase(scores(0), *self._weighted(h, 0)),
            *([For(turn, inside)] if not is_known(n_tiles) or n_tiles > 1 else []),
            self._phase(self._rounded(h), self._faded(h), averages(last), *self._stored(h)),
        )

    def _product(self, sums: Buffer, n_terms: int, left: Buffer, right: Callable[[Dim, Dim], Load]) -> Body:
        """The same by instructions that are as wide as the sums."""
        n = sums.shape[-1]
        assert is_known(n)

        def one(step: Dim) -> Body:
            def update(m: Dim, c: Dim, k: Dim) -> Body:
                row, term = self._row(0, m), self.depth * step + k
                factors = (Cast(x, types.f32) for x in (Load(left, (row, term)), right(term, c)))
                return (Update(sums, (row, c), "add", Binary("mul", *factors)),)

            return self._lanes((ROWS, n, self.depth), update)

        loop = self._loop("kt", n_terms // self.depth, Kind.UNROLL)
        return (For(loop, one(loop.sym)),)

    # --- tiles in shared memory ---

    def _ring(self, name: str, value: Load, along: Sym) -> SharedTile:
        """Tiles of keys one behind the other, each in a part of its own."""
        lines = (self.w.key, 0, self.keys)
        n = self.n_terms if along is self.w.term.sym else self.n_columns
        made = self._copied(name, value, lines, along, n, n)
        buffer = replace(made.buffer, shape=(self.parts, *made.buffer.shape))
        self.places = [
            replace(p, buffer=buffer, ahead=self.parts - 1) if p.buffer is made.buffer else p for p in self.places
        ]
        return replace(made, buffer=buffer)

    def _part(self, ring: SharedTile, tile: Dim) -> SharedTile:
        """A tile of a ring."""
        return replace(ring, first=self.keys * tile, part=(mod(tile, self.parts),))

    def _copied(
        self, name: str, value: Load, lines: tuple[Loop, Dim, int], along: Sym, extent: int, width: int
    ) -> SharedTile:
        """A tile that lies as matrix units read it."""
        b = Buffer(self._name(f"{self.root}_{name}"), value.dtype, (lines[2], width))
        if not is_swizzlable(b):
            raise ScheduleError("online_fours", self.root, f"rows of {width} elements are no whole pieces")
        self.places.append(Place(b, Space.SHARED, swizzled=True))
        return SharedTile(b, value, *lines, along, extent, width)
