"""Chains of two contractions: one nest of row blocks, right for every size, and for any reductions between."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import SMALL, WIDE, ZERO, F, check_default
from tile.test_online import Case
from tilewright.choose.default import schedule
from tilewright.core.compute import Axis, Buffer, Computation, Const, Load, Reduction, Stage, Unary, axes_for, syms
from tilewright.core.expr import Sym, evaluate
from tilewright.tile.ir import For, Space

FEW = settings(max_examples=7)


def attention(batch, rows, keys, depth, width, scaled=True, softmax=True, is_merged=False):
    """``out[i, b, j] = sum_k w(sum_d q[b, i, d] k[b, k, d]) v[b, k, j] / l[b, i]``; ``is_merged``: k in one matrix."""
    q = Buffer("Q", F, (batch, rows, depth))
    k = Buffer("K", F, (keys, batch * depth) if is_merged else (batch, keys, depth))
    v, out = Buffer("V", F, (batch, keys, width)), Buffer("O", F, (rows, batch, width))
    s, t, e = (Buffer(n, F, (batch, rows, keys)) for n in ("s", "t", "e"))
    m, total = (Buffer(n, F, (batch, rows)) for n in ("m", "l"))
    o = Buffer("o", F, (batch, rows, width))
    stages = []

    def stage(buffer, value, over=None, op="add", init=ZERO):
        axes = axes_for(buffer.shape, f"{buffer.name}_")
        inner = axes_for((over,), f"{buffer.name}_r") if over is not None else ()
        reduction = Reduction(inner, op, (init,)) if over is not None else None
        stages.append(Stage((buffer,), axes, syms(axes), (value(*syms(axes), *syms(inner)),), reduction))

    def key(b, j, d):
        return Load(k, (j, depth * b + d) if is_merged else (b, j, d))

    stage(s, lambda b, i, j, d: Load(q, (b, i, d)) * key(b, j, d), depth)
    if scaled:
        stage(t, lambda b, i, j: Unary("abs", Load(s, (b, i, j))))
    strip = t if scaled else s
    stage(m, lambda b, i, j: Load(strip, (b, i, j)), keys, "max", Const(float("-inf"), F))
    weight = (lambda x: Unary("exp", x)) if softmax else (lambda x: Unary("abs", x))
    stage(e, lambda b, i, j: weight(Load(strip, (b, i, j)) - Load(m, (b, i))))
    stage(total, lambda b, i, j: Load(e, (b, i, j)), keys)
    stage(o, lambda b, i, j, x: Load(e, (b, i, x)) * Load(v, (b, x, j)), keys)
    axes = axes_for(out.shape)
    i, b, j = syms(axes)
    stages.append(Stage((out,), axes, (i, b, j), (Load(o, (b, i, j)) / (Load(total, (b, i)) + Const(2.0, F)),)))
    return Computation((q, k, v), (out,), tuple(stages), (s, *([t] if scaled else []), m, e, total, o))


def test_a_contraction_may_read_a_scalar_of_the_kernel_s_own():
    """A number without axes is no operand that lies along the rows."""
    a, b, total, out = Buffer("A", F, (9, 12)), Buffer("B", F, (12, 5)), Buffer("t", F, ()), Buffer("O", F, (9, 5))
    i, k, x, y, z = (Axis(Sym(n, 0, e - 1), e) for n, e in (("i", 9), ("k", 12), ("x", 9), ("y", 5), ("z", 12)))
    summed = Stage((total,), (), (), (Load(a, (i.sym, k.sym)),), Reduction((i, k), "add", (ZERO,)))
    value = Load(total, ()) * Load(a, (x.sym, z.sym)) * Load(b, (z.sym, y.sym))
    product = Stage((out,), (x, y), (x.sym, y.sym), (value,), Reduction((z,), "add", (ZERO,)))
    check_default(Computation((a, b), (out,), (summed, product), (total,)))


@given(
    batch=st.integers(1, 3), rows=st.integers(1, 40), keys=st.integers(2, 20), depth=st.integers(1, 5),
    width=st.integers(1, 9), scaled=st.booleans(), softmax=st.booleans(),
)  # fmt: skip
@FEW
def test_any_size(batch, rows, keys, depth, width, scaled, softmax):
    check_default(attention(batch, rows, keys, depth, width, scaled, softmax))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("keys", [33, 100])
def test_the_turned_operand_lies_in_panels(keys, is_merged):
    kernel = check_default(attention(3, 40, keys, 8, 16, is_merged=is_merged), machine=SMALL)
    (panels,) = [p.buffer for p in kernel.places if p.buffer.name.startswith("K_t")]
    assert len(panels.shape) > 3 and panels.shape[-2] == 8


@pytest.mark.parametrize(("rows", "space"), [(16, Space.LOCAL), (40, Space.GLOBAL)])
def test_keys_of_one_block_of_queries_are_turned_where_they_are_read(rows, space):
    """Blocks of queries share turned keys; one block reads them once, and they need not go to memory and back."""
    machine = dataclasses.replace(WIDE, l1_bytes=1 << 10, l2_bytes=4 << 10)
    kernel = check_default(attention(3, rows, 100, 16, 16), machine=machine)
    assert [p.space for p in kernel.places if p.buffer.name.startswith("K_t")] == [space]


FAR = dataclasses.replace(WIDE, l2_bytes=1024)
"""A second-level cache that a few keys fill."""


@given(rows=st.integers(1, 8), keys=st.integers(2, 60), depth=st.integers(1, 40), width=st.integers(1, 130))
@FEW
def test_a_few_queries_of_a_cache(rows, keys, depth, width):
    check_default(attention(2, rows, keys, depth, width), machine=FAR)


def test_a_few_queries_share_what_they_read():
    """Keys are read once for all queries, sums along their elements; values are read in whole rows."""
    kernel = check_default(attention(2, 4, 50, 32, 192), machine=FAR)
    assert not kernel.notes
    sums = [p.buffer.shape for p in kernel.places if p.space is Space.REG]
    assert any(len(shape) == 3 for shape in sums), "a vector of sums for each query and key of a tile"
    assert (4, 192) in [p.buffer.shape for p in kernel.places if p.space is Space.LOCAL], "sums of all columns"


def test_sums_that_the_first_cache_does_not_hold_stay_in_registers():
    """Each step of whole rows would read and write all of them: 50 queries of 4,096 keys took four times as long."""
    machine = dataclasses.replace(FAR, l1_bytes=4096)
    kernel = check_default(attention(2, 4, 50, 32, 192), machine=machine)
    assert (4, 192) not in [p.buffer.shape for p in kernel.places if p.space is Space.LOCAL]


@pytest.mark.parametrize(("heads", "in_whole_rows"), [(1, False), (2, True)])
def test_values_of_all_heads_together_are_what_a_cache_may_hold(heads, in_whole_rows):
    """A head's alone would stay, but comes from memory when others have passed since."""
    machine = dataclasses.replace(WIDE, l2_bytes=50_000)
    kernel = check_default(attention(heads, 4, 50, 32, 192), machine=machine)
    assert ((4, 192) in [p.buffer.shape for p in kernel.places if p.space is Space.LOCAL]) == in_whole_rows


