"""``torch.compile`` through the back end, with the interpreter in place of native code."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

from tilewright import ops
from tilewright.core.graph import Graph, topological
from tilewright.graph.interp import run
from tilewright.integrations.torch_compile.backend import _decompositions, make_backend
from tilewright.integrations.torch_compile.capture import FallbackWarning


class Recorder:
    """A back end that interprets graphs and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []

    def compile_graph(self, graph: Graph, **options: Any) -> Any:
        self.graphs.append(graph)

        def execute(*arrays: np.ndarray) -> Any:  # as a loaded model does, one result as itself
            results = run(graph, arrays)
            return results[0] if len(results) == 1 else results

        return execute

    def compile(self, f: Any, **options: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(f, backend=make_backend(self.compile_graph), **options)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


class Net(torch.nn.Module):
    """A convolution, a norm with buffers, attention and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None])[:, 0]
        return self.head(F.layer_norm(y, (8,))).mean(1)


def assert_close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_weights_are_frozen_without_gradients(recorder: Recorder) -> None:
    net, x = Net().eval(), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        assert_close(recorder.compile(net)(x), net(x))
    (graph,) = recorder.graphs
    assert [n.shape for n in graph.inputs] == [(2, 3, 6, 6)]


def test_a_changed_weight_is_noticed(recorder: Recorder) -> None:
    net, x = Net().eval(), torch.randn(2, 3, 6, 6)
    compiled = recorder.compile(net)
    with torch.no_grad():
        compiled(x)
        net.head.weight.mul_(2)
        assert_close(compiled(x), net(x))
        assert_close(compiled(x), net(x))
    assert len(recorder.graphs) == 2


def test_training_graph_and_its_backward(recorder: Recorder) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.LayerNorm(6), torch.nn.Linear(6, 2))
    x = torch.randn(3, 4)
    net(x).square().sum().backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    recorder.compile(net)(x).square().sum().backward()
    for p, g in zip(net.parameters(), expected, strict=True):
        assert_close(p.grad, g)
    assert len(recorder.graphs) == 2


def test_dynamic_sizes_compile_once(recorder: Recorder) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y = torch.softmax(x @ x.T / x.shape[0] ** 0.5, -1)
        return torch.cat([y, torch.ones(x.shape[0], n)], 1).reshape(-1) * x.shape[0]

    compiled = recorder.compile(f, dynamic=True)
    for rows, n in ((3, 4), (5, 7), (8, 2)):
        x = torch.randn(rows, 6)
        assert_close(compiled(x, n), f(x, n))
    assert len(recorder.graphs) == 1
    assert any(not n.type.is_static for n in recorder.graphs[0].inputs)


def test_mutation_views_and_layouts(recorder: Recorder) -> None:
    def f(x: torch.Tensor, state: torch.Tensor) -> tuple[Any, ...]:
        state.add_(x.sum(0))
        return x.t(), x, state[1:], (x * 2).t(), 3

    x, a, b = torch.randn(3, 4), torch.zeros(4), torch.zeros(4)
    got, expected = recorder.compile(f)(x, a), f(x, b)
    assert_close(a, b)
    assert_close(got[:4], expected[:4])
    assert [t.stride() for t in got[:4]] == [t.stride() for t in expected[:4]]
    assert got[4] == 3


def test_views_of_symbolic_size_keep_their_place(recorder: Recorder) -> None:
    """AOTAutograd makes results that alias arguments from the strides and offset of what the back end returns."""

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        half = x.shape[1] // 2
        views = x[:, :half], x[1:, 1 : half + 1], x.view(-1)[x.shape[0] :], x.expand(2, *x.shape), x.unfold(0, 2, 1)
        return *views, x * 2

    compiled = recorder.compile(f, dynamic=True)
    for shape in ((4, 6), (5, 8)):
        x = torch.randn(shape)
        got, expected = compiled(x), f(x)
        assert_close(got, expected)
        assert [(t.stride(), t.storage_offset()) for t in got] == [(t.stride(), t.storage_offset()) for t in expected]
        assert all(t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for t in got[:-1])
    assert len(recorder.graphs) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("reverse", [True, False])
def test_scan(recorder: Recorder, reverse: bool) -> None:
    from torch._higher_order_ops.scan import scan

    def f(c: torch.Tensor, xs: torch.Tensor) -> Any:
        return scan(lambda c, x: (c * 0.5 + x, (c * x, x.sum())), c, xs, reverse=reverse)

    compiled = recorder.compile(f, dynamic=True)
    for n in (3, 7):
        c, xs = torch.randn(4), torch.randn(n, 4)
        assert_close(compiled(c, xs), f(c, xs))
    assert len(recorder.graphs) == 1


def test_a_call_over_graphs_may_be_left_to_pytorch(recorder: Recorder) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: torch.linalg.eigvals(x).abs().sum(), lambda x: x.sum(), (x + 1,))
        return y * 2

    x = torch.eye(3)
    with pytest.warns(FallbackWarning, match="linalg_eig"):
        assert_close(recorder.compile(f)(x), f(x))


def test_bf16_passes_through(recorder: Recorder) -> None:
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    y = recorder.compile(lambda t: t * 2 + 1)(x)
    assert y.dtype is torch.bfloat16
    assert_close(y, x * 2 + 1)


def unsupported(x: torch.Tensor) -> torch.Tensor:
    y = torch.linalg.eigvals(x.sin()).real.sort()[0]
    return torch.linalg.ldl_factor(x.to(torch.complex64))[0].real + y.exp() * 2


def test_unsupported_calls_are_all_named_when_none_may_fall_back(recorder: Recorder) -> None:
    with pytest.raises(Exception, match="linalg_eig") as caught:
        recorder.compile(unsupported, options={"fallback": False})(torch.eye(3))
    assert "ldl_factor" in str(caught.value)
    assert "test_dynamo.py" in str(caught.value)


def test_unsupported_calls_run_in_pytorch_between_compiled_pieces(recorder: Recorder) -> None:
    x = torch.randn(4, 4)
    x = x + x.T
    with pytest.warns(FallbackWarning, match="linalg_eig.*test_dynamo.py") as warned:
        got = recorder.compile(unsupported)(x)
    assert_close(got, unsupported(x))
    assert len(warned) == 2
    assert len(recorder.graphs) == 2  # sin before; real, sort, exp and the sum after


def test_fallback_with_dynamic_sizes(recorder: Recorder) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x + 1).abs().sum() * x.shape[0] + torch.ones(x.shape[0] * 2)

    compiled = recorder.compile(f, dynamic=True)
    with pytest.warns(FallbackWarning):
        for n in (3, 5):
            x = torch.randn(n, n)
            assert_close(compiled(x), f(x))


def test_the_places_in_a_number_have_room(recorder: Recorder) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for x in (torch.tensor(1.0), torch.tensor(0.0)):
            assert_close(recorder.compile(torch.nonzero)(x), torch.nonzero(x))
    for graph in recorder.graphs:
        reshapes = [n for n in topological(graph.outputs) if n.op is ops.reshape]
        assert all(n.inputs[0].type.n_elements == n.type.n_elements for n in reshapes)


def test_columns_of_a_size_that_data_decide(recorder: Recorder) -> None:
    """``nonzero`` lays its result out by columns, as far apart as there are rows."""
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = recorder.compile(torch.nonzero)(x)
    assert_close(got, torch.nonzero(x))
    assert got.stride() == torch.nonzero(x).stride()


def test_draws_are_those_of_the_generator(recorder: Recorder) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + torch.rand(3, 4)
        z = torch.randn_like(y.exp()) * y
        return z, F.dropout(z, 0.5), torch.randint(0, 9, (5,))

    x = torch.randn(3, 4)
    torch.manual_seed(3)
    expected = f(x)
    compiled = recorder.compile(f)
    torch.manual_seed(3)
    assert_close(compiled(x), expected)
    assert len(recorder.graphs) == 1


def test_a_failed_check_is_pytorch_s_own_error(recorder: Recorder) -> None:
    compiled = recorder.compile(torch.linalg.inv)
    assert_close(compiled(torch.eye(3) * 2), torch.eye(3) / 2)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        compiled(torch.zeros(3, 3))


def test_complex_tensors_are_pairs(recorder: Recorder) -> None:
    def f(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spectrum = torch.fft.rfft(x, dim=-1)
        return torch.fft.irfft(spectrum * 2, n=x.shape[-1]), torch.fft.fft(z), spectrum.abs(), z.conj() / (1 + 2j)

    for n in (1, 6, 37, 90):
        x, z = torch.randn(2, n), torch.randn(n, dtype=torch.complex64)
        assert_close(recorder.compile(f)(x, z), f(x, z))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        recorder.compile(f)(x, z)


def test_a_graph_break_makes_two_graphs(recorder: Recorder) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        torch._dynamo.graph_break()
        return y + 1

    counter = CompileCounterWithBackend(make_backend(recorder.compile_graph))
    torch._dynamo.reset()
    x = torch.randn(4)
    assert_close(torch.compile(f, backend=counter)(x), x.relu() + 1)
    assert counter.frame_count == len(recorder.graphs) == 2
    np.testing.assert_equal([len(g.outputs) for g in recorder.graphs], [1, 1])


def test_ops_that_pytorch_makes_when_first_used() -> None:
    """What was compiled before does not decide whether the chunked loss is taken apart."""
    assert "torch_nn._linear_cross_entropy_batch_chunked.default" in map(str, _decompositions())


def test_float_elements_with_arithmetic_are_compiled(recorder: Recorder) -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> tuple[Any, ...]:
        return torch.full((3,), x[0].item() * 2), n * (n[0].item() / 2), x[1].item() + 1

    x, n = torch.tensor([1.5, 2.5]), torch.tensor([3, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        assert_close(recorder.compile(f, fullgraph=True)(x, n), f(x, n))
    assert len(recorder.graphs) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.new_zeros(int(x[0].item() * 2)),
        lambda x: x + round(x[0].item()),
    ],
    ids=["size", "rounded"],
)
def test_numbers_of_data_without_a_form_are_left_to_pytorch(recorder: Recorder, f: Any) -> None:
    x = torch.tensor([1.5, 2.5, 0.5])
    with pytest.warns(FallbackWarning):
        assert_close(recorder.compile(f, fullgraph=True)(x), f(x))


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "size",
    [
        lambda n: int(n / 2), lambda n: int(n * 1.5), lambda n: round(n / 4), lambda n: math.ceil(n * 0.75 - 1),
        lambda n: int((n - 9) / 2) + 5, lambda n: int((n * n) ** 0.5), lambda n: math.floor(n / 3 + 0.0) + 1,
        lambda n: round((2 * n + 1) / 2), lambda n: int(n * 0.7), lambda n: int(n**0.5),
    ],
)  # fmt: skip
def test_sizes_rounded_from_floats(recorder: Recorder, size: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(size(x.shape[0])) * x.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        compiled = recorder.compile(f, dynamic=True)
        for n in (6, 7, 9, 12, 29):
            assert_close(compiled(torch.arange(float(n))), f(torch.arange(float(n))))
    assert len(recorder.graphs) == 1


def test_an_image_scaled_by_a_fraction(recorder: Recorder) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.5, mode="bilinear") + 1

    compiled = recorder.compile(f, dynamic=True)
    for n in (4, 7, 11):
        x = torch.rand(1, 2, n, n + 1)
        assert_close(compiled(x), f(x))
    assert len(recorder.graphs) == 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "f",
    [
        lambda x, n: x * n + n // 3, lambda x, n: torch.roll(x, n, 0), lambda x, n: x[n:] * 2, lambda x, n: x[:n] * 2,
        lambda x, n: torch.full((3,), n), lambda x, n: (x.expand(4, 4).triu(n), n * 2), lambda x, n: x * (n % 3),
    ],
)  # fmt: skip
def test_integers_of_either_sign(recorder: Recorder, f: Any) -> None:
    compiled = recorder.compile(f)
    for n in (2, 1, 3, -2, -1, -3):
        assert_close(compiled(torch.arange(4.0), n), f(torch.arange(4.0), n))


def test_equal_results_are_tensors_of_their_own(recorder: Recorder) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.zeros_like(x), torch.zeros_like(x), (x + 1) * (x + 1)

    first, second, _ = recorder.compile(f)(torch.randn(3))
    first += 1
    assert_close(second, torch.zeros(3))


def test_arguments_that_are_not_plain_memory_in_calls_that_repeat() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y

    compiled = torch.compile(f, backend="tilewright", dynamic=False)
    x, y = torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)
    with torch.no_grad():
        for _ in range(3):
            for a in (x, torch._neg_view(x), x.clone().requires_grad_(), torch.nn.Parameter(x)):
                assert torch.equal(compiled(a, y), f(a, y))


def test_diagonals_of_symbolic_length_are_filled(recorder: Recorder) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).fill_diagonal_(3.0)

    compiled = recorder.compile(f)
    for n in (4, 5, 7, 13, 3):
        x = torch.randn(n, 5)
        assert_close(compiled(x), f(x))
