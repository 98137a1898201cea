"""Routines of libraries that the process has anyway, LAPACK's and BLAS's first, as functions that compiled code calls.

In: names of routines, as entry functions spell them. Out: addresses of ``i32 name(ptr arrays, ptr sizes)``, which does
what an op's own kernel does and returns 0, or returns 1 where the library is missing or gives up: then the caller runs
the kernel. ``arrays`` are the op's operands and results, row by row, ``sizes`` the number of matrices and their sizes.
Not its business: which ops have a routine (``ops``), the call (``codegen.cpu.program``).

The library is PyTorch's where PyTorch is loaded (results are then eager's, signs of vectors included), else SciPy's
where it is installed; ``TILEWRIGHT_LAPACK=off`` wants none. It uses threads as it was told to, not as the model was.
LAPACK's matrices lie column by column: each is turned into memory of our own and back.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from tilewright.runtime.cpu.transforms import TRANSFORMS, Code, code_for
from tilewright.runtime.env import read_environment
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.once import MAKING, once
from tilewright.runtime.plain import dataclass

PREFIX = "tw_"
LETTERS = {"f32": "s", "f64": "d"}
"""The first letter of a routine's name, by dtype."""
ELEMENTS = {"f32": ("float", 4), "f64": ("double", 8)}
"""LLVM's type and its bytes, by dtype."""
INT_MAX = (1 << 31) - 1
"""The most that Fortran's integers hold."""
ROUNDED_UP = "0x3FF0000020000000"
"""1 and the least that f32 can add to it, in LLVM's spelling."""


@dataclass(frozen=True)
class Letter:
    """An option."""

    value: str


@dataclass(frozen=True)
class Size:
    """One of the sizes, by name."""

    name: str


@dataclass(frozen=True)
class One:
    """The number 1 in the matrices' dtype."""


@dataclass(frozen=True)
class Matrix:
    """A matrix, column by column: turned from array ``take``, and back into array ``give``."""

    rows: str
    columns: str
    take: int | None = None
    give: int | None = None


@dataclass(frozen=True)
class InPlace:
    """Array ``give`` as it lies, after a copy of array ``take``, of its lower triangle and zeros where ``is_lower``."""

    rows: str
    columns: str
    take: int
    give: int | None = None
    is_lower: bool = False


@dataclass(frozen=True)
class Vector:
    """An array's row of ``length`` for each matrix; integers have 32 bits."""

    array: int
    length: str
    is_integer: bool = False


@dataclass(frozen=True)
class Work:
    """Memory to work in, with its size: as much as the routine asks for; or ``times`` as many as ``rows``, without."""

    is_integer: bool = False
    times: int = 0
    rows: str = ""


@dataclass(frozen=True)
class Info:
    """What went wrong: written to array ``give``, or where there is none a reason to give up."""

    give: int | None = None


Argument: TypeAlias = Letter | Size | One | Matrix | InPlace | Vector | Work | Info


@dataclass(frozen=True)
class Routine:
    """A Fortran routine without its first letter, the names of the op's sizes, and its arguments."""

    of: Literal["lapack", "blas"]
    name: str
    sizes: tuple[str, ...]
    arguments: tuple[Argument, ...]


def _eigh(vectors: bool) -> Routine:
    n = Size("n")
    matrix = Matrix("n", "n", take=0, give=2 if vectors else None)
    return Routine("lapack", "syevd", ("n",), (
        Letter("V" if vectors else "N"), Letter("L"), n, matrix, n, Vector(1, "n"), Work(), Work(is_integer=True),
        Info(),
    ))  # fmt: skip


def _svd(job: str) -> Routine:
    """``m`` by ``n``, with ``k`` singular values, ``p`` columns of ``u`` and ``q`` rows of ``v`` transposed."""
    vectors = job != "N"
    u, v = (Matrix("m", "p", give=1), Matrix("q", "n", give=3)) if vectors else (Work(times=1), Work(times=1))
    return Routine("lapack", "gesdd", ("m", "n", "k", "p", "q"), (
        Letter(job), Size("m"), Size("n"), Matrix("m", "n", take=0), Size("m"), Vector(2 if vectors else 1, "k"),
        u, Size("m"), v, Size("q"), Work(), Work(is_integer=True, times=8, rows="k"), Info(),
    ))  # fmt: skip


