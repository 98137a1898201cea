"""Code for CPUs without vectors: registers hold tiles, counters have the width of addresses, memory is no larger.

The instructions are counted beside those of plain C that ``gcc -O2`` compiled, in QEMU by a plugin of its own.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from aot.emulated import many
from aot.emulated.platforms import HERE, PLATFORMS
from graph.networks import Net
from tilewright import ops
from tilewright.build import deploy
from tilewright.build.options import Clock, Options
from tilewright.choose.default import schedule_with_steps
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.types import Array, TensorType, f32
from tilewright.target.target import Target
from tilewright.tile.ir import Space


def mobile_net() -> Graph:
    """Depthwise and pointwise convolutions in turn."""
    b = Builder(Pool())
    net, x = Net(b), b.pool.input("x", TensorType(f32, (1, 3, 64, 64)))
    y, c = net.relu(net.batch_norm(net.conv(x, 16, kernel=3, stride=2))), 16
    for n_out, stride in ((32, 1), (64, 2), (64, 1)):
        y = net.relu(net.batch_norm(net.conv(y, c, groups=c, stride=stride)))
        y, c = net.relu(net.batch_norm(net.conv(y, n_out, kernel=1))), n_out
    return Graph("mobile", b.pool, (x,), (net.linear(b(ops.reduce_mean, y, axes=(2, 3)), 10),), ("y",))


def memory_of(target: str, graph: Graph | None = None) -> int:
    manifest = deploy.export_modules(graph or mobile_net(), Options(target=target), 1, Clock()).manifest
    n_bytes: int = manifest.report["memory"]["arena_bytes"]
    return n_bytes + manifest.scratch.n_bytes(1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m3", "rv64gc"])
def test_memory_is_no_more_than_with_vectors(target: str) -> None:
    """Sums went through a buffer of the result's size, and a net took twice the memory."""
    assert memory_of(target) <= memory_of("armv7")


@pytest.fixture(scope="module")
def mobile_net_in_bytes() -> Graph:
    return tw.quantize(mobile_net(), np.random.default_rng(0).standard_normal((4, 3, 64, 64)).astype(np.float32))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_a_net_of_bytes_takes_less_than_half_of_the_memory(target: str, mobile_net_in_bytes: Graph) -> None:
    """Tensors that were made floats for a sum or for a depthwise convolution took four bytes a number."""
    assert memory_of(target, mobile_net_in_bytes) <= 0.4 * memory_of(target)


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7", "cortex-m3", "rv64gc"])
def test_sums_of_integers_fit_the_general_registers(target: str) -> None:
    """Their tiles were those of floats, which have registers of their own, and every step read sums from memory."""
    machine = Target.parse(target)
    x, w, out = Buffer("x", types.u8, (120, 64)), Buffer("w", types.i8, (64, 64)), Buffer("out", types.i32, (120, 64))
    (stage,) = ops.matmul.compute((x, w), (out,), Attrs({"out_dtype": types.i32}))
    kernel = schedule_with_steps(Computation((x, w), (out,), (stage,)), machine, constants=(w,)).kernel
    sums = [p.buffer for p in kernel.places if p.space is Space.REG]
    assert sums
    assert all(1 < np.prod(s.shape) < machine.n_general_registers for s in sums)


@pytest.mark.parametrize(("target", "has_halves"), [("cortex-m4", True), ("cortex-m7", True), ("cortex-m3", False)])
def test_four_bytes_are_multiplied_by_two_instructions(
    target: str, has_halves: bool, mobile_net_in_bytes: Graph
) -> None:
    texts = deploy.export_modules(mobile_net_in_bytes, Options(target=target), 1, Clock()).texts
    assert any("@llvm.arm.smlad" in text for text in texts.values()) == has_halves


@pytest.mark.emulation
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7", "cortex-m55"])
def test_a_net_of_bytes_answers_as_it_does_here(target: str, tmp_path: Path, mobile_net_in_bytes: Graph) -> None:
    if missing := PLATFORMS[target].missing():
        pytest.skip(missing)
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype(np.float32)
    expected = np.asarray(tw.compile(mobile_net_in_bytes, cache=False)(x))

    def judge(results: list[Array]) -> str:
        return "" if np.allclose(results[0], expected, rtol=1e-5, atol=1e-6) else f"{results[0]} and {expected}"

    trial = many.Trial("bytes", mobile_net_in_bytes, None, [x], judge)
    assert many.wrong(PLATFORMS[target], [trial], tmp_path) == {}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("target", "width"), [("cortex-m4", 32), ("armv7", 32), ("rv64gc", 64), ("x86-64-v3", 64)])
