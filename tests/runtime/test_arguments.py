"""Arguments of any kind: each call gives the right result or a typed error, and no other."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from runtime.tiny import copy_model, scale_model
from tilewright.runtime.errors import ArtifactError, FileError, InputError, ResourceError, TilewrightError
from tilewright.runtime.manifest import SymbolSpec, TensorSpec

torch = pytest.importorskip("torch")
X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Broken:
    """An object whose methods raise, or give what they should not."""

    def __init__(self, **methods: Any) -> None:
        kind = type("Broken", (Broken,), {name: method for name, method in methods.items()})
        self.__class__ = kind


def raising(error: BaseException) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise error

    return method


class Sub(np.ndarray):
    """A subclass as other libraries have."""

    def __array_finalize__(self, other: Any) -> None:
        self.unit = "m"


class SubTensor(torch.Tensor):
    """A subclass of PyTorch's tensor."""


class Rude(torch.Tensor):
    """A subclass that no function may be called with."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise KeyError("no function")


def from_torch(make: Callable[[Any], Any]) -> Callable[[np.ndarray], Any]:
    def made(x: np.ndarray) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(torch.from_numpy(x.copy()))

    return made


ERRORS = [ValueError("no"), KeyError("no"), RuntimeError(), AttributeError("no"), BufferError("no"), OSError("no")]
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda x: x,
    "subclass": lambda x: x.view(Sub),
    "masked": lambda x: np.ma.array(x, mask=x > 3),
    "matrix": lambda x: np.asmatrix(x) if x.ndim == 2 else x,
    "list": lambda x: x.tolist(),
    "scalar": lambda x: x.reshape(-1)[0] if x.size else x,
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "object": lambda x: x.astype(object),
    "text": lambda x: x.astype(str),
    "structured": lambda x: x.astype([("a", "f4"), ("b", "i2")]),
    "complex": lambda x: x.astype(np.complex64),
    "bfloat16": lambda x: x.astype(ml_dtypes.bfloat16),
    "dates": lambda x: x.astype(np.int64).astype("M8[s]"),
    "read-only": lambda x: np.lib.stride_tricks.as_strided(x.copy(), writeable=False),
    "column-major": np.asfortranarray,
    "negative strides": lambda x: np.flip(np.flip(x).copy()),
    "gaps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x,
    "broadcast": lambda x: np.broadcast_to(x, x.shape),
    "one element everywhere": lambda x: np.lib.stride_tricks.as_strided(x, x.shape, (0,) * x.ndim) if x.size else x,
    "unaligned": lambda x: np.frombuffer(b"1" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "huge": lambda x: np.broadcast_to(np.float32(1), (1 << 40, 4)),
    "bytes": lambda x: x.tobytes(),
    "memoryview": memoryview,
    "memoryview of bytes": lambda x: memoryview(x.tobytes()),
    "memoryview of column-major": lambda x: memoryview(np.asfortranarray(x)),
    "set": lambda x: {1.0},
    "none": lambda x: None,
    "number": lambda x: 5,
    "iterator": lambda x: iter(x.reshape(-1)),
    "class": lambda x: np.ndarray,
    "ellipsis": lambda x: ...,
    "surrogate": lambda x: "\udcff",
    "tensor": from_torch(lambda t: t),
    "tensor subclass": from_torch(lambda t: t.as_subclass(SubTensor)),
    "rude tensor subclass": from_torch(lambda t: t.as_subclass(Rude)),
    "parameter": from_torch(torch.nn.Parameter),
    "gradient": from_torch(lambda t: t.requires_grad_() * 1),
    "sparse": from_torch(lambda t: t.to_sparse()),
    "compressed": from_torch(lambda t: t.to_sparse_csr() if t.ndim == 2 else t.to_sparse()),
    "quantised": from_torch(lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8)),
    "nested": from_torch(lambda t: torch.nested.nested_tensor([t, t])),
    "jagged": from_torch(lambda t: torch.nested.nested_tensor([t.reshape(-1), t.reshape(-1)], layout=torch.jagged)),
    "meta": from_torch(lambda t: t.to("meta")),
    "fake": from_torch(lambda t: torch._subclasses.FakeTensorMode().from_tensor(t)),
    "conjugate": from_torch(lambda t: torch.complex(t, t).conj()),
    "negated": from_torch(lambda t: torch.complex(t, -t).conj().imag),
    "zero": from_torch(lambda t: torch._efficientzerotensor(t.shape)),
    "expanded": from_torch(lambda t: t.reshape(-1)[:1].reshape([1] * t.ndim).expand(t.shape) if t.numel() else t),
    "double": from_torch(lambda t: t.double()),
    "brain": from_torch(lambda t: t.bfloat16()),
    "named": from_torch(lambda t: t.refine_names(*[f"d{k}" for k in range(t.ndim)])),
    "storage": from_torch(lambda t: t.untyped_storage()),
    **{f"dlpack {type(e).__name__}": lambda x, e=e: Broken(__dlpack__=raising(e)) for e in ERRORS},
    "dlpack that is none": lambda x: Broken(__dlpack__=lambda self, **_: 5, __dlpack_device__=lambda self: (1, 0)),
    "dlpack elsewhere": lambda x: Broken(
        __dlpack__=lambda self, **_: x.__dlpack__(), __dlpack_device__=lambda self: (2, 0)
    ),
    "dlpack property": lambda x: Broken(__dlpack__=property(raising(KeyError("no")))),
    "dlpack exhausted": lambda x: Broken(__dlpack__=raising(MemoryError()), __dlpack_device__=lambda self: (1, 0)),
    "array that raises": lambda x: Broken(__array__=raising(ValueError("no"))),
    "interface": lambda x: Broken(__array_interface__={"version": 3, "shape": (3,), "typestr": "<f4", "data": (0, 0)}),
}
SHAPES = [(3, 4), (0, 4), (1, 4), (4,), (), (3, 5), (2, 3, 4), (3, 0), (33, 4)]
FORMS["memory gone"] = from_torch(lambda t: (t, t.untyped_storage().resize_(0))[0])


def check(form: str, shape: tuple[int, ...], way: str) -> None:
    """One call with an odd argument: a right result, or a ``TilewrightError``."""
    base = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(np.float32)
    try:
        value = FORMS[form](base)
    except Exception:  # a form that there is not of this shape
        return
    if value is None and way == "out":
        return
    model = MODEL
    calls: dict[str, Callable[[], Any]] = {
        "in order": lambda: model(value),
        "by name": lambda: model(x=value),
        "dict": lambda: model({"x": value}),
        "run": lambda: model.run({"x": value})["y"],
        "out": lambda: model(base, out=value),
        "run of it": lambda: model.run(value),
        "twice": lambda: (model(value), model(value))[1],
    }
    try:
        got = calls[way]()
    except TilewrightError as error:
        assert str(error).startswith("[TW01")
        return
    value = base if isinstance(value, Broken) else value  # whose capsule is a right one
    want = np.asarray(value.detach().resolve_neg() if isinstance(value, torch.Tensor) else value, np.float32)
    assert want.shape[1:] == (4,), f"{form} of {shape} was taken"
    if way == "out":
        np.testing.assert_array_equal(want, 2 * base + 10)
    else:
        np.testing.assert_array_equal(np.asarray(got), 2 * want + 10)


MODEL = scale_model()
WAYS = ["in order", "by name", "dict", "run", "out", "run of it", "twice"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_typed_or_right(form: str) -> None:
    for way in WAYS:
        check(form, (3, 4), way)


ODD = given(st.sampled_from(sorted(FORMS)), st.sampled_from(SHAPES), st.sampled_from(WAYS))


@settings(max_examples=100)
@ODD
def test_odd_arguments_are_typed_or_right(form: str, shape: tuple[int, ...], way: str) -> None:
    check(form, shape, way)


@pytest.mark.slow
@settings(max_examples=2000)
@ODD
def test_odd_arguments_are_typed_or_right_many_times(form: str, shape: tuple[int, ...], way: str) -> None:
    check(form, shape, way)


def test_masks_are_not_dropped() -> None:
    with pytest.raises(InputError, match="masked array") as caught:
        scale_model()(np.ma.array(X, mask=X > 3))
    assert "filled" in caught.value.remedy


def test_copies_are_made_of_arguments_that_fit_alone() -> None:
    with pytest.raises(InputError, match="between 0 and 100000"):
        scale_model()(np.broadcast_to(np.float32(1), (1 << 40, 4)))
    model = scale_model(symbols=(SymbolSpec("n"),))
    for n in (1 << 40, 1 << 58):
        with pytest.raises(ResourceError, match="no memory"):
            model(np.broadcast_to(np.float32(1), (n, 4)))


def test_run_takes_a_dict() -> None:
    for wrong in ([X], None, X, "x", {"x"}):
        with pytest.raises(InputError, match="run takes a dict"):
            scale_model().run(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no such input"):
        scale_model().run({1: X})  # type: ignore[dict-item]


@pytest.mark.parametrize("threads", ["2", 1.5, True, 0, -1, [2], np.float32(1)])
def test_threads_is_an_integer(threads: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: scale_model(threads=threads),
        lambda: tw.compile("none.onnx", threads=threads),
        lambda: tw.export("none.onnx", "out", threads=threads),
    ]
    for call in calls:
        with pytest.raises(InputError, match="threads="):
            call()
    assert scale_model(threads=np.int64(2)).threads == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [12, 1.5, None, "x\0y", ["m.tw"], b"none\0.tw", ""])
def test_paths_that_are_none(path: Any, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="can't read"):
        tw.load(path)
    with pytest.raises(FileError, match="can't write"):
        scale_model().save(path)


@pytest.mark.parametrize("path", ["x\0y", "x\0y.pt2", b"", "", "."])
def test_sources_that_are_no_file(path: Any) -> None:
    with pytest.raises(TilewrightError):
        tw.compile(path)


def test_a_file_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, why in ((tmp_path / "none" / "m.tw", "make its folder"), (tmp_path / "file" / "m.tw", "has a file")):
        with pytest.raises(FileError, match=r"can't write .*m\.tw") as caught:
            scale_model().save(place)
        assert why in caught.value.remedy and "tmp" not in caught.value.message.split("m.tw")[1]
    with pytest.raises(FileError, match="can't write"):
        scale_model().save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_folder_without_new_files_is_not_to_be_made() -> None:
    with pytest.raises(FileError, match=r"can't write '/proc/m\.tw'") as caught:
        scale_model().save("/proc/m.tw")
    assert "may write to" in caught.value.remedy


def test_a_copy_shares_code_and_has_a_state_of_its_own() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x + self.count

    model, x = tw.compile(Counter(), (torch.zeros(2),), cache=False), torch.zeros(2)
    model(x)
    for twin in (copy.deepcopy(model), copy.copy(model), copy.deepcopy([model])[0]):
        assert twin.state["count"] == 1 and twin(x)[0] == 2 and twin(x)[0] == 3
        assert model.state["count"] == 1
        assert twin._library is model._library and twin._weights is model._weights
        twin.reset()
        assert twin.state["count"] == 0
    assert model(x)[0] == 2
    with pytest.raises(ArtifactError, match="pickled") as caught:
        model.__reduce_ex__(4)  # what pickle asks first
    assert "model.save(path)" in caught.value.remedy


def test_a_model_for_another_machine_can_be_copied() -> None:
    model = tw.compile(torch.nn.ReLU(), (torch.zeros(2),), target="aarch64", cache=False)
    assert copy.deepcopy(model).manifest is model.manifest
    with pytest.raises(ArtifactError):
        model.__reduce_ex__(4)
    with pytest.raises(ArtifactError):
        model.run([X])  # type: ignore[arg-type]


def test_an_empty_tensor_and_a_tensor_without_memory() -> None:
    assert scale_model()(torch.zeros(0, 4)).shape == (0, 4)
    gone = torch.ones(3, 4)
    gone.untyped_storage().resize_(0)
    half, columns = torch.ones(6, 4)[3:], torch.ones(3, 8)[:, ::2]  # the elements needed end behind the memory
    half.untyped_storage().resize_(half.nbytes)
    columns.untyped_storage().resize_(columns.untyped_storage().nbytes() - 8)
    spec = [TensorSpec(n, "float32", (2,)) for n in "ab"]
    two = copy_model(spec, [TensorSpec(n, "float32", (2,)) for n in "pq"], [8, 8], [2, 2])
    for _ in range(3):
        with pytest.raises(InputError, match="no memory"):
            scale_model()(gone)
        for cut in half, columns:
            with pytest.raises(InputError, match="no memory for all"):
                scale_model()(cut)
            with pytest.raises(InputError, match="no memory for all"):
                scale_model()(torch.ones(3, 4), out=cut)
        with pytest.raises(InputError, match="no memory"):
            torch.func.functionalize(lambda a: two(a, a))(torch.ones(2))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["contiguous", "turned", "bfloat16", "complex", "empty", "written"])
def test_an_argument_can_be_made_larger_after_a_call(kind: str) -> None:
    """A tensor that was read as an array, which PyTorch would fix in its place for good, is as free as before."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) if kind == "written" else x * 2

    dtypes = {"bfloat16": torch.bfloat16, "complex": torch.complex64}
    x = torch.ones(4, 0 if kind == "empty" else 6, dtype=dtypes.get(kind, torch.float32))
    x = x.T.contiguous().T if kind == "turned" else x
    model = tw.compile(Twice(), (torch.ones_like(x),), threads=1)
    compiled = torch.compile(Twice(), backend="tilewright")
    expected = [x * 2, x + 1, x + 2] if kind == "written" else [x * 2] * 3
    assert torch.equal(model(x=x), expected[kind == "written"])
    assert torch.equal(compiled(x), expected[2 * (kind == "written")])
    assert x.resize_(20, 30).shape == (20, 30)
