"""Calibration data as batches, whatever form it is given in.

In: arrays, files, or anything that can be iterated over, and a model's inputs. Out: one batch after another, by input
name. Not its business: what is done with a batch; whether it fits the model's shapes (the model says so when called).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.core import stored
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.runtime.errors import InputError

Batch = dict[str, Array]
REMEDY = "give arrays, {input name: array}, a generator of batches, or the path of an .npz file"


def batches_of(data: Any, inputs: Sequence[Node], batch_size: int) -> Iterator[Batch]:
    """The batches of calibration data; each is read when it is asked for.

    An array, or a dict of arrays by input name, holds samples along the first axis, which is cut into batches of the
    model's size, or of ``batch_size`` where that is symbolic. Anything else is iterated over, and each item is a batch:
    an array, a tuple in the inputs' order, or a dict. A file is read before (``read_arrays``), as its samples may be
    gone over more than once.

    Raises ``InputError`` for names that the model lacks, and for samples that make no whole batches.
    """
    if isinstance(data, Mapping) or hasattr(data, "__array__"):
        yield from _cut(_named(data, inputs), inputs, batch_size)
        return
    if not isinstance(data, Iterable):
        raise InputError(f"calibration data can't be a {type(data).__qualname__}", remedy=REMEDY)
    for item in data:
        yield _named(item, inputs)


def read_arrays(path: str | Path) -> Array | Batch:
    """One array of an ``.npy`` file, or those of an ``.npz`` by their names; raises ``InputError``."""
    remedy = "save arrays with numpy.save or numpy.savez"
    try:
        return stored.read_arrays(path)
    except OSError as e:
        raise InputError(f"can't read {path}: {e.strerror or e}", remedy=remedy) from e
    except ValueError as e:
        raise InputError(f"{path} is not a NumPy file of plain arrays", remedy=remedy) from e


def _named(item: Any, inputs: Sequence[Node]) -> Batch:
    """A batch by input name."""
    names = [n.attrs["name"] for n in inputs]
    if isinstance(item, Mapping):
        if set(item) != set(names):
            raise InputError(f"calibration data has {sorted(item)}, and the model takes {names}", remedy=REMEDY)
        return {name: np.asarray(item[name]) for name in names}
    arrays = list(item) if isinstance(item, tuple | list) else [item]
    if len(arrays) != len(names):
        raise InputError(f"a batch has {len(arrays)} arrays, and the model takes {names}", remedy=REMEDY)
    return {name: np.asarray(a) for name, a in zip(names, arrays, strict=True)}


def _cut(whole: Batch, inputs: Sequence[Node], batch_size: int) -> Iterator[Batch]:
    """Samples in batches; inputs without a first axis are the same in each."""
    along = [n.attrs["name"] for n in inputs if n.shape and whole[n.attrs["name"]].ndim == n.type.rank]
    counts = {name: whole[name].shape[0] for name in along}
    sizes = [n.shape[0] for n in inputs if n.attrs["name"] in counts]
    fixed = list(dict.fromkeys(s for s in sizes if is_known(s)))
    if len(set(counts.values())) > 1 or len(fixed) > 1:
        if all(n.type.is_static for n in inputs):
            yield whole  # inputs whose first axes are no batch
            return
        raise InputError(f"inputs have different numbers of samples: {counts}", remedy="give each sample to all inputs")
    size, total = next(iter(fixed), batch_size), next(iter(counts.values()), 1)
    if fixed and (size == 0 or total % size):
        raise InputError(
            f"{total} samples make no batches of {size}, the model's size", remedy=f"give a multiple of {size} samples"
        )
    for start in range(0, total, size):
        yield {k: a[start : start + size] if k in counts else a for k, a in whole.items()}
