"""Exported models as C programs: linked by `cc` alone with libc, libm and pthread, equal to Python bit for bit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from benchmarks import zoo
from onnx import TensorProto, helper

import small_models
import tilewright as tw
from aot import programs
from tilewright.aot import system
from tilewright.core.types import Array
from tilewright.runtime.cpu.pool_systems import POOL_ABIS

DIGITS = programs.ROOT / "examples" / "digits" / "digits.onnx"
QUICK = ("resnet50", "llama_decode", "lstm")
FULL_SIZE = (*QUICK, "mobilenet_v2", "bert_base")

pytestmark = [programs.needs_cc, pytest.mark.usefixtures("shared_kernels")]


def model_of(nodes: list[onnx.NodeProto], inputs: dict, outputs: dict, **initializers: Array) -> onnx.ModelProto:
    """An ONNX model; inputs and outputs are (type, shape) by name."""
    values = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in d.items()] for d in (inputs, outputs)]
    constants = [onnx.numpy_helper.from_array(x, name) for name, x in initializers.items()]
    graph = helper.make_graph(nodes, "a model", *values, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def check(source: object, folder: Path, *feeds: dict[str, Array], threads: int = 2) -> tw.LoadedModel:
    """The program of a model's export answers as the Python model does."""
    model = tw.compile(source, threads=threads, cache=False)
    program = programs.build(model.export(folder))
    for feed in feeds:
        programs.same_bytes(program, model, feed)
    return model


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 3])
def test_digits(threads: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    feeds = [{"image": rng.random((n, 1, 8, 8), np.float32)} for n in (1, 2, 33)]
    check(DIGITS, tmp_path, *feeds, threads=threads)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "weights"), [*((n, "embedded") for n in QUICK), ("bert_base", "file")])
def test_networks(name: str, weights: str, tmp_path: Path) -> None:
    """Small versions of what people deploy."""
    net = zoo.build(name, small=True)
    model = tw.compile(net.module, example_inputs=net.inputs, threads=2, cache=False)
    program = programs.build(model.export(tmp_path, weights=weights, name=name))
    given = {s.name: x.numpy() for s, x in zip(model.inputs, net.inputs, strict=True)}
    programs.same_bytes(program, model, given)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_networks(name: str, tmp_path: Path) -> None:
    net = zoo.build(name)
    model = tw.compile(net.module, example_inputs=net.inputs, threads=2, cache=False)
    program = programs.build(model.export(tmp_path, name=name))
    given = {s.name: x.numpy() for s, x in zip(model.inputs, net.inputs, strict=True)}
    programs.same_bytes(program, model, given)


@pytest.mark.slow
def test_two_symbols_in_a_transformer(tmp_path: Path) -> None:
    feeds = [{"x": small_models.numbers(n, t, 64)} for n, t in ((1, 1), (2, 7), (3, 40))]
    check(small_models.language_model(), tmp_path, *feeds)


def test_many_types(tmp_path: Path) -> None:
    """bool, integers, half, double; several outputs; a scalar; an input that is an output."""
    kinds = {
        "flag": (TensorProto.BOOL, np.bool_),
        "byte": (TensorProto.UINT8, np.uint8),
        "half": (TensorProto.FLOAT16, np.float16),
        "wide": (TensorProto.INT64, np.int64),
        "real": (TensorProto.DOUBLE, np.float64),
    }
    nodes = [helper.make_node("Not", ["flag"], ["flag_out"])]
    nodes += [helper.make_node("Add", [n, n], [f"{n}_out"]) for n in kinds if n != "flag"]
    nodes += [helper.make_node("ReduceSum", ["real"], ["total"], keepdims=0)]
    inputs = {name: (kind, ["n", 3]) for name, (kind, _) in kinds.items()}
    outputs = {f"{name}_out": x for name, x in inputs.items()} | {"total": (TensorProto.DOUBLE, [])}
    rng = np.random.default_rng(1)
    feeds = [{k: rng.integers(0, 2, (n, 3)).astype(t) for k, (_, t) in kinds.items()} for n in (1, 5)]
    check(model_of(nodes, inputs, outputs), tmp_path, *feeds)


