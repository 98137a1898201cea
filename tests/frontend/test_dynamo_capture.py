"""What Dynamo captures for this back end: recurrent modules, places where a mask is true; a word about the rest."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.config as config
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tilewright.core.diag import ImportFailed
from tilewright.core.graph import Graph
from tilewright.graph.interp import run
from tilewright.integrations.torch_compile.backend import make_backend
from tilewright.integrations.torch_compile.capture import FallbackWarning


class Recorder:
    """A back end that interprets graphs and keeps them, and what it was told of calls left to PyTorch."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.told: list[Any] = []

    def compile(self, f: Any, **options: Any) -> Any:
        def compile_graph(graph: Graph) -> Any:
            self.graphs.append(graph)

            def execute(*arrays: np.ndarray) -> Any:
                results = run(graph, arrays)
                return results[0] if len(results) == 1 else results

            return execute

        torch._dynamo.reset()
        return torch.compile(f, backend=make_backend(compile_graph, self.told.extend), **options)

    @property
    def ops(self) -> list[str]:
        return [n.op.name for g in self.graphs for n in g.nodes()]


def assert_close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("kind", "options"), [
    ("LSTM", {"batch_first": True}),
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("LSTM", {"bias": False, "batch_first": True}),
    ("GRU", {"num_layers": 2, "batch_first": True}),
    ("GRU", {"bidirectional": True}),
    ("RNN", {"batch_first": True}),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
])  # fmt: skip
def test_recurrent_modules_are_one_op_of_any_length(kind: str, options: dict[str, Any]) -> None:
    recorder, net = Recorder(), getattr(torch.nn, kind)(5, 6, **options).eval()
    compiled = recorder.compile(net, dynamic=True)
    with torch.no_grad():
        for shape in ((3, 4, 5), (7, 2, 5), (2, 9, 5)):
            x = torch.randn(shape)
            got, expected = compiled(x), net(x)
            assert_close(got, expected)
            assert got[0].stride() == expected[0].stride()
    assert not recorder.told
    assert len(recorder.graphs) == 1
    assert recorder.ops.count(kind.lower()) == options.get("num_layers", 1)


def test_a_projected_lstm_and_one_with_given_states() -> None:
    recorder, net = Recorder(), torch.nn.LSTM(5, 6, proj_size=3, batch_first=True).eval()
    x, h, c = torch.randn(2, 4, 5), torch.randn(1, 2, 3), torch.randn(1, 2, 6)
    with torch.no_grad():
        assert_close(recorder.compile(net)(x, (h, c)), net(x, (h, c)))
        assert_close(recorder.compile(net)(x[0], (h[:, 0], c[:, 0])), net(x[0], (h[:, 0], c[:, 0])))
    assert not recorder.told


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_training_a_recurrent_module(kind: str) -> None:
    """PyTorch computes the gradients of a recurrence, and that is told."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), getattr(torch.nn, kind)(5, 6, batch_first=True))
    x = torch.randn(2, 7, 4)

    def gradients(f: Any) -> list[torch.Tensor]:
        net.zero_grad()
        f(x)[0].square().sum().backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    expected, recorder = gradients(net), Recorder()
    assert_close(gradients(recorder.compile(net)), expected)
    assert kind.lower() in recorder.ops
    assert ["tilewright.decompose" not in p.remedy for p in recorder.told if "backward" in p.op] == [True]


def test_dropout_between_layers_draws_from_the_generator() -> None:
    net, x = torch.nn.LSTM(3, 4, num_layers=2, dropout=0.5), torch.randn(3, 2, 3)

    def results(f: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        net.zero_grad()
        y = torch.dropout(f(x * torch.rand(1))[0], 0.5, True)
        y.square().sum().backward()
        return [y.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]

    recorder = Recorder()
    assert_close(results(recorder.compile(net)), results(net))


def test_packed_sequences_stay_right() -> None:
    net, x = torch.nn.LSTM(3, 4, batch_first=True).eval(), torch.randn(3, 5, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        packed, _ = net(pack_padded_sequence(x * 2, torch.tensor([5, 3, 2]), batch_first=True))
        return pad_packed_sequence(packed, batch_first=True)[0] + 1

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_close(torch.compile(f, backend="tilewright")(x), f(x))


class Experts(torch.nn.Module):
    """Each expert takes the rows that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(8, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            row, place = torch.where(chosen == k)
            out[row] += weights[row, place, None] * expert(x[row])
        return out


def test_a_loop_over_experts_is_captured() -> None:
    recorder, net = Recorder(), Experts().eval()
    compiled = recorder.compile(net)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(6, 8)
            assert_close(compiled(x), net(x))
    assert "matmul" in recorder.ops


@pytest.mark.one_in(6)
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("nearest", {"scale_factor": 2.0}), ("nearest-exact", {"size": (5, 4)}), ("bilinear", {"scale_factor": 1.7}),
        ("bilinear", {"size": (7, 9), "align_corners": True}), ("bicubic", {"size": (4, 5)}),
    ],
)  # fmt: skip
def test_a_resampling_is_one_op(mode: str, options: dict[str, Any], is_dynamic: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x * 2, mode=mode, **options)

    recorder = Recorder()
    compiled = recorder.compile(f, dynamic=is_dynamic)
    for n in (6, 8) if is_dynamic else (6,):
        x = torch.randn(1, 2, n, n + 1)
        assert_close(compiled(x), f(x))
    # the nearest element at a free size is PyTorch's own arithmetic on places, and a gather for each axis
    is_resize = not (mode == "nearest-exact" and is_dynamic)
    assert ("resize" in recorder.ops) == is_resize and ("gather" in recorder.ops) != is_resize and not recorder.told


