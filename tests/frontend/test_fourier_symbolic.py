"""Fourier transforms of a length that each call decides: one compiled model beside NumPy, and calls of PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from frontend.gradients import check_gradients
from tilewright import ops
from tilewright.build.deploy import export_modules
from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.build.passes import graph_passes
from tilewright.core.expr import Dim, Sym, floordiv, substitute
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import TensorType, f32, f64
from tilewright.frontend.onnx.writer.model import to_onnx
from tilewright.graph.interp import run as run_graph
from tilewright.ops.fourier_library import SIGNS
from tilewright.runtime.cpu import routines, transforms
from tilewright.runtime.cpu.linker import link_text

QUICK, MANY = 8, 500
FORMS = [(form, sign) for form in SIGNS for sign in (-1, 1)]


@cache
def graph_of(form: str, sign: int, is_wide: bool = False, inner: int = 0) -> Graph:
    """Transforms of ``[2, n, ..]``; with ``inner``, of the axis before one of three."""
    pool, n = Pool(), Sym("n", 1)
    read: Dim = floordiv(n, 2) + 1 if form == "hermitian" else n
    shape = (2, read, *(3,) * inner, *(() if form == "real" else (2,)))
    x = pool.input("x", TensorType(f64 if is_wide else f32, shape))
    # Half of the numbers do not say which n it is.
    count = () if form != "hermitian" else (pool.input("y", TensorType(f32, (n,))),)
    y = Builder(pool)(ops.fourier, x, n=n, sign=sign, form=form, inner=inner, scale=0.5)
    return Graph("fft", pool, (x, *count), (y,), ("z",))


@cache
def compiled(form: str, sign: int, is_wide: bool, inner: int) -> Any:
    return tw.compile(graph_of(form, sign, is_wide, inner), cache=False)


def signals(graph: Graph, n: int) -> list[np.ndarray]:
    sizes = {Sym("n", 1): n}
    rng = np.random.default_rng(n)
    return [
        rng.standard_normal([substitute(d, sizes) for d in x.shape]).astype(x.dtype.numpy)  # type: ignore[arg-type]
        for x in graph.inputs
    ]


def wanted(x: np.ndarray, form: str, sign: int, n: int, inner: int) -> np.ndarray:
    x = x.astype(np.float64)
    z = x if form == "real" else x[..., 0] + 1j * x[..., 1]
    if form == "hermitian":
        return np.fft.irfft(z if sign > 0 else z.conj(), n) * n / 2
    made = np.fft.fft(z, axis=1) if sign < 0 else np.fft.ifft(z, axis=1) * n
    made = made[:, : n // 2 + 1] if form == "real" else made
    return np.stack([made.real, made.imag], -1) / 2


def check(n: int, form: str, sign: int, is_wide: bool, inner: int = 0) -> None:
    xs = signals(graph_of(form, sign, is_wide, inner), n)
    got = compiled(form, sign, is_wide, inner)(*xs)
    right = wanted(xs[0], form, sign, n, inner)
    assert got.shape == right.shape
    bound = max((1e-14 if is_wide else 8e-7) * np.abs(right).max(), off_by(n, is_wide))
    assert np.abs(got - right).max() <= bound


def off_by(n: int, is_wide: bool) -> float:
    """How far eager PyTorch's library is off, which ours is: MKL in f64 on some CPUs by 5.2e-14 of the largest."""
    if not is_wide:
        return 0.0
    x = np.random.default_rng(n).standard_normal((2, n, 2))
    z = x[..., 0] + 1j * x[..., 1]
    return float(np.abs(torch.fft.fft(torch.from_numpy(z)).numpy() - np.fft.fft(z, axis=1)).max())


LENGTHS = st.one_of(st.integers(1, 200), st.integers(1, 70_000))


@given(LENGTHS, st.sampled_from(FORMS), st.booleans())
@settings(max_examples=QUICK)
def test_lengths(n: int, form: tuple[str, int], is_wide: bool) -> None:
    check(n, *form, is_wide)


@pytest.mark.slow
@given(LENGTHS, st.sampled_from(FORMS), st.booleans())
@settings(max_examples=MANY)
def test_lengths_at_length(n: int, form: tuple[str, int], is_wide: bool) -> None:
    check(n, *form, is_wide)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("n", [1, 2, 17, 360])
def test_an_axis_before_others_is_transformed_where_it_lies(n: int) -> None:
    check(n, "complex", 1, is_wide=False, inner=1)


def test_threads_share_a_model() -> None:
    """Each call has a plan of its own: nothing of one length is met by another's."""
    lengths = [7, 64, 509, 1000] * 8
    compiled("real", -1, False, 0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: check(n, "real", -1, False), lengths))


