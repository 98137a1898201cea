"""The threads of an exported object: the runtime's pool, or a loop where there is none.

In: a ``System`` and how many threads a model may use. Out: LLVM text that defines ``tw_parallel_for``.
Not its business: how the pool works (``runtime.cpu.pool``).
"""

from __future__ import annotations

from tilewright.aot.system import System
from tilewright.runtime.cpu.pool import pool_ir

POOL_SYMBOLS = ("tw_parallel_for", "tw_pool_reset", "tw_pool_spin", "tw_pool_workers")

_SERIAL = """
define internal void @tw_parallel_for(ptr %fn, ptr %ctx, i64 %n, i32 %threads) {
entry:
  br label %test
test:
  %task = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %task, %n
  br i1 %more, label %body, label %done
body:
  call void %fn(ptr %ctx, i64 %task)
  %next = add i64 %task, 1
  br label %test
done:
  ret void
}
"""


def pool_text(system: System, max_threads: int, name: str) -> str:
    """``tw_parallel_for``; with threads also ``NAME_after_fork``.

    The pool's own symbols are weak and hidden: of several in one link, the linker takes one, or the program's own.
    """
    if max_threads == 1 or system.pool is None:
        return _SERIAL
    text = pool_ir(system.pool)
    for symbol in POOL_SYMBOLS:
        for kind in ("void", "i32"):
            text = text.replace(f"define {kind} @{symbol}(", f"define weak hidden {kind} @{symbol}(")
    return text + f"\ndefine void @{name}_after_fork() {{\n  call void @tw_pool_reset()\n  ret void\n}}\n"
