"""An entry function that counts denormal numbers as 0, as XLA's and TensorFlow's calls do on CPUs.

In: a program's entry. Out: the function that sets the mode before it and gives the caller's back behind it.
Not its business: the register (``runtime.cpu.float_mode``); other threads, which take the mode of who calls them.
"""

from __future__ import annotations

from tilewright.runtime.cpu.float_mode import float_mode


def flushing(entry: str, inner: str, triple: str) -> str:
    """``entry``, a definition with names of its parameters, as a call of the function ``inner`` of the same type."""
    mode = float_mode(triple.partition("-")[0])
    parameters = entry[entry.index("(") :]
    return "".join([
        mode.declared, f"{entry} nounwind {{\nentry:\n", mode.switched(flushes=True),
        f"  %code = call i32 @{inner}{parameters}\n", mode.back(), "  ret i32 %code\n}",
    ])  # fmt: skip
