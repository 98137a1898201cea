"""AMD's spelling of what all GPUs do.

In: nothing. Out: a :class:`~tilewright.codegen.ptx.dialect.Dialect`. Not its business: assembling it (``compile``).

By the LLVM project's "User Guide for AMDGPU Backend": a kernel's arguments come by value and pointers are generic until
LLVM has found out where they lead; a thread's own memory is address space 5, constants are in 4, shared memory is in 3.
Lanes exchange words through the hardware of shared memory, but not its contents: ``ds_swizzle`` among the lanes whose
numbers differ in the last five bits, and ``ds_bpermute`` beyond those.
"""

from __future__ import annotations

from tilewright.codegen.amd.mfma import INSTRUCTIONS
from tilewright.codegen.llvm.writer import Val, Writer
from tilewright.codegen.ptx.dialect import Dialect

SWIZZLED_LANES = 32
"""Lanes among which one instruction exchanges words without addresses."""
ALL_OF_THEM = SWIZZLED_LANES - 1
XOR_SHIFT = 10
"""Where that instruction's pattern has the bits by which lanes differ."""
WORD_BYTES = 4
BARRIER = (
    'fence syncscope("workgroup") release\n  call void @llvm.amdgcn.s.barrier()\n  fence syncscope("workgroup") acquire'
)
"""The instruction lets threads meet and nothing else: the fences say that what they wrote is there."""
CODE_OBJECT = 500
"""Version 5 of code objects, of ROCm 5.7 and later."""


def _exchanged(writer: Writer, word: Val, element: str, distance: int, _: int) -> str:
    """Words of integers; f32 change their type on the way."""
    bits = word.text
    if element == "float":
        bits = writer.pure(f"bitcast float {word.text} to i32", word.level)
    if distance < SWIZZLED_LANES:
        got = f"call i32 @llvm.amdgcn.ds.swizzle(i32 {bits}, i32 {distance << XOR_SHIFT | ALL_OF_THEM})"
    else:
        own = writer.pure("call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)", 0)
        own = writer.pure(f"call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 {own})", 0)
        other = writer.pure(f"xor i32 {own}, {distance}", 0)
        place = writer.pure(f"mul i32 {other}, {WORD_BYTES}", 0)
        got = f"call i32 @llvm.amdgcn.ds.bpermute(i32 {place}, i32 {bits})"
    return got if element != "float" else f"bitcast i32 {writer.fresh(got)} to float"


def _bounds(block: tuple[int, int, int], _: bool) -> str:
    """How many threads a block has, so that LLVM knows how many registers each may have."""
    n = block[0] * block[1] * block[2]
    return f'"amdgpu-flat-work-group-size"="{n},{n}" "uniform-work-group-size"="true"'


AMD = Dialect(
    convention="amdgpu_kernel",
    thread="call i32 @llvm.amdgcn.workitem.id.{}()",
    block="call i32 @llvm.amdgcn.workgroup.id.{}()",
    barrier=BARRIER,
    exchange=_exchanged,
    functions={"exp2_flushed": "llvm.amdgcn.exp2.f32", "reciprocal_flushed": "llvm.amdgcn.rcp.f32"},
    instructions=INSTRUCTIONS,
    bounds=_bounds,
    footer=f'!llvm.module.flags = !{{!0}}\n!0 = !{{i32 1, !"amdhsa_code_object_version", i32 {CODE_OBJECT}}}\n',
    stack_space=5,
    constant_space=4,
)