@pytest.mark.one_in(3)
@pytest.mark.parametrize("machine", [SMALL, WIDE])
@pytest.mark.parametrize("rows", [16, 48, 50])
def test_a_block_of_rows_at_a_time(machine, rows):
    kernel = check_default(attention(2, rows, 33, 8, 16), machine=machine)
    assert not kernel.notes
    strips = [p for p in kernel.places if p.buffer.name in "te"]
    assert all(p.space is Space.LOCAL and p.buffer.shape[0] <= 32 for p in strips)


def executed(body, env):
    """How many times statements run."""
    total = 0
    for s in body:
        if isinstance(s, For):
            n = evaluate(s.loop.extent, env)
            if any(isinstance(x, For) for x in s.body):
                total += sum(executed(s.body, {**env, s.loop.sym: k}) for k in range(n))
            else:
                total += n * len(s.body)
        else:
            total += 1
    return total


def test_what_is_hidden_from_a_whole_block_of_rows_is_not_computed():
    """Of eight blocks the first computes an eighth of the scores, the last one all: 0.56 in the mean."""
    seen, causal = (schedule(Case(256, 256, 4, 16, causal=c).computation(), WIDE) for c in (False, True))
    assert executed(causal.body, {}) < 0.65 * executed(seen.body, {})
    check_default(Case(70, 70, 4, 16, causal=True).computation(), machine=WIDE)


def test_exponentials_take_the_place_of_the_scores_in_rows_that_begin_on_vectors():
    kernel = check_default(attention(2, 48, 33, 8, 16), machine=SMALL)
    strips = [p.buffer for p in kernel.places if p.space is Space.LOCAL and len(p.buffer.shape) > 1]
    assert [b.shape[1] for b in strips] == [36]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("known", ["", "N", "M"])
@pytest.mark.parametrize(("rows", "keys"), [(2, 2), (30, 7), (5, 40)])
def test_sizes_at_run_time(known, rows, keys):
    n, m = (size if name in known else Sym(name) for name, size in (("N", rows), ("M", keys)))
    assert not check_default(attention(2, n, m, 3, 5), sizes={"N": rows, "M": keys}).notes


def test_more_keys_than_scratch_holds_share_memory_from_block_to_block():
    kernel = schedule(attention(2, 40, 1 << 16, 2, 16), dataclasses.replace(SMALL, l2_bytes=64))
    strips = [p for p in kernel.places if p.buffer.name in "te"]
    assert not kernel.notes
    assert all(p.space is Space.GLOBAL and p.buffer.shape[1] <= 16 for p in strips)
