"""Kernels for AMD's GPUs: their LLVM text on this CPU, a thread of the system for each lane, and their objects."""

import re
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from ptx import by_hand
from ptx.test_kernels import floats
from ptx.threads import Threads
from tilewright.codegen.amd.compile import compile_kernel, emit
from tilewright.codegen.amd.notes import metadata_of, usage_of
from tilewright.codegen.cpu.llvm import target_machine
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.ptx.compile import compile_kernel as compile_to_ptx
from tilewright.target.gpu import ROCM_TRIPLE, Gpu, named_gpus
from tilewright.target.target import Target
from tilewright.tile.text import kernel_text, parse_kernel

GPUS = named_gpus(ROCM_TRIPLE)
EACH = pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.arch)
PLAIN = (
    by_hand.POINTWISE, by_hand.RAGGED, by_hand.ROWS, by_hand.PRODUCT, by_hand.TWO_GRIDS, by_hand.LONG,
    by_hand.BIG_SHARED,
)  # fmt: skip
ACROSS = """kernel across
  lanes {lanes}
  place x: f32[2, {lanes}] global in
  place y: f32[2, {lanes}] global out
  place part: f32[{lanes}] reg tmp
  place all: f32[] reg tmp
  body
    for b[0:0] < 1 block
      for w[0:1] < 2 thread
        for i[0:{last}] < {lanes} warp
          part[i] = x[w, i]
        all[] = -inf:f32
        for l[0:{last}] < {lanes} warp
          all[] max= part[l]
        for o[0:{last}] < {lanes} warp
          y[w, o] = all[]
"""
"""What the lanes of each of two warps exchange until all have the greatest."""


def across(gpu: Gpu) -> str:
    return ACROSS.format(lanes=gpu.warp_lanes, last=gpu.warp_lanes - 1)


@EACH
def test_text_runs_here(gpu: Gpu) -> None:
    x, y = floats(3, 512), floats(3, 512)
    Threads(by_hand.kernel(by_hand.POINTWISE), gpu.name)({"x": x, "y": y}, {"n": 3})
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)
    x, y = floats(3, 96), floats(3, 96)
    Threads(by_hand.kernel(by_hand.ROWS), gpu.name)({"x": x, "y": y}, {"n": 3})
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-6)


@EACH
def test_lanes_exchange_what_they_have(gpu: Gpu) -> None:
    """Of 64 lanes the last exchange is between the halves, which another instruction makes."""
    kernel = by_hand.kernel(across(gpu))
    x, y = floats(2, gpu.warp_lanes), floats(2, gpu.warp_lanes)
    threads = Threads(kernel, gpu.name)
    threads({"x": x, "y": y})
    np.testing.assert_array_equal(y, np.broadcast_to(x.max(1, keepdims=True), y.shape))
    assert ("ds.bpermute" in threads.warps.calls) is (gpu.warp_lanes == 64) and "ds.swizzle" in threads.warps.calls


@EACH
def test_objects_say_what_kernels_take(gpu: Gpu) -> None:
    for text in (*PLAIN, across(gpu)):
        made = compile_kernel(by_hand.kernel(text), gpu)
        used = usage_of(made.code_object)
        assert used.keys() == {launch.entry for launch in made.launches}
        for launch in made.launches:
            usage = used[launch.entry]
            assert usage.vector_registers <= gpu.max_thread_registers and usage.warp_lanes == gpu.warp_lanes
            assert (usage.spilled_registers, usage.shared_bytes) == (0, launch.shared_bytes)
            assert launch.dynamic_shared_bytes == 0
        assert ".amdhsa_code_object_version 5" in made.assembly and gpu.arch in made.assembly


@EACH
def test_notes_say_it_of_the_arguments_too(gpu: Gpu) -> None:
    made = compile_kernel(by_hand.kernel(by_hand.POINTWISE), gpu)
    found = metadata_of(made.code_object)
    (kernel,) = found["amdhsa.kernels"]
    assert found["amdhsa.target"] == f"amdgcn-amd-amdhsa--{gpu.arch}" and found["amdhsa.version"] == [1, 2]
    assert [a[".value_kind"] for a in kernel[".args"]] == ["global_buffer", "global_buffer", "by_value"]
    assert kernel[".max_flat_workgroup_size"] == 128


@EACH
def test_memory_is_known_to_be_global_or_shared_and_accesses_are_wide(gpu: Gpu) -> None:
    made = compile_kernel(by_hand.kernel(by_hand.PRODUCT), gpu).assembly
    assert not re.search(r"flat_(load|store)", made)
    wide = compile_kernel(by_hand.kernel(by_hand.POINTWISE), gpu).assembly
    assert any(x in wide for x in ("global_load_dwordx4", "global_load_b128"))


@EACH
def test_what_these_gpus_do_not_have_is_refused(gpu: Gpu) -> None:
    text = by_hand.MATRICES.replace("kernel matrices\n", f"kernel matrices\n  lanes {gpu.warp_lanes}\n")
    with pytest.raises(CodegenError, match="no matrix instruction"):
        emit(by_hand.kernel(text), gpu)
    huge = by_hand.BIG_SHARED.replace("16384", "65536").replace("16383", "65535")
    with pytest.raises(CodegenError, match="262144 bytes of shared memory"):
        emit(by_hand.kernel(huge), gpu)


def test_a_warp_has_as_many_lanes_as_its_kernel_says() -> None:
    wide, narrow = (Gpu.parse(name) for name in ("rocm-gfx942", "rocm-gfx1100"))
    kernel = parse_kernel(across(wide))
    text = kernel_text(kernel)
    assert kernel_text(parse_kernel(text)) == text and kernel.lanes == 64
    assert "lanes" not in kernel_text(replace(kernel, lanes=32))
    with pytest.raises(CodegenError, match="warps of 64 lanes; rocm-gfx1100 has 32"):
        emit(by_hand.kernel(across(wide)), narrow)


def test_an_object_without_notes_is_told() -> None:
    with pytest.raises(CodegenError, match="notes"):
        usage_of(host_object())


def host_object() -> bytes:
    return target_machine(Target.host()).emit_object(llvm.parse_assembly("define void @f() {\n  ret void\n}\n"))


def test_nvidias_copies_and_counts_are_not_asked_of_amd() -> None:
    kernel = by_hand.kernel(by_hand.PRODUCT)
    assert "amdgcn" not in compile_to_ptx(kernel, Gpu.parse("cuda")).ptx
    assert "nvvm" not in emit(kernel, GPUS[0]).text