def by_numpy(form: str, sign: int, dtype: str) -> Callable[..., int]:
    """The function that a process without PyTorch calls."""
    name = f"fourier_{form}_{'forward' if sign < 0 else 'backward'}"
    code = transforms.code_for("made", name, dtype, None)
    assert code is not None
    library = link_text("routine", code.text, ("made",), code.imports)
    library.keep_forever()
    run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(library.addresses["made"])

    def call(x: np.ndarray, y: np.ndarray, *sizes: int) -> int:
        arrays, counts = (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data), (ctypes.c_int64 * 3)(*sizes)
        return run(arrays, counts)

    return call


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("form", SIGNS)
def test_without_pytorch_it_is_numpys(form: str, dtype: str) -> None:
    (*_, sign) = SIGNS[form]
    call, rng = by_numpy(form, sign, dtype), np.random.default_rng(0)
    kind = np.float32 if dtype == "f32" else np.float64
    for outer, n, inner in ((3, 12, 1), (1, 1, 1), (2, 35, 1), (2, 10, 3), (4, 1009, 2), (0, 8, 2)):
        read, n_out = (n // 2 + 1 if form == "hermitian" else n), (n // 2 + 1 if form == "real" else n)
        x = rng.standard_normal((outer, read, inner, *(() if form == "real" else (2,)))).astype(kind)
        y = np.empty((outer, n_out, inner, *(() if form == "hermitian" else (2,))), kind)
        assert call(x, y, outer, n, inner) == 0
        z = x if form == "real" else x[..., 0] + 1j * x[..., 1]
        if form == "hermitian":
            right = np.fft.irfft(z, n, axis=1) * n
        else:
            made = np.fft.rfft(z, axis=1) if form == "real" else np.fft.ifft(z, axis=1) * n
            right = np.stack([made.real, made.imag], -1)
        np.testing.assert_allclose(y, right, rtol=0, atol=(1e-5 if dtype == "f32" else 1e-13) * max(n, 1))


@pytest.mark.parametrize(("form", "sign"), FORMS)
def test_by_the_library_and_by_the_chirp_it_is_the_same(form: str, sign: int) -> None:
    """A process has a library to call, an export has products; both from one op, and no other op of a known length."""
    graph = graph_of(form, sign, True)
    options = Options(target="x86-64-v3")
    for is_export in (False, True):
        made = run_pipeline(graph, graph_passes(options, options.machine, is_export=is_export), check=True)
        found = [n.op for n in made.nodes() if n.op in (ops.fourier, ops.fourier_library)]
        assert found == ([] if is_export else [ops.fourier_library])
        for n in (1, 2, 9, 100):
            xs = signals(graph, n)
            (got,) = run_graph(made, xs)
            np.testing.assert_allclose(got, wanted(xs[0], form, sign, n, 0), atol=1e-12 * n)


@pytest.mark.parametrize(("form", "sign"), FORMS)
def test_it_is_written_to_onnx(form: str, sign: int) -> None:
    """ONNX's DFT and matrices of roots want a known length, so that products are written."""
    graph = graph_of(form, sign)
    written = ReferenceEvaluator(to_onnx(graph))
    for n in (2, 9, 100):
        xs = signals(graph, n)
        got = written.run(None, {name: x for name, x in zip(graph.input_names, xs, strict=True)})[0]
        right = wanted(xs[0], form, sign, n, 0)
        assert np.abs(got - right).max() <= 2e-6 * np.abs(right).max()


def test_work_is_a_librarys_and_nothing_else() -> None:
    """What makes it fast: one call of a routine, and none of the products that a chirp takes."""
    options = Options(target="x86-64-v3")
    split = optimise_and_split(graph_of("complex", -1), options, options.machine, Clock())
    assert split.routines == ("tw_fourier_complex_forward_f32",)
    assert len(split.kernels.kernels) == 2  # the one for a call that is declined, and the scale
    assert not export_modules(graph_of("complex", -1), options, 1, Clock()).manifest.routines


def test_a_call_that_the_library_declines_runs_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(symbol: str, *_: object) -> int:
        library = link_text("routine", routines._none_ir(symbol), (symbol,), {})
        library.keep_forever()
        return library.addresses[symbol]

    monkeypatch.setattr(routines, "_made", none)
    for form, sign in FORMS:
        model = tw.compile(graph_of(form, sign, True), cache=False)
        for n in (1, 2, 5, 30):
            xs = signals(graph_of(form, sign, True), n)
            np.testing.assert_allclose(model(*xs), wanted(xs[0], form, sign, n, 0), atol=1e-13 * n)


@pytest.mark.slow
def test_a_call_of_pytorch_takes_every_length() -> None:
    """Halves of symmetric spectra, of even and odd lengths, along an axis that is not the last, scaled."""

    def function(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x, dim=1, norm="ortho")
        back = torch.fft.irfft(spectrum * 2, n=x.shape[1], dim=1)
        return torch.cat((back, torch.fft.fft(x, dim=1).imag, spectrum.real), 1)

    generator = torch.Generator().manual_seed(0)
    calls = [[torch.randn(b, n, 3, generator=generator)] for b, n in ((2, 12), (4, 37))]
    check_gradients(function, *calls, dynamic=True)


@pytest.mark.slow
def test_torch_compile_takes_symbolic_lengths() -> None:
    """Nothing falls back, neither for a symbolic length nor for a fixed one beside a symbolic batch."""
    torch._dynamo.reset()
    options = {"fallback": False}

    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft2(torch.fft.rfft2(x + 1) * 2, s=x.shape[-2:], norm="ortho")

    ours = torch.compile(spectrum, backend="tilewright", dynamic=True, options=options)
    for shape in ((3, 20), (5, 17)):
        x = torch.randn(shape)
        torch.testing.assert_close(ours(x), spectrum(x))

    def batches(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x.reshape(-1, 8)).abs()

    compiled = torch.compile(batches, backend="tilewright", dynamic=True, options=options)
    for n in (16, 40):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), batches(x))
