"""Sizes that data decide, used without the tensor that has them: native code against ONNX Runtime and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, helper

import tilewright as tw
from frontend.onnx_build import BOOL, I64, graph, info, model, node, runtime_answers
from tilewright.integrations.torch_compile.capture import FallbackWarning

COUNT = (node("NonZero", ["x"], ["n"]), node("Shape", ["n"], ["s"], start=1, end=2))
MANY = [np.array([[1, 0, 2.0], [0, 3, 0]], np.float32), np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)]
ROW = [np.array(x, np.float32) for x in ([2, 1, 1, 3, 4, 3], [0] * 6, [5, 4, 3, 2, 1, 0])]


def check(nodes: list[NodeProto], arrays: list[np.ndarray], outputs: list[str], constants: dict[str, Any]) -> None:
    m = model(nodes, [info("x", arrays[0].shape)], outputs, constants)
    compiled = tw.compile(m, cache=False)
    for x in arrays:
        got = compiled(x)
        for a, b in zip([got] if len(outputs) == 1 else got, runtime_answers(m, {"x": x}), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "nodes, constants",
    [
        ([node("Shape", ["n"], ["r"])], {}),
        ([node("Size", ["n"], ["r"])], {}),
        (
            [node("Squeeze", ["s"], ["s0"]), node("Range", ["z", "s0", "o"], ["r"])],
            {"z": np.int64(0), "o": np.int64(1)},
        ),
        ([node("ConstantOfShape", ["s"], ["r"])], {}),
        (
            [node("Concat", ["s", "k"], ["t"], axis=0), node("Expand", ["c", "t"], ["r"])],
            {"k": [3], "c": np.float32([1, 2, 3])},
        ),
        ([node("Tile", ["c", "s"], ["r"])], {"c": np.float32([1, 2])}),
        ([node("Cast", ["s"], ["f"], to=1), node("Mul", ["x", "f"], ["r"])], {}),
        ([node("Reshape", ["x", "m"], ["f"]), node("TopK", ["f", "s"], ["r", "i"])], {"m": [-1]}),
        ([node("Slice", ["n", "b", "e", "a", "p"], ["r"])], {"b": [-1], "e": [-99], "a": [1], "p": [-2]}),
    ],
)
def test_the_number_of_nonzero_elements_alone(nodes: list[NodeProto], constants: dict[str, Any]) -> None:
    check([*COUNT, *nodes], MANY, ["r"], constants)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_what_unique_finds_goes_on(is_sorted: int) -> None:
    nodes = [
        node("Unique", ["x"], ["y", "", "place", "many"], sorted=is_sorted),
        node("Shape", ["y"], ["s"]),
        node("ConstantOfShape", ["s"], ["zero"]),
        node("ScatterElements", ["zero", "place", "x"], ["sums"], reduction="add"),
        node("NonZero", ["y"], ["n"]),
        node("Transpose", ["n"], ["t"]),
        node("GatherND", ["many", "t"], ["kept"]),
        node("Unique", ["many"], ["y2", "", "place2", "many2"], sorted=is_sorted),
    ]
    check(nodes, ROW, ["sums", "kept", "y2", "place2", "many2"], {})


def test_more_boxes_are_kept_than_a_box_has_numbers() -> None:
    """80 classes keep 80 times as many boxes as there are."""
    n, classes = 5, 80
    corner = np.arange(n, dtype=np.float32)[:, None] * 10
    boxes = np.concatenate([corner, corner, corner + 1, corner + 1], 1)[None]
    nodes = [node("NonMaxSuppression", ["x", "scores", "limit", "iou", "least"], ["r"])]
    scores = np.random.default_rng(0).random((1, classes, n), np.float32)
    constants = {"scores": scores, "limit": [n], "iou": np.float32([0.5]), "least": np.float32([0.0])}
    check(nodes, [boxes], ["r"], constants)


POSITIVE = (
    node("Greater", ["x", "zero"], ["is_positive"]),
    node("Cast", ["is_positive"], ["ones"], to=7),
    node("ReduceSum", ["ones"], ["count"], keepdims=0),
    node("Unsqueeze", ["count", "front"], ["c"]),
    node("Reshape", ["x", "minus"], ["row"]),
)
NUMBERS = {"zero": np.float32(0), "front": [0], "minus": [-1], "z": np.int64(0), "o": np.int64(1), "back": [-3]}
BODY = helper.make_graph(
    [
        node("Identity", ["going"], ["still"]),
        node("Add", ["i", "o"], ["limit"]),
        node("Range", ["z", "limit", "o"], ["steps"]),
        node("Slice", ["row", "front", "c"], ["some"]),
        node("ReduceSum", ["steps"], ["s"], keepdims=0),
        node("ReduceSum", ["some"], ["t"], keepdims=0),
        node("Cast", ["s"], ["s32"], to=1),
        node("Sum", ["total", "s32", "t"], ["next"]),
    ],
    "body",
    [info("i", [], I64), info("going", [], BOOL), info("total", [])],
    [info("still", [], BOOL), info("next", [])],
)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Range", ["z", "count", "o"], ["r"])],
        [node("Range", ["count", "z", "step"], ["r"])],
        [node("Cast", ["count"], ["f"], to=1), node("Range", ["zero", "f", "half"], ["r"])],
        [node("ConstantOfShape", ["c"], ["r"])],
        [node("Concat", ["c", "three"], ["shape"], axis=0), node("Expand", ["o", "shape"], ["r"])],
        [node("TopK", ["row", "c"], ["r", "places"])],
        [node("Slice", ["row", "front", "c"], ["part"]), node("ReduceSum", ["part"], ["r"])],
        [node("Neg", ["c"], ["end"]), node("Slice", ["row", "c", "end"], ["r"])],
        [node("Slice", ["row", "c", "far", "front", "back"], ["r"])],
        [node("Loop", ["five", "", "zero"], ["r"], body=BODY)],
    ],
)
def test_a_count_as_a_size(nodes: list[NodeProto]) -> None:
    more = {"step": np.int64(-2), "half": np.float32(0.5), "three": [3], "far": [-(1 << 62)], "five": np.int64(5)}
    check([*POSITIVE, *nodes], [x - 0.5 for x in MANY], ["r"], NUMBERS | more)


def test_a_branch_that_finds_places() -> None:
    found = graph([node("NonZero", ["x"], ["n"])], [], ["n"])
    none = graph([node("Identity", ["empty"], ["m"])], [], ["m"])
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Greater", ["most", "zero"], ["any"]),
        node("If", ["any"], ["r"], then_branch=found, else_branch=none),
        node("Shape", ["r"], ["s"]),
        node("ConstantOfShape", ["s"], ["k"]),
    ]
    check(nodes, MANY, ["r", "s", "k"], {"zero": np.float32(0), "empty": np.zeros((2, 9), np.int64)})


def test_a_size_without_a_bound_is_refused() -> None:
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Cast", ["most"], ["n"], to=7),
        node("Range", ["z", "n", "o"], ["r"]),
    ]
    big = info("x", [1000])
    with pytest.raises(tw.ImportFailed, match="nothing bounds it"):
        tw.compile(model(nodes, [big], ["r"], {"z": np.int64(0), "o": np.int64(1)}), cache=False)


def check_exported(f: Callable[..., Any], calls: list[torch.Tensor]) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return f(x)

    compiled = tw.compile(torch.export.export(Module(), (calls[0],), strict=False), cache=False)
    for x in calls:
        wanted, got = f(x), compiled(x.numpy())
        pairs = zip(wanted, got, strict=True) if isinstance(wanted, tuple) else [(wanted, got)]
        for a, b in pairs:
            assert tuple(a.shape) == b.shape
            np.testing.assert_allclose(b, a.numpy(), rtol=1e-5, atol=1e-6)


def _mask(lengths: torch.Tensor) -> torch.Tensor:
    n = lengths.max().item()
    torch._check(n >= 0)
    torch._check(n <= 16)
    return torch.arange(n)[None] < lengths[:, None]


def _zeros(x: torch.Tensor) -> torch.Tensor:
    n = (x > 2).sum().item()
    torch._check(n >= 0)
    return torch.zeros(n, 3) + n


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "f",
    [
        _mask,
        _zeros,
        lambda x: torch.arange(x.nonzero().shape[0]),
        lambda x: torch.repeat_interleave(x.clamp(0, 5)),
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique(x).float().softmax(0),
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    ],
)
def test_sizes_in_exported_programs(f: Callable[..., Any]) -> None:
    check_exported(f, [torch.tensor(x) for x in ([3, 1, 4], [1, 1, 2], [0, 0, 0])])


def check_captured(f: Callable[..., Any], *xs: torch.Tensor) -> None:
    """Captured whole, with nothing left to PyTorch, and equal to eager."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", fullgraph=True, options={"fallback": False})
    for x in xs:
        torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.repeat_interleave(x, x) * 2,
        lambda x: torch.repeat_interleave(torch.bincount(x, x.float(), 3).long()),
        lambda x: torch.zeros(x.sum().item()) + x.max(),
        lambda x: torch.zeros(x.sum().item() * 2) + x.max(),
        lambda x: torch.arange(x.max().item())[None] < x[:, None],
        lambda x: x.sum().item() + 1,
    ],
)
def test_sizes_that_nothing_bounds_are_read_between_pieces(f: Callable[..., Any]) -> None:
    check_captured(f, *(torch.tensor(x) for x in ([3, 1, 4], [0, 1, 2], [5, 0, 900])))


