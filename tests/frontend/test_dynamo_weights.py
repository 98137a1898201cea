"""Weights under ``torch.compile`` may change at any time, in any way."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.build.driver import compile_graph
from tilewright.graph.interp import run
from tilewright.integrations.torch_compile import weights as dynamo_weights
from tilewright.integrations.torch_compile.backend import make_backend
from tilewright.runtime.python import watch
from tilewright.runtime.python.pages import page_tracker


def interpreted(graph: Any, **options: Any) -> Any:
    def execute(*arrays: np.ndarray) -> Any:
        results = [r.copy() for r in run(graph, arrays)]
        return results[0] if len(results) == 1 else results

    return execute


class Net(torch.nn.Module):
    """Weights of some pages and of a few bytes, buffers, a tied weight, and one that is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(300, 24)
        self.first = torch.nn.Linear(24, 96)
        self.norm = torch.nn.BatchNorm1d(96)
        self.second = torch.nn.Linear(96, 24)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.turned = torch.nn.Parameter(torch.randn(24, 48).t()[::2].detach())
        self.register_buffer("mask", torch.ones(24, dtype=torch.float64))

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        x = self.table(at) * self.mask.float()
        y = self.second(self.norm(self.first(x)).relu()) * self.scale
        return torch.cat([y @ self.table.weight.t(), y @ self.turned], -1)


@pytest.fixture(autouse=True)
def every_change_is_worth_a_compile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dynamo_weights, "clock", lambda: 0.0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def covering(choose: random.Random, net: Net) -> None:
    """Write to all of a tensor where PyTorch counts nothing, or replace it."""
    name, t = choose.choice([*net.named_parameters(), *net.named_buffers()])
    if not t.is_floating_point() or name.endswith("running_var"):  # which must stay positive
        return
    new = torch.randn_like(t) * 0.5
    owner = net.get_submodule(name.rpartition(".")[0])
    writes: list[Callable[[], Any]] = [
        lambda: t.data.copy_(new), lambda: t.data.mul_(1.25), lambda: t.data.add_(0.1), lambda: t.data.lerp_(new, 0.1),
        lambda: t.data.clamp_(-0.7, 0.7), lambda: t.detach().numpy().__setitem__(..., new.numpy()),
        lambda: setattr(t, "data", new), lambda: setattr(t, "data", t.data.clone()),
        lambda: net.load_state_dict({k: v * 0.9 if v.is_floating_point() else v for k, v in net.state_dict().items()}),
        t.data.neg_, lambda: t.data.round_(decimals=1), lambda: torch.nn.init.normal_(t.data, 0.1, 0.3),
    ]  # fmt: skip
    if isinstance(t, torch.nn.Parameter):
        other = torch.nn.Parameter(new.clone())
        writes.append(lambda: setattr(owner, name.rpartition(".")[2], other))
    choose.choice(writes)()


def partial_write(choose: random.Random, net: Net) -> None:
    """Write to a row or to an element of a tensor where PyTorch counts nothing; without pages, say so."""
    t = choose.choice([p for p in net.parameters() if p.dim() == 2])
    row, column = choose.randrange(t.shape[0]), choose.randrange(t.shape[1])
    writes: list[Callable[[], Any]] = [
        lambda: t.data[row].mul_(-1.5), lambda: t.data[row, column].add_(1), lambda: t.data[:, column].copy_(t[:, 0]),
        lambda: t.detach().numpy()[row].fill(0.3), lambda: t.detach().numpy().__setitem__((row, column), 2.0),
    ]  # fmt: skip
    choose.choice(writes)()
    if page_tracker() is None:
        tw.refresh(net)


def counted(choose: random.Random, net: Net) -> None:
    """Write where PyTorch counts."""
    t = choose.choice([p for p in net.parameters() if p.dim() == 2])
    row = choose.randrange(t.shape[0])
    with torch.no_grad():
        choose.choice([lambda: t[row].add_(0.2), lambda: t.copy_(torch.randn_like(t)), lambda: t[row, 1].fill_(3.0)])()


def check_updates(seed: int, n: int, backend: Any = None) -> None:
    """``n`` random writes, each before a call that must see it: of the module, and of another user of its weights."""
    torch.manual_seed(seed)
    choose, net, at = random.Random(seed), Net().eval(), torch.arange(5)
    backend = backend or make_backend(interpreted)

    def other(x: torch.Tensor) -> torch.Tensor:
        return net.first(x) @ net.second.weight.t() if x.dim() == 1 else net.first(x)

    model, partner, x = torch.compile(net, backend=backend), torch.compile(other, backend=backend), torch.randn(3, 24)
    with torch.no_grad():
        for k in range(n):
            for _ in range(choose.choice((0, 1, 1, 2))):
                choose.choice((covering, covering, partial_write, counted))(choose, net)
            got, wanted = model(at), net(at)
            bound = 1e-6 * max(100.0, float(wanted.abs().max()))  # small results are differences of large products
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=bound, msg=lambda m: f"{seed}, {k}: {m}")  # noqa: B023
            if choose.random() < 0.4:
                torch.testing.assert_close(partner(x), other(x), rtol=1e-4, atol=1e-4)


