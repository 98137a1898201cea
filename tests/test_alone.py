"""A kernel measured alone: both codes are timed, and one that computes something else is told by its results.

In: small kernels by the rules. Not their business: how long they take.
"""

from __future__ import annotations

from random import Random

from tilewright import ops
from tilewright.build.kernels import KernelBuilder, optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.default import refuse
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, f32, i64
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel
from tilewright.tile.text import kernel_text
from tilewright.tools.alone import FEWEST_CALLS, LoneKernel, can_stand_alone
from tilewright.tools.search_space import unlike


def made(b: Builder, inputs: tuple[Node, ...], result: Node) -> KernelBuilder:
    graph = Graph("net", b.pool, inputs, (result,), ("y",))
    return optimise_and_split(graph, Options(), Options().machine, Clock()).kernels


def of_two(op: str) -> Kernel:
    """The kernel of an op of two rows."""
    b = Builder(Pool())
    x, y = (b.pool.input(name, TensorType(f32, (7, 33))) for name in "xy")
    (kernel,) = made(b, (x, y), b(ops.by_name(op), x, y)).kernels.values()
    return kernel


def test_codes_are_called_in_turn_and_a_wrong_one_is_told() -> None:
    first, other = kernel_text(of_two("sub")), kernel_text(of_two("add"))
    kernel = LoneKernel(Target.host(), 1, {}, 1 << 16, first)
    found = kernel.measured([first, first], 0.0)
    assert not isinstance(found, str) and all(len(t) >= FEWEST_CALLS and min(t) > 0 for t in found)
    wrong = kernel.measured([other, first], 0.0)
    assert isinstance(wrong, str) and "elements differ" in wrong


def test_a_kernel_whose_places_follow_from_data_is_measured_in_its_model() -> None:
    b = Builder(Pool())
    x, at = b.pool.input("x", TensorType(f32, (9, 20))), b.pool.input("at", TensorType(i64, (4,)))
    (kernel,) = made(b, (x, at), b(ops.gather, x, at, axis=0)).kernels.values()
    assert not can_stand_alone(kernel) and can_stand_alone(of_two("add"))


def test_machines_unlike_this_one_have_other_schedules() -> None:
    b = Builder(Pool())
    x, w = (b.pool.input(name, TensorType(f32, (96, 96))) for name in "xw")
    kernels = made(b, (x, w), b(ops.matmul, x, w))
    ((name, of),) = kernels.groups.items()
    found = unlike(of.computation, kernels.target, of.constants, name, refuse, Random(0))
    schedules = {next(found).schedule for _ in range(8)}
    assert len(schedules - {kernels.schedules[name]}) > 1
