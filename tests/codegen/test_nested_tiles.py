"""Products with codes on matrix registers: instructions in software beside NumPy, and what is packed for them."""

import numpy as np
import pytest

from codegen.test_tiles import AMX, PLAIN, InSoftware, uses_tiles
from test_coded import BOOK, computation, matrix
from tilewright import ops
from tilewright.choose.default import RULE_BROKE, schedule_with_steps
from tilewright.core.diag import TilewrightError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.graph.forms.coded import CodedProducts
from tilewright.ops import coded
from tilewright.tile.pack import packed_array
from tilewright.tile.verify import verify

DEPTH, WORDS = 128, 128


def scheduled(rows, bits, levels=(), *, split_rows=True, target=AMX):
    made, constants = computation(rows, bits, levels, n_words=WORDS, split_rows=split_rows)
    return schedule_with_steps(made, target, constants).kernel


def constants_of(bits, seed=0):
    words, scales, zeros = matrix(bits, DEPTH, WORDS, seed)
    return {"words": words, "scales": scales.astype(np.float32), "zeros": zeros}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rows", [2, 16, 33, 64])
@pytest.mark.parametrize(("bits", "levels"), [(4, ()), (8, ()), (4, BOOK)])
def test_rows_in_two_parts_by_codes(bits, levels, rows):
    kernel = scheduled(rows, bits, levels)
    verify(kernel)
    assert uses_tiles(kernel) and not [x for x in kernel.notes if RULE_BROKE in x]
    constants = constants_of(bits)
    x = np.random.default_rng(rows).standard_normal((rows, DEPTH)).astype(np.float32)
    out = np.zeros((rows, coded.WORD_BITS // bits, WORDS), np.float32)
    known = {"x": x, "out": out} | {p.param.name: packed_array(p, constants[p.source.name]) for p in kernel.packed}
    InSoftware(kernel)(*[known.get(p.name, np.zeros(p.shape, p.dtype.numpy)) for p in kernel.params])
    wide = coded.matrix_of(*constants.values(), bits, levels).astype(np.float64)
    bound = 2.0**-16 * np.tensordot(np.abs(x), np.abs(wide), 1)
    assert (np.abs(out - np.tensordot(x.astype(np.float64), wide, 1)) <= bound).all()


@pytest.mark.parametrize("bits", coded.BITS)
def test_vectors_and_matrix_registers_read_the_same_bytes(bits):
    constants = constants_of(bits)
    kernels = scheduled(1, bits, split_rows=False), scheduled(64, bits)
    packed = [{p.source.name: packed_array(p, constants[p.source.name]).tobytes() for p in k.packed} for k in kernels]
    assert packed[0]["words"] == packed[1]["words"]
    assert packed[0]["scales"] == packed[1]["scales"]


def graph(rows, depth, columns, bits):
    n_words = columns * bits // coded.WORD_BITS
    pool = Pool()
    b, x = Builder(pool), pool.input("x", TensorType(f32, (rows, depth)))
    y = b(ops.coded_matmul, x, *map(b.const, matrix(bits, depth, n_words)), bits=bits)
    return Graph("coded", pool, (x,), (y,), ("y",))


@pytest.mark.parametrize("bits", coded.BITS)
def test_rows_are_split_where_registers_take_fewer_cycles(bits):
    def is_split(rows, depth=256, columns=512, target=AMX):
        done = CodedProducts.on(target).run(graph(rows, depth, columns, bits))
        return done.outputs[0].attrs["split_rows"]

    assert is_split(64) and is_split(512)
    assert not is_split(1), "a register takes as long for one row as for sixteen"
    assert not is_split(64, target=PLAIN)
    assert not is_split(64, columns=528), "words that fill no block"
    assert not is_split(64, depth=1 << 15), "what is decoded of a block leaves the second-level cache"


def test_groups_without_pairs_are_refused():
    with pytest.raises(TilewrightError, match="no whole pairs"):
        pool = Pool()
        b, x = Builder(pool), pool.input("x", TensorType(f32, (2, 6)))
        words, scales, zeros = np.zeros((6, 4), np.int16), np.ones((2, 2, 4), np.float32), np.zeros((1, 1, 1), np.uint8)
        b(ops.coded_matmul, x, *map(b.const, (words, scales, zeros)), bits=8, split_rows=True)
