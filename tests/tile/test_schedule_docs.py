"""The page of schedule primitives shows what they do: loops before and after, as the compiler prints them.

Run as a program, this file writes the page's part anew: ``python tests/tile/test_schedule_docs.py``.
"""

import inspect
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from tile.kernels import constants_of, elementwise, matmul, reduction, running_sum
from tile.test_hints import product_with
from tile.test_online import Case
from tile.test_ring import window
from tile.test_schedule import masked_rows, padded_taps, rows_twice, three_rows
from tilewright.core.compute import Axis, Binary, Buffer, Computation, Load, Serial, Stage, loop_symbol
from tilewright.core.types import f32
from tilewright.tile.ir import Kernel
from tilewright.tile.lower import lower
from tilewright.tile.schedule import PRIMITIVES, ScheduleBuilder
from tilewright.tile.schedule.book import read_step, signature
from tilewright.tile.text import kernel_text


def waves() -> Computation:
    """Steps of time over a line, in place."""
    x = Buffer("X", f32, (32,))
    t, i = (Axis(loop_symbol(name, n), n) for name, n in (("t", 6), ("i", 30)))
    value = Binary("add", Load(x, (i.sym,)), Load(x, (i.sym + 2,)))
    return Computation((), (x,), (Serial(t, (Serial(i, (Stage((x,), (), (i.sym + 1,), (value,)),)),)),))


PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
BEGIN = "<!-- from here on written by tests/tile/test_schedule_docs.py -->\n"

EXAMPLES: dict[str, tuple[Computation, str, tuple[str, ...]]] = {
    "split": (elementwise((10,)), "split(i0, 4)", ()),
    "reorder": (elementwise((3, 10)), "reorder(i1, i0)", ()),
    "kind": (elementwise((8,)), "kind(i0, vector)", ()),
    "merge": (reduction((3, 9), 1, "add"), "merge(i0, i0_1)", ()),
    "fuse": (elementwise((3, 4)), "fuse(i0, i1)", ()),
    "unit": (elementwise((1, 4)), "unit(i0)", ()),
    "fill": (elementwise((10,)), "fill(i0_i, 4)", ("split(i0, 4)",)),
    "pipeline": (
        rows_twice(), "pipeline(t, i0_1_o, 2)", ("split(i0_1, 4)", "compute_at(t, i0_1_o, shared)"),
    ),
    "resequence": (waves(), "resequence(t, fused, 0 1:2 8)", ()),
    "enclose": (reduction((9,), 0, "add"), "enclose(i0)", ()),
    "alternate": (elementwise((5, 7)), "alternate(i1, i0)", ()),
    "divide": (elementwise((10,)), "divide(i0, 4)", ()),
    "cut": (elementwise((10,)), "cut(i0, 4)", ()),
    "fork": (matmul(5, 6, 7), "fork(T, i0_2_t)", ("divide(i0_2, 2)",)),
    "cache": (elementwise((10,)), "cache(Z)", ()),
    "compute_at": (matmul(8, 6, 7), "compute_at(T, i0_2_o, local)", ("split(i0_2, 4)",)),
    "ring": (window(8), "ring(t, i0_2)", ()),
    "slide": (window(8, pad=0), "slide(i0, i0_1)", ("merge(i0_1, i0_2)",)),
    "place": (rows_twice(), "place(t, local)", ()),
    "fold": (rows_twice(), "fold(t, 0, i0_1_o)", ("split(i0_1, 4)", "compute_at(t, i0_1_o, global)")),
    "reuse": (three_rows(), "reuse(t, s)", ()),
    "align": (rows_twice(), "align(t, 4)", ()),
    "swizzle": (rows_twice(16, 32), "swizzle(t)", ("split(i0_1, 8)", "compute_at(t, i0_1_o, shared)")),
    "pitch": (rows_twice(), "pitch(t, 1, 9)", ()),
    "fetch": (elementwise((10,)), "fetch(X)", ()),
    "turn": (rows_twice(), "turn(t, 0)", ()),
    "accumulate": (
        matmul(4, 2, 7, False), "accumulate(C, k0)",
        ("reorder(k0, i0_1, i1_1)", "kind(i0_1, unroll)", "kind(i1_1, vector)"),
    ),
    "carry": (running_sum(6, 8), "carry(Y, t0)", ("kind(i0, vector)",)),
    "rfactor": (
        reduction((3, 32), 1, "add"), "rfactor(Y_c, i1, 1, 4)", ("cache(Y)", "compute_at(Y_c, Y_w0, reg)"),
    ),
    "spread": (
        matmul(4, 2, 32, False), "spread(C_c, C_w0_i_C_c1, k0, 16)",
        ("cache(C)", "split(C_w0, 2)", "kind(C_w0_i, unroll)", "kind(C_w1, unroll)", "compute_at(C_c, C_w0_o, reg)"),
    ),
    "tree": (
        reduction((3, 512), 1, "add"), "tree(Y_c, i1, 2, 4)",
        ("cache(Y)", "compute_at(Y_c, Y_w0, reg)", "kind(Y_w0, block)"),
    ),
    "online": (Case(40, 40, 16, 8, causal=True).computation(), "online(Y, 1, 16, 2)", ()),
    "online_fours": (
        Case(70, 70, 64, 64, causal=True).computation(), "online_fours(Y, 32, 1, 2)", ()
    ),
    "trim": (masked_rows(), "trim(i1_2, i0_4_o)", ("split(i0_4, 4)",)),
    "skip": (padded_taps(), "skip(k1)", ()),
    "pack": (matmul(3, 8, 5, False), "pack(B)", ("split(i1_1, 4)", "reorder(i1_1_o, i0_1, k0, i1_1_i)")),
    "stage": (
        matmul(5, 6, 7, False), "stage(B, k0_o)", ("split(k0, 3)", "reorder(k0_o, i0_1, i1_1, k0_i)"),
    ),
    "panels": (
        rows_twice(8, 6), "panels(t, 0, 4, 2)",
        ("split(i0, 4)", "split(i1, 2)", "split(i0_1, 4)", "split(i1_1, 2)"),
    ),
    "prefetch": (
        matmul(6, 8, 4, False), "prefetch(B_p, i1_1_o, k0, 4)",
        ("split(i1_1, 4)", "reorder(i1_1_o, i0_1, k0, i1_1_i)", "pack(B)"),
    ),
    "hint": (
        product_with(lambda r, i, j: r[i, j], 6, 8, 40), "hint(R, k0, 4)",
        ("reorder(k0, i0_1, i1_1)", "split(i0_2, 2)", "compute_at(T, i0_2_o, local)"),
    ),
    "stream": (matmul(4, 8, 40, False), "stream(B, k0, 2, 4)", ("reorder(k0, i0_1, i1_1)",)),
}  # fmt: skip
"""Of every primitive: a computation, the step to show, and the steps before it."""


