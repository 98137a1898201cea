"""An object for a newer CPU than that at hand says so, on AArch64, Armv7 and RISC-V too."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import tilewright as tw
from aot import programs
from aot.emulated.platforms import HERE, PLATFORMS, ZIG
from tilewright.target import aarch64, arm, riscv

DIGITS = programs.ROOT / "examples" / "digits" / "digits.onnx"
PROGRAM = r"""
#include "m.h"
unsigned char tw_request[1 << 12], tw_answer[1 << 12];
static _Alignas(64) unsigned char memory[1 << 21];
static float in[64], out[10];
int32_t tw_answer_all(int32_t n) {
  m_model *model = 0;
  const void *inputs[] = {in};
  void *outputs[] = {out};
  int64_t bytes = sizeof memory;
  tw_status a = m_workspace(0, &bytes), b = m_create(&model, memory, sizeof memory, 0, 1);
  tw_status c = model ? m_run(model, 0, inputs, outputs) : b;
  const char *text = a == b && b == c ? m_status_text(c) : "they differ";
  for (n = 0; text[n]; n++) tw_answer[n] = (unsigned char)text[n];
  return n;
}
void *memcpy(void *to, const void *from, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) ((volatile char *)to)[i] = ((const char *)from)[i];
  return to;
}
void *memset(void *to, int c, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) ((volatile char *)to)[i] = (char)c;
  return to;
}
"""
LACKS = "and needs instructions that this CPU lacks"
CASES = [
    ("aarch64-sve", "cortex-a53", f"the code is for aarch64-sve {LACKS}"),
    ("aarch64-sve", "max", "done"),
    ("aarch64-dotprod", "cortex-a53", f"the code is for aarch64-dotprod {LACKS}"),
    ("aarch64-dotprod", "neoverse-n1", "done"),
    ("aarch64-i8mm", "neoverse-n1", f"the code is for aarch64-i8mm {LACKS}"),
    ("aarch64", "cortex-a53", "done"),
    ("armv7", "cortex-a9", "done"),
    ("cortex-a7", "cortex-a8", f"the code is for cortex-a7 {LACKS}"),
    ("rv64gcv", "rv64,v=false", f"the code is for rv64gcv {LACKS}"),
    ("rv64gc", "rv64,v=false", "done"),
]


@pytest.mark.one_in(12)
@pytest.mark.emulation
@pytest.mark.parametrize(("target", "cpu", "expected"), CASES)
def test_an_older_cpu_refuses(target: str, cpu: str, expected: str, tmp_path: Path) -> None:
    """Once it ended in SIGILL."""
    platform = PLATFORMS["armv7" if target == "cortex-a7" else target]
    emulator = (platform.emulator[0], "-cpu", cpu, "PROGRAM")
    platform = replace(platform, emulator=emulator, since=0)
    if platform.missing():
        pytest.skip(platform.missing())
    made = tw.export(DIGITS, tmp_path, name="m", target=target, fix_dims={"batch": 1})
    (tmp_path / "main.c").write_text(PROGRAM)
    sources = [tmp_path / "main.c", HERE / "linux.c", made.object]
    command = [*ZIG, "cc", "-target", platform.triple, "-O1", "-g0", "-fno-builtin", "-fno-sanitize=all"]
    command += [*platform.flags, f"-I{tmp_path}", *map(str, sources), "-o", str(tmp_path / "program")]
    linked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert linked.returncode == 0, linked.stderr[-2000:]
    assert platform.run(tmp_path / "program", b"") == expected.encode()


def test_what_is_asked_for() -> None:
    assert aarch64.needs_of("generic", frozenset()) == aarch64.needs_of("cortex-a53", frozenset()) == {}
    assert aarch64.needs_of("generic", {"sve"}) == {"hwcap": 1 << 22}
    assert aarch64.needs_of("neoverse-n1", {"i8mm"}).keys() == {"hwcap", "hwcap2"}
    assert arm.needs_of("generic", {"neon"}) == {"hwcap": 1 << 12}
    assert riscv.needs_of("generic-rv64", {"m", "v"}) == {"vectors": 1} and not riscv.needs_of("generic-rv64", {"m"})
