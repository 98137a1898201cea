"""Fourier transforms by a library that the process has anyway, as functions that compiled code calls.

In: names, as entry functions spell them without dtype. Out: the text of ``i32 name(ptr arrays, ptr sizes)``, and the
addresses that it calls; ``routines`` links it and says what such a function returns. ``arrays`` are signals and
results, ``sizes`` how many arrays of signals there are, a signal's length, and how many signals lie side by side.
Not its business: lengths that the compiler knows (``ops.fourier``).

The library is MKL (DFTI) of PyTorch where PyTorch is loaded and has it: results are then eager's. Elsewhere it is
NumPy's pocketfft, which is always there: NumPy shows the loops of its generalised universal functions to C code as
``PyUFuncObject`` (``numpy/ufuncobject.h``). Both take ``n log n`` operations for every length, and any stride, and
choose their radices when they are called.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from tilewright.runtime.once import MAKING
from tilewright.runtime.plain import dataclass

BYTES = {"f32": 4, "f64": 8}


@dataclass(frozen=True)
class Transform:
    """What is transformed to what, and whether the exponent's sign is positive.

    ``reads`` and ``writes``: has it only the first half of the numbers there, and how many parts are a number's.
    """

    is_backward: bool
    reads: tuple[bool, int] = (False, 2)
    writes: tuple[bool, int] = (False, 2)

    @property
    def is_real(self) -> bool:
        return (False, 1) in (self.reads, self.writes)


TRANSFORMS: Mapping[str, Transform] = {
    "fourier_complex_forward": Transform(False),
    "fourier_complex_backward": Transform(True),
    "fourier_real_forward": Transform(False, reads=(False, 1), writes=(True, 2)),
    "fourier_hermitian_backward": Transform(True, reads=(True, 2), writes=(False, 1)),
}
"""By the name that ops use; a dtype is added to it."""


class Code(NamedTuple):
    """A module's text, and the addresses by name that it imports."""

    text: str
    imports: Mapping[str, int]


def code_for(symbol: str, name: str, dtype: str, library: Any) -> Code | None:
    """The function ``symbol`` for a transform; ``library`` is PyTorch's or None. None without either library."""
    transform = TRANSFORMS[name]
    if library is not None and hasattr(library, _create(dtype)):
        names = (_create(dtype), *_DFTI)
        imports = {n: ctypes.cast(library[n], ctypes.c_void_p).value or 0 for n in names}
        return Code(_text(symbol, transform, dtype, _mkl(transform, dtype)), imports)
    loops = _loops(transform, dtype)
    return None if loops is None else Code(_text(symbol, transform, dtype, _numpy(transform)), loops)


# --- NumPy's loops --------------------------------------------------------------------------------------------------


class _Ufunc(ctypes.Structure):
    """How ``PyUFuncObject`` begins, behind its head."""

    _fields_ = (
        ("n_in", ctypes.c_int), ("n_out", ctypes.c_int), ("n_args", ctypes.c_int), ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)), ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("n_types", ctypes.c_int), ("reserved", ctypes.c_int), ("name", ctypes.c_char_p),
    )  # fmt: skip


def _loops(transform: Transform, dtype: str) -> dict[str, int] | None:
    """NumPy's loop for even lengths, and for odd ones, and what it wants to be handed; None where there is no such."""
    if transform.is_real:
        names = ("irfft", "irfft") if transform.is_backward else ("rfft_n_even", "rfft_n_odd")
    else:
        names = ("ifft", "ifft") if transform.is_backward else ("fft", "fft")
    part, number = ("d", "D") if dtype == "f64" else ("f", "F")
    types = f"{part if transform.reads[1] == 1 else number}{part}->{part if transform.writes[1] == 1 else number}"
    found: dict[str, int] = {}
    for parity, name in zip(("even", "odd"), names, strict=True):
        try:
            with MAKING:
                function = getattr(importlib.import_module("numpy.fft._pocketfft_umath"), name)
            k = function.types.index(types)
        except (ImportError, AttributeError, ValueError):
            return None
        shown = _Ufunc.from_address(id(function) + object.__basicsize__)
        if (shown.n_in, shown.n_out, shown.n_types, shown.name) != (2, 1, len(function.types), name.encode()):
            return None
        found[f"{parity}_loop"], found[f"{parity}_data"] = shown.functions[k] or 0, _data(shown, k)
    return found


def _data(function: _Ufunc, k: int) -> int:
    """What a loop wants to be handed; functions whose loops want nothing have no list."""
    return (function.data[k] or 0) if function.data else 0


