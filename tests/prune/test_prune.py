"""`tilewright.prune`: PyTorch modules, masks and training, ONNX files, patterns of zeros, reports, wrong options."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright import ops
from tilewright.core.diag import Loc, OptionError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import Array, TensorType, f32
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.graph.interp import run
from tilewright.tools.prune.prune import PrunedGraph


class Branches(nn.Module):
    """A residual, a depthwise, a grouped and two concatenated convolutions, and a squeeze of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.point = nn.Conv2d(16, 16, 1)
        self.grouped = nn.Conv2d(16, 24, 3, groups=4, padding=1)
        self.left, self.right = nn.Conv2d(24, 8, 1), nn.Conv2d(24, 12, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(20, 4, 1), nn.Conv2d(4, 20, 1)
        self.head = nn.Linear(20 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.relu(x + self.point(torch.sigmoid(self.depthwise(x))))
        x = torch.nn.functional.gelu(self.grouped(x))
        x = torch.cat([self.left(x), self.right(x)], 1)
        x = x * torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


class Attention(nn.Module):
    """Heads in the pieces that people write, keys and values shared by pairs of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.q, self.k, self.v, self.out = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(32, 32)
        self.up, self.gate, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, _ = x.shape
        y = self.norm(x)
        q = self.q(y).view(n, t, 4, 8).transpose(1, 2)
        k, v = (f(y).view(n, t, 2, 8).repeat_interleave(2, dim=2).transpose(1, 2) for f in (self.k, self.v))
        y = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, -1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(n, t, 32))
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


IMAGE, TOKENS = torch.randn(2, 3, 6, 6), torch.randn(2, 5, 32)


@pytest.fixture(scope="module")
def branches() -> nn.Module:
    torch.manual_seed(1)
    net = Branches().eval()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            for t in (m.weight, m.bias, m.running_mean):
                nn.init.uniform_(t, 0.2, 1)
    return net


@pytest.fixture(scope="module")
def attention() -> nn.Module:
    torch.manual_seed(2)
    return Attention().eval()


def masked(net: nn.Module, masks: dict[str, Array]) -> nn.Module:
    """A copy whose weights are zero where they go."""
    made = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in masks:
                parameter.mul_(torch.from_numpy(masks[name]))
    assert masks.keys() <= dict(made.named_parameters()).keys()
    return made


def shapes(pruned: PrunedGraph) -> dict[str, tuple[int, ...]]:
    return {x.name: x.shape_after for x in pruned.report.layers}


def check_like_masked(net: nn.Module, x: torch.Tensor, pruned: Any) -> None:
    want = masked(net, pruned.plan.masks())(x).detach().numpy()
    np.testing.assert_allclose(tw.compile(pruned, cache=False)(x.numpy()), want, rtol=1e-4, atol=1e-5)


def test_channels_go_with_all_that_belongs_to_them(branches: nn.Module) -> None:
    pruned = tw.prune(branches, 0.5, round_to=1, example_inputs=(IMAGE,))
    assert shapes(pruned) == {
        "stem.0.weight": (8, 3, 3, 3), "depthwise.weight": (8, 1, 3, 3), "point.weight": (8, 8, 1, 1),
        # The same places of each of the four groups go, of which there are 4 going in and 6 coming out.
        "grouped.weight": (12, 2, 3, 3), "left.weight": (4, 12, 1, 1), "right.weight": (6, 12, 3, 3),
        "squeeze.weight": (2, 10, 1, 1), "excite.weight": (10, 2, 1, 1), "head.weight": (5, 40),
    }  # fmt: skip
    check_like_masked(branches, IMAGE, pruned)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_what_is_left_is_the_model_with_zeros(branches: nn.Module, norm: str, scope: str) -> None:
    pruned = tw.prune(branches, 0.4, norm=norm, scope=scope, round_to=2, example_inputs=(IMAGE,))
    before, after = pruned.report.parameters
    assert 0.2 * before < after < 0.8 * before
    check_like_masked(branches, IMAGE, pruned)


def test_channels_of_small_weights_go(branches: nn.Module) -> None:
    net = copy.deepcopy(branches)
    with torch.no_grad():
        net.left.weight[[1, 6]] *= 1e-3
        net.squeeze.weight[:, [1, 6]] *= 1e-3
        net.excite.weight[[1, 6]] *= 1e-3
    pruned = tw.prune(net, 0.25, round_to=1, example_inputs=(IMAGE,))
    kept = pruned.plan.masks()["left.weight"].any(axis=(1, 2, 3))
    assert np.flatnonzero(~kept).tolist() == [1, 6]


def test_channels_left_are_whole_vectors_where_there_are_several(branches: nn.Module) -> None:
    found = shapes(tw.prune(branches, 0.3, example_inputs=(IMAGE,)))
    assert found["stem.0.weight"][0] == 8  # of 16, with 11.2 asked for
    assert found["left.weight"][0] == 6  # of 8, which are one vector
    assert found["grouped.weight"][0] == 16  # of 24, four going together


def test_heads_go_with_the_keys_that_they_share(attention: nn.Module) -> None:
    pruned = tw.prune(attention, 0.5, structure="heads", example_inputs=(TOKENS,))
    found = shapes(pruned)
    assert [found[f"{n}.weight"] for n in "qkv"] == [(16, 32), (8, 32), (8, 32)]
    assert found["out.weight"] == (32, 16)
    assert found["up.weight"] == (48, 32)
    check_like_masked(attention, TOKENS, pruned)


def test_gated_layers_lose_the_same_channels(attention: nn.Module) -> None:
    pruned = tw.prune(attention, 0.5, example_inputs=(TOKENS,))
    found = shapes(pruned)
    assert (found["up.weight"], found["gate.weight"], found["down.weight"]) == ((24, 32), (24, 32), (32, 24))
    assert found["q.weight"] == (32, 32)
    check_like_masked(attention, TOKENS, pruned)


def test_a_plan_takes_the_same_from_a_model_that_was_trained_with_masks(branches: nn.Module) -> None:
    pruned = tw.prune(branches, 0.4, round_to=1, example_inputs=(IMAGE,))
    masks = pruned.plan.masks()
    net = masked(branches, masks).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 3, 6, 6)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                if name in masks:
                    parameter.mul_(torch.from_numpy(masks[name]))
    net.eval()
    again = tw.prune(net, plan=pruned.plan, example_inputs=(IMAGE,))
    assert shapes(again) == shapes(pruned)
    want = net(IMAGE).detach().numpy()
    assert np.abs(want - branches(IMAGE).detach().numpy()).max() > 1e-2  # training did something
    np.testing.assert_allclose(tw.compile(again, cache=False)(IMAGE.numpy()), want, rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("structure", ["elements", "2:4", "blocks"])
def test_weights_become_zero_and_shapes_stay(attention: nn.Module, structure: str) -> None:
    amount = None if structure == "2:4" else 0.75
    pruned = tw.prune(attention, amount, structure=structure, block=(4, 8), example_inputs=(TOKENS,))
    masks = pruned.plan.masks()
    assert masks.keys() == {f"{n}.weight" for n in ("q", "k", "v", "out", "up", "gate", "down")}
    for name, mask in masks.items():
        size = np.abs(attention.get_parameter(name).detach().numpy())
        assert mask.mean() == (0.5 if amount is None else 0.25)
        if structure == "2:4":
            quads, left = size.reshape(-1, 4), mask.reshape(-1, 4)
            assert (left.sum(1) == 2).all()
            assert (np.where(left, quads, 9).min(1) >= np.where(left, 0, quads).max(1)).all()
        elif structure == "blocks":  # rows of 4 of the module's second axis, which is summed over, by 8 of the first
            n, depth = mask.shape
            blocks = mask.reshape(n // 8, 8, depth // 4, 4)
            assert (blocks.all((1, 3)) | ~blocks.any((1, 3))).all()
        else:
            assert size[mask].min() >= size[~mask].max()
    check_like_masked(attention, TOKENS, pruned)
    again = tw.prune(masked(attention, masks), plan=pruned.plan, example_inputs=(TOKENS,))
    np.testing.assert_array_equal(run(again, [TOKENS.numpy()])[0], run(pruned, [TOKENS.numpy()])[0])


def test_all_layers_may_be_compared(attention: nn.Module) -> None:
    net = copy.deepcopy(attention)
    with torch.no_grad():
        net.up.weight *= 0.01
    pruned = tw.prune(net, 0.25, structure="elements", scope="global", example_inputs=(TOKENS,))
    before, after = pruned.report.parameters
    assert after == before - int(0.25 * before)
    assert not pruned.plan.masks()["up.weight"].any()


def chain(*weights: Array, is_turned: bool = False) -> Graph:
    """``relu(relu(x @ w) @ v) ...`` for x f32[2, K], and at last by the transpose of the last weights."""
    b = Builder(Pool())
    x = y = b.pool.input("x", TensorType(f32, (2, len(weights[0]))))
    for k, array in enumerate(weights):
        w = b.pool.const(array, loc=Loc(f'weight "w{k}"'))
        y = b(ops.relu, b(ops.matmul, y, w))
    if is_turned:
        y = b(ops.matmul, y, b(ops.transpose, w, perm=(1, 0)))
    return Graph("g", b.pool, (x,), (y,), ("y",))


@pytest.mark.parametrize("structure", ["elements", "blocks", "channels"])
def test_equal_weights_go_from_all_layers_evenly(structure: str) -> None:
    weights = [np.ones((64, 64), np.float32), -np.ones((64, 64), np.float32), np.ones((64, 32), np.float32)]
    graph = chain(*weights)
    report = tw.prune(graph, 0.25, structure=structure, scope="global", round_to=1).report
    for layer in report.layers[: 2 if structure == "channels" else 3]:
        assert 0.5 < layer.parameters_after / layer.parameters_before < 0.8


@pytest.mark.parametrize("structure", ["elements", "channels"])
def test_a_model_without_layers_stays(structure: str) -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (2,)))
    pruned = tw.prune(Graph("g", b.pool, (x,), (b(ops.relu, x),), ("y",)), 0.5, structure=structure, scope="global")
    assert pruned.report.layers == () and pruned.plan.masks() == {}


@pytest.mark.parametrize("structure", ["elements", "2:4", "blocks", "channels"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_stay(structure: str, scope: str, value: float) -> None:
    weights = [np.random.default_rng(k).standard_normal((16, 16)).astype(np.float32) for k in range(2)]
    weights[0][5, 3] = value
    plan = tw.prune(chain(*weights), 0.5, structure=structure, scope=scope, block=(2, 4), round_to=1).plan
    masks = plan.masks()
    name = min(masks)
    assert masks[name][5, 3] and 64 < masks[name].sum() < 192


def test_weights_that_two_products_read_have_one_mask() -> None:
    w = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    pruned = tw.prune(chain(w, is_turned=True), structure="2:4")
    (mask,) = pruned.plan.masks().values()
    assert (mask.reshape(16, 4, 128).sum(1) == 2).all() and mask.flags.writeable
    assert {(x.parameters_after, x.why) for x in pruned.report.layers} == {(64 * 128 // 2, "")}


def test_weights_in_another_type_have_masks() -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (2, 16)))
    w = b.const(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float16))
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, b(ops.cast, w, dtype=f32)),), ("y",))
    (mask,) = tw.prune(graph, 0.5, structure="elements").plan.masks().values()
    assert mask.mean() == 0.5


def test_a_plan_holds_where_whole_layers_became_zero(attention: nn.Module) -> None:
    net = copy.deepcopy(attention)
    with torch.no_grad():
        for layer in (net.k, net.v):  # small tensors, which a graph has once where they are equal
            layer.weight *= 1e-6
    pruned = tw.prune(net, 0.3, structure="blocks", block=(4, 8), scope="global", example_inputs=(TOKENS,))
    masks = pruned.plan.masks()
    assert not masks["k.weight"].any() and not masks["v.weight"].any()
    again = tw.prune(masked(net, masks), plan=pruned.plan, example_inputs=(TOKENS,))
    assert {x.why for x in again.report.layers} == {""}
    np.testing.assert_array_equal(run(again, [TOKENS.numpy()])[0], run(pruned, [TOKENS.numpy()])[0])


def test_convolutions_keep_their_weights_where_only_matrices_have_the_form(branches: nn.Module) -> None:
    pruned = tw.prune(branches, structure="2:4", example_inputs=(IMAGE,))
    reasons = {x.name: x.why for x in pruned.report.layers}
    assert reasons["head.weight"] == "" and "matrix" in reasons["stem.0.weight"]


def test_files_hold_the_smaller_model(branches: nn.Module, tmp_path: Path) -> None:
    pruned = tw.prune(branches, 0.5, example_inputs=(IMAGE,))
    pruned.save(tmp_path / "small.onnx")
    back = import_onnx(tmp_path / "small.onnx")
    got, want = (run(g, [IMAGE.numpy()])[0] for g in (back, pruned))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_command_writes_a_model_and_masks(cli: Callable[..., Any], branches: nn.Module, tmp_path: Path) -> None:
    tw.prune(branches, 0.0, round_to=1, example_inputs=(IMAGE,)).save(tmp_path / "net.onnx")
    source, target = tmp_path / "net.onnx", tmp_path / "small.onnx"
    ran = cli("prune", source, "--amount", 0.5, "-o", target, "--masks", tmp_path / "masks.npz", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    names = {x["name"] for x in told["layers"]} - {t.name for t in onnx.load(source).graph.initializer}
    assert len(names) == 1 and "(Gemm)" in names.pop()  # small weights that a Gemm turns
    assert told["parameters"][1] < 0.5 * told["parameters"][0] and told["options"]["amount"] == 0.5
    assert target.stat().st_size < 0.6 * source.stat().st_size
    with np.load(tmp_path / "masks.npz") as masks:
        assert {k: masks[k].shape for k in masks} == {
            x["name"]: tuple(x["shape_before"]) for x in told["layers"] if x["shape_before"] != x["shape_after"]
        }
    ran = cli("prune", source, "--amount", 0.5)
    assert ran.code == 0 and "parameters are left" in ran.out and (tmp_path / "net.pruned.onnx").exists()
    assert cli("prune", source).code == 2


def two_equal_layers() -> Graph:
    """Two small layers of equal weights, one node of the graph."""
    b, w = Builder(Pool()), np.eye(4, dtype=np.float32)
    x = b.pool.input("x", TensorType(f32, (2, 4)))
    y = b(ops.matmul, b(ops.relu, b(ops.matmul, x, b.const(w))), b.const(w))
    return Graph("g", b.pool, (x,), (y,), ("y",))


def test_equal_small_weights_of_two_layers_are_cut_apart() -> None:
    pruned = tw.prune(two_equal_layers(), 0.5, round_to=1)
    assert [x.shape_after for x in pruned.report.layers] == [(4, 2), (2, 4)]
    got = run(pruned, [np.arange(8, dtype=np.float32).reshape(2, 4)])[0]
    assert (got != 0).sum() == 4
    with pytest.raises(OptionError, match="weights of several layers"):
        pruned.plan.masks()


def test_spared_layers_keep_their_channels(branches: nn.Module) -> None:
    pruned = tw.prune(branches, 0.5, round_to=1, spare=["left.weight", "point.weight"], example_inputs=(IMAGE,))
    found = shapes(pruned)
    assert found["left.weight"] == (8, 12, 1, 1)
    assert found["stem.0.weight"][0] == 16  # the residual of the spared layer
    assert {x.name for x in pruned.report.layers if x.why == "spared as asked"} == {"left.weight", "point.weight"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "how much"),
        ({"amount": 1.0}, "is no part"),
        ({"amount": -0.1}, "is no part"),
        ({"amount": 0.5, "structure": "rows"}, "structure='rows' is not offered"),
        ({"amount": 0.5, "norm": "l3"}, "norm='l3' is not offered"),
        ({"amount": 0.5, "scope": "all"}, "scope='all' is not offered"),
        ({"amount": 0.5, "round_to": 0}, "whole numbers"),
        ({"amount": 0.5, "block": (4,)}, "whole numbers"),
        ({"amount": 0.3, "structure": "2:4"}, "takes half"),
        ({"amount": 0.5, "spare": ["nothing"]}, "no layer 'nothing'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        tw.prune(two_equal_layers(), **options)


def test_a_plan_of_another_model_is_refused(attention: nn.Module, branches: nn.Module) -> None:
    for structure in ("channels", "elements"):
        plan = tw.prune(attention, 0.5, structure=structure, example_inputs=(TOKENS,)).plan
        with pytest.raises(OptionError, match=r"of another model|the plan has a layer"):
            tw.prune(branches, plan=plan, example_inputs=(IMAGE,))
    with pytest.raises(OptionError, match="exclude"):
        tw.prune(branches, 0.5, plan=plan, example_inputs=(IMAGE,))