def test_a_size_that_the_data_decide(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Neg", ["x"], ["minus"])]
    model = model_of(
        nodes, {"x": (TensorProto.FLOAT, ["n", 4])},
        {"where": (TensorProto.INT64, [2, "found"]), "minus": (TensorProto.FLOAT, ["n", 4])},
    )  # fmt: skip
    rng = np.random.default_rng(2)
    check(model, tmp_path, *[{"x": (rng.random((n, 4)) > 0.6).astype(np.float32)} for n in (1, 3, 20)])


def test_names_that_no_c_compiler_would_take(tmp_path: Path) -> None:
    """Quotes, comment ends, trigraphs, other scripts, keywords, and two that would be one macro."""
    names = ['in"put*/', "??=\\", "größe", "int", "a.b", "a_b", "line\nend", "/* \\"]
    kind = (TensorProto.FLOAT, ["größe*/", 2])
    nodes = [helper.make_node("Sum", names, ["sum %d"])]
    rng = np.random.default_rng(3)
    feed = {name: rng.random((3, 2), np.float32) for name in names}
    model = check(model_of(nodes, dict.fromkeys(names, kind), {"sum %d": kind}), tmp_path, feed)
    shown = tmp_path / "names.c"
    shown.write_text("""
#include "a_model.h"
#include <stdio.h>
int main(void) {
  for (int i = 0; i < A_MODEL_N_INPUTS; i++) printf("%s%c", a_model_info()->inputs[i].name, 0);
  return A_MODEL_INPUT_A_B_2 - 5;
}
""")
    programs.link([f"-I{tmp_path}", str(shown), str(tmp_path / "a_model.o")], tmp_path / "names")
    ran = subprocess.run([tmp_path / "names"], capture_output=True, check=True, timeout=100)
    assert ran.stdout.decode().split("\0")[:-1] == [i.name for i in model.inputs] == names


def test_empty_tensors(tmp_path: Path) -> None:
    kind = (TensorProto.FLOAT, [0, 3])
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0)]
    model = model_of(nodes, {"x": kind}, {"y": kind, "total": (TensorProto.FLOAT, [])})
    check(model, tmp_path, {"x": np.zeros((0, 3), np.float32)})


def test_no_inputs(tmp_path: Path) -> None:
    constant = np.arange(12, dtype=np.float32)
    nodes = [helper.make_node("Neg", ["c"], ["y"])]
    check(model_of(nodes, {}, {"y": (TensorProto.FLOAT, [12])}, c=constant), tmp_path, {})


def test_two_models_in_one_program(tmp_path: Path) -> None:
    """Equal models under two names, each with threads: no symbol meets another, and there is one pool."""
    model = tw.compile(DIGITS, threads=2, cache=False)
    for name in ("one", "two"):
        model.export(tmp_path, name=name)
    source = tmp_path / "both.cpp"
    source.write_text("""
#include "one.h"
#include "two.h"
#include <cstring>
int main() {
  int64_t dims[1] = {8}, bytes = 0;
  float image[512], a[80], b[80];
  for (int i = 0; i < 512; i++) image[i] = (float)(i % 17);
  const void *in[1] = {image};
  void *out[2] = {a, b};
  one_model *first; two_model *second;
  if (one_workspace(dims, &bytes) || one_create(&first, nullptr, bytes, nullptr, 0)) return 1;
  if (two_create(&second, nullptr, bytes, nullptr, 0)) return 2;
  for (int k = 0; k < 100; k++)
    if (one_run(first, dims, in, out) || two_run(second, dims, in, out + 1)) return 3;
  one_destroy(first); two_destroy(second);
  return std::memcmp(a, b, sizeof a) ? 4 : 0;
}
""")
    compiler = "c++" if shutil.which("c++") else "cc"
    flags = [f"-I{tmp_path}", *programs.STRICT, str(source), *(str(tmp_path / f"{n}.o") for n in ("one", "two"))]
    programs.link(flags, tmp_path / "both", compiler)
    assert subprocess.run([tmp_path / "both"], check=False, timeout=100).returncode == 0