def _numpy(transform: Transform) -> str:
    """A loop takes some signals beside each other: their distance, and that of a signal's numbers, in bytes."""
    return """
define internal i32 @transform(ptr %x, ptr %y, ptr %s) nounwind {
entry:
  %args = alloca [3 x ptr]
  %counts = alloca [3 x i64]
  %steps = alloca [5 x i64]
  %one = alloca TYPE
  store TYPE 1.0, ptr %one
  store ptr %x, ptr %args
  %args1 = getelementptr ptr, ptr %args, i64 1
  store ptr %one, ptr %args1
  %args2 = getelementptr ptr, ptr %args, i64 2
  store ptr %y, ptr %args2
  %count.p = getelementptr %signals, ptr %s, i64 0, i32 1
  %count = load i64, ptr %count.p
  store i64 %count, ptr %counts
  %read.p = getelementptr %signals, ptr %s, i64 0, i32 2
  %read = load i64, ptr %read.p
  %counts1 = getelementptr i64, ptr %counts, i64 1
  store i64 %read, ptr %counts1
  %written.p = getelementptr %signals, ptr %s, i64 0, i32 3
  %written = load i64, ptr %written.p
  %counts2 = getelementptr i64, ptr %counts, i64 2
  store i64 %written, ptr %counts2
  %from.p = getelementptr %signals, ptr %s, i64 0, i32 4
  %from = load i64, ptr %from.p
  %from.bytes = mul i64 %from, READ
  store i64 %from.bytes, ptr %steps
  %steps1 = getelementptr i64, ptr %steps, i64 1
  store i64 0, ptr %steps1
  %to.p = getelementptr %signals, ptr %s, i64 0, i32 5
  %to = load i64, ptr %to.p
  %to.bytes = mul i64 %to, WRITTEN
  %steps2 = getelementptr i64, ptr %steps, i64 2
  store i64 %to.bytes, ptr %steps2
  %apart.p = getelementptr %signals, ptr %s, i64 0, i32 6
  %apart = load i64, ptr %apart.p
  %read.apart = mul i64 %apart, READ
  %steps3 = getelementptr i64, ptr %steps, i64 3
  store i64 %read.apart, ptr %steps3
  %written.apart = mul i64 %apart, WRITTEN
  %steps4 = getelementptr i64, ptr %steps, i64 4
  store i64 %written.apart, ptr %steps4
  %n = load i64, ptr %s
  %bit = and i64 %n, 1
  %is.odd = icmp ne i64 %bit, 0
  %loop = select i1 %is.odd, ptr @odd_loop, ptr @even_loop
  %data = select i1 %is.odd, ptr @odd_data, ptr @even_data
  call void %loop(ptr %args, ptr %counts, ptr %steps, ptr %data)
  ret i32 0
}
@even_loop = external global i8
@odd_loop = external global i8
@even_data = external global i8
@odd_data = external global i8
"""


# --- MKL ------------------------------------------------------------------------------------------------------------

_DFTI = ("DftiSetValue", "DftiCommitDescriptor", "DftiComputeForward", "DftiComputeBackward", "DftiFreeDescriptor")
_COMPLEX, _REAL = 32, 33
_HOW_MANY, _HALF, _PLACEMENT, _READ_STRIDES, _WRITTEN_STRIDES, _FROM, _TO = 7, 10, 11, 12, 13, 14, 15
_AS_COMPLEX, _ELSEWHERE = 39, 44
"""Of ``mkl_dfti.h``: domains, what can be set, and what to."""


def _create(dtype: str) -> str:
    return f"DftiCreateDescriptor_{'d' if dtype == 'f64' else 's'}_1d"


def _mkl(transform: Transform, dtype: str) -> str:
    """A descriptor for the sizes, as eager PyTorch makes one for each call, and the call."""
    numbers = [(_PLACEMENT, f"i32 {_ELSEWHERE}"), (_HOW_MANY, "i64 %count"), (_FROM, "i64 %from"), (_TO, "i64 %to")]
    numbers += [(_READ_STRIDES, "ptr %strides"), (_WRITTEN_STRIDES, "ptr %strides")]
    numbers += [(_HALF, f"i32 {_AS_COMPLEX}")] if transform.is_real else []
    lines, status = list[str](), "%made"
    for k, (what, value) in enumerate(numbers):
        lines.append(f"  %set{k} = call i64 (ptr, i32, ...) @DftiSetValue(ptr %h, i32 {what}, {value})")
        lines.append(f"  %bad{k} = or i64 {status}, %set{k}")
        status = f"%bad{k}"
    compute = f"DftiCompute{'Backward' if transform.is_backward else 'Forward'}"
    return f"""
declare i64 @{_create(dtype)}(ptr, i32, i64)
declare i64 @DftiSetValue(ptr, i32, ...)
declare i64 @DftiCommitDescriptor(ptr)
declare i64 @{compute}(ptr, ptr, ...)
declare i64 @DftiFreeDescriptor(ptr)

define internal i32 @transform(ptr %x, ptr %y, ptr %s) nounwind {{
entry:
  %slot = alloca ptr
  %strides = alloca [2 x i64]
  %n = load i64, ptr %s
  %count.p = getelementptr %signals, ptr %s, i64 0, i32 1
  %count = load i64, ptr %count.p
  %from.p = getelementptr %signals, ptr %s, i64 0, i32 4
  %from = load i64, ptr %from.p
  %to.p = getelementptr %signals, ptr %s, i64 0, i32 5
  %to = load i64, ptr %to.p
  %apart.p = getelementptr %signals, ptr %s, i64 0, i32 6
  %apart = load i64, ptr %apart.p
  store i64 0, ptr %strides
  %strides1 = getelementptr i64, ptr %strides, i64 1
  store i64 %apart, ptr %strides1
  %made = call i64 @{_create(dtype)}(ptr %slot, i32 {_REAL if transform.is_real else _COMPLEX}, i64 %n)
  %is.none = icmp ne i64 %made, 0
  br i1 %is.none, label %none, label %set
set:
  %h = load ptr, ptr %slot
{chr(10).join(lines)}
  %is.unset = icmp ne i64 {status}, 0
  br i1 %is.unset, label %free, label %commit
commit:
  %committed = call i64 @DftiCommitDescriptor(ptr %h)
  %is.bad = icmp ne i64 %committed, 0
  br i1 %is.bad, label %free, label %compute
compute:
  %failed = call i64 (ptr, ptr, ...) @{compute}(ptr %h, ptr %x, ptr %y)
  br label %free
free:
  %status = phi i64 [ {status}, %set ], [ %committed, %commit ], [ %failed, %compute ]
  %freed = call i64 @DftiFreeDescriptor(ptr %slot)
  %is.failed = icmp ne i64 %status, 0
  %result = zext i1 %is.failed to i32
  ret i32 %result
none:
  ret i32 1
}}
"""


