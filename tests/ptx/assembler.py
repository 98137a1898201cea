"""NVIDIA's assembler, where it is installed: what it says of PTX.

In: PTX and the GPU's instruction set. Out: registers, spills, stack and shared memory of every entry; machine code.
Not its business: running it.
"""

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Usage:
    """What an entry takes of a GPU."""

    registers: int
    spilled_bytes: int
    stack_bytes: int
    shared_bytes: int


def tool(name: str) -> str | None:
    """The program of PyPI's `nvidia-cuda-nvcc` or `nvidia-cuda-nvdisasm`, or of the system."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for found in Path(folder).glob(f"*/bin/{name}"):
            return str(found)
    return shutil.which(name)


needs_ptxas = pytest.mark.skipif(tool("ptxas") is None, reason="ptxas is not installed (the extra `ptxas`)")


def assemble(ptx: str, arch: str, folder: Path) -> dict[str, Usage]:
    """By entry; raises for what ptxas refuses."""
    source, target = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    command = [str(tool("ptxas")), "-v", f"-arch={arch}", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{ptx}"
    found = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        numbers = {
            name: int(match[1]) if (match := re.search(rf"(\d+) {name}", part)) else 0
            for name in ("registers", "bytes spill stores", "bytes spill loads", "bytes stack frame", "bytes smem")
        }
        spilled = numbers["bytes spill stores"] + numbers["bytes spill loads"]
        found[part.split("'")[0]] = Usage(
            numbers["registers"], spilled, numbers["bytes stack frame"], numbers["bytes smem"]
        )
    return found


def machine_code(folder: Path) -> str | None:
    """The instructions of what was assembled last, by name; None where nvdisasm is not installed."""
    program = tool("nvdisasm")
    if program is None:
        return None
    command = [program, "-c", str(folder / "kernel.cubin")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
