"""Calls of symbolic sizes that were left to PyTorch, complex products with a sum, and custom ops; beside eager."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
from tilewright.core.diag import OptionError
from tilewright.frontend.torch import custom_ops
from tilewright.integrations.torch_compile.capture import FallbackWarning

randn = torch.randn


def check(f: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for args in calls:
            torch.testing.assert_close(compiled(*args), f(*args), rtol=1e-4, atol=1e-4)


def complex_of(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x)


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("f", "sizes"), [
    (lambda x: torch.diagonal(x) * 2, lambda n: (randn(n, n + 1),)),
    (lambda x: torch.diagonal(x, 1, 0, 2) * 2, lambda n: (randn(n, 3, n + 2),)),
    (lambda x: torch.diagonal(x, -2, -1, -3) * 2, lambda n: (randn(n, 3, n + 2),)),
    (lambda x: torch.einsum("bii->b", x * 2), lambda n: (randn(3, n, n),)),
    (lambda x: (x * 2).as_strided((x.shape[0] - 2, 3), (1, 1)) + 1, lambda n: (randn(n + 4),)),
    (lambda x: (x * 2).as_strided((3, x.shape[1] - 2, 3), (x.shape[1], 1, 1), 1) + 1, lambda n: (randn(4, n + 4),)),
    (lambda x: F.glu(x * 2, -1), lambda n: (randn(3, 2 * n),)),
    (lambda x: F.glu(x * 2, 0), lambda n: (randn(2 * n, n),)),
    (lambda x, step=3: x[1::step] * 2, lambda n: (randn(5 * n, 2),)),
    (lambda q, k: F.scaled_dot_product_attention(q * 2, k, k), lambda n: (randn(2, 3, 5, n), randn(2, 3, 7, n))),
    (lambda z, x, y: torch.view_as_real(torch.addmm(complex_of(z), complex_of(x), complex_of(y), beta=2, alpha=1j)),
     lambda n: (randn(n, 5, 2), randn(n, 4, 2), randn(4, 5, 2))),
    (lambda z, x, y: torch.view_as_real(torch.baddbmm(complex_of(z), complex_of(x), complex_of(y))),
     lambda n: (randn(3, n, 5, 2), randn(3, n, 4, 2), randn(3, 4, 5, 2))),
    (lambda z, x, y: torch.view_as_real(F.linear(complex_of(x), complex_of(y), complex_of(z))),
     lambda n: (randn(5, 2), randn(n, 4, 2), randn(5, 4, 2))),
], ids=["diagonal", "offset", "below", "trace", "strided", "strided rows", "glu", "glu of rows", "step", "attention",
        "addmm", "baddbmm", "linear"])  # fmt: skip
def test_calls(f: Callable[..., Any], sizes: Callable[[int], tuple[Any, ...]]) -> None:
    check(f, *map(sizes, (6, 9, 7)))


@pytest.fixture
def scale() -> Any:
    library = torch.library.Library("tilewright_test", "FRAGMENT")
    library.define("scale(Tensor x, float by) -> Tensor")
    library.impl("scale", lambda x, by: x * by + 1, "CompositeExplicitAutograd")
    torch.library.register_fake("tilewright_test::scale", lambda x, by: torch.empty_like(x), lib=library)
    yield torch.ops.tilewright_test.scale
    custom_ops.DECOMPOSITIONS.clear()
    library._destroy()


def test_a_custom_op_falls_back_until_its_author_says_what_it_is(scale: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return scale(x.exp(), 3.0).relu()

    x = randn(4, 5)
    torch._dynamo.reset()
    with pytest.warns(FallbackWarning, match=r"tilewright\.decompose\(\"tilewright_test::scale\""):
        torch.testing.assert_close(torch.compile(f, backend="tilewright")(x), f(x))
    tw.decompose("tilewright_test::scale", lambda x, by: x * by + 1)
    check(f, (x,), (randn(3, 7),))

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return f(x)

    np.testing.assert_allclose(tw.compile(Net(), (x,), cache=False)(x.numpy()), f(x).numpy(), rtol=1e-4)


@pytest.mark.parametrize("op", ["tilewright_test::nothing", "nonsense", 3, len])
def test_what_is_no_op_is_refused(op: Any) -> None:
    with pytest.raises(OptionError, match="is no op of"):
        tw.decompose(op, lambda x: x)
