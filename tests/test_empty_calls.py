"""Sizes of 0 where models are for 1 and more: empty results of the right shape in every entry point, or a refusal."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import ModelProto

import tilewright as tw
from aot.programs import needs_cc
from codegen.test_c import built
from frontend.onnx_build import info, model, node
from tilewright import ops
from tilewright.core import types
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.specialize import fix_symbols
from tilewright.core.types import TensorType
from tilewright.runtime.library import LibraryModel

B = Sym("b", 1)
NONE = np.zeros((0, 8), np.float32)


class Called(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def product(*, mean: bool = False) -> ModelProto:
    """``[b, 8]`` by ``[8, 4]``, and with ``mean`` the mean of the rows, which no rows do not have."""
    nodes = [node("MatMul", ["x", "w"], ["y"])] + [node("ReduceMean", ["y"], ["m"], axes=[0])] * mean
    return model(nodes, [info("x", ["b", 8])], ["y", "m"][: 1 + mean], {"w": np.ones((8, 4), np.float32)}, opset=17)


def rows(least: int = 0, *, has_sum: bool = False) -> Graph:
    """Each row's sum, or the sum of all rows; the rows twice, without the first ``least`` of them."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (B, 8)))
    twice = b(ops.concat, x, x, axis=0)
    results = (
        b(ops.reduce_sum, x, axes=(0 if has_sum else 1,)),
        b(ops.slice, twice, starts=(least, 0), stops=(2 * B, 8), steps=(1, 1)),
    )
    return Graph("rows", b.pool, (x,), results, ("s", "t"))


def test_models_of_a_file(tmp_path: Path) -> None:
    compiled = tw.compile(product(), cache=False)
    compiled.save(tmp_path / "m.tw")
    fixed = tw.compile(product(), fix_dims={"b": 0}, cache=False)
    shaped = tw.compile(product(), input_shapes={"x": (0, 8)}, cache=False)
    for m in (compiled, tw.load(tmp_path / "m.tw"), fixed, shaped):
        assert m(NONE).shape == (0, 4) and m(NONE).dtype == np.float32
    assert compiled(np.ones((3, 8), np.float32)).tolist() == [[8.0] * 4] * 3  # the code was not spoilt


def test_results_that_are_not_empty() -> None:
    """A file that is imported for no rows has them; code that was made for rows refuses."""
    fixed = tw.compile(product(mean=True), fix_dims={"b": 0}, cache=False)
    assert fixed(NONE)[0].shape == (0, 4) and np.isnan(fixed(NONE)[1]).all()
    with pytest.raises(tw.InputError, match="b is 0; the model is compiled for at least 1"):
        tw.compile(product(mean=True), cache=False)(NONE)
    with pytest.raises(tw.OptionError, match="b=-1 is outside its range 0"):
        tw.compile(product(), fix_dims={"b": -1}, cache=False)


def test_a_result_that_is_empty_for_rows_alone_is_not_taken_for_empty() -> None:
    """A range from b - 1 up to 0 has no element for 1 and more rows, and one for none."""
    nodes = [node("Shape", ["x"], ["s"], end=1), node("Squeeze", ["s"], ["n"]), node("Sub", ["n", "one"], ["last"])]
    nodes += [node("Range", ["last", "zero", "one"], ["y"])]
    source = model(nodes, [info("x", ["b", 8])], ["y"], {"one": np.array(1), "zero": np.array(0)})
    assert tw.compile(source, fix_dims={"b": 0}, cache=False)(NONE).tolist() == [-1]
    made = tw.compile(source, cache=False)
    assert made(np.ones((3, 8), np.float32)).shape == (0,)
    with pytest.raises(tw.InputError, match="b is 0; the model is compiled for at least 1"):
        made(NONE)


def test_graphs_that_are_fixed() -> None:
    """A graph was made for rows: with none of them it is right where nothing is left to be wrong."""
    assert [n.shape for n in fix_symbols(rows(), {"b": 0}).outputs] == [(0,), (0, 8)]
    with pytest.raises(tw.OptionError, match="b=0 leaves results that are not empty"):
        fix_symbols(rows(has_sum=True), {"b": 0})


def test_modules() -> None:
    linear, size = torch.nn.Linear(8, 4), torch.export.Dim("b")
    compiled = tw.compile(linear, (torch.zeros(3, 8),), dynamic_shapes=({0: size},), cache=False)
    assert compiled(torch.from_numpy(NONE)).shape == (0, 4)


PLACES = torch.tensor([[0, 1], [1, 0]])
TAKEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gather": lambda x: x.gather(0, PLACES),
    "index_select": lambda x: x.index_select(0, PLACES[0]),
    "topk": lambda x: x.topk(1, 0)[0],
    "rank": lambda x: x.kthvalue(1, 0)[0],
    "interpolate": lambda x: F.interpolate(x[None, None], (3, 3)),
    "edge": lambda x: F.pad(x.t()[None], (1, 1), mode="replicate"),
    "store": lambda x: x.index_add(0, PLACES[0], torch.ones(2, 2)),
    "extreme": lambda x: x.amax(0),
    "after": lambda x: x[1:].index_select(0, PLACES[0]),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", TAKEN)
