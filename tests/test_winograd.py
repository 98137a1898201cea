"""Winograd's form as native code: any size, padding, batch, number of threads; the option that forbids it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import ops
from tilewright.build import driver, kernels, texts
from tilewright.build.options import Clock, Options
from tilewright.choose.default import RULE_BROKE, Scheduled, schedule_with_steps
from tilewright.choose.shares import whole_extent
from tilewright.core.compute import Buffer, Computation
from tilewright.core.diag import OptionError
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import Array, TensorType, f32, u8
from tilewright.frontend.source import import_source
from tilewright.graph.pipeline import passes_for
from tilewright.ops.winograd import transformed_weights
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kind, walk


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tiled(
    x: tuple[object, ...], w: Array, bias: Array, m: int, pads: tuple[tuple[int, int], ...], **slides: tuple[int, ...]
) -> Graph:
    """relu(conv(x, w) + bias + residual) with the convolution in tiles of m x m."""
    pool = Pool()
    source = pool.input("x", TensorType(f32, x))
    (y,) = pool.results(
        pool.add(
            ops.winograd_conv,
            [source, pool.const(transformed_weights(w, m))],
            {"tile": m, "pads": pads, "strides": (), "dilations": (), **slides},
        )
    )
    residual = pool.input("r", y.type)
    (y,) = pool.results(pool.add(ops.add, [y, pool.const(bias)], {}))
    (y,) = pool.results(pool.add(ops.add, [y, residual], {}))
    (y,) = pool.results(pool.add(ops.relu, [y], {}))
    return Graph("g", pool, (source, residual), (y,), ("y",))


def expected(x: Array, w: Array, bias: Array, residual: Array, pads: tuple[tuple[int, int], ...]) -> Array:
    """The same in f64 by PyTorch."""
    (top, bottom), (left, right) = pads
    image = torch.nn.functional.pad(
        torch.from_numpy(x.astype(np.float64)).permute(0, 3, 1, 2), (left, right, top, bottom)
    )
    y = torch.nn.functional.conv2d(image, torch.from_numpy(w.astype(np.float64))).permute(0, 2, 3, 1).numpy()
    return np.maximum(y + bias + residual, 0)


def check(
    size: tuple[int, int],
    channels: tuple[int, int],
    batch: int,
    pads: tuple[tuple[int, int], ...],
    m: int,
    **options: object,
) -> None:
    n_in, n_out = channels
    x, w, bias = random(batch, *size, n_in), random(n_out, n_in, 3, 3, seed=1), random(n_out, seed=2)
    oh, ow = (n + sum(p) - 2 for n, p in zip(size, pads, strict=True))
    residual = random(batch, oh, ow, n_out, seed=3)
    want = expected(x, w, bias, residual, pads)
    for n in (batch, Sym("n", 1)):
        model = driver.compile_graph(tiled((n, *size, n_in), w, bias, m, pads), **options)
        notes = [note for k in model.report()["kernels"] for note in k["notes"]]
        assert not any(RULE_BROKE in note for note in notes), notes
        got = np.asarray(model(x, residual))
        assert float(np.abs(got - want).max()) <= 2e-5 * float(np.abs(want).max())


@pytest.mark.one_in(42)
@pytest.mark.parametrize("m", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("size", "channels", "batch", "pad"),
    [
        ((14, 14), (3, 17), 1, 1),
        ((13, 15), (17, 100), 3, 1),
        ((29, 9), (100, 3), 1, 0),
        ((6, 31), (257, 16), 2, 2),
        ((17, 5), (16, 257), 1, 1),
        ((40, 60), (64, 32), 1, 1),
        ((5, 5), (1, 1), 3, 2),
        ((3, 4), (8, 8), 1, 1),
        ((1, 1), (4, 4), 1, 2),
    ],
)
def test_any_size_and_any_channels(size, channels, batch, pad, m):
    check(size, channels, batch, ((pad, pad), (pad, pad)), m)


def test_one_channel_gives_sums_of_one_term():
    check((5, 5), (1, 1), 1, ((1, 1), (1, 1)), 2)


def check_volume(
    size: tuple[int, int, int],
    channels: tuple[int, int],
    batch: int,
    pads: tuple[tuple[int, int], ...],
    m: int,
    *,
    taps: int = 3,
    stride: int = 1,
    dilation: int = 1,
    **options: object,
) -> None:
    n_in, n_out = channels
    x, w, bias = random(batch, *size, n_in), random(n_out, n_in, taps, 3, 3, seed=1), random(n_out, seed=2)
    volume = torch.nn.functional.pad(
        torch.from_numpy(x.astype(np.float64)).permute(0, 4, 1, 2, 3), [n for pair in reversed(pads) for n in pair]
    )
    given = {"stride": (stride, 1, 1), "dilation": (dilation, 1, 1)}
    plain = torch.nn.functional.conv3d(volume, torch.from_numpy(w.astype(np.float64)), **given)
    plain = plain.permute(0, 2, 3, 4, 1).numpy()
    residual = random(*plain.shape, seed=3)
    want = np.maximum(plain + bias + residual, 0)
    for n in (batch, Sym("n", 1)):
        graph = tiled((n, *size, n_in), w, bias, m, pads, strides=(stride,), dilations=(dilation,))
        model = driver.compile_graph(graph, **options)
        notes = [note for k in model.report()["kernels"] for note in k["notes"]]
        assert not any(RULE_BROKE in note for note in notes), notes
        got = np.asarray(model(x, residual))
        assert float(np.abs(got - want).max()) <= 2e-5 * float(np.abs(want).max())


@pytest.mark.one_in(36)
@pytest.mark.parametrize(
    ("size", "channels", "batch", "pad", "slides"),
    [
        ((8, 14, 14), (3, 17), 1, 1, {}),
        ((4, 13, 15), (17, 100), 3, 1, {}),
        ((4, 13, 15), (20, 17), 1, 1, {}),  # a channel behind full vectors, and taps outside of the volume
        ((2, 28, 28), (64, 64), 1, 1, {}),
        ((1, 9, 9), (16, 16), 1, 1, {}),
        ((20, 12, 12), (16, 32), 1, 1, {}),
        ((5, 8, 8), (16, 16), 2, 0, {}),
        ((6, 8, 9), (20, 24), 1, 0, {"taps": 1}),
        ((9, 8, 9), (20, 24), 1, 2, {"taps": 4, "stride": 2}),
        ((9, 8, 9), (20, 24), 1, 2, {"taps": 3, "stride": 3, "dilation": 2}),
    ],
)
@pytest.mark.parametrize("m", [2, 4])
def test_volumes_of_any_depth(size, channels, batch, pad, slides, m):
    check_volume(size, channels, batch, ((pad, pad), (1, 1), (1, 1)), m, **slides)


def test_volumes_with_paddings_that_differ_and_crop():
    check_volume((7, 12, 11), (20, 24), 2, ((2, 0), (0, 2), (1, -1)), 4)
    check_volume((7, 9, 10), (20, 24), 1, ((-1, 1), (-1, 3), (0, 0)), 2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v2"])
def test_volumes_in_narrower_vectors(target):
    for m in (4, 5):
        check_volume((4, 14, 13), (20, 40), 2, ((1, 1),) * 3, m, target=target)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [(4, 28, 28, 32, 32), (2, 14, 14, 128, 96)])
def test_the_number_of_threads_changes_no_bit_of_a_volume(size):
    *image, n_in, n_out = size
    graph = tiled((1, *image, n_in), random(n_out, n_in, 3, 3, 3), random(n_out), 4, ((1, 1),) * 3)
    x, residual = random(1, *image, n_in), random(1, *image, n_out)
    results = [np.asarray(driver.compile_graph(graph, threads=t)(x, residual)) for t in (1, 2, 3)]
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_paddings_that_differ_and_crop():
    check((12, 11), (20, 24), 2, ((0, 2), (1, -1)), 4)
    check((9, 10), (20, 24), 1, ((-1, 3), (0, 0)), 2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v2"])
def test_narrower_vectors(target):
    for m in (4, 5):
        check((14, 13), (20, 40), 2, ((1, 1), (1, 1)), m, target=target)


def test_images_with_a_prime_number_of_tiles():
    check((4 * 13, 4 * 17), (64, 48), 1, ((1, 1), (1, 1)), 4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [(56, 56, 64, 64), (14, 14, 128, 96)])  # in blocks; in phases
def test_the_number_of_threads_changes_no_bit(size):
    h, w, n_in, n_out = size
    graph = tiled((1, h, w, n_in), random(n_out, n_in, 3, 3), random(n_out), 4, ((1, 1), (1, 1)))
    x, residual = random(1, h, w, n_in), random(1, h, w, n_out)
    results = [np.asarray(driver.compile_graph(graph, threads=t)(x, residual)) for t in (1, 2, 3, 5)]
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_no_number_becomes_another_where_the_input_is_not_finite():
    """What a tile does not read does not change; NaN and infinity reach at least the windows that hold them."""
    x = random(1, 16, 16, 16)
    x[0, 3, 3, 5] = np.nan
    graph = tiled((1, 16, 16, 16), random(16, 16, 3, 3), random(16), 4, ((1, 1), (1, 1)))
    got = np.asarray(driver.compile_graph(graph)(x, random(1, 16, 16, 16)))
    assert np.isnan(got[0, 2:5, 2:5]).all()
    assert np.isfinite(got[0, 8:, 8:]).all()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    ("n_in", "n_out", "h", "w"),
    [
        (16, 16, Sym("h", 1), Sym("w", 1)),
        (17, 40, Sym("h", 1), Sym("w", 1)),
        (300, 220, Sym("h", 1), Sym("w", 1)),  # too large for scratch
        (24, 20, 9, Sym("w", 1)),
        (24, 20, Sym("h", 1), 30),
    ],
)
def test_images_of_any_size_in_one_model(n_in, n_out, h, w, m):
    weights, bias, pads = random(n_out, n_in, 3, 3, seed=1), random(n_out, seed=2), ((1, 1), (0, 2))
    model = driver.compile_graph(tiled((Sym("n", 1), h, w, n_in), weights, bias, m, pads))
    assert not [note for k in model.report()["kernels"] for note in k["notes"]]
    for n, rows, columns in ((1, 1, 1), (2, 3, 17), (1, 16, 16), (1, 33, 5), (1, 37, 65)):
        x = random(n, *(size if isinstance(size, int) else k for size, k in ((h, rows), (w, columns))), n_in)
        residual = random(*x.shape[:-1], n_out, seed=3)
        want = expected(x, weights, bias, residual, pads)
        assert float(np.abs(np.asarray(model(x, residual)) - want).max()) <= 2e-5 * float(np.abs(want).max())


class Blocks(torch.nn.Module):
    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


def winograd_calls(model: tw.LoadedModel) -> int:
    return sum(k["calls"] for k in model.report()["kernels"] if "winograd_conv" in k["ops"])


def test_code_for_images_of_any_size_stays_small():
    """Borders in four nested loops, each cut wherever it might meet one, were ten times the code of known sizes."""
    w, bias, options = random(32, 32, 3, 3), random(32, seed=1), Options(target="x86-64-v4")
    lines = []
    for h, wide in ((40, 40), (Sym("h", 1), Sym("w", 1))):
        graph = texts.optimise(tiled((1, h, wide, 32), w, bias, 4, ((1, 1), (1, 1))), options, None)
        lines.append(sum(t.count("\n") for t in texts.kernel_texts(graph, options, "llvm", "winograd")))
    assert lines[1] < 3 * lines[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("channels", "depth", "size"), [(64, 12, 16), (512, 2, 14)])
def test_deep_nets_stay_within_the_bound_of_eager(channels, depth, size):
    torch.manual_seed(0)
    module, x = Blocks(channels, depth).eval(), torch.randn(1, channels, size, size)
    model = tw.compile(module, example_inputs=(x,), cache=False)
    assert winograd_calls(model) == depth
    with torch.no_grad():
        want = module(x).numpy()
    assert float(np.abs(np.asarray(model(x.numpy())) - want).max()) <= 1e-5 * float(np.abs(want).max())


@pytest.mark.one_in(30)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (torch.nn.Conv1d(56, 65, 3, padding=1), (150,)),
        (torch.nn.Conv1d(64, 64, 3, padding=8, dilation=4), (101,)),
        (torch.nn.Conv1d(64, 64, 5, padding=1, dilation=3), (197,)),
        (torch.nn.Conv1d(64, 64, 4), (130,)),
        (torch.nn.Conv2d(32, 32, 3, padding=3, dilation=3), (30, 31)),
        (torch.nn.Conv2d(40, 40, (3, 1), padding=(1, 0)), (30, 7)),
        (torch.nn.Conv2d(72, 72, (1, 3), padding=(0, 2), dilation=(1, 2)), (6, 161)),
        (torch.nn.Conv2d(100, 100, 5, padding=2), (37, 38)),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_sequences_and_dilations(layer, size, batch):
    """relu(conv(x)) + conv(x), also of an input that is read through a transpose."""
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return torch.relu(y) + y

    module, x = Net().eval(), torch.randn(batch, layer.in_channels, *size)
    for threads in (1, 2):
        model = tw.compile(module, example_inputs=(x,), cache=False, threads=threads)
        assert winograd_calls(model) == 1
        assert not any(RULE_BROKE in note for k in model.report()["kernels"] for note in k["notes"])
        with torch.no_grad():
            want = module.double()(x.double()).numpy()
        module.float()
        assert float(np.abs(np.asarray(model(x.numpy())) - want).max()) <= 2e-5 * float(np.abs(want).max())


def test_exact_never_takes_it_and_is_cached_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    torch.manual_seed(0)
    module, x = Blocks(32, 1).eval(), torch.randn(1, 32, 16, 16)
    counts = []
    for accuracy in ("default", "exact", "default", "exact"):
        model = tw.compile(module, example_inputs=(x,), accuracy=accuracy)
        assert model.report()["options"]["accuracy"] == accuracy
        counts.append(winograd_calls(model))
    assert counts == [1, 0, 1, 0]


def test_an_accuracy_that_is_not_offered():
    with pytest.raises(OptionError, match="sloppy"):
        Options(accuracy="sloppy")


def innermost_loops(text: str) -> list[list[str]]:
    """The instructions of each loop that holds no other one."""
    lines = text.split("\n")
    labels = {line.split(":")[0]: k for k, line in enumerate(lines) if line.startswith(".L")}
    jumps = [(k, line.split()[-1]) for k, line in enumerate(lines) if line.strip().startswith("j")]
    loops = [(labels[to], k) for k, to in jumps if labels.get(to, k + 1) <= k]
    return [lines[a:b] for a, b in loops if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in loops)]


@pytest.mark.parametrize(
    ("size", "channels", "n_cores", "blocks"),
    [
        (14, (128, 32), 2, 2),  # a block on each core, which exchange nothing
        (14, (256, 256), 2, None),  # a block would read 9 MB of constants
        (14, (128, 32), 16, None),  # too few tiles
        (56, (64, 64), 2, 14),  # of 7, the most that fit a cache, one core would have 4
    ],
)
def test_blocks_fall_evenly_on_the_cores(size, channels, n_cores, blocks):
    """The blocks are the parallel loop that is the whole kernel; without any, each phase has a loop of its own."""
    machine = replace(Target.parse("x86-64-v4"), n_cores=n_cores, ghz=1e-3)
    assert whole_extent(scheduled((1, size, size, channels[0]), channels[1], 4, machine).kernel) == blocks


def scheduled(shape: tuple[int, ...], n_out: int, tile: int, machine: Target, groups: int = 1) -> Scheduled:
    """The kernel alone of a convolution of an input of [N, (D,) H, W, C] with constant weights, 3 taps an axis."""
    op, side, n_leading = ops.winograd_conv, tile + 2, len(shape) - 4
    x = Buffer("x", f32, shape)
    w = Buffer("w", f32, (side, side, *(3,) * n_leading, shape[-1] // groups, n_out))
    y = Buffer("y", f32, (*shape[:-1], n_out))
    given = {"tile": tile, "pads": ((1, 1),) * (len(shape) - 2), "strides": (), "dilations": (), "groups": groups}
    stages = op.compute((x, w), (y,), Attrs(op.complete_attrs(given)))
    temps = tuple(b for s in stages for b in s.outs if b is not y)
    return schedule_with_steps(Computation((x, w), (y,), stages, temps), machine, constants=(w,))


@pytest.mark.parametrize(
    ("shape", "n_out", "tile", "groups", "extents"),
    [
        ((1, 56, 56, 512), 1024, 4, 32, [32, 7]),  # one group's constants are read again, not those of all
        ((1, 28, 28, 28, 3), 100, 4, 1, [7, 7]),  # a column of tiles is more than the cache's part, and most of it fits
        ((1, 14, 14, 14, 64), 64, 5, 1, [3, 2]),  # a block's products hide the constants that it reads again
        ((1, 28, 28, 128), 128, 4, 1, None),  # and too few of them do not
        ((16, 10, 14, 1024), 32, 4, 1, [16, 1, 1]),  # more than the near cache keeps, but not than the last one does
    ],
)
def test_blocks_pay_where_memory_would_pass_more(shape, n_out, tile, groups, extents):
    made = scheduled(shape, n_out, tile, replace(Target.parse("znver3"), n_cores=1), groups)
    nests = made.kernel.body
    outer = [s.loop.extent for s in walk(nests) if isinstance(s, For)][: len(extents or ())]
    assert (len(nests) == 1) == (extents is not None) and outer == (extents or [])


@pytest.mark.parametrize(
    ("shape", "n_out", "tile", "groups"),
    [
        ((4, 28, 28, 128), 128, 4, 1),  # 7 rows of tiles in blocks of 2
        ((1, 56, 56, 1024), 512, 4, 32),  # 14 in blocks of 5
        ((1, 14, 14, 14, 32), 100, 5, 1),  # a tile of all images of a volume
    ],
)
def test_threads_share_blocks_that_divide_no_image(shape, n_out, tile, groups):
    """Not the products in each block, while one block follows the other."""
    made = scheduled(shape, n_out, tile, replace(Target.parse("znver4"), n_cores=2), groups)
    (block,) = made.kernel.body
    shared = [s.loop.kind is Kind.PARALLEL for s in walk((block,)) if isinstance(s, For)]
    assert True in shared[:3]


def test_threads_share_what_a_block_does_that_is_too_large_for_scratch():
    made = scheduled((16, 10, 14, 1024), 32, 4, replace(Target.parse("znver4"), n_cores=2))
    (images,) = made.kernel.body
    assert images.loop.kind is Kind.SERIAL
    shared = [s for s in walk((images,)) if isinstance(s, For) and s.loop.kind is Kind.PARALLEL]
    phases = [s for s in shared if not any(s is not t and s in walk((t,)) for t in shared)]
    assert len(phases) == 3


@pytest.mark.parametrize(("n_out", "turning"), [(256, 3), (257, 2)])
def test_images_walk_weights_back_and_forth_but_for_a_ragged_panel(n_out, turning):
    """The panels of a point turn with the loops over points, unless the last is ragged: all would have masks."""
    made = scheduled((3, 17, 17, 100), n_out, 3, replace(Target.parse("x86-64-v4"), n_cores=1))
    assert sum(s.primitive == "alternate" for s in made.schedule.steps) == turning
    assert not [s for s in walk(made.kernel.body) if isinstance(s, For) and "%" in str(s.loop.extent)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("size", "m"), [((56, 56, 64, 64), 4), ((37, 37, 64, 64), 5), ((14, 14, 256, 256), 4), ((7, 7, 512, 512), 2)]
)
def test_products_and_transforms_stay_in_registers(size, m):
    """Registers are not spilled: the stack is only where blocks of columns and rows lie, at one access each."""
    h, w, n_in, n_out = size
    graph = tiled((1, h, w, n_in), random(n_out, n_in, 3, 3), random(n_out), m, ((1, 1), (1, 1)))
    graph = run_pipeline(graph, passes_for(2))
    text = "\n".join(texts.kernel_texts(graph, Options(target="x86-64-v4"), "asm", "winograd"))
    loops = sorted(innermost_loops(text), key=lambda loop: -sum("vfmadd" in line for line in loop))
    assert sum("vfmadd" in line for line in loops[0]) >= 16
    assert not any("(%rsp" in line or "(%rbp)" in line for line in loops[0])
    for loop in loops:
        vectors = [line for line in loop if "zmm" in line]
        assert sum("vmovups\t%zmm" in line for line in vectors) <= m + 2, "no more stores than results"


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("n_in", "n_out", "taps", "stride", "size", "batch", "inside"),
    [
        (17, 17, 3, 2, 29, 1, True),
        (24, 16, 5, 3, 20, 2, True),
        (17, 257, 5, 2, 17, 2, False),  # so many channels that a block of all phases would be a few tiles
        (128, 128, 3, 2, 8, 1, None),  # so many weights that those of missing taps cost more than results' copies
    ],
)
def test_the_phases_of_a_transposed_convolution_share_their_points(n_in, n_out, taps, stride, size, batch, inside):
    """Where that is faster; ``inside``: whether they take turns within the kernel, None where they stay apart."""
    torch.manual_seed(0)
    layer, x = (
        torch.nn.ConvTranspose2d(n_in, n_out, taps, stride, padding=1).eval(),
        torch.randn(batch, n_in, size, size),
    )
    graph = import_source(torch.export.export(layer, (x,)))
    wide = Options(target="x86-64-v4")
    labels = kernels.optimise_and_split(graph, wide, wide.machine, Clock()).kernels.labels.values()
    if inside is None:
        assert sum("concat" in label for label in labels) == 2
    else:
        assert ("  fuse(" in texts.schedules(graph, wide)) == inside
        assert sum("winograd_conv" in label for label in labels) == 1
    model = driver.compile_graph(graph)
    notes = [note for k in model.report()["kernels"] for note in k["notes"]]
    assert not any("compute_at" in note or RULE_BROKE in note for note in notes), notes
    with torch.no_grad():
        want = layer.double()(x.double()).numpy()
    assert float(np.abs(np.asarray(model(x.numpy())) - want).max()) <= 2e-5 * float(np.abs(want).max())


@pytest.mark.one_in(7)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64", "native"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "tile", "n_in", "n_out", "pads"), [
    ((12, 13), 4, 16, 24, ((1, 1), (1, 1))), ((9, 22), 2, 37, 16, ((0, 2), (2, 0))),
    ((7, 7), 3, 5, 9, ((1, 1), (1, 1))),
])  # fmt: skip
def test_bytes_in_tiles_are_the_same_integers(target, threads, size, tile, n_in, n_out, pads):
    rng = np.random.default_rng(tile)
    w = rng.integers(-128, 128, (n_out, n_in, 3, 3)).astype(np.int8)
    pool = Pool()
    source = pool.input("x", TensorType(u8, (2, *size, n_in)))
    u = pool.const(transformed_weights(w, tile).astype(np.int16))
    attrs = {"tile": tile, "pads": pads, "strides": (), "dilations": (), "outside": 9}
    (y,) = pool.results(pool.add(ops.winograd_conv, [source, u], attrs))
    graph = Graph("g", pool, (source,), (y,), ("y",))
    x = rng.integers(0, 256, (2, *size, n_in)).astype(np.uint8)
    padded = np.pad(x.astype(np.int64), ((0, 0), *pads, (0, 0)), constant_values=9)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    found = driver.compile_graph(graph, target=target, threads=threads)(x)
    np.testing.assert_array_equal(np.asarray(found), np.einsum("nyxcij,kcij->nyxk", windows, w.astype(np.int64)))
