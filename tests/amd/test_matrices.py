"""Products by AMD's matrix instructions: layouts, and kernels lane by lane, here and as objects.

Threads of this CPU run the text, with the instructions' meaning as AMD's calculator has it (`ptx.warp`), and the
interpreter of threads runs the same kernels with the layouts of `target.matrices`.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from ptx.test_matrices import aligned
from ptx.threads import Threads
from tile.kernels import arrays_of, outputs
from tile.test_matrix_units import Case, close, scheduled
from tilewright.codegen.amd.compile import compile_kernel, emit
from tilewright.codegen.amd.mfma import INSTRUCTIONS
from tilewright.codegen.amd.notes import usage_of
from tilewright.codegen.errors import CodegenError
from tilewright.core.types import DType, bf16, f16
from tilewright.target import gpu as gpus
from tilewright.target.gpu import ROCM_TRIPLE, Gpu, named_gpus
from tilewright.target.matrices import MFMA_SHAPES, WMMA_SHAPES, Fragment
from tilewright.tile.lower import lower
from tilewright.tile.simt import simulate

GPUS = named_gpus(ROCM_TRIPLE)
EACH = pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.arch)
FRAGMENTS = [x for s in (MFMA_SHAPES[0], WMMA_SHAPES[0]) for x in (s.left, s.right, s.sums)]
CASES = {
    "whole": Case(32, 32, 32),
    "ragged": Case(17, 18, 19, has_bias=True),
    "both turned": Case(32, 24, 16, left_turned=True, right_turned=True),
}


def few_warps(gpu: Gpu) -> Gpu:
    """Blocks of two warps, with 16 terms in a step."""
    return replace(gpu, sm_schedulers=2, line_bytes=64)


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_every_element_has_one_lane_or_as_many_as_there_are_copies(fragment: Fragment) -> None:
    apart = fragment.lanes // fragment.copies
    for first in range(0, fragment.lanes, apart):
        places = [fragment.place(lane, e) for lane in range(first, first + apart) for e in range(fragment.count)]
        assert sorted(places) == sorted(np.ndindex(fragment.rows, fragment.columns))


@pytest.mark.one_in(6)
@EACH
@pytest.mark.parametrize("name", CASES)
def test_products_are_right_lane_by_lane(name: str, gpu: Gpu) -> None:
    case, gpu = CASES[name], few_warps(gpu)
    computation = case.computation()
    flat = scheduled(case, gpu=gpu)
    seen = simulate(flat, gpu, arrays_of(computation, {}))
    assert seen.faults == ()
    (want,) = outputs(lower(computation), computation, {})
    close(seen.arrays["C"], want)


@pytest.mark.one_in(4)
@EACH
@pytest.mark.parametrize("name", CASES)
def test_the_code_of_lanes_is_right(name: str, gpu: Gpu) -> None:
    case = CASES[name]
    computation = case.computation()
    given = {b: aligned(a) for b, a in arrays_of(computation, {}).items()}
    threads = Threads(scheduled(case, gpu=few_warps(gpu)), gpu.name)
    threads(given)
    (want,) = outputs(lower(computation), computation, {})
    close(given["C"], want)
    assert {x.partition(".")[0] for x in threads.warps.calls} == {"mfma" if gpu.has_mfma else "wmma"}


@pytest.mark.one_in(2)
@EACH
@pytest.mark.parametrize("part", ["left", "right", "sums"])
def test_a_wrong_layout_is_seen(part: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three matrices with its rows and columns changed places."""
    (shape,) = (x for x in gpu.shapes if x.dtype is f16)
    right: Fragment = getattr(shape, part)
    turned = replace(right, lane=right.lane[::-1], element=right.element[::-1])
    wrong = replace(shape, **{part: turned})
    monkeypatch.setattr(gpus, "MFMA_SHAPES" if gpu.has_mfma else "WMMA_SHAPES", (wrong,))
    monkeypatch.setitem(INSTRUCTIONS, wrong, INSTRUCTIONS[shape])
    case = Case(16, 16, 16)
    given = {b: aligned(a) for b, a in arrays_of(case.computation(), {}).items()}
    (want,) = outputs(lower(case.computation()), case.computation(), {})
    Threads(scheduled(case, gpu=few_warps(gpu)), gpu.name)(given)
    with pytest.raises(AssertionError, match="Mismatched"):
        close(given["C"], want)


@pytest.mark.one_in(4)
@EACH
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_objects_have_the_instruction_and_spill_nothing(dtype: DType, gpu: Gpu) -> None:
    made = compile_kernel(scheduled(Case(64, 64, 64, dtype), gpu=gpu), gpu)
    name = "v_mfma_f32_16x16x16_" if gpu.has_mfma else "v_wmma_f32_16x16x16_"
    assert re.search(rf"{name}{dtype.name}", made.assembly)
    (used,) = usage_of(made.code_object).values()
    assert used.spilled_registers == used.stack_bytes == 0 and used.shared_bytes == made.launches[0].shared_bytes


def test_each_generation_has_its_own_shapes() -> None:
    wave, narrow = (Gpu.parse(name) for name in ("rocm-gfx942", "rocm-gfx1100"))
    assert (wave.shapes, narrow.shapes) == (MFMA_SHAPES, WMMA_SHAPES)
    kernel = scheduled(Case(32, 32, 32), gpu=wave)
    with pytest.raises(CodegenError, match="no matrix instructions"):
        emit(kernel, replace(wave, has_mfma=False))
