"""Objects for other machines: what they are, and that they run right where an emulator is (``aot.emulated``).

The quick tests look at every target's object without any tool; the slow ones run 200 of ONNX's node tests and six nets
as one program on each machine that can be imitated here.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from aot.emulated import many
from aot.emulated.platforms import PLATFORMS, ZIG
from tilewright import ops
from tilewright.build import deploy
from tilewright.build.options import Clock, Options
from tilewright.codegen.cpu.llvm import assembly_of_text
from tilewright.core import types
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import Array, TensorType
from tilewright.runtime.elf import ElfObject
from tilewright.target.target import Target

EXAMPLES = Path(__file__).parents[2] / "examples" / "aot"
DIGITS = EXAMPLES.parent / "digits" / "digits.onnx"
NETS = ("mlp", "lstm", "resnet50", "mobilenet_v2", "bert_base", "llama_decode")
QUICK = ("aarch64", "wasm32")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def available(name: str) -> object:
    """A platform, skipped with the reason where a tool is missing."""
    missing = PLATFORMS[name].missing()
    return pytest.param(name, marks=[pytest.mark.emulation, pytest.mark.skipif(bool(missing), reason=missing)])


@pytest.mark.parametrize("name", [available(n) for n in QUICK])
def test_a_few_models_on_another_machine(name: str, tmp_path: Path) -> None:
    trials = chain(many.node_tests(4), many.nets(["lstm"]))
    assert many.wrong(PLATFORMS[name], trials, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [available(n) for n in PLATFORMS])
def test_conformance_on_another_machine(name: str, tmp_path: Path) -> None:
    """A CPU without an instruction that the object holds would end the program."""
    trials = chain(many.node_tests(200), many.nets(NETS))
    assert many.wrong(PLATFORMS[name], trials, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [available(n) for n in PLATFORMS])
def test_random_quantised_models_on_another_machine(name: str, tmp_path: Path) -> None:
    assert many.wrong(PLATFORMS[name], many.quantised(range(60_000, 60_100)), tmp_path) == {}


def _cross(arguments: list[str], target: str, folder: Path, optimize: int | str = 2) -> None:
    tw.export(DIGITS, folder, target=target, fix_dims={"batch": 1}, name="digits", optimize=optimize)
    flags = ["-O1", "-g0", "-ffreestanding", "-nostdlib", "-fno-builtin", "-fno-sanitize=all", "-fno-unwind-tables"]
    command = [*ZIG, "cc", *flags, f"-I{folder}", *arguments, str(folder / "digits.o")]
    linked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert linked.returncode == 0, linked.stderr


@pytest.mark.emulation
@pytest.mark.skipif(bool(PLATFORMS["cortex-m4"].missing()), reason=PLATFORMS["cortex-m4"].missing())
@pytest.mark.parametrize("optimize", [2, "size"])
def test_a_digit_on_a_microcontroller(optimize: int | str, tmp_path: Path) -> None:
    """Without any library, in 256 KiB of RAM (the linker's script holds it to that)."""
    source = EXAMPLES / "cortex_m"
    cpu = ["-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m4+vfp4d16sp", "-T", str(source / "board.ld")]
    _cross([*cpu, str(source / "digits.c"), "-o", str(tmp_path / "program")], "cortex-m4", tmp_path, optimize)
    command = [str(tmp_path / "program") if x == "PROGRAM" else x for x in PLATFORMS["cortex-m4"].emulator]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "3\n")


