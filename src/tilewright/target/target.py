"""The machine that code is made for, as one frozen record: capabilities that every stage reads, never names.

In: ``"native"`` or a machine's name. Out: a ``Target``. Not its business: what a CPU can do (a row in the file of its
instruction set), what an instruction looks like (``codegen.cpu.llvm``).
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import ceil, log2
from typing import Any

import llvmlite.binding as llvm

from tilewright.core.types import DType, bf16, f32
from tilewright.runtime.host import data_caches
from tilewright.runtime.matrix_registers import usable
from tilewright.runtime.once import once
from tilewright.runtime.threads import available_cpus
from tilewright.target import aarch64, arm, riscv, wasm, x86
from tilewright.target.dots import BF16_BY_SHIFTS, BF16_PAIRS, BYTE_PAIRS, BYTES, HALVES, WORDS, WORDS_BY_BYTES, Dot
from tilewright.target.errors import UnknownTargetError
from tilewright.target.gpu import gpu_names, is_gpu
from tilewright.target.sources import ASSUMED, SYSTEM
from tilewright.target.tiles import AMX_BF16, AMX_INT8, TileUnit

MANY_COPIES = 256
"""More copies of a loop's body than any rule makes."""
SMALL_COPIES = 4
ADDRESSES = 4
"""General registers that a loop over a tile of sums takes for two operands, its counter and the stack."""
UNPACKING = 3
"""Vector registers beside sums of unpacked codes: a word, what is unpacked of it, an element of a row."""
ADDRESS_BITS = 47
"""Of an address that a process of a 64-bit system may use, on x86-64 and AArch64."""
NUMBERS = {
    "vector_bytes": "B", "n_vector_registers": "", "n_general_registers": "",
    "fma_ports": "", "fma_cycles": "cycles", "fma_latency": "cycles", "load_ports": "", "load_cycles": "cycles",
    "store_ports": "", "store_cycles": "cycles", "issue_width": "per cycle", "window": "", "ghz": "GHz",
    "unforeseen_cycles": "cycles",
    "l1_bytes": "B", "set_span": "B", "l2_bytes": "B", "l2_ways": "", "llc_bytes": "B", "llc_ways": "",
    "llc_core_bytes": "B",
    "line_bytes": "B", "page_bytes": "B", "n_streams": "", "n_near_pages": "", "page_cycles": "cycles",
    "l2_bytes_per_cycle": "B/cycle", "llc_bytes_per_cycle": "B/cycle",
    "memory_gb_per_s": "GB/s", "memory_gb_per_s_all": "GB/s", "llc_ns": "ns", "memory_ns": "ns", "wake_us": "us",
    "fork_cycles": "cycles",
}  # fmt: skip
"""The record's numbers that describe a CPU, with their units."""
OF_THE_WIDTH = ("load_cycles", "store_cycles")
"""Numbers that a CPU's row gives for its widest vectors, which a virtual machine may hide."""
UNREAD = (
    "fma_latency", "load_ports", "store_ports", "issue_width", "window", "ghz", "set_span", "llc_ways",
    "line_bytes", "l2_bytes_per_cycle", "llc_bytes_per_cycle", "memory_gb_per_s", "memory_gb_per_s_all", "wake_us",
    "fork_cycles",
)  # fmt: skip
"""Numbers that choices take from a CPU's family instead of from its own row, until it is measured what each changes."""
_TRIPLES = {
    ("x86_64", "windows"): "x86_64-pc-windows-msvc",
    ("x86_64", "macos"): "x86_64-apple-macosx11.0.0",
    ("aarch64", "windows"): "aarch64-pc-windows-msvc",
    ("aarch64", "macos"): "arm64-apple-macosx11.0.0",
}
"""Other systems by instruction set and the name that a target's ends with."""


