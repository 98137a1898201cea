"""Between torch tensors and NumPy arrays, without a copy where the memory allows it.

In: dense CPU tensors or arrays. Out: the other kind over the same memory; bf16 passes through its bits, because NumPy
has no such type of its own. Not its business: devices other than the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from tilewright.core.types import Array

if TYPE_CHECKING:
    from torch import Tensor


def to_numpy(tensor: Tensor) -> Array:
    """A row-major array of the tensor's numbers, sharing its memory where it is dense already."""
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def to_torch(array: Array) -> Tensor:
    """A tensor over the array's memory."""
    import torch

    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C", copy=True)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def carrier(n: int) -> Array:
    """An array whose only meaning is its length: how an integer argument reaches a graph as a dimension."""
    return np.empty((n,), np.bool_)