def test_random_updates() -> None:
    check_updates(0, 12)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_500_random_updates() -> None:
    for seed in range(1, 26):
        torch._dynamo.reset()
        check_updates(seed, 20)


def test_an_update_reaches_native_code() -> None:
    check_updates(3, 3, "tilewright")


def test_a_whole_write_is_seen_at_once_without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "page_tracker", lambda: None)
    torch.manual_seed(1)
    writes: list[Callable[[torch.Tensor], Any]] = [
        lambda t: t.mul_(2), lambda t: t.add_(1), lambda t: t.copy_(torch.randn(t.shape)), lambda t: t.neg_(),
        lambda t: t.clamp_(max=float(t.max()) * 0.99), lambda t: t.clamp_(min=float(t.min()) * 0.99),
        lambda t: t.zero_(), lambda t: t.mul_(t.abs() > t[t != 0].abs().min()),
    ]  # fmt: skip
    for shape, dtype in (
        ((3, 5), torch.float32),
        ((64, 129), torch.bfloat16),
        ((40, 50), torch.float64),
        ((7,), torch.float16),
    ):
        for write in writes:
            t = torch.randn(shape).to(dtype)
            t.view(-1)[1::2] = 0
            seen = watch.Watch([(0, t)])
            assert all(seen.unchanged((t,)) for _ in range(20))
            write(t.data)
            assert not seen.unchanged((t,))
            assert not seen.look((t,))


def test_any_write_is_seen_in_the_end_without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "page_tracker", lambda: None)
    t = torch.randn(64, 1024)
    seen = watch.Watch([(0, t)])
    t.data[33, 5] += 1
    assert not all(seen.unchanged((t,)) for _ in range(2 * 64 + 2))


def test_a_write_of_the_same_content_is_no_change() -> None:
    t = torch.randn(64, 1024)
    seen = watch.Watch([(0, t)])
    t.mul_(1)
    assert seen.unchanged((t,)) or seen.look((t,))
    assert seen.unchanged((t,)) or seen.look((t,))


def test_without_pytorch_s_layout_the_same_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    library, _ = watch._code()
    monkeypatch.setattr(watch, "_code", lambda: (library, None))
    t = torch.randn(64, 64)
    for write in (lambda: t.add_(1), lambda: t.data.add_(1), lambda: setattr(t, "data", torch.randn(64, 64))):
        seen = watch.Watch([(0, t)])
        assert seen.unchanged((t,)) or seen.look((t,))
        write()
        assert not seen.unchanged((t,))
        assert not seen.look((t,))