def _reflect(transposed: bool) -> Routine:
    """The product of ``k`` reflections, whose vectors are ``m`` by ``n``, times ``m`` by ``r``."""
    return Routine("lapack", "ormqr", ("m", "n", "k", "r"), (
        Letter("L"), Letter("T" if transposed else "N"), Size("m"), Size("r"), Size("k"), Matrix("m", "n", take=0),
        Size("m"), Vector(1, "k"), Matrix("m", "r", take=2, give=3), Size("m"), Work(), Info(),
    ))  # fmt: skip


def _solve(upper: bool, unit: bool) -> Routine:
    """``x`` by rows is ``x`` transposed by columns, so the matrix stands on the right, the other triangle full."""
    return Routine("blas", "trsm", ("n", "m", "r"), (
        Letter("R"), Letter("L" if upper else "U"), Letter("N"), Letter("U" if unit else "N"), Size("r"), Size("n"),
        One(), InPlace("n", "n", take=0), Size("n"), InPlace("n", "r", take=1, give=2), Size("r"),
    ))  # fmt: skip


ROUTINES: Mapping[str, Routine] = {
    "eigh": _eigh(True),
    "eigvalsh": _eigh(False),
    "svd": _svd("S"),
    "svd_full": _svd("A"),
    "svdvals": _svd("N"),
    "cholesky": Routine("lapack", "potrf", ("n",), (
        Letter("U"), Size("n"), InPlace("n", "n", take=0, give=1, is_lower=True), Size("n"), Info(give=2))),
    "lu": Routine("lapack", "getrf", ("m", "n", "k"), (
        Size("m"), Size("n"), Matrix("m", "n", take=0, give=1), Size("m"), Vector(2, "k", is_integer=True),
        Info(give=3))),
    "geqrf": Routine("lapack", "geqrf", ("m", "n", "k"), (
        Size("m"), Size("n"), Matrix("m", "n", take=0, give=1), Size("m"), Vector(2, "k"), Work(), Info())),
    "orthogonal": Routine("lapack", "orgqr", ("m", "n"), (
        Size("m"), Size("n"), Size("n"), Matrix("m", "n", take=0, give=2), Size("m"), Vector(1, "n"), Work(), Info())),
    "reflect": _reflect(False),
    "reflect_transposed": _reflect(True),
    **{f"solve_{'upper' if upper else 'lower'}{'_unit' if unit else ''}": _solve(upper, unit)
       for upper in (False, True) for unit in (False, True)},
}  # fmt: skip
"""By the name that ops use; a dtype is added to it."""

# --- finding the library --------------------------------------------------------------------------------------------


