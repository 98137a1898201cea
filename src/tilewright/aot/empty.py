"""Calls that have nothing to compute: a size is 0 where the code is for 1 and more, and every output is empty then.

In: a manifest and the symbols' registers. Out: LLVM instructions that tell such calls and end them, as ``runtime.plan``
does in Python. Neither ``tw_plan`` nor ``tw_run`` may be asked, whose code is right for the symbols' ranges alone.
Not its business: which C functions there are (``glue``).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.aot.writer import FunctionWriter
from tilewright.runtime.expressions import ParsedExpr
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.shapes import compile_size


def begins_with_one(manifest: Manifest) -> set[str]:
    """The symbols that are 0 in a call that has nothing to compute; none where no call is so.

    Each output must have a size that hangs on one of them, and none that the data decide.
    """
    names = {s.name for s in manifest.symbols if s.lo == 1}
    computed = {s.name for s in manifest.computed}
    for o in manifest.outputs:
        sizes = [size for d in o.shape if isinstance(size := compile_size(d), ParsedExpr)]
        if not any(size.symbols & names for size in sizes) or any(size.symbols & computed for size in sizes):
            return set()
    return names if manifest.outputs else set()


def is_empty(w: FunctionWriter, manifest: Manifest, values: Mapping[str, str]) -> str:
    """An i1: has this call nothing to compute? The text is empty where no call is so.

    Sizes that left 64 bits, are negative or divide by zero say no.
    """
    zeros = [w.let(f"icmp eq i64 {values[name]}, 0") for name in sorted(begins_with_one(manifest))]
    if not zeros:
        return ""
    found = w.joined(zeros, "or")
    w.take_by_zero()
    for o in manifest.outputs:
        # what is 0 for 1 and more need not be so for 0
        sizes = [size for d in o.shape if isinstance(size := compile_size(d), ParsedExpr)]
        least, *rest = [w.size(size, values) for size in sizes]
        for other in rest:
            least = w.let(f"call i64 @llvm.smin.i64(i64 {least}, i64 {other})")
        found = w.let(f"and i1 {found}, {w.let(f'icmp eq i64 {least}, 0')}")
    wrong = [x for x in (w.take_by_zero(), w.take_beyond()) if x]
    if not wrong:
        return found
    is_right = w.let(f"xor i1 {w.joined(wrong, 'or')}, true")
    return w.let(f"and i1 {found}, {is_right}")


def return_if_empty(w: FunctionWriter, manifest: Manifest, values: Mapping[str, str], sizes: str = "") -> None:
    """Return success where checked sizes leave nothing to compute.

    At the address ``sizes``, if given, is then what ``tw_plan`` would write: no bytes of arena, and the outputs' sizes.
    """
    empty = is_empty(w, manifest, values)
    if not empty:
        return
    done, others = w.label("empty"), w.label("others")
    w.emit(f"br i1 {empty}, label %{done}, label %{others}")
    w.start(done)
    if sizes:
        found = ["0"]
        for o in manifest.outputs:
            shape = [w.size(compile_size(d), values) for d in o.shape]
            found += [*shape, *["2"] * (o.n_planned - len(shape))]  # a complex output's elements are pairs
        for k, size in enumerate(found):
            w.store(size, sizes, 8 * k)
        w.take_beyond()  # `is_empty` has asked
    w.emit("ret i32 0")
    w.start(others)
