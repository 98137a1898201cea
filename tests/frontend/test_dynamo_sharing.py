"""Results of ``torch.compile`` share memory where those of eager PyTorch do."""

import contextlib
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from frontend import shared_modules
from frontend.shared_results import ITSELF, VIEWS, difference, function, places, program
from tilewright.graph.interp import run
from tilewright.integrations.torch_compile.backend import make_backend
from tilewright.integrations.torch_compile.faults import HOW_TO_REPORT
from tilewright.integrations.torch_compile.plan import FallbackWarning
from tilewright.runtime.values import to_tensor


def interpreted(graph: Any, **options: Any) -> Any:
    def execute(*arrays: Any) -> Any:  # as a loaded model does: results on memory of their own, one as itself
        results = [to_tensor(r).clone(memory_format=torch.contiguous_format) for r in run(graph, arrays)]
        return results[0] if len(results) == 1 else results

    return execute


def outcome(f: Any, backend: Any, is_dynamic: bool) -> str | None:
    """What a compiled function does unlike eager PyTorch."""
    return told(lambda: difference(f, torch.compile(f, backend=backend, dynamic=is_dynamic)))


def told(compare: Callable[[], str | None]) -> str | None:
    """What ``compare`` finds in a fresh Dynamo, or the error that it ends with."""
    torch._dynamo.reset()
    try:
        return compare()
    except Exception as e:  # of whatever kind: PyTorch's tracing raises many
        return f"{type(e).__name__}: {str(e).splitlines()[1:2]}"  # the first line names the back end


def announced_refusals_alone() -> None:
    """What falls back is no news; that the compiler failed is an error."""
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", f"(?s).*{re.escape(HOW_TO_REPORT)}", FallbackWarning)


def check(seed: int, views: Sequence[str] = VIEWS) -> None:
    """What PyTorch's own tracing loses, as its back end aot_eager shows, nobody can restore."""
    text = program(seed, views=views)
    f, is_dynamic = function(text), bool(seed % 2)
    with warnings.catch_warnings(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=seed % 3 == 0):
        announced_refusals_alone()
        found = outcome(f, make_backend(interpreted), is_dynamic)
        if found is not None and found == outcome(f, "aot_eager", is_dynamic):
            return
    assert found is None, f"{seed}: {text}\n{found}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 177, 1274])
def test_random_functions_of_views(seed: int) -> None:
    check(seed)


def check_module(seed: int) -> None:
    """As ``check``, for modules that hold, keep and are given tensors that share memory.

    What Dynamo alone makes another program of, as the back end eager shows, nobody can restore either: it keeps what it
    knows of the rank of an argument that is a parameter as well, where that is given memory of another.
    """
    text, is_dynamic = shared_modules.program(seed), seed % 3 == 0

    def differs(backend: Any) -> str | None:
        return told(lambda: shared_modules.difference(seed, text, backend, is_dynamic))

    with warnings.catch_warnings():
        announced_refusals_alone()
        found = differs(make_backend(interpreted))
        if found is not None and (found == differs("aot_eager") or differs("eager") is not None):
            return
    assert found is None, f"{seed}: {text}\n{found}"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", [0, 1, 268, 737, 1270, 41156])
def test_random_modules(seed: int) -> None:
    check_module(seed)


