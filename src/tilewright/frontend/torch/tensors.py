"""Between torch tensors and NumPy arrays, without a copy where the memory allows it.

In: dense CPU tensors or arrays. Out: the other kind over the same memory; bf16 passes through its bits, because NumPy
has no such type of its own, and complex numbers as their parts along a last axis, which is how they lie in memory.
Not its business: devices other than the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tilewright.core.types import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.values import array_on, is_cut_short, to_tensor

if TYPE_CHECKING:
    from torch import Tensor


CUT_SHORT = "has no memory for all of its elements: its storage was made smaller"
GIVE_MEMORY = "give it memory again by untyped_storage().resize_(n_bytes) and fill that, or pass another tensor"


def is_complex_tensor(x: object) -> bool:
    """Is it a tensor of complex numbers?"""
    return hasattr(x, "is_complex") and bool(x.is_complex())


def part_dtype(dtype: Any) -> Any:
    """The dtype of the parts of a complex number; of other dtypes, themselves."""
    return dtype.to_real() if dtype.is_complex else dtype


def to_numpy(tensor: Tensor, *, is_kept: bool = True) -> Array:
    """A row-major array of the tensor's numbers, sharing its memory where it is dense already.

    ``is_kept``: PyTorch is never to move that memory, as the array may be used at any time later.
    """
    import torch

    _check_memory(tensor)
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    of_ours = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)  # NumPy itself has no such type
    if of_ours is not None:
        tensor = tensor.view(torch.int16 if tensor.itemsize == 2 else torch.uint8)
    array = np.asarray(tensor.numpy()) if is_kept else array_on(tensor)
    return array if of_ours is None else array.view(of_ours)


def row_major(tensor: Tensor) -> Tensor:
    """The tensor, or its numbers in row-major order where they lie otherwise."""
    _check_memory(tensor)
    return tensor.contiguous()


def _check_memory(tensor: Tensor) -> None:
    """PyTorch's own copies read what lies behind a storage that is too short."""
    if is_cut_short(tensor):
        raise InputError(f"a tensor of shape {list(tensor.shape)} {CUT_SHORT}", remedy=GIVE_MEMORY)


def to_torch(array: Array, is_complex: bool = False) -> Tensor:
    """A tensor over the array's memory; ``is_complex`` takes the last axis for the parts of complex numbers.

    It is nobody's view (``_base`` is None): AOTAutograd replays views of a result upon that result's own base.
    """
    import torch

    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C", copy=True)
    tensor: Tensor = to_tensor(array)
    if is_complex:
        return torch.view_as_complex(tensor.as_strided(tensor.shape, _row_major(tensor.shape))).data
    return tensor


def _row_major(shape: Any) -> list[int]:
    """Strides, also of tensors without elements, for which NumPy has others."""
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= max(d, 1)
    return strides[::-1]


def carrier(n: int) -> Array:
    """An array whose only meaning is its length: how an integer argument reaches a graph as a dimension."""
    return np.empty((n,), np.bool_)
