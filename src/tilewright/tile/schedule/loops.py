"""Primitives on loops: split, reorder, kind, merge, fuse, unit, alternate, divide, cut.

In: a kernel, names of loops. Out: a kernel that means the same, or a ``ScheduleError``.
Not its business: which buffer lives where (``stages``), operand layouts (``operands``).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from tilewright.core.compute import Buffer, IndexLike, Inside, Load, substitute_index
from tilewright.core.dims import is_known, known_at_least
from tilewright.core.expr import (
    BinaryExpr,
    Dim,
    Sym,
    bounds,
    ceildiv,
    floordiv,
    is_nonneg,
    minimum,
    mod,
    substitute,
    symbol_order,
    symbols,
)
from tilewright.core.indices import chosen, is_chosen, placed, symbols_in
from tilewright.tile.affine import coefficient, without
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Fold, For, If, Kernel, Kind, Loop, Prefetch, Space, Stmt, Store, Update, walk, written
from tilewright.tile.rewrite import Body, loads_of, loops_of, rewrite_accesses, substitute_body
from tilewright.tile.schedule.digits import numbers_of_digits
from tilewright.tile.schedule.fresh import starts_fresh
from tilewright.tile.schedule.tree import (
    Nest,
    edit,
    enclosing,
    find_loop,
    fresh,
    is_folded,
    nest_of,
    new_loop,
    replace_stmt,
    with_body,
)
from tilewright.tile.verify import COPIED

AT_ONE_TIME = (Kind.PARALLEL, Kind.BLOCK, Kind.THREAD, Kind.WARP)
"""Kinds whose iterations run beside each other, in memory that they have in common."""


def split(kernel: Kernel, loop: str, factor: int, tail: str = "min") -> Kernel:
    """``for v<n`` -> ``for v_o<ceil(n/f): for v_i<min(f, n - f*v_o)`` with ``v = f*v_o + v_i``.

    ``tail="min"``: the last tile is shorter (the emitter peels it or masks it). ``tail="shift"``: every tile is full
    and the last one starts at ``n - f``; it repeats work, so the body may only store, and ``n >= f`` must be proved.
    What an iteration reads of the buffers that the loop writes it must have stored itself, or it would see another
    value the second time.
    ``tail="guard"``: every tile is full and ``if f*v_o + v_i < n`` stands in the inner loop, as threads of a GPU need.
    Fails: factor < 1; an unknown tail; shift of an accumulating body, of one that reads what other iterations write, or
    of an extent that may be smaller; a guard in lanes.
    """
    target = find_loop(kernel, loop, "split")
    n, sym = target.loop.extent, target.loop.sym
    if factor < 1:
        raise ScheduleError("split", loop, f"the factor {factor} is not positive", remedy="split by 1 or more")
    outer = new_loop(fresh(kernel, f"{loop}_o"), ceildiv(n, factor), target.loop.kind)
    base: Dim = outer.sym * factor
    width: Dim = factor if _divides(factor, n) else minimum(factor, n - base)
    if tail == "shift":
        _check_shift(target, factor)
        base, width = minimum(base, n - factor), factor
    elif tail not in ("min", "guard"):
        raise ScheduleError("split", loop, f"unknown tail {tail!r}", remedy="use 'min', 'shift' or 'guard'")
    kind = Kind.SERIAL if target.loop.kind is Kind.PARALLEL else target.loop.kind
    inner = Loop(Sym(fresh(kernel, f"{loop}_i"), 0, factor - 1), factor if tail == "guard" else width, kind)
    body = substitute_body(target.body, {sym: base + inner.sym})
    if tail == "guard" and width != factor:
        if kind in (Kind.VECTOR, Kind.DOT):
            raise ScheduleError("split", loop, "a vector loop holds only statements", remedy="use tail='min'")
        body = (If(Inside((n - 1 - base - inner.sym,)), body),)
    return replace_stmt(kernel, target, For(outer, (For(inner, body),)))


def _divides(factor: int, n: Dim) -> bool:
    return mod(n, factor) == 0


def _check_shift(target: For, factor: int) -> None:
    name = target.loop.sym.name
    if not is_nonneg(target.loop.extent - factor):
        raise ScheduleError("split", name, f"shift needs an extent >= {factor}, not {target.loop.extent}")
    if any(isinstance(s, Update | Fold) for s in walk(target.body)):
        raise ScheduleError("split", name, "shift repeats work, and the body accumulates", remedy="use tail='min'")
    read = {x.buffer for s in walk(target.body) for x in loads_of(s)}
    for b in dict.fromkeys(b for s in walk(target.body) for b in written(s)):
        if b in read and not starts_fresh(target.body, b):
            rule = f"shift repeats work, and the body reads {b.name}, which other iterations write"
            raise ScheduleError("split", name, rule, remedy="use tail='min'")


def reorder(kernel: Kernel, *loops: str) -> Kernel:
    """Permute the loops of one perfect nest into the given order, outermost first; loops not named keep their places.

    Fails: the loops are not in one perfect nest; an extent would depend on a loop inside of it; iterations may not be
    exchanged (the body reads what another iteration writes, or overwrites it in an order that matters), unless loops
    whose iterations touch elements of their own move past others that keep their order; a loop that is not copied would
    come inside lanes.
    """
    where = ", ".join(loops)
    top = next((s for s in walk(kernel.body) if isinstance(s, For) and s.loop.sym.name in loops), None)
    if top is None:
        raise ScheduleError("reorder", where, "none of these loops exists")
    nest = _nest_through(kernel, top, set(loops), where)
    by_name = {x.sym.name: x for x in nest.loops}
    order = iter(loops)
    moved = tuple(by_name[next(order)] if x.sym.name in loops else x for x in nest.loops)
    for k, inner in enumerate(moved):
        late = {x.sym for x in moved[k:]}
        if symbols(inner.extent) & late:
            raise ScheduleError("reorder", where, f"the extent {inner.extent} of {inner.sym} needs a loop inside of it")
    changed = [a.sym for a, b in zip(nest.loops, moved, strict=True) if a is not b]
    lanes = next((k for k, x in enumerate(moved) if x.kind is Kind.VECTOR), len(moved))
    for x in moved[lanes:]:
        if x.kind not in COPIED:
            raise ScheduleError("reorder", where, f"{x.sym} would be inside the vector loop {moved[lanes].sym}")
    if not _keeps_order(nest, moved):
        check_exchange(nest.leaf, changed, "reorder", where)
    return replace_stmt(kernel, top, Nest(moved, nest.leaf).wrap())


def _keeps_order(nest: Nest, moved: Sequence[Loop]) -> bool:
    """Do all loops keep their order but those that tell apart whatever two iterations of the nest touch?

    Two iterations that touch one element agree in those, and stay in the order that the others give them.
    """
    body = nest.leaf
    made = dict.fromkeys(x for s in walk(body) for x in written(s))
    accesses: dict[Buffer, list[tuple[IndexLike, ...]]] = {x: [] for x in made}
    for s in walk(body):
        for x in written(s):
            assert isinstance(s, Store | Update | Fold)
            accesses[x].append(s.index)
        for load in loads_of(s):
            if load.buffer in made:
                accesses[load.buffer].append(load.index)
    every = {x.sym for x in (*nest.loops, *loops_of(body))}
    held = [
        x.sym for x in nest.loops if not all(apart(indices, [x.sym], every - {x.sym}) for indices in accesses.values())
    ]
    return [x.sym for x in moved if x.sym in held] == held


def _nest_through(kernel: Kernel, top: For, names: set[str], where: str) -> Nest:
    """The nest from ``top`` down to the innermost of ``names``."""
    full = nest_of(top)
    names_here = [x.sym.name for x in full.loops]
    for name in sorted(names - set(names_here)):
        find_loop(kernel, name, "reorder")  # which says what is called so nowhere
        remedy = f"its loops: {', '.join(names_here)}"
        raise ScheduleError("reorder", where, f"{name} is not in the perfect nest of {top.loop.sym}", remedy=remedy)
    depth = 1 + max(k for k, n in enumerate(names_here) if n in names)
    body: Body = (top,)
    for _ in range(depth):
        inner = body[0]
        assert isinstance(inner, For)
        body = inner.body
    return Nest(full.loops[:depth], body)


def check_exchange(
    body: Body, over: list[Sym], primitive: str, where: str, filled_ahead: Container[Buffer] = (), *,
    are_blocks: bool = False,
) -> None:  # fmt: skip
    """Refuse unless iterations of the loops ``over`` may run in any order.

    The rule: every buffer that the body writes is accessed at one index only, and written by a Store whose index tells
    iterations apart (each of ``over`` has its own affine place in it), or only folded into by commutative updates.
    Buffers local to one iteration (their index uses none of ``over``, and it stores what it reads) are free. Those that
    are ``filled_ahead`` were so before that, and the primitive that did it has left each read what it was; blocks,
    which have such memory for themselves, may count its parts in any way.
    """
    accesses: dict[Buffer, list[tuple[IndexLike, ...]]] = {}
    kinds: dict[Buffer, set[str]] = {}
    for s in walk(body):
        for b in written(s):
            assert isinstance(s, Store | Update | Fold)
            accesses.setdefault(b, []).append(s.index)
            kinds.setdefault(b, set()).add(_write_kind(s))
    for s in walk(body):
        for load in loads_of(s):
            if load.buffer in accesses:
                accesses[load.buffer].append(load.index)
                kinds[load.buffer].add("load")
    inner = {x.sym for x in loops_of(body)}
    for b, indices in accesses.items():
        if kinds[b] == {"fold"}:
            continue
        if apart(indices, over, inner):
            continue
        is_one = not any(_mentions(ix, over) for ix in indices)
        if (b in filled_ahead and (is_one or are_blocks)) or (is_one and starts_fresh(body, b)):
            continue
        raise ScheduleError(primitive, where, f"iterations share elements of {b}", remedy="keep the loops in order")


def _write_kind(s: Store | Update | Fold) -> str:
    if isinstance(s, Store):
        return "store"
    return "fold" if isinstance(s, Update) or s.combiner.is_commutative else "store"


def _mentions(index: tuple[IndexLike, ...], over: list[Sym]) -> bool:
    return bool(chosen(index)) or not symbols_in(index).isdisjoint(over)


def decided_by(d: Dim, over: set[Sym], inner: set[Sym]) -> set[Sym]:
    """The loops of ``over`` that the value of ``d`` determines: its terms form a mixed-radix number.

    A symbol without a bound may only have the largest coefficient.
    """
    terms: list[tuple[int, Sym]] = []
    syms = sorted(symbols(d) & (over | inner), key=symbol_order)
    for s in syms:
        c = coefficient(d, s)
        if not is_known(c) or c == 0:
            return over.intersection(syms) if c is not None and len(syms) == 1 else set()
        terms.append((abs(c), s))
    terms.sort(key=lambda t: (t[0], t[1].hi is None, t[1].hi or 0))  # at one stride, single iterations first
    reach: int | None = 0
    for c, s in terms:
        if reach is None or c <= reach:
            return set()
        reach = None if s.hi is None else reach + c * s.hi
    return {s for _, s in terms} & over


def apart(indices: list[tuple[IndexLike, ...]], over: list[Sym], inner: set[Sym]) -> bool:
    """Do iterations of ``over`` touch elements of their own, whichever of the accesses they make?

    A dimension decides a loop when all accesses agree in it up to loops inside the body, and it is a mixed-radix
    number; so do neighbours together that are one number's digits, as in ``T[i // 6, i % 6]``. Loops of one iteration
    are numbers: some quotients have lost them.
    """
    found = sorted(set(over).union(*map(symbols_in, indices)), key=lambda s: s.name)
    single: dict[Sym, Dim] = {s: s.lo for s in found if s.lo is not None and s.lo == s.hi}
    indices = [tuple([substitute_index(i, single) for i in ix]) for ix in indices]
    rest = {s for s in over if s not in single}
    columns = [[ix[d] for ix in indices] for d in range(len(indices[0]))]
    turned = [tuple(reversed(ix)) for ix in indices]
    for column in (*columns, *numbers_of_digits(indices), *numbers_of_digits(turned)):
        dims = placed(column)
        if len(dims) == len(column) and len({without(i, inner) for i in dims}) == 1:
            rest -= set[Sym].intersection(*[decided_by(i, rest, inner) for i in dims])
    return not rest


def set_kind(kernel: Kernel, loop: str, kind: str) -> Kernel:
    """Run the loop as ``kind`` (``serial parallel unroll step vector dot block thread warp matrix``).

    Fails: vector, parallel, block or thread over iterations that may not be exchanged, or that would use one memory at
    a time; vector, unroll or step over an extent without a known bound, thread over one that is no number; vector
    around anything but statements and copied loops; serial or parallel in a vector loop; block inside of any other
    kind; thread outside of all blocks; warp outside of all thread loops, which then count warps; another kind than
    these. The third of three nested warp loops may be a sum's own, which a matrix instruction adds up at once. That
    matrix loops are an instruction is asked of the finished kernel (``tile.matrix``).
    """
    target = find_loop(kernel, loop, "kind")
    kinds = [k.value for k in Kind]
    if kind not in kinds:
        raise ScheduleError("kind", loop, f"there is no kind {kind!r}", remedy=f"kinds: {' '.join(kinds)}")
    k = Kind(kind)
    if k in (Kind.UNROLL, Kind.STEP, Kind.VECTOR, Kind.DOT) and bounds(target.loop.extent)[1] is None:
        rule = f"{kind} needs an extent with a known bound, not {target.loop.extent}"
        raise ScheduleError("kind", loop, rule, remedy=f"split the loop, and make the inner one {kind}")
    if k is Kind.VECTOR:
        check_exchange(target.body, [target.loop.sym], "kind", loop)
    if k in AT_ONE_TIME and target.loop.extent != 1 and not (k is Kind.WARP and is_folded(kernel, target)):
        check_apart(kernel, target, k, "kind", loop)
    if k in (Kind.BLOCK, Kind.THREAD, Kind.WARP):
        _check_grid(kernel, target, k)
    if k is Kind.VECTOR:
        for s in walk(target.body):
            if isinstance(s, If) or (isinstance(s, For) and s.loop.kind not in COPIED):
                raise ScheduleError("kind", loop, "a vector loop holds only statements and copied loops")
    if k not in COPIED:
        for s in enclosing(kernel.body, target):
            if isinstance(s, For) and s.loop.kind is Kind.VECTOR:
                raise ScheduleError("kind", loop, f"a {kind} loop inside the vector loop {s.loop.sym}")
    new = For(Loop(target.loop.sym, target.loop.extent, k), target.body)
    return replace_stmt(kernel, target, new)


def check_apart(kernel: Kernel, target: For, kind: Kind, primitive: str, where: str) -> None:
    """Refuse unless iterations of a loop, as a kind that runs them at one time, write elements of their own."""
    filled_ahead = {p.buffer for p in kernel.places if p.ahead}
    are_blocks = kind is Kind.BLOCK
    check_exchange(target.body, [target.loop.sym], primitive, where, filled_ahead, are_blocks=are_blocks)
    if _shared_updates(target):
        rule = f"{kind.value} iterations would update one element"
        remedy = "tree first" if kind is Kind.THREAD else "rfactor first"
        raise ScheduleError(primitive, where, rule, remedy=remedy)
    if shared := _shared_memory(kernel, target, kind):
        raise ScheduleError(primitive, where, f"{kind.value} iterations would use {shared} at one time")


def _check_grid(kernel: Kernel, target: For, kind: Kind) -> None:
    """Refuse a block loop inside of other loops, a thread loop that is no phase of a grid, a warp loop in no phase."""
    name = target.loop.sym.name
    around = enclosing(kernel.body, target)
    if kind is Kind.WARP:
        if not any(isinstance(s, For) and s.loop.kind is Kind.THREAD for s in around):
            raise ScheduleError("kind", name, "a warp loop in no thread loop", remedy="make loops around it threads")
        return
    if kind is Kind.BLOCK:
        if any(isinstance(s, If) or s.loop.kind is not Kind.BLOCK for s in around):
            raise ScheduleError("kind", name, "a block loop inside of one that is none", remedy="begin outermost")
        return
    if not known_at_least(target.loop.extent, 1):
        rule = f"a thread loop of {target.loop.extent} iterations, which is no positive number"
        raise ScheduleError("kind", name, rule, remedy="split it with tail 'guard'")
    if not around or not isinstance(around[0], For) or around[0].loop.kind is not Kind.BLOCK:
        raise ScheduleError("kind", name, "a thread loop in no block", remedy="make a loop around it a block loop")


def _shared_updates(target: For) -> bool:
    """Do iterations update one element of a buffer, by the same statement or by different ones?"""
    inner = {x.sym for x in loops_of(target.body)}
    updated: dict[Buffer, list[tuple[IndexLike, ...]]] = {}
    for s in walk(target.body):
        if isinstance(s, Update | Fold):
            for b in written(s):
                updated.setdefault(b, []).append(s.index)
    return any(
        not apart(indices, [target.loop.sym], inner) and not starts_fresh(target.body, b)
        for b, indices in updated.items()
    )


def _shared_memory(kernel: Kernel, target: For, kind: Kind) -> Buffer | None:
    """A buffer in memory that the iterations have in common, of which they write the same elements.

    Threads of a block have all memory in common but what is touched in their loop alone, which each has for itself.
    Lanes of a warp have all of it in common, its registers too.
    """
    spaces = {p.buffer: p.space for p in kernel.places}
    everywhere = {b for b, space in spaces.items() if space is Space.GLOBAL or kind is Kind.WARP}
    if kind is Kind.THREAD:
        n_inside = _n_touching(target.body)
        n_all = _n_touching(kernel.body)
        own = {b for b in n_inside if spaces[b] in (Space.REG, Space.LOCAL) and n_inside[b] == n_all[b]}
        everywhere = spaces.keys() - own
    inner = {x.sym for x in loops_of(target.body)}
    for s in walk(target.body):
        if isinstance(s, Store | Update | Fold):
            for b in sorted(everywhere.intersection(written(s)), key=str):
                if not apart([s.index], [target.loop.sym], inner):
                    return b
    return None


def _n_touching(body: Body) -> dict[Buffer, int]:
    """How many accesses of each buffer stand in the statements."""
    found: dict[Buffer, int] = {}
    for s in walk(body):
        for b in (*written(s), *[x.buffer for x in loads_of(s)]):
            found[b] = found.get(b, 0) + 1
    return found


def merge(kernel: Kernel, first: str, second: str) -> Kernel:
    """``for a<n: X; S; T; for b<n: Y`` -> ``S; for a<n: X; Y[b := a]; T``.

    S is what stands between and X has no part in, T what Y has none in. Fails: the loops are not in one body, or
    something between is neither; extents differ; an iteration of Y would see an X that has not run yet.
    """
    a, b = find_loop(kernel, first, "merge"), find_loop(kernel, second, "merge")
    where = f"{first}, {second}"
    if a.loop.extent != b.loop.extent:
        raise ScheduleError("merge", where, f"the extents {a.loop.extent} and {b.loop.extent} differ")
    bodies: list[Body] = [kernel.body, *(s.body for s in walk(kernel.body) if isinstance(s, For | If))]
    home = next((x for x in bodies if any(s is a for s in x) and any(s is b for s in x)), ())
    at = [k for k, s in enumerate(home) if s is a or s is b]
    if len(at) != 2 or home[at[0]] is not a:
        raise ScheduleError("merge", where, "the loops are not neighbours in one body")
    before, behind = _around(a.body, home[at[0] + 1 : at[1]])
    moved = substitute_body(b.body, {b.loop.sym: a.loop.sym})
    if not _are_apart(moved, behind):
        raise ScheduleError("merge", where, "not neighbours: something between can't go before or behind the loops")
    _check_merge(a, moved, where)
    joined = For(a.loop, (*a.body, *moved))
    without = with_body(kernel, edit(kernel.body, b, lambda _: ()))
    for s in (*before, *behind):
        without = with_body(without, edit(without.body, s, lambda _: ()))
    return replace_stmt(without, a, *before, joined, *behind)


def _around(first: Body, between: Body) -> tuple[Body, Body]:
    """What may run before ``first``, and what has to stay behind it, each in its order."""
    before: list[Stmt] = []
    behind: list[Stmt] = []
    for s in between:
        (before if _are_apart((*first, *behind), (s,)) else behind).append(s)
    return tuple(before), tuple(behind)


def _are_apart(one: Body, other: Body) -> bool:
    """Does neither write what the other touches?"""
    first, second = _index_map(one), _index_map(other)
    changed = {b for part in (one, other) for s in walk(part) for b in written(s)}
    return not changed & first.keys() & second.keys()


def _check_merge(a: For, moved: Body, where: str) -> None:
    first, second = _index_map(a.body), _index_map(moved)
    inner = {x.sym for x in (*loops_of(a.body), *loops_of(moved))}
    changed = {b for part in (a.body, moved) for s in walk(part) for b in written(s)}
    for b in sorted(changed & first.keys() & second.keys(), key=str):
        indices = [*first[b], *second[b]]
        if not apart(indices, [a.loop.sym], inner):
            raise ScheduleError("merge", where, f"both loops access {b}, at other elements than their own iteration's")


def _index_map(body: Body) -> dict[Buffer, list[tuple[IndexLike, ...]]]:
    found: dict[Buffer, list[tuple[IndexLike, ...]]] = {}
    for s in walk(body):
        if isinstance(s, Store | Update | Fold):
            for b in written(s):
                found.setdefault(b, []).append(s.index)
        for load in loads_of(s):
            found.setdefault(load.buffer, []).append(load.index)
    return found


def fuse(kernel: Kernel, outer: str, inner: str) -> Kernel:
    """``for a<m: for b<n`` (perfect) -> ``for a_b<m*n`` with ``a = a_b // n`` and ``b = a_b % n``.

    An index that walks the two as one, ``n*a + b``, becomes ``a_b``. What ``split`` made two loops with a shorter last
    tile, ``for a<ceil(m/n): for b<min(n, m - n*a)``, is ``for a_b<m``.
    Fails: not perfectly nested; the inner extent is neither such a tile's nor a positive number.
    """
    top = find_loop(kernel, outer, "fuse")
    where = f"{outer}, {inner}"
    if len(top.body) != 1 or not isinstance(top.body[0], For) or top.body[0].loop.sym.name != inner:
        raise ScheduleError("fuse", where, "the second loop is not the only statement inside the first")
    low = top.body[0]
    a, b = top.loop.sym, low.loop.sym
    whole = _split_whole(top.loop, low.loop)
    n = low.loop.extent if whole is None else whole[0]
    if not known_at_least(n, 1):
        raise ScheduleError("fuse", where, f"the inner extent {n} is not a positive number")
    extent = top.loop.extent * n if whole is None else whole[1]
    loop = new_loop(fresh(kernel, f"{outer}_{inner}"), extent, top.loop.kind)

    def as_one(i: IndexLike) -> IndexLike:
        steps = (None, None) if is_chosen(i) else (coefficient(i, a), coefficient(i, b))
        if is_chosen(i) or steps[1] is None or steps[0] != steps[1] * n:
            return i
        return substitute(i, {a: 0, b: loop.sym})

    body = rewrite_accesses(low.body, lambda buffer, index: Load(buffer, tuple(map(as_one, index))))
    dims: dict[Sym, Dim] = {a: floordiv(loop.sym, n), b: mod(loop.sym, n)}
    return replace_stmt(kernel, top, For(loop, substitute_body(body, dims)))


def _split_whole(outer: Loop, inner: Loop) -> tuple[int, Dim] | None:
    """Of what ``split`` made two loops with a shorter last tile: its factor, and the one loop's iterations."""
    least = inner.extent
    if not isinstance(least, BinaryExpr) or least.op != "min":
        return None
    for factor, rest in ((least.a, least.b), (least.b, least.a)):
        if known_at_least(factor, 1):
            whole = rest + outer.sym * factor
            is_split = outer.sym not in symbols(whole) and outer.extent == ceildiv(whole, factor)
            return (factor, whole) if is_split else None
    return None


