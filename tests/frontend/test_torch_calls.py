"""How a compiled PyTorch module is called: nested arguments and results, state from call to call, written inputs."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import tilewright as tw
from frontend.torch_compare import check_functions
from tilewright.frontend.torch.fx.known import made_of_numbers
from tilewright.integrations.torch_compile.capture import FallbackWarning
from tilewright.runtime.errors import InputError
from tilewright.runtime.structure import Record
from tilewright.tools.debug.compare import compare


class Lambda(torch.nn.Module):
    def __init__(self, f: Any) -> None:
        super().__init__()
        self.forward = f


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Both:
    total: torch.Tensor
    rest: list[torch.Tensor]


torch.export.register_dataclass(Both)
X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(3)

RESULTS = {
    "list": lambda x, y: [x, y * 2],
    "one in a tuple": lambda x, y: (x + y,),
    "dict": lambda x, y: {"b": x, "a": {"deep": [y + 1, None]}},
    "numbers": lambda x, y: {0: x + y, 1: x.shape[0], 2: 2.5, 3: True, 4: "text"},
    "ordered": lambda x, y: OrderedDict(b=x + 1, a=y),
    "named": lambda x, y: Pair(x + 1, (y, x)),
    "dataclass": lambda x, y: Both(x + y, [x, y]),
    "topk": lambda x, y: torch.topk(x, 2),
    "nothing": lambda x, y: (x + y, ()),
}


def same(got: Any, want: Any) -> None:
    ours, spec = pytree.tree_flatten(got)
    theirs, wanted = pytree.tree_flatten(want)
    assert spec == wanted
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b) and np.array_equal(a, b)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("f", RESULTS.values(), ids=RESULTS)
def test_results_are_as_the_module_gives_them(f: Any) -> None:
    model = tw.compile(Lambda(f), example_inputs=(X, Y), cache=False)
    same(model(X, Y), f(X, Y))
    assert len(pytree.tree_leaves(model(X.numpy(), Y.numpy()))) == len(pytree.tree_leaves(f(X, Y)))


class Nested(torch.nn.Module):
    def forward(self, x, pair, table, flag=True, *, scale=None, last):  # type: ignore[no-untyped-def]
        y = x * pair[0] + pair[1][0] * table["w"]["v"] + last
        return y if scale is None or not flag else y * scale


def nested(n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.arange(n * 3.0).reshape(n, 3)
    return (x, (x + 1, [Y]), {"w": {"v": Y * 3}}, True), {"scale": Y * 4, "last": x - 1}


def test_arguments_are_given_as_to_the_module(tmp_path: Path) -> None:
    args, kwargs = nested(2)
    shapes = torch.export.ShapesCollection()
    for x in (args[0], args[1][0], kwargs["last"]):
        shapes[x] = {0: torch.export.Dim.AUTO}
    program = torch.export.export(Nested(), args, kwargs, dynamic_shapes=shapes)
    model = tw.compile(program, cache=False)
    for n in (2, 5, 17):
        args, kwargs = nested(n)
        same(model(*args, **kwargs), Nested()(*args, **kwargs))
        flat = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        same(model(*flat), Nested()(*args, **kwargs))
    model.save(tmp_path / "m.tw")
    assert torch.equal(tw.load(tmp_path / "m.tw")(*args, **kwargs), Nested()(*args, **kwargs))
    for wrong in ((args[0], args[1], {"w": {}}, *args[3:]), (*args[:3], False, *args[4:]), args[:2]):
        with pytest.raises(InputError, match=r"table|flag|missing"):
            model(*wrong, **kwargs)


def test_one_tensor_given_twice_is_two_arguments() -> None:
    model = tw.compile(Lambda(lambda x, *more: x - sum(more) * 2), example_inputs=(X, X, X), cache=False)
    same(model(X, X + 1, X + 2), X - (X + 1 + X + 2) * 2)


def test_records_as_arguments() -> None:
    def f(pair: Pair, both: Both) -> torch.Tensor:
        return pair.left * both.total + pair.right + both.rest[0]

    pair, both = Pair(X, Y), Both(X + 1, [Y * 3])
    model = tw.compile(Lambda(f), example_inputs=(pair, both), cache=False)
    same(model(pair, both), f(pair, both))
    same(model(both=both, pair={"left": X, "right": Y}), f(pair, both))
    same(model(X, Y, X + 1, Y * 3), f(pair, both))
    with pytest.raises(InputError, match="both is a list"):
        model(pair, [Y])


def test_defaults_that_hold_no_tensor_may_be_left_out() -> None:
    model = tw.compile(Lambda(lambda x, k=2, y=None: x * k), example_inputs=(X, 2, None), cache=False)
    for got in (model(X), model(X, 2), model(x=X), model(X, y=None), model({"x": X})):
        same(got, X * 2)
    with pytest.raises(InputError, match="compiled with 2"):
        model(X, 3, (None,))


def test_a_file_gives_records(tmp_path: Path) -> None:
    model = tw.compile(Lambda(RESULTS["dataclass"]), example_inputs=(X, Y), cache=False)
    model.save(tmp_path / "m.tw")
    got = tw.load(tmp_path / "m.tw")(X, Y)
    assert isinstance(got, Record) and got[0] is got["total"] and len(got["rest"]) == 2
    assert torch.equal(got.total, X + Y)
    with pytest.raises(AttributeError):
        _ = got.nothing


class Stateful(torch.nn.Module):
    """A counter, a cache that is written a row at a time, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.full((4, 3), 0.5))
        self.register_buffer("mean", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("var", torch.ones(3, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        self.count += 1
        self.cache[at] = x[0] * self.count
        y = torch.nn.functional.batch_norm(x.bfloat16(), self.mean, self.var, training=True)
        return {"sum": self.cache.sum(0), "count": self.count.clone(), "y": y.float()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_module_keeps_the_model_keeps(threads: int, tmp_path: Path) -> None:
    module, at = Stateful(), torch.tensor([1])
    model = tw.compile(module, example_inputs=(X, at), threads=threads, cache=False)
    assert module.count == 0 and [s.name for s in model.inputs] == ["x", "at"] and len(model.outputs) == 3
    model.save(tmp_path / "m.tw")
    loaded, fresh = tw.load(tmp_path / "m.tw"), Stateful()
    for k in (1, 3, 0):
        want = fresh(X + k, torch.tensor([k]))
        for one in (model, loaded):
            got = one(X + k, torch.tensor([k]))
            assert got["count"] == want["count"] and torch.equal(got["sum"], want["sum"])
            torch.testing.assert_close(got["y"], want["y"], rtol=2e-2, atol=2e-2)
    assert set(model.state) == {"count", "cache", "mean", "var"}
    np.testing.assert_array_equal(model.state["cache"], fresh.cache)
    np.testing.assert_allclose(model.state["mean"].astype("f4"), fresh.mean.float(), rtol=2e-2)
    model.reset(count=np.array(7))
    assert model(X, at)["count"] == 8 and model.run({"x": X, "at": at}).keys() == {"sum", "count", "y"}
    with pytest.raises(InputError, match="keeps"):
        model.reset(other=1)
    with pytest.raises(InputError, match="can't be"):
        model.reset(count=np.zeros(2))
    with pytest.raises(InputError, match="missing"):
        model(X)
    assert not compare(Stateful(), (X, at), isolate=False).fault
    assert not compare(Stateful(), (X, at), against="torch", isolate=False).fault


def test_writes_to_inputs_reach_them() -> None:
    def f(x: torch.Tensor, table: dict[str, torch.Tensor]) -> torch.Tensor:
        table["t"][:, 1] += x[0, 0]
        return x + table["t"].sum()

    model = tw.compile(Lambda(f), example_inputs=(X, {"t": X.clone()}), cache=False)
    for make in (X.clone, lambda: X.T.contiguous().T):
        ours, theirs = make(), make()
        same(model(X + 1, {"t": ours}), f(X + 1, {"t": theirs}))
        assert torch.equal(ours, theirs)
    array = X.numpy().copy()
    model(X.numpy().copy() + 1, {"t": array})
    np.testing.assert_array_equal(array, ours)
    array.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        model(X.numpy().copy(), {"t": array})


N = 4000
DRAWS: dict[str, tuple[Any, float, float]] = {
    "rand": (torch.rand_like, 0.5, 1 / 12),
    "randn": (lambda x: torch.randn(x.shape[0], dtype=torch.float64), 0.0, 1.0),
    "half": (lambda x: torch.randn(x.shape[0], dtype=torch.float16), 0.0, 1.0),
    "normal": (lambda x: torch.normal(x * 0 + 3, 2.0), 3.0, 4.0),
    "in place": (lambda x: torch.empty_like(x).normal_(1, 3), 1.0, 9.0),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-2, 4), 1.0, 3.0),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "randint": (lambda x: torch.randint(-2, 8, (x.shape[0],)), 2.5, 99 / 12),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.25), 0.25, 3 / 16),
    "dropout": (lambda x: torch.nn.functional.dropout(x * 0 + 1, 0.2), 1.0, 0.25),
    "multinomial": (lambda x: torch.multinomial(torch.tensor([1.0, 0, 3]), x.shape[0], True), 1.5, 0.75),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("draw, mean, variance", DRAWS.values(), ids=DRAWS)
def test_random_numbers(draw: Any, mean: float, variance: float) -> None:
    torch.manual_seed(11)
    shapes = ({0: torch.export.Dim("n", min=2)},)
    module = Lambda(lambda x: (draw(x), draw(x)))
    program = torch.export.export(module, (torch.ones(9),), dynamic_shapes=shapes, strict=False)
    want = draw(torch.ones(9))
    one, two = (tw.compile(program, threads=k, cache=False) for k in (1, 2))
    first = one(torch.ones(N))
    again = one(torch.ones(N))
    assert not any(torch.equal(a, b) for a, b in ((first[0], first[1]), (first[0], again[0]), (first[1], again[0])))
    for values in (*first, *again):
        assert values.dtype == want.dtype and values.shape == (N,)
        assert abs(values.double().mean() - mean) < 6 * (variance / N) ** 0.5
        assert abs(values.double().var() / variance - 1) < 0.25
    assert torch.equal(two(torch.ones(N))[1], first[1])
    assert set(one.state) == {"random_state"}
    one.reset()
    assert torch.equal(one(torch.ones(N))[0], first[0])
    one.reset(random_state=np.array([5, 0], np.uint64))
    assert not torch.equal(one(torch.ones(N))[0], first[0])


def test_permutations_and_draws_without_replacement() -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.randperm(x.shape[0]), torch.multinomial(x, 3)

    weights = torch.tensor([[1.0, 0, 2, 3, 0], [0, 1, 1, 1, 0]])
    order, chosen = tw.compile(Lambda(f), example_inputs=(weights,), cache=False)(weights)
    assert sorted(order.tolist()) == [0, 1]
    assert [sorted(row) for row in chosen.tolist()] == [[0, 2, 3], [1, 2, 3]]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("least", [0, 3])
@pytest.mark.parametrize("weights", [None, torch.float32, torch.int64])
def test_bincount(least: int, weights: torch.dtype | None) -> None:
    def f(x: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
        found = torch.bincount(x, w, minlength=least)
        torch._check(found.shape[0] <= 20)
        return found * 2

    w = None if weights is None else torch.arange(5).to(weights)
    model = tw.compile(Lambda(f), example_inputs=(torch.arange(5), w), cache=False)
    for values in ([1, 1, 4, 0, 4], [19, 0, 0, 0, 0], [0] * 5):
        x = torch.tensor(values)
        same(model(x, w), torch.bincount(x, w, minlength=least) * 2)
    bounded = Lambda(lambda x: torch.bincount(x.clamp(0, 6)))
    same(tw.compile(bounded, example_inputs=(torch.arange(5),), cache=False)(torch.arange(5)), torch.ones(5).long())


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_beyond_narrow_integers_wrap(source: torch.dtype) -> None:
    narrow = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.bool)
    x = torch.tensor([300.0, -1, -1.7, 255.9, 128, -129, 32768, -40000, 0.5, -0.0, 65000] * 3).to(source)
    f = Lambda(lambda x: [x.to(d) for d in narrow])
    same(tw.compile(f, example_inputs=(x,), cache=False)(x), f(x))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ldl_factors_have_lapacks_pivots(dtype: torch.dtype) -> None:
    """Indefinite matrices, with blocks of two by two, and singular ones."""
    x = torch.randn(4, 7, 7, generator=torch.Generator().manual_seed(0), dtype=dtype)
    x = x + x.mT
    x[1] *= 1 - torch.eye(7, dtype=dtype)
    x[2] = 0
    right = torch.randn(4, 7, 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    wanted, pivots, info = torch.linalg.ldl_factor_ex(x)
    factors, found, failed = tw.compile(
        Lambda(lambda x: torch.linalg.ldl_factor_ex(x, hermitian=False)), example_inputs=(x,), cache=False
    )(x)
    assert (pivots < 0).any() and info.any()
    same(found, pivots)
    same(failed, info)
    np.testing.assert_allclose(factors, wanted, rtol=1e-4, atol=1e-4)
    operands = wanted[:2], pivots[:2], right[:2]
    solve = tw.compile(
        Lambda(lambda f, p, b: torch.linalg.ldl_solve(f, p, b, hermitian=False)), example_inputs=operands, cache=False
    )
    np.testing.assert_allclose(x[:2] @ solve(*operands), right[:2], rtol=1e-3, atol=1e-3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_places_between_elements_of_f64_are_as_exact(mode: str, *, corners: bool) -> None:
    x = torch.randn(1, 2, 7, 9, dtype=torch.float64)
    for options in ({"size": (11, 5)}, {"size": (14, 18)}, {"scale_factor": (1.7, 2.0)}):
        f = Lambda(partial(F.interpolate, mode=mode, align_corners=corners, **options))
        torch.testing.assert_close(tw.compile(f, (x,), cache=False)(x), f(x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decimals_of_narrow_floats_do_not_overflow(dtype: torch.dtype) -> None:
    x = torch.tensor([65504.0, 6000.0, -3.27, torch.inf], dtype=dtype)
    f = Lambda(lambda x: (torch.round(x, decimals=2), torch.round(x, decimals=-2)))
    torch.testing.assert_close(tuple(tw.compile(f, (x,), cache=False)(x)), f(x), rtol=0, atol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("f", [
    lambda x: x + torch.fft.fftfreq(6, 0.3),
    lambda x: x[:, :4] * torch.fft.rfftfreq(6),
    lambda x: x * torch.hamming_window(6, periodic=False),
    lambda x: x * torch.kaiser_window(6, dtype=torch.float32),
    lambda x: x * torch.bartlett_window(6, dtype=torch.float64),
])  # fmt: skip
def test_tensors_made_of_numbers_alone_are_constants(f: Any) -> None:
    """Windows and frequencies have no converter here."""
    x = torch.arange(24.0).reshape(4, 6)
    torch.testing.assert_close(tw.compile(Lambda(f), (x,), cache=False)(x), f(x))
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        torch.testing.assert_close(torch.compile(f, backend="tilewright", fullgraph=True)(x), f(x))


def test_random_numbers_are_no_constants() -> None:
    program = torch.export.export(Lambda(lambda x: x + torch.rand(3)), (torch.ones(3),))
    draws = [n for n in program.graph.nodes if str(n.target).startswith("aten.rand")]
    assert len(draws) == 1 and made_of_numbers(draws[0]) is None


def test_polynomials_of_a_number() -> None:
    """A degree or a place that is a number is another overload, which no other test had."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s = torch.special
        return (
            s.legendre_polynomial_p(x, 3), s.hermite_polynomial_h(x, 2), s.laguerre_polynomial_l(0.5, x.round()),
            s.chebyshev_polynomial_t(x, 4), s.shifted_chebyshev_polynomial_u(x, 2),
        )  # fmt: skip

    x = torch.linspace(-2, 2, 9)
    for got, want in zip(tw.compile(Lambda(f), (x,), cache=False)(x), f(x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_bytes_read_as_another_dtype(width: int) -> None:
    dtypes = [
        torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.int32, torch.float32,
        torch.int64, torch.float64,
    ]  # fmt: skip
    read = {str(d): lambda x, d=d: x.view(d).view(torch.uint8) for d in dtypes}  # NaN have bits, too
    read["written"] = lambda x: (x * 1).view(torch.int16).mul_(2).view(x.dtype)[0]
    raw = torch.arange(96).reshape(2, 48).mul(37).to(torch.uint8)
    for dtype in dtypes:
        if dtype.itemsize == width:
            check_functions(read, raw.view(dtype))
    if width == 1:
        check_functions({"bool": lambda x: (x.view(torch.bool), (x > 0).view(torch.int32))}, raw % 2)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_write_that_would_need_more_memory_is_refused(is_kept: bool) -> None:
    """``out=`` makes an empty tensor larger, an argument's as well as a buffer's."""
    module = Lambda(lambda x, k=None: torch.sum(x, 0, out=module.kept if k is None else k) * 2)
    module.register_buffer("kept", torch.empty(0))
    with pytest.raises(tw.ImportFailed, match=r"of shape \[0\] one of shape \[3\]"):
        tw.compile(module, (X,) if is_kept else (X, torch.empty(0)), cache=False)
