"""Parts of nets on GPUs: how many kernels they are, and by which strategies; right by the emulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import conv2d, gelu, group_norm, linear

import tilewright
from tilewright.build.gpu_kernels import GpuKernels


class Part(torch.nn.Module):
    """A function of tensors as a module, so that its weights are inputs, as under `torch.compile`."""

    def __init__(self, f: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.f(*args)


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def is_right(f: Callable[..., torch.Tensor], args: list[torch.Tensor], bound: float = 2e-2) -> bool:
    """Is the emulated model within the bound of the largest element?"""
    model = tilewright.compile(Part(f), tuple(args), target="cuda-sm90a", emulate=True, cache=False)
    want = f(*[x.double() for x in args])
    return bool(((torch.as_tensor(model(*args)).double() - want).abs().max() / want.abs().max()) < bound)


def taken(f: Callable[..., torch.Tensor], args: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The strategies of all stages of all kernels."""
    found: list[str] = []
    scheduled = GpuKernels.scheduled

    def noting(self, made, name):
        result = scheduled(self, made, name)
        found.extend(t.taken for t in result.tried)
        return result

    monkeypatch.setattr(GpuKernels, "scheduled", noting)
    tilewright.compile(Part(f), tuple(args), target="cuda-sm90a", cache=False)
    monkeypatch.undo()
    return found


def n_kernels(f: Callable[..., torch.Tensor], args: list[torch.Tensor]) -> int:
    return len(tilewright.compile(Part(f), tuple(args), target="cuda-sm90a", cache=False).ptx)


# --- arithmetic on a product goes where the product is written


def activated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return gelu(linear(x, weight, bias))


def test_arithmetic_behind_a_reshape_is_the_products() -> None:
    """Rows of a batch by a matrix are one product; the activation and what is added come behind it."""
    args = drawn((2, 9, 32), (24, 32), (24,))
    assert n_kernels(activated, args) == 1 and is_right(activated, args)
    more = drawn((2, 9, 32), (24, 32), (24,), (2, 9, 24))
    assert n_kernels(lambda x, w, b, y: linear(x, w, b) + y, more) == 1


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """The rotary position embedding of Llama and its kin."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def test_a_rotary_embedding_is_one_kernel() -> None:
    args = drawn((2, 3, 5, 16), (5, 16), (5, 16))
    model = tilewright.compile(Part(rotated), tuple(args), target="cuda-sm90a", cache=False)
    assert sum(text.count(".entry") for text in model.ptx.values()) == 1 and is_right(rotated, args)


# --- sums over places of an image whose channels come last


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A norm between two convolutions, so that its channels come last."""
    return conv2d(group_norm(conv2d(x, weight), 4), weight)


def test_sums_over_an_images_places_are_shared_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spread is a sum of squares, which no memory holds; results keep dimensions of one."""
    args = drawn((2, 32, 64, 64), (32, 32, 1, 1))
    found = taken(normed, args, monkeypatch)
    assert found.count("columns") == 2 and found.count("matrix_units") == 2


def test_a_norm_of_groups_is_right() -> None:
    assert is_right(normed, drawn((2, 32, 64, 64), (32, 32, 1, 1)))


# --- convolutions whose terms blocks share


def test_a_weight_whose_terms_are_shared_comes_by_whole_accesses() -> None:
    """Parts of a weight are no whole one: it is laid out before."""
    args = drawn((1, 512, 7, 7), (64, 512, 3, 3))
    model = tilewright.compile(Part(lambda x, w: conv2d(torch.relu(x), w, padding=1)), tuple(args), target="cuda-sm90a")
    entries = [entry for text in model.ptx.values() for entry in text.split(".entry")[1:]]
    (product,) = [entry for entry in entries if "mma" in entry]
    assert "cp.async.cg" in product and "ld.global.nc.b16" not in product
    assert any("_1(" in entry for entry in entries) and sum("add.rn.f32" in entry for entry in entries) == 1  # parts


# --- convolutions whose channels are no whole steps, few, or in planes


def product_of(f: Callable[..., torch.Tensor], args: list[torch.Tensor]) -> tuple[str, int]:
    """The entry that multiplies, of the one kernel that does, and how many entries stand before it."""
    model = tilewright.compile(Part(f), tuple(args), target="cuda-sm90a", cache=False)
    (text,) = [text for text in model.ptx.values() if "mma" in text]
    entries = text.split(".entry")[1:]
    (number,) = [k for k, entry in enumerate(entries) if "mma" in entry]
    return entries[number], number


PICTURES = {
    "channels that are no whole step": (
        lambda x, w: conv2d(torch.relu(x), w, padding=1), (2, 24, 9, 9), (32, 24, 3, 3), 1
    ),
    "pieces that do not overlap": (lambda x, w: conv2d(x, w, stride=8), (2, 3, 24, 24), (32, 3, 8, 8), 0),
    "three channels in planes": (lambda x, w: conv2d(x, w, stride=2, padding=3), (2, 3, 17, 17), (16, 3, 7, 7), 2),
    "to few channels": (lambda x, w: conv2d(torch.relu(x), w, padding=1), (2, 32, 9, 9), (4, 32, 3, 3), 1),
}  # fmt: skip
"""Function, image and weight; how many factors a stage lays out before."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", PICTURES)
def test_an_images_elements_come_by_whole_accesses(name: str) -> None:
    f, image, weight, n_before = PICTURES[name]
    args = drawn(image, weight)
    product, number = product_of(f, args)
    assert number == n_before and "cp.async" in product and "ld.global.nc.b16" not in product
    assert is_right(f, args)


def test_few_channels_that_lie_in_planes_are_one_threads() -> None:
    """What is laid out before is written by whole accesses, and read by neighbouring threads side by side."""
    f, image, weight, _ = PICTURES["three channels in planes"]
    model = tilewright.compile(Part(f), tuple(drawn(image, weight)), target="cuda-sm90a", cache=False)
    (text,) = [text for text in model.ptx.values() if "mma" in text]
    assert "st.global.v4.b16" in text.split(".entry")[1]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "size"), [(7, 2, 3, 20), (3, 2, 1, 16), (4, 4, 0, 24), (5, 2, 0, 18)]
)
def test_places_that_a_window_skips_to_lie_together(kernel: int, stride: int, padding: int, size: int) -> None:
    """Two places of four channels are one access of 16 bytes, from a multiple of that on."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return conv2d(x, w, stride=stride, padding=padding)

    args = drawn((2, 3, size, size), (64, 3, kernel, kernel))
    product, number = product_of(f, args)
    assert number in (0, 2) and "ld.global.nc.b16" not in product and "cp.async.ca" not in product
    assert is_right(f, args)
