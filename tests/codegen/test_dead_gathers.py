"""Gathers whose results nothing needs once LLVM has folded: they must not end the process."""

import pytest

from tilewright import ops
from tilewright.build import driver
from tilewright.build.options import Clock, Options
from tilewright.codegen.cpu.llvm import compile_text
from tilewright.codegen.errors import CodegenError
from tilewright.core.graph import Graph, Pool
from tilewright.core.types import TensorType, f16, u16
from tilewright.target.target import Target, named_targets

HELIUM = "cortex-m55"
LOST = """
declare <4 x i32> @llvm.masked.gather.v4i32.v4p0(<4 x ptr>, <4 x i1>, <4 x i32>)
define void @f(ptr %p) {
  %a = getelementptr i32, ptr %p, <4 x i32> <i32 0, i32 3, i32 6, i32 9>
  %x = call <4 x i32> @llvm.masked.gather.v4i32.v4p0(<4 x ptr> align 4 %a, <4 x i1> splat (i1 1), <4 x i32> zeroinitializer)
  ret void
}"""  # noqa: E501


def test_a_slope_that_no_unsigned_number_has() -> None:
    """``x < 0`` is false, and so a gather of slopes is dead beside that of ``x``."""
    pool = Pool()
    x, slope = pool.input("x", TensorType(u16, (3, 1))), pool.input("slope", TensorType(f16, (4,)))
    (cast,) = pool.results(pool.add(ops.cast, (slope,), {"dtype": u16}))
    graph = Graph("slopes", pool, (x, slope), pool.results(pool.add(ops.prelu, (x, cast), {})), ("y",))
    driver.build(graph, Options(HELIUM), Clock())


def test_what_may_abort_is_refused() -> None:
    with pytest.raises(CodegenError, match="LLVM may abort on a gather that is dead: %x = "):
        compile_text(LOST, Target.parse(HELIUM))
    kept = LOST.replace("  ret", "  call void (...) @llvm.fake.use(<4 x i32> %x)\n  ret")
    for target in named_targets():
        compile_text(kept if target.loses_gathers else LOST, target)
