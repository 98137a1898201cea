"""Random arguments of models with complex numbers, a state, written inputs and ``out=``; and a file overwritten.

All arguments of a call lie somewhere in one block of memory, so that they often overlap. What is right follows from
the bytes of their elements: a call with a wrong argument, or with one that is written and shares a byte with another,
raises ``InputError`` and has changed nothing; any other gives what PyTorch gives for copies, and writes nowhere else.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from runtime.test_artifact import scale_parts
from tilewright.runtime import artifact
from tilewright.runtime.errors import InputError
from tilewright.runtime.values import address_of

torch = pytest.importorskip("torch")

SHAPE = (2, 3)
DTYPES = {"k": "float32", "z": "complex64", "x": "float32", "p": "float32", "q": "complex64"}
WRITTEN, OUTS = set("kz"), set("pq")
N_BYTES = 1536  # of the block: arguments of 24 and 48 bytes often meet there, and often do not


class Given(NamedTuple):
    """An argument, the first byte of each of its elements within the block, and what it is no good for."""

    value: Any
    starts: tuple[int, ...] = ()
    bad_to_read: bool = False
    bad_to_write: bool = False
    is_dense: bool = True


@functools.cache
def writer() -> tuple[Any, Callable[..., Any]]:
    """A model that keeps a state and writes to two inputs."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, k: Any, z: Any, x: Any) -> Any:
            self.count += 1
            k.add_(x)
            z.mul_(2j)
            return k * 2 + x, z * x

    return compiled(Net()), Net()


@functools.cache
def reader() -> tuple[Any, Callable[..., Any]]:
    """A model that writes to what ``out=`` gives alone."""

    class Net(torch.nn.Module):
        def forward(self, k: Any, z: Any, x: Any) -> Any:
            return k * 2 + x, z * x

    return compiled(Net()), Net()


def compiled(net: Any) -> tw.CompiledModel:
    examples = tuple(torch.zeros(SHAPE, dtype=getattr(torch, DTYPES[name])) for name in "kzx")
    return tw.compile(net, examples, cache=False)