def test_loops_count_in_the_width_of_addresses(target: str, width: int) -> None:
    texts = deploy.export_modules(mobile_net(), Options(target=target), 1, Clock()).texts
    kernels = "".join(text for name, text in texts.items() if name != "entry")
    assert f"phi i{width} " in kernels and f"phi i{96 - width} " not in kernels


LAYERS = {
    "product": ("#define PRODUCT\nenum { ROWS = 120, DEPTH = 64, COLUMNS = 64 };", (120, 64), (64, 64)),
    "pointwise": ("enum { C_OUT = 16, C_GROUP = 16, TAPS = 1, SIZE = 16 };", (1, 16, 16, 16), (16, 16, 1, 1)),
    "depthwise": ("enum { C_OUT = 32, C_GROUP = 1, TAPS = 3, SIZE = 16 };", (1, 32, 16, 16), (32, 1, 3, 3)),
    "convolution": ("enum { C_OUT = 8, C_GROUP = 8, TAPS = 3, SIZE = 12 };", (1, 8, 12, 12), (8, 8, 3, 3)),
}
COMPILERS = {
    "cortex-m4": "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -ffreestanding "
    f"-fno-builtin -nostdlib -T {HERE}/cortex_m.ld",
    "cortex-m7": "arm-none-eabi-gcc -mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-d16 -ffreestanding "
    f"-fno-builtin -nostdlib -T {HERE}/cortex_m_high.ld",
    "rv64gc": "riscv64-linux-gnu-gcc -static",
}
BARE = "-nographic -monitor none -serial none -semihosting-config enable=on,target=native"
EMULATORS = {
    "cortex-m4": f"qemu-system-arm -M mps2-an386 {BARE} -kernel",
    "cortex-m7": f"qemu-system-arm -M mps2-an500 {BARE} -kernel",
    "rv64gc": "qemu-riscv64 -cpu rv64,v=false",
}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("plugin") / "instructions.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(HERE / "instructions.c"), "-o", str(made)], check=True)
    yield made


def count(target: str, folder: Path, plugin: Path, ours: int, plain: int) -> int:
    """Instructions of a program that runs the layer so often by either code."""
    command = [*COMPILERS[target].split(), "-O2", f"-DOURS={ours}", f"-DPLAIN={plain}", f"-I{folder}"]
    command += [str(HERE / "beside_c.c"), str(folder / "m.o"), "-o", str(folder / "program")]
    subprocess.run(command, check=True, capture_output=True)
    emulator, *how = EMULATORS[target].split()
    run = [emulator, "-plugin", str(plugin), *how, str(folder / "program")]
    subprocess.run(run, check=True, cwd=folder, capture_output=True, timeout=300)
    return int((folder / "instructions.txt").read_text())


def export_layer(layer: str, target: str, folder: Path) -> None:
    facts, shape, weights = LAYERS[layer]
    rng = np.random.default_rng(0)
    w = rng.standard_normal(weights).astype(np.float32) / 8
    b = rng.standard_normal(weights[1 if layer == "product" else 0]).astype(np.float32)
    if layer == "product":
        nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "b"], ["u"])]
    else:
        group = shape[1] // weights[1]
        nodes = [helper.make_node("Conv", ["x", "w", "b"], ["u"], pads=[weights[2] // 2] * 4, group=group)]
    nodes.append(helper.make_node("Relu", ["u"], ["y"]))
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    constants = [numpy_helper.from_array(a, name) for a, name in ((w, "w"), (b, "b"))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    tw.export(model, folder, name="m", target=target, accuracy="exact")
    arrays = [f"const float {n}[] = {{{', '.join(f'{v:.9g}f' for v in a.ravel())}}};" for n, a in (("w", w), ("b", b))]
    sizes = f"enum {{ N_IN = {np.prod(shape)}, N_OUT = {np.prod(shape)} }};"
    (folder / "data.h").write_text("\n".join([facts, sizes, *arrays, ""]))


@pytest.mark.slow
@pytest.mark.emulation
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("target", COMPILERS)
def test_instructions_beside_gcc(target: str, layer: str, tmp_path: Path, plugin: Path) -> None:
    """At most 0.7 of what ``gcc -O2`` makes of plain C."""
    for tool in (COMPILERS[target].split()[0], EMULATORS[target].split()[0]):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    export_layer(layer, target, tmp_path)
    assert count(target, tmp_path, plugin, 1, 1) > 0  # the same answers
    base = count(target, tmp_path, plugin, 0, 0)
    ours, plain = (count(target, tmp_path, plugin, *n) - base for n in ((1, 0), (0, 1)))
    print(f"{target} {layer}: {ours} instructions, gcc -O2 {plain}, {ours / plain:.3f}")
    assert ours <= 0.7 * plain
