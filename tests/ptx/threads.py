"""The LLVM text of a GPU's kernel, run on this CPU: a thread of the system for each thread of a block.

In: a kernel of flat grids, arrays. Out: what the kernel writes. Not its business: PTX and what ptxas makes of it
(`assembler`), whether threads race (`tile.simt`).

The text is the same to the letter but for what only a GPU has: its kinds of functions, the registers that say which
thread this is, and the barrier, which calls back into Python and waits there. Blocks run one after the other.
"""

import ctypes
import re
import threading

import llvmlite.binding as llvm
import numpy as np

from ptx.warp import Warps, host_calls
from tilewright.codegen.amd.dialect import AMD
from tilewright.codegen.cpu.llvm import target_machine
from tilewright.codegen.gpu import emit
from tilewright.codegen.ptx.dialect import NVIDIA
from tilewright.codegen.spirv.dialect import OPENCL
from tilewright.core.expr import evaluate
from tilewright.target.gpu import CUDA_TRIPLE, ROCM_TRIPLE, SPIRV_TRIPLE, Gpu
from tilewright.target.target import Target

HOST = Target.host()
WAIT = ctypes.CFUNCTYPE(None)
SREG = "call i32 @llvm.nvvm.read.ptx.sreg.{}.{}()"
PLACES = [(kind, axis) for kind in ("ctaid", "tid") for axis in "xyz"]


AMD_WORDS = {
    'target triple = "amdgcn-amd-amdhsa"': 'target triple = "nvptx64-nvidia-cuda"',
    "define amdgpu_kernel void": "define ptx_kernel void",
    AMD.barrier: NVIDIA.barrier,
    AMD.footer: "",
    **{AMD.thread.format(axis): NVIDIA.thread.format(axis) for axis in "xyz"},
    **{AMD.block.format(axis): NVIDIA.block.format(axis) for axis in "xyz"},
    # Lanes lie along x, and lanes before a lane are as many as its number says.
    "call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)": "call i32 @llvm.umin.i32(i32 %tid.x, i32 32)",
    "@llvm.amdgcn.exp2.f32(": "@llvm.exp2.f32(",
}
"""What AMD's text says of itself, as NVIDIA's says it."""


def in_nvidias_words(text: str) -> str:
    """AMD's text but for its exchanges and products, which stay what they are."""
    for ours, theirs in AMD_WORDS.items():
        text = text.replace(ours, theirs)
    before = r"call i32 @llvm.amdgcn.mbcnt.hi\(i32 -1, i32 (\S+)\)"
    text = re.sub(before, r"call i32 @llvm.umax.i32(i32 %tid.x, i32 \1)", text)
    text = re.sub(r"call float @llvm.amdgcn.rcp.f32\(float ([^)]*)\)", r"fdiv float 1.0, \1", text)
    text = re.sub(r"(alloca .*), addrspace\(5\)", r"\1", text)
    text = re.sub(r"addrspacecast ptr addrspace\(5\) (\S+) to ptr", r"getelementptr i8, ptr \1, i64 0", text)
    return re.sub(r"addrspacecast \(ptr addrspace\(4\) (@\S+) to ptr\)", r"\1", text).replace("addrspace(4) ", "")


def from_opencls_words(text: str) -> str:
    """OpenCL's text with generic pointers where it has others, in NVIDIA's words."""
    text = text[: text.index("declare i64 @_Z12get_local_idj")]
    text = re.sub(r"ptr addrspace\([014]\)", "ptr", text).replace("addrspace(1) constant", "constant")
    text = re.sub(r"addrspacecast \(ptr (@\S+) to ptr\)", r"\1", text).replace(", addrspace(0)", "")
    text = re.sub(r"addrspacecast ptr (\S+) to ptr", r"getelementptr i8, ptr \1, i64 0", text)
    text = text.replace(OPENCL.barrier, NVIDIA.barrier).replace("@reciprocal(float ", "@llvm.amdgcn.rcp.f32(float ")
    exchange = r"call i32 @_Z21sub_group_shuffle_xorij\(i32 (\S+), i32 (\d+)\)"
    text = re.sub(exchange, r"call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 \1, i32 \2, i32 31)", text)
    text = text.replace(SPIRV_TRIPLE, CUDA_TRIPLE).replace("define spir_kernel void", "define ptx_kernel void")
    for axis in "xyz":
        text = text.replace(OPENCL.thread.format(axis), NVIDIA.thread.format(axis))
        text = text.replace(OPENCL.block.format(axis), NVIDIA.block.format(axis))
    return in_nvidias_words(text)


IN_NVIDIAS_WORDS = {CUDA_TRIPLE: str, ROCM_TRIPLE: in_nvidias_words, SPIRV_TRIPLE: from_opencls_words}


