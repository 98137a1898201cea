"""The stack that a header promises: read from instructions, and never exceeded by a program.

Programs for other machines check it at every call (``emulated/program.c``).
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import small_models
import tilewright as tw
from aot import programs
from graph.networks import Net
from tilewright.aot.stack import stack_of
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.target.target import target_names

DIGITS = programs.ROOT / "examples" / "digits" / "digits.onnx"

TEXTS = {
    "x86_64-unknown-linux-gnu": (
        """
deep:
\tpushq\t%rbp
\tmovq\t%rsp, %rbp
\tpushq\t%rbx
\tandq\t$-64, %rsp
\tsubq\t$256, %rsp
\tje\t.LBB0_2
\tcallq\tleaf
.LBB0_1:
\tleaq\t-8(%rbp), %rsp
\tpopq\t%rbx
\tpopq\t%rbp
\tretq
.LBB0_2:
\tpushq\t$7
\tcallq\tforeign@PLT
\taddq\t$8, %rsp
\tjmp\t.LBB0_1
leaf:
\tsubq\t$24, %rsp
\taddq\t$24, %rsp
\tretq
""",
        {"leaf": 8 + 24, "deep": 8 + 16 + 48 + 256 + 8 + 24},
    ),
    "aarch64-unknown-linux-gnu": (
        """
