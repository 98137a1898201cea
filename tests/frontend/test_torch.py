"""Importing PyTorch modules: names, locations, symbolic sizes, control flow, and what is refused."""

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.map import map as map_rows

import tilewright
from frontend.torch_compare import check, compare
from tilewright import ops
from tilewright.core.diag import ImportFailed
from tilewright.core.expr import Sym
from tilewright.core.graph import topological
from tilewright.frontend.torch.export import import_exported, import_module
from tilewright.frontend.torch.fx.inplace import writes_of
from tilewright.frontend.torch.fx.walk import IGNORED
from tilewright.runtime.errors import InputError

torch.manual_seed(0)
Dim = torch.export.Dim


class Lambda(torch.nn.Module):
    """A function as a module."""

    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: torch.Tensor) -> Any:
        return self.f(*args)


class TwoHeads(torch.nn.Module):
    """Named inputs and outputs, a tied weight, dropout and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.drop(self.norm(self.embed(ids) * scale))
        logits = x @ self.embed.weight.T
        return {"logits": logits, "best": logits.argmax(-1)}


IDS, SCALE = torch.tensor([1, 5, 2]), torch.rand(4)


def test_names_weights_and_mode() -> None:
    module = TwoHeads().train()
    graph = import_module(module, (IDS, SCALE))
    compare(graph, module, (IDS, SCALE))
    module.train()
    import_module(module, (IDS, SCALE))
    assert module.training and module.drop.training
    assert graph.name == "TwoHeads"
    assert graph.input_names == ("ids", "scale")
    assert list(dict(graph.results())) == ["logits", "best"]
    constants = [n for n in graph.nodes() if n.op.name == "const" and n.shape == (7, 4)]
    assert len(constants) == 1


def test_nodes_know_the_users_line() -> None:
    graph = import_module(TwoHeads(), (IDS, SCALE))
    (product,) = [n for n in graph.nodes() if n.op.name == "matmul"]
    assert product.loc.file == __file__
    with open(__file__) as f:
        assert "logits = x @" in f.read().splitlines()[product.loc.line - 1]
    assert product.loc.text.startswith("test_torch.py:") and product.loc.text.endswith("in forward")
    inside = import_module(torch.nn.Sequential(torch.nn.ReLU()), (SCALE,))
    assert inside.outputs[0].loc.text == 'module "0" (ReLU)'


def test_exported_program_and_its_core_dialect() -> None:
    module = Lambda(lambda x: F.silu(x) + 1)
    program = torch.export.export(module, (SCALE,))
    for p in (program, program.run_decompositions()):
        compare(import_exported(p), module, (SCALE,))


def test_dynamic_sizes_keep_names_and_bounds() -> None:
    rows = Dim("rows", min=2, max=64)
    module = Lambda(lambda x: (torch.cat([x, x]).T.flatten(), x.shape[0] * x.mean(0), x[1:].flip(0)))
    graph = check(module, (torch.randn(4, 6),), {"args": ({0: rows},)})
    assert graph.inputs[0].shape == (Sym("rows", 2, 64), 6)
    assert str(graph.outputs[0].type) == "f32[12*rows]"
    for n in (3, 9):
        compare(graph, module, (torch.randn(n, 6),))
    with pytest.raises(InputError, match="rows >= 3"):  # PyTorch traced x[1:] as more than one row
        compare(graph, module, (torch.randn(2, 6),))


def test_derived_and_equal_sizes() -> None:
    half = Dim("half", min=2, max=64)
    derived = check(
        Lambda(lambda x, y: x[::2] + y), (torch.randn(8), torch.randn(4)), {"args": ({0: 2 * half}, {0: half})}
    )
    assert str(derived.inputs[0].type) == "f32[2*half]"
    rows, module = Dim("rows"), Lambda(lambda x: x[:, :3] * 2)
    alone = check(module, (torch.randn(3, 9),), {"args": ({0: rows, 1: 2 * half - 1},)})  # half's only place
    assert str(alone.inputs[0].type) == "f32[rows, 2*half - 1]"
    compare(alone, module, (torch.randn(1, 5),))
    auto = {"args": ({0: Dim.AUTO}, {0: Dim.AUTO})}
    joined = check(Lambda(lambda x, y: x + y), (torch.randn(5), torch.randn(5)), auto)
    assert joined.inputs[0].shape == joined.inputs[1].shape != (5,)


def test_an_index_may_be_a_tensor_s_element() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> Any:
        return x[i], x.T[i].sin()

    x = torch.randn(4, 5)
    program = torch.export.export(Lambda(f), (x, torch.tensor(2)))
    for i in (2, 0, 3, -1):
        compare(import_exported(program), Lambda(f), (x, torch.tensor(i)))


class ModulatedConv(torch.nn.Module):
    """Weights of its own for each sample, by groups as StyleGAN spells it."""

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        n, c = x.shape[:2]
        y = F.conv2d(x.reshape(1, n * c, *x.shape[2:]), weights.flatten(0, 1), None, (2, 1), 1, (1, 2), groups=n)
        return y.reshape(n, -1, *y.shape[2:])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [7, Dim("width", min=4, max=64)])
def test_groups_of_a_convolution_may_be_the_symbolic_batch(width: object) -> None:
    batch = Dim("batch", min=1, max=64)
    shape = {0: batch} if width == 7 else {0: batch, 3: width}
    graph = check(
        ModulatedConv(), (torch.randn(3, 4, 6, 7), torch.randn(3, 5, 4, 3, 3)), (shape, {0: batch}), rtol=1e-4
    )
    compare(graph, ModulatedConv(), (torch.randn(1, 4, 6, 7), torch.randn(1, 5, 4, 3, 3)), rtol=1e-4)


def test_sizes_as_numbers() -> None:
    module = Lambda(
        lambda x: (x / x.shape[0] ** 0.5 + torch.arange(x.shape[0]) * x.shape[0], torch.zeros(x.shape[0] * 2))
    )
    graph = check(module, (torch.randn(6),), {"args": ({0: Dim("n")},)})
    compare(graph, module, (torch.randn(11),))


def test_inputs_by_name() -> None:
    """As models with many optional arguments are called: those that are not given keep their defaults."""

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 2.0, mask: Any = None, shift: Any = None) -> torch.Tensor:
            return torch.where(mask, x, shift) * scale

    given = {"x": torch.randn(3, 4), "mask": torch.rand(3, 4) > 0.5, "shift": torch.randn(4)}
    batch = Dim("batch", min=1)
    shapes = {"x": {0: batch}, "mask": {0: batch}, "shift": None}
    compiled = tilewright.compile(Module(), example_inputs=given, dynamic_shapes=shapes, cache=False)
    assert [(i.name, i.shape[0]) for i in compiled.inputs] == [("x", "batch"), ("mask", "batch"), ("shift", 4)]
    for n in (1, 5):
        call = {"x": torch.randn(n, 4), "mask": torch.rand(n, 4) > 0.5, "shift": torch.randn(4)}
        torch.testing.assert_close(compiled(**call), Module()(**call))


def test_free_sizes_may_be_one() -> None:
    """PyTorch traces them as two or more, and runs what it traced with one too."""
    module = Lambda(lambda x: F.softmax(x @ x.mT, -1) @ x + x[:, -1:].sum(0))
    free = {"args": ({0: Dim.DYNAMIC, 1: Dim.AUTO},)}
    compiled = tilewright.compile(module, example_inputs=(torch.randn(3, 5, 4),), dynamic_shapes=free, cache=False)
    for n, steps in ((1, 5), (2, 1), (1, 1)):
        x = torch.randn(n, steps, 4)
        torch.testing.assert_close(compiled(x), module(x))


def test_sizes_that_data_decide() -> None:
    """Masks as indices of any axes, and programs that go on with a result of unknown size."""

    def f(x: torch.Tensor, keep: torch.Tensor) -> Any:
        rows = torch.nonzero(x[:, 0] > 0).squeeze(1)
        picked = x[rows] * 2
        return x[keep], x[:, x[0] > 0], torch.masked_select(x, x > 0), x.index_add(0, rows, picked), picked @ x.T

    auto = {"args": ({0: Dim.AUTO}, {0: Dim.AUTO})}
    x, keep = torch.randn(5, 6), torch.arange(5) % 2 == 0
    graph = check(Lambda(f), (x, keep), auto)
    compare(graph, Lambda(f), (torch.randn(8, 6), torch.zeros(8, dtype=torch.bool)))
    compiled = tilewright.compile(Lambda(f), example_inputs=(x, keep), dynamic_shapes=auto, cache=False)
    for n in (2, 9):
        inputs = torch.randn(n, 6), torch.rand(n) > 0.5
        for got, want in zip(compiled(*inputs), f(*inputs), strict=True):
            torch.testing.assert_close(got, want)


def test_products_by_group() -> None:
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    module = Lambda(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends))
    x, w = torch.randn(7, 8).bfloat16(), torch.randn(3, 8, 8).bfloat16()
    graph = check(module, (x[:5], w, ends), {"args": ({0: Dim("rows")}, {}, {})}, rtol=2e-2)
    compare(graph, module, (x, w, ends + 2), rtol=2e-2)


def test_cond_and_while_loop() -> None:
    branch = Lambda(lambda x: torch.cond(x.sum() > 0, lambda x: x * 2 + x.shape[0], lambda x: x - 1, (x,)))
    for sign in (1, -1):
        check(branch, (torch.ones(4, 3) * sign,), {"args": ({0: Dim("rows")},)})

    def count(x: torch.Tensor, n: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 2), (start, x + 1))

    graph = check(Lambda(count), (torch.randn(3), torch.tensor(4)))
    compare(graph, Lambda(count), (torch.randn(3), torch.tensor(0)))


def test_map_over_rows() -> None:
    """One that captures a matrix and gives two results, over a number of rows that a call decides."""

    def f(xs: torch.Tensor, w: torch.Tensor) -> Any:
        return map_rows(lambda x, w: ((x @ w).relu(), x.sum() + x.shape[0]), xs, w)

    shapes = {"args": ({0: Dim("rows", min=2)}, {})}
    graph = check(Lambda(f), (torch.randn(5, 3, 4), torch.randn(4, 6)), shapes)
    compare(graph, Lambda(f), (torch.randn(2, 3, 4), torch.randn(4, 6)))


def chained(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.add_(1)
    z = F.dropout(y.relu_(), 0.5, training=False, inplace=True)
    z.mul_(y)
    return y + z.view(-1)


def viewed_before(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    view = y.view(-1)
    y.add_(1)
    return view * y


def viewed_and_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[1:] = 7
    return y


def written_by_slices(x: torch.Tensor) -> torch.Tensor:
    """As the delta rule of gated linear attention: every row from those above it."""
    y = x.expand(4, x.shape[0]).contiguous().sin()
    early = y.unsqueeze(0).transpose(1, 2)[:, 1:]
    for i in range(1, 4):
        row, above = y[i, :i].clone(), y[:i, :i].clone()
        y[i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
    y[:, 0] += 1
    y[0].mul_(2)
    y.t().unsqueeze(0)[0, 1].fill_(3)
    y.view(2, -1)[1, 1:3].neg_()
    y[1::2, -1:] = 5
    return early @ y


def maybe_viewed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    maybe = y.reshape(-1)
    y.add_(1)
    return maybe * y


def argument_written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    z = y[1:]
    z.copy_(x[:-1])
    z[0] = x[0] + z[1]
    y.sub_(z.sum())
    return z * 2 + y[:1]


def turned_under_views(x: torch.Tensor) -> torch.Tensor:
    y = x.outer(x)
    view, row = y.view(-1), y[0]
    y.t_().add_(1)
    view[3] = 7
    return y.sum(0), view, row


CALLS = [(chained, True), (viewed_before, True), (viewed_and_written, True), (written_by_slices, True)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("f", "is_plain"), [*CALLS, (argument_written, True), (maybe_viewed, False), (turned_under_views, False)]
)
def test_in_place_calls(f: Any, is_plain: bool) -> None:
    """Writes that known views can see are taken as they stand; PyTorch rewrites the others."""
    module = Lambda(f)
    program = torch.export.export(module, (SCALE,))
    assert (writes_of(program.graph, IGNORED) is not None) is is_plain
    compare(import_exported(program), module, (SCALE,))


def test_rows_written_to_stay_rows_where_pytorch_rewrites_the_program() -> None:
    """A row put back as a choice at every element would make reading a row as long as the list of writes before it."""

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):  # a sub-graph, which only PyTorch's rewriting takes apart
            return written_by_slices(x)

    assert writes_of(torch.export.export(Lambda(f), (SCALE,)).graph, IGNORED) is None
    graph = check(Lambda(f), (SCALE,))
    assert ops.where not in {node.op for node in topological(graph.outputs)}


def test_bf16_and_integers() -> None:
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    linear = torch.nn.Linear(4, 5).bfloat16()
    check(Lambda(lambda x: (F.relu(linear(x)), x.to(torch.int8), (x > 0).sum())), (x,), rtol=2e-2)


def test_autocast() -> None:
    """Products read and give bf16 where PyTorch says so; the norm between them is in f32."""
    first, norm, second = torch.nn.Linear(24, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 24)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = second(F.gelu(norm(first(x))))
            q = y.reshape(2, 2, 8, 12)
            return y.float() + F.scaled_dot_product_attention(q, q, q).reshape(y.shape)

    x = torch.randn(16, 24)
    check(Lambda(f), (x,), rtol=2e-2)
    kernels = tilewright.compile(Lambda(f), (x,), cache=False).report()["kernels"]
    assert {p for k in kernels for p in k["products"]} == {"bf16"}


def test_every_unsupported_call_is_reported() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.eig(x).eigenvalues.real
        return y + torch.poisson(x)

    with pytest.raises(ImportFailed) as caught:
        import_module(Lambda(f), (torch.randn(3, 3),))
    found = {p.op: p for p in caught.value.problems}
    assert {"aten.linalg_eig.default", "aten.poisson.default"} <= found.keys() and found["aten.poisson.default"].remedy
    assert all(p.loc.text for p in caught.value.problems)


def test_checks_of_factors_keep_no_order() -> None:
    """PyTorch ties its checks for singular matrices into a chain of tokens."""

    def f(x: torch.Tensor) -> Any:
        return torch.linalg.inv(x), torch.linalg.cholesky(x @ x.mT + torch.eye(3)), torch.linalg.solve(x, x + 1)

    check(Lambda(f), (torch.randn(3, 3) + 3 * torch.eye(3),), rtol=1e-4)


def test_a_table_cut_to_the_sequence_bounds_it() -> None:
    """As MPT's position biases: ``8 - max(0, 8 - n)`` is ``n`` for as long as the table is."""
    table = torch.arange(8.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + table[max(0, 8 - x.shape[1]) :]

    graph = check(Lambda(f), (torch.ones(2, 5),), (({1: torch.export.Dim.AUTO},),))
    (n,) = (d for d in graph.inputs[0].shape if isinstance(d, Sym))
    assert n.hi == 8 and graph.outputs[0].shape == (2, n)


def test_what_only_a_check_reads_is_left_out() -> None:
    """As LLaVA's count of image tokens: ``_is_all_true`` and ``sym_ite`` have no form here and need none."""

    def f(x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all((x > 0).sum() * 2 == 8)
        return x + 1

    check(Lambda(f), (torch.ones(4),))


def test_what_export_refuses_is_an_import_error() -> None:
    with pytest.raises(ImportFailed, match="can't capture Lambda"):
        import_module(Lambda(lambda x: x if x.sum() > 0 else -x), (SCALE,))


def test_a_transform_that_export_does_not_follow_is_told_as_such() -> None:
    """The module runs in PyTorch, and to check that would be no remedy."""
    for f in (torch.func.grad(lambda v: v.sin().sum()), torch.func.jacfwd(torch.sin)):
        with pytest.raises(ImportFailed, match=r"grad, vjp.* of torch\.func only in part: use torch\.compile"):
            import_module(Lambda(f), (SCALE,))


def _covariance(x: torch.Tensor) -> torch.Tensor:
    x = x - x.mean(1, keepdim=True)
    return x @ x.mT / (x.shape[1] - 1)


@pytest.mark.parametrize(
    ("refused", "instead", "name"),
    [
        (torch.cov, _covariance, "x @ x.mT / (x.shape[1] - 1)"),
        (lambda x: torch.linalg.lstsq(x, x)[0], lambda x: torch.linalg.pinv(x) @ x, "torch.linalg.pinv(a) @ b"),
    ],
)
def test_calls_that_tracing_never_follows_have_their_own_remedy(refused: Any, instead: Any, name: str) -> None:
    """It was to keep Python control flow free of data. What is offered is captured, and means the same."""
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ImportFailed) as caught:
        import_module(Lambda(refused), (x,))
    assert caught.value.remedy is not None and name in caught.value.remedy
    check(Lambda(instead), (x,))
    torch.testing.assert_close(instead(x), refused(x))


def test_the_package_does_not_import_torch() -> None:
    code = "import sys, tilewright, tilewright.frontend.torch.export; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
