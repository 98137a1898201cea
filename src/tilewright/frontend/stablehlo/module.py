"""MLIR's module of a StableHLO program, text or bytecode.

In: bytes. Out: a module of MLIR's Python bindings, which come with JAX; or ``ImportFailed`` with what MLIR says of it.
Not its business: what the operations mean (``walk``).

MLIR's reader of bytecode trusts it: a damaged file can end the process, or write where it must not. So do its checks of
some operations (``TRUSTING``), also in a text. So a process of its own reads such files and gives the text back, which
this one parses; what a caller made itself is read at once. Its reader of texts recurses: what is nested deeper than its
stack bears is refused before (``nesting``).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

from tilewright.core.diag import ImportFailed, Loc, OptionError, Problem
from tilewright.frontend.stablehlo.nesting import MOST_LEVELS, too_deep
from tilewright.runtime.formats import STABLEHLO, recognise
from tilewright.runtime.once import MAKING

BYTECODE = b"ML\xefR"
"""How MLIR's bytecode begins."""

TRUSTING = (b"chlo.scan",)
"""Operations whose wrong types end the process that parses them (found with jaxlib 0.10)."""

INSTALL = 'pip install "tilewright[jax]"'
SECONDS, BYTES_PER_SECOND = 20, 1 << 20
"""What a process may take to read a file, before it counts as hanging: so long, and a second for so many bytes."""

REFUSED = 3
"""The exit code of a process that read a module and found it wrong."""


def parse(data: bytes, where: str, *, is_trusted: bool = False) -> Any:
    """MLIR's module of a text or of bytecode; ``ImportFailed`` for anything else, with what MLIR says of it.

    With ``is_trusted`` bytecode is read in this process: the caller has it from JAX, not from a file.
    """
    found = None if is_trusted else recognise(memoryview(data))
    if found is not None and found is not STABLEHLO:
        raise _unreadable(where, f"it is {found.what}", found.remedy)
    try:
        with MAKING:
            from jax.extend.mlir import deserialize_portable_artifact, ir
            from jax.interpreters import mlir
    except ImportError as e:
        raise OptionError(f"{where} is a StableHLO program, which MLIR's bindings read", remedy=INSTALL) from e
    if not is_trusted and (data.startswith(BYTECODE) or any(name in data for name in TRUSTING)):
        data = _text_of(data, where)
    context = mlir.make_ir_context()
    said: list[str] = []

    def listen(diagnostic: Any) -> bool:
        with contextlib.suppress(RuntimeError, UnicodeError):  # of damaged names
            said.append(str(diagnostic.message))
        return True  # else MLIR prints it

    context.attach_diagnostic_handler(listen)
    with context:
        try:
            if data.startswith(BYTECODE):
                return deserialize_portable_artifact(data, context)
            text = data.decode("utf-8")
            if not is_trusted and (line := too_deep(text)) is not None:
                raise _unreadable(where, f"line {line} is inside more than {MOST_LEVELS} brackets")
            return ir.Module.parse(text)
        except (ir.MLIRError, RuntimeError, ValueError) as e:
            raise _unreadable(where, "; ".join(said) or str(e).strip() or "MLIR can't read it") from e


def _unreadable(where: str, rule: str, remedy: str = "export it anew") -> ImportFailed:
    return ImportFailed("the StableHLO module can't be read", [Problem(Loc(where), "module", rule, remedy)])


def _text_of(data: bytes, where: str) -> bytes:
    """The text of bytecode, or of a text that MLIR could read, by another process."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; sys.exit(main(sys.argv[1]))"
    seconds = SECONDS + len(data) / BYTES_PER_SECOND
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, where], input=data, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise _unreadable(where, f"MLIR did not end reading it within {seconds:.0f} seconds") from e
    if done.returncode == 0:
        return done.stdout
    if done.returncode == REFUSED:
        raise _unreadable(where, done.stderr.decode(errors="replace").strip())
    raise _unreadable(where, "the module is damaged: MLIR's reader broke off")


def main(where: str) -> int:
    """A module from standard input as text to standard output; what is wrong with it to standard error."""
    try:
        module = parse(sys.stdin.buffer.read(), where, is_trusted=True)
        text = module.operation.get_asm(enable_debug_info=True)
    except ImportFailed as e:
        sys.stderr.write("; ".join(p.rule for p in e.problems))
        return REFUSED
    sys.stdout.buffer.write(text.encode())
    return 0