def test_an_element_of_nothing_is_refused(name: str) -> None:
    """A range that may begin with 0 once let code read and write outside of its memory."""
    rows, function = torch.rand(5, 2), TAKEN[name]
    compiled = tw.compile(Called(function), (rows,), dynamic_shapes=({0: torch.export.Dim("n")},), cache=False)
    torch.testing.assert_close(compiled(rows[:4]), function(rows[:4]))
    with pytest.raises(tw.InputError, match="at least"):
        compiled(rows[:0])
    if name == "after":
        with pytest.raises(tw.InputError, match="at least 2"):
            compiled(rows[:1])


@pytest.mark.parametrize(("function", "shapes", "refused"), [
    (lambda x: x[: x.shape[0] // 2].index_select(0, (x[:, 0] * 0).long()), [(6, 5), (0, 5)], (1, 5)),
    (lambda x: x.reshape(-1).gather(0, (x.sum(1) * 0).long()), [(4, 2), (0, 2), (0, 0)], (3, 0)),
])  # fmt: skip
def test_what_is_empty_while_its_indices_are_not_is_refused(
    function: Callable[[torch.Tensor], torch.Tensor], shapes: list[tuple[int, int]], refused: tuple[int, int]
) -> None:
    sizes = ({k: torch.export.Dim(f"n{k}") for k in range(1 + (0 in refused))},)
    compiled = tw.compile(Called(function), (torch.rand(6, 5),), dynamic_shapes=sizes, cache=False)
    for x in map(torch.rand, shapes):
        torch.testing.assert_close(compiled(x), function(x))
    with pytest.raises(tw.InputError, match="min"):
        compiled(torch.rand(refused))


@pytest.mark.parametrize("function", [
    lambda x: torch.cat([x, torch.ones(1, 2)]).softmax(0), lambda x: x.sum(0), lambda x: x.t() @ x,
    lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.int64)).sum(), lambda x: F.pad(x, (0, 0, 1, 0)),
])  # fmt: skip
def test_what_needs_no_element_is_computed(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    rows = torch.rand(5, 2)
    compiled = tw.compile(Called(function), (rows,), dynamic_shapes=({0: torch.export.Dim("n")},), cache=False)
    for n in (0, 3):
        torch.testing.assert_close(compiled(rows[:n]), function(rows[:n]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dynamic", [True, False, None])
def test_calls_under_torch_compile(dynamic: bool | None) -> None:
    called = torch.compile(torch.nn.Linear(8, 4), backend="tilewright", dynamic=dynamic)
    assert [tuple(called(torch.zeros(n, 8)).shape) for n in (3, 0, 2, 0)] == [(3, 4), (0, 4), (2, 4), (0, 4)]


@needs_cc
@pytest.mark.parametrize("form", ["object", "C"])
def test_exports(form: str, tmp_path: Path) -> None:
    def exported(name: str, graph: Graph) -> LibraryModel:
        (tmp_path / name).mkdir()
        if form == "C":
            return built(graph, tmp_path / name)
        return LibraryModel(tw.export(graph, tmp_path / name, name="net", shared=True).library)

    library = exported("plain", rows())
    assert [r.shape for r in library(NONE)] == [(0,), (0, 8)]
    assert [r.shape for r in library(np.ones((3, 8), np.float32))] == [(3,), (6, 8)]
    for strange in (exported("less than nothing", rows(1)), exported("a result", rows(has_sum=True))):
        with pytest.raises(tw.InputError, match="b: the model is compiled for at least 1"):
            strange(NONE)


@needs_cc
def test_an_exported_call_reads_and_writes_nothing(tmp_path: Path) -> None:
    """Of no rows neither the input nor the outputs have memory, and sizes below 0 stay refused."""
    library = ctypes.CDLL(str(tw.export(rows(), tmp_path, name="net", shared=True).library))
    n_bytes, handle = ctypes.c_int64(-1), ctypes.c_void_p()
    for size, status in ((0, 0), (-1, 2)):
        assert library.net_workspace((ctypes.c_int64 * 1)(size), ctypes.byref(n_bytes)) & 255 == status
    assert library.net_create(ctypes.byref(handle), None, n_bytes, None, 0) == 0
    nowhere = (ctypes.c_void_p * 2)(None, None)
    shape = (ctypes.c_int64 * 2)(-1, -1)
    assert library.net_run(handle, (ctypes.c_int64 * 1)(0), nowhere, nowhere) == 0
    assert library.net_result_shape(handle, 1, shape) == 0 and list(shape) == [0, 8]
    library.net_destroy(handle)


@pytest.mark.parametrize("shapes", [((3, 0), (0, 4)), ((2, 3, 0), (2, 0, 40))])
def test_no_rule_breaks_at_a_product_without_terms(shapes: tuple[tuple[int, ...], ...]) -> None:
    pool = Pool()
    x, y = (pool.input(name, TensorType(types.f32, shape)) for name, shape in zip("xy", shapes, strict=True))
    compiled = tw.compile(Graph("g", pool, (x, y), (Builder(pool)(ops.matmul, x, y),), ("z",)), cache=False)
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    assert np.array_equal(compiled(*arrays), np.matmul(*arrays))
