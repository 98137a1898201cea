"""Exported models as C programs: what the tests of this folder share. Skips where there is no C compiler."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tilewright.aot.export import Exported
from tilewright.core.types import Array
from tilewright.runtime.elf import ElfObject
from tilewright.runtime.python.model import CompiledModel
from tilewright.runtime.shapes import ShapeBinder

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "aot"
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
HAS_CC = shutil.which("cc") is not None
needs_cc = pytest.mark.skipif(not HAS_CC, reason="no C compiler (cc) here")
needs_cxx = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler (c++) here")


def build(made: Exported, *extra: str) -> Path:
    """The program that runs any model, linked with one."""
    program = made.object.with_suffix("")
    flags = [f"-DMODEL={made.name}", "-include", str(made.header)]
    if made.weights is not None:
        flags.append(f'-DWEIGHTS="{made.weights}"')
    link([*STRICT, *flags, str(EXAMPLES / "run.c"), str(made.object), *extra], program)
    return program


def link(arguments: Sequence[str], program: Path, compiler: str = "cc") -> None:
    command = [compiler, "-O1", *arguments, "-o", str(program), "-lm", "-lpthread"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr


def run(program: Path, model: CompiledModel, feeds: Mapping[str, Array]) -> bytes:
    """What the program answers to inputs: all outputs' elements."""
    arrays = [np.ascontiguousarray(feeds[spec.name]) for spec in model.inputs]
    m = model.manifest
    values, violations = ShapeBinder(m.inputs, m.symbols, m.constraints).bind([a.shape for a in arrays])
    assert not violations
    dims = [str(values[s.name]) for s in model.symbols]
    ran = subprocess.run(
        [program, *dims], input=b"".join(a.tobytes() for a in arrays), capture_output=True, check=False, timeout=100
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def same_bytes(program: Path, model: CompiledModel, feeds: Mapping[str, Array]) -> None:
    """The program's outputs equal the Python model's bit for bit."""
    expected = model.run(feeds)
    want = b"".join(np.ascontiguousarray(expected[o.name]).tobytes() for o in model.outputs)
    assert run(program, model, feeds) == want


def needed_libraries(file: Path) -> list[str]:
    """The shared libraries that an ELF program or library of 64 bits asks for."""
    data = file.read_bytes()
    sections = {s.name: s for s in ElfObject(data).sections}
    dynamic, names = sections[".dynamic"], sections[".dynstr"].offset
    entries = [struct.unpack_from("<qQ", data, dynamic.offset + k) for k in range(0, dynamic.size, 16)]
    starts = [names + value for tag, value in entries if tag == 1]
    return [data[at : data.index(b"\0", at)].decode() for at in starts]