def test_an_infinity_beside_a_number_is_resampled() -> None:
    x = torch.tensor([[[1.0, torch.inf, 2.0, 3.0, 4.0]]])
    f = partial(torch.nn.functional.interpolate, size=9, mode="linear")
    torch.testing.assert_close(Recorder().compile(f)(x), f(x), equal_nan=True)


def test_a_resampling_has_a_gradient() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear").square().sum()

    x = torch.randn(1, 2, 4, 5, requires_grad=True)
    assert_close(torch.autograd.grad(Recorder().compile(f)(x), x), torch.autograd.grad(f(x), x))


def suppress(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Non-maximum suppression as a loop: how often it runs, data decide."""
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        best = order[0]
        keep.append(best)
        rest = boxes[order[1:]]
        overlap = torch.minimum(boxes[best, 1], rest[:, 1]) - torch.maximum(boxes[best, 0], rest[:, 0])
        order = order[1:][overlap <= 0.5]
    return torch.stack(keep)


def quantised() -> Callable[..., Any]:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(net, {torch.nn.Linear})


@pytest.mark.parametrize(("f", "args", "says"), [
    (suppress, (torch.rand(5, 2) + torch.arange(2), torch.rand(5)), "suppress at .*captured no graph.*torch.where"),
    (quantised(), (torch.randn(2, 4),), r"Sequential.forward at .*broke the graph.*tilewright\.quantize"),
])  # fmt: skip
def test_a_frame_that_is_not_captured_is_told_once(f: Any, args: tuple[Any, ...], says: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright")
    with torch.no_grad(), pytest.warns(FallbackWarning, match=says):
        assert_close(compiled(*args), f(*args))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        compiled(*args)
    torch._dynamo.reset()  # it skips what it once failed to capture, whoever asks
    strict = torch.compile(f, backend="tilewright", options={"fallback": False})
    remedy = says.rpartition("*")[2]
    with torch.no_grad(), pytest.raises(ImportFailed, match=rf"(?s)leaves a part of the program.*remedy: .*{remedy}"):
        strict(*args)


def _multiples(x: torch.Tensor) -> Any:
    for i in range(3):
        yield x * i


def test_a_generator_is_told() -> None:
    x = torch.ones(2)
    torch._dynamo.reset()
    with pytest.warns(FallbackWarning, match="_multiples at .* is a generator"):
        assert_close(list(torch.compile(_multiples, backend="tilewright")(x)), list(_multiples(x)))
    torch._dynamo.reset()
    with pytest.raises(ImportFailed, match="is a generator"):
        torch.compile(_multiples, backend="tilewright", options={"fallback": False})(x)


def test_a_traced_module_is_told() -> None:
    x = torch.ones(2, 3)
    traced = torch.jit.trace(torch.nn.Linear(3, 3).eval(), x)
    with torch.no_grad(), pytest.warns(FallbackWarning, match="module Linear .* TorchScript"):
        assert_close(torch.compile(traced, backend="tilewright")(x), traced(x))
    with pytest.raises(ImportFailed, match="TorchScript"):
        torch.compile(traced, backend="tilewright", options={"fallback": False})


def test_calls_beyond_dynamo_s_limit_of_compiles_are_told() -> None:
    def f(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * len(name)

    def call(compiled: Any) -> None:
        torch._dynamo.reset()
        with torch._dynamo.config.patch(recompile_limit=2):
            for name in ("a", "ab", "abc", "abcd"):
                assert_close(compiled(x, name), f(x, name))

    x = torch.ones(3)
    with pytest.warns(FallbackWarning, match="recompile limit"):
        call(torch.compile(f, backend="tilewright"))
    with pytest.raises(ImportFailed, match="recompile limit"):
        call(torch.compile(f, backend="tilewright", options={"fallback": False}))


def test_a_warning_points_at_the_caller() -> None:
    torch._dynamo.reset()
    with torch.no_grad(), pytest.warns(FallbackWarning) as heard:
        torch.compile(suppress, backend="tilewright")(torch.rand(5, 2) + torch.arange(2), torch.rand(5))
    assert {warning.filename for warning in heard} == {__file__}


def test_other_back_ends_keep_dynamo_s_settings() -> None:
    seen: list[bool] = []

    def other(gm: Any, inputs: Any) -> Any:
        seen.append(config.allow_rnn)
        return gm.forward

    x = torch.randn(3)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda x: x + 1, backend="tilewright")(x), x + 1)
    torch._dynamo.reset()
    torch.compile(lambda x: x + 2, backend=other)(x)
    assert seen == [False] and not config.allow_rnn and not config.capture_dynamic_output_shape_ops
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        torch.compile(torch.nn.GRU(3, 3), backend=other)(torch.randn(2, 2, 3))


def _head(x: torch.Tensor) -> torch.Tensor:
    return x[: x[x > 0].numel() > 3] * 2


def _columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, (x.nonzero().shape[0] > 3) :, None] * 2


def _one_of(x: torch.Tensor) -> torch.Tensor:
    return [x, -x][x[x > 0].numel() > 3]


@pytest.mark.parametrize("f", [_head, _columns, _one_of])
def test_a_bool_of_a_data_size_as_an_index_is_told_and_right(f: Callable[..., Any]) -> None:
    """Dynamo itself fails there once a graph has sizes that data decide."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright")
    with pytest.warns(FallbackWarning, match="Dynamo"):
        for x in (torch.ones(3, 4), -torch.ones(3, 4), torch.eye(3, 4)):
            assert_close(compiled(x), f(x))


def test_where_dynamo_fails_for_good_python_s_own_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(5, 5)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright")
    for _ in range(2):
        with pytest.warns(FallbackWarning, match="failed to trace"), pytest.raises(RuntimeError, match="mat1 and mat2"):
            compiled(torch.ones(4, 2))
    assert_close(compiled(torch.ones(4, 5)), f(torch.ones(4, 5)))
    monkeypatch.setenv("TILEWRIGHT_STRICT", "1")
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        compiled(torch.ones(4, 2))