deep:
\tstp\tx29, x30, [sp, #-16]!
\tmov\tx29, sp
\tsub\tx9, sp, #1, lsl #12
\tand\tsp, x9, #0xffffffffffffffc0
\tcbz\tx0, .LBB0_2
\tblr\tx1
.LBB0_2:
\tbl\tleaf
\tmov\tsp, x29
\tldp\tx29, x30, [sp], #16
\tret
leaf:
\tsub\tsp, sp, #32
\tadrp\tx8, task
\tadd\tsp, sp, #32
\tret
task:
\tsub\tsp, sp, #48
\tadd\tsp, sp, #48
\tb\tleaf
""",
        {"leaf": 32, "task": 48, "deep": 16 + 4096 + 48 + 48},
    ),
    "thumbv7em-none-eabihf": (
        """
deep:
\tpush\t{r4, r5, r7, lr}
\tvpush\t{d8, d9}
\tsub\tsp, #64
\tmov\tr4, sp
\tbfc\tr4, #0, #5
\tmov\tsp, r4
\tcbz\tr0, .LBB0_2
\tbl\tdeep2
.LBB0_2:
\tadd\tsp, #64
\tvpop\t{d8, d9}
\tpop\t{r4, r5, r7, pc}
deep2:
\tpush\t{r7, lr}
\tpopne\t{r7, pc}
\tsub\tsp, #8
\tadd\tsp, #8
\tpop\t{r7, pc}
returns_early:
\tpush\t{r4, r5, r7, lr}
\tvpush\t{d8, d9}
\tsub\tsp, #28
\tcmp\tr0, r1
\tittt\tge
\taddge\tsp, #28
\tvpopge\t{d8, d9}
\tpopge\t{r4, r5, r7, pc}
\tit\tne
\tblne\tdeep2
\tadd\tsp, #28
\tvpop\t{d8, d9}
\tpop\t{r4, r5, r7, pc}
by_a_literal:
\tpush\t{r4, r5, r6, r7, lr}
\tldr\tr6, .LCPI16_9
\tadd\tsp, r6
\tbl\tdeep2
\tsubs\tr6, r7, #7
\tpop\t{r4, r5, r6, r7, pc}
.LCPI16_9:
\t.long\t4294963732
calls_tasks:
\tpush\t{r7, lr}
\tldr\tr1, =deep2
\tblx\tr3
\tpop\t{r7, pc}
""",
        {
            "deep2": 16,
            "deep": 16 + 16 + 64 + 24 + 16,
            "returns_early": 16 + 16 + 28 + 16,
            "by_a_literal": 20 + 3564 + 16,
            "calls_tasks": 8 + 16,
        },
    ),
    "wasm32-unknown-unknown": (
        """
aligned:
\tglobal.get\t__stack_pointer
\tlocal.tee\t5
\tlocal.set\t6
\tlocal.get\t5
\ti32.const\t4096
\ti32.sub
\ti32.const\t-64
\ti32.and
\tlocal.tee\t7
\tglobal.set\t__stack_pointer
\tlocal.get\t7
\ti32.const\t8
\ti32.sub
\tcall\tplain
\tlocal.get\t6
\tglobal.set\t__stack_pointer
\tend_function
plain:
\tglobal.get\t__stack_pointer
\ti32.const\t96
\ti32.sub
\tlocal.tee\t1
\tglobal.set\t__stack_pointer
\tlocal.get\t0
\ti32.const\t16
\ti32.sub
\tend_function
""",
        {"plain": 96, "aligned": 4096 + 48 + 96},
    ),
    "riscv64-unknown-linux-gnu": (
        """
deep:
\taddi\tsp, sp, -32
\tlui\ta0, 2
\tsub\tsp, sp, a0
\tcall\tdepends
\tcall\tleaf
\tret
leaf:
\taddi\tsp, sp, -16
\taddi\tsp, sp, 16
\tret
depends:
\tcsrr\ta0, vlenb
\tsub\tsp, sp, a0
\tret
""",
        {"leaf": 16, "depends": None, "deep": None},
    ),
}


@pytest.mark.parametrize("triple", TEXTS)
def test_depths_of_instructions(triple: str) -> None:
    asm, want = TEXTS[triple]
    assert stack_of(asm, triple).n_bytes == want


@pytest.mark.one_in(9)
@pytest.mark.parametrize("target", [t for t in target_names() if t.startswith(("cortex-m", "armv7")) or t == "rv64gc"])
def test_every_small_machine_has_a_bound(target: str, tmp_path: Path) -> None:
    """Where stacks are small; a vector's length that only the CPU knows leaves none."""
    for optimize in ("size", 2):
        made = tw.export(DIGITS, tmp_path, target=target, fix_dims={"batch": 1}, optimize=optimize)
        found = re.search(r"stack: at most (\d+) bytes", made.header.read_text())
        assert found and int(found[1]) < 8192
        assert f"DIGITS_STACK_BYTES {found[1]}" in made.header.read_text()
        assert not {n for n in json.loads(made.record.read_text())["needed_symbols"] if re.fullmatch(r"r\d+|lr", n)}


def test_a_register_that_served_for_something_else() -> None:
    """A frame that is left by its frame pointer: what r4 was shifted by in between is no depth."""
    lines = ["push.w {r4, r7, lr}", "add r7, sp, #4", "sub sp, #152", "mov r4, sp", "bfc r4, #0, #6", "mov sp, r4",
             "lsrs r4, r4, #31", "sub.w r4, r7, #4", "mov sp, r4", "pop.w {r4, r7, pc}"]  # fmt: skip
    text = "f:\n" + "".join(f"\t{x.replace(' ', chr(9), 1)}\n" for x in lines)
    assert stack_of(text, "thumbv7em-none-eabihf").n_bytes == {"f": 12 + 152 + 56}


@pytest.mark.parametrize(
    ("lowered", "left"),
    [("sub x9, sp, #64; addvl x9, x9, #-3; and sp, x9, #0xffffffffffffffc0", "mov sp, x29"),
     ("addvl x9, sp, #-3; sub sp, x9, #112", "add sp, sp, #112; addvl sp, sp, #3"),
     ("sub sp, sp, #112; addvl sp, sp, #-2; addpl sp, sp, #-8", "addvl sp, x29, #0")],
)  # fmt: skip
def test_vectors_of_sve_count_as_the_longest(lowered: str, left: str) -> None:
    """On the stack pointer, and on a copy of it that becomes the stack pointer."""
    lines = ["stp x29, x30, [sp, #-16]!", "mov x29, sp", *lowered.split("; "), "bl leaf", *left.split("; "),
             "ldp x29, x30, [sp], #16", "ret"]  # fmt: skip
    text = "f:\n" + "".join(f"\t{x.replace(' ', chr(9), 1)}\n" for x in lines) + "leaf:\n\tret\n"
    assert stack_of(text, "aarch64-unknown-linux-gnu").n_bytes == {"f": 16 + 112 + 3 * 256, "leaf": 0}


def test_foreign_functions_and_recursion() -> None:
    found = stack_of("f:\n\tcallq\tg@PLT\n\tcallq\tf\n\tretq\n", "x86_64-unknown-linux-gnu")
    assert found.n_bytes == {"f": None} and found.foreign == {"g"}


def wide_convolution() -> Graph:
    """Winograd's form of so many channels that its tiles take 15 KiB for each thread, or hundreds on AVX-512."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (1, 160, 14, 14)))
    return Graph("wide", b.pool, (x,), (Net(b).conv(x, 160),), ("y",))


@pytest.mark.one_in(2)
@programs.needs_cc
@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_with_a_small_stack_runs_kernels_with_large_scratch(threads: int, tmp_path: Path) -> None:
    """As threads of musl, Go and macOS are; every task is run by the caller's thread or one as small."""
    graph = wide_convolution()
    made = tw.export(graph, tmp_path, name="m", threads=threads)
    (stack,) = map(int, re.findall(r"#define M_STACK_BYTES (\d+)", made.header.read_text()))
    memory = json.loads(made.record.read_text())["memory"]
    assert stack < 16 << 10 and memory["scratch_bytes"] > 8 << 10
    program = tmp_path / "small.c"
    program.write_text("""
#include "m.h"
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static char data[160 * 14 * 14 * 4], results[160 * 14 * 14 * 4];
static void *call(void *model) {
  const void *in[1] = {data};
  void *out[1] = {results};
  return m_run(model, NULL, in, out) ? model : NULL;
}
int main(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  m_model *m;
  void *failed;
  size_t bytes = ((size_t)sysconf(_SC_THREAD_STACK_MIN) + M_STACK_BYTES + 16384) & ~(size_t)4095;
  if (fread(data, 1, sizeof data, stdin) != sizeof data || m_create(&m, NULL, M_WORKSPACE_BYTES, NULL, 0)) return 1;
  if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, bytes)) return 2;
  if (pthread_create(&thread, &attributes, call, m) || pthread_join(thread, &failed) || failed) return 3;
  return fwrite(results, 1, sizeof results, stdout) != sizeof results;
}
""")
    flags = [f"-I{tmp_path}", "-D_GNU_SOURCE", *programs.STRICT]
    programs.link([*flags, str(program), str(made.object)], tmp_path / "small")
    x = small_models.numbers(1, 160, 14, 14)
    small = ["sh", "-c", 'ulimit -s 256 && exec "$0"', str(tmp_path / "small")]  # the pool's threads have as much
    ran = subprocess.run(small, input=x.tobytes(), capture_output=True, check=True, timeout=60)
    assert ran.stdout == tw.compile(graph, threads=1, cache=False)(x).tobytes()


@pytest.mark.one_in(6)
@programs.needs_cc
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("graph", [small_models.convnet, small_models.language_model])
def test_a_program_stays_within_it(graph: object, threads: int, tmp_path: Path) -> None:
    """The stack below a call is painted; afterwards only as much of it is touched as the header says.

    It is not much less either: with one thread no foreign function is called, and every kernel runs.
    """
    made = tw.export(graph(), tmp_path, name="m", threads=threads)  # type: ignore[operator]
    header = made.header.read_text()
    (promised,) = map(int, re.findall(r"#define M_STACK_BYTES (\d+)", header))
    program = tmp_path / "painted.c"
    program.write_text("""
#include "m.h"
#include <stdio.h>
#include <stdlib.h>
enum { OWN = 256, WINDOW = 2 << 20 };
static __attribute__((noinline)) long deepest(m_model *m, int64_t *dims, const void **in, void **out) {
  volatile unsigned char *top = __builtin_frame_address(0);
  for (long k = WINDOW; k > OWN; k--) top[-k] = 0xA5;
  if (m_run(m, dims, in, out)) exit(2);
  long k = WINDOW;
  while (k > OWN && top[-k] == 0xA5) k--;
  return k;
}
int main(void) {
  int64_t dims[8] = {2, 5, 1, 1, 1, 1, 1, 1}, bytes;
  m_model *m;
  static char data[1 << 20], results[1 << 20];
  const void *in[1] = {data};
  void *out[1] = {results};
  if (m_workspace(dims, &bytes) || m_create(&m, NULL, bytes, NULL, 0) || m_run(m, dims, in, out)) return 1;
  printf("%ld", deepest(m, dims, in, out));
  return 0;
}
""")
    programs.link([f"-I{tmp_path}", *programs.STRICT, str(program), str(made.object)], tmp_path / "painted")
    ran = subprocess.run([tmp_path / "painted"], capture_output=True, text=True, check=True, timeout=60)
    used = int(ran.stdout)
    assert used <= promised + (256 if threads == 1 else 2048)
    assert used > 0.8 * promised or threads > 1
