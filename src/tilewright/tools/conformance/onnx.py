"""ONNX's official backend tests (node, simple, converted PyTorch, light models), compiled and run as native code.

In: the installed ``onnx`` package, which brings the tests. Out: cases by op, and whether every output of one is right,
by the rules of the package's own runner: shape, dtype, and values within the case's tolerances.
Not its business: the reference evaluator, which is never called: light models ship their expected outputs.

Subsets: ``opset<=26`` are the cases that import the default domain only, up to opset 26; of these ``plain`` are those
whose inputs and outputs, those in sequences and optionals too, are of bool, int8 to int64, uint8, float16 to float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, SequenceProto, TensorProto, TypeProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from tilewright.build import driver
from tilewright.core.diag import CompileError
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import NATIVE, Case

NAME = "onnx"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
NEWEST_RELEASED = 26
PLAIN = frozenset(
    getattr(TensorProto, name) for name in "BOOL INT8 INT16 INT32 INT64 UINT8 FLOAT16 FLOAT DOUBLE".split()
)
BFLOAT16_RTOL = 2.0**-6  # the package's runner: two units in the last place
RANDOM = {
    "Bernoulli": "zeros and ones",
    "Dropout": "each element zero or scaled, as the mask says",
}
"""Ops whose results no two implementations share, where a case draws at random, and what is checked of them."""


@dataclass(frozen=True)
class Test:
    """One of the package's tests with everything that it needs."""

    case: Case
    source: Any

    def model(self) -> ModelProto:
        """The model."""
        if self.source.model is not None:
            return self.source.model  # type: ignore[no-any-return]
        return onnx.load(self._path)

    @property
    def _path(self) -> Path:
        if self.source.model_dir is not None:
            return Path(self.source.model_dir) / "model.onnx"
        return Path(onnx.__file__).parents[1] / str(self.source.url)

    def data(self, model: ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        """Inputs and expected outputs of each data set."""
        if self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield [_array(v) for v in inputs], [_array(v) for v in outputs]
        elif self.source.model_dir is not None:
            for folder in sorted(Path(self.source.model_dir).glob("test_data_set*")):
                yield _read(folder, "input", model.graph.input), _read(folder, "output", model.graph.output)
        else:
            given = {t.name for t in model.graph.initializer}
            inputs = [Runner.generate_dummy_data(i) for i in model.graph.input if i.name not in given]
            stem = self._path.with_suffix("")
            outputs = [
                _tensor(stem.with_name(f"{stem.name}_output_{k}.pb"), o.type) for k, o in enumerate(model.graph.output)
            ]
            yield inputs, outputs


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _read(folder: Path, kind: str, infos: Sequence[Any]) -> list[Any]:
    n = len(list(folder.glob(f"{kind}_*.pb")))
    return [_tensor(folder / f"{kind}_{k}.pb", infos[k].type) for k in range(n)]


def _tensor(path: Path, type_: TypeProto) -> Any:
    data = path.read_bytes()
    if type_.HasField("sequence_type"):
        return numpy_helper.to_list(SequenceProto.FromString(data))
    return numpy_helper.to_array(TensorProto.FromString(data))


# --- cases ----------------------------------------------------------------------------------------------------------


@cache
def _tests() -> dict[str, Test]:
    found: dict[str, Test] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package computes infinities on purpose
        sources = [(kind, s) for kind in KINDS for s in sorted(load_model_tests(kind=kind), key=lambda s: str(s.name))]
    ops = {s.name: _main_op(s) for kind, s in sources if kind == "node"}
    for kind, source in sources:
        group = ops.get(source.name.split("_expanded")[0], ops.get(source.name, "")) if kind == "node" else f"({kind})"
        test = Test(Case(source.name, group), source)
        found[source.name] = Test(Case(source.name, group, _tags(test.model())), source)
    return found


def _main_op(source: Any) -> str:
    """The op that a node test is about: the only one, or the one whose name the test's starts with."""
    types = [str(n.op_type) for n in source.model.graph.node]
    name = source.name.removeprefix("test_").replace("_", "")
    return next((t for t in types if name.startswith(t.lower())), types[-1])


def _tags(model: ModelProto) -> tuple[str, ...]:
    versions = {o.domain: o.version for o in model.opset_import}
    if set(versions) != {""} or versions[""] > NEWEST_RELEASED:
        return ()
    types = [_element_type(v.type) for v in (*model.graph.input, *model.graph.output)]
    return ("opset<=26", "plain") if PLAIN.issuperset(types) else ("opset<=26",)


def _element_type(type_: TypeProto) -> int:
    match type_.WhichOneof("value"):
        case "tensor_type":
            return type_.tensor_type.elem_type
        case "sequence_type":
            return _element_type(type_.sequence_type.elem_type)
        case "optional_type":
            return _element_type(type_.optional_type.elem_type)
    return 0


def cases() -> Sequence[Case]:
    """Every test of the package."""
    return [t.case for t in _tests().values()]


# --- one case -------------------------------------------------------------------------------------------------------


def run_case(case: Case) -> tuple[Status, str]:
    """Compile the test's model and run its data through it."""
    return run_case_for(case, NATIVE)


def run_case_for(case: Case, target: str) -> tuple[Status, str]:
    """The same by code for a target, which runs on this computer."""
    test = _tests()[case.name]
    model = test.model()
    try:
        compiled = driver.compile(model, cache=False, target=target)
        for inputs, expected in test.data(model):
            answer = compiled(*inputs)
            results = [answer] if len(compiled.outputs) == 1 else list(answer)
            if found := problem(test, model, inputs, expected, results):
                return "wrong", found
    except CompileError as e:
        return "refused", str(e)
    return "passed", ""


def problem(
    test: Test, model: ModelProto, inputs: Sequence[Any], expected: Sequence[Any], results: Sequence[Any]
) -> str:
    """What is wrong with a test's results; empty when they are right, or as random as the expected ones."""
    found = _differences(results, expected, test.source.rtol, test.source.atol)
    return "" if found and _is_random_draw(model, inputs, results, expected) else found


def in_turn(subset: str) -> Iterator[Test]:
    """The node tests of a subset: the first of every op, then the second of every op that has one, and so on."""
    by_op: dict[str, list[Test]] = {}
    for test in _tests().values():
        if subset in test.case.tags and not test.case.group.startswith("(") and "_expanded" not in test.case.name:
            by_op.setdefault(test.case.group, []).append(test)
    for row in zip_longest(*by_op.values()):
        yield from (test for test in row if test is not None)


def _differences(results: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> str:
    """How results differ from what is expected; empty when they agree."""
    if len(results) != len(expected):
        return f"{len(results)} results, expected {len(expected)}"
    problems = (_difference(r, e, rtol, atol) for r, e in zip(results, expected, strict=True))
    return next((f"result {k}: {p}" for k, p in enumerate(problems) if p), "")


def _difference(result: Any, expected: Any, rtol: float, atol: float) -> str:
    if isinstance(expected, list | tuple):
        if not isinstance(result, list | tuple):
            return f"{type(result).__name__}, expected a sequence"
        return _differences(result, expected, rtol, atol)
    if expected is None or result is None:
        return "" if result is expected else f"{result!r}, expected {expected!r}"
    expected = np.asarray(expected)
    if not isinstance(result, np.ndarray):
        return f"{type(result).__name__}, expected an array"
    if result.shape != expected.shape:
        return f"shape {result.shape}, expected {expected.shape}"
    if result.dtype != expected.dtype:
        return f"dtype {result.dtype}, expected {expected.dtype}"
    if result.dtype == object:  # texts
        return "" if (result == expected).all() else f"{result.tolist()}, expected {expected.tolist()}"[:400]
    if result.dtype.name == "bfloat16":
        rtol, result, expected = max(rtol, BFLOAT16_RTOL), result.astype(np.float32), expected.astype(np.float32)
    try:
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=atol)
    except AssertionError as e:
        return " ".join(str(e).split())[:400]
    return ""


def _is_random_draw(model: ModelProto, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Is the difference what chance explains? Checked: shape, dtype, and what ``RANDOM`` says of the values."""
    ops = {n.op_type for n in model.graph.node}
    if any(r.shape != e.shape or r.dtype != e.dtype for r, e in zip(results, expected, strict=True)):
        return False
    if ops & {"Bernoulli", "RandomUniformLike"}:
        return bool(np.isin(results[0], (0, 1)).all())
    if "Dropout" not in ops:
        return False
    y, x = results[0], inputs[0]
    ratio = float(inputs[1]) if len(inputs) > 1 else 0.5
    kept = results[1] if len(results) > 1 else y != 0
    return np.allclose(y, np.where(kept, x / (1 - ratio), 0), rtol=1e-5) and (ratio > 0 or bool(kept.all()))