@pytest.mark.emulation
@pytest.mark.skipif(bool(PLATFORMS["wasm32"].missing()), reason=PLATFORMS["wasm32"].missing())
def test_a_drawn_digit_in_javascript(tmp_path: Path) -> None:
    """The page's module and functions, in node: a drawing of 32 x 32 pixels, off the middle."""
    source = EXAMPLES / "web"
    wasm = ["-target", "wasm32-freestanding", "-Wl,--no-entry", str(source / "digits.c")]
    _cross([*wasm, "-o", str(tmp_path / "digits.wasm")], "wasm32", tmp_path)
    (tmp_path / "draw.mjs").write_text(f"""
import fs from "node:fs";
import {{ asImage, loadClassifier }} from "{(source / "digits.mjs").as_uri()}";
const rows = ["  ####  ", " ##  ## ", "     ## ", "   ###  ", "     ## ", "      ##", " ##  ## ", "  ####  "];
const rgba = new Uint8ClampedArray(4 * 32 * 32);
for (let y = 0; y < 24; y++)
  for (let x = 0; x < 24; x++)
    if (rows[Math.floor(y / 3)][Math.floor(x / 3)] === "#") rgba[4 * ((y + 7) * 32 + x + 2)] = 255;
const classify = await loadClassifier(fs.readFileSync("digits.wasm"));
console.log(classify(asImage(rgba, 32)).digit);
""")
    ran = subprocess.run(["node", "draw.mjs"], check=False, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ran.stdout == "3\n", ran.stderr


DRAWN = {7: "M70 50 L190 50 L110 220", 1: "M128 30 L128 226", 3: "M70 60 A58 45 0 1 1 128 128 A58 45 0 1 1 70 196"}
"""Strokes of a pen on the page, as SVG paths."""
PEN = """
<script type="module">
const canvas = document.getElementById("canvas"), answers = [];
canvas.setPointerCapture = () => {}; // it refuses pointers that are none
const wait = () => new Promise((done) => setTimeout(done, 50));
while (!canvas.onpointermove) await wait();
for (const stroke of STROKES) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path"), box = canvas.getBoundingClientRect();
  path.setAttribute("d", stroke);
  document.getElementById("clear").click();
  for (let k = 0, n = 60; k <= n; k++) {
    const p = path.getPointAtLength((path.getTotalLength() * k) / n);
    const at = { clientX: box.left + p.x, clientY: box.top + p.y, buttons: 1, pointerId: 1, bubbles: true };
    canvas.dispatchEvent(new PointerEvent(k ? "pointermove" : "pointerdown", at));
  }
  answers.push(document.getElementById("digit").textContent);
}
document.title = "answers: " + answers.join(" ");
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no ziglang")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """The page itself, served and opened; a script draws with pointer events and reads the digit off the page."""
    source = EXAMPLES / "web"
    wasm = ["-target", "wasm32-freestanding", "-Wl,--no-entry", str(source / "digits.c")]
    _cross([*wasm, "-o", str(tmp_path / "digits.wasm")], "wasm32", tmp_path)
    (tmp_path / "digits.mjs").write_bytes((source / "digits.mjs").read_bytes())
    page = (source / "page.html").read_text().replace("</html>", PEN.replace("STROKES", json.dumps([*DRAWN.values()])))
    (tmp_path / "page.html").write_text(page)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/page.html"
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        command += ["--virtual-time-budget=20000", "--dump-dom", url]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
        server.shutdown()
    answers = re.search(r"<title>answers: (.*)</title>", ran.stdout)
    assert answers, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert answers[1].split() == [str(digit) for digit in DRAWN]


@pytest.mark.emulation
def test_webassembly_in_wasmtime(tmp_path: Path) -> None:
    """The same module in an engine of another make gives the same scores as Python's own run, but for rounding."""
    wasmtime = pytest.importorskip("wasmtime")
    pytest.importorskip("ziglang")
    wasm = ["-target", "wasm32-freestanding", "-Wl,--no-entry", str(EXAMPLES / "web" / "digits.c")]
    _cross([*wasm, "-o", str(tmp_path / "digits.wasm")], "wasm32", tmp_path)
    store = wasmtime.Store()
    module = wasmtime.Module(store.engine, (tmp_path / "digits.wasm").read_bytes())
    exports = wasmtime.Instance(store, module, []).exports(store)
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32) * 16
    exports["memory"].write(store, image.tobytes(), exports["image"](store))
    assert exports["classify"](store) >= 0
    at = exports["scores"](store)
    scores = np.frombuffer(exports["memory"].read(store, at, at + 40), np.float32)
    np.testing.assert_allclose(scores, tw.compile(DIGITS)(image)[0], rtol=1e-4, atol=1e-4)