def _of_torch() -> Any:
    """PyTorch's library where PyTorch is loaded; what it is linked with is found through it too."""
    torch = sys.modules.get("torch")
    folder = os.path.dirname(getattr(torch, "__file__", None) or "")
    if torch is None or not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        return ctypes.CDLL(os.path.join(folder, "lib", "libtorch_cpu.so"), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def _of_scipy(kind: str) -> Mapping[str, Any]:
    """SciPy's functions for Cython (``void f(char *, int *, ...)``), which are its public way to LAPACK from C."""
    try:
        with MAKING:
            module = importlib.import_module(f"scipy.linalg.cython_{kind}")
    except ImportError:
        return {}
    found: Mapping[str, Any] = getattr(module, "__pyx_capi__", {})
    return found


def _find(kind: str, name: str) -> int:
    """A routine's address, or 0."""
    library = _of_torch()
    if library is not None and hasattr(library, f"{name}_"):
        return ctypes.cast(library[f"{name}_"], ctypes.c_void_p).value or 0
    capsule = _of_scipy(kind).get(name)
    if capsule is None:
        return 0
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature: bytes = get_name(capsule)
    return int(get_pointer(capsule, signature)) if b", int *" in signature else 0


# --- addresses for code that is being linked ------------------------------------------------------------------------

LinkText: TypeAlias = Callable[[str, str, Sequence[str], Mapping[str, int]], Any]


def addresses(symbols: Iterable[str], link_text: LinkText) -> dict[str, int]:
    """Each symbol's address; a function is made when it is asked for first, and stays.

    ``link_text`` is ``linker.link_text``. ``ArtifactError`` for a symbol that this release does not know.
    """
    is_wanted = read_environment().lapack
    return {symbol: _made(symbol, link_text, is_wanted) for symbol in symbols}


@once
def _made(symbol: str, link_text: LinkText, is_wanted: bool) -> int:
    name, _, dtype = symbol.removeprefix(PREFIX).rpartition("_")
    if dtype not in LETTERS or not (name in ROUTINES or name in TRANSFORMS):
        raise ArtifactError(f"the code calls {symbol}, which is unknown", remedy="compile the model with this release")
    if name in TRANSFORMS:
        made = code_for(symbol, name, dtype, _of_torch() if is_wanted else None)
    else:
        routine = ROUTINES[name]
        fortran = LETTERS[dtype] + routine.name
        found = _find(routine.of, fortran) if is_wanted else 0
        made = Code(routine_ir(symbol, routine, dtype, f"{fortran}_"), {f"{fortran}_": found}) if found else None
    made = made or Code(_none_ir(symbol), {})
    library = link_text("routine", made.text, (symbol,), made.imports)
    library.keep_forever()
    return int(library.addresses[symbol])


# --- code -----------------------------------------------------------------------------------------------------------

_TURN = """
; target[c, r] = source[r, c], in blocks whose lines stay in the first-level cache
define internal void @turn(ptr %source, ptr %target, i64 %rows, i64 %columns) nounwind {
entry:
  br label %r.outer
r.outer:
  %r0 = phi i64 [ 0, %entry ], [ %r1, %r.next ]
  %r1.far = add i64 %r0, 16
  %r1 = call i64 @llvm.smin.i64(i64 %r1.far, i64 %rows)
  br label %c.outer
c.outer:
  %c0 = phi i64 [ 0, %r.outer ], [ %c1, %c.next ]
  %c1.far = add i64 %c0, 16
  %c1 = call i64 @llvm.smin.i64(i64 %c1.far, i64 %columns)
  br label %c.inner
c.inner:
  %c = phi i64 [ %c0, %c.outer ], [ %c.after, %r.end ]
  %line.at = mul i64 %c, %rows
  %line = getelementptr TYPE, ptr %target, i64 %line.at
  %column = getelementptr TYPE, ptr %source, i64 %c
  br label %r.inner
r.inner:
  %r = phi i64 [ %r0, %c.inner ], [ %r.after, %r.inner ]
  %from.at = mul i64 %r, %columns
  %from = getelementptr TYPE, ptr %column, i64 %from.at
  %value = load TYPE, ptr %from
  %to = getelementptr TYPE, ptr %line, i64 %r
  store TYPE %value, ptr %to
  %r.after = add i64 %r, 1
  %r.more = icmp slt i64 %r.after, %r1
  br i1 %r.more, label %r.inner, label %r.end
r.end:
  %c.after = add i64 %c, 1
  %c.more = icmp slt i64 %c.after, %c1
  br i1 %c.more, label %c.inner, label %c.next
c.next:
  %c.left = icmp slt i64 %c1, %columns
  br i1 %c.left, label %c.outer, label %r.next
r.next:
  %r.left = icmp slt i64 %r1, %rows
  br i1 %r.left, label %r.outer, label %out
out:
  ret void
}
"""
_LOWER = """
; the lower triangle of a square matrix, and zeros
define internal void @lower(ptr %source, ptr %target, i64 %n) nounwind {
entry:
  %row.bytes = mul i64 %n, BYTES
  br label %row
row:
  %r = phi i64 [ 0, %entry ], [ %r.after, %row ]
  %at = mul i64 %r, %row.bytes
  %from = getelementptr i8, ptr %source, i64 %at
  %to = getelementptr i8, ptr %target, i64 %at
  %r.after = add i64 %r, 1
  %kept = mul i64 %r.after, BYTES
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %kept, i1 false)
  %rest = getelementptr i8, ptr %to, i64 %kept
  %n.rest = sub i64 %row.bytes, %kept
  call void @llvm.memset.p0.i64(ptr %rest, i8 0, i64 %n.rest, i1 false)
  %more = icmp slt i64 %r.after, %n
  br i1 %more, label %row, label %out
out:
  ret void
}
"""
_HEAD = """declare ptr @malloc(i64)
declare void @free(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
"""


def _none_ir(symbol: str) -> str:
    return f"define i32 @{symbol}(ptr %arrays, ptr %sizes) nounwind {{\n  ret i32 1\n}}\n"


def routine_ir(symbol: str, routine: Routine, dtype: str, fortran: str) -> str:
    """A module that exports ``symbol``: a loop over matrices round one call of ``fortran``."""
    element, n_bytes = ELEMENTS[dtype]
    n_pointers = len(routine.arguments) + sum(isinstance(a, Work) and not a.times for a in routine.arguments)
    declared = f"declare void @{fortran}({', '.join(['ptr'] * n_pointers)})\n"
    parts = _TURN.replace("TYPE", element) + _LOWER.replace("BYTES", str(n_bytes))
    return _HEAD + declared + parts + _Writer(routine, dtype, fortran).function(symbol)


class _Writer:
    """The text of one function."""

    def __init__(self, routine: Routine, dtype: str, fortran: str) -> None:
        self.routine, self.fortran = routine, fortran
        self.element, self.n_bytes = ELEMENTS[dtype]
        self.lines: list[str] = []
        self.n = 0

    def write(self, text: str) -> None:
        self.lines.append("  " + text)

    def let(self, text: str) -> str:
        self.n += 1
        self.write(f"%v{self.n} = {text}")
        return f"%v{self.n}"

    def product(self, *factors: str | int) -> str:
        """A product of sizes by name and numbers."""
        values = [f"%size.{f}" if isinstance(f, str) else str(f) for f in factors]
        total = values[0]
        for value in values[1:]:
            total = self.let(f"mul i64 {total}, {value}")
        return total

    def function(self, symbol: str) -> str:
        """Sizes, the question how much memory is wanted, the memory, the loop."""
        self.read_sizes()
        self.constants()
        self.ask()
        self.allocate()
        self.loop()
        body = "\n".join(["entry:", *self.lines, "no:", "  ret i32 1", "}"])
        return f"define i32 @{symbol}(ptr %arrays, ptr %sizes) nounwind {{\n{body}\n"

    def read_sizes(self) -> None:
        """Each size as i64; none may be 0, or more than Fortran's integers hold."""
        bad = "false"
        for k, name in enumerate(("batch", *self.routine.sizes)):
            at = self.let(f"getelementptr i64, ptr %sizes, i64 {k}")
            self.write(f"%size.{name} = load i64, ptr {at}")
            before = self.let(f"sub i64 %size.{name}, 1")
            bad = self.let(f"or i1 {bad}, {self.let(f'icmp uge i64 {before}, {INT_MAX}')}")
        self.write(f"br i1 {bad}, label %no, label %start")
        self.lines.append("start:")

    def constants(self) -> None:
        """Sizes and letters in memory, where Fortran looks for them."""
        for name in self.routine.sizes:
            self.write(f"%int.{name} = alloca i32")
            self.write(f"store i32 {self.let(f'trunc i64 %size.{name} to i32')}, ptr %int.{name}")
        for k, a in enumerate(self.routine.arguments):
            match a:
                case Letter():
                    self.write(f"%c{k} = alloca i8")
                    self.write(f"store i8 {ord(a.value)}, ptr %c{k}")
                case One():
                    self.write(f"%c{k} = alloca {self.element}")
                    self.write(f"store {self.element} 1.0, ptr %c{k}")
                case Work():
                    self.write(f"%wanted{k} = alloca {self.type_of(a)}")
                    self.write(f"%room{k} = alloca i32")
                    self.write(f"store i32 -1, ptr %room{k}")
                case Matrix() | InPlace() | Vector():
                    given = (a.array,) if isinstance(a, Vector) else (a.take, a.give)
                    for array in dict.fromkeys(n for n in given if n is not None):
                        at = self.let(f"getelementptr ptr, ptr %arrays, i64 {array}")
                        self.write(f"%array{k}.{array} = load ptr, ptr {at}")
        self.write("%info = alloca i32")

    def type_of(self, a: Vector | Work) -> str:
        return "i32" if a.is_integer else self.element

    def call(self, places: Mapping[int, str]) -> None:
        """The call, with the addresses of what has memory."""
        values: list[str] = []
        for k, a in enumerate(self.routine.arguments):
            match a:
                case Size():
                    values.append(f"%int.{a.name}")
                case Letter() | One():
                    values.append(f"%c{k}")
                case Work() if not a.times:
                    values += [places[k], f"%room{k}"]
                case Info():
                    values.append(places.get(k, "%info"))
                case _:
                    values.append(places[k])
        self.write(f"call void @{self.fortran}({', '.join(f'ptr {v}' for v in values)})")

    def ask(self) -> None:
        """With -1 as its size, a routine writes how much it wants into the first element, and does nothing else."""
        works = {k: a for k, a in enumerate(self.routine.arguments) if isinstance(a, Work)}
        if any(not a.times for a in works.values()):
            unread = dict.fromkeys(range(len(self.routine.arguments)), "%info")
            self.call(unread | {k: f"%wanted{k}" for k in works})
        for k, a in works.items():
            if a.times:
                self.write(f"%count{k} = add i64 0, {self.product(a.times, *([a.rows] if a.rows else []))}")
                continue
            found = self.let(f"load {self.type_of(a)}, ptr %wanted{k}")
            if a.is_integer:
                self.write(f"%count{k} = sext i32 {found} to i64")
            else:  # a large number in f32 may have been rounded down
                exact = self.let(f"fmul {self.element} {found}, {ROUNDED_UP}")
                self.write(f"%count{k} = fptosi {self.element} {exact} to i64")
            least = self.let(f"call i64 @llvm.smin.i64(i64 %count{k}, i64 {INT_MAX})")
            self.write(f"store i32 {self.let(f'trunc i64 {least} to i32')}, ptr %room{k}")

    def allocate(self) -> None:
        """One piece of memory for the turned matrices and the room to work in."""
        total, starts = "0", dict[int, str]()
        for k, a in enumerate(self.routine.arguments):
            if isinstance(a, Matrix):
                n_bytes = self.product(a.rows, a.columns, self.n_bytes)
            elif isinstance(a, Work):
                n_bytes = self.let(f"mul i64 %count{k}, {4 if a.is_integer else self.n_bytes}")
            else:
                continue
            starts[k] = total
            # a multiple of 64, never nothing, and for a matrix with the room to begin up to 63 bytes later
            above = self.let(f"add i64 {n_bytes}, {127 + 64 * isinstance(a, Matrix)}")
            total = self.let(f"add i64 {total}, {self.let(f'and i64 {above}, -64')}")
        if starts:
            self.write(f"%memory = call ptr @malloc(i64 {self.let(f'add i64 {total}, 63')})")
            self.write(f"br i1 {self.let('icmp eq ptr %memory, null')}, label %no, label %ready")
            self.lines.append("ready:")
            rest = self.let(f"sub i64 0, {self.let('ptrtoint ptr %memory to i64')}")
            self.write(f"%aligned = getelementptr i8, ptr %memory, i64 {self.let(f'and i64 {rest}, 63')}")
        for k, start in starts.items():
            self.write(f"%place{k} = getelementptr i8, ptr %aligned, i64 {start}")
        self.has_memory = bool(starts)

    def here(self, k: int, array: int, n_bytes: str) -> str:
        """Where an array has this matrix's part."""
        return self.let(f"getelementptr i8, ptr %array{k}.{array}, i64 {self.let(f'mul i64 %b, {n_bytes}')}")

    def begun(self, k: int, a: Matrix) -> str:
        """Where a turned matrix begins: as far from a multiple of 64 as in a batch of such, one behind the other.

        A library adds in an order that depends on that, and in eager PyTorch the matrices of a batch lie so.
        """
        offset = self.let(f"mul i64 %b, {self.product(a.rows, a.columns, self.n_bytes)}")
        return self.let(f"getelementptr i8, ptr %place{k}, i64 {self.let(f'and i64 {offset}, 63')}")

    def loop(self) -> None:
        """Each matrix: copies in, the call, copies out."""
        before = "%ready" if self.has_memory else "%start"
        self.write("br label %each")
        self.lines.append("each:")
        self.write(f"%b = phi i64 [ 0, {before} ], [ %b.after, %next ]")
        places: dict[int, str] = {}
        for k, a in enumerate(self.routine.arguments):
            match a:
                case Work():
                    places[k] = f"%place{k}"
                case Matrix():
                    places[k] = self.begun(k, a)
                    if a.take is not None:
                        source = self.here(k, a.take, self.product(a.rows, a.columns, self.n_bytes))
                        sizes = f"i64 %size.{a.rows}, i64 %size.{a.columns}"
                        self.write(f"call void @turn(ptr {source}, ptr {places[k]}, {sizes})")
                case InPlace():
                    places[k] = self.copied(k, a)
                case Vector():
                    places[k] = self.here(k, a.array, self.product(a.length, 4 if a.is_integer else self.n_bytes))
                # the op's result is the code itself: `%info` stays 0, so that nothing fails
                case Info() if a.give is not None:
                    at = self.let(f"getelementptr ptr, ptr %arrays, i64 {a.give}")
                    places[k] = self.let(f"getelementptr i32, ptr {self.let(f'load ptr, ptr {at}')}, i64 %b")
        self.write("store i32 0, ptr %info")  # routines of BLAS have none and leave the 0
        self.call(places)
        # the caller then runs the kernel, which writes all results anew: those so far do no harm
        failed = self.let(f"icmp ne i32 {self.let('load i32, ptr %info')}, 0")
        self.write(f"br i1 {failed}, label %failed, label %good")
        self.lines.append("good:")
        for k, a in enumerate(self.routine.arguments):
            if isinstance(a, Matrix) and a.give is not None:
                target = self.here(k, a.give, self.product(a.rows, a.columns, self.n_bytes))
                sizes = f"i64 %size.{a.columns}, i64 %size.{a.rows}"
                self.write(f"call void @turn(ptr {places[k]}, ptr {target}, {sizes})")
        self.write("br label %next")
        self.lines.append("next:")
        self.write("%b.after = add i64 %b, 1")
        self.write(f"br i1 {self.let('icmp slt i64 %b.after, %size.batch')}, label %each, label %done")
        free = ["  call void @free(ptr %memory)"] if self.has_memory else []
        self.lines += ["done:", *free, "  ret i32 0", "failed:", *free, "  ret i32 1"]

    def copied(self, k: int, a: InPlace) -> str:
        """Where the matrix is that the routine works on, or only reads."""
        n_bytes = self.product(a.rows, a.columns, self.n_bytes)
        source = self.here(k, a.take, n_bytes)
        if a.give is None:
            return source
        target = self.here(k, a.give, n_bytes)
        if a.is_lower:
            self.write(f"call void @lower(ptr {source}, ptr {target}, i64 %size.{a.rows})")
        else:
            self.write(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {n_bytes}, i1 false)")
        return target
