"""TFLite's control flow, variables and signatures: what LiteRT's interpreter gives, and what is refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from frontend.test_tflite import by_litert
from frontend.tflite_build import RESOURCE, TfliteModel, model_bytes
from small_models import numbers
from tilewright.core.evaluate import evaluate_graph
from tilewright.frontend.tflite.importer import import_tflite

F32 = np.float32
X, ONE = numbers(3, 4), np.array(1, F32)
ROWS = ((3, 4), F32)
SCALAR = ((), F32)


def like(model: TfliteModel, *operands: np.ndarray) -> list[int]:
    return [model.input(x) for x in operands]


def arithmetic(name: str, number: float) -> TfliteModel:
    """``x OP number`` of rows."""
    model = TfliteModel()
    (at,) = like(model, X)
    model.outputs = model.op(name, [at, model.const(np.array(number, F32))], [ROWS], f"{name.title()}Options")
    return model


def branching() -> TfliteModel:
    """Rows times 3 where their sum is more than 0, else less 2."""
    model = TfliteModel()
    (at,) = like(model, X)
    axes = model.const(np.array([0, 1], np.int32))
    (total,) = model.op("SUM", [at, axes], [SCALAR], "ReducerOptions", KeepDims=False)
    (flag,) = model.op("GREATER", [total, model.const(np.array(0, F32))], [((), np.bool_)], "GreaterOptions")
    indices = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    model.outputs = model.op("IF", [flag, at], [ROWS], "IfOptions", **indices)
    return model


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch(sign: int) -> None:
    content = model_bytes(branching(), arithmetic("MUL", 3), arithmetic("SUB", 2))
    x = sign * (np.abs(X) + 1)
    check(content, [x])


def check(content: bytes, arrays: Sequence[np.ndarray]) -> None:
    theirs = by_litert(content, arrays)
    meant = evaluate_graph(import_tflite(content, "net").graph, arrays)
    ours = tw.compile(content, cache=False, threads=1)(*arrays)
    for found in (meant, ours if isinstance(ours, tuple) else (ours,)):
        for a, b in zip(found, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def counting(limit: float) -> list[TfliteModel]:
    """Doubles rows while a counter is less than ``limit``."""
    main, condition, body = TfliteModel(), TfliteModel(), TfliteModel()
    main.outputs = main.op(
        "WHILE", like(main, ONE, X), [SCALAR, ROWS], "WhileOptions", CondSubgraphIndex=1, BodySubgraphIndex=2
    )
    at, _ = like(condition, ONE, X)
    condition.outputs = condition.op(
        "LESS", [at, condition.const(np.array(limit, F32))], [((), np.bool_)], "LessOptions"
    )
    at, rows = like(body, ONE, X)
    (more,) = body.op("ADD", [at, body.const(ONE)], [SCALAR], "AddOptions")
    (twice,) = body.op("ADD", [rows, rows], [ROWS], "AddOptions")
    body.outputs = [more, twice]
    return [main, condition, body]


@pytest.mark.parametrize("limit", [0, 2, 6])
def test_a_loop(limit: float) -> None:
    check(model_bytes(*counting(limit)), [ONE, X])


def handle(model: TfliteModel) -> int:
    (at,) = model.op("VAR_HANDLE", [], [((), RESOURCE)], "VarHandleOptions")
    return at


def keeping() -> list[TfliteModel]:
    """Adds its input to a variable that begins as ones, and gives what the variable was before."""
    main, once = TfliteModel(), TfliteModel()
    (x,) = like(main, X)
    main.op("CALL_ONCE", [], [], "CallOnceOptions", InitSubgraphIndex=1)
    at = handle(main)
    (was,) = main.op("READ_VARIABLE", [at], [ROWS], "ReadVariableOptions")
    (now,) = main.op("ADD", [was, x], [ROWS], "AddOptions")
    main.op("ASSIGN_VARIABLE", [at, now], [], "AssignVariableOptions")
    main.outputs = [was]
    once.op("ASSIGN_VARIABLE", [handle(once), once.const(np.ones((3, 4), F32))], [], "AssignVariableOptions")
    return [main, once]


def test_a_variable_is_the_state_of_the_model() -> None:
    made = tw.compile(model_bytes(*keeping()), cache=False, threads=1)
    for k in range(3):
        np.testing.assert_allclose(made(X), 1 + k * X, rtol=1e-6)
    made.reset()
    np.testing.assert_allclose(made(X), np.ones((3, 4)), rtol=1e-6)


def test_a_signature_names_inputs_and_outputs() -> None:
    content = model_bytes(arithmetic("MUL", 3), signature=(["image"], ["scores"]))
    made = tw.compile(content, cache=False, threads=1)
    assert [t.name for t in made.inputs] == ["image"] and [t.name for t in made.outputs] == ["scores"]
    np.testing.assert_allclose(made(image=X), 3 * X)


def refused(rule: str, *graphs: TfliteModel) -> Any:
    with pytest.raises(tw.ImportFailed) as failed:
        import_tflite(model_bytes(*graphs), "net")
    assert rule in str(failed.value)
    return failed.value


def test_what_control_flow_can_not_be_is_told() -> None:
    main, condition, body = counting(3)
    recursive = TfliteModel()
    recursive.outputs = recursive.op("CALL", like(recursive, X), [ROWS], "CallOptions", Subgraph=0)
    refused("sub-graph 0 calls itself", recursive)
    refused("it has no sub-graph 2", main, condition)
    refused("sub-graph 1 takes 1 inputs, not 2", main, arithmetic("MUL", 2), body)
    total = TfliteModel()
    (at,) = like(total, X)
    total.outputs = total.op("SUM", [at, total.const(np.array([0, 1], np.int32))], [SCALAR], "ReducerOptions")
    refused("the branches give f32[3, 4] and f32[]", branching(), arithmetic("MUL", 3), total)
    strange = TfliteModel()
    strange.outputs = strange.op("LSH_PROJECTION", like(strange, X), [ROWS])
    failed = refused("sub-graph 1, operator 0 (LSH_PROJECTION)", branching(), strange, strange)
    assert [p.op for p in failed.problems] == ["LSH_PROJECTION", "LSH_PROJECTION"]


def test_a_variable_needs_a_start() -> None:
    main, _ = keeping()
    main.operators = [o for o in main.operators if o[0] != "CALL_ONCE"]
    refused("has no numbers before the first call", main)


def test_what_can_not_run_once_is_told_at_its_call() -> None:
    main, once = keeping()
    like(once, X)
    failed = refused("sub-graph 1 takes 1 inputs, not 0", main, once)
    assert [str(p.loc) for p in failed.problems] == ["operator 0 (CALL_ONCE)"] and failed.problems[0].remedy
    main, once = keeping()
    main.operators = [o for o in main.operators if o[0] != "CALL_ONCE"]
    main.op("CALL_ONCE", [], [])
    refused("operator 4 (CALL_ONCE)", main, once)
    refused("its options are missing", main, once)


def test_what_runs_once_may_run_another_once() -> None:
    """Twice named is once run: the variable is 1 doubled, not doubled again."""
    main, once = keeping()
    twice = TfliteModel()
    at = handle(twice)
    (was,) = twice.op("READ_VARIABLE", [at], [ROWS], "ReadVariableOptions")
    (now,) = twice.op("ADD", [was, was], [ROWS], "AddOptions")
    twice.op("ASSIGN_VARIABLE", [at, now], [], "AssignVariableOptions")
    for _ in range(2):
        once.op("CALL_ONCE", [], [], "CallOnceOptions", InitSubgraphIndex=2)
    content = model_bytes(main, once, twice)
    made = tw.compile(content, cache=False, threads=1)
    np.testing.assert_allclose(made(X), by_litert(content, [X])[0], rtol=1e-6)
    np.testing.assert_allclose(made(X), 2 + X, rtol=1e-6)
    once.operators[-1][4]["InitSubgraphIndex"] = 1
    refused("sub-graph 1 calls itself", main, once, twice)


def test_what_runs_once_is_not_read_within_control_flow() -> None:
    branch = arithmetic("MUL", 3)
    branch.op("CALL_ONCE", [], [], "CallOnceOptions", InitSubgraphIndex=2)
    refused("sub-graph 1, operator 1 (CALL_ONCE)", branching(), branch, arithmetic("SUB", 2))