def test_wrong_calls_are_refused_in_words(tmp_path: Path) -> None:
    model = tw.compile(small_models.sequences(), threads=1, cache=False)
    model.export(tmp_path, name="lm", weights="file")
    source = tmp_path / "wrong.c"
    source.write_text("""
#include "lm.h"
#include <stdio.h>
#include <stdlib.h>
#define SAY(call) do { tw_status s = call; printf("%d %s\\n", TW_STATUS_KIND(s), lm_status_text(s)); } while (0)
static _Alignas(64) char few[64];
int main(int argc, char **argv) {
  int64_t shape[3] = {2, 5, 64}, wrong[3] = {2, 5, 63}, dims[2] = {0, 0}, none[2] = {-1, 5}, bytes, more[2] = {20, 50};
  const int64_t *shapes[1] = {wrong};
  const void *weights = NULL, *in[1] = {0};
  void *out[1] = {0};
  lm_model *m = NULL;
  (void)argc;
  SAY(lm_bind(shapes, dims));
  shapes[0] = shape;
  SAY(lm_bind(shapes, dims));
  SAY(lm_workspace(none, &bytes));
  SAY(lm_workspace(NULL, &bytes));
  SAY(lm_workspace(dims, &bytes));
  SAY(lm_create(&m, NULL, bytes, NULL, 0));
  SAY(lm_map_weights("nowhere", &weights));
  SAY(lm_map_weights(argv[0], &weights));
  SAY(lm_map_weights(argv[1], &weights));
  SAY(lm_create(&m, few, 64, weights, 0));
  SAY(lm_create(&m, few + 8, bytes, weights, 0));
  SAY(lm_create(&m, NULL, bytes, (const char *)weights + 4, 0));
  SAY(lm_create(&m, NULL, bytes, weights, 0));
  SAY(lm_run(m, dims, in, out));
  SAY(lm_run(m, more, in, out));
  SAY(lm_run(NULL, dims, in, out));
  SAY(lm_output_shape(dims, 1, shape));
  printf("%s\\n%s\\n", lm_status_text(255), lm_status_text(-1));
  lm_destroy(m); lm_destroy(NULL);
  lm_unmap_weights(weights); lm_unmap_weights(NULL);
  return 0;
}
""")
    programs.link([f"-I{tmp_path}", *programs.STRICT, str(source), str(tmp_path / "lm.o")], tmp_path / "wrong")
    ran = subprocess.run(
        [tmp_path / "wrong", tmp_path / "lm.safetensors"], capture_output=True, text=True, timeout=100, check=True
    )
    lines = ran.stdout.splitlines()
    kinds = [2, 0, 2, 1, 0, 5, 5, 5, 0, 3, 4, 4, 0, 1, 3, 1, 6]
    assert [int(line.split()[0]) for line in lines[: len(kinds)]] == kinds, ran.stdout
    for k, words in {0: "'x', dimension 2", 2: "batch: the model is compiled for at least 1", 3: "dims is NULL",
                     7: "not lm's weights", 13: "input 'x' is NULL", 14: "too small"}.items():  # fmt: skip
        assert words in lines[k], lines[k]
    assert lines[len(kinds) :] == ["unknown status", "unknown status"]


def test_a_damaged_weights_file_s_size_is_noticed(tmp_path: Path) -> None:
    model = tw.compile(small_models.language_model(), threads=1, cache=False)
    made = model.export(tmp_path, weights="file")
    program = programs.build(made)
    assert made.weights is not None
    made.weights.write_bytes(made.weights.read_bytes()[:-1])
    with pytest.raises(AssertionError, match="weights, or is damaged"):
        programs.same_bytes(program, model, {"x": small_models.numbers(1, 2, 64)})


