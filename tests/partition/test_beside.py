"""Kernels side by side: the same numbers with any number of threads, right orders, and memory that is nobody else's."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tilewright.build import driver, kernels
from tilewright.build.options import Clock, Options
from tilewright.core.estimates import Times
from tilewright.frontend.source import import_source
from tilewright.partition.beside import Item, arrange
from tilewright.partition.program import KernelCall
from tilewright.runtime.python.model import LoadedModel
from tilewright.target.target import Target


def item(needs=(), work=1e5, alone=None, extent=None, n_bytes=64, moves=True):
    times = Times(work, work if alone is None else alone, extent, alone is not None) if moves else None
    return Item(frozenset(needs), n_bytes, 0, times)


TWO_CORES = dataclasses.replace(Target.parse("x86-64-v4"), n_cores=2)


def calls(items, target=TWO_CORES):
    return [run.calls for run in arrange(items, target)]


def test_kernels_on_one_thread_run_beside_each_other():
    assert calls([item(), item(), item({0, 1})]) == [(0, 1), (2,)]
    assert calls([item(), item({0})]) == [(0,), (1,)]
    assert calls([item(), item(moves=False), item()]) == [(0,), (1,), (2,)]


def test_uneven_kernels_are_filled_up_by_others():
    uneven, fine = item(work=3e6, alone=2e6, extent=3), item(work=3e6, alone=1.5e6, extent=500)
    (run,) = arrange([fine, uneven], TWO_CORES)
    assert run.calls == (1, 0) and run.members[0] == (3, 2) and run.most_threads == 0
    even = item(work=3e6, alone=1.5e6, extent=500)
    assert calls([even, even]) == [(0,), (1,)]


def test_what_a_partner_needs_comes_first():
    """Two directions of a recurrent layer: each has a product before it."""
    product, scan = item(work=3e6, alone=1.5e6, extent=64), item({0}, work=6e6, alone=4e6)
    runs = arrange([product, scan, product, dataclasses.replace(scan, needs=frozenset({2})), item({1, 3})], TWO_CORES)
    assert [r.calls for r in runs] == [(0,), (2,), (1, 3), (4,)]
    assert runs[2].most_threads == 2


def test_what_a_partner_needs_does_not_take_one_of_the_two():
    """Scans that one thread runs: the second product would fill the first scan's idle thread, and leave one alone."""
    product, scan = item(work=3e6, alone=1.5e6, extent=64), item({0}, work=6e6)
    runs = calls([product, scan, product, dataclasses.replace(scan, needs=frozenset({2})), item({1, 3})])
    assert runs == [(0,), (2,), (1, 3), (4,)]


def test_memory_stays_near_what_it_was():
    large = 1 << 30
    chains = [item(n_bytes=large), item({0}, n_bytes=0), item(n_bytes=large), item({2}, n_bytes=0)]
    assert calls(chains) == [(0,), (1,), (2,), (3,)]


@given(st.data())
def test_any_arrangement_keeps_the_order_of_what_needs_each_other(data):
    items = []
    for k in range(data.draw(st.integers(1, 24))):
        needs = data.draw(st.frozensets(st.integers(0, k - 1), max_size=2)) if k else frozenset()
        work = data.draw(st.sampled_from([1e3, 1e5, 3e6]))
        extent = data.draw(st.sampled_from([None, 1, 3, 64]))
        alone = data.draw(st.sampled_from([None, 0.5 * work, 0.8 * work])) if extent is None else 0.6 * work
        items.append(item(needs, work, alone, extent, data.draw(st.integers(0, 999)), data.draw(st.integers(0, 9)) > 0))
    runs = calls(items, dataclasses.replace(TWO_CORES, n_cores=data.draw(st.integers(2, 5))))
    assert sorted(itertools.chain(*runs)) == list(range(len(items)))
    done = set()
    for run in runs:
        for k in run:
            assert items[k].needs <= done
            assert items[k].times is not None or (run == (k,) and done == set(range(k)))
        done.update(run)


class Branches(torch.nn.Module):
    """Small and uneven kernels of one input, a scan in each direction, and sizes that are not round."""

    def __init__(self):
        super().__init__()
        self.convolutions = torch.nn.ModuleList(
            torch.nn.Conv2d(7, n, k, padding=k // 2) for n, k in [(5, 1), (33, 3), (17, 5)]
        )
        self.scan = torch.nn.LSTM(19, 23, bidirectional=True, batch_first=True)

    def forward(self, x, y):
        pooled = [torch.relu(c(x)).mean((2, 3)) for c in self.convolutions]
        return *pooled, torch.softmax(x, -1), self.scan(y)[0], x.cumsum(-1), (y * 2).sum(1)


@pytest.fixture(scope="module")
def branches():
    torch.manual_seed(0)
    module, given = Branches().eval(), (torch.randn(3, 7, 13, 11), torch.randn(2, 29, 19))
    return module, given, import_source(torch.export.export(module, given), None, None, None, None)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("target", ["native", "haswell", "x86-64"])
def test_any_number_of_threads_gives_the_same_bits(branches, target, monkeypatch):
    module, given, graph = branches
    wide = dataclasses.replace(Target.parse(target), n_cores=2)
    monkeypatch.setattr(Options, "machine", wide)
    artifact = driver.build(graph, Options(target=target), Clock())
    program = kernels.optimise_and_split(graph, Options(target=target), wide, Clock()).program
    assert any(len(b.members) > 2 for b in program.beside)
    for b in program.beside:
        written = [
            p for s in program.steps[b.first :][: len(b.members)] if isinstance(s, KernelCall) for p in s.args[-1:]
        ]
        assert len(set(written)) == len(b.members)
    results = [
        LoadedModel(artifact.manifest, artifact.objects, artifact.weights, threads=n)(*given) for n in (1, 2, 3, 5)
    ]
    for one, *others, want in zip(*results, module(*given), strict=True):
        np.testing.assert_allclose(one, want.detach(), rtol=1e-4, atol=1e-4)
        for other in others:
            np.testing.assert_array_equal(one, other)
