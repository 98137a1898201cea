"""Element-wise calls of 16 bits round where eager PyTorch's kernels round, over every number that there is."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

Call = Callable[[torch.Tensor], torch.Tensor]

CALLS: dict[str, Call] = {
    **{name: getattr(torch, name) for name in (
        "abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erfc erfinv exp exp2 expm1 floor frac log log10 "
        "log1p log2 logit neg rad2deg reciprocal relu round rsqrt selu celu sigmoid sign sin sinh sqrt square tan tanh "
        "trunc"
    ).split()},
    **{name: getattr(F, name) for name in (
        "hardshrink tanhshrink softplus softsign hardsigmoid hardtanh relu6 elu silu mish logsigmoid leaky_relu"
    ).split()},
    "entr": torch.special.entr,
    "logit of a bounded number": lambda x: torch.logit(x, 1e-3),
    "hardshrink by 0.3": lambda x: F.hardshrink(x, 0.3),
    "threshold at 0.1": lambda x: F.threshold(x, 0.1, 0.2),
    "elu of 0.7": lambda x: F.elu(x, 0.7),
    "celu of 0.7": lambda x: F.celu(x, 0.7),
    "leaky relu of 0.3": lambda x: F.leaky_relu(x, 0.3),
    "softplus of 0.7": lambda x: F.softplus(x, 0.7, 5),
    "clamp": lambda x: x.clamp(-0.3, 0.7),
    **{f"power {e}": lambda x, e=e: x.pow(e) for e in (2, 3, 0.5, -0.5, -1, -2, 2.3)},
    "a number's power": lambda x: 0.3**x,
    "sum": lambda x: x + 0.3,
    "difference": lambda x: 0.3 - x,
    "product": lambda x: x * 0.3,
    "quotient": lambda x: x / 0.3,
    "its quotient": lambda x: 0.3 / x,
    "rounded quotient": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "remainder": lambda x: torch.remainder(x, 0.3),
    "one decimal": lambda x: torch.round(x, decimals=1),
    "scaled sum": lambda x: torch.add(x, 0.7, alpha=0.3),
    "xlogy": lambda x: torch.xlogy(x, 0.3),
    "xlog1py": lambda x: torch.special.xlog1py(x, 0.3),
    "comparison": lambda x: x > 0.3,
}  # fmt: skip
OF_ANOTHER_LIBRARY = 20
"""Numbers of 65,536 that may be one rounding apart: those next to a tie, where the functions of f32 are others."""
N_BEFORE_COMPILING = 16


@pytest.mark.one_in(10)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first", range(0, len(CALLS), N_BEFORE_COMPILING))
def test_every_number_is_rounded_as_in_eager(first: int, dtype: torch.dtype) -> None:
    names = list(CALLS)[first : first + N_BEFORE_COMPILING]
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    torch._dynamo.reset()
    got = torch.compile(lambda x: [CALLS[name](x) for name in names], backend="tilewright")(x)
    for name, y in zip(names, got, strict=True):
        wanted = CALLS[name](x)
        differ = ~((y == wanted) | (y.isnan() & wanted.isnan()) | _is_at_an_end_of_f32(x, y, wanted))
        assert int(differ.sum()) <= OF_ANOTHER_LIBRARY, (name, x[differ][:3], y[differ][:3], wanted[differ][:3])
        if y.is_floating_point():
            steps = (y.view(torch.int16).int() - wanted.view(torch.int16).int()).abs()
            assert bool((steps[differ] <= 1).all()), (name, x[differ], y[differ], wanted[differ])


def _is_at_an_end_of_f32(x: torch.Tensor, y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Are numbers of bf16 subnormal, which arithmetic flushes to zero, or results next to infinity or beyond?"""
    least, most = torch.finfo(torch.float32).tiny, 2.0**126
    x, y, wanted = x.float(), y.float(), wanted.float()
    is_flushed = ((x != 0) & (x.abs() < least)) | ((wanted != 0) & (wanted.abs() <= least))
    is_flushed |= (x.abs() > most) & wanted.isnan()  # a remainder by way of an infinite quotient
    return is_flushed | ((y.abs() > most) & (wanted.abs() > most) & (y.signbit() == wanted.signbit()))
