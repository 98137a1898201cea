"""The register that says how a CPU rounds and what it does with denormal numbers, as LLVM IR text.

In: a CPU's name, the first part of a triple. Out: its ``FloatMode``. Not its business: who sets it (the pool's workers
take their caller's; ``codegen.cpu.flush`` has a program flush denormals).
"""

from __future__ import annotations

from tilewright.runtime.plain import dataclass


@dataclass(frozen=True, slots=True)
class FloatMode:
    """``kind`` is the register's type, ``flush`` the bits by which denormal operands and results count as 0.

    ``save`` and ``restore`` are lines of a function, in which ``{at}`` is a place of memory and ``{n}`` a name's part.
    """

    kind: str
    flush: int
    save: str
    restore: str
    declared: str

    def switched(self, *, flushes: bool) -> str:
        """Lines that keep the mode at ``%kept`` and take it on with denormals flushed, or not."""
        change = f"or {self.kind} %mode, {self.flush}" if flushes else f"and {self.kind} %mode, {~self.flush}"
        return "".join([
            f"  %kept = alloca {self.kind}\n  %switched = alloca {self.kind}\n  store {self.kind} 0, ptr %kept\n",
            self.save.format(at="%kept", n=0),
            f"  %mode = load {self.kind}, ptr %kept\n  %other = {change}\n",
            f"  store {self.kind} %other, ptr %switched\n",
            self.restore.format(at="%switched", n=1),
        ])  # fmt: skip

    def back(self) -> str:
        """Lines that take the mode of before :meth:`switched`."""
        return self.restore.format(at="%kept", n=2)


_X86 = FloatMode(
    "i32",
    1 << 15 | 1 << 6,  # MXCSR: results (FTZ) and operands (DAZ)
    "  call void @llvm.x86.sse.stmxcsr(ptr {at})\n",
    "  call void @llvm.x86.sse.ldmxcsr(ptr {at})\n",
    "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)\n",
)
_ARM = FloatMode(
    "i64",
    1 << 24,  # FPCR: both (FZ)
    "  %saved{n} = call i64 @llvm.aarch64.get.fpcr()\n  store i64 %saved{n}, ptr {at}\n",
    "  %restored{n} = load i64, ptr {at}\n  call void @llvm.aarch64.set.fpcr(i64 %restored{n})\n",
    "declare i64 @llvm.aarch64.get.fpcr()\ndeclare void @llvm.aarch64.set.fpcr(i64)\n",
)
_NONE = FloatMode("i64", 0, "", "", "")


def float_mode(cpu: str) -> FloatMode:
    """That of a CPU; one that does nothing where there is no choice: Armv7's NEON always flushes, RISC-V never does."""
    return {"x86_64": _X86, "aarch64": _ARM, "arm64": _ARM}.get(cpu, _NONE)
