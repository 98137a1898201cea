"""What a model asks of values: indices in range, and what a program asserts; a call that breaks it fails by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch.export import Dim

import tilewright as tw
from frontend.onnx_build import I64, graph, info, model, node, runtime_answers
from tilewright import ops
from tilewright.core.text import SideTable, parse_graph, print_graph
from tilewright.core.verify import verify
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.frontend.torch.export import export_module
from tilewright.runtime.errors import ExecutionError
from tilewright.runtime.library import LibraryModel

TABLE = np.random.default_rng(3).standard_normal((100, 16)).astype(np.float32)


def lookup(dtype: int = I64) -> onnx.ModelProto:
    nodes = [node("Unsqueeze", ["ids", "zero"], ["u"]), node("Gather", ["w", "u"], ["y"], name="words")]
    return model(nodes, [info("ids", ["n"], dtype)], ["y"], {"w": TABLE, "zero": np.array([0])})


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_indices_of_onnx_models(dtype: type) -> None:
    source = lookup(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    made, good = tw.compile(source, cache=False), np.array([0, 99, -100, 7], dtype)
    for _ in range(3):
        np.testing.assert_array_equal(made(good), runtime_answers(source, {"ids": good})[0])
    for wrong in (100, -101, np.iinfo(dtype).max, np.iinfo(dtype).min):
        ids = np.array([1, wrong, 2], dtype)
        for _ in range(3):  # the third would be the native entry's
            values = rf"{ids.min()}\.\.{ids.max()}"
            says = r'"words" \(Gather\): .*input "ids" is outside of -100\.\.99; its values are ' + values
            with pytest.raises(ExecutionError, match=says):
                made(ids)


def test_indices_in_files_and_exports(tmp_path: Path) -> None:
    made = tw.compile(lookup(), cache=False)
    made.save(tmp_path / "words.tw")
    library = LibraryModel(made.export(tmp_path, name="words", shared=True).library)
    for loaded in (tw.load(tmp_path / "words.tw"), library):
        np.testing.assert_array_equal(loaded(np.array([3, -1]))[0], TABLE[[3, -1]])
        with pytest.raises(ExecutionError, match=r"words.*-100\.\.99"):
            loaded(np.array([3, 100]))


def test_computed_indices_and_lone_elements_are_kept_in_range() -> None:
    nodes = [node("Add", ["ids", "one"], ["more"]), node("Gather", ["w", "more"], ["y"])]
    nodes += [node("Gather", ["column", "ids"], ["z"])]
    constants = {"w": TABLE, "one": np.array(1), "column": TABLE[:, 0].copy()}
    made = import_onnx(model(nodes, [info("ids", ["n"], I64)], ["y", "z"], constants))
    assert made.checks == ()


def test_a_branch_that_does_not_run_asks_nothing() -> None:
    branches = [
        graph([node("Gather", ["w", "ids"], ["r"])], [], ["r"], name="looked_up"),
        graph([node("Gather", ["w", "zero"], ["r"])], [], ["r"], name="first"),
    ]
    nodes = [node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])]
    inputs = [info("c", [], onnx.TensorProto.BOOL), info("ids", [1], I64)]
    made = tw.compile(model(nodes, inputs, ["y"], {"w": TABLE, "zero": np.array([0])}), cache=False)
    np.testing.assert_array_equal(made(np.array(False), np.array([1000])), TABLE[:1])


def looked_up_in_a_branch() -> onnx.ModelProto:
    branches = [
        graph([node("Gather", ["w", "ids"], ["r"], name="words")], [], ["r"], name="looked_up"),
        graph([node("Gather", ["w", "zeros"], ["r"])], [], ["r"], name="first"),
    ]
    nodes = [
        node("ReduceSum", ["keys"], ["s"], keepdims=0),
        node("Cast", ["s"], ["c"], to=onnx.TensorProto.BOOL),
        node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [info("ids", [3], I64), info("keys", [3], I64)]
    return model(nodes, inputs, ["y"], {"w": TABLE, "zeros": np.zeros(3, np.int64)})


def looked_up_in_a_loop() -> onnx.ModelProto:
    body = graph(
        [
            node("Gather", ["ids", "i"], ["k"]),
            node("Gather", ["w", "k"], ["r"], name="words"),
            node("Add", ["total", "r"], ["more"]),
            node("Identity", ["go"], ["again"]),
        ],
        [info("i", [], I64), info("go", [], onnx.TensorProto.BOOL), info("total", [16], onnx.TensorProto.FLOAT)],
        ["again", "more", "r"],
        name="body",
    )
    nodes = [
        node("ReduceMax", ["keys"], ["n"], keepdims=0),
        node("Loop", ["n", "", "zeros"], ["sum", "rows"], body=body),
    ]
    inputs = [info("ids", [3], I64), info("keys", [3], I64)]
    return model(nodes, inputs, ["sum", "rows"], {"w": TABLE, "zeros": np.zeros(16, np.float32)})


def looked_up_in_a_scan() -> onnx.ModelProto:
    body = graph(
        [
            node("Gather", ["w", "k"], ["r"], name="words"),
            node("Add", ["total", "r"], ["more"]),
            node("Identity", ["r"], ["row"]),
        ],
        [info("total", [16], onnx.TensorProto.FLOAT), info("k", [], I64)],
        ["more", "row"],
        name="body",
    )
    nodes = [
        node("Slice", ["ids", "zero", "last"], ["cut"]),
        node("Mul", ["keys", "keys"], ["unused"]),
        node("Scan", ["zeros", "cut"], ["sum", "rows"], body=body, num_scan_inputs=1),
    ]
    inputs = [info("ids", [3], I64), info("keys", [3], I64)]
    constants = {"w": TABLE, "zeros": np.zeros(16, np.float32), "zero": np.array([0]), "last": np.array([2])}
    return model(nodes, inputs, ["sum", "rows", "unused"], constants)


@pytest.mark.parametrize("make", [looked_up_in_a_branch, looked_up_in_a_loop, looked_up_in_a_scan])
def test_lookups_in_branches_and_bodies_are_checked_where_they_run(make: Callable[[], onnx.ModelProto]) -> None:
    """``keys`` say which branch is taken and how many trips are made."""
    source, refused = make(), 0
    made, draw = tw.compile(source, cache=False), np.random.default_rng(8)
    for _ in range(24):
        given = {"ids": draw.integers(-100, 100, 3), "keys": draw.integers(0, 2, 3) * draw.integers(1, 4)}
        if draw.random() < 0.6:
            given["ids"][draw.integers(3)] = draw.choice([-101, 100, 2**40])
        try:
            want = runtime_answers(source, given)
        except Exception as e:
            assert "indices element out of data bounds" in str(e)
            refused += 1
            with pytest.raises(ExecutionError, match=r'"words" \(Gather\).*input "ids" is outside of -100\.\.99'):
                made(**given)
        else:
            got = made(**given)
            for x, y in zip(got if isinstance(got, tuple) else [got], want, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-6)
    assert 0 < refused < 24


def test_checks_survive_text_and_passes() -> None:
    made = import_onnx(lookup())
    table = SideTable()
    again = parse_graph(print_graph(made, table), ops.by_name, table.arrays)
    assert again.checks == made.checks and again.output_names == made.output_names and again.n_results == 1
    verify(again)


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(100, 16), torch.nn.Embedding(64, 16)

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return self.words(ids) + self.places(at.long()) + self.words.weight[ids].index_select(0, at)


def test_indices_of_pytorch_modules() -> None:
    module = Words()
    ids, at = torch.randint(0, 100, (7, 7)), torch.arange(7, dtype=torch.int32)
    made = tw.compile(module, (ids, at), cache=False)
    with torch.no_grad():
        torch.testing.assert_close(made(ids, at), module(ids, at))
    for wrong, name, limits in ((100, "ids", "0..99"), (-1, "ids", "0..99"), (64, "at", "0..")):
        arguments = [ids.clone(), at.clone()]
        arguments[name == "at"].view(-1)[3] = wrong
        with pytest.raises(ExecutionError, match=f'in forward: an index in input "{name}" is outside of {limits}'):
            made(*arguments)


def cut(x: torch.Tensor) -> torch.Tensor:
    n = x.sum().to(torch.int64).item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x[:n] * 2


def positive(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "only positive numbers")
    return x.sqrt()


def several(x: torch.Tensor) -> torch.Tensor:
    y = x[x > 0]
    torch._check(y.shape[0] >= 2)
    return y + 1


def scaled(x: torch.Tensor) -> torch.Tensor:
    most = x.max().item()
    torch._check(most > 0.5)
    return x / most


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("f", "words"),
    [
        (cut, r"u0 <= .* must hold, where the data decide u0"),
        (positive, "only positive numbers"),
        (several, r"u0 >= 2 must hold"),
        (scaled, r"zuf0 > 0\.5 must hold"),
    ],
)
def test_assertions_about_values_hold_where_pytorch_s_do(f: Callable[..., Any], words: str) -> None:
    class Asserting(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return f(x)

    program = export_module(Asserting(), (torch.ones(6) / 2,), {"x": {0: Dim.AUTO}})
    made, eager, refused = tw.compile(program, cache=False), program.module(), 0
    draw = np.random.default_rng(4)
    for k in range(12):
        x = torch.from_numpy(draw.standard_normal(2 + k % 5).astype(np.float32) + k % 3 - 1)
        x = x.abs() if k % 4 == 0 else x
        try:
            want = eager(x)
        except (RuntimeError, AssertionError):
            refused += 1
            with pytest.raises(ExecutionError, match=words if f is not cut else "u0"):
                made(x)
        else:
            torch.testing.assert_close(made(x), want)
    assert 0 < refused < 12


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def deeper(x: torch.Tensor) -> torch.Tensor:
            torch.ops.aten._assert_async.msg((x < 10).all(), "below 10")
            return x * 3

        def upper(x: torch.Tensor) -> torch.Tensor:
            torch.ops.aten._assert_async.msg((x > 0).all(), "above 0")
            return torch.cond(x[0] > 3, deeper, lambda x: x + 1, (x,))

        return torch.cond(x.sum() > 0, upper, lambda x: x - 1, (x,))


class Looping(torch.nn.Module):
    def forward(self, n: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def step(n: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            torch.ops.aten._assert_async.msg((x < 100).all(), "below 100")
            return torch.where(x.max() < 100, n - 1, n), x * 2  # without end, were the loop to go on

        return torch.while_loop(lambda n, x: n > 0, step, (n, x))


class Scanning(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def step(total: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            torch.ops.aten._assert_async.msg((row > 0).all(), "rows above 0")
            return total + row, total * row

        return scan(step, torch.zeros(2), x)


class Unrolled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in range(3):
            torch._assert_async(x[k] > 0, "each above 0")
        return x * 2


class LookedUp(torch.nn.Module):
    """By ``ids`` in a branch, in a loop's body and by what a scan hands on of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = torch.nn.Embedding(10, 4)

    def forward(self, n: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        words = self.words.weight

        def looked_up(ids: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding(ids, words).sum(0)

        def first(ids: torch.Tensor) -> torch.Tensor:
            return words[0] * 1

        def step(n: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return n - 1, total + words.index_select(0, ids[:1]).sum(0)

        def follow(total: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return total + torch.nn.functional.embedding(k, words), total * 1

        chosen = torch.cond(n > 2, looked_up, first, (ids,))
        _, summed = torch.while_loop(lambda n, total: n > 1, step, (n, torch.zeros(4)))
        return chosen + summed + scan(follow, torch.zeros(4), ids[2:])[0]


IN_ORDER = [
    (Branching(), "above 0|below 10", [[[1.0, 2.0]], [[-1.0, 2.0]], [[-9.0, 2.0]], [[4.0, 20.0]], [[1.0, 20.0]]]),
    (Looping(), "below 100", [[2, [1.0, 3.0]], [9, [1.0, 3.0]], [0, [1000.0, 0.0]]]),
    (Scanning(), "rows above 0", [[[[1.0, 2.0], [3.0, 4.0]]], [[[1.0, 2.0], [3.0, -4.0], [1.0, 1.0]]]]),
    (Unrolled(), "each above 0", [[[1.0, 2.0, 3.0]], [[-1.0, 2.0, 3.0]], [[1.0, 2.0, -3.0]]]),
]


@pytest.mark.one_in(6)
@pytest.mark.filterwarnings("ignore:.*treespec")
@pytest.mark.parametrize("is_jit", [False, True])
@pytest.mark.parametrize(("module", "words", "calls"), IN_ORDER, ids=lambda x: type(x).__name__)
def test_assertions_hold_only_where_control_flow_meets_them(
    module: torch.nn.Module, words: str, calls: list[Any], *, is_jit: bool
) -> None:
    given = [[torch.tensor(x) for x in args] for args in calls]
    torch._dynamo.reset()
    if is_jit:
        made = torch.compile(module, backend="tilewright")
    else:
        shapes = ({0: Dim.AUTO},) if isinstance(module, Scanning) else None
        made = tw.compile(module, tuple(given[0]), dynamic_shapes=shapes, cache=False)
    refused = 0
    for args in given:
        with torch.no_grad():
            try:
                want = module(*args)
            except RuntimeError:
                refused += 1
                with pytest.raises(RuntimeError if is_jit else ExecutionError, match=words):
                    made(*args)
            else:
                torch.testing.assert_close(made(*args), want)
    assert 0 < refused < len(calls)


@pytest.mark.filterwarnings("ignore:.*treespec")
def test_lookups_in_control_flow_of_pytorch_are_checked_where_they_run() -> None:
    module, refused = LookedUp(), 0
    draw = np.random.default_rng(5)
    made = tw.compile(module, (torch.tensor(3), torch.tensor([1, 2, 3])), cache=False)
    for k in range(40):
        ids = torch.from_numpy(draw.integers(0, 10, 3))
        if k % 3:
            ids[draw.integers(3)] = int(draw.choice([-1, 10, 2**40]))
        n = torch.tensor(int(draw.integers(0, 4)))
        try:
            with torch.no_grad():
                want = module(n, ids)
        except IndexError:
            refused += 1
            with pytest.raises(ExecutionError, match=r'an index in input "ids" is outside of 0\.\.9'):
                made(n, ids)
        else:
            torch.testing.assert_close(made(n, ids), want)
    assert 0 < refused < 40


def cut_by_sum(x: torch.Tensor) -> torch.Tensor:
    n = x.sum().to(torch.int64).item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x[:n] * 2


def zeros_of_first(x: torch.Tensor) -> torch.Tensor:
    n = x.to(torch.int64)[0].item()
    torch._check(n >= 0)
    return torch.zeros(n) + x.sum()


def apart(x: torch.Tensor) -> torch.Tensor:
    n = x.to(torch.int64)[0].item()
    torch._check(n >= 0)
    torch._check(n < 4)
    return torch.linalg.eigvals(x.view(2, 2)).abs().sum() + x.sum() * n


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:.*in PyTorch")
@torch._dynamo.config.patch(capture_scalar_outputs=True)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("f", [cut_by_sum, zeros_of_first, apart])
def test_a_number_that_a_piece_is_handed_is_asked_what_is_asserted_of_it(
    f: Callable[[torch.Tensor], torch.Tensor], *, dynamic: bool | None
) -> None:
    """A negative size was taken for 0, as its range says that it is none."""
    torch._dynamo.reset()
    made, refused = torch.compile(f, backend="tilewright", dynamic=dynamic), 0
    for values in ([1.0, 1, 1, 1], [2.0, 0, 0, 0], [-3.0, 1, 0, 0], [20.0, 1, 0, 0], [0.0, 0, -1, -2]):
        x = torch.tensor(values)
        try:
            want = f(x)
        except RuntimeError:
            refused += 1
            with pytest.raises(RuntimeError, match=r"u0|Expected cond"):
                made(x)
        else:
            torch.testing.assert_close(made(x), want)
    assert 0 < refused < 5
