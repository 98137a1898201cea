"""OpenCL's spelling of what all GPUs do, as LLVM's SPIR-V target reads it.

In: nothing. Out: a :class:`~tilewright.codegen.ptx.dialect.Dialect`. Not its business: making SPIR-V (``compile``).

By the LLVM project's "User Guide for SPIR-V Target": functions of OpenCL C, by their mangled names, are instructions; a
kernel's arguments point to address space 1, and generic pointers are in 4.
"""

from __future__ import annotations

from tilewright.codegen.llvm.writer import Val, Writer
from tilewright.codegen.ptx.dialect import Dialect
from tilewright.target.gpu import AXES
from tilewright.target.matrices import WARP

LOCAL_AND_GLOBAL = 3
"""What a barrier of OpenCL makes visible: CLK_LOCAL_MEM_FENCE and CLK_GLOBAL_MEM_FENCE."""
GENERIC = 4
"""The address space of pointers that may lead anywhere."""


def _exchanged(writer: Writer, word: Val, element: str, distance: int, _: int) -> str:
    """A sub-group's exchange; f32 change their type on the way."""
    bits = word.text
    if element == "float":
        bits = writer.pure(f"bitcast float {word.text} to i32", word.level)
    got = f"call i32 @_Z21sub_group_shuffle_xorij(i32 {bits}, i32 {distance})"
    return got if element != "float" else f"bitcast i32 {writer.fresh(got)} to float"


def _bounds(block: tuple[int, int, int], has_warps: bool) -> str:
    """The extents that a launch must have, and the size of sub-groups where lanes of one exchange what they have."""
    said = f"!reqd_work_group_size !{{{', '.join([f'i32 {n}' for n in block])}}}"
    return f"{said} !intel_reqd_sub_group_size !{{i32 {WARP}}}" if has_warps else said


def _footer() -> str:
    """Places as 32-bit numbers, and what is called."""
    lines = [
        "declare i64 @_Z12get_local_idj(i32)", "declare i64 @_Z12get_group_idj(i32)",
        "declare void @_Z7barrierj(i32) convergent", "declare i32 @_Z21sub_group_shuffle_xorij(i32, i32) convergent",
        "define internal float @reciprocal(float %x) alwaysinline {\n  %y = fdiv float 1.0, %x\n  ret float %y\n}",
    ]  # fmt: skip
    for name, function in (("thread", "_Z12get_local_idj"), ("block", "_Z12get_group_idj")):
        for number, axis in enumerate(AXES):
            body = f"  %wide = call i64 @{function}(i32 {number})\n  %place = trunc i64 %wide to i32\n  ret i32 %place"
            lines.append(f"define internal i32 @{name}.{axis}() alwaysinline {{\n{body}\n}}")
    return "\n".join([*lines, ""])


OPENCL = Dialect(
    convention="spir_kernel",
    thread="call i32 @thread.{}()",
    block="call i32 @block.{}()",
    barrier=f"call void @_Z7barrierj(i32 {LOCAL_AND_GLOBAL})",
    exchange=_exchanged,
    functions={"exp2_flushed": "llvm.exp2.f32", "reciprocal_flushed": "reciprocal"},
    instructions={},
    bounds=_bounds,
    footer=_footer(),
    stack_space=0,
    constant_space=1,
    argument_space=1,
    has_masks=False,
    has_bfloat=False,
    has_extremes=False,  # LLVM makes fmax and fmin of OpenCL of them, which give the number beside a NaN
)