@pytest.mark.skipif(page_tracker() is None, reason="this system does not say which pages were written")
def test_two_who_watch_the_same_page_both_see_a_write() -> None:
    t = torch.randn(512, 1024)
    first, second = watch.Watch([(0, t)]), watch.Watch([(0, t)])
    for k in range(5):
        assert all(w.unchanged((t,)) or w.look((t,)) for w in (first, second))
        t.data[k, 7] += 1
        for w in (first, second):
            assert not w.unchanged((t,))
            assert not w.look((t,))
        first, second = watch.Watch([(0, t)]), watch.Watch([(0, t)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_sees_its_own_writes() -> None:
    t = torch.randn(512, 1024)
    seen = watch.Watch([(0, t)])
    child = os.fork()
    if child == 0:
        settled = seen.unchanged((t,)) or seen.look((t,))
        if page_tracker() is not None:
            t.data[77, 5] += 1
        else:
            t.data.mul_(2)
        noticed = not seen.unchanged((t,)) and not seen.look((t,))
        os._exit(0 if settled and noticed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen.unchanged((t,)) or seen.look((t,))


def test_weights_that_change_fast_become_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(dynamo_weights, "clock", lambda: next(ticks) ** 0.5)  # less and less time goes by
    graphs = []

    def record(graph: Any, **options: Any) -> Any:
        graphs.append(graph)
        return interpreted(graph)

    layer, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    model = torch.compile(layer, backend=make_backend(record))
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(model(x), layer(x))
            layer.weight.data.mul_(2)
    assert [len(g.inputs) for g in graphs] == [1, 3]


@pytest.mark.parametrize(("freeze", "n_inputs", "n_graphs"), [(True, 1, 1), (False, 3, 1), (None, 1, 2)])
def test_freeze(freeze: bool | None, n_inputs: int, n_graphs: int) -> None:
    graphs = []

    def record(graph: Any, **options: Any) -> Any:
        graphs.append(graph)
        return interpreted(graph)

    layer, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    options = {} if freeze is None else {"freeze": freeze}
    model = torch.compile(layer, backend=make_backend(record), options=options)
    with torch.no_grad():
        model(x)
        layer.weight.data.mul_(2)
        got = model(x)
        if not freeze:
            torch.testing.assert_close(got, layer(x))
    assert (len(graphs[0].inputs), len(graphs)) == (n_inputs, n_graphs)


def test_refresh_makes_a_module_s_weights_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "page_tracker", lambda: None)
    layer, x = torch.nn.Linear(512, 512), torch.ones(2, 512)
    model = torch.compile(layer, backend=make_backend(interpreted))
    with torch.no_grad():
        model(x)
        layer.weight.data[300, 77] += 1
        tw.refresh(layer)
        torch.testing.assert_close(model(x), layer(x))


WRITES: dict[str, Callable[[torch.nn.Parameter, float], Any]] = {
    "counted": lambda p, k: p.fill_(k),
    "by .data": lambda p, k: p.data.copy_(torch.full(p.shape, k)),
    "by NumPy": lambda p, k: p.detach().numpy().fill(k),
    "other memory": lambda p, k: setattr(p, "data", torch.full(p.shape, k)),
    "in place by .data": lambda p, k: p.data.zero_().add_(k),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_while_one_thread_compiles_no_other_runs_old_code(write: Callable[[torch.nn.Parameter, float], Any]) -> None:
    """The old code's weights have changed for every thread that asks, also after one has asked."""
    is_compiling, goes_on = threading.Event(), threading.Event()

    def compile_slowly(graph: Any, **options: Any) -> Any:
        execute = compile_graph(graph, **options)
        is_compiling.set()
        assert goes_on.wait(60)
        return execute

    module, x = torch.nn.Linear(64, 64, bias=False), torch.eye(64)
    model = torch.compile(module, backend=make_backend(compile_slowly), fullgraph=True)
    with torch.no_grad():
        module.weight.fill_(1)
        goes_on.set()
        model(x)
        is_compiling.clear(), goes_on.clear()
        write(module.weight, 2.0)
        results: list[torch.Tensor] = []

        def call() -> None:
            with torch.no_grad():
                results.append(model(x).clone())

        threads = [threading.Thread(target=call) for _ in range(4)]
        threads[0].start()
        assert is_compiling.wait(60)
        for t in threads[1:]:
            t.start()
        time.sleep(0.05)
        assert not results  # nothing is right before there is code for it
        goes_on.set()
        for t in threads:
            t.join()
    assert [float(r.min()) for r in results] == [float(r.max()) for r in results] == [2.0] * 4


def check_threads(seed: int, n_writes: int) -> None:
    """While a thread writes, others call: each element of a result is the weight's at some moment of that call."""
    torch._dynamo.reset()
    choose, side = random.Random(seed), 48
    module, x = torch.nn.Linear(side, side, bias=False).eval(), torch.eye(side)
    model = torch.compile(module, backend="tilewright", fullgraph=True)
    began = done = 0  # writes
    is_over, problems = threading.Event(), list[str]()

    def call() -> None:
        with torch.no_grad():
            while not is_over.is_set() or done != began:
                least = done
                found = model(x)
                if float(found.min()) < least or float(found.max()) > began or (found != found.round()).any():
                    problems.append(f"{found.min()} to {found.max()} between writes {least} and {began}")

    with torch.no_grad():
        module.weight.fill_(0)
        model(x)
        callers = [threading.Thread(target=call) for _ in range(3)]
        for c in callers:
            c.start()
        kinds = [kind for name, kind in WRITES.items() if name != "in place by .data"]  # which passes by 0
        kept = []  # PyTorch, too, reads what is freed where a thread gives a tensor other memory during a call
        for k in range(1, n_writes + 1):
            began = k
            kept.append(module.weight.detach())
            choose.choice(kinds)(module.weight, float(k))
            done = k
            time.sleep(choose.choice((0, 0.001, 0.05)))
        is_over.set()
        for c in callers:
            c.join()
        assert torch.equal(model(x), torch.full((side, side), float(n_writes)))
    assert problems == []


def test_threads_call_while_one_writes() -> None:
    check_threads(0, 12)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_500_writes_while_threads_call() -> None:
    for seed in range(1, 26):
        check_threads(seed, 20)


def test_a_change_once_found_is_found_by_everybody() -> None:
    """The first who looks closer has the system forget which pages were written."""
    t = torch.randn(512, 1024)
    seen = watch.Watch([(0, t)])
    t.data[7, 9] += 1
    if page_tracker() is None:
        tw.refresh(torch.nn.ParameterList([torch.nn.Parameter(t)]))
        t.add_(0)
    assert [seen.unchanged((t,)) or seen.look((t,)) for _ in range(5)] == [False] * 5


@pytest.mark.parametrize("is_counted", [True, False])
def test_weights_changed_and_changed_back_while_code_is_made(is_counted: bool) -> None:
    """The code may hold what they were in between, so it is not kept."""
    if not is_counted and page_tracker() is None:
        pytest.skip("this system does not say which pages were written")
    module, x = torch.nn.Linear(64, 64, bias=False), torch.eye(64)
    graphs = []

    def disturbed(graph: Any, **options: Any) -> Any:
        graphs.append(graph)
        weight = module.weight if is_counted else module.weight.data
        with torch.no_grad():
            kept = weight.clone()
            weight.fill_(3)
            execute = compile_graph(graph, **options)
            weight.copy_(kept)
        return execute

    model = torch.compile(module, backend=make_backend(disturbed), fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(model(x), module(x))
    assert [len(g.inputs) for g in graphs] == [1, 2]