ROUNDED = """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %above = lshr i32 %bits, 16
  %is_odd = and i32 %above, 1
  %half = add i32 %is_odd, 32767
  %sum = add i32 %bits, %half
  %near = lshr i32 %sum, 16
  %quiet = or i32 %above, 64
  %is_nan = fcmp uno float %x, %x
  %kept = select i1 %is_nan, i32 %quiet, i32 %near
  %narrow = trunc i32 %kept to i16
  %y = bitcast i16 %narrow to bfloat
  ret bfloat %y
}
"""
"""What CPUs without an instruction call where a number is rounded to bf16; runtimes of C have it, this process not."""


def host_text(text: str) -> str:
    """The module as this CPU takes it: six more arguments say which block and thread it is."""
    text = text.replace('target triple = "nvptx64-nvidia-cuda"', f'target triple = "{HOST.triple}"')
    text = text.replace("define ptx_kernel void", "define void").replace(NVIDIA.barrier, "call void @wait_for_all()")
    text = text.replace("external addrspace(3) global [0 x i8]", "internal addrspace(3) global [262144 x i8] undef")
    lines = []
    for line in text.splitlines():
        if line.startswith("define void"):
            head, _, tail = line.rpartition(") nounwind")
            extra = ", ".join(f"i32 %{kind}.{axis}" for kind, axis in PLACES)
            line = f"{head}{', ' if not head.endswith('(') else ''}{extra}) nounwind{tail}"
        for kind, axis in PLACES:
            line = line.replace(SREG.format(kind, axis), f"add i32 %{kind}.{axis}, 0")
        if found := re.match(r"@(\S+) = internal addrspace\(3\) global \[", line):
            lines.append(
                f"define ptr @shared_memory() {{\n  ret ptr addrspacecast (ptr addrspace(3) @{found[1]} to ptr)\n}}"
            )
        lines.append(line)
    return host_calls("\n".join([*lines, "declare void @wait_for_all()", ROUNDED]))


class Threads:
    """A kernel; call it with arrays by their parameters' names, and sizes by theirs."""

    def __init__(self, kernel, gpu: str = "cuda-sm90a") -> None:
        self.kernel = kernel
        machine = Gpu.parse(gpu)
        made = emit(kernel, machine)
        self.launches = made.launches
        text = IN_NVIDIAS_WORDS[machine.triple](made.text)
        self.meets = any(x in text for x in (NVIDIA.barrier, "@llvm.nvvm.mma", "@llvm.nvvm.shfl", "@llvm.amdgcn"))
        text = host_text(text)
        self.warps = Warps(machine.warp_lanes)
        machine = target_machine(HOST)
        module = llvm.parse_assembly(f'target datalayout = "{machine.target_data}"\n{text}')
        module.verify()
        self.meeting: threading.Barrier | None = None
        self.wait = WAIT(self._meet)
        self.jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module))
        builder.import_symbol("wait_for_all", ctypes.cast(self.wait, ctypes.c_void_p).value)
        builder.import_symbol("exchange", ctypes.cast(self.warps.callback, ctypes.c_void_p).value)
        for launch in self.launches:
            builder.export_symbol(launch.entry)
        if has_shared := text.count("define ptr @shared_memory") == 1:  # several grids have no products of four warps
            builder.export_symbol("shared_memory")
        self.library = builder.link(self.jit, kernel.name)
        if has_shared:
            self.warps.shared = ctypes.CFUNCTYPE(ctypes.c_void_p)(self.library["shared_memory"])()

    def _meet(self) -> None:
        self.meeting.wait()

    def __call__(self, arrays: dict[str, np.ndarray], sizes: dict[str, int] | None = None) -> None:
        for launch in self.launches:
            env = {s: (sizes or {})[s.name] for s in launch.sizes}
            given = [arrays[b.name].ctypes.data for b in launch.params] + list(env.values())
            self.run(launch.entry, [evaluate(d, env) for d in launch.grid], launch.block, given)

    def run(self, entry: str, grid, block, given: list[int]) -> None:
        """One grid, on addresses of the host and sizes."""
        launch = next(x for x in self.launches if x.entry == entry)
        kinds = [ctypes.c_void_p] * len(launch.params) + [ctypes.c_int64] * len(launch.sizes) + [ctypes.c_int32] * 6
        function = ctypes.CFUNCTYPE(None, *kinds)(self.library[launch.entry])
        assert all(a % 16 == 0 for a in given[: len(launch.params)]), "a buffer that no launch would take"
        x, y, z = block
        threads = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
        for place in np.ndindex(grid[2], grid[1], grid[0]):
            self._block(function, given, (*reversed(place),), threads)

    def _block(self, function, given, block, threads) -> None:
        if not self.meets:
            for t in threads:
                function(*given, *block, *t)
            return
        self.meeting = threading.Barrier(len(threads), timeout=60)
        self.warps.new_block(len(threads))

        def work(number: int, t: tuple[int, int, int]) -> None:
            self.warps.begin(number)
            function(*given, *block, *t)

        running = [threading.Thread(target=work, args=(k, t)) for k, t in enumerate(threads)]
        for t in running:
            t.start()
        for t in running:
            t.join()
