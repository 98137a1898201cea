"""Schedules in the language: they never change what a kernel computes, and say what forbids a step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import lang as tl
from tilewright.core.expr import substitute
from tilewright.tile.interp import run

RNG = np.random.default_rng(7)


@tw.kernel
def blur(picture: tl.i64("h", "w")):
    h, w = picture.shape
    across = tl.compute((h, w - 2), lambda y, x: picture[y, x] + picture[y, x + 1] + picture[y, x + 2])
    return tl.compute((h - 2, w - 2), lambda y, x: across[y, x] + across[y + 1, x] + across[y + 2, x])


@tw.kernel
def product(a: tl.i64("m", "k"), b: tl.i64("k", "n")):
    (m, k), n = a.shape, b.shape[1]
    return tl.compute((m, n), lambda i, j: tl.sum(lambda p: a[i, p] * b[p, j], k))


@tw.kernel
def sweep(x: tl.i64("n", "n")):
    """A recurrence along both axes."""
    n = x.shape[0]
    y = x.copy()
    for i in tl.loop(1, n):
        for j in tl.loop(n - 1):
            y[i, j] = y[i - 1, j + 1] + x[i, j]
    return y


@tw.kernel
def eliminated(x: tl.i64("n", "n")):
    """Loops whose extents depend on loops, around several statements."""
    n = x.shape[0]
    y = x.copy()
    for i in tl.loop(n):
        for j in tl.loop(i):
            for k in tl.loop(j):
                y[i, j] -= y[i, k] * y[k, j]
            y[i, j] = y[i, j] - y[j, j]
    return y


@tw.kernel
def counted(x: tl.u8("h", "w")):
    h, w = x.shape
    counts = tl.zeros(256, tl.i64)
    for y, x_ in tl.grid(h, w):
        counts[x[y, x_]] += 1
    return counts


KERNELS = (blur, product, sweep, eliminated, counted)
SIZES = {"h": 7, "w": 9, "m": 5, "n": 6, "k": 4}

# --- never another result -------------------------------------------------------------------------------------------


def ran(schedule):
    """What the loops as they stand compute, on small numbers."""
    rng = np.random.default_rng(3)
    kernel, c = schedule.loop_nest, schedule.traced.computation
    arrays = {}
    for b in (*c.inputs, *c.outputs):
        shape = [substitute(d, {s: SIZES[s.name] for s in kernel.sizes}) for d in b.shape]
        arrays[b.name] = (rng.integers(0, 9, shape) if b in c.inputs else np.zeros(shape)).astype(b.dtype.numpy)
    made = run(kernel, arrays, {s.name: SIZES[s.name] for s in kernel.sizes})
    return [made[b.name] for b in c.outputs]


def steps(draw, schedule):
    """One step, which may be legal or not."""
    loops = schedule.loops()
    some = st.sampled_from(loops)
    kind = draw(st.sampled_from(
        ("split", "divide", "reorder", "fuse", "merge", "kind", "compute_at", "rfactor", "cut", "alternate",
         "accumulate")
    ))  # fmt: skip
    match kind:
        case "split" | "divide" | "cut":
            return kind, draw(some), draw(st.integers(1, 4))
        case "reorder":
            tensor = draw(st.sampled_from(TENSORS[schedule.kernel]))
            return kind, *draw(st.permutations(schedule.loops(tensor, draw(st.integers(0, 1)))))
        case "kind":
            return kind, draw(some), draw(st.sampled_from(("vector", "unroll", "parallel", "step")))
        case "compute_at":
            tensor = draw(st.sampled_from(TENSORS[schedule.kernel]))
            return kind, tensor, draw(some), draw(st.sampled_from(("local", "reg", "global")))
        case "rfactor":
            return kind, draw(some)
        case "accumulate":
            return kind, draw(st.sampled_from(TENSORS[schedule.kernel]))
    return kind, draw(some), draw(some)


TENSORS = {k: [b.name for b in (*c.outputs, *c.temps)] for k in KERNELS if (c := k.traced().computation)}


@given(st.sampled_from(KERNELS), st.data())
@settings(max_examples=60)
def test_no_schedule_changes_a_result(kernel, data):
    schedule = tw.schedule(kernel)
    expected = ran(schedule)
    n_legal = 0
    for _ in range(8):
        if not schedule.loops():
            break
        try:
            schedule.step(*steps(data.draw, schedule))
            n_legal += 1
        except tw.CompileError:
            continue
    for made, before in zip(ran(schedule), expected, strict=True):
        np.testing.assert_array_equal(made, before, err_msg=schedule.steps)


# --- the pleasant face ----------------------------------------------------------------------------------------------


def blurred(x):
    across = x[:, :-2] + x[:, 1:-1] + x[:, 2:]
    return across[:-2] + across[1:-1] + across[2:]


def test_steps_follow_each_other():
    s = tw.schedule(blur).tile("y_1", "x_1", 8, 32).vectorize("x_1_i").compute_at("across", "x_1_o").parallel("y_1_o")
    picture = RNG.integers(0, 99, (30, 70))
    np.testing.assert_array_equal(s.compile()(picture), blurred(picture))
    assert s.loops("across")[:2] == ("y_1_o", "x_1_o")
    assert s.steps.splitlines()[-1] == "kind(y_1_o, parallel)"


def test_a_step_says_what_it_made_and_changed():
    s = tw.schedule(product)
    assert s.tile("i_1", "j_1", 4, 8).made == ("i_1_o", "j_1_o", "i_1_i", "j_1_i")
    assert "+for i_1_o" in s.changes() and "-for i_1[" in s.changes()


def test_auto_begins_with_the_rules_schedule():
    a, b = RNG.integers(0, 9, (17, 9)), RNG.integers(0, 9, (9, 33))
    s = tw.schedule(product).auto()
    assert s.steps
    np.testing.assert_array_equal(s.compile()(a, b), a @ b)
    with pytest.raises(tw.CompileError, match="there are steps already"):
        s.auto()


def test_a_schedule_of_several_results_and_of_updates():
    pictures = RNG.integers(0, 255, (20, 30)).astype(np.uint8)
    s = tw.schedule(counted).split(tw.schedule(counted).loops("counts")[0], 16)
    np.testing.assert_array_equal(s.compile()(pictures), np.bincount(pictures.ravel(), minlength=256))


def test_a_scheduled_kernel_is_another_op():
    """Of one name and function: caches must not take one for the other."""
    one, other = tw.schedule(blur).compile(), tw.schedule(blur).tile("y_1", "x_1", 4, 4).compile()
    names = {next(n.op.name for n in k.graph().nodes() if n.op.kernel) for k in (blur, one, other)}
    assert len(names) == 3


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_refused_step_names_the_line_the_step_and_the_dependence():
    pytest.importorskip("islpy")
    s = tw.schedule(sweep)
    outer, inner = s.loops("y", 1)
    with pytest.raises(tw.CompileError, match=r"test_schedules\.py") as refused:
        s.reorder(inner, outer)
    text = str(refused.value)
    assert f"reorder({inner}, {outer})" in text and "iterations share elements of y" in text
    assert f"the iteration ({outer} = " in text
    why = s.why_not(inner, outer)
    assert why is not None and why.buffer.name == "y"
    assert s.why_not(outer, inner) is None
    with pytest.raises(tw.CompileError, match="at one time"):
        s.parallel(outer)


def test_names_that_are_not_there():
    s = tw.schedule(blur)
    with pytest.raises(tw.CompileError, match="loops here: y, x, y_1, x_1"):
        s.unroll("z")
    with pytest.raises(tw.CompileError, match="loops here: y, x, y_1, x_1"):
        s.reorder("x", "z")
    with pytest.raises(tw.CompileError, match=r"x_1 is not in the perfect nest of y\n *remedy: its loops: y, x"):
        s.reorder("x_1", "y")
    with pytest.raises(tw.CompileError, match="tensors: picture"):
        s.loops("z")
    with pytest.raises(tw.CompileError, match="no such primitive"):
        s.step("tickle", "y")
