"""A GPU as one frozen record: what its threads can do, what a multiprocessor holds, how fast it is.

In: a name such as ``cuda-sm90a``. Out: a :class:`Gpu`, or an error that lists the names. Not its business: choosing by
these numbers (``choose``), what an instruction looks like (``codegen.ptx``), which GPU is at hand.

A row describes the chip that a server of its generation has; another chip of that generation runs the same code, with
other numbers of multiprocessors and other bandwidths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from tilewright.target.errors import UnknownTargetError
from tilewright.target.matrices import MFMA_SHAPES, SHAPES, WMMA_SHAPES, MatrixShape
from tilewright.target.sources import (
    AMDGPU,
    AMPERE,
    ASSUMED,
    BLACKWELL,
    CDNA3,
    CDNA3_ISA,
    CUDA_GUIDE,
    HOPPER,
    RDNA3,
    RDNA3_ISA,
)

CUDA_TRIPLE = "nvptx64-nvidia-cuda"
ROCM_TRIPLE = "amdgcn-amd-amdhsa"
SPIRV_TRIPLE = "spirv64-unknown-unknown"
AXES = "xyz"
"""The dimensions that every GPU's programming model gives a grid, and a block."""
REGISTER_BYTES, ADDRESS_BYTES = 4, 8
"""Of a thread's register and of an address, by PTX's specification."""
NUMBERS = {
    "warp_lanes": "", "max_block_threads": "", "max_block_extents": "", "max_grid_extents": "", "sm_threads": "",
    "sm_blocks": "", "sm_schedulers": "", "sm_registers": "", "max_thread_registers": "", "warp_register_step": "",
    "sm_shared_bytes": "B", "max_block_shared_bytes": "B", "static_shared_bytes": "B", "block_reserved_bytes": "B",
    "thread_accesses": "", "exchange_instructions": "", "instruction_cycles": "cycles", "shared_banks": "",
    "bank_bytes": "B", "access_bytes": "B", "sector_bytes": "B", "line_bytes": "B", "n_sms": "",
    "ghz": "GHz", "sm_fmas_per_cycle": "", "sm_exponentials_per_cycle": "", "sm_bf16_fmas_per_cycle": "",
    "sm_warp_bf16_fmas_per_cycle": "",
    "sm_bytes_per_cycle": "B", "l2_bytes_per_cycle": "B", "l2_bytes": "B", "memory_gb_per_s": "GB/s", "memory_ns": "ns",
    "replay_us": "us",
}  # fmt: skip
"""The record's numbers, with their units."""