ARM_GCC = shutil.which("arm-linux-gnueabihf-gcc")


@pytest.mark.emulation
@pytest.mark.skipif(ARM_GCC is None, reason="no arm-linux-gnueabihf-gcc")
@pytest.mark.skipif(shutil.which("qemu-arm") is None, reason="no qemu-arm")
def test_threads_on_armv7(tmp_path: Path) -> None:
    """With the C library of 32-bit Linux: three threads answer as one does, and as Python but for rounding."""
    images = np.random.default_rng(0).random((64, 1, 8, 8), np.float32) * 16
    answers = []
    for threads in (1, 3):
        folder = tmp_path / str(threads)
        made = tw.export(DIGITS, folder, target="armv7", threads=threads)
        assert ("pthread_create" in ElfObject(made.object.read_bytes()).undefined()) == (threads > 1)
        flags = ["-DMODEL=digits", "-include", str(made.header), "-static", "-O1", str(EXAMPLES / "run.c")]
        command = [str(ARM_GCC), *flags, str(made.object), "-o", str(folder / "digits"), "-lpthread"]
        linked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
        assert linked.returncode == 0, linked.stderr
        command = ["qemu-arm", "-cpu", "cortex-a9", str(folder / "digits"), "64"]
        ran = subprocess.run(command, input=images.tobytes(), check=False, capture_output=True, timeout=100)
        assert ran.returncode == 0, ran.stderr
        answers.append(np.frombuffer(ran.stdout, np.float32).reshape(64, 10))
    np.testing.assert_array_equal(*answers)
    np.testing.assert_allclose(answers[0], tw.compile(DIGITS)(images), rtol=1e-4, atol=1e-3)


def _byte_products(sizes: list[tuple[int, int, int]]) -> Iterator[many.Trial]:
    """u8 by i8 into i32, exact: sizes that fill groups of four and lanes, and sizes that do not."""
    rng = np.random.default_rng(0)
    for m, n, k in sizes:
        a, b = rng.integers(0, 256, (m, k), np.uint8), rng.integers(-128, 128, (k, n), np.int8)
        build = Builder(Pool())
        x = build.pool.input("a", TensorType(types.u8, a.shape))
        y = build(ops.matmul, x, build.pool.const(b), out_dtype=types.i32)
        graph = Graph("product", build.pool, (x,), (y,), ("c",))
        want = a.astype(np.int32) @ b.astype(np.int32)

        def judge(results: list[Array], want: Array = want) -> str:
            return "" if np.array_equal(results[0], want) else f"{(results[0] != want).mean():.0%} differ"

        yield many.Trial(f"{m}x{n}x{k}", graph, None, [a], judge)


@pytest.mark.parametrize("name", [available(n) for n in ("aarch64-dotprod", "aarch64-i8mm")])
def test_groups_of_bytes_on_another_machine(name: str, tmp_path: Path) -> None:
    trials = list(_byte_products([(1, 1, 1), (5, 16, 64), (37, 100, 257), (12, 33, 31), (8, 64, 66)]))
    assert many.wrong(PLATFORMS[name], trials, tmp_path) == {}
    instruction = {"aarch64-dotprod": "sdot", "aarch64-i8mm": "usdot"}[name]
    modules = deploy.export_modules(trials[1].source, Options(target=name), 1, Clock())
    asm = "".join(assembly_of_text(text, Target.parse(name)) for text in modules.texts.values())
    assert re.search(rf"\t{instruction}\t", asm)
