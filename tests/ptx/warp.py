"""What the lanes of a warp do together, between threads of this system: matrix products and `ldmatrix`.

In: LLVM text with NVIDIA's intrinsics, or AMD's. Out: text that calls `Warps.exchange` instead, in which the threads of
a warp meet. Not its business: blocks and barriers (`ptx.threads`).

The layouts are spelled here as NVIDIA's Parallel Thread Execution ISA and AMD's matrix instruction calculator spell
them, apart from `target.matrices`.
"""

import ctypes
import re
import threading

import ml_dtypes
import numpy as np

from ptx import warpgroup

EXCHANGE = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
MMA = {"m16n8k16.row.col.bf16": ml_dtypes.bfloat16, "m16n8k16.row.col.f32.f32": np.float16}
LOADS = ("x2", "x2.trans", "x4", "x4.trans")
SHUFFLES = ("bfly.f32", "bfly.i32")
PAIRS = {"ff2bf16x2.rn": ml_dtypes.bfloat16, "ff2f16x2.rn": np.float16}
AMD_EXCHANGES = ("ds.swizzle", "ds.bpermute")
AMD_PRODUCTS = {
    "mfma.f32.16x16x16bf16.1k": ml_dtypes.bfloat16,
    "mfma.f32.16x16x16f16": np.float16,
    "wmma.f32.16x16x16.bf16.v8f32.v16i16": ml_dtypes.bfloat16,
    "wmma.f32.16x16x16.f16.v8f32.v16f16": np.float16,
}
KINDS = (*MMA, *LOADS, *SHUFFLES, *PAIRS, *AMD_EXCHANGES, *AMD_PRODUCTS)
VECTOR_SLOT = 8
"""Words of 64 bits between operands that are vectors."""
_CALL = re.compile(
    r"= call (\{[^}]*\}|float|i32|<\d+ x \w+>) @llvm\.(?:nvvm|amdgcn)\."
    r"(?:mma\.|ldmatrix\.sync\.aligned\.m8n8\.|shfl\.sync\.)?([\w.]+?)(?:\.b16\.p3)?\((.*)\)$"
)


_ASYNC = re.compile(r"call void @llvm\.nvvm\.cp\.async\.c[ag]\.shared\.global\.(\d+)(\.s)?\(")


def _copies(text: str) -> str:
    """Asynchronous copies as plain ones: `tile.simt` says whether anybody looks at them too early."""
    kinds = sorted(set(_ASYNC.findall(text)))
    text = _ASYNC.sub(r"call void @copy\1\2(", text)
    text = re.sub(r"  call void @llvm\.nvvm\.cp\.async\.(commit\.group|wait\.group)\(.*\)\n", "", text)
    for n, is_sized in kinds:
        # Of a size of 0 nothing is read, not even where the pointer leads.
        text += (
            f"define internal void @copy{n}{is_sized}(ptr addrspace(3) %to, ptr addrspace(1) %of"
            f"{', i32 %size' if is_sized else ''}) nounwind {{\n"
            f"  %all = icmp eq i32 {'%size' if is_sized else n}, {n}\n  br i1 %all, label %read, label %done\n"
            f"read:\n  %v = load <{n} x i8>, ptr addrspace(1) %of, align {n}\n  br label %done\n"
            f"done:\n  %w = phi <{n} x i8> [ zeroinitializer, %0 ], [ %v, %read ]\n"
            f"  store <{n} x i8> %w, ptr addrspace(3) %to, align {n}\n  ret void\n}}\n"
        )
    return text


def host_calls(text: str) -> str:
    """The text with a function of its own for each intrinsic, which hands its operands over by memory."""
    text = warpgroup.host_calls(_copies(text)).replace("@llvm.nvvm.ex2.approx.ftz.f(", "@llvm.exp2.f32(")
    text = re.sub(r"call float @llvm\.nvvm\.rcp\.approx\.ftz\.f\(float ([^)]*)\)", r"fdiv float 1.0, \1", text)
    wrappers = dict[str, str]()

    def change(line: str) -> str:
        found = _CALL.search(line)
        if found is None:
            return line
        result, name, operands = found.groups()
        if name not in KINDS:
            return line
        kinds = [re.match(r"(ptr addrspace\(3\)|<\d+ x \w+>|\w+) ", x)[1] for x in re.split(r", (?=[a-z<])", operands)]
        wrappers[name] = _wrapper(name, result, kinds)
        return f'{line[: found.start()]}= call {result} @"{name}"({operands})'

    lines = [change(line) for line in text.splitlines()]
    if not wrappers and "@exchange" not in text:
        return text
    return "\n".join([*lines, *wrappers.values(), "declare void @exchange(i32, ptr, ptr)", ""])