def test_the_example_for_a_fixed_size(tmp_path: Path) -> None:
    """No allocation, no file, no threads: a program of 30 lines reads a drawn three."""
    tw.export(DIGITS, tmp_path, fix_dims={"batch": 1}, threads=1)
    files = [str(programs.EXAMPLES / "digits.c"), str(tmp_path / "digits.o")]
    programs.link([*programs.STRICT, f"-I{tmp_path}", *files], tmp_path / "digits")
    ran = subprocess.run([tmp_path / "digits"], capture_output=True, text=True, check=True, timeout=100)
    assert ran.stdout == "3\n"


@programs.needs_cxx
def test_the_example_in_cpp(tmp_path: Path) -> None:
    model = tw.compile(DIGITS, threads=2, cache=False)
    model.export(tmp_path)
    files = [str(programs.EXAMPLES / "digits.cpp"), str(tmp_path / "digits.o")]
    programs.link([*programs.STRICT, "-std=c++17", f"-I{tmp_path}", *files], tmp_path / "digits", "c++")
    ran = subprocess.run([tmp_path / "digits"], capture_output=True, text=True, check=True, timeout=100)
    images = np.zeros((3, 1, 8, 8), np.float32)
    images[1, :, :, 4] = 16
    numbers, refused = ran.stdout.splitlines()
    assert numbers.split() == [str(d) for d in model(images).argmax(1)]
    assert refused == "batch: the model is compiled for at least 1"


def has_rust() -> bool:
    """Is there a ``rustc`` that runs? (That of rustup may be there without a toolchain.)"""
    found = shutil.which("rustc")
    return found is not None and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_rust(), reason="no Rust compiler (rustc) here")