@dataclass(frozen=True)
class Target:
    """What every stage may rely on. ``name`` and ``aliases`` are for people; nothing compares them.

    For LLVM: ``features`` is its feature string; ``abi``, ``code_model``, ``relocation`` and ``attributes`` are the
    convention of calls where the triple leaves a choice, the models of code and of relocation, and what every function
    says of itself. ``max_copies`` is the most copies of a loop's body that a kernel may hold.

    What it can do: ``has_threads``: a parallel loop may ask the thread pool. ``has_f64``: instructions for double
    precision. ``has_fma``: for ``a * b + c``, of double precision where there is that. ``has_word_fma``: for the same
    of 32-bit integers in vectors, at the cost of that of floats, from bytes that a load widens. ``has_masks``: masked
    loads, stores and arithmetic are as cheap as plain ones. ``has_gather``: a gather beats scalar loads.
    ``loses_gathers``: LLVM aborts where a gather turns out to be dead (``codegen.llvm.refusals``).
    ``loses_fixed_points``: so it does where a vector of integers becomes floats times a power of two, or floats times
    one become integers. ``has_scalef``: one instruction for ``x * 2**n`` and one for ``x - rint(x)``. ``has_round``:
    instructions for floor, ceil, trunc, rint.
    ``has_nearest``: one that rounds floats of a vector to the nearest 32-bit integers, 0x80000000 for what has none.
    ``has_f16c``: for half precision conversion. ``has_saturation``: conversions of floats to integers saturate by
    themselves. ``has_vnni``: four bytes times four, unsigned by signed, into 32 bits; ``has_i8mm``: the same of
    AArch64, ``has_dotprod``: its signed by signed alone. ``word_pairs``: the instruction that multiplies two 16-bit
    integers by two and adds both products, into 32 bits (``target.dots`` names them); empty where there is none;
    ``has_byte_pairs``: two bytes times two, unsigned by signed, into 16 bits, which saturate. ``has_halves``: two
    16-bit integers of a general register times two, both products added to a third.
    ``byte_lookup``: the instruction that chooses bytes of one register by those of another, within each 16 bytes
    (``target.lookups`` names them); ``word_product``: the one that multiplies two 16-bit integers into 32 bits in each
    lane (``target.products``). Both are empty where there is none.
    ``has_amx_bf16``, ``has_amx_int8``: matrix registers, and products of theirs (``target.tiles``).
    ``has_prefetch``: an instruction that asks for a line ahead does something.

    How fast it is, one core unless it says otherwise: ``fma_ports`` units multiply and add, each a vector in
    ``fma_cycles``; the next multiply-add of a sum begins ``fma_latency`` cycles after the last. ``load_ports`` and
    ``store_ports`` move a vector in ``load_cycles`` and ``store_cycles`` each. ``issue_width`` operations begin in a
    cycle, of which ``ghz`` thousand millions make a second, and a core looks ``window`` of them ahead of the oldest one
    that waits. A branch that it foresaw wrongly costs ``unforeseen_cycles``: what was begun behind it is thrown away.
    Caches read and write lines of ``line_bytes``, and look ahead within pages of ``page_bytes``, along ``n_streams`` of
    them at a time. A core knows where the last ``n_near_pages`` are, and another page takes ``page_cycles``; addresses
    ``set_span`` bytes apart fall into the same set of the first-level cache. A core reads ``l2_bytes_per_cycle`` from
    its second-level cache and ``llc_bytes_per_cycle`` from the one behind it, to which it writes as many meanwhile, and
    which has ``llc_core_bytes`` for each of the cores that share it; ``memory_gb_per_s`` from memory, and all cores
    together ``memory_gb_per_s_all``. A line comes ``llc_ns`` after it is asked for from the last cache, and
    ``memory_ns`` from memory where other cores read there as well: who asks too early waits for nothing, and too late
    for every line.
    Sleeping threads take ``wake_us`` to begin; a loop shared among waiting ones takes ``fork_cycles`` besides its
    iterations.

    ``sources`` says where a number is from, by its name; of those that it leaves out it is assumed. ``assumed`` has
    what choices take in place of some of them (:meth:`judged`).
    """

    triple: str
    cpu: str
    features: str = ""
    abi: str = ""
    code_model: str = "default"
    relocation: str = "pic"
    attributes: str = ""
    max_copies: int = MANY_COPIES
    pointer_bytes: int = 8
    vector_bytes: int = 16
    n_vector_registers: int = 16
    n_general_registers: int = 16

    has_threads: bool = True
    has_f64: bool = True
    has_fma: bool = False
    has_word_fma: bool = False
    has_masks: bool = False
    has_gather: bool = False
    loses_gathers: bool = False
    loses_fixed_points: bool = False
    has_scalef: bool = False
    has_round: bool = False
    has_nearest: bool = False
    has_f16c: bool = False
    has_bf16: bool = False
    has_saturation: bool = True
    has_vnni: bool = False
    has_dotprod: bool = False
    has_i8mm: bool = False
    has_amx_bf16: bool = False
    has_amx_int8: bool = False
    word_pairs: str = ""
    has_byte_pairs: bool = False
    has_halves: bool = False
    byte_lookup: str = ""
    word_product: str = ""
    has_prefetch: bool = True

    n_cores: int = 1
    fma_ports: int = 2
    fma_cycles: int = 1
    fma_latency: float = 4
    load_ports: int = 2
    load_cycles: int = 1
    store_ports: int = 1
    store_cycles: int = 1
    issue_width: float = 4.0
    window: int = 128
    unforeseen_cycles: float = 20.0
    ghz: float = 2.5
    l1_bytes: int = 32 << 10
    set_span: int = 4096
    l2_bytes: int = 256 << 10
    l2_ways: int = 8
    llc_bytes: int = 8 << 20
    llc_ways: int = 16
    llc_core_bytes: int = 16 << 20
    line_bytes: int = 64
    page_bytes: int = 4096
    n_streams: int = 12
    n_near_pages: int = 64
    page_cycles: float = 4.0
    l2_bytes_per_cycle: float = 32.0
    llc_bytes_per_cycle: float = 8.0
    memory_gb_per_s: float = 11.25
    memory_gb_per_s_all: float = 22.5
    llc_ns: float = 100.0
    memory_ns: float = 250.0
    wake_us: float = 8.0
    fork_cycles: float = 1500.0

    name: str = ""
    aliases: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    assumed: tuple[tuple[str, float], ...] = ()

    @staticmethod
    def parse(name: str) -> Target:
        """The target called ``name``, or ``native``; raises :class:`UnknownTargetError` listing the valid names.

        A machine that runs Linux may be asked for with another system: ``x86-64-v3-windows``, ``aarch64-macos``.
        """
        if not isinstance(name, str):
            raise UnknownTargetError(f"there is no target {name!r:.80}", remedy=_remedy("native"))
        if name == "native":
            return Target.host()
        if is_gpu(name):
            remedy = "name a CPU; tilewright.compile(..., target=NAME) and tilewright ir --target NAME take GPUs"
            raise UnknownTargetError(f"{name} is a GPU, which this makes no code for", remedy=remedy)
        canonical = _ALIASES.get(name, name)
        machine = _TABLE.get(canonical) or _on_other_system(name)
        if machine is None:
            raise UnknownTargetError(f"there is no target {name!r}", remedy=_remedy(name))
        return replace(machine, name=canonical, n_cores=available_cpus())

    @staticmethod
    def host() -> Target:
        """The computer at hand: its CPU model, features and caches."""
        return replace(_host(), n_cores=available_cpus())

    def known(self, source: str, **numbers: float) -> Target:
        """The same machine with ``numbers`` that ``source`` gives: a document that a reader can open, or a measurement.

        Those that choices do not read yet (``UNREAD``) keep what they were for :meth:`judged`.
        """
        kept = {name: getattr(self, name) for name in numbers if name in UNREAD} | dict(self.assumed)
        sources = dict(self.sources) | dict.fromkeys(numbers, source)
        changes: dict[str, Any] = {**numbers, "sources": tuple(sources.items()), "assumed": tuple(kept.items())}
        return replace(self, **changes)

    def judged(self) -> Target:
        """The machine that choices are made for: where its own numbers are not read yet, with those of its family."""
        changes: dict[str, Any] = dict(self.assumed)
        return replace(self, **changes, assumed=(), sources=())

    def source_of(self, number: str) -> str:
        """Where a number is from: a document, a measurement, or that it is assumed."""
        return dict(self.sources).get(number, ASSUMED)

    def for_size(self) -> Target:
        """The same machine with small code: one thread, few copies of loops' bodies, short instructions."""
        attributes = f"{self.attributes} minsize optsize".lstrip()
        return replace(self, attributes=attributes, max_copies=SMALL_COPIES, n_cores=1)

    def lanes(self, dtype: DType) -> int:
        """How many elements of ``dtype`` fill one vector register (at least 1)."""
        return max(self.vector_bytes // dtype.n_bytes, 1)

    @property
    def guesses_branches(self) -> bool:
        """Every CPU does, and on the smallest, which don't, a branch that isn't taken is one cycle."""
        return True

    @property
    def multiplies(self) -> int:
        """How many f32 a core multiplies and adds in a cycle."""
        return self.lanes(f32) * self.fma_ports // self.fma_cycles

    @property
    def fmas_per_cycle(self) -> float:
        """How many vectors a core multiplies and adds in a cycle."""
        return self.fma_ports / self.fma_cycles

    @property
    def load_bytes_per_cycle(self) -> float:
        """What a core reads from its first-level cache."""
        return self.vector_bytes * self.load_ports / self.load_cycles

    @property
    def store_bytes_per_cycle(self) -> float:
        """What a core writes to its first-level cache."""
        return self.vector_bytes * self.store_ports / self.store_cycles

    def line(self, dtype: DType) -> int:
        """How many elements of ``dtype`` a line of a cache holds (at least 1)."""
        return max(self.line_bytes // dtype.n_bytes, 1)

    def line_ns(self, n_bytes: float) -> float:
        """How long a line takes to come of so many bytes that no near cache keeps."""
        return self.llc_ns if n_bytes <= self.llc_bytes else self.memory_ns

    @property
    def memory_bytes_per_cycle(self) -> float:
        """What a core reads from memory."""
        return self.memory_gb_per_s / self.ghz

    @property
    def most_bytes(self) -> int:
        """What no tensor may take: half of what a process can address."""
        return 1 << min(8 * self.pointer_bytes, ADDRESS_BITS) - 1

    @property
    def large_bytes(self) -> int:
        """From so many on, a result goes to memory and comes back: the second-level cache keeps little of it."""
        return 2 * self.l2_bytes

    @property
    def l2_kept_bytes(self) -> int:
        """What stays in the second-level cache while as much passes through it."""
        return self.l2_bytes // 2

    @property
    def l2_part_bytes(self) -> int:
        """What an operand that is read again may take of the second-level cache, since others pass through it."""
        return self.l2_bytes // 4

    @property
    def llc_kept_bytes(self) -> int:
        """What these cores find again in the last cache. The others that share it a virtual machine does not show."""
        return min(self.llc_bytes, self.n_cores * self.llc_core_bytes)

    @property
    def waiting_sums(self) -> int:
        """As many sums keep the units that multiply and add busy, though each waits for its last addition."""
        return ceil(self.fma_latency * self.fma_ports)

    @property
    def window_sums(self) -> int:
        """The most sums of a window in a tile. More make its borders' versions longer, and save few loads."""
        return max(self.n_vector_registers // 4, self.waiting_sums)

    @property
    def rows_in_step(self) -> int:
        """Rows of instructions that take turns: of an elementary function each has some four values at a time."""
        return max(self.n_vector_registers // 4, 1)

    def words_of_a_row(self, n_codes: int, begun: float | None = None) -> int:
        """Of words of so many codes, how many lie beside each other: with the sums of all codes, 32 bits each, of one
        row they keep the units that multiply and add busy, as far as registers hold them beside what is multiplied.
        ``begun`` is how many vectors of products begin in a cycle, where that is less than the units could."""
        chains = self.fma_latency * (self.fmas_per_cycle if begun is None else begun)
        return self.lanes(f32) * max(min(ceil(chains), self.n_vector_registers - UNPACKING) // n_codes, 1)

    @property
    def partial_sums(self) -> int:
        """Parts of one sum, a power of two, with which an addition begins in every cycle: far caches bring no more."""
        return 1 << ceil(log2(max(self.fma_latency, 1)))

    @property
    def folding_cycles(self) -> float:
        """How long the lanes of one vector take to become a sum: three additions, each of which waits for the last.

        Vectors of eight lanes have three halvings. Of sixteen the first is one more, but beside other work.
        """
        return 3 * self.fma_latency

    @property
    def adding_cycles(self) -> float:
        """The same for each of many vectors: their additions don't wait for each other, and one is the last."""
        return self.fma_latency

    @property
    def has_vectors(self) -> bool:
        """Does a register hold more than one number of 32 bits?"""
        return self.vector_bytes > f32.n_bytes

    def holding(self, dtype: DType) -> Target:
        """This machine as sums of a type see it: without vectors, integers lie in the general registers."""
        if dtype.is_float or self.has_vectors:
            return self
        left = min(self.n_vector_registers, self.n_general_registers - ADDRESSES)
        return replace(self, n_vector_registers=left)

    @property
    def dots(self) -> tuple[Dot, ...]:
        """The groups of narrow products that are cheaper than widening each element, the cheapest first."""
        integers = (BYTES,) if self.has_vnni or self.has_dotprod else (BYTE_PAIRS,) if self.has_byte_pairs else ()
        integers = (HALVES,) if self.has_halves else integers
        words = (WORDS, *WORDS_BY_BYTES) if self.word_pairs else ()
        return (*integers, *words, BF16_PAIRS if self.has_bf16 else BF16_BY_SHIFTS)

    @property
    def tile_units(self) -> tuple[TileUnit, ...]:
        """What instructions on matrix registers multiply."""
        return (AMX_BF16 if self.has_amx_bf16 else ()) + (AMX_INT8 if self.has_amx_int8 else ())

    @property
    def bf16_per_lane(self) -> int:
        """How many products of bf16 a core adds up for each f32 that it multiplies and adds, at most."""
        units = [u.rows * u.columns * u.depth / u.cycles for u in self.tile_units if u.left is bf16]
        by_lanes = BF16_PAIRS.group if self.has_bf16 else 1
        return max([by_lanes, *[round(n / self.multiplies) for n in units]])

    @property
    def is_native(self) -> bool:
        """Can code for this target run in this process? True only for :meth:`host`; a named target may be too new."""
        return self.name == "native"


_UNKNOWN = Target("", "")
"""What a row says nothing about is as here."""
_TABLE: dict[str, Target] = {
    **x86.machines(_UNKNOWN),
    **aarch64.machines(_UNKNOWN),
    **arm.machines(_UNKNOWN),
    **riscv.machines(_UNKNOWN),
    **wasm.machines(_UNKNOWN),
}
_ALIASES: dict[str, str] = {alias: name for name, m in _TABLE.items() for alias in m.aliases}


def target_names() -> list[str]:
    """Every name that :meth:`Target.parse` accepts."""
    return ["native", *sorted([*_TABLE, *_ALIASES])]


def named_targets() -> list[Target]:
    """Every machine that has a name here, with that name, in the order of its instruction set's file."""
    return [Target.parse(name) for name in _TABLE]


def _remedy(name: str) -> str:
    """What to write instead of an unknown name: the name that it is likely a spelling of, and how to see them all."""
    spelled = name.strip().lower().replace("_", "-")
    names = [*target_names(), *gpu_names()]
    near = [known for known in target_names() if spelled.startswith(known)]
    if not near:  # the architecture as LLVM's triples and compilers for microcontrollers call it
        architecture = name.strip().lower().partition("-")[0]
        near = [known for known, m in _TABLE.items() if m.triple.partition("-")[0] == architecture][:1]
    near = [max(near, key=len)] if near else _named_in_part(name, names) or get_close_matches(spelled, names, 1)
    known = f"use one of: {', '.join(names)}; behind those of x86-64 and AArch64 may stand -windows or -macos"
    return f"did you mean {near[0]}? Else {known}" if near else known


def _named_in_part(name: str, names: Sequence[str]) -> list[str]:
    """The shortest name that ends with what was typed, or else has it within, but for marks: of ``m4``, ``A53``."""
    typed = _letters(name)
    if not typed:
        return []
    found = [n for n in names if _letters(n).endswith(typed)] or [n for n in names if typed in _letters(n)]
    return sorted(found, key=len)[:1]


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _on_other_system(name: str) -> Target | None:
    """The machine ``NAME-SYSTEM`` for a system other than the table's."""
    stem, _, system = name.rpartition("-")
    machine = _TABLE.get(_ALIASES.get(stem, stem))
    triple = None if machine is None else _TRIPLES.get((machine.triple.split("-")[0], system))
    if machine is None or triple is None:
        return None
    # Only Linux is asked for matrix registers.
    features = "" if machine.tile_units else machine.features
    return replace(machine, triple=triple, features=features, has_amx_bf16=False, has_amx_int8=False)


@once
def _host() -> Target:
    """The computer at hand, but for its share of the CPUs, which may change while the process lives."""
    cpu = llvm.get_host_cpu_name()
    features = usable(llvm.get_host_cpu_features().flatten())
    if platform.machine().lower() in ("x86_64", "amd64"):
        flags = {f[1:] for f in features.split(",") if f.startswith("+")}
        machine = x86.from_features(_TABLE, cpu, features, flags)
    else:
        machine = Target(llvm.get_default_triple(), cpu, features, has_fma=True, has_round=True)
    row = _TABLE.get(cpu, machine)
    own = {*UNREAD, *(OF_THE_WIDTH if row.vector_bytes == machine.vector_bytes else ())}
    for number, source in row.sources:
        if number in own or getattr(row, number) == getattr(machine, number):
            machine = machine.known(source, **{number: getattr(row, number)})
    return replace(machine.known(SYSTEM, **_host_caches()), name="native")


def _host_caches() -> dict[str, int]:
    """First-level, second-level and last cache in bytes, and the ways of the second, as far as the system tells."""
    caches = data_caches()
    levels = {"l1_bytes": 1, "l2_bytes": 2, "llc_bytes": max(caches, default=0)}
    found = {name: caches[level].n_bytes for name, level in levels.items() if level in caches}
    if 2 in caches and caches[2].n_ways:
        found["l2_ways"] = caches[2].n_ways
    return found