def unit(kernel: Kernel, loop: str) -> Kernel:
    """``for v<1: X`` -> ``X[v := 0]``. Fails: the extent is not 1."""
    target = find_loop(kernel, loop, "unit")
    if target.loop.extent != 1:
        raise ScheduleError("unit", loop, f"the extent is {target.loop.extent}, not 1")
    return with_body(kernel, edit(kernel.body, target, lambda _: substitute_body(target.body, {target.loop.sym: 0})))


def alternate(kernel: Kernel, loop: str, outer: str) -> Kernel:
    """``for t: for v<n: X`` -> the same with v from n-1 down to 0 in odd iterations of t.

    What was read last is read first, from the cache: ``X[v := v + (t % 2)*(n - 1 - 2*v)]``. A prefetch for ``v + c`` is
    moved along. Fails: ``outer`` does not enclose ``loop``; iterations of ``loop`` may not be exchanged.
    """
    around, target = find_loop(kernel, outer, "alternate"), find_loop(kernel, loop, "alternate")
    if target is around or not any(s is target for s in walk(around.body)):
        raise ScheduleError("alternate", f"{loop}, {outer}", "the second loop does not enclose the first")
    sym, n = target.loop.sym, target.loop.extent
    check_exchange(target.body, [sym], "alternate", loop)

    def walked(v: Dim) -> Dim:
        return v + mod(around.loop.sym, 2) * (n - 1 - v * 2)

    def ahead(i: IndexLike) -> IndexLike:
        return walked(i) if not is_chosen(i) and is_known(i - sym) else i

    def turned(body: Body) -> Iterator[Stmt]:
        for s in body:
            if isinstance(s, For):
                inner = Loop(s.loop.sym, substitute(s.loop.extent, {sym: walked(sym)}), s.loop.kind)
                yield For(inner, tuple(turned(s.body)))
            elif isinstance(s, Prefetch):
                yield Prefetch(s.buffer, tuple(ahead(i) for i in s.index))
            else:
                yield from substitute_body((s,), {sym: walked(sym)})

    return replace_stmt(kernel, target, For(target.loop, tuple(turned(target.body))))


