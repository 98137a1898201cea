"""Attention alone beside the peers, one thread, in one process: heads read out of one matrix, causal, one-token decode.

    python -m benchmarks.attention [--seconds 5] [--precision bf16]

In: nothing. Out: a line per case: our milliseconds, each peer's time divided by ours, GFLOP/s (a causal square counted
whole) or GB/s of keys and values, and the bytes of the arena. Times are the best of interleaved rounds. In bf16
the peers are OpenVINO and PyTorch's fused attention of operands that were bf16 before. Not its business: whole nets
(``benchmarks/latency.py``).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from benchmarks.interleaved import best_times, onnxruntime_session
from onnx import TensorProto, helper, numpy_helper

PREFILL = [
    (6, 1500, 64, False),
    (12, 128, 64, False),
    (12, 197, 64, False),
    (12, 256, 64, True),
    (8, 512, 128, True),
    (4, 4096, 64, False),
    (2, 4096, 128, True),
    (1, 16384, 64, True),
]
DECODE = [(2048, 32, 8, 64), (2048, 12, 12, 64), (8192, 32, 8, 128)]


def _tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _model(nodes: list[onnx.NodeProto], inputs: list[Any], output: Any, constants: dict[str, Any]) -> onnx.ModelProto:
    initial = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "attention", inputs, [output], initial)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def prefill(heads: int, length: int, depth: int, causal: bool) -> onnx.ModelProto:
    """From the matrix of queries, keys and values to the merged result, as exporters write it."""
    width, node = heads * depth, helper.make_node
    constants: dict[str, Any] = {
        "apart": np.array([1, length, heads, depth]),
        "merged": np.array([1, length, width]),
        "scale": np.float32(depth**-0.5),
    }
    nodes = [node("Split", ["x"], ["q", "k", "v"], axis=2, num_outputs=3)]
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [node("Reshape", [name, "apart"], [f"{name}_heads"])]
        nodes += [node("Transpose", [f"{name}_heads"], [f"{name}_t"], perm=perm)]
    nodes += [node("MatMul", ["q_t", "k_t"], ["product"]), node("Mul", ["product", "scale"], ["scores"])]
    scores = "scores"
    if causal:
        constants["mask"] = np.where(np.tri(length, dtype=bool), 0, -np.inf).astype(np.float32)
        nodes, scores = [*nodes, node("Add", ["scores", "mask"], ["masked"])], "masked"
    nodes += [node("Softmax", [scores], ["weights"], axis=-1), node("MatMul", ["weights", "v_t"], ["out"])]
    nodes += [node("Transpose", ["out"], ["back"], perm=[0, 2, 1, 3]), node("Reshape", ["back", "merged"], ["y"])]
    return _model(nodes, [_tensor("x", 1, length, 3 * width)], _tensor("y", 1, length, width), constants)


def decode(n_keys: int, heads: int, kv_heads: int, depth: int) -> onnx.ModelProto:
    """One query a head over a cache; ``heads / kv_heads`` of them share keys and values."""
    node, group = helper.make_node, heads // kv_heads
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["product"]),
        node("Mul", ["product", "scale"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    inputs = [_tensor("q", 1, kv_heads, group, depth), *(_tensor(n, 1, kv_heads, n_keys, depth) for n in "kv")]
    return _model(nodes, inputs, _tensor("y", 1, kv_heads, group, depth), {"scale": np.float32(depth**-0.5)})


def in_torch(arrays: Sequence[Any], heads: int | None, causal: bool, precision: str) -> Callable[[], Any]:
    """PyTorch's fused attention of one matrix of queries, keys and values; of three arrays where ``heads`` is None."""
    import torch

    torch.set_num_threads(1)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    tensors = [torch.from_numpy(a).to(dtype) for a in arrays]

    def run() -> Any:
        parts = tensors
        if heads is not None:
            parts = [t.unflatten(2, (heads, -1)).transpose(1, 2) for t in tensors[0].chunk(3, 2)]
        out = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=causal)
        return out if heads is None else out.transpose(1, 2).flatten(2)

    return run


def runners(model: onnx.ModelProto, arrays: Sequence[Any], precision: str) -> tuple[dict[str, Callable[[], Any]], Any]:
    """What runs the model once, by engine; and our report."""
    import openvino

    import tilewright

    ours = tilewright.compile(model, cache=False, threads=1, precision=precision)
    session = onnxruntime_session(model.SerializeToString())
    feed = {i.name: x for i, x in zip(session.get_inputs(), arrays, strict=True)}
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(model, file.name)
        hint = {"fp32": "f32", "bf16": "bf16"}[precision]
        hints = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": 1}
        request = openvino.Core().compile_model(file.name, "CPU", hints).create_infer_request()
    found = {
        "tilewright": lambda: ours(*arrays),
        "onnxruntime": lambda: session.run(None, feed)[0],
        "openvino": lambda: request.infer(list(arrays), share_inputs=True),
    }
    tolerance = {"fp32": (1e-3, 1e-4), "bf16": (0, 2e-2)}[precision]
    np.testing.assert_allclose(found["tilewright"](), found["onnxruntime"](), *tolerance)
    if precision == "bf16":
        del found["onnxruntime"]
    return found, ours.report()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each case")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    rng = np.random.default_rng(0)

    def show(
        label: str, model: onnx.ModelProto, shapes: Sequence[tuple[int, ...]], work: float, unit: str, **torch_form: Any
    ) -> None:
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        found, report = runners(model, arrays, options.precision)
        found["torch"] = in_torch(arrays, precision=options.precision, **torch_form)
        best = dict(zip(found, best_times(list(found.values()), options.seconds), strict=True))
        ours = best.pop("tilewright")
        ratios = "  ".join(f"{k} {v / ours:.2f}x" for k, v in best.items())
        arena = report["memory"]["arena_bytes"]
        print(f"{label:28} {ours * 1e3:8.3f} ms  {ratios}  {work / ours / 1e9:6.1f} {unit}  arena {arena}", flush=True)

    for heads, length, depth, causal in PREFILL:
        label = f"{heads} heads, {length}, d {depth}{', causal' if causal else ''}"
        shapes: list[tuple[int, ...]] = [(1, length, 3 * heads * depth)]
        work = 4.0 * heads * length**2 * depth
        show(label, prefill(heads, length, depth, causal), shapes, work, "GFLOP/s", heads=heads, causal=causal)
    for n_keys, heads, kv_heads, depth in DECODE:
        cache = (1, kv_heads, n_keys, depth)
        shapes = [(1, kv_heads, heads // kv_heads, depth), cache, cache]
        model, work = decode(n_keys, heads, kv_heads, depth), 8.0 * kv_heads * n_keys * depth
        show(f"decode {heads}/{kv_heads}, {n_keys}, d {depth}", model, shapes, work, "GB/s", heads=None, causal=False)


if __name__ == "__main__":
    main()
