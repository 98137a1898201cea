"""The rule for nests whose order counts: of the orders that their dependences leave, the one with the least price.

In: a builder, the name of a nest's outermost loop. Out: one step, ``resequence``; ``ScheduleError`` where the nest is
not affine, or nothing is cheaper. Not its business: what may be exchanged (``tile.polyhedral``), nests of stages, which
have rules of their own.

Loops are tried apart and fused; of each group of loops that may be exchanged all orders, and of those that a price
can't tell from the cheapest tiles of ever more iterations, up to those that no tile divides. A shape of tiles whose
middle size costs clearly more than the cheapest has no other size tried. One group after the other: that a group's best
order hangs on another's is rare, and there are too many of both together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import factorial, prod

from tilewright.choose.cost.features import features_of
from tilewright.choose.cost.nest import CallSizes, Loops
from tilewright.choose.cost.operations import n_waiting
from tilewright.choose.cost.price import price, waited
from tilewright.core.compute import Buffer, Computation, Serial, every_stage
from tilewright.core.dims import is_known, known
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import ASSUMED_SIZE, DOUBT
from tilewright.core.expr import BinaryExpr, Dim, Sym, bounds, substitute, symbols, terms_of
from tilewright.core.indices import chosen
from tilewright.target.target import Target
from tilewright.tile.affine import coefficient, first_offset
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kernel, Kind, Loop, Store, Update, walk, written
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import Body, loads_of
from tilewright.tile.schedule import ScheduleBuilder

try:
    from tilewright.tile.polyhedral.alone import alone
    from tilewright.tile.polyhedral.bands import Band, Bands, bands_of, nest_alone
    from tilewright.tile.polyhedral.orders import BandForm, forms_text, keeps, times_of, waits
    from tilewright.tile.polyhedral.resequence import FUSION, resequenced
except ImportError:  # the extra poly is not installed: such nests run as they were written
    IS_INSTALLED = False
else:
    IS_INSTALLED = True


def nests_in_order(computation: Computation) -> list[str]:
    """The outermost loops, of the plain loops of a computation, of nests that no rule for stages schedules as a whole.

    Those of one stage are in order only along the outer loops, and sums have rules that keep them in registers.
    """
    found: list[str] = []
    if computation.is_ordered:
        return found
    for k, item in enumerate(computation.items):
        if isinstance(item, Serial) and _is_in_order(item):
            nest = lower(computation).body[len(lower(replace(computation, items=computation.items[:k])).body)]
            assert isinstance(nest, For)
            found.append(nest.loop.sym.name)
    return found


def _is_in_order(item: Serial) -> bool:
    stages = list(every_stage((item,)))
    if any(s.reduction is not None or chosen(s.index) for s in stages):
        return False
    return len(stages) > 1 or not stages[0].axes


def ordered(b: ScheduleBuilder, machine: Target, loop: str) -> None:
    """``for t: for i: for j: ..`` -> the cheapest order of its iterations that computes the same."""
    if not IS_INSTALLED:
        raise ScheduleError("ordered", loop, "what may be exchanged is found by islpy, which is not installed")
    nest = next(s for s in b.kernel.body if isinstance(s, For) and s.loop.sym.name == loop)
    search = _OrderSearch(nest_alone(b.kernel, nest), loop, machine)
    alone(search.all)()
    if search.best is None:
        raise ScheduleError("ordered", loop, "no order of it can be told")
    b.do("resequence", *search.best)


@dataclass
class _OrderSearch:
    """The cheapest arguments of the step so far, and their price."""

    alone: Kernel
    loop: str
    machine: Target
    best: tuple[str | int, ...] | None = None
    seconds: float = float("inf")
    seen: set[object] = field(default_factory=set)
    priced: dict[tuple[object, ...], float] = field(default_factory=dict)
    n_tried: Counter[tuple[object, ...]] = field(default_factory=Counter)
    n_made: int = 0
    """Statements of all that was priced: sets of them are made for each, which is most of a compile's time."""

    def all(self) -> None:
        """Try both ways to fuse."""
        for fusion in FUSION:
            self.fusion(fusion)

    def fusion(self, fusion: str) -> None:
        """Try the orders of all bands, one band after the other, then tiles of the cheapest and of those like it."""
        try:
            bands = bands_of(self.alone, is_fused=fusion == FUSION[0])
        except ScheduleError:
            return
        key = [(x.number, [sorted((k, str(m)) for k, m in lines.items()) for lines in x.loops]) for x in bands.bands]
        if (text := repr((key, bands.paths.keys()))) in self.seen:
            return
        self.seen.add(text)
        forms = [BandForm.as_found(x) for x in bands.bands]
        parts = [bands.around(x) for x in bands.bands]

        def seconds(at: int, form: BandForm) -> float:
            """Of the band's statements alone: what others take is the same by any form of it."""
            return self.price(fusion, parts[at], [*forms[:at], form, *forms[at + 1 :]])

        least, alike = dict[int, float](), list[tuple[int, BandForm]]()
        for at, band in enumerate(bands.bands):
            found = {form: seconds(at, form) for form in _orders(band)}
            forms[at] = min(found, key=lambda x: found[x])
            if waits(bands, forms, band):
                found |= {form: seconds(at, form) for form in _waves(band)}
                forms[at] = min(found, key=lambda x: found[x])
            least[at] = found[forms[at]]
            alike += [(at, x) for x in found if x is not forms[at] and found[x] * (1 - DOUBT) < least[at]]
        # Orders that a price can't tell apart may differ once they are tiled; the cheapest ones come first.
        for at, form in [*enumerate(forms), *alike]:
            for tilings in _tilings(form, self.longest):
                middle = tilings[(len(tilings) - 1) // 2]
                asked = [middle] if seconds(at, middle) * (1 - DOUBT) > least[at] else tilings
                for tiled in asked:
                    if (made := seconds(at, tiled)) < least[at]:
                        forms[at], least[at] = tiled, made
        whole = self.price(fusion, bands, forms, is_last=True)
        if whole < self.seconds and keeps(bands, forms):
            args = (self.loop, fusion, forms_text(forms), self.lanes, self.machine.partial_sums)
            self.best, self.seconds = args, whole

    def price(self, fusion: str, bands: Bands, forms: Sequence[BandForm], *, is_last: bool = False) -> float:
        """Of the bands' statements by these forms; infinite where they are refused, or enough were tried."""
        numbers = sorted({x.number for path in bands.paths.values() for x in path if isinstance(x, Band)})
        key = (fusion, *sorted(bands.paths), forms_text([forms[n] for n in numbers]))
        part, n = key[:-1], len(bands.paths)
        is_enough = self.n_tried[part] >= EFFORT.listed or self.n_made + n > EFFORT.nodes // 2
        if key not in self.priced and (is_last or not is_enough):
            self.n_tried[part] += 1
            self.n_made += n
            self.priced[key] = self.price_anew(bands, forms)
        return self.priced.get(key, float("inf"))

    def price_anew(self, bands: Bands, forms: Sequence[BandForm]) -> float:
        """:meth:`price` of what was not priced yet, unproved."""
        try:
            order = times_of(bands, forms)
            kernel = resequenced(self.alone, self.alone.body[0], bands, order, self.lanes, self.machine.partial_sums)
        except ScheduleError:
            return float("inf")
        # A condition that hangs together with extents counts too few iterations: there are as many as before.
        sizes = assumed(self.alone)
        counted = n_runs(kernel.body, sizes)
        if not counted:
            return float("inf")
        own = _only(self.alone.body, {id(bands.instances[k].statement) for k in bands.paths})
        return seconds_alone(kernel, self.machine) * max(n_runs(own, sizes) / counted, 1.0)

    @property
    def lanes(self) -> int:
        """As many as a vector has of the widest elements that the nest stores."""
        widest = max(x.dtype.n_bytes for s in walk(self.alone.body) for x in written(s))
        return max(self.machine.vector_bytes // widest, 1)

    @property
    def longest(self) -> int:
        """Iterations of the longest loop."""
        extents = (x.extent for s in self.alone.body if isinstance(s, For) for x in s.loops)
        return max(x if is_known(x) else ASSUMED_SIZE for x in extents)


def _only(body: Body, statements: Container[int]) -> Body:
    """What of a body is round these statements, by identity."""
    return tuple(
        replace(s, body=_only(s.body, statements)) if isinstance(s, For | If) else s
        for s in body
        if isinstance(s, For | If) or id(s) in statements
    )


def seconds_alone(kernel: Kernel, machine: Target) -> float:
    """The price of a call on one thread, with sizes that only a call knows as they are assumed.

    What the price leaves out counts here, since few other kernels have it: bounds that are computed anew whenever a
    loop begins, ends that no processor foresees because they come after another number of iterations each time,
    iterations that wait for what the one before has stored, and those that each touch pages of their own.
    """
    sizes = assumed(kernel)
    features = features_of(kernel, machine, sizes)
    bodies = {s.loop.sym: s.body for s in walk(kernel.body) if isinstance(s, For)}
    cycles = 0.0
    for row in features.rows:
        if row.loop is not None:
            stores = [s for s in bodies[row.loop.sym] if isinstance(s, Store)]
            waiting = (waiting_cycles(s, row.loop, machine) for s in stores)
            cycles += row.iterations * max(waiting, default=0.0) * waited(row, machine)
            n_pages = new_pages(bodies[row.loop.sym], row.loop, machine, sizes)
            if n_pages * row.iterations > row.entries * machine.n_near_pages:
                cycles += row.iterations * n_pages * machine.page_cycles
            if symbols(row.loop.extent) - set(sizes):
                cycles += row.entries * (machine.unforeseen_cycles + n_computed(row.loop.extent))
    return price(features, machine).seconds + cycles / (machine.ghz * 1e9)


def waiting_cycles(s: Store, loop: Loop, machine: Target) -> float:
    """From the load of what the loop's last iteration has stored to the end of this one's store; 0 without one."""
    if chosen(s.index):
        return 0.0
    stored = first_offset(s.buffer, s.index)
    before = substitute(stored, {loop.sym: loop.sym - 1})
    again = [x for x in loads_of(s) if x.buffer is s.buffer and not chosen(x.index)]
    found = [x for x in again if first_offset(x.buffer, x.index) == before != stored]
    # What is stored and loaded at once goes through the core as an instruction does.
    return max((1 + n_waiting(s.value, x, machine) for x in found), default=0.0) * machine.fma_latency


def new_pages(body: Body, loop: Loop, machine: Target, sizes: Mapping[Sym, int]) -> float:
    """Pages that an iteration of the loop touches and the one before does not, by copies and lanes in its body too."""
    found: dict[Buffer, float] = {}
    for s, copied in _copies(body):
        places = [(x.buffer, x.index) for x in loads_of(s)] + [(s.buffer, s.index)]
        for b, index in places:
            offset = first_offset(b, index)
            walked = {x: _pages_walked(b, offset, x, machine, sizes) for x in (loop, *copied)}
            n = min(walked[loop], 1.0)
            n *= prod(_most(x) * min(max(walked[x], 1 / _most(x)), 1.0) for x in copied)
            found[b] = max(found.get(b, 0.0), n)
    return sum(found.values())


def _pages_walked(b: Buffer, offset: Dim, loop: Loop, machine: Target, sizes: Mapping[Sym, int]) -> float:
    """How many pages an iteration of the loop moves a place of the buffer on."""
    step = coefficient(offset, loop.sym)
    elements = known(None if step is None else substitute(step, sizes), 0)
    return abs(elements) * b.dtype.n_bytes / machine.page_bytes


def _copies(body: Body, loops: tuple[Loop, ...] = ()) -> Iterator[tuple[Store | Update, tuple[Loop, ...]]]:
    """What a body stores itself and in copies and lanes, with the loops of those."""
    for s in body:
        if isinstance(s, Store | Update):
            yield s, loops
        elif isinstance(s, For) and s.loop.kind in (Kind.UNROLL, Kind.VECTOR):
            yield from _copies(s.body, (*loops, s.loop))


def _most(x: Loop) -> int:
    """Iterations of a loop of copies or lanes."""
    return max(bounds(x.extent)[1] or 1, 1)


def assumed(kernel: Kernel) -> Mapping[Sym, int]:
    """A number for each size that only a call knows."""
    return {s: min(max(ASSUMED_SIZE, s.lo or 0), s.hi or ASSUMED_SIZE) for s in kernel.sizes}


def n_runs(body: Body, sizes: Mapping[Sym, int]) -> float:
    """How often statements run in a call, as the price takes it: averages of loops and of conditions, multiplied."""
    known = CallSizes(sizes)

    def of(body: Body, loops: Loops) -> float:
        total = 0.0
        for s in body:
            if isinstance(s, For):
                n = known.average(s.loop.extent, loops)
                total += n * of(s.body, {**loops, s.loop.sym: s.loop.extent})
            else:
                total += known.share(s.cond, loops) * of(s.body, loops) if isinstance(s, If) else 1.0
        return total

    return of(body, {})


def n_computed(e: Dim) -> int:
    """Quotients, remainders, minima, maxima and sums in an expression."""
    if isinstance(e, BinaryExpr):
        return 1 + n_computed(e.a) + n_computed(e.b)
    if is_known(e) or isinstance(e, Sym):
        return 0
    return len(terms_of(e)) + sum(n_computed(a) for a, _ in terms_of(e) if isinstance(a, BinaryExpr))


def _orders(band: Band) -> Iterator[BandForm]:
    """All orders of the band's loops, the one that was found first; of many loops that one alone."""
    found = BandForm.as_found(band)
    for order in permutations(found.order) if factorial(len(found.order)) <= EFFORT.attempts else [found.order]:
        yield replace(found, order=order)


def _waves(band: Band) -> Iterator[BandForm]:
    """Orders of several loops with the innermost one added to the one around it."""
    for form in _orders(band) if len(band.loops) > 1 else ():
        around, inside = form.order[-2:]
        yield replace(form, waves=((around, inside),))


def _tilings(form: BandForm, longest: int) -> Iterator[tuple[BandForm, ...]]:
    """Tiles of all loops alike, or of all but the innermost, which then stays long: of 8 iterations, 32, ...

    Or of the innermost alone: strips, along which the other loops go to the end, and which a near cache holds. Each of
    these shapes comes with all of its sizes, ascending.
    """
    n = len(form.order)
    sizes = [8 * 4**k for k in range(3) if 8 * 4**k <= min(longest // 2, EFFORT.listed * 2)]
    shapes: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda size: (*(0,) * (n - 1), size),
        lambda size: (size,) * n,
        lambda size: (*(size,) * (n - 1), 0),
        lambda size: (*(size,) * (n - 1), 8 * size),
    )
    for shape in shapes if n > 1 and sizes else ():
        yield tuple(replace(form, tiles=shape(size)) for size in sizes)
