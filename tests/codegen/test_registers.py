"""Register tiles of the rules' schedules stay in registers: the assembly of product loops, read per instruction set."""

import re

import pytest
from benchmarks.computations import convolution, matmul

from codegen.native import innermost_loops
from tilewright.choose.default import schedule
from tilewright.codegen.cpu import llvm
from tilewright.target.target import Target

TARGETS = ("x86-64-v3", "x86-64-v4")
SPILL = re.compile(r"%[xyz]mm.*\(%rsp|\(%rsp\).*%[xyz]mm")
PRODUCT = re.compile(r"\tvfmadd")

COMPUTATIONS = {
    "gemm": matmul(384, 768, 768),
    "gemm, ragged": matmul(127, 300, 1000),
    "gemv": matmul(1, 1000, 512),
    "conv 1x1": convolution((1, 28, 28, 128), 256, (1, 1), 1, 0),
    "conv 3x3": convolution((1, 28, 28, 64), 64, (3, 3), 1, 1),
    "conv 3x3, stride 2": convolution((1, 28, 28, 64), 96, (3, 3), 2, 1),
    "conv 7x7 of 3 channels": convolution((1, 112, 112, 3), 64, (7, 7), 2, 3),
}


@pytest.mark.parametrize("target", [Target.parse(name) for name in TARGETS], ids=TARGETS)
@pytest.mark.parametrize("name", COMPUTATIONS)
def test_product_loops_keep_their_vectors_in_registers(name: str, target: Target) -> None:
    computation = COMPUTATIONS[name]
    weights = [b for b in computation.inputs if b.name in ("B", "W")]
    assert weights
    asm = llvm.assembly(schedule(computation, target, weights), target)
    loops = [loop for loop in innermost_loops(asm) if sum(bool(PRODUCT.search(x)) for x in loop) > 1]
    assert loops
    assert [x for loop in loops for x in loop if SPILL.search(x)] == []
