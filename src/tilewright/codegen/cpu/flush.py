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
        mode.declared, f"{entry} nounwind {{\nentry:\n",
        f"  %kept = alloca {mode.kind}\n  %flushing = alloca {mode.kind}\n  store {mode.kind} 0, ptr %kept\n",
        mode.save.format(at="%kept", n=0),
        f"  %mode = load {mode.kind}, ptr %kept\n  %other = or {mode.kind} %mode, {mode.flush}\n",
        f"  store {mode.kind} %other, ptr %flushing\n",
        mode.restore.format(at="%flushing", n=1),
        f"  %code = call i32 @{inner}{parameters}\n",
        mode.restore.format(at="%kept", n=2),
        "  ret i32 %code\n}",
    ])  # fmt: skip