def test_counts_up_to_a_size_of_the_call() -> None:
    torch._dynamo.reset()
    options = {"fallback": False}
    made = torch.compile(lambda x: torch.bincount(x, minlength=x.shape[0]), backend="tilewright", dynamic=True,
                         options=options)  # fmt: skip
    for values in ([1, 2, 3, 1], [0, 9], [2, 2, 0, 0, 1, 1]):
        x = torch.tensor(values)
        torch.testing.assert_close(made(x), torch.bincount(x, minlength=len(values)))


@torch.library.custom_op("tilewright_test::marked", mutates_args=())
def marked(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero()


@marked.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.dim(), dtype=torch.int64)


def test_a_check_of_a_size_that_pytorch_decides_and_nothing_else_reads() -> None:
    """The piece that asks has to be given the tensor whose size it is."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = marked(x)
        torch._check(y.shape[0] >= 2)
        return y, x * 2

    torch._dynamo.reset()
    made = torch.compile(f, backend="tilewright", fullgraph=True)
    x = torch.tensor([1.0, 0.0, 2.0])
    with pytest.warns(FallbackWarning) as told:
        torch.testing.assert_close(made(x), f(x))
    assert not any("mistake" in str(said.message) for said in told)
    with pytest.raises(RuntimeError, match="u0 >= 2"):
        made(torch.tensor([0.0, 0.0, 2.0]))


def test_an_unbounded_size_of_one_artefact_is_refused() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(x.sum().item())

    with pytest.raises(tw.ImportFailed, match="a size that nothing bounds"):
        tw.compile(torch.export.export(Module(), (torch.arange(3),)), cache=False)


@settings(max_examples=3)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 2**31), st.data())
def test_unique_slices(shape: list[int], seed: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed))
    check_captured(lambda x: torch.unique(x, return_inverse=True, return_counts=True, dim=axis), x)
    check_captured(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=axis), x)


@pytest.mark.parametrize("f", [torch.nonzero, torch.unique, lambda x: torch.unique(x, dim=1)])
def test_finding_among_nothing(f: Callable[..., Any]) -> None:
    check_captured(f, torch.zeros(2, 0, 3))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.arange(9.0)[x[0].item() : x[1].item()] * 2,
        lambda x: torch.arange(9.0)[: x[0].item()].clone(),
        lambda x: torch.arange(18.0).view(9, 2)[x[0].item() :: 3] + 1,
        lambda x: torch.arange(9.0)[: x[0].clamp(max=3).item()] + x[0].clamp(max=3).item(),
        lambda x: [p + 1 for p in torch.tensor_split(torch.arange(9.0), x)],
        lambda x: x * (x.sum().item() + 1) + x.sum().clamp(max=2).item(),
        lambda x: x[0].item() + x[1].item(),
    ],
)
def test_ends_and_numbers_of_either_sign_that_data_decide(f: Callable[..., Any]) -> None:
    check_captured(f, *(torch.tensor(x) for x in ([2, 5], [4, 9], [-5, -2], [0, 0])))


def test_a_view_of_which_data_decide_where_it_lies() -> None:
    check_captured(lambda x: x[x[0].item() : x[1].item()], torch.tensor([1, 4, 9, 9, 9]))


def _places_or_all(x: torch.Tensor) -> torch.Tensor:
    places = torch.where(x > 0)[0]
    if places.numel() == 0:
        return x
    return x[places] * 2


def _experts(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for expert in range(3):
        places = torch.where(x.round() == expert)[0]
        if places.numel():
            out.index_add_(0, places, x[places] * (expert + 1))
    return out


def _narrowed(x: torch.Tensor) -> torch.Tensor:
    kept = x[x > 0]
    while len(kept) > 3:
        kept = kept[kept > kept.mean()]
    return kept


def _pairs(x: torch.Tensor) -> torch.Tensor:
    kept = x[x > 0]
    return kept.reshape(-1, 2).sum(1) if kept.numel() % 2 == 0 else kept


def _mean(x: torch.Tensor) -> torch.Tensor:
    kept = x[x > 0]
    return kept.sum() / (kept.numel() or 1)


def _told(x: torch.Tensor) -> Any:
    kept = x[x > 0]
    n = kept.shape[0]
    return n > 2, not n, 1 < n < 5, n == x.shape[0]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("f", [_places_or_all, _narrowed, _pairs, _mean, _told])
def test_a_size_that_data_decide_decides_a_branch(f: Callable[..., Any], is_dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", dynamic=is_dynamic, options={"fallback": False})
    for x in ([1.0, -1, 2, 3, 0.5, -2], [-1.0, -1, -2, -3, -0.5, -2], [1.0, 1, 2, 3, 0.5, 2]):
        torch.testing.assert_close(compiled(torch.tensor(x)), f(torch.tensor(x)))


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_branch_in_a_loop_is_left_to_python_and_said(is_dynamic: bool) -> None:
    """Dynamo breaks graphs at such a branch, and none within a loop: it captures nothing of the function."""
    torch._dynamo.reset()
    compiled = torch.compile(_experts, backend="tilewright", dynamic=is_dynamic)
    with pytest.warns(FallbackWarning, match="_experts"):
        compiled(torch.tensor([1.0, 2.0]))
    for x in ([1.0, -1, 2, 3, 0.5, -2], [-1.0, -1, -2, -3, -0.5, -2], [1.0, 1, 2, 3, 0.5, 2]):
        torch.testing.assert_close(compiled(torch.tensor(x)), _experts(torch.tensor(x)))
    torch._dynamo.reset()
    strict = torch.compile(_experts, backend="tilewright", dynamic=is_dynamic, options={"fallback": False})
    with pytest.raises(tw.ImportFailed, match="leaves a part of the program to Python"):
        strict(torch.tensor([1.0, 2.0]))


def test_a_condition_on_sizes_is_a_result() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            n = x.shape[0]
            return torch.cond(n > 3, lambda x: x * 3, lambda x: x + 1, (x,)), n > 3

    model = tw.compile(Model(), (torch.ones(5),), dynamic_shapes=({0: torch.export.Dim("n", min=2)},), cache=False)
    for n in (5, 3):
        torch.testing.assert_close(model(torch.ones(n)), Model()(torch.ones(n)))


def _filled(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[: x[x > 0].shape[0] > 2] = 7.0
    return y


@pytest.mark.one_in(10)  # each function once, by turns where the user asked for such sizes
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[x[x > 0].shape[0] > 2 :] * 2,
        lambda x: x[:: 1 + (x[x > 0].shape[0] > 2)] + x[: x[x > 0].shape[0] == 3].sum(),
        lambda x: [x, x * 2, x * 3, x * 4, x * 5, x * 6, x * 7][x[x > 0].shape[0]],
        lambda x: torch.arange(x[x > 0].shape[0] > 2) + x.sum(),
        lambda x: x * ((x[x > 0].shape[0] > 2) ^ True),
        lambda x: x[x[x > 0].clamp(max=3).long().tolist()],
        _filled,
    ],
)
@pytest.mark.parametrize("is_set_by_user", [False, True])
def test_a_size_that_data_decide_where_python_wants_a_number(f: Callable[..., Any], is_set_by_user: bool) -> None:
    """Dynamo raises on each; the graph breaks in front of it instead, also where the user asked for such sizes."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=is_set_by_user):
        with pytest.warns(FallbackWarning):
            compiled(torch.tensor([1.0, -1, 2, 3, 0.5, -2]))
        for x in ([1.0, -1, 2, 3, 0.5, -2], [-1.0, -1, -2, -3, -0.5, -2], [1.0, 1, 2, 3, 0.5, 2]):
            torch.testing.assert_close(compiled(torch.tensor(x)), f(torch.tensor(x)))
        assert torch._dynamo.config.capture_dynamic_output_shape_ops is is_set_by_user


