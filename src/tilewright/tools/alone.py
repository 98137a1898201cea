"""A kernel measured alone: a candidate costs the compile of one kernel, where a whole model costs that of all.

In: tile IR as text, the constants that the kernel reads, how many bytes the rest of its model touches between two of
its calls. Out: the ticks of each call of two codes in turn; or what is wrong with the results of one.
Not its business: which candidates there are (``tools.search_space``), the process (``tools.measure``).

A kernel finds in a model what others left in the caches: its weights were read a whole call ago, its operands were
written just now. So before each call as many bytes are read as the rest of the model touches, which drives weights out
as far as the model does, and then the operands. Operands are random numbers, constants are the model's own, because
numbers of a quantised model decide by how much is shifted.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.codegen.cpu.llvm import compile_text, emit
from tilewright.codegen.cpu.scratch import start_of
from tilewright.core.compute import Buffer
from tilewright.core.diag import OptionError
from tilewright.core.dims import is_known
from tilewright.core.indices import chosen
from tilewright.core.types import Array, dtype_of, product
from tilewright.runtime.cpu.linker import LinkedLibrary, link
from tilewright.target.target import Target
from tilewright.tile.ir import Fold, Kernel, Role, Space, Store, Update, walk
from tilewright.tile.pack import packed_array
from tilewright.tile.rewrite import loads_of
from tilewright.tile.text import parse_kernel
from tilewright.tools.debug.tolerance import EPSILON, Difference, judge, nudged

FEWEST_CALLS = 5
CODES_KEPT = 2
"""The best so far and the one that is tried."""
ROUNDINGS = 16.0
"""How many roundings a result may be away, as ``tools.debug.tolerance`` has it for sums in f32."""
MOST_CALLS = 60
"""Of each code in one measurement: more would tell apart what a search does not care about."""
HOPELESS = 1.05
"""A code that takes so many times as long as the best one after the fewest calls gets no more of them."""
_DRIVER = """
target triple = "{triple}"
declare i64 @llvm.readcyclecounter()
define i64 @tw_timed(ptr %f, ptr %args, ptr %areas, i64 %n, i32 %threads, ptr %scratch) {{
entry:
  br label %areas.next
areas.next:
  %k = phi i64 [ 0, %entry ], [ %k1, %area.done ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %area, label %call
area:
  %at = getelementptr {{ ptr, i64 }}, ptr %areas, i64 %k
  %first = load ptr, ptr %at
  %end.at = getelementptr {{ ptr, i64 }}, ptr %areas, i64 %k, i32 1
  %end = load i64, ptr %end.at
  br label %lines
lines:
  %o = phi i64 [ 0, %area ], [ %o1, %lines ]
  %p = getelementptr i8, ptr %first, i64 %o
  %x = load volatile i8, ptr %p
  %o1 = add i64 %o, {line}
  %is.inside = icmp slt i64 %o1, %end
  br i1 %is.inside, label %lines, label %area.done
area.done:
  %k1 = add i64 %k, 1
  br label %areas.next
call:
{loads}
  %t0 = call i64 @llvm.readcyclecounter()
  call void %f({arguments}i32 %threads, ptr %scratch)
  %t1 = call i64 @llvm.readcyclecounter()
  %ticks = sub i64 %t1, %t0
  ret i64 %ticks
}}
"""


def can_stand_alone(kernel: Kernel) -> bool:
    """Are its sizes numbers, and do no places that it touches follow from data, which random numbers would mislead?"""
    accesses = [s.index for s in walk(kernel.body) if isinstance(s, Store | Update | Fold)]
    accesses += [x.index for s in walk(kernel.body) for x in loads_of(s)]
    are_numbers = all(is_known(d) for b in kernel.params for d in b.shape)
    return not kernel.sizes and are_numbers and not any(map(chosen, accesses))


def bytes_of(kernel: Kernel) -> int:
    """What a call of the kernel touches at most; parameters without a known size count nothing."""
    sizes = [product(b.shape) * b.dtype.n_bytes for b in kernel.params]
    return sum(int(n) for n in sizes if is_known(n))


@dataclass
class LoneKernel:
    """A kernel of a model: what it is given, what it should give, and its latest codes by their texts.

    ``other_bytes`` is what the rest of the model touches between two calls, ``unit`` the coarsest rounding on the way.
    """

    target: Target
    threads: int
    constants: Mapping[str, Array]
    other_bytes: int
    first: str
    unit: float = 0.0
    codes: dict[str, _LoneCode] = field(default_factory=dict)
    given: dict[str, Array] = field(default_factory=dict)
    want: list[Array] = field(default_factory=list)
    nearby: list[list[Array]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """``OptionError`` for a kernel that gives other results at each call."""
        self.others = np.ones(min(self.other_bytes, self.target.llc_bytes) + 1, np.uint8)
        code = self.code(self.first)
        self.want = code.results()
        rng = np.random.default_rng(0)
        moved = {name: nudged(a, rng) for name, a in self.given.items()}
        self.nearby = [_LoneCode.made(parse_kernel(self.first), self, dict(moved)).results()]
        if any(x.is_bad for x in self._judged(code.results())):
            raise OptionError("the kernel gives other results at each call", remedy="measure it within its model")

    def code(self, text: str) -> _LoneCode:
        """The code of a kernel's text, compiled unless it is among the latest."""
        found = self.codes.pop(text, None) or _LoneCode.made(parse_kernel(text), self, self.given)
        self.codes[text] = found  # the latest stand last
        while len(self.codes) > CODES_KEPT:
            del self.codes[next(iter(self.codes))]
        return found

    def _judged(self, results: Sequence[Array]) -> list[Difference]:
        others = range(len(self.want))
        return [
            judge(self.want[k], results[k], [o[k] for o in self.nearby], epsilon=self._unit(k), roundings=ROUNDINGS)
            for k in others
        ]

    def _unit(self, k: int) -> float:
        return max(self.unit, EPSILON.get(dtype_of(self.want[k].dtype), 0.0))

    def measured(self, texts: Sequence[str], seconds: float) -> list[list[int]] | str:
        """The ticks of each call of the codes in turn; or what is wrong with the results of one.

        They are called for so many seconds, or as long as their compiling took where that is more, because to spend
        less than that on the measurement would save nothing; and not much longer than is needed to tell them apart.
        """
        start = time.perf_counter()
        codes = []
        for text in texts:
            is_new = text not in self.codes
            codes.append(code := self.code(text))
            if is_new and (bad := [x for x in self._judged(code.results()) if x.is_bad]):
                return str(bad[0])
        ticks: list[list[int]] = [[] for _ in codes]
        stop = time.perf_counter() + max(seconds, time.perf_counter() - start)
        while len(ticks[0]) < FEWEST_CALLS or (
            len(ticks[0]) < MOST_CALLS and time.perf_counter() < stop and not _is_hopeless(ticks)
        ):
            for k, code in enumerate(codes):
                ticks[k].append(code.timed())
        return ticks


def _is_hopeless(ticks: Sequence[Sequence[int]]) -> bool:
    """Is the first code clearly slower than the last one?"""
    return min(ticks[0]) > HOPELESS * min(ticks[-1])


@dataclass(frozen=True)
class _LoneCode:
    """Machine code of a kernel with its operands: ``timed`` calls it once, and ``results`` are what it writes."""

    libraries: tuple[LinkedLibrary, ...]
    arrays: tuple[Array, ...]
    outputs: tuple[Array, ...]
    timed: Callable[[], int]

    @staticmethod
    def made(kernel: Kernel, of: LoneKernel, given: dict[str, Array]) -> _LoneCode:
        """Compiled and linked; what inputs hold is taken from ``given``, which gets what it lacks."""
        emitted = emit(kernel, of.target)
        library = link([compile_text(emitted.text, of.target)], [kernel.name])
        places = [p for p in kernel.places if p.space is Space.GLOBAL]
        driver = link([compile_text(_driver(len(places), of.target), of.target)], ["tw_timed"])
        packed, rng = {p.param: p for p in kernel.packed}, np.random.default_rng(len(given))
        arrays, outputs, areas = list[Array](), list[Array](), [of.others]
        for place in places:
            b = place.buffer
            if place.role in (Role.OUT, Role.TMP):
                arrays.append(_aligned(np.zeros(_shape(b), b.dtype.numpy)))
                outputs += arrays[-1:] if place.role is Role.OUT else []
                continue
            source = packed[b].source if b in packed else b
            if source.name not in given:
                known = of.constants.get(source.name)
                # NumPy's files know the types of ml_dtypes as bytes without a meaning
                numbers = _numbers(rng, source) if known is None else known.view(source.dtype.numpy)
                given[source.name] = _aligned(numbers)
            array = given[source.name]
            arrays.append(_aligned(packed_array(packed[b], array)) if b in packed else array)
            areas += [] if source.name in of.constants else arrays[-1:]
        pointers = np.array([a.ctypes.data for a in arrays], np.uint64)
        table = np.array([(a.ctypes.data, a.nbytes) for a in areas if a.nbytes], np.uint64)
        scratch = _aligned(np.zeros(max(emitted.scratch.n_bytes(of.threads), 1), np.uint8))
        at = scratch.ctypes.data + start_of(emitted.scratch, of.threads)
        words = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p)
        call: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *words)(driver.addresses["tw_timed"])
        f, args, swept = library.addresses[kernel.name], pointers.ctypes.data, table.ctypes.data

        def timed() -> int:
            return int(call(f, args, swept, len(table), of.threads, at))

        return _LoneCode((library, driver), (*arrays, pointers, table, scratch), tuple(outputs), timed)

    def results(self) -> list[Array]:
        """What a call writes."""
        for a in self.outputs:
            a[...] = 0
        self.timed()
        return [a.copy() for a in self.outputs]


def _driver(n: int, target: Target) -> str:
    loads = [f"  %a{k}.at = getelementptr ptr, ptr %args, i64 {k}\n  %a{k} = load ptr, ptr %a{k}.at" for k in range(n)]
    arguments = "".join(f"ptr %a{k}, " for k in range(n))
    return _DRIVER.format(triple=target.triple, line=target.line_bytes, loads="\n".join(loads), arguments=arguments)


def _shape(b: Buffer) -> tuple[int, ...]:
    return tuple(int(d) for d in b.shape if is_known(d))


def _numbers(rng: np.random.Generator, b: Buffer) -> Array:
    """Random elements: floats around 0, integers as bytes have them."""
    if b.dtype.is_float:
        return rng.standard_normal(_shape(b), np.float32).astype(b.dtype.numpy)
    if not b.dtype.is_integer:
        return rng.integers(0, 2, _shape(b)).astype(b.dtype.numpy)
    low, high = max(int(b.dtype.min), -128), min(int(b.dtype.max), 127)
    return rng.integers(low, high + 1, _shape(b)).astype(b.dtype.numpy)


def _aligned(array: Array) -> Array:
    """A copy that starts at a cache line, as a model's arrays do."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy: Array = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
