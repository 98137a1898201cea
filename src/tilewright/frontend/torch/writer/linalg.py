"""How linear algebra and Fourier transforms are written in PyTorch, whose functions are LAPACK's like ours.

In: a node whose operands are tensors. Out: calls of PyTorch; ``OpError`` where this form of an op has none. Not its
business: products (``writer.arithmetic``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.frontend.torch.writer.values import TorchValues, Writer

if TYPE_CHECKING:
    from torch import Tensor


def several(call: Callable[[TorchValues, Node, list[Tensor]], Any]) -> Writer:
    """A call with some results."""

    def write(w: TorchValues, node: Node) -> None:
        made = call(w, node, w.values(node))
        tensors = made if isinstance(made, tuple) else (made,)
        w.give(node, *(t.to(w.dtype(k.dtype)) for t, k in zip(tensors, node.types, strict=True)))

    return write


def _pivot_order(w: TorchValues, node: Node, values: list[Tensor]) -> Tensor:
    """Each column of the permutation matrix has its one in the row that comes there."""
    (pivots,) = values
    shape = [*w.sizes(node.inputs[0].shape[:-1]), w.size(node.attrs["rows"]), w.size(node.inputs[0].shape[-1])]
    permutation = w.torch.lu_unpack(w.torch.zeros(shape), pivots, unpack_data=False)[0]
    order: Tensor = w.torch.argmax(permutation, dim=-2)
    return order


def fourier(w: TorchValues, node: Node) -> None:
    (x,), a, fft = w.values(node), node.attrs, w.torch.fft
    if node.dtype not in (types.f32, types.f64):
        raise OpError("PyTorch's transforms are of f32 and f64")
    n, forwards = w.size(a["n"]), a["sign"] < 0
    if a["form"] == "real":
        spectrum = w.torch.narrow(fft.fft(x, n), -1, 0, w.size(a["kept"])) if a["kept"] else fft.rfft(x, n)
        made = w.torch.view_as_real(spectrum if forwards else w.torch.conj_physical(spectrum))
    else:
        x = w.torch.complex(w.torch.select(x, -1, 0), w.torch.select(x, -1, 1))
        if a["form"] == "hermitian":
            made = fft.hfft(x, n) if forwards else fft.irfft(x, n, norm="forward")
        else:
            axis = -1 - a["inner"]
            made = w.torch.view_as_real(fft.fft(x, n, axis) if forwards else fft.ifft(x, n, axis, norm="forward"))
    w.give(node, made if a["scale"] == 1 else w.torch.mul(made, a["scale"]))


cholesky = several(lambda w, node, v: tuple(w.torch.linalg.cholesky_ex(*v)))
lu = several(lambda w, node, v: tuple(w.torch.linalg.lu_factor_ex(*v)))
pivot_order = several(_pivot_order)
solve_triangular = several(
    lambda w, node, v: w.torch.linalg.solve_triangular(*v, upper=node.attrs["upper"], unitriangular=node.attrs["unit"])
)
geqrf = several(lambda w, node, v: tuple(w.torch.geqrf(*v)))
reflect = several(lambda w, node, v: w.torch.ormqr(*v, left=True, transpose=node.attrs["transposed"]))
orthogonal = several(lambda w, node, v: w.torch.linalg.householder_product(*v))
eigh = several(lambda w, node, v: tuple(w.torch.linalg.eigh(*v)))
eigvalsh = several(lambda w, node, v: w.torch.linalg.eigvalsh(*v))
svd = several(lambda w, node, v: tuple(w.torch.linalg.svd(*v, full_matrices=node.attrs["full"])))
svdvals = several(lambda w, node, v: w.torch.linalg.svdvals(*v))
ldl = several(lambda w, node, v: tuple(w.torch.linalg.ldl_factor_ex(*v)))
solve_ldl = several(lambda w, node, v: w.torch.linalg.ldl_solve(*v))