def _wrapper(name: str, result: str, kinds: list[str]) -> str:
    parameters = ", ".join(f"{kind} %a{k}" for k, kind in enumerate(kinds))
    lines = [f'define internal {result} @"{name}"({parameters}) nounwind {{']
    lines.append("  %given = alloca [64 x i64]\n  %made = alloca [8 x i32]")
    apart = VECTOR_SLOT if name in AMD_PRODUCTS else 1
    for k, kind in enumerate(kinds):
        lines.append(
            f"  %g{k} = getelementptr i64, ptr %given, i64 {apart * k}\n  store {kind} %a{k}, ptr %g{k}, align 4"
        )
    lines.append(f"  call void @exchange(i32 {KINDS.index(name)}, ptr %given, ptr %made)")
    if not result.startswith("{"):
        return "\n".join([*lines, f"  %r = load {result}, ptr %made, align 4\n  ret {result} %r", "}"])
    elements, last = result.strip("{}").split(", "), "poison"
    for k, element in enumerate(elements):
        lines.append(f"  %m{k} = getelementptr i32, ptr %made, i64 {k}\n  %v{k} = load {element}, ptr %m{k}")
        lines.append(f"  %r{k} = insertvalue {result} {last}, {element} %v{k}, {k}")
        last = f"%r{k}"
    return "\n".join([*lines, f"  ret {result} {last}", "}"])


