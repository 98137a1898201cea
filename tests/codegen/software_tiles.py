"""Matrix registers in software: what Intel's AMX instructions do, for CPUs without them and to look into them.

In: LLVM text that calls the instructions. Out: text that calls functions here, and their addresses.

As Intel's Architecture Instruction Set Extensions Programming Reference says it: a configuration gives each register
its rows and bytes of a row; an operand of another shape than an instruction wants, or of none, is a fault.
"""

import ctypes
from itertools import product

import numpy as np

N_REGISTERS, MOST_ROWS, MOST_BYTES = 8, 16, 64
_BF16 = 16
KINDS = {"u": np.uint8, "s": np.int8}


class SoftwareTiles:
    """Registers of one thread. ``faults`` says what an instruction was refused for; ``counts`` how many there were."""

    def __init__(self):
        self.shapes = [(0, 0)] * N_REGISTERS
        self.registers = [np.zeros((MOST_ROWS, MOST_BYTES), np.uint8) for _ in range(N_REGISTERS)]
        self.faults, self.counts = [], {}
        i8, ptr, i64 = ctypes.c_uint8, ctypes.c_void_p, ctypes.c_int64
        self.functions = {
            "ldtilecfg": self._made(self.configure, ptr),
            "tilerelease": self._made(self.release),
            "tilezero": self._made(self.zero, i8),
            "tileloadd64": self._made(self.load, i8, ptr, i64),
            "tilestored64": self._made(self.store, i8, ptr, i64),
            "tdpbf16ps": self._made(self.multiply_bf16, i8, i8, i8),
        }
        for (left, a), (right, b) in product(KINDS.items(), repeat=2):
            self.functions[f"tdpb{left}{right}d"] = self._made(self._of_bytes(a, b), i8, i8, i8)

    def text(self, text):
        """The text with its instructions called here."""
        for name in self.functions:
            text = text.replace(f"@llvm.x86.{name}(", f"@soft_{name}(")
        return text

    def symbols(self):
        return {f"soft_{name}": ctypes.cast(f, ctypes.c_void_p).value for name, f in self.functions.items()}

    def _made(self, do, *kinds):
        name = do.__name__

        def called(*arguments):
            self.counts[name] = self.counts.get(name, 0) + 1
            try:
                do(*arguments)
            except AssertionError as error:  # nothing may leave a function that C calls
                self.faults.append(f"{name}{arguments}: {error}")

        return ctypes.CFUNCTYPE(None, *kinds)(called)

    def configure(self, at):
        raw = np.frombuffer(ctypes.string_at(at, MOST_BYTES), np.uint8)
        assert raw[0] == 1 and not raw[1:16].any(), "palette 1, and nothing reserved"
        row_bytes, rows = raw[16:32].view(np.uint16), raw[48:56]
        self.shapes = list(zip(map(int, rows), map(int, row_bytes), strict=True))
        assert all((r == 0) == (n == 0) and r <= MOST_ROWS and n <= MOST_BYTES for r, n in self.shapes), self.shapes
        for register in self.registers:
            register[:] = 0

    def release(self):
        self.shapes = [(0, 0)] * N_REGISTERS

    def _of(self, n, dtype=np.uint8):
        rows, row_bytes = self.shapes[n]
        assert rows, f"register {n} has no shape"
        return self.registers[n][:rows, :row_bytes].view(dtype)

    def zero(self, n):
        self._of(n)[:] = 0

    def load(self, n, at, stride):
        rows, row_bytes = self._of(n).shape
        for k in range(rows):
            self._of(n)[k] = np.frombuffer(ctypes.string_at(at + k * stride, row_bytes), np.uint8)

    def store(self, n, at, stride):
        for k, row in enumerate(self._of(n)):
            ctypes.memmove(at + k * stride, np.ascontiguousarray(row).ctypes.data, row.size)

    def _operands(self, sums, left, right, kinds, group):
        (m, k_bytes), (groups, n_bytes) = self.shapes[left], self.shapes[right]
        assert self.shapes[sums] == (m, n_bytes) and k_bytes == 4 * groups, (self.shapes, sums, left, right)
        a = self._of(left, kinds[0])
        b = self._of(right, kinds[1]).reshape(groups, -1, group).transpose(0, 2, 1).reshape(groups * group, -1)
        return a, b

    def multiply_bf16(self, sums, left, right):
        a, b = (
            (x.astype(np.uint32) << _BF16).view(np.float32)
            for x in self._operands(sums, left, right, (np.uint16, np.uint16), 2)
        )
        self._of(sums, np.float32)[:] += a @ b

    def _of_bytes(self, left_kind, right_kind):
        def multiply_bytes(sums, left, right):
            a, b = self._operands(sums, left, right, (left_kind, right_kind), 4)
            self._of(sums, np.int32)[:] += a.astype(np.int32) @ b.astype(np.int32)

        return multiply_bytes
