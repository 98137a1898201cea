"""Where the numbers of a machine are from, as its record says it.

In: nothing. Out: texts: documents by publisher, number and title, pages of measurements, and words for the rest.
Not its business: the numbers (``x86``, ``aarch64``, ``arm``, ``riscv``, ``wasm``), measuring them
(``codegen.cpu.calibrate``).
"""

from __future__ import annotations

ASSUMED = "assumed"
"""By nobody's measurement: what machines of the kind mostly have."""
INSTRUCTION_SET = "the instruction set"
SYSTEM = "the operating system"
MEASURED = "measured here"
"""By ``tilewright doctor --calibrate``."""

INTEL = "Intel 248966, Optimization Reference Manual, {}"
UOPS = "uops.info, VFMADD231PS ({})"
AMD_ZEN3 = "AMD 56665, Software Optimization Guide for Zen 3"
AMD_ZEN4 = "AMD 57647, Software Optimization Guide for Zen 4"
AMD_ZEN5 = "AMD 58455, Software Optimization Guide for Zen 5"

ARM_GUIDE = "Arm {} Software Optimization Guide"
ARM_MANUAL = "Arm {} Technical Reference Manual"
LLVM = "LLVM, {}"
"""A model of a CPU for LLVM's own scheduling, by its file."""
APPLE = "macOS on Apple M1, sysctl hw"
FIRESTORM = "dougallj.github.io/applecpu/firestorm.html"

CUDA_GUIDE = "NVIDIA, CUDA C++ Programming Guide, technical specifications of compute capability {}"
PTX_GUIDE = "NVIDIA, Parallel Thread Execution ISA, {}"
AMPERE = "NVIDIA, A100 Tensor Core GPU Architecture"
HOPPER = "NVIDIA, H100 Tensor Core GPU Architecture"
BLACKWELL = "NVIDIA, DGX B200 datasheet"
CDNA3_ISA = "AMD, Instinct MI300 Instruction Set Architecture Reference Guide (CDNA3)"
CDNA3 = "AMD, CDNA 3 white paper, and MI300X data sheet"
RDNA3_ISA = "AMD, RDNA3 Instruction Set Architecture Reference Guide"
RDNA3 = "AMD, Radeon RX 7900 XTX specifications"
AMDGPU = "LLVM, User Guide for AMDGPU Backend"
