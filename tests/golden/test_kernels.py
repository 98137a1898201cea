"""The code of a dozen kernels, as it is: a file for each kind of nest and target, to read beside the schedule's rules.

A change of the compiler that changes a kernel changes a file here, and its diff is part of the change:
``pytest tests/golden --update-golden`` writes the files. They hold a graph, its kernels' schedules, tile IR and LLVM
text. That the kernels compute the right thing is other tests' business.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nests import NESTS
from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.codegen.cpu.llvm import compile_text
from tilewright.core.text import print_graph
from tilewright.target.target import Target
from tilewright.tile.schedule.book import schedule_text
from tilewright.tile.text import kernel_text, parse_kernel

FOLDER = Path(__file__).parent
AVX512, NEON, CORTEX_M = "x86-64-v4", "aarch64", "cortex-m4"
KERNELS = [
    *((name, AVX512) for name in ("matmul", "conv", "depthwise", "pooling", "softmax", "elementwise", "reduction")),
    *((name, AVX512) for name in ("attention", "scan", "recurrence", "gather", "sort", "transposition")),
    ("quantised", "cascadelake"),
    ("quantised_rows", "sapphirerapids-amx"),
    *((name, NEON) for name in ("matmul", "softmax", "gather", "transposition")),
    ("quantised", "aarch64-dotprod"),
    *((name, CORTEX_M) for name in ("matmul", "softmax", "elementwise", "scan")),
]
N_CORES = 4
"""Of every target, whatever this computer has."""


@pytest.mark.parametrize(("name", "target"), KERNELS, ids=[f"{name}-{target}" for name, target in KERNELS])
def test_code_is_as_it_was(name: str, target: str, request: pytest.FixtureRequest) -> None:
    file, text = FOLDER / f"{name}-{target}.txt", golden_text(name, target)
    if request.config.getoption("--update-golden"):
        file.write_text(text, encoding="utf-8")
    said = difference(file.read_text(encoding="utf-8") if file.exists() else "", text, file.name)
    if said:
        pytest.fail(said, pytrace=False)


def test_every_file_is_compared() -> None:
    assert {p.name for p in FOLDER.glob("*.txt")} == {f"{name}-{target}.txt" for name, target in KERNELS}


def test_a_difference_says_what_and_how_to_update() -> None:
    said = difference("a\nb\nc\n", "a\nd\nc\n", "matmul.txt")
    assert "-b\n+d" in said and "--update-golden" in said
    assert difference("a\n", "a\n", "matmul.txt") == ""


@pytest.mark.parametrize(("name", "target"), [KERNELS[0], KERNELS[-1]])
def test_what_a_file_holds_is_what_the_compiler_reads(name: str, target: str) -> None:
    """Its tile IR parses, its LLVM text compiles."""
    text = (FOLDER / f"{name}-{target}.txt").read_text(encoding="utf-8")
    blocks = dict(block.split("\n", 1) for block in text.split("; --- ")[1:])
    tile, llvm = (next(body for head, body in blocks.items() if head.startswith(kind)) for kind in ("tile", "LLVM"))
    assert kernel_text(parse_kernel(tile)) == tile.rstrip("\n") + "\n"
    assert compile_text(llvm, Target.parse(target))


def golden_text(name: str, target: str) -> str:
    """A graph, and of each of its kernels the schedule, the tile IR and the LLVM text.

    Kernels are called by their places: a name made of the computation's digest would change in every line.
    """
    graph, machine = NESTS[name](), replace(Target.parse(target), n_cores=N_CORES)
    kernels = optimise_and_split(graph, Options(target=target), machine, Clock()).kernels
    texts = kernels.texts()

    def blocks() -> Iterator[tuple[str, str]]:
        yield "graph", print_graph(graph)
        for kernel, llvm in texts.items():
            yield f"schedule of {kernel}", schedule_text(kernel, kernels.schedules[kernel], kernels.labels[kernel])
            yield f"tile IR of {kernel}", kernel_text(kernels.kernels[kernel])
            yield f"LLVM text of {kernel}", llvm

    made = "\n".join(f"; --- {head}\n{text.rstrip()}\n" for head, text in blocks())
    for k, kernel in enumerate(texts):
        made = made.replace(kernel, f"k{k}")
    return made


def difference(old: str, new: str, name: str) -> str:
    """What changed in a golden file, and what to do about it; nothing where they are equal."""
    if old == new:
        return ""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"{name} (golden)", f"{name} (now)", lineterm="")
    shown = "\n".join([line for line, _ in zip(lines, range(80), strict=False)])
    how = "If the change is meant: pytest tests/golden --update-golden, then read and commit the files' diff."
    return f"the code of {name} changed:\n{shown}\n{how}"
