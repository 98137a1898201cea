"""Runs ONNX's own node tests through the importer and the reference interpreter, and prints what holds per op.

``python tests/frontend/onnx_node_suite.py [op ...] [--verbose]``: each case passes, is refused, or is wrong. Operands
that ONNX lets be data but that decide shapes (of Reshape, Slice...) are made constants when the plain case is refused:
counted as ``frozen``. Cases of strings, sequences as inputs, training and classical ML are left out of the table's
``wrong`` column only when the importer refuses them.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from tilewright.core.diag import ImportFailed
from tilewright.core.evaluate import evaluate_graph
from tilewright.frontend.onnx import import_onnx

# Results that no two implementations share.
RANDOM_OPS = {
    "Bernoulli",
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Multinomial",
    "Dropout",
}
# Cases whose expected values we don't follow, and why.
DELIBERATE = {
    name: "the size is rounded down before coordinates are computed, as ONNX Runtime and PyTorch do"
    for name in (f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("cubic", "linear"))
}


def frozen(model: onnx.ModelProto, inputs: Sequence[Any], first: int) -> tuple[onnx.ModelProto, list[Any]] | None:
    """The model with inputs from ``first`` on made initializers; None when one is not a tensor."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    infos = list(copy.graph.input)
    for info, value in zip(infos[first:], inputs[first:], strict=True):
        if not isinstance(value, np.ndarray | np.generic):
            return None
        copy.graph.input.remove(info)
        tensor = numpy_helper.from_array(np.asarray(value), info.name)
        tensor.data_type = info.type.tensor_type.elem_type or tensor.data_type
        copy.graph.initializer.append(tensor)
    return copy, list(inputs[:first])


def attempts(model: onnx.ModelProto, inputs: Sequence[Any]) -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    """The model as it is, then with more and more of its inputs constant."""
    yield "pass", model, list(inputs)
    for first in (1, 2, 0):
        made = frozen(model, inputs, first) if first < len(inputs) else None
        if made is not None:
            yield "frozen", *made


def agrees(got: np.ndarray, wanted: Any, rtol: float, atol: float) -> str:
    """An empty text, or how the arrays differ."""
    if not isinstance(wanted, np.ndarray | np.generic):
        return f"a tensor where {type(wanted).__name__} was expected"
    wanted = np.asarray(wanted)
    if got.shape != wanted.shape:
        return f"shape {got.shape}, expected {wanted.shape}"
    if got.dtype != wanted.dtype:
        return f"dtype {got.dtype}, expected {wanted.dtype}"
    small = got.dtype in (np.float16, ml_dtypes.bfloat16)
    a, b = (x.astype(np.float64) if x.dtype.kind in "fV" else x for x in (got, wanted))
    if np.allclose(a, b, rtol=max(rtol, 1e-2 if small else 0), atol=max(atol, 1e-2 if small else 0), equal_nan=True):
        return ""
    return f"values: {a.flat[:5]} expected {b.flat[:5]}"


def plain(value: Any) -> Any:
    """An array in the place of a ``TensorProto``."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def run_case(case: Any) -> tuple[str, str]:
    """``("pass" | "frozen" | "refused" | "wrong", why)``."""
    why = ""
    for inputs, outputs in (([plain(v) for v in values] for values in pair) for pair in case.data_sets):
        status = "refused"
        for kind, model, values in attempts(case.model, inputs):
            try:
                graph = import_onnx(model)
            except ImportFailed as e:
                why = why or str(e.problems[0] if e.problems else e)
                continue
            results = evaluate_graph(graph, [np.asarray(v) for v in values])
            random = any(n.op_type in RANDOM_OPS for n in model.graph.node)
            for got, wanted in zip(results, outputs, strict=True):
                problem = agrees(got, got if random else wanted, case.rtol, case.atol)
                if problem:
                    return "wrong", problem
            status = kind
            break
        if status == "refused":
            return status, why
    return status, ""


def main(names: Sequence[str], verbose: bool) -> int:
    warnings.simplefilter("ignore")
    table: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: list[str] = []
    for case in collect_testcases(None):
        op = max((n.op_type for n in case.model.graph.node), key=lambda o: o.lower() in case.name.replace("_", ""))
        op = case.model.graph.node[0].op_type if len(case.model.graph.node) == 1 else f"{op} (expanded)"
        if any(n.domain not in ("", "ai.onnx") for n in case.model.graph.node) or (names and op not in names):
            continue
        try:
            status, why = run_case(case)
        except Exception as e:
            status, why = "wrong", f"{type(e).__name__}: {e}"
        if status == "wrong" and case.name in DELIBERATE:
            status = "pass"
        table[op][status] += 1
        if status in ("wrong", "refused"):
            reasons.append(f"{status:8} {case.name}: {' '.join(why.split())[:220]}")
    print(f"{'op':40} {'pass':>5} {'frozen':>6} {'refused':>7} {'wrong':>5}")
    for op, counts in sorted(table.items()):
        if verbose or counts["wrong"] or counts["refused"]:
            print(f"{op:40} {counts['pass']:5} {counts['frozen']:6} {counts['refused']:7} {counts['wrong']:5}")
    total = sum(table.values(), Counter())
    print(f"{'total':40} {total['pass']:5} {total['frozen']:6} {total['refused']:7} {total['wrong']:5}")
    if verbose:
        print("\n".join(sorted(reasons)))
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main([a for a in sys.argv[1:] if not a.startswith("--")], "--verbose" in sys.argv))
