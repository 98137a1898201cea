"""Chains of nodes that cut, join and stretch along sizes that other nodes compute, beside ONNX Runtime at many sizes.

Where ONNX Runtime has an answer with elements, ours is the same. Where it has none, a call of ours is refused, but for
an index out of range, which is kept in range (``docs/promises.md``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright as tw
from frontend.onnx_build import info, model, node
from tilewright.core.diag import ImportFailed
from tilewright.runtime.errors import ExecutionError, InputError, TilewrightError

FIRST, LAST = -(2**31), 2**31 - 1
OUT_OF_RANGE = "indices element out of data bounds"


class Chain:
    """Nodes one after another on a vector; ``last`` is what the next one takes."""

    def __init__(self, choose: random.Random) -> None:
        self.choose, self.last = choose, "x"
        self.nodes, self.constants = list[onnx.NodeProto](), dict[str, np.ndarray]()
        for _ in range(choose.randint(1, 5)):
            choose.choice(STEPS)(self)

    def constant(self, *values: int) -> str:
        self.constants[name := f"k{len(self.constants)}"] = np.array(values)
        return name

    def add(self, op: str, *operands: str, **attributes: int) -> str:
        self.nodes.append(node(op, list(operands), [name := f"v{len(self.nodes)}"], **attributes))
        return name

    def size(self) -> str:
        return self.add("Gather", self.add("Shape", self.last), self.constant(0))

    def model(self) -> onnx.ModelProto:
        return model(self.nodes, [info("x", ["n"])], [info(self.last, None)], self.constants)

    # --- steps ---

    def cut(self) -> None:
        choose = self.choose
        step = choose.choice([1, 1, 2, 3, -1, -2])
        stop = choose.choice([choose.randint(-12, 12), LAST if step > 0 else FIRST])
        bounds = choose.randint(-12, 12), stop, 0, step
        self.last = self.add("Slice", self.last, *(self.constant(b) for b in bounds))

    def cut_by_size(self) -> None:
        choose = self.choose
        stop = self.add(choose.choice(["Sub", "Add"]), self.size(), self.constant(choose.randint(0, 6)))
        start = self.add("Sub", stop, self.constant(choose.randint(0, 10)))
        early, late = self.constant(choose.randint(0, 3)), self.constant(LAST)
        first, second = choose.choice([(start, stop), (early, start), (start, late)])
        self.last = self.add("Slice", self.last, first, second, self.constant(0))

    def halve(self) -> None:
        part = self.add("Div", self.size(), self.constant(self.choose.choice([2, 3])))
        start, stop = self.choose.choice([(self.constant(0), part), (part, self.constant(LAST))])
        self.last = self.add("Slice", self.last, start, stop, self.constant(0))

    def pick(self) -> None:
        places = [self.choose.randint(-4, 4) for _ in range(self.choose.randint(1, 3))]
        self.last = self.add("Gather", self.last, self.constant(*places), axis=0)

    def pick_by_size(self) -> None:
        place = self.add("Sub", self.size(), self.constant(self.choose.randint(1, 3)))
        self.last = self.add("Gather", self.last, place, axis=0)

    def sum_rows(self) -> None:
        rows = self.add("Reshape", self.last, self.constant(-1, self.choose.choice([1, 2, 3, 4])))
        self.last = self.add("ReduceSum", rows, self.constant(self.choose.choice([0, 1])), keepdims=0)

    def pairs(self) -> None:
        two = self.constant(2)
        shape = self.add("Concat", self.add("Div", self.size(), two), two, axis=0)
        self.last = self.add("ReduceMax", self.add("Reshape", self.last, shape), self.constant(1), keepdims=0)

    def join(self) -> None:
        self.last = self.add("Concat", self.last, self.choose.choice([self.last, "x"]), axis=0)

    def stretch(self) -> None:
        shape = self.add("Concat", self.constant(self.choose.randint(1, 2)), self.size(), axis=0)
        self.last = self.add("Reshape", self.add("Expand", self.last, shape), self.constant(-1))


STEPS: list[Callable[[Chain], None]] = [
    Chain.cut, Chain.cut, Chain.cut_by_size, Chain.halve, Chain.pick, Chain.pick_by_size, Chain.sum_rows, Chain.pairs,
    Chain.join, Chain.stretch,
]  # fmt: skip


def check(m: onnx.ModelProto, sizes: Sequence[int]) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # its own shape inference refuses what no size makes right
        return
    try:
        compiled = tw.compile(m, threads=1, cache=False)
    except ImportFailed:
        compiled = None
    for n in sizes:
        x = np.arange(n, dtype=np.float32) + 1
        try:
            (wanted,) = session.run(None, {"x": x})
        except Exception as error:  # a refusal; ONNX Runtime has several kinds
            wanted = str(error)
        got: object = None
        if compiled is not None:
            try:
                got = compiled(x)
            except TilewrightError as error:
                got = error
        case = f"{n}: {wanted} and {got}"
        if isinstance(wanted, str):
            assert not isinstance(got, np.ndarray) or OUT_OF_RANGE in wanted, case
        elif not isinstance(got, InputError | ExecutionError) or wanted.size:
            np.testing.assert_array_equal(got, wanted, err_msg=case, strict=True)


def check_chain(seed: int) -> None:
    choose = random.Random(seed)
    m = Chain(choose).model()
    check(m, sorted(choose.sample(range(1, 41), 6)))


@pytest.mark.parametrize("seed", range(8))
def test_random_chains(seed: int) -> None:
    check_chain(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_300_random_chains() -> None:
    for seed in range(8, 308):
        check_chain(seed)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("bounds", [(0, -9), (-9, 0), (-30, -9), (-3, 2)])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_bounds_that_change_their_sign(bounds: tuple[int, int], step: int) -> None:
    """``x[n + a : n + b : step]``: a bound counts from the end where the size makes it negative."""
    chain = Chain(random.Random(0))
    chain.nodes, chain.constants, chain.last = [], {}, "x"
    start, stop = (chain.add("Add", chain.size(), chain.constant(b)) for b in bounds)
    chain.last = chain.add("Slice", "x", start, stop, chain.constant(0), chain.constant(step))
    check(chain.model(), range(1, 41))
