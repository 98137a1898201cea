"""Forms by price: the part of a graph that a form is, who is asked, and what a compile makes of the schedules."""

from dataclasses import dataclass

import numpy as np
import pytest

from graph.showing import WIDE, graph_of, show
from tilewright import ops
from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.build.passes import FormPrices
from tilewright.choose import default
from tilewright.core.diag import OptionError
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.passes import Pass
from tilewright.core.types import TensorType, f32
from tilewright.graph.forms.planes import InPlanes
from tilewright.graph.forms.priced import PricedPass, alone
from tilewright.graph.forms.winograd import Winograd


@dataclass(frozen=True)
class Negated(PricedPass):
    """A pass that has the choice between an output and its double negation."""

    name = "negated"

    def run(self, graph, journal=None):
        b, (y,) = Builder(graph.pool), graph.outputs
        return graph.with_outputs([self.cheaper(y, b(ops.neg, b(ops.neg, y)), graph.inputs[0]) or y])


@dataclass(frozen=True)
class Nothing(Pass):
    """A pass that leaves every graph."""

    name = "nothing"

    def run(self, graph, journal=None):
        return graph


def doubled():
    return graph_of(lambda b, x: b(ops.mul, x, b.const(2.0, f32)), "f32[3]")


def n_nodes(graph):
    return float(len(graph.nodes()))


def test_the_form_with_the_least_price_is_taken():
    graph = doubled()
    assert show(Negated(price=n_nodes).run(graph)) == "mul(x, 2.0)"
    assert show(Negated(price=lambda g: -n_nodes(g)).run(graph)) == "neg(neg(mul(x, 2.0)))"
    assert show(Negated(price=lambda g: 1.0).run(graph)) == "mul(x, 2.0)", "the first, of equal ones"
    assert show(Negated().run(graph)) == "mul(x, 2.0)", "the first, where nobody tells prices"


def test_a_form_alone_reads_its_operand_as_an_input():
    def build(b, x):
        before = b(ops.exp, x)
        both = b(ops.add, b(ops.neg, before), b(ops.mul, before, b.const(3.0, f32)))
        return both, before

    graph = graph_of(build, "f32[2,3]")
    root, operand = graph.outputs
    part = alone(root, operand)
    assert show(part) == "add(neg(operand), mul(operand, 3.0))"
    assert [n.type for n in part.inputs] == [operand.type]
    long = root
    for _ in range(5000):
        long = graph.pool.add(ops.neg, [long], {}, root.loc)
    assert len(alone(long, operand).nodes()) == len(part.nodes()) + 5000, "nothing recurses"


def test_a_price_is_no_option():
    assert Negated(price=n_nodes).text() == "negated" and Negated(price=n_nodes) == Negated()
    assert InPlanes(8, price=n_nodes).text() == "in-planes{lanes=8}"
    with pytest.raises(OptionError, match="no option 'price'"):
        InPlanes.with_options({"price": "1"})


def test_a_price_is_that_of_what_the_passes_behind_make():
    asked = []

    class Prices(FormPrices):
        def behind(self, passes):
            asked.append([p.name for p in passes])
            return n_nodes

    first, plain, second, last = Prices(WIDE, default.ByRules(WIDE)).given_to(
        [Negated(), Nothing(), Negated(), Winograd()]
    )
    assert asked == [["winograd"], ["nothing", "negated", "winograd"]]
    assert first.price is second.price is n_nodes and plain == Nothing() and last == Winograd()


def in_parts(n):
    """The sine of so many rows, in as many parts."""
    pool = Pool()
    rows = Sym("rows", 0)
    part = pool.input("part", TensorType(f32, (rows, 512)))
    body = Graph("body", pool, (part,), (Builder(pool)(ops.sin, part),), ("y",))
    x = pool.input("x", TensorType(f32, (n * 8, 512)))
    y = Builder(pool)(ops.map_parts, x, body=body, n_parts=n, n_cut=1)
    return Graph("g", pool, (x,), (y,), ("y",))


def test_every_part_of_a_loop_counts():
    prices = FormPrices.on(WIDE)
    one, four = (prices.behind(())(in_parts(n)) for n in (1, 4))
    assert four == pytest.approx(4 * one) and one > 0


def test_views_alone_cost_nothing():
    graph = graph_of(lambda b, x: b(ops.reshape, x, shape=(3, 2)), "f32[2,3]")
    assert FormPrices.on(WIDE).behind(())(graph) == 0


def test_sizes_of_a_call_count_alike():
    """Larger ones cost more, and the price lies between those of the smallest and the largest."""
    price = FormPrices.on(WIDE).behind(())
    n = Sym("n", 1)
    of = {d: price(graph_of(lambda b, x: b(ops.exp, x), TensorType(f32, (d, 4096)))) for d in (1, n, 64)}
    assert of[1] < of[n] < of[64]


def test_no_form_is_scheduled_twice(monkeypatch):
    names = []
    schedule = default.schedule_with_steps

    def noted(computation, machine, constants, name, on_broken):
        names.append(name)
        return schedule(computation, machine, constants, name, on_broken)

    monkeypatch.setattr(default, "schedule_with_steps", noted)
    w = np.random.default_rng(0).standard_normal((5, 4, 3, 3)).astype(np.float32)

    def build(b, x):
        return b(ops.conv, x, b.const(w), strides=(1, 1), dilations=(1, 1), pads=((1, 1), (1, 1)))

    graph, options = graph_of(build, "f32[1,4,40,40]"), Options(target="x86-64-v4")
    kernels = optimise_and_split(graph, options, options.machine, Clock()).kernels
    assert len(names) == len(set(names)) and set(kernels.kernels) < set(names)