def shown(kernel: Kernel, other: Kernel) -> str:
    """The lines of a kernel's places and nests that the other one does not have, and all that stands around them."""
    lines, others = (kernel_text(k).split("body\n", 1) for k in (kernel, other))
    places = [x.strip() for x in lines[0].split("\n") if x.strip() and x not in others[0].split("\n")]
    nests = [n for n in split_nests(lines[1]) if n not in split_nests(others[1])]
    return "\n".join([*places, *nests]) + "\n"


def split_nests(body: str) -> list[str]:
    """The outermost statements of a kernel's body, each with what is inside of it."""
    found: list[str] = []
    for line in body.rstrip("\n").split("\n"):
        if line.startswith("     ") and found:
            found[-1] += "\n" + line[4:]
        else:
            found.append(line[4:])
    return found


def section(name: str) -> str:
    computation, step, before = EXAMPLES[name]
    b = ScheduleBuilder(lower(computation, "k", constants_of(computation, "B")))
    for text in before:
        b.do(read_step(text).primitive, *read_step(text).args)
    old = b.kernel
    b.do(name, *read_step(step).args)
    what = inspect.cleandoc(PRIMITIVES[name].__doc__ or "")
    loops = f"```text\n{shown(old, b.kernel)}```\n\n`{step}`\n\n```text\n{shown(b.kernel, old)}```\n"
    return f"### `{signature(name)}`\n\n{what}\n\n{loops}"


def generated() -> str:
    return BEGIN + "\n" + "\n".join(section(name) for name in PRIMITIVES)


def test_every_primitive_is_shown_as_it_is() -> None:
    text = PAGE.read_text()
    assert text[text.index(BEGIN) :] == generated(), "out of date: python tests/tile/test_schedule_docs.py"


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN)] + generated())