# --- both -----------------------------------------------------------------------------------------------------------


def _text(symbol: str, transform: Transform, dtype: str, library: str) -> str:
    """Each array of signals, by ``@transform`` of a library: whose signals lie behind each other, or side by side."""
    n_bytes = BYTES[dtype]
    read, written = ("%half" if is_half else "%n" for is_half, _ in (transform.reads, transform.writes))
    module = f"""
; a signal's length; how many signals are taken at once; how many numbers each has before and after; how far signals
; lie apart before and after, and a signal's numbers; all in numbers
%signals = type {{ i64, i64, i64, i64, i64, i64, i64 }}
{library}
define i32 @{symbol}(ptr %arrays, ptr %sizes) nounwind {{
entry:
  %s = alloca %signals
  %x = load ptr, ptr %arrays
  %arrays1 = getelementptr ptr, ptr %arrays, i64 1
  %y = load ptr, ptr %arrays1
  %outer = load i64, ptr %sizes
  %sizes1 = getelementptr i64, ptr %sizes, i64 1
  %n = load i64, ptr %sizes1
  %sizes2 = getelementptr i64, ptr %sizes, i64 2
  %inner = load i64, ptr %sizes2
  %halved = lshr i64 %n, 1
  %half = add i64 %halved, 1
  %is.short = icmp slt i64 %n, 1
  br i1 %is.short, label %no, label %any
any:
  %all = mul i64 %outer, %inner
  %is.empty = icmp eq i64 %all, 0
  br i1 %is.empty, label %done, label %start
start:
  %is.single = icmp eq i64 %inner, 1
  %count = select i1 %is.single, i64 %outer, i64 %inner
  %times = select i1 %is.single, i64 1, i64 %outer
  %from = select i1 %is.single, i64 {read}, i64 1
  %to = select i1 %is.single, i64 {written}, i64 1
  store i64 %n, ptr %s
"""
    fields = ("%count", read, written, "%from", "%to", "%inner")
    for k, value in enumerate(fields, 1):
        module += f"  %s{k} = getelementptr %signals, ptr %s, i64 0, i32 {k}\n  store i64 {value}, ptr %s{k}\n"
    module += f"""
  %x.row = mul i64 {read}, %inner
  %x.step = mul i64 %x.row, READ
  %y.row = mul i64 {written}, %inner
  %y.step = mul i64 %y.row, WRITTEN
  br label %each
each:
  %k = phi i64 [ 0, %start ], [ %k.after, %next ]
  %x.at = mul i64 %k, %x.step
  %x.here = getelementptr i8, ptr %x, i64 %x.at
  %y.at = mul i64 %k, %y.step
  %y.here = getelementptr i8, ptr %y, i64 %y.at
  %status = call i32 @transform(ptr %x.here, ptr %y.here, ptr %s)
  %is.left = icmp ne i32 %status, 0
  br i1 %is.left, label %no, label %next
next:
  %k.after = add i64 %k, 1
  %more = icmp slt i64 %k.after, %times
  br i1 %more, label %each, label %done
done:
  ret i32 0
no:
  ret i32 1
}}
"""
    element = "double" if dtype == "f64" else "float"
    numbers = {"READ": transform.reads[1] * n_bytes, "WRITTEN": transform.writes[1] * n_bytes}
    for word, by in {"TYPE": element, **numbers}.items():
        module = module.replace(word, str(by))
    return module
