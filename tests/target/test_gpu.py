"""One record describes a GPU: where its numbers are from, its names, and how many blocks a multiprocessor holds."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tilewright.target.errors import UnknownTargetError
from tilewright.target.gpu import CUDA_TRIPLE, NUMBERS, ROCM_TRIPLE, SPIRV_TRIPLE, Gpu, gpu_names, is_gpu, named_gpus
from tilewright.target.sources import ASSUMED
from tilewright.target.target import target_names

CHIPS = named_gpus(CUDA_TRIPLE) + named_gpus(ROCM_TRIPLE)
EVERY = pytest.mark.parametrize("gpu", CHIPS, ids=lambda g: g.name)


@EVERY
def test_every_number_says_where_it_is_from(gpu: Gpu) -> None:
    assert {name for name, _ in gpu.sources} <= NUMBERS.keys()
    assert gpu.source_of("sm_registers") != ASSUMED and gpu.source_of("replay_us") == ASSUMED


def test_numbers_are_fields_of_the_record() -> None:
    numbers = {f.name for f in fields(Gpu) if f.type in ("int", "float", "tuple[int, int, int]")}
    assert numbers == NUMBERS.keys()


@EVERY
def test_rates_multiply_to_what_the_datasheet_says(gpu: Gpu) -> None:
    """Dense bf16 in 10**12 operations per second; a row whose clock or width is wrong misses it."""
    said = {"A100": 312, "H100 SXM5": 989, "B200": 2250, "MI300X": 1307, "RX 7900 XTX": 123}[gpu.chip]
    assert 2 * gpu.n_sms * gpu.ghz * gpu.sm_bf16_fmas_per_cycle / 1000 == pytest.approx(said, rel=0.01)


def test_names() -> None:
    assert gpu_names() == [
        "cuda",
        "cuda-sm100a",
        "cuda-sm80",
        "cuda-sm90a",
        "rocm-gfx1100",
        "rocm-gfx942",
        "spirv-opencl",
    ]
    assert [g.name for g in named_gpus(ROCM_TRIPLE)] == ["rocm-gfx942", "rocm-gfx1100"]
    assert CHIPS + named_gpus(SPIRV_TRIPLE) == named_gpus()
    assert Gpu.parse("cuda") is Gpu.parse("cuda-sm80") and is_gpu("cuda") and not is_gpu("native")
    assert not {*gpu_names()} & {*target_names()}
    with pytest.raises(UnknownTargetError, match="cuda-sm90'") as error:
        Gpu.parse("cuda-sm90")
    assert "did you mean cuda-sm90a?" in str(error.value)


def test_what_is_no_chip_has_no_document() -> None:
    (any_gpu,) = named_gpus(SPIRV_TRIPLE)
    assert {any_gpu.source_of(number) for number in NUMBERS} == {ASSUMED} and any_gpu.shapes == ()


def test_blocks_of_a_multiprocessor() -> None:
    """By NVIDIA's occupancy calculator: each of the four limits decides once."""
    h100 = Gpu.parse("cuda-sm90a")
    assert h100.blocks_per_sm(256, 32, 0) == 8  # threads
    assert h100.blocks_per_sm(32, 16, 0) == 32  # blocks
    assert h100.blocks_per_sm(256, 128, 0) == 2  # registers
    assert h100.blocks_per_sm(128, 32, 100 << 10) == 2  # shared memory
    assert Gpu.parse("rocm-gfx942").blocks_per_sm(64, 32, 0) == 32  # what keeps nothing of shared memory for itself
    assert h100.blocks_per_sm(2048, 32, 0) == 0 and h100.blocks_per_sm(32, 32, 228 << 10) == 0