class SplitByCounts(torch.nn.Module):
    """Experts as JetMoE and GraniteMoE have them: rows in the order of their experts, split by how many each gets."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weight = torch.nn.Linear(6, 4), torch.nn.Parameter(torch.randn(4, 6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score, expert = self.gate(x).topk(2, dim=1)
        counts = torch.zeros(x.shape[0], 4).scatter(1, expert, 1).long().sum(0).tolist()
        order = expert.flatten().argsort(stable=True)
        row = order.div(2, rounding_mode="trunc")
        parts = x[row].split(counts)
        made = torch.cat([torch.nn.functional.linear(p, w) for p, w in zip(parts, self.weight, strict=True)])
        return torch.zeros_like(x).index_add(0, row, made * score.flatten()[order, None])


def test_parts_of_a_split_by_counts_are_as_many_rows_as_the_whole() -> None:
    """The program asserts that the counts add up, so what the parts are joined to has the whole's size."""
    torch.manual_seed(0)
    module, given = SplitByCounts(), [torch.randn(16, 6), torch.ones(16, 6), -torch.arange(96.0).reshape(16, 6)]
    compiled = tw.compile(module, (given[0],), cache=False)
    for x in given:
        torch.testing.assert_close(torch.as_tensor(compiled(x)), module(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("counts", [(3, 2), (5, 5), (0, 0)])
def test_a_promised_total_that_the_data_break_is_an_error(counts: tuple[int, int]) -> None:
    class Promised(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            a, b = (k.clamp(0, 8) for k in n)
            first, second = a.item(), b.item()
            torch._check(first + second == 5)
            joined = torch.cat([torch.ones(first), torch.zeros(second)])
            return joined * x

    x = torch.arange(5.0)
    compiled = tw.compile(Promised(), (x, torch.tensor([2, 3])), cache=False)
    n = torch.tensor(counts)
    if sum(counts) == 5:
        torch.testing.assert_close(torch.as_tensor(compiled(x, n)), Promised()(x, n))
    else:
        with pytest.raises(tw.TilewrightError, match="must hold"):
            compiled(x, n)


def written_by_kind(x: torch.Tensor, kind: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """As models of text and sound: each kind of token has layers of its own; the same places are found again."""
    x = x * 2
    x[~kind] += x[~kind].tanh()
    x[kind] += x[kind].square().mean(-1, keepdim=True)
    return x


def placed_by_two_masks(x: torch.Tensor, kind: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As pictures among text: as many places of the one as of the other, which PyTorch's program asserts."""
    found = x[kind] + other.nonzero()[:, :1]
    return found, found.cumsum(0)


def promised_to_be_as_many(x: torch.Tensor, kind: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    a, b = x[kind], x.flip(0)[other]
    torch._check(a.shape[0] == b.shape[0])
    return torch.stack([a, b]).sum((0, 1))


@pytest.mark.parametrize("f", [written_by_kind, placed_by_two_masks, promised_to_be_as_many])
def test_as_many_places_as_others_are_one_size(f: Callable[..., Any]) -> None:
    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return f(*tensors)

    torch.manual_seed(0)
    x, kind = torch.randn(2, 5, 4), torch.tensor([[True, False, True, True, False], [False, False, True, False, True]])
    compiled = tw.compile(Module(), (x, kind, kind.flip(1)), cache=False)
    masks = [(kind, kind), (kind, kind.flip(0)), (kind, kind.roll(2, 1))]
    for mask, other in (*masks, *((m, m) for m in (torch.zeros_like(kind), torch.ones_like(kind)))):
        found, expected = (y if isinstance(y, tuple) else (y,) for y in (g(x, mask, other) for g in (compiled, f)))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(a), b)
    if f is not written_by_kind:
        with pytest.raises(tw.TilewrightError, match="must hold"):
            compiled(x, kind, kind.new_ones(2, 5))