@pytest.mark.parametrize("is_before", [False, True])
def test_views_of_a_parameter_that_is_given_other_memory(is_before: bool) -> None:
    """AOTAutograd makes views that are results anew, of the parameter as it then is."""

    class Given(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.arange(3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.w[1:]
            self.w.data = x
            return before if is_before else self.w[1:]

    x, module, eager = torch.full((3,), 7.0), Given(), Given()
    own = (module.w if is_before else x).untyped_storage().data_ptr()
    compiled = torch.compile(module, backend=make_backend(interpreted))
    with contextlib.nullcontext() if not is_before else pytest.warns(FallbackWarning, match="a view of what it had"):
        got = compiled(x)
    assert torch.equal(got, eager(x)) and got.untyped_storage().data_ptr() == own
    assert module.w.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_parameter_that_is_given_the_memory_that_it_has(is_turned: bool) -> None:
    """AOTAutograd sees no change there, even of sizes and strides."""

    class Given(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.eye(4, 6))
            self.register_buffer("t", torch.arange(8.0).view(2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if is_turned:
                self.t.t_()
            self.w.data = self.t
            return x + 1

    module, eager = Given(), Given()
    compiled = torch.compile(module, backend=make_backend(interpreted))
    for call in range(3):
        with warnings.catch_warnings(record=True) as told, torch.no_grad():
            assert torch.equal(compiled(torch.ones(3)), eager(torch.ones(3)))
        assert any("share memory" in str(one.message) for one in told) == (is_turned and call > 0)
        assert torch.equal(module.w, eager.w) and module.w.stride() == eager.w.stride()
        assert module.w.data_ptr() == module.t.data_ptr()


@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_a_write_beside_autograd_to_a_part_of_a_parameter(how: str) -> None:
    """AOTAutograd would store it in autograd's sight, where PyTorch refuses it."""
    w, other = (torch.nn.Parameter(torch.arange(6.0).view(2, 3)) for _ in range(2))

    def f(part: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if how == "detach":
            part.detach().mul_(0.5)
        else:
            with torch.no_grad():
                part.mul_(0.5)
        return w * 2

    compiled = torch.compile(f, backend=make_backend(interpreted))
    with pytest.warns(FallbackWarning, match="part and the parameter that it is a view of share memory"):
        got = compiled(w[1:], other)
    assert torch.equal(got, other * 2) and got.requires_grad
    assert torch.equal(compiled(w[1:], other), other * 2)
    assert torch.equal(w[1], torch.tensor([0.75, 1.0, 1.25]))
    assert torch.equal(compiled(torch.ones(1, 3), other), other * 2)


def test_sizes_beside_a_parameter_that_is_given_other_memory() -> None:
    """Where data decide a size, Dynamo reads the others off the parameter as if that had its new shape before."""

    class Given(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.eye(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.w.nonzero()
            self.w.data = x.flip(0).expand(2, *x.shape)
            return found

    module, eager = Given(), Given()
    compiled = torch.compile(module, backend=make_backend(interpreted), dynamic=True)
    with pytest.warns(FallbackWarning, match="elements share memory"):
        assert torch.equal(compiled(torch.eye(4)), eager(torch.eye(4)))
    assert torch.equal(module.w, eager.w)


VIEWS_WITH_GAPS = (
    "(x * 2)[:, :2]", "(x * 2)[::2]", "(x * 2).diagonal()", "(x * 1)[:, :1].expand(4, 6)", "(x + 1).t()[:, 1:3]",
    "(x * 2)[1:3, 1:3].unsqueeze(1)", "torch.view_as_complex((x * 2).view(4, 3, 2))[:, 1:]", "(x * 2)[:, :0]",
)  # fmt: skip


@pytest.mark.parametrize("with_gradient", [False, True])
def test_results_lie_in_memory_as_eager_ones(with_gradient: bool) -> None:
    f = function(f"def f(x):\n    return [{', '.join(VIEWS_WITH_GAPS)}]")
    for is_dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(f, backend=make_backend(interpreted), dynamic=is_dynamic)
        x = torch.rand(4, 6, requires_grad=with_gradient)
        for wanted, got in zip(f(x), compiled(x), strict=True):
            assert got.shape == wanted.shape and torch.equal(got, wanted)
            moving = [d for d, n in enumerate(wanted.shape) if n > 1]
            assert not wanted.numel() or [got.stride(d) for d in moving] == [wanted.stride(d) for d in moving]


@pytest.mark.parametrize(("start", "with_gradient"), [("x * 2", True), ("x", False), ("x[1:]", False)])
def test_calls_that_return_their_operand_itself(start: str, with_gradient: bool) -> None:
    """All at once: one tensor has as many names, and each graph ends with a change of sizes through one of them."""
    lines = [f"a = {start}", *(f"b{k} = {call.format(v='a')}" for k, call in enumerate(ITSELF))]
    lines += ["torch._dynamo.graph_break()", "b3.unsqueeze_(0)", "torch._dynamo.graph_break()", "b7.transpose_(1, 2)"]
    names = ["a", *(f"b{k}" for k in range(len(ITSELF)))]
    f = function("\n    ".join(["def f(x):", *lines, f"return {', '.join(names)}, x"]))
    compiled = torch.compile(f, backend=make_backend(interpreted))
    wanted, got = (g(torch.arange(12.0).view(3, 4).requires_grad_(with_gradient)) for g in (f, compiled))
    for a, b in zip(wanted, got, strict=True):
        assert [b is other for other in got] == [a is other for other in wanted]
        assert a.shape == b.shape and torch.equal(a, b)


@pytest.mark.parametrize("empty", ["torch.empty(0)", "x.new_zeros(0, dtype=torch.bfloat16).float()", "x[:0] * 2"])
def test_a_result_without_elements_grows_where_it_is_written(empty: str) -> None:
    """``out=`` breaks Dynamo's graph, and makes what the first part has returned as large as it needs."""
    f = function(f"def f(x, y):\n    y = {empty}\n    torch.cat([x, x], out=y)\n    return (y,)")
    assert outcome(f, "tilewright", is_dynamic=False) is None


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_500_random_modules() -> None:
    for seed in range(2, 502):
        check_module(seed)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("size", [
    lambda n: math.ceil(n / 3), lambda n: round(n / 3), lambda n: int(n * 0.75), lambda n: math.floor(n / 2.5),
    lambda n: int(n**0.5), lambda n: max(n - math.ceil(n / 4), 1),
])  # fmt: skip
def test_views_whose_sizes_come_of_floats(size: Callable[[Any], int]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        computed = x + 1
        n = size(x.shape[1])
        return x[:, :n], computed, computed[:, :n]

    torch._dynamo.reset()
    compiled = torch.compile(f, backend=make_backend(interpreted), dynamic=True)
    for n in (9, 7, 16, 2):
        x = torch.rand(2, n)
        wanted, got = f(x), compiled(x)
        assert places([x, *wanted]) == places([x, *got])
        assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_500_random_functions_of_views() -> None:
    for seed in range(500):
        check(seed)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(
    "write",
    ["b += 3", "b[b > 0] += 3", "if b.sum() > 0: b.zero_()", "b[1:] = 1", "c.mul_(2)", "d.copy_(y[0, :3])"],
)
def test_a_write_after_a_graph_break_is_seen_through_every_view(write: str, is_dynamic: bool) -> None:
    f = function(f"""def f(x, y):
    a = x * 2; b = a[:]; c = a[1:, ::2].t(); d = a[0].unfold(0, 3, 1)[0]
    torch._dynamo.graph_break()
    {write}
    return a, b, c, d""")
    torch._dynamo.reset()
    assert difference(f, torch.compile(f, backend="tilewright", dynamic=is_dynamic)) is None


def test_complex_views_share_memory() -> None:
    f = function("""def f(x, y):
    a = torch.complex(x, x + 1)
    return a, a.real, torch.view_as_real(a), a.imag[1:], a.conj(), a.t(), a.conj().imag""")
    assert outcome(f, make_backend(interpreted), is_dynamic=False) is None


def test_views_that_negate_are_compiled_and_written_through() -> None:
    def f(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = z.imag  # of a conjugated view: a view that negates
        part.add_(2.0)
        return part * 3, torch.view_as_real(z.resolve_conj())

    numbers = torch.randn(2, 3, dtype=torch.complex64)
    mine, theirs = numbers.clone().conj(), numbers.clone().conj()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        got = torch.compile(f, backend="tilewright")(mine)
    torch.testing.assert_close((got, mine), (f(theirs), theirs))


def test_a_tensor_that_is_returned_twice_is_one() -> None:
    f = function("""def f(x, y):
    a = y + 1
    torch._dynamo.graph_break()
    b = a + y
    torch._dynamo.graph_break()
    return b.to(b.dtype), b, b.real""")
    assert outcome(f, make_backend(interpreted), is_dynamic=True) is None


def test_views_share_memory_around_calls_left_to_pytorch() -> None:
    f = function("""def f(x, y):
    a = torch.linalg.eigvals(y).real; b = a + 1
    c = torch.linalg.eigvals(b[None].t() @ b[None])
    return a[:2], a[1:], b[None], b.t(), c.real, c.imag""")
    with pytest.warns(FallbackWarning):
        assert outcome(f, make_backend(interpreted), is_dynamic=False) is None


def test_views_of_a_result_whose_size_data_decide() -> None:
    f = function("""def f(x, y):
    n = x.nonzero()
    return n, n[:, 0], n[: n.shape[0] // 2].t()""")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert outcome(f, make_backend(interpreted), is_dynamic=False) is None


def test_views_of_parameters_and_of_a_training_graph() -> None:
    weight = torch.nn.Parameter(torch.arange(36.0).reshape(6, 6))

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x @ weight
        best = a.argmax(-1)
        return a.t(), a[1:], a.detach(), weight.t(), weight[1:], best, best[None]

    given = torch.ones(4, 6), torch.ones(())
    for backend in (make_backend(interpreted), "tilewright"):
        torch._dynamo.reset()
        got, wanted = torch.compile(f, backend=backend)(*given), f(*given)
        torch.testing.assert_close(got, wanted)
        assert places([weight, *got]) == places([weight, *wanted])
        assert [t.requires_grad for t in got] == [t.requires_grad for t in wanted]


def test_what_a_graph_computes_of_results_that_are_views() -> None:
    """All of the value that a result is a part of; of what is stored in an argument, the part alone."""
    graphs = []

    def record(graph: Any, **options: Any) -> Any:
        graphs.append(graph)
        return interpreted(graph)

    torch._dynamo.reset()
    torch.compile(lambda x, y: (y.copy_((x @ x)[:, -1]), (x @ x + 1)[:, -1])[1], backend=make_backend(record))(
        torch.ones(4, 4), torch.ones(4)
    )
    assert [n.shape for n in graphs[0].outputs] == [(4,), (4, 4)]


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_result_is_not_a_view_of_how_it_was_made(is_dynamic: bool) -> None:
    """AOTAutograd replays views upon a result's base, which must then be the result itself."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, (x * 3).t(), x.bfloat16(), torch.complex(x, x), (x * 1)[..., None].expand(4, 6, 2).clone()

    def g(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.t().bfloat16(),)  # dense, as a compiled model gives it

    for of, backend in ((f, make_backend(interpreted)), (f, "tilewright"), (g, "tilewright")):
        torch._dynamo.reset()
        got = torch.compile(of, backend=backend, dynamic=is_dynamic)(torch.arange(24.0).reshape(6, 4).t())
        assert [t._base for t in got] == [None] * len(got)


WRITES = ["a.add_(3)", "a[a > 0] += 3", "a.copy_(a * 2)", "a[0] = 7", "a[..., 1:] += 1", "y.add_(1)"]


@pytest.mark.one_in(15)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", ["y[:]", "y.t()", "y[1:]", "y.flatten()", "y.T.reshape(-1)", "y.diagonal()"])
def test_writes_to_one_of_two_views_of_an_argument(view: str, write: str) -> None:
    """What two views of an argument share is written by a graph that is given both: PyTorch runs that one."""
    f = function(f"""def f(y):
    b = y[:]
    torch._dynamo.graph_break()
    a = {view}
    {write}
    return a, b + 1, b[...], a[None]""")
    torch._dynamo.reset()
    for _ in range(2):  # the second call is the first to meet what was compiled
        given = [(torch.arange(16.0) - 5).reshape(4, 4).t() for _ in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            got = [given[0], *torch.compile(f, backend="tilewright", dynamic=False)(given[0])]
        wanted = [given[1], *f(given[1])]
        assert all(map(torch.equal, got, wanted))
        assert places(got) == places(wanted)


def test_arguments_that_overlap_are_left_to_pytorch_where_the_graph_writes() -> None:
    def f(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = y.squeeze()
        torch._dynamo.graph_break()
        after = y[:]
        after[after > 0] += 3
        return before + 1, after

    torch._dynamo.reset()
    with pytest.warns(FallbackWarning, match="share memory, and the graph writes there; pass a copy"):
        got = torch.compile(f, backend="tilewright")((torch.arange(16.0) - 5).reshape(4, 4).t())
    torch.testing.assert_close(got, f((torch.arange(16.0) - 5).reshape(4, 4).t()))


def test_where_arguments_lie_is_asked_in_each_call() -> None:
    """Compiled for arguments that lie apart; then some come that overlap, and again some that do not."""

    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.mul_(3)
        a[1:] += 1
        return b * 2, a + b

    def apart() -> list[torch.Tensor]:
        return [torch.arange(6.0), torch.arange(6.0) + 1]

    def overlapping() -> list[torch.Tensor]:
        x = torch.arange(10.0)
        return [x[1:7], x[0:6]]

    for is_dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="tilewright", dynamic=is_dynamic)
        for make in (apart, overlapping, apart, overlapping):
            got, wanted = make(), make()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                results = compiled(*got)
            torch.testing.assert_close([*results, *got], [*f(*wanted), *wanted])
            assert make is overlapping or not told


def test_arguments_that_overlap_and_are_not_written_are_compiled() -> None:
    x = torch.arange(10.0)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b, c: (a + b, c.add_(1)), backend="tilewright")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(x[1:7], x[:6], torch.zeros(2))[0], x[1:7] + x[:6])


@pytest.mark.parametrize("text", [
    "v = y.expand(2, *y.shape); v.zero_(); return v, y * 2",
    "a = y + y; v = a[0].expand(4, 4); v.fill_(3); return v, a",
    "v = y.unfold(0, 2, 1); v.add_(3); return v + 1, y * 2",
    "a = y + y; v = a.as_strided((3, 2), (1, 2)); v.mul_(3); return v + 1, a",
])  # fmt: skip
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_writes_that_pytorch_s_tracing_loses_are_left_to_pytorch(text: str, is_dynamic: bool) -> None:
    f = function(f"def f(x, y):\n    {text}")
    torch._dynamo.reset()
    with pytest.warns(FallbackWarning, match="tracing loses"):
        assert difference(f, torch.compile(f, backend=make_backend(interpreted), dynamic=is_dynamic)) is None


@pytest.mark.parametrize("text", [
    "w = x.as_strided((2, 2), (2, 1)); x.mul_(3); return w",
    "x.mul_(3); return x.as_strided((2, 2), (2, 1)) + 1",
    "x.t()[0].zero_(); return x.view(-1).as_strided((4,), (1,)).sin()",
])  # fmt: skip
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_what_lies_beside_a_written_argument_is_read_by_pytorch(text: str, is_dynamic: bool) -> None:
    """AOTAutograd reads it in the argument's new value, which has no such memory, or other elements there."""
    f = function(f"def f(x, y):\n    {text}")
    given, wanted = (torch.arange(12.0).view(6, 2)[2:, :1] for _ in range(2))
    torch._dynamo.reset()
    with pytest.warns(FallbackWarning, match="lies beside its elements is read"):
        got = torch.compile(f, backend=make_backend(interpreted), dynamic=is_dynamic)(given, given)
    assert torch.equal(got, f(wanted, wanted)) and torch.equal(given, wanted)


LYING = (
    lambda: torch.arange(24.0).view(4, 6)[:, :2], lambda: torch.arange(24.0).view(12, 2)[4:8],
    lambda: torch.arange(48.0).view(4, 12)[:, 2:10:2].t()[:, :3:2], lambda: torch.arange(8.0).view(4, 2),
)  # fmt: skip
"""Tensors with gaps between their elements, with memory before them, with both and in another order, and with none."""


@pytest.mark.parametrize("place", LYING)
@pytest.mark.parametrize("text", [
    "w = y.expand(2, *y.shape); y.add_(3); return w, y",
    "y.t().add_(3); return y[: y.shape[0] // 2], y.view(y.shape[0], 1, y.shape[1]), y[0]",
    "w = y[y.shape[0] // 2 :].t(); w.mul_(2); return w, y.unfold(0, 2, y.shape[0] // 3), y.split(y.shape[0] // 2)[1]",
])  # fmt: skip
def test_views_of_a_written_argument_lie_where_the_argument_does(text: str, place: Callable[[], torch.Tensor]) -> None:
    """AOTAutograd makes such results anew where they lie in its eyes: not in the argument's new value, then."""
    f = function(f"def f(y):\n    {text}")
    torch._dynamo.reset()
    compiled = torch.compile(f, backend=make_backend(interpreted), dynamic=True, options={"fallback": False})
    given, wanted = place(), place()
    got, expected = [given, *compiled(given)], [wanted, *f(wanted)]
    assert all(map(torch.equal, got, expected))
    assert places(got) == places(expected)


@pytest.mark.parametrize(("text", "is_compiled"), [
    ("y.view(torch.int32)[: y.shape[0] // 2]", True), ("y.view(torch.int32).expand(2, *y.shape)", True),
    ("torch.view_as_complex(y).view(torch.float32)[: y.shape[0] // 2]", True),
    ("y.view(torch.int16)[: y.shape[0] // 2]", False), ("torch.view_as_complex(y).view(torch.int64)[:, None]", False),
])  # fmt: skip
def test_views_of_an_argument_as_another_type(text: str, is_compiled: bool) -> None:
    """AOTAutograd gives the argument's type to those that it makes by strides, or counts them in its elements."""
    f = function(f"def f(y):\n    w = {text}[: y.shape[0]]; return w, y + 1")
    torch._dynamo.reset()
    compiled = torch.compile(f, backend=make_backend(interpreted), dynamic=True)
    told = contextlib.nullcontext() if is_compiled else pytest.warns(FallbackWarning, match="as another type")
    given = LYING[1]()
    with told:
        got = [given, *compiled(given)]
    wanted = [given, *f(given)]
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert places(got) == places(wanted)


def test_a_view_by_strides_of_a_written_argument_is_compiled_where_it_reads_elements_alone() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x.as_strided((3, 2), (1, 1)) + 1

    torch._dynamo.reset()
    compiled = torch.compile(f, backend=make_backend(interpreted), options={"fallback": False})
    assert torch.equal(compiled(torch.arange(6.0).view(2, 3).t()), f(torch.arange(6.0).view(2, 3).t()))
