"""LSTM, GRU and RNN: the recurrences' stages, the decompositions, ONNX Runtime and PyTorch."""

import numpy as np
import pytest
import torch

from ops.onnx_peer import run_node
from ops.oracle import case_id, check_case, check_op, check_symbolic, sample_cases, samples_of
from tilewright import ops
from tilewright.core import types as T
from tilewright.core.diag import OpError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Attrs, Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, tensor_type_of
from tilewright.ops import recurrence as rc
from tilewright.ops.over_time import looped
from tilewright.ops.rnn import gru, lstm, rnn

SCANS = (rc.lstm_scan, rc.gru_scan, rc.rnn_scan)
OPS = (lstm, gru, rnn)
TIME, BATCH = Sym("T", 0), Sym("B", 1)


@pytest.mark.parametrize("case", sample_cases(SCANS + OPS), ids=case_id)
def test_samples(case) -> None:
    check_case(case, 1e-5)


@pytest.mark.parametrize("case", sample_cases(SCANS), ids=case_id)
def test_a_loop_has_the_meaning_of_the_scan(case) -> None:
    """Also with another product in the place of the scan's: here the same, of constants."""
    op, k = case
    arrays, a = samples_of(op)[k].arrays, Attrs(op.complete_attrs(samples_of(op)[k].attrs))
    b = Builder(Pool())
    xs = tuple(b.pool.input(f"x{i}", tensor_type_of(x)) for i, x in enumerate(arrays))
    scan = b(op, *xs, **a)
    if a.panel or a.behind:
        with pytest.raises(OpError, match="laid for our kernels"):
            looped(b, scan)
        return
    wanted = op.reference(arrays, a)

    def product(inner: Builder, state: Node, first: Dim, last: Dim) -> Node:
        if arrays[1].dtype != np.float32:
            state = inner(ops.cast, inner(ops.cast, state, dtype=T.bf16), dtype=T.f32)
        return inner(ops.matmul, state, inner.const(arrays[1][:, first:last].astype(np.float32)))

    for made in (looped(b, scan), looped(b, scan, product)):
        graph = Graph("g", b.pool, xs, made, tuple(f"y{i}" for i in range(len(made))))
        for found, want in zip(evaluate_graph(graph, arrays), wanted, strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", sample_cases(OPS), ids=case_id)
def test_against_onnxruntime(case) -> None:
    op, k = case
    sample = samples_of(op)[k]
    a = Attrs(op.complete_attrs(sample.attrs))
    if a.layout:
        pytest.skip("layout 1 is not offered there")
    n_states = 2 if op is lstm else 1
    x, w, r, b, *rest = sample.arrays
    states, optional = rest[:n_states], rest[n_states:]
    lengths = next((o for o in optional if o.dtype == np.int32), None)
    peephole = next((o for o in optional if o.dtype != np.int32), None)
    given = {"hidden_size": a.hidden, "direction": a.direction}
    given |= {"clip": a.clip} if a.clip else {}
    given |= {"activations": list(a.activations)} if a.activations else {}
    given |= {"activation_alpha": list(a.alpha), "activation_beta": list(a.beta)} if a.alpha else {}
    given |= {n: int(a[n]) for n in ("input_forget", "linear_before_reset") if a.get(n)}
    operands = [x, w, r, b, lengths, *states] + ([peephole] if op is lstm else [])
    theirs = run_node(op.name.upper(), operands, 1 + n_states, given, opset=14)
    for ours, expected in zip(op.reference(sample.arrays, a), theirs, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def reordered(w: torch.Tensor, order: list[int]) -> np.ndarray:
    """PyTorch's gates in ONNX's order, with the axis of directions."""
    blocks = w.detach().numpy().reshape(len(order), -1, *w.shape[1:])
    return blocks[order].reshape(1, *w.shape)


@pytest.mark.parametrize(
    ("module", "op", "order"),
    [(torch.nn.LSTM, lstm, [0, 3, 1, 2]), (torch.nn.GRU, gru, [1, 0, 2]), (torch.nn.RNN, rnn, [0])],
)
def test_against_torch(module, op, order) -> None:
    torch.manual_seed(0)
    net = module(3, 5)
    x = torch.randn(4, 2, 3)
    w, r = reordered(net.weight_ih_l0, order), reordered(net.weight_hh_l0, order)
    b = np.concatenate([reordered(net.bias_ih_l0, order), reordered(net.bias_hh_l0, order)], 1)
    zeros = [np.zeros((1, 2, 5), np.float32)] * (2 if op is lstm else 1)
    attrs = {"hidden": 5} | ({"linear_before_reset": True} if op is gru else {})
    y, *_ = check_op(op, (x.numpy(), w, r, b, *zeros), attrs, 1e-5)
    np.testing.assert_allclose(y[:, 0], net(x)[0].detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", SCANS + OPS, ids=lambda op: op.name)
def test_symbolic_time_and_batch(op) -> None:
    sample = samples_of(op)[1]
    sizes = {sample.arrays[0].shape[0]: TIME, sample.arrays[0].shape[1]: BATCH}
    x, *rest = [tensor_type_of(a) for a in sample.arrays]
    types = [x.with_shape((TIME, BATCH, x.shape[2]))]
    for k, t in enumerate(rest, 1):
        is_state = op.operands[min(k, len(op.operands) - 1)] in ("h0", "c0")
        at = 0 if op in SCANS else 1
        by_batch = is_state or t.dtype is T.i32
        shape = [sizes[2] if by_batch and axis == (at if is_state else 0) else n for axis, n in enumerate(t.shape)]
        types.append(t.with_shape(shape))
    check_symbolic(op, sample.arrays, tuple(types), sample.attrs, 1e-5)


@pytest.mark.parametrize("dtype", [T.f16, T.bf16, T.f64], ids=str)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_other_dtypes_are_computed_wide(op, dtype) -> None:
    arrays = tuple(a.astype(dtype.numpy) for a in samples_of(op)[0].arrays)
    check_op(op, arrays, {"hidden": 2}, 1e-2 if dtype is not T.f64 else 1e-12)


@pytest.mark.parametrize(
    ("change", "attrs"),
    [
        ({1: (1, 8, 3)}, {}),
        ({2: (1, 8, 3)}, {}),
        ({3: (1, 8)}, {}),
        ({4: (2, 2, 2)}, {}),
        ({0: (3, 2)}, {}),
        ({}, {"direction": "sideways"}),
        ({}, {"direction": "bidirectional"}),
        ({}, {"layout": 2}),
        ({}, {"activations": ("Tanh",)}),
        ({}, {"activations": ("Tanh", "Tanh", "Odd")}),
        ({}, {"clip": -1.0}),
    ],
)
def test_refused(change, attrs) -> None:
    shapes = {k: a.shape for k, a in enumerate(samples_of(lstm)[0].arrays)} | change
    ts = [TensorType(T.f32, s) for s in shapes.values()]
    with pytest.raises(OpError):
        lstm.infer(ts, Attrs(lstm.complete_attrs({"hidden": 2, **attrs})))