class Warps:
    """The warps of one block: each thread says which lane of which it is before it begins."""

    def __init__(self, n_lanes: int = 32) -> None:
        self.n_lanes = n_lanes
        self.me = threading.local()
        self.meetings: dict[int, threading.Barrier] = {}
        self.given: dict[int, dict[int, bytes]] = {}
        self.made: dict[int, list] = {}
        self.calls: list[str] = []
        self.shared = 0
        self.callback = EXCHANGE(self.exchange)

    def begin(self, number: int) -> None:
        """Thread `number` of its block begins; a warp is so many neighbours."""
        self.me.warp, self.me.lane = divmod(number, self.n_lanes)

    def new_block(self, n_threads: int) -> None:
        n = self.n_lanes
        self.meetings = {w: threading.Barrier(n, timeout=60) for w in range(n_threads // n)}
        self.given = {w: {} for w in self.meetings}
        self.fours = {g: threading.Barrier(128, timeout=60) for g in range(n_threads // 128)}
        self.given_by_fours: dict[int, dict[int, bytes]] = {g: {} for g in self.fours}

    def exchange(self, kind: int, given: int, made: int) -> None:
        """All lanes hand in their operands, one computes, each takes its results."""
        warp, lane = self.me.warp, self.me.lane
        if kind >= warpgroup.FIRST:
            self._of_four(warpgroup.Shape.of(kind), given, made)
            return
        self.given[warp][lane] = ctypes.string_at(given, 512)
        self.meetings[warp].wait()
        if lane == 0:
            name = KINDS[kind]
            self.calls.append(name)
            words = np.array([np.frombuffer(self.given[warp][k], np.uint32) for k in range(self.n_lanes)])
            operands = words if name in AMD_PRODUCTS else words[:, ::2]
            self.made[warp] = self._together(name, warp, operands)
        self.meetings[warp].wait()
        row = np.ascontiguousarray(self.made[warp][lane])
        ctypes.memmove(made, row.ctypes.data, row.nbytes)
        self.meetings[warp].wait()

    def _together(self, name: str, warp: int, operands: np.ndarray) -> np.ndarray:
        """What each lane gets of one instruction."""
        if name in MMA:
            return _product(name, operands)
        if name in SHUFFLES:  # mask, value, distance, clamp
            assert (operands[:, 0] == 0xFFFFFFFF).all() and (operands[:, 3] == 31).all()
            return operands[np.arange(32) ^ operands[:, 2], 1:2]
        if name in AMD_PRODUCTS:
            return _product_by_amd(name, operands)
        if name in AMD_EXCHANGES:
            return _exchanged_by_amd(name, operands)
        if name in PAIRS:  # the high half comes first
            return operands[:, [1, 0]].copy().view(np.float32).astype(PAIRS[name]).view(np.uint32)
        return self._load(name, warp)

    def _of_four(self, shape: warpgroup.Shape, given: int, made: int) -> None:
        """The same of four warps."""
        group, number = self.me.warp // 4, self.me.warp % 4 * 32 + self.me.lane
        self.given_by_fours[group][number] = ctypes.string_at(given, 8 * shape.n_operands)
        self.fours[group].wait()
        if number == 0:
            self.calls.append(f"wgmma.{shape.dtype}.{shape.columns}")
            operands = [self.given_by_fours[group][k] for k in range(128)]
            self.made[-1 - group] = warpgroup.product(shape, operands, self.shared)
        self.fours[group].wait()
        row = np.ascontiguousarray(self.made[-1 - group][number])
        ctypes.memmove(made, row.ctypes.data, row.nbytes)
        self.fours[group].wait()

    def _load(self, name: str, warp: int) -> np.ndarray:
        """Registers by lane: eight rows of 16 bytes for each, whose addresses lanes 8*j to 8*j + 7 give."""
        count = int(name[1])
        at = [int(np.frombuffer(self.given[warp][k], np.uint64)[0]) for k in range(8 * count)]
        assert all(a % 16 == 0 for a in at), "a row that is not aligned"
        rows = np.array([np.frombuffer(ctypes.string_at(a, 16), np.uint16) for a in at]).reshape(count, 8, 8)
        if name.endswith("trans"):
            rows = rows.transpose(0, 2, 1)
        found = np.zeros((32, count), np.uint32)
        for lane in range(32):
            for j in range(count):
                low, high = rows[j, lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
                found[lane, j] = int(low) | int(high) << 16
        return found


def _product_by_amd(name: str, operands: np.ndarray) -> np.ndarray:
    """The sums by lane: each factor is a row or a column, 4 terms of a lane of 64, or all 16 of a lane of 32."""
    n_lanes, slot = len(operands), 2 * VECTOR_SLOT
    is_wave = n_lanes == 64
    n_terms, n_sums = (4, 4) if is_wave else (16, 8)

    def narrow(k: int) -> np.ndarray:
        words = np.ascontiguousarray(operands[:, slot * k : slot * k + n_terms // 2])
        return words.view(np.uint16).view(AMD_PRODUCTS[name]).astype(np.float32)

    left, right = narrow(0), narrow(1)
    sums = np.ascontiguousarray(operands[:, 2 * slot : 2 * slot + n_sums]).view(np.float32)
    if is_wave:
        assert not operands[:, 3 * slot : 6 * slot : slot].any()  # no modifiers
    else:  # the halves of the wave hold the same
        np.testing.assert_array_equal(left[:16], left[16:])
        np.testing.assert_array_equal(right[:16], right[16:])
    a, b, c = np.zeros((16, 16)), np.zeros((16, 16)), np.zeros((16, 16))
    for lane in range(n_lanes):
        for e in range(n_terms):
            k = 4 * (lane // 16) + e if is_wave else e
            a[lane % 16, k], b[k, lane % 16] = left[lane, e], right[lane, e]
        for e in range(n_sums):
            c[4 * (lane // 16) + e if is_wave else 2 * e + lane // 16, lane % 16] = sums[lane, e]
    d = (c + a @ b).astype(np.float32)
    rows = [
        [d[4 * (x // 16) + e if is_wave else 2 * e + x // 16, x % 16] for e in range(n_sums)] for x in range(n_lanes)
    ]
    return np.array(rows, np.float32)


def _exchanged_by_amd(name: str, operands: np.ndarray) -> np.ndarray:
    """By the CDNA3 ISA's `DS_SWIZZLE_B32`, whose pattern is xor, or, and of five bits, and `DS_BPERMUTE_B32`."""
    lanes = np.arange(len(operands))
    if name == "ds.swizzle":
        pattern = operands[:, 1]
        assert (pattern < 1 << 15).all()
        source = lanes // 32 * 32 + (lanes % 32 & pattern & 31 | pattern >> 5 & 31) ^ pattern >> 10
        return operands[source, 0:1]
    assert (operands[:, 0] % 4 == 0).all()
    return operands[operands[:, 0] // 4 % len(lanes), 1:2]


def _product(name: str, operands: np.ndarray) -> np.ndarray:
    """The sums' registers by lane: `operands` has 4 of the left matrix, 2 of the right one, 4 sums."""
    halves = np.ascontiguousarray(operands[:, :6]).view(np.uint16).view(MMA[name]).astype(np.float32).reshape(32, 6, 2)
    sums = np.ascontiguousarray(operands[:, 6:10]).view(np.float32)
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for h in range(2):
            for r, (row, column) in enumerate(((g, 0), (g + 8, 0), (g, 8), (g + 8, 8))):
                a[row, column + 2 * t + h] = halves[lane, r, h]
            for r in range(2):
                b[8 * r + 2 * t + h, g] = halves[lane, 4 + r, h]
                c[g + 8 * r, 2 * t + h] = sums[lane, 2 * r + h]
    d = (c + a @ b).astype(np.float32)
    rows = [
        [d[x // 4, 2 * (x % 4)], d[x // 4, 2 * (x % 4) + 1], d[x // 4 + 8, 2 * (x % 4)], d[x // 4 + 8, 2 * (x % 4) + 1]]
        for x in range(32)
    ]
    return np.array(rows, np.float32)
