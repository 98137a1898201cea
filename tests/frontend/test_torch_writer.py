"""Graphs written as PyTorch programs mean what they meant: to PyTorch and to our own importer."""

import logging
import zipfile

import numpy as np
import pytest

from small_models import convnet, language_model, numbers, perceptron
from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import CompileError, Loc
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, bool_, f32, i64, tensor_type_of
from tilewright.frontend.torch.export import import_exported, load_program
from tilewright.frontend.torch.tensors import to_numpy, to_torch
from tilewright.frontend.torch.writer.program import save_exported, to_exported
from tilewright.runtime.errors import InputError

NO_FORM = {
    "random_uniform", "random_normal", "bitcast", "encode", "fourier_library", "fourier_pass", "winograd_conv",
    "coded_matmul",
    "block_matmul", "quad_matmul", "scaled_matmul", "as_size", "suppress", "mul_pair", "rescale",
    "max_pool_indices", "map_parts",
}  # fmt: skip
"""What is not written: random numbers of a state, bits read as another type, narrow types, sizes that data
decide but those of what is not zero, places under uneven padding; and forms that only passes make."""


def samples_of(chosen):
    """One graph of the first sample of every chosen op, each with inputs of its own, and these inputs' arrays."""
    pool = Pool()
    inputs, arrays, results = [], [], {}
    for op in chosen:
        sample = next(iter(op.samples(np.random.default_rng(0))))
        own = [pool.input(f"{op.name}_{k}", tensor_type_of(a)) for k, a in enumerate(sample.arrays)]
        node = pool.add(op, own, sample.attrs, loc=Loc(op.name))
        inputs += own
        arrays += sample.arrays
        results |= {f"{op.name}_y{k}": r for k, r in enumerate(pool.results(node))}
    return Graph("samples", pool, tuple(inputs), tuple(results.values()), tuple(results)), arrays


def ran(program, arrays):
    """The results that PyTorch computes, by name."""
    made = program.module()(*(to_torch(a.copy()) for a in arrays))
    named = made if isinstance(made, dict) else {"output": made}
    return {name: to_numpy(t) for name, t in named.items()}


def came_back(program, arrays):
    back = import_exported(program).unchecked()
    return dict(zip(back.output_names, evaluate_graph(back, arrays), strict=True))


VECTORS = {"eigh_y1", "svd_y0", "svd_y2"}
"""Vectors whose signs are open: each LAPACK has its own."""
PARTS = 4
"""Many ops leave as one program, because making one takes PyTorch seconds whatever is in it."""


@pytest.mark.one_in(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_op_without_a_form_is_named_and_the_others_come_back(part):
    mine = ops.ALL[part::PARTS]
    with pytest.raises(CompileError) as e:
        to_exported(samples_of(mine)[0])
    assert {str(p.loc) for p in e.value.problems} == NO_FORM & {op.name for op in mine}
    # Our own importer reads no float8.
    graph, arrays = samples_of([op for op in mine if op.name not in NO_FORM and op is not ops.decode])
    program = to_exported(graph)
    wanted = dict(zip(graph.output_names, evaluate_graph(graph, arrays), strict=True))
    for made in (ran(program, arrays), came_back(program, arrays)):
        assert made.keys() == wanted.keys()
        for name, expected in wanted.items():
            assert (made[name].dtype, made[name].shape) == (expected.dtype, expected.shape), name
            found = np.abs(made[name]) if name in VECTORS else made[name]
            expected = np.abs(expected) if name in VECTORS else expected
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5, err_msg=name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [convnet, language_model, perceptron], ids=lambda make: make.__name__)
def test_networks_are_equal_and_keep_their_symbols(make, tmp_path):
    graph = make()
    save_exported(graph, tmp_path / "net.pt2")
    program = load_program(tmp_path / "net.pt2")
    x = numbers(*(d if isinstance(d, int) else 3 for d in graph.inputs[0].shape))
    (expected,) = evaluate_graph(graph, [x])
    for made in (ran(program, [x]), came_back(program, [x])):
        np.testing.assert_allclose(made["output"], expected, rtol=1e-4, atol=1e-4)
    assert import_exported(program).input_names == graph.input_names
    assert len(import_exported(program).symbols()) == len(graph.symbols())


def test_what_pytorch_logs_of_a_damaged_file_is_in_the_error(tmp_path, monkeypatch):
    """It logged a trace, and the error said to look there."""
    logged = []
    monkeypatch.setattr(logging.getLogger("torch.export"), "callHandlers", logged.append)
    save_exported(perceptron(), tmp_path / "net.pt2")
    with zipfile.ZipFile(tmp_path / "net.pt2") as whole, zipfile.ZipFile(tmp_path / "less.pt2", "w") as less:
        for name in whole.namelist():
            if not name.endswith("/version"):
                less.writestr(name, whole.read(name))
    with pytest.raises(InputError, match=r"less\.pt2 holds no exported program: .*\"version\""):
        load_program(tmp_path / "less.pt2")
    assert logged == []


def test_sizes_are_computed_from_the_inputs():
    n, pool = Sym("n", 1), Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(f32, (n, 4)))
    y = b(ops.expand, b(ops.reshape, x, shape=(2 * n, 2)), shape=(3, 2 * n, 2))
    z = b(ops.slice, y, starts=(0, n, 0), stops=(3, 2 * n, 2), steps=(1, 1, 1))
    graph = Graph("sizes", pool, (x,), (z,), ("z",))
    program = to_exported(graph)
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    (expected,) = evaluate_graph(graph, [array])
    np.testing.assert_array_equal(ran(program, [array])["output"], expected)
    np.testing.assert_array_equal(came_back(program, [array])["output"], expected)


