"""Every op against its own reference, on its samples and on every dtype: type rule, stages or smaller ops."""

import warnings

import numpy as np
import pytest

from ops.running import (
    concrete,
    converted,
    describe,
    infer,
    reference,
    run_compute,
    run_decomposed,
    same,
    sample_calls,
    symbolic,
)
from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.opdef import Trait

SIZED_BY_DATA = {op for op in ops.ALL if op.bound is not None}  # tests/ops/test_order.py
OPS = [op for op in ops.ALL if not op.traits & {Trait.CONTROL, Trait.STRUCTURAL} and op not in SIZED_BY_DATA]
every_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@every_op
def test_infer_gives_the_type_of_the_reference(op):
    for call in sample_calls(op):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = reference(op, call)
        inferred = call.infer()
        assert len(results) == len(inferred), describe(op, call)
        for array, t in zip(results, inferred, strict=True):
            assert types.tensor_type_of(array) == t, describe(op, call)


@pytest.mark.one_in(4)
@every_op
def test_stages_or_smaller_ops_give_the_reference(op):
    for call in sample_calls(op):
        check(op, call)


@pytest.mark.one_in(4)
@every_op
def test_every_dtype_that_infer_accepts(op):
    for dtype in types.DTYPES:
        check_dtype(op, dtype)


def check_dtype(op, dtype):
    n_run = 0
    for call in sample_calls(op):
        changed = converted(call, dtype)
        if changed is None or n_run == 2:
            continue
        try:
            inferred = changed.infer()
        except OpError:
            continue
        assert [types.tensor_type_of(a) for a in reference(op, changed)] == list(inferred), describe(op, changed)
        check(op, changed)
        n_run += 1


@pytest.mark.one_in(6)
@every_op
def test_symbolic_sizes_compute_the_same(op):
    for call in sample_calls(op):
        operands, sizes = symbolic(call)
        try:
            inferred = infer(op, operands, call.attrs) if sizes else None
        except OpError:
            continue  # sizes that must equal an attribute, such as a shape or a number of groups
        if inferred is not None:
            shapes = [a.shape for a in reference(op, call)]
            assert [concrete(t.shape, sizes) for t in inferred] == shapes, describe(op, call)
            check(op, call, operands, sizes)


def check(op, call, operands=None, sizes=None):
    expected = reference(op, call)
    got = (run_decomposed if op.decompose else run_compute)(op, call, operands, sizes)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), describe(op, call)
        # Sums of products with codes, which are large, cancel.
        summed = np.abs(b[np.isfinite(b)]).max(initial=0) if op is ops.coded_matmul else 0.0
        assert same(a, b, summed), f"{describe(op, call)}\n{a}\n{b}"


def test_names_are_unique_and_found():
    assert len({op.name for op in ops.ALL}) == len(ops.ALL)
    assert all(ops.by_name(op.name) is op for op in ops.ALL)
    with pytest.raises(KeyError):
        ops.by_name("no such op")


@every_op
def test_every_op_documents_itself_and_has_samples(op):
    assert op.doc.endswith(".") and op.samples is not None
    assert len(list(op.samples(np.random.default_rng(0)))) >= 3
