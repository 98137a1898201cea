"""The zoo's nets, small, leave in every format: what comes back, or is built from it, computes what PyTorch does."""

from collections.abc import Callable, Mapping
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from benchmarks import zoo

import tilewright as tw
from aot.programs import link, needs_cc
from frontend.test_stablehlo_writer import by_xla
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.frontend.stablehlo.importer import import_module, parse
from tilewright.frontend.torch.export import import_exported, load_program
from tilewright.runtime.library import LibraryModel

QUICK = ("mlp", "lstm", "gru")
NETS = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in zoo.MODELS]
COMES_BACK: Mapping[str, Callable[[Path], Graph]] = {
    "onnx": import_onnx,
    "mlir": lambda path: import_module(parse(path.read_bytes(), "text"), "text").graph,
    "pt2": lambda path: import_exported(load_program(path)),
}


def check(found: object, model: zoo.ZooModel) -> None:
    """Results equal eager PyTorch's but for the rounding of sums."""
    made = found if isinstance(found, tuple | list) else (found,)
    for got, expected in zip(made, model.expected(), strict=True):
        assert (got.shape, got.dtype) == (tuple(expected.shape), expected.numpy().dtype)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.one_in(12)
@pytest.mark.parametrize("suffix", COMES_BACK)
@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_what_left_comes_back(name: str, optimised: bool, suffix: str, tmp_path: Path) -> None:
    """With sizes that vary where the format has any; those of StableHLO's text are also given to XLA."""
    model, path = zoo.build(name, small=True), tmp_path / f"net.{suffix}"
    shapes = None if suffix == "mlir" else model.dynamic_shapes()
    tw.convert(model.module, path, optimize=optimised, example_inputs=model.inputs, dynamic_shapes=shapes)
    arrays = [x.numpy() for x in model.inputs]
    back = COMES_BACK[suffix](path).unchecked()
    assert bool(back.symbols()) == bool(shapes and any(shapes))
    check(evaluate_graph(back, arrays), model)
    if suffix == "mlir":
        check(by_xla(path.read_text(), *arrays), model)


@pytest.mark.one_in(3)
@needs_cc
@pytest.mark.parametrize("name", NETS)
def test_what_left_as_code_is_built(name: str, tmp_path: Path) -> None:
    model = zoo.build(name, small=True)
    given = {"example_inputs": model.inputs, "dynamic_shapes": model.dynamic_shapes()}
    llvm.parse_assembly(tw.convert(model.module, tmp_path / "net.ll", **given).read_text()).verify()
    source = tw.convert(model.module, tmp_path / "net.c", **given)
    link(["-shared", "-fPIC", str(source)], tmp_path / "net.so")
    check(LibraryModel(tmp_path / "net.so", name="net")(*(x.numpy() for x in model.inputs)), model)
