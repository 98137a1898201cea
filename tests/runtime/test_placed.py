"""Our own linker of objects beside LLVM's: the same results, nothing of what it does not know, and no memory left."""

import ctypes
import random
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.tiny import object_of, scale_parts
from test_system import run_python
from tilewright.runtime import artifact, cpuid, host
from tilewright.runtime.code_pages import PAGE, CodePages, is_supported
from tilewright.runtime.cpu.llvm import link_by_llvm
from tilewright.runtime.cpu.placed import place
from tilewright.runtime.errors import ResourceError

# Constants of several sizes, strings, a table of functions, zeros, data with addresses, a function of libc by a call
# and by its address, data outside, a weak function that another object replaces, a jump table.
ONE = r"""
@zeros = internal global [40 x i64] zeroinitializer, align 64
@count = global i64 5
@table = internal constant [3 x ptr] [ptr @one, ptr @other, ptr @abs]
@text = private unnamed_addr constant [6 x i8] c"abcde\00"
@pair = internal global { ptr, ptr } { ptr getelementptr (i8, ptr @text, i64 2), ptr @count }
@outside = external global i64
declare i64 @strlen(ptr)
declare i64 @given(i64)
declare i32 @abs(i32)
declare i64 @other(i64)
define weak i64 @replaced() { ret i64 1 }
define i64 @one(i64 %x) { ret i64 %x }
define i64 @choose(i64 %x) {
  switch i64 %x, label %no [
    i64 0, label %a
    i64 1, label %b
    i64 2, label %c
    i64 3, label %d
    i64 4, label %a
  ]
a:
  %r = call i64 @replaced()
  ret i64 %r
b:
  %n = load i64, ptr @count
  %n1 = add i64 %n, 1
  store i64 %n1, ptr @count
  ret i64 %n1
c:
  %at = load ptr, ptr @pair
  %len = call i64 @strlen(ptr %at)
  ret i64 %len
d:
  %p = getelementptr [3 x ptr], ptr @table, i64 0, i64 %x
  %q = getelementptr ptr, ptr %p, i64 -2
  %f = load ptr, ptr %q
  %v = call i64 %f(i64 %x)
  ret i64 %v
no:
  %z = getelementptr [40 x i64], ptr @zeros, i64 0, i64 %x
  %old = load i64, ptr %z
  %new = add i64 %old, %x
  store i64 %new, ptr %z
  %o = load i64, ptr @outside
  %g = call i64 @given(i64 %new)
  %sum = add i64 %g, %o
  ret i64 %sum
}
define double @scaled(double %x) {
  %y = fmul double %x, 0x3FB999999999999A
  %t = fptrunc double %y to float
  %u = fadd float %t, 0x3FD5555560000000
  %w = fpext float %u to double
  ret double %w
}
"""
TWO = """
@count = external global i64
define i64 @replaced() { ret i64 20 }
define i64 @other(i64 %x) {
  %n = load i64, ptr @count
  %s = add i64 %n, %x
  ret i64 %s
}
"""
EXPORTS = ("choose", "scaled")

GIVEN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: 3 * x)
OUTSIDE = ctypes.c_int64(1000)


def imports() -> dict[str, int]:
    given = ctypes.cast(GIVEN, ctypes.c_void_p).value
    assert given is not None
    return {"given": given, "outside": ctypes.addressof(OUTSIDE)}


def objects() -> list[bytes]:
    return [object_of(ONE), object_of(TWO)]


def placed(data: Sequence[bytes], exports: Sequence[str], given: dict[str, int]) -> Any:
    """What our linker makes, on machines that it is for; elsewhere what LLVM's does."""
    found = place(data, exports, given)
    assert (found is not None) == is_supported()
    return found or link_by_llvm(data, exports, given)


def answers(linked: Any) -> list[float]:
    choose = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(linked["choose"])
    scaled = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(linked["scaled"])
    return [*(choose(x) for x in (0, 1, 1, 2, 3, 4, 7, 7, 39)), *(scaled(x) for x in (0.0, -3.5, 1e6))]


def test_code_answers_as_when_llvm_links_it() -> None:
    ours, theirs = placed(objects(), EXPORTS, imports()), link_by_llvm(objects(), EXPORTS, imports())
    assert answers(ours) == answers(theirs)
    assert answers(ours)[:8] == [20, 8, 9, 3, 12, 20, 1063, 1084]


def test_order_of_objects_makes_no_difference() -> None:
    """The weak function gives way also where it comes last."""
    assert answers(placed(objects()[::-1], EXPORTS, imports())) == answers(placed(objects(), EXPORTS, imports()))