def test_a_loop_stops_early_and_stacks():
    """Carried values, a condition that ends it, and a row of the results for each trip, zeros where there was none."""
    pool, inner = Pool(), Pool()
    vector = TensorType(f32, (3,))
    i, go, total, step = (
        inner.input(name, t) for name, t in (("i", TensorType(i64, ())), ("go", TensorType(bool_, ())),
                                             ("total", vector), ("step", vector))
    )  # fmt: skip
    b = Builder(inner)
    summed = b(ops.add, b(ops.mul, total, b.const(np.array([1, 2, 3], np.float32))), step)
    body = Graph("body", inner, (i, go, total, step), (b(ops.lt, i, b.const(2, i64)), summed, summed),
                 ("go", "total", "seen"))  # fmt: skip
    x, trips = pool.input("x", vector), pool.input("trips", TensorType(i64, ()))
    outer = Builder(pool)
    made = pool.add(
        ops.loop, (trips, outer.const(True, bool_), x, outer(ops.neg, x)), {"body": body, "n_carried": 1, "length": 3}
    )
    graph = Graph("looped", pool, (x, trips), pool.results(made), ("total", "seen"))
    program = to_exported(graph)
    arrays = [np.array([1, -2, 4], np.float32), np.array(3)]
    expected = evaluate_graph(graph, arrays)
    for found in (ran(program, arrays), came_back(program, arrays)):
        np.testing.assert_array_equal(found["total"], expected[0])
        np.testing.assert_array_equal(found["seen"], expected[1])


def test_a_query_without_keys_stays_nan():
    """PyTorch's own attention gives 0 there, so that one with a mask is written in pieces."""
    pool = Pool()
    q = pool.input("q", TensorType(f32, (1, 1, 2, 4)))
    mask = pool.input("mask", TensorType(bool_, (2, 2)))
    graph = Graph("masked", pool, (q, mask), (pool.add(ops.attention, (q, q, q, mask), {"scale": 0.5}),), ("y",))
    arrays = [numbers(1, 1, 2, 4), np.array([[True, True], [False, False]])]
    made = ran(to_exported(graph), arrays)["output"]
    np.testing.assert_allclose(made, evaluate_graph(graph, arrays)[0], rtol=1e-5)
    assert np.isnan(made[0, 0, 1]).all()


def test_casts_saturate_and_the_sign_of_nan_is_nan():
    pool = Pool()
    x = pool.input("x", TensorType(f32, (8,)))
    kinds = (types.i8, types.u8, types.i32, i64)
    made = [pool.add(ops.cast, (x,), {"dtype": kind}) for kind in kinds]
    results = (*made, pool.add(ops.sign, (x,)))
    names = (*(str(kind) for kind in kinds), "sign")
    graph = Graph("far", pool, (x,), results, names)
    array = np.array([np.nan, np.inf, -np.inf, 300, -300, 3e38, -1.9, 127.9], np.float32)
    found = ran(to_exported(graph), [array])
    for name, expected in zip(names, evaluate_graph(graph, [array]), strict=True):
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def test_branches_share_constants_and_take_an_operand_twice():
    pool = Pool()
    x, go = pool.input("x", TensorType(f32, (3,))), pool.input("go", TensorType(bool_, ()))

    def branch(op):
        inner = Pool()
        p, q = (inner.input(name, x.type) for name in "pq")
        b = Builder(inner)
        return Graph(op.name, inner, (p, q), (b(op, b(ops.mul, p, q), b.const(1.0, f32)),), ("y",))

    made = pool.add(ops.if_, (go, x, x), {"then_branch": branch(ops.add), "else_branch": branch(ops.sub)})
    graph = Graph("shared", pool, (x, go), pool.results(made), ("y",))
    program = to_exported(graph)
    for taken in (True, False):
        arrays = [np.array([1, 2, 3], np.float32), np.array(taken)]
        (expected,) = evaluate_graph(graph, arrays)
        np.testing.assert_array_equal(ran(program, arrays)["output"], expected)


NAMES = ("class", "self", "x.1", "x_1", "0")


def test_names_that_python_lacks_and_names_that_become_alike_stay_apart():
    pool = Pool()
    inputs = tuple(pool.input(name, TensorType(f32, (Sym(name, 1), Sym("fixed", 2, 2)))) for name in NAMES)
    graph = Graph("named", pool, inputs, tuple(pool.add(ops.neg, (x,)) for x in inputs), NAMES)
    program = to_exported(graph)
    arrays = [np.full((k, 2), k, np.float32) for k in range(1, 6)]
    named = ran(program, arrays)
    assert list(named) == ["_class", "_self", "x_1", "x_1_1", "_0"]
    for made in (named, came_back(program, arrays)):
        for found, array in zip(made.values(), arrays, strict=True):
            np.testing.assert_array_equal(found, -array)


def test_inputs_of_types_that_pytorch_lacks_are_named():
    pool = Pool()
    x = pool.input("x", TensorType(types.u4, (4,)))
    y = pool.input("y", TensorType(f32, (4,)))
    graph = Graph("narrow", pool, (x, y), (x, pool.add(ops.neg, (y,))), ("a", "b"))
    with pytest.raises(CompileError, match=r"PyTorch has no elements of type u4"):
        to_exported(graph)