@dataclass(frozen=True)
class Gpu:
    """What every stage may rely on. ``name`` and ``aliases`` are for people; nothing compares them.

    ``arch`` is LLVM's and NVIDIA's name of the instruction set; ``chip`` the one whose numbers these are.

    What a thread can do: ``has_async_copies``: memory to shared memory without registers, in groups (``cp.async``).
    ``has_mma``: matrix products of a warp out of registers (``mma.sync``). ``has_warpgroup_mma``: those of four warps
    out of shared memory (``wgmma``). ``has_mfma`` and ``has_wmma``: AMD's of a warp of 64 lanes and of 32, out of
    registers.

    What it may ask for: a block has up to ``max_block_threads``, along each axis up to ``max_block_extents``; a grid
    ``max_grid_extents``. A thread has up to ``max_thread_registers`` of 4 bytes, a warp of ``warp_lanes`` threads gets
    a multiple of ``warp_register_step``. A module declares up to ``static_shared_bytes`` for a block, which gets up to
    ``max_block_shared_bytes`` where the launch asks for them.

    What a multiprocessor (SM) holds at one time: ``sm_threads``, ``sm_blocks``, ``sm_registers``, ``sm_shared_bytes``,
    of which each block takes ``block_reserved_bytes`` more than it asked for. ``sm_schedulers`` warps begin an
    instruction each in a cycle.

    A thread has up to ``thread_accesses`` of memory on their way at one time. An exchange among a warp's lanes, with
    the operation on what came, is ``exchange_instructions``; an instruction that reads the last one's result begins
    ``instruction_cycles`` after it.

    How fast it is: ``n_sms`` of ``ghz``, each with ``sm_fmas_per_cycle`` multiply-adds of f32,
    ``sm_exponentials_per_cycle`` to the base 2, and ``sm_bf16_fmas_per_cycle`` in its matrix units, of which
    instructions of one warp reach ``sm_warp_bf16_fmas_per_cycle``. It gets up to ``sm_bytes_per_cycle`` from the cache
    that all share, which gives ``l2_bytes_per_cycle`` to all together. Shared memory has ``shared_banks`` of
    ``bank_bytes``; a thread accesses up to ``access_bytes`` at one time, caches read ``sector_bytes`` of lines of
    ``line_bytes``.
    ``memory_gb_per_s`` is the bus's peak, and ``memory_ns`` how long a thread waits for what is in no cache. A kernel
    of a graph that is replayed takes ``replay_us``.

    ``sources`` says where a number is from, by its name; of those that it leaves out it is assumed.
    """

    arch: str
    chip: str
    triple: str = CUDA_TRIPLE
    has_async_copies: bool = False
    has_mma: bool = False
    has_warpgroup_mma: bool = False
    has_mfma: bool = False
    has_wmma: bool = False

    warp_lanes: int = 32
    max_block_threads: int = 1024
    max_block_extents: tuple[int, int, int] = (1024, 1024, 64)
    max_grid_extents: tuple[int, int, int] = ((1 << 31) - 1, 65535, 65535)
    sm_threads: int = 2048
    sm_blocks: int = 32
    sm_schedulers: int = 4
    sm_registers: int = 64 << 10
    max_thread_registers: int = 255
    warp_register_step: int = 256
    sm_shared_bytes: int = 164 << 10
    max_block_shared_bytes: int = 163 << 10
    static_shared_bytes: int = 48 << 10
    block_reserved_bytes: int = 1 << 10
    thread_accesses: int = 4
    exchange_instructions: int = 4
    instruction_cycles: int = 4
    shared_banks: int = 32
    bank_bytes: int = 4
    access_bytes: int = 16
    sector_bytes: int = 32
    line_bytes: int = 128

    n_sms: int = 108
    ghz: float = 1.41
    sm_fmas_per_cycle: int = 64
    sm_exponentials_per_cycle: int = 16
    sm_bf16_fmas_per_cycle: int = 1024
    sm_warp_bf16_fmas_per_cycle: int = 1024
    sm_bytes_per_cycle: int = 64
    l2_bytes_per_cycle: int = 5120
    l2_bytes: int = 40 << 20
    memory_gb_per_s: float = 1555.0
    memory_ns: float = 600.0
    replay_us: float = 1.5

    name: str = ""
    aliases: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def shapes(self) -> tuple[MatrixShape, ...]:
        """What one instruction of a warp multiplies, out of registers."""
        own = ((self.has_mma, SHAPES), (self.has_mfma, MFMA_SHAPES), (self.has_wmma, WMMA_SHAPES))
        return next((shapes for has, shapes in own if has), ())

    @staticmethod
    def parse(name: str) -> Gpu:
        """The GPU called ``name``; raises :class:`UnknownTargetError` listing the valid names."""
        found = _TABLE.get(_ALIASES.get(name, name))
        if found is None:
            near = get_close_matches(str(name), gpu_names(), 1)
            known = f"use one of: {', '.join(gpu_names())}"
            remedy = f"did you mean {near[0]}? Else {known}" if near else known
            raise UnknownTargetError(f"there is no GPU {name!r:.80}", remedy=remedy)
        return found

    def known(self, source: str, **numbers: float | tuple[int, int, int]) -> Gpu:
        """The same GPU with ``numbers`` that ``source`` gives: a document that a reader can open, or a measurement."""
        changes: dict[str, Any] = {
            **numbers, "sources": tuple({**dict(self.sources), **dict.fromkeys(numbers, source)}.items())
        }  # fmt: skip
        return replace(self, **changes)

    def source_of(self, number: str) -> str:
        """Where a number is from: a document, a measurement, or that it is assumed."""
        return dict(self.sources).get(number, ASSUMED)

    def blocks_per_sm(self, block_threads: int, thread_registers: int, block_shared_bytes: int) -> int:
        """How many blocks a multiprocessor holds at one time; 0 where it holds none.

        Registers are dealt to warps in steps, shared memory with what the system keeps of it.
        """
        warps = -(-block_threads // self.warp_lanes)
        wanted = thread_registers * self.warp_lanes
        step = self.warp_register_step
        by_warp = max(-(-wanted // step), 1) * step
        limits = [
            self.sm_blocks,
            self.sm_threads // (warps * self.warp_lanes),
            self.sm_registers // by_warp // warps,
            self.sm_shared_bytes // max(block_shared_bytes + self.block_reserved_bytes, 1),
        ]
        is_possible = block_threads <= self.max_block_threads and block_shared_bytes <= self.max_block_shared_bytes
        return min(limits) if is_possible else 0


def gpu_names() -> list[str]:
    """Every name that :meth:`Gpu.parse` accepts."""
    return sorted([*_TABLE, *_ALIASES])


def named_gpus(triple: str = "") -> list[Gpu]:
    """Every GPU that has a name here, by generation; those of one kind of code where a triple says which."""
    return [gpu for gpu in _TABLE.values() if triple in ("", gpu.triple)]


def gpu_of_capability(capability: tuple[int, int]) -> Gpu:
    """The GPU whose code runs on one of a compute capability; :class:`UnknownTargetError` where there is none."""
    number = "".join(map(str, capability))
    exact = next((gpu for gpu in _TABLE.values() if gpu.arch == f"sm_{number}a"), None)
    if exact is not None:
        return exact
    oldest = Gpu.parse("cuda")
    if capability < (8, 0):
        has = ".".join(map(str, capability))
        text = f"the oldest code is for {oldest.arch}, and this GPU has compute capability {has}"
        raise UnknownTargetError(text, remedy="use a newer GPU, or tensors of the CPU")
    return oldest


def is_gpu(name: object) -> bool:
    """Is ``name`` that of a GPU? Whoever takes names of both kinds asks here first."""
    return isinstance(name, str) and (name in _TABLE or name in _ALIASES)


def _rows() -> list[Gpu]:
    # What the guide lists for 8.0 holds for 9.0 and 10.0 too, except for the shared memory.
    any_cuda = Gpu("sm_80", "A100", has_async_copies=True, has_mma=True).known(
        CUDA_GUIDE.format("8.0"), warp_lanes=32, max_block_threads=1024, max_block_extents=(1024, 1024, 64),
        max_grid_extents=((1 << 31) - 1, 65535, 65535), sm_threads=2048, sm_blocks=32, sm_registers=64 << 10,
        max_thread_registers=255, sm_shared_bytes=164 << 10, max_block_shared_bytes=163 << 10,
        static_shared_bytes=48 << 10, block_reserved_bytes=1 << 10, shared_banks=32, bank_bytes=4, sm_schedulers=4,
        sm_exponentials_per_cycle=16,
    )  # fmt: skip
    ampere = replace(any_cuda, name="cuda-sm80", aliases=("cuda",)).known(
        AMPERE, n_sms=108, ghz=1.41, sm_fmas_per_cycle=64, sm_bf16_fmas_per_cycle=1024,
        sm_warp_bf16_fmas_per_cycle=1024, l2_bytes=40 << 20, l2_bytes_per_cycle=5120, memory_gb_per_s=1555.0,
    )  # fmt: skip
    hopper = replace(any_cuda, arch="sm_90a", chip="H100 SXM5", has_warpgroup_mma=True, name="cuda-sm90a").known(
        CUDA_GUIDE.format("9.0"), sm_shared_bytes=228 << 10, max_block_shared_bytes=227 << 10
    ).known(
        HOPPER, n_sms=132, ghz=1.83, sm_fmas_per_cycle=128, sm_bf16_fmas_per_cycle=2048, l2_bytes=50 << 20,
        memory_gb_per_s=3352.0,
    )  # fmt: skip
    # Its matrix units no longer take wgmma. The clock and the cache's size are nowhere in the datasheet: assumed.
    blackwell = replace(
        hopper, arch="sm_100a", chip="B200", has_warpgroup_mma=False, name="cuda-sm100a",
        sources=any_cuda.sources, ghz=1.85, l2_bytes=126 << 20, n_sms=148, sm_bf16_fmas_per_cycle=4096,
    ).known(CUDA_GUIDE.format("10.0"), sm_shared_bytes=228 << 10, max_block_shared_bytes=227 << 10).known(
        BLACKWELL, memory_gb_per_s=8000.0
    )  # fmt: skip
    return [ampere, hopper, blackwell, *_rocm_rows(), _opencl_row()]


def _opencl_row() -> Gpu:
    """What most GPUs with OpenCL run; of no chip, so the numbers that choices read are what others have."""
    return Gpu(
        "generic", "any with OpenCL", SPIRV_TRIPLE, max_block_threads=256, max_block_extents=(256, 256, 256),
        max_grid_extents=((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1), sm_shared_bytes=64 << 10,
        max_block_shared_bytes=32 << 10, static_shared_bytes=32 << 10, name="spirv-opencl",
    )  # fmt: skip


def _rocm_rows() -> list[Gpu]:
    """AMD's: a compute unit is what is called a multiprocessor here, a wavefront what is called a warp."""
    any_rocm = Gpu("", "", ROCM_TRIPLE, block_reserved_bytes=0, sector_bytes=64).known(
        AMDGPU, max_block_threads=1024, max_block_extents=(1024, 1024, 1024), max_thread_registers=256,
        max_grid_extents=((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1), sm_shared_bytes=64 << 10,
        max_block_shared_bytes=64 << 10, static_shared_bytes=64 << 10,
    )  # fmt: skip
    # Registers for sums of matrix instructions are as many again, which the strategies don't count on.
    cdna = replace(any_rocm, arch="gfx942", chip="MI300X", has_mfma=True, name="rocm-gfx942").known(
        CDNA3_ISA, warp_lanes=64, sm_threads=2048, sm_schedulers=4, sm_registers=128 << 10, warp_register_step=512,
        shared_banks=32, bank_bytes=4,
    ).known(
        CDNA3, n_sms=304, ghz=2.1, sm_fmas_per_cycle=128, sm_bf16_fmas_per_cycle=1024,
        sm_warp_bf16_fmas_per_cycle=1024, l2_bytes=256 << 20, l2_bytes_per_cycle=8192, memory_gb_per_s=5300.0,
    )  # fmt: skip
    rdna = replace(any_rocm, arch="gfx1100", chip="RX 7900 XTX", has_wmma=True, name="rocm-gfx1100").known(
        RDNA3_ISA, warp_lanes=32, sm_threads=1024, sm_schedulers=2, sm_registers=96 << 10, warp_register_step=768,
        shared_banks=32, bank_bytes=4,
    ).known(
        RDNA3, n_sms=96, ghz=2.5, sm_fmas_per_cycle=128, sm_bf16_fmas_per_cycle=256, sm_warp_bf16_fmas_per_cycle=256,
        l2_bytes=96 << 20, l2_bytes_per_cycle=1400, memory_gb_per_s=960.0,
    )  # fmt: skip
    return [cdna, rdna]


_TABLE: dict[str, Gpu] = {gpu.name: gpu for gpu in _rows()}
_ALIASES: dict[str, str] = {alias: name for name, gpu in _TABLE.items() for alias in gpu.aliases}