def test_the_example_in_rust(tmp_path: Path) -> None:
    tw.export(DIGITS, tmp_path, threads=1, static=True)
    command = ["rustc", "-D", "warnings", "-L", str(tmp_path), "-o", str(tmp_path / "digits")]
    built = subprocess.run(
        [*command, str(programs.EXAMPLES / "digits.rs")], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([tmp_path / "digits"], capture_output=True, text=True, check=True, timeout=100)
    assert ran.stdout.splitlines() == ["3", "batch: the model is compiled for at least 1"]


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go compiler (go) here")
def test_the_example_in_go(tmp_path: Path) -> None:
    tw.export(DIGITS, tmp_path, threads=1, static=True)
    flags = {"CGO_ENABLED": "1", "CGO_CFLAGS": f"-I{tmp_path}", "CGO_LDFLAGS": f"-L{tmp_path} -ldigits"}
    environment = {**os.environ, **flags, "GOCACHE": str(tmp_path / "cache"), "GO111MODULE": "off"}  # noqa: TID251
    command = ["go", "build", "-o", str(tmp_path / "digits"), str(programs.EXAMPLES / "digits.go")]
    built = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([tmp_path / "digits"], capture_output=True, text=True, check=True, timeout=100)
    assert ran.stdout.splitlines() == ["3", "batch: the model is compiled for at least 1"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/PID/smaps_rollup here")
def test_four_processes_share_a_model_of_a_gigabyte(tmp_path: Path) -> None:
    """All have answered, and wait; their shares of every page, added up, are the model and little more."""
    n, steps = 4096, 16
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((n, n), np.float32) / n
    nodes, constants = [], {}
    for k in range(steps):  # 64 MiB each, no two alike
        constants[f"w{k}"] = weight * np.float32(1 + k / steps)
        nodes.append(helper.make_node("MatMul", ["x" if k == 0 else f"x{k}", f"w{k}"], [f"x{k + 1}"]))
    kind = (TensorProto.FLOAT, [1, n])
    made = tw.export(model_of(nodes, {"x": kind}, {f"x{steps}": kind}, **constants), tmp_path, name="gib", threads=1)
    assert made.weights is not None and made.weights.stat().st_size > 1 << 30
    source = tmp_path / "wait.c"
    source.write_text("""
#include "gib.h"
#include <stdio.h>
int main(int argc, char **argv) {
  static float x[4096] = {1}, y[4096];
  const void *weights, *in[1] = {x};
  void *out[1] = {y};
  gib_model *model;
  if (argc != 2 || gib_map_weights(argv[1], &weights)) return 1;
  if (gib_create(&model, NULL, GIB_WORKSPACE_BYTES, weights, 0) || gib_run(model, NULL, in, out)) return 2;
  puts("done");
  fflush(stdout);
  return getchar() == 'x' ? 3 : 0;
}
""")
    programs.link([f"-I{tmp_path}", *programs.STRICT, str(source), str(made.object)], tmp_path / "wait")
    command = [str(tmp_path / "wait"), str(made.weights)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    try:
        assert [p.stdout.readline() for p in running] == [b"done\n"] * 4
        rollups = [Path(f"/proc/{p.pid}/smaps_rollup").read_text() for p in running]
    finally:
        ended = [p.communicate(b"\n")[0] for p in running]
    assert ended == [b""] * 4
    shares = [int(re.search(r"^Pss: +(\d+) kB", r, re.M)[1]) for r in rollups]
    print(f"shares in all: {sum(shares) / 2**20:.3f} GiB, of weights {made.weights.stat().st_size / 2**30:.3f} GiB")
    assert 1.0 < sum(shares) / 2**20 < 1.2


def test_a_program_needs_libc_alone(tmp_path: Path) -> None:
    """Neither the program nor the shared library asks for more than libc, libm and pthread."""
    model = tw.compile(small_models.convnet(), threads=2, cache=False)
    made = model.export(tmp_path, shared=True)
    for file in (programs.build(made), made.library):
        needed = programs.needed_libraries(file)
        assert needed and all(n.startswith(("libc.", "libm.", "libpthread.")) for n in needed), needed


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sleep", ["futex", "condition"])
def test_running_allocates_nothing_and_children_may_run_too(
    sleep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """malloc counted by the linker's wrap; a forked child makes threads of its own; idle threads of either kind."""
    if sleep == "condition":  # as on macOS and Armv7
        monkeypatch.setattr(system, "pool_abi", lambda triple: replace(POOL_ABIS[triple.split("-")[0]], futex=None))
    tw.export(DIGITS, tmp_path, threads=3)
    source = tmp_path / "count.c"
    source.write_text("""
#include "digits.h"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static int count;
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n) { count++; return __real_malloc(n); }
int main(void) {
  static float image[64 * 64], first[640], again[640];
  int64_t dims[1] = {64}, bytes;
  const void *in[1] = {image};
  void *out[1] = {first}, *out2[1] = {again};
  digits_model *model;
  int status = 0;
  for (int i = 0; i < 64 * 64; i++) image[i] = (float)(i % 16);
  if (digits_workspace(dims, &bytes) || digits_create(&model, NULL, bytes, NULL, 0) || count != 1) return 1;
  if (digits_run(model, dims, in, out)) return 2;
  for (int k = 0; k < 50; k++) if (digits_run(model, dims, in, out2)) return 3;
  if (count != 1 || memcmp(first, again, sizeof first)) return 4;
  pid_t child = fork();
  if (child == 0) {
    digits_after_fork();
    memset(again, 0, sizeof again);
    for (int k = 0; k < 50; k++) if (digits_run(model, dims, in, out2)) _exit(5);
    for (int k = 0; k < 20; k++) { /* long enough for the threads to fall asleep */
      usleep(2000);
      if (digits_run(model, dims, in, out2)) _exit(7);
    }
    _exit(memcmp(first, again, sizeof first) ? 6 : 0);
  }
  if (waitpid(child, &status, 0) != child || status) return 7;
  digits_destroy(model);
  return 0;
}
""")
    strict = [*programs.STRICT, "-D_DEFAULT_SOURCE"]
    flags = [*strict, f"-I{tmp_path}", "-Wl,--wrap=malloc", str(source), str(tmp_path / "digits.o")]
    programs.link(flags, tmp_path / "count")
    assert subprocess.run([tmp_path / "count"], check=False, timeout=60).returncode == 0


def test_a_torch_module_exports(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    model = tw.compile(module, example_inputs=(x,), threads=1, cache=False)
    program = programs.build(model.export(tmp_path))
    programs.same_bytes(program, model, {model.inputs[0].name: x.numpy()})
