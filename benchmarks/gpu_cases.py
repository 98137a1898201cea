"""Kernels that memory or plain arithmetic bounds, with the shapes that nets have: what ``benchmarks.gpu`` measures.

In: how much smaller than for a large GPU. Out: cases; each is a graph of one op, and PyTorch's spelling of it.
Not its business: running them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright import ops
from tilewright.core.graph import Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, TensorType, bf16, f32


@dataclass(frozen=True)
class Case:
    """A graph of one op on inputs of these shapes; ``n_fmas`` it must do.

    ``eager`` is the same in PyTorch: it takes the module ``torch`` and the inputs.
    """

    name: str
    op: OpDef
    attrs: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    eager: Callable[..., Any]
    dtype: DType = f32
    n_fmas: int = 0

    def graph(self) -> Graph:
        """The graph."""
        pool = Pool()
        inputs = tuple(pool.input(f"x{k}", TensorType(self.dtype, s)) for k, s in enumerate(self.shapes))
        return Graph("case", pool, inputs, (self._result(pool, inputs),), ("y",))

    def _result(self, pool: Pool, inputs: Sequence[Node]) -> Node:
        return pool.add(self.op, inputs, self.attrs)

    @property
    def n_bytes(self) -> int:
        """What it must move: every input once, and the result."""
        result = self.graph().outputs[0].type.shape
        elements = sum(prod(s) for s in self.shapes) + prod(n for n in result if isinstance(n, int))
        return elements * self.dtype.n_bytes


PRODUCTS = (
    (4096, 4096, 4096), (8192, 8192, 8192), (1000, 1000, 1000), (1024, 4096, 1024), (2048, 2048, 2048),
    (3000, 3000, 3000), (512, 512, 4096), (256, 4096, 4096), (128, 8192, 4096), (64, 4096, 4096), (4096, 4096, 256),
    (4096, 64, 4096), (5120, 1280, 5120), (777, 1024, 2048), (2050, 2050, 2050), (4104, 4104, 4104),
    (1152, 3456, 1152), (1568, 512, 4608), (3136, 256, 2304), (12544, 128, 1152), (8192, 1024, 8192),
    (300, 30000, 768),
)  # fmt: skip
"""Rows, columns and terms of products in bf16: two that fill a GPU, and twenty that nets and people have."""


def cases(scale: int) -> Iterator[Case]:
    """Kernels at a size; ``scale`` 1 fills a large GPU."""

    def of(n: int) -> int:
        return max(n // scale, 1)

    wide = (of(16384), of(4096))
    picture = (of(64), of(256), 56, 56)
    for dtype in (f32, bf16):
        made = _Maker(dtype)
        yield made("exp", ops.exp, {}, [wide], lambda torch, x: torch.exp(x))
        yield made("add", ops.add, {}, [wide, wide], lambda torch, x, y: x + y)
        for rows in (wide, (of(32 * 12 * 512), 512), (of(32), 50257), (of(65536), 64)):
            yield made("softmax", ops.softmax, {"axis": 1}, [rows], lambda torch, x: torch.softmax(x, 1))
        for m, k in ((of(4096), 768), wide):
            norm = [(m, k), (k,), (k,)]
            yield made("layer norm", ops.layer_norm, {"axis": 1}, norm, _layer_norm)
        for name, axes in (("row sums", (1,)), ("column sums", (0,)), ("sum", (0, 1))):
            yield made(name, ops.reduce_sum, {"axes": axes, "keepdims": False}, [wide], _sum(axes))
        attrs = {"axes": (0, 2, 3), "keepdims": False}
        yield made("channel means", ops.reduce_mean, attrs, [picture], lambda torch, x: x.mean((0, 2, 3)))
        square = (of(8192), of(8192))
        batch, channels, height, width = picture
        last = (batch, height, width, channels)
        for shape, perm in ((square, (1, 0)), (picture, (0, 2, 3, 1)), (last, (0, 3, 1, 2))):
            yield made("transpose", ops.transpose, {"perm": perm}, [shape], _permuted(perm))
        yield made("concat", ops.concat, {"axis": 1}, [wide, wide], lambda torch, x, y: torch.cat((x, y), 1))
    for m, n, k in ((of(4096),) * 3, (of(2048),) * 3, (of(8192), of(768), of(3072)), (of(1000), 1000, 500)):
        yield Case(
            f"matmul {m}x{n}x{k} f32", ops.matmul, {"out_dtype": None}, ((m, k), (k, n)),
            lambda torch, x, y: x @ y, n_fmas=m * n * k,
        )  # fmt: skip
    for size in PRODUCTS:
        m, n, k = map(of, size)
        yield Case(
            f"matmul {m}x{n}x{k} bf16", ops.matmul, {"out_dtype": None}, ((m, k), (k, n)),
            lambda torch, x, y: x @ y, bf16, n_fmas=m * n * k,
        )  # fmt: skip


@dataclass(frozen=True)
class _Maker:
    dtype: DType

    def __call__(
        self, name: str, op: OpDef, attrs: dict[str, Any], shapes: list[tuple[int, ...]], eager: Callable[..., Any]
    ) -> Case:
        size = "x".join(map(str, shapes[0]))
        return Case(f"{name} {size} {self.dtype.name}", op, attrs, tuple(shapes), eager, self.dtype)


def _layer_norm(torch: Any, x: Any, scale: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, scale.shape, scale, bias)


def _sum(axes: tuple[int, ...]) -> Callable[..., Any]:
    return lambda torch, x: x.sum(axes)


def _permuted(perm: tuple[int, ...]) -> Callable[..., Any]:
    return lambda torch, x: x.permute(perm).contiguous()