def arrays(rng: random.Random, block: np.ndarray, dtype: str) -> Given:
    """A view of NumPy or PyTorch, with steps of any size and sign, in the block."""
    size = np.dtype(dtype).itemsize
    steps = rng.choice([(3, 1), (3, 1), (1, 2), (4, 1), (1, 1), (0, 1), (6, 2), (2, 0), (-3, 1), (3, -1)])
    low = -sum(min(s, 0) * (n - 1) for s, n in zip(steps, SHAPE, strict=True))
    high = sum(max(s, 0) * (n - 1) for s, n in zip(steps, SHAPE, strict=True))
    first = rng.randrange(low, N_BYTES // size - high)
    starts = tuple((first + i * steps[0] + j * steps[1]) * size for i in range(SHAPE[0]) for j in range(SHAPE[1]))
    is_dense = steps == (3, 1)
    if min(steps) >= 0 and rng.random() < 0.5:
        whole = torch.from_numpy(block).view(getattr(torch, dtype))
        if dtype == "complex64" and rng.random() < 0.3:
            return Given(whole.conj().as_strided(SHAPE, steps, first), starts, is_dense=False)
        return Given(whole.as_strided(SHAPE, steps, first), starts, is_dense=is_dense)
    strides = tuple(s * size for s in steps)
    return Given(np.ndarray(SHAPE, dtype, block, first * size, strides), starts, is_dense=is_dense)


def read_only(rng: random.Random, block: np.ndarray, dtype: str) -> Given:
    first = rng.randrange(N_BYTES // 8 - 6) * 8
    array = np.ndarray(SHAPE, dtype, block, first)
    array.flags.writeable = False
    return Given(array, tuple(range(first, first + array.nbytes, array.itemsize)), bad_to_write=True)


def without_memory(dtype: str) -> Any:
    tensor = torch.zeros(SHAPE, dtype=getattr(torch, dtype))
    tensor.untyped_storage().resize_(0)
    return tensor


WRONG: tuple[Callable[[str], Any], ...] = (
    without_memory,
    lambda dtype: np.zeros(SHAPE, "float64"),
    lambda dtype: np.zeros((3, 2), dtype),
    lambda dtype: np.zeros(6, dtype),
    lambda dtype: np.zeros(SHAPE, np.dtype(dtype).newbyteorder(">")),
    lambda dtype: np.ma.zeros(SHAPE, dtype),
    lambda dtype: [[0.0] * 3] * 2,
    lambda dtype: torch.zeros(SHAPE, dtype=getattr(torch, dtype), device="meta"),
    lambda dtype: torch.zeros(SHAPE, dtype=getattr(torch, dtype)).to_sparse(),
    lambda dtype: np.zeros(SHAPE, object),
    lambda dtype: 3,
)


def argument(rng: random.Random, block: np.ndarray, dtype: str) -> Given:
    chance = rng.random()
    if chance < 0.06:
        return Given(rng.choice(WRONG)(dtype), (), bad_to_read=True, bad_to_write=True, is_dense=False)
    if chance < 0.12:
        return read_only(rng, block, dtype)
    return arrays(rng, block, dtype)


def bytes_of(name: str, one: Given) -> set[int]:
    """The bytes of the block that an argument's elements are in."""
    return {start + i for start in one.starts for i in range(np.dtype(DTYPES[name]).itemsize)}


def is_refused(given: dict[str, Given], written: set[str]) -> bool:
    """By the rules of the page of promises."""
    taken = {name: bytes_of(name, one) for name, one in given.items()}
    for name, one in given.items():
        overlaps_itself = len(set(one.starts)) < len(one.starts)  # of one type, elements share all bytes or none
        if one.bad_to_read or (name in written and (one.bad_to_write or overlaps_itself)):
            return True
        if name in OUTS and not one.is_dense:
            return True
    return any(taken[a] & taken[b] for a in written for b in taken if a != b)


def copied(value: Any) -> Any:
    return value.clone().resolve_conj() if isinstance(value, torch.Tensor) else torch.from_numpy(value.copy())


def check(seed: int, n_calls: int = 20) -> int:
    """How many of some random calls were taken."""
    rng, n_taken = random.Random(seed), 0
    for _ in range(n_calls):
        draws = np.random.default_rng(rng.randrange(1 << 32))
        block = draws.integers(-3, 4, N_BYTES // 4).astype(np.float32).view(np.uint8)
        gives_outs = rng.random() < 0.5
        model, net = reader() if gives_outs else writer()
        written = OUTS if gives_outs else WRITTEN
        given = {name: argument(rng, block, DTYPES[name]) for name in ("kzxpq" if gives_outs else "kzx")}
        if rng.random() < 0.05:
            given["x"] = given["k"]
        before, state, refuses = block.copy(), dict(model.state), is_refused(given, written)
        inputs = [given[name].value for name in "kzx"]
        outs = {"out": [given[name].value for name in "pq"]} if gives_outs else {}
        copies = [] if refuses else [copied(value) for value in inputs]
        try:
            got = model(*inputs, **outs)
        except InputError as error:
            assert refuses, (seed, error)
            assert np.array_equal(block, before) and dict(model.state) == state, (seed, error)
            continue
        assert not refuses, (seed, given)
        n_taken += 1
        assert gives_outs or model.state["count"] == state["count"] + 1
        want = net(*copies)
        for name, result, expected in zip("pqkz", [*got, *inputs[:2]], [*want, *copies[:2]], strict=True):
            assert torch.equal(copied(result), expected), (seed, name)
        places = set().union(*(bytes_of(name, given[name]) for name in written))
        assert set(map(int, np.flatnonzero(block != before))) <= places, seed
    return n_taken


def test_random_calls() -> None:
    assert sum(check(seed) for seed in range(10)) > 20


def test_the_block_is_what_arguments_lie_in() -> None:
    block = np.zeros(N_BYTES, np.uint8)
    for seed in range(20):
        one = arrays(random.Random(seed), block, "complex64")
        first = one.value.data_ptr() if isinstance(one.value, torch.Tensor) else address_of(one.value)
        assert first - address_of(block) == one.starts[0]


def overwrite(seed: int, folder: Path) -> None:
    """A file that a loaded model came from gets other content, piece by piece; the model is as it was."""
    rng, path = random.Random(seed), folder / "model.tw"
    artifact.save(path, *scale_parts(10.0))
    loaded, x = tw.load(path), np.arange(8, dtype=np.float32).reshape(2, 4)
    size = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.3:
                file.truncate(rng.randrange(size))
            else:
                file.seek(rng.randrange(size))
                file.write(rng.randbytes(rng.randrange(1, size)))
                file.flush()
            assert np.array_equal(loaded(x), 2 * x + 10)


def test_files_that_are_overwritten(tmp_path: Path) -> None:
    for seed in range(3):
        overwrite(seed, tmp_path)
