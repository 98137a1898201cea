"""What a schedule needs to know about a machine: a frozen record of capabilities, never a name to compare with.

In: facts measured or looked up by ``target.target``. Out: ``Machine``.
Not its business: instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.types import DType

MANY_COPIES = 256
"""More copies of a loop's body than any rule makes."""


@dataclass(frozen=True)
class Dot:
    """A dot product inside lanes: ``group`` products of narrow elements added to one ``result``.

    ``left`` is the element type of the operand that all lanes share, ``right`` of the one that walks along the lanes.
    ``registers`` is how many an operand's group takes while it is multiplied: 1 with an instruction for the group.
    """

    left: DType
    right: DType
    result: DType
    group: int
    registers: int = 1


@dataclass(frozen=True)
class Machine:
    """One core's vectors and ports, and the caches it sees; without vectors, ``vector_bytes`` are those of a register.

    ``load_ports`` counts vector loads per cycle, ``issue_width`` fused operations per cycle. Addresses ``set_span``
    bytes apart fall into the same set of the first-level cache. ``dots`` are the groups of narrow products that are
    cheaper than widening each element.
    ``max_copies`` is how many copies of a loop's body a schedule may make: with fewer, code is smaller and slower.
    """

    vector_bytes: int = 64
    n_vector_registers: int = 32
    fma_ports: int = 2
    has_fma: bool = True
    has_masks: bool = True
    has_prefetch: bool = True
    fma_latency: int = 4
    load_ports: int = 2
    issue_width: float = 4.0
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    llc_bytes: int = 32 * 1024 * 1024
    n_cores: int = 2
    ghz: float = 2.5
    set_span: int = 4096
    dots: tuple[Dot, ...] = ()
    max_copies: int = MANY_COPIES

    @property
    def large_bytes(self) -> int:
        """From so many on, a result goes to memory and comes back: the second-level cache keeps little of it."""
        return 2 * self.l2_bytes

    def lanes(self, dtype: DType) -> int:
        """How many elements of ``dtype`` fill one vector register (at least 1)."""
        return max(self.vector_bytes // dtype.n_bytes, 1)