@pytest.mark.parametrize(
    "text",
    [
        "@x = thread_local global i64 1\ndefine ptr @f() { ret ptr @x }",
        "declare void @nobody_has_this()\ndefine void @f() { call void @nobody_has_this() ret void }",
        "@x = common global i64 0\ndefine ptr @f() { ret ptr @x }",
        "@f = ifunc void (), ptr @chosen\ndefine internal ptr @chosen() { ret ptr @chosen }",
        "define void @given() { ret void }\ndefine void @f() { ret void }",
    ],
)
def test_what_it_does_not_know_is_left_to_llvm(text: str) -> None:
    assert place([object_of(text)], ("f",), imports()) is None


def test_names_defined_twice_or_never_are_left_to_llvm() -> None:
    one, two = objects()
    assert place([one, two, two], EXPORTS, imports()) is None
    assert place([one], EXPORTS, imports()) is None
    assert place([one, two], (*EXPORTS, "nothing"), imports()) is None


def test_damaged_objects_raise_nothing_and_reach_only_their_own_memory() -> None:
    """Objects are checked by their digests before; here whatever happens is None or code that nobody calls."""
    rng = random.Random(18)
    data = objects()
    for _ in range(500):
        broken = bytearray(rng.choice(data))
        if rng.random() < 0.3:
            del broken[rng.randrange(len(broken)) :]
        for _ in range(rng.randrange(1, 4)):
            if broken:
                broken[rng.randrange(len(broken))] = rng.randrange(256)
        place([bytes(broken)], (), imports())


def test_far_distances_are_left_to_llvm() -> None:
    """A distance that needs more than 32 bits."""
    data = bytearray(object_of("@x = internal global i64 1\ndefine ptr @f() { ret ptr @x }"))
    at = data.find(struct.pack("<q", -4))
    assert at > 0 or not is_supported()
    if at > 0:
        data[at : at + 8] = struct.pack("<q", 1 << 40)
    assert place([bytes(data)], ("f",), {}) is None


def pages_of(address: int) -> str:
    """The permissions of the map that holds an address; empty where nothing is mapped."""
    for line in Path("/proc/self/maps").read_text().split("\n"):
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line)
        if found and int(found[1], 16) <= address < int(found[2], 16):
            return found[3]
    return ""


def test_nothing_is_written_and_executed_and_memory_is_given_back() -> None:
    if not is_supported():
        return
    linked = place(objects(), (*EXPORTS, "count"), imports())
    assert linked is not None
    code, data = linked["choose"], linked["count"]
    assert (pages_of(code), pages_of(data)) == ("r-xp", "rw-p")
    kept = place(objects(), EXPORTS, imports())
    assert kept is not None
    kept_code = kept["choose"]
    kept.detach()
    before = len(Path("/proc/self/maps").read_text().split("\n"))
    del linked, kept
    assert pages_of(kept_code) == "r-xp"
    assert len(Path("/proc/self/maps").read_text().split("\n")) < before


def test_a_model_from_a_file_runs_without_llvm(tmp_path: Path) -> None:
    """With the pool, which calls the system and the interpreter; its object is in the cache after the first time."""
    path = tmp_path / "scale.tw"
    artifact.save(path, *scale_parts(10.0))
    script = """
        import sys
        import numpy as np
        from tilewright.runtime.models import load
        model = load(sys.argv[1], threads=2)
        for _ in range(3):
            assert model(np.ones((64, 4), np.float32)).tolist() == [[12.0] * 4] * 64
        print("llvmlite.binding" in sys.modules, "ml_dtypes" in sys.modules)
    """
    loaded = [run_python(script, path, TILEWRIGHT_CACHE=str(tmp_path)).strip() for _ in range(2)]
    assert loaded[1] == ("False False" if is_supported() else loaded[0])


def test_a_system_that_lets_no_written_code_run_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's linker ends the process there."""

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "memory for code can't be protected")

    monkeypatch.setattr(CodePages, "seal", refuse)
    if is_supported():
        with pytest.raises(ResourceError, match="can't be protected"):
            place(objects(), EXPORTS, imports())


def test_pages_are_refused_where_there_is_no_memory() -> None:
    if is_supported():
        with pytest.raises(OSError, match="memory for code"):
            CodePages(1 << 62)
        assert CodePages(PAGE).address % PAGE == 0


def test_the_cpu_says_the_same_again() -> None:
    assert cpuid.cpuid_text() == cpuid.cpuid_text()
    assert (cpuid.cpuid_text() is not None) == is_supported()


def test_facts_of_the_host_are_those_that_llvm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From LLVM, from the cache, and anew where the CPU is another, or another version of the compiler keeps others."""
    import llvmlite.binding as llvm

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    said = [host._said.__wrapped__() for _ in range(2)]
    assert said[0] == said[1]
    assert said[0][:3] == (llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "another")
    assert host._said.__wrapped__()[1] == (said[0][1] if is_supported() else "another")
    with monkeypatch.context() as patch:
        patch.setattr(host.HostFacts, "_fields", (*host.HostFacts._fields, "more"))
        assert host._said.__wrapped__()[1] == "another"
    monkeypatch.setattr(host, "cpuid_text", lambda: "another")
    assert host._said.__wrapped__()[1] == "another"
