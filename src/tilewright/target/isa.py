"""What a named machine can do, as data.

In: a row of an instruction set's table. Out: a frozen ``Machine``. Not its business: the computer at hand
(``target.target``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.target.tile import MANY_COPIES


@dataclass(frozen=True)
class Machine:
    """One named CPU model: how LLVM calls it, and its capabilities and typical caches.

    ``abi`` is LLVM's name of the calling convention where the triple leaves a choice, ``attributes`` what every
    function says of itself; ``code_model`` and ``relocation`` are LLVM's. All else is explained at
    ``target.target.Target``.
    """

    triple: str
    cpu: str
    features: str = ""
    abi: str = ""
    code_model: str = "default"
    relocation: str = "pic"
    attributes: str = ""
    pointer_bytes: int = 8
    vector_bytes: int = 16
    n_vector_registers: int = 16
    has_threads: bool = True
    has_f64: bool = True
    has_fma: bool = False
    fma_ports: int = 2
    fma_cycles: int = 1
    load_ports: int = 2
    issue_width: float = 4.0
    has_masks: bool = False
    has_gather: bool = False
    loses_gathers: bool = False
    has_scalef: bool = False
    has_round: bool = False
    has_f16c: bool = False
    has_bf16: bool = False
    has_saturation: bool = True
    has_vnni: bool = False
    has_dotprod: bool = False
    has_i8mm: bool = False
    has_prefetch: bool = True
    l1_bytes: int = 32 << 10
    l2_bytes: int = 256 << 10
    llc_bytes: int = 8 << 20
    max_copies: int = MANY_COPIES
    aliases: tuple[str, ...] = ()