def divide(kernel: Kernel, loop: str, at: int) -> Kernel:
    """``for v<n: X`` -> ``for v<at*(n // at): X; for v_t<n % at: X[v := at*(n // at) + v_t]``.

    Full tiles, then the rest. For extents known at run time; loops inside the second copy get the suffix ``_t``. The
    order of iterations stays, so it is always legal. Fails: ``at`` < 1.
    """
    target = find_loop(kernel, loop, "divide")
    if at < 1:
        raise ScheduleError("divide", loop, f"the factor {at} is not positive")
    n, sym = target.loop.extent, target.loop.sym
    full = floordiv(n, at) * at
    first_loop = new_loop(fresh(kernel, f"{loop}_f"), full, target.loop.kind)
    first = For(first_loop, substitute_body(target.body, {sym: first_loop.sym}))
    rest = mod(n, at)
    last_loop = new_loop(fresh(kernel, f"{loop}_t"), rest, target.loop.kind)
    last = For(last_loop, renamed(kernel, substitute_body(target.body, {sym: full + last_loop.sym}), "t"))
    parts = [x for x in (first, last) if x.loop.extent != 0]
    return replace_stmt(kernel, target, *parts)


def cut(kernel: Kernel, loop: str, at: int) -> Kernel:
    """``for v<n: X`` -> ``for v_a<at: X; for v_b<n-at: X[v := at + v_b]``.

    What an index is on one side only (where a roll, a reflection or an edge has its seam) becomes plain there. Loops
    inside the second copy get the suffix ``_b``. The order of iterations stays, so it is always legal. Fails: not
    ``0 < at < n``, with a number ``n``.
    """
    target = find_loop(kernel, loop, "cut")
    n, sym = target.loop.extent, target.loop.sym
    if not is_known(n) or not 0 < at < n:
        raise ScheduleError("cut", loop, f"{at} is no place inside of {n} iterations")
    first_loop = new_loop(fresh(kernel, f"{loop}_a"), at, target.loop.kind)
    first = For(first_loop, substitute_body(target.body, {sym: first_loop.sym}))
    last_loop = new_loop(fresh(kernel, f"{loop}_b"), n - at, target.loop.kind)
    last = For(last_loop, renamed(kernel, substitute_body(target.body, {sym: at + last_loop.sym}), "b"))
    return replace_stmt(kernel, target, first, last)


def renamed(kernel: Kernel, body: Body, suffix: str) -> Body:
    """A copy of ``body`` whose loops have fresh names."""
    dims: dict[Sym, Dim] = {}
    taken: set[str] = set()
    for x in loops_of(body):
        name, k = fresh(kernel, f"{x.sym.name}_{suffix}"), 0
        while name in taken:
            k += 1
            name = fresh(kernel, f"{x.sym.name}_{suffix}{k}")
        taken.add(name)
        dims[x.sym] = Sym(name, x.sym.lo, x.sym.hi)
    return _rename(substitute_body(body, dims), dims)


def _rename(body: Body, dims: dict[Sym, Dim]) -> Body:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            sym = dims[s.loop.sym]
            assert isinstance(sym, Sym)
            out.append(For(Loop(sym, s.loop.extent, s.loop.kind), _rename(s.body, dims)))
        elif isinstance(s, If):
            out.append(If(s.cond, _rename(s.body, dims)))
        else:
            out.append(s)
    return tuple(out)
