"""Families of ATen calls: the imported graph computes what eager PyTorch computes."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from frontend.torch_compare import Several, check, check_functions, compare
from tilewright import ops

torch.manual_seed(0)
X = torch.randn(2, 3, 4)
Y = torch.randn(2, 3, 4)
INTS = torch.tensor([[7, -7, 5], [-5, 0, 9]])
OTHER = torch.tensor([[2, 2, -3], [-3, 4, 9]])
BOOLS = torch.tensor([[True, False, True], [False, False, True]])
IMAGE = torch.randn(2, 4, 9, 8)


def test_unary() -> None:
    names = "abs neg sign exp exp2 expm1 sin cos tan atan sinh cosh tanh asinh erf floor ceil trunc round sigmoid sgn"
    functions = {name: getattr(torch, name) for name in names.split()}
    functions |= {
        f"p_{n}": lambda x, n=n: getattr(torch, n)(x.abs() + 0.1)
        for n in "log log2 log10 log1p sqrt rsqrt reciprocal".split()
    }
    functions |= {f"u_{n}": lambda x, n=n: getattr(torch, n)(x.tanh() * 0.9) for n in "asin acos atanh".split()}
    functions |= {
        "acosh": lambda x: torch.acosh(x.abs() + 1),
        "isnan": lambda x: torch.isnan(x / 0 * 0),
        "isinf": lambda x: torch.isinf(x / 0),
        "isfinite": lambda x: torch.isfinite(x / (x > 0)),
        "square": torch.square,
        "round2": lambda x: torch.round(x, decimals=2),
        "rrelu": F.rrelu,
        "frac": torch.frac,
        "nan_to_num": lambda x: torch.nan_to_num(x / (x > 0)),
        "logit": lambda x: torch.logit(torch.sigmoid(x)),
        "signbit": torch.signbit,
        "sign_of_nan": lambda x: torch.sign(x / 0 * 0 + x * 0),
        "copysign": lambda x: torch.copysign(torch.ones(()), x),
        "deg2rad": torch.deg2rad,
        "sinc": torch.sinc,
    }
    check_functions(functions, X, rtol=1e-4)


def test_activations() -> None:
    names = "relu relu6 silu gelu mish hardswish hardsigmoid softplus softsign selu elu celu leaky_relu logsigmoid"
    functions = {name: getattr(F, name) for name in names.split()}
    functions |= {
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "softplus_beta": lambda x: F.softplus(x, beta=2.0),
        "elu_alpha": lambda x: F.elu(x, 0.3),
        "threshold": lambda x: F.threshold(x, 0.1, 20.0),
        "prelu": lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3])),
        "glu": lambda x: F.glu(x, -1),
        "hardtanh": F.hardtanh,
        "tanhshrink": F.tanhshrink,
        "hardshrink": F.hardshrink,
        "softshrink": F.softshrink,
        "softmax": lambda x: F.softmax(x, 1),
        "log_softmax": lambda x: F.log_softmax(x, -1),
        "softmin": lambda x: F.softmin(x, 0),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    }
    check_functions(functions, X)


def test_binary_promotes_as_aten() -> None:
    check_functions(
        {
            "add_alpha": lambda x, i, b: torch.add(x, x * 2, alpha=0.5),
            "int_plus_float_number": lambda x, i, b: i + 1.5,
            "int_times_bool": lambda x, i, b: i * b,
            "bool_plus_int_number": lambda x, i, b: b + 1,
            "int_true_div": lambda x, i, b: i / 2,
            "int_div_int": lambda x, i, b: i / 4,
            "i32_plus_i64_scalar_tensor": lambda x, i, b: i.int() + torch.tensor(3),
            "f16_plus_f32_scalar_tensor": lambda x, i, b: x.half() + torch.tensor(3.0),
            "i8_plus_u8": lambda x, i, b: i.to(torch.int8) + i.abs().to(torch.uint8),
            "f16_times_bf16": lambda x, i, b: x.half() * x.bfloat16(),
            "compare_int_with_float": lambda x, i, b: i > 4.5,
            "compare_bool": lambda x, i, b: b == 1,
            "rsub": lambda x, i, b: 2 - i,
            "sin_of_int": lambda x, i, b: torch.sin(i),
            "floor_of_int": lambda x, i, b: torch.floor(i),
            "mean_of_f64": lambda x, i, b: i.double().mean(),
            "where": lambda x, i, b: torch.where(b, i, 0.5),
            "clamp_int_by_float": lambda x, i, b: torch.clamp(i, 0.5),
            "sum_of_bool": lambda x, i, b: b.sum(),
            "prod_i32": lambda x, i, b: i.int().prod(1),
            "prod_bool": lambda x, i, b: i.prod(1, dtype=torch.bool),
            "sum_bool": lambda x, i, b: b.sum(1, dtype=torch.bool),
        },
        X[0, :2, :3].contiguous(), INTS, BOOLS, rtol=1e-3,
    )  # fmt: skip


def test_integer_division_and_remainders() -> None:
    check_functions(
        {
            "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
            "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
            "float_floor": lambda a, b: torch.div(a.float(), b, rounding_mode="floor"),
            "float_trunc": lambda a, b: torch.div(a.float(), b, rounding_mode="trunc"),
            "floor_divide": lambda a, b: a // b,
            "remainder": lambda a, b: a % b,
            "fmod": torch.fmod,
            "float_remainder": lambda a, b: a.float() % b,
            "pow": lambda a, b: a**3,
            "float_pow": lambda a, b: a.abs().float() ** b,
            "number_pow": lambda a, b: 2.0**b,
            "shift_left": lambda a, b: a << 2,
            "shift_right": lambda a, b: a >> 1,
            "bits": lambda a, b: (a & b) | (a ^ 3),
            "not": lambda a, b: ~a,
            "logical": lambda a, b: torch.logical_and(a, b) | torch.logical_xor(a, b),
            "logical_not": lambda a, b: torch.logical_not(a),
            "xlogy": lambda a, b: torch.xlogy(a.abs(), b.abs()),
            "atan2": lambda a, b: torch.atan2(a.float(), b.float()),
            "lerp": lambda a, b: torch.lerp(a.float(), b.float(), 0.3),
            "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
        },
        INTS, OTHER,
    )  # fmt: skip


def test_reductions() -> None:
    check_functions(
        {
            "sum": lambda x: x.sum(),
            "sum_dims": lambda x: x.sum((0, -1), keepdim=True),
            "mean": lambda x: x.mean(1),
            "amax": lambda x: x.amax((1, 2)),
            "amin": lambda x: x.amin(-1, keepdim=True),
            "max": lambda x: x.max(),
            "max_dim": lambda x: x.max(1),
            "min_dim": lambda x: x.min(dim=-1, keepdim=True),
            "argmax": lambda x: x.argmax(),
            "argmin": lambda x: x.argmin(1, keepdim=True),
            "prod": lambda x: x.prod(2),
            "any": lambda x: (x > 2).any(),
            "all": lambda x: (x > -1).all(1),
            "var": lambda x: x.var(1),
            "var0": lambda x: x.var((0, 2), correction=0),
            "std": lambda x: x.std(-1, keepdim=True),
            "var_mean": lambda x: torch.var_mean(x, 1),
            "logsumexp": lambda x: x.logsumexp(1),
            "norm1": lambda x: torch.linalg.vector_norm(x, 1, -1),
            "norm2": lambda x: x.norm(),
            "norm3": lambda x: torch.linalg.vector_norm(x, 3, (0, 1)),
            "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 0),
            "normalize": lambda x: F.normalize(x, dim=1),
            "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=1),
            "cumsum": lambda x: x.cumsum(1),
            "cumprod": lambda x: x.cumprod(-1),
            "cummax": lambda x: x.cummax(1).values,
            "topk": lambda x: x.topk(2, 1),
            "sort": lambda x: x.sort(-1, descending=True),
            "argsort": lambda x: x.argsort(0),
            "median": lambda x: x.median(2),
            "count_nonzero": lambda x: torch.count_nonzero(x > 0),
        },
        X,
    )


def test_differences_of_neighbours() -> None:
    def functions(end: str) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
        around = {"prepend": lambda x: x[:, :1], "append": lambda x: x[:, 1:]}
        ends = {name: part for name, part in around.items() if name in end}
        return {
            f"{n} along {dim} {end}": lambda x, n=n, dim=dim: x.diff(n, dim, **{k: f(x) for k, f in ends.items()})
            for n in (0, 1, 2, 5)
            for dim in ((1,) if ends else (0, -1))
        }

    every = functions("") | functions("prepend") | functions("append") | functions("prepend, append")
    for x in (X, INTS, BOOLS, X[:, :1].bfloat16(), torch.empty(2, 0)):
        check_functions(every if x.numel() else functions(""), x)


def test_movement() -> None:
    check_functions(
        {
            "view": lambda x: x.view(6, -1),
            "permute": lambda x: x.permute(2, 0, 1),
            "transpose": lambda x: x.transpose(0, -1),
            "mT": lambda x: x.mT,
            "squeeze": lambda x: x[:, :1].squeeze(1),
            "unsqueeze": lambda x: x.unsqueeze(-1),
            "expand": lambda x: x[:, :, :1].expand(-1, -1, 5),
            "slice": lambda x: x[:, 1:, ::2],
            "negative_slice": lambda x: x[:, -2:, :-1],
            "empty_slice": lambda x: x[:, 3:],
            "select": lambda x: x[:, -1],
            "flip": lambda x: x.flip(0, 2),
            "roll": lambda x: x.roll((1, -1), (0, 2)),
            "roll_flat": lambda x: x.roll(5),
            "repeat": lambda x: x.repeat(2, 1, 1, 2),
            "tile": lambda x: x.tile(2),
            "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
            "cat": lambda x: torch.cat([x, torch.zeros(0), x[:, :, :2]], -1),
            "stack": lambda x: torch.stack([x, x + 1], 1),
            "split": lambda x: x.split(2, 1),
            "split_sizes": lambda x: x.split([1, 3], 2),
            "chunk": lambda x: x.chunk(3, 1),
            "unbind": lambda x: x.unbind(1),
            "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
            "crop": lambda x: F.pad(x, (-1, 2)),
            "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
            "replicate": lambda x: F.pad(x, (2, 1), mode="replicate"),
            "circular": lambda x: F.pad(x, (2, 1), mode="circular"),
            "tril": lambda x: x.tril(1),
            "triu": lambda x: x.triu(-1),
            "diagonal": lambda x: x.diagonal(1, 1, 2),
            "unfold": lambda x: x.unfold(2, 2, 1),
            "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 4),
            "movedim": lambda x: x.movedim(0, 2),
            "flatten": lambda x: x.flatten(1),
            "swapaxes": lambda x: x.swapaxes(0, 1),
            "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
        },
        X,
    )


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1:3] = 5
    y[0].mul_(2)
    y[:, :, ::2] += 1
    y.relu_()
    return y.add_(1)


def assigned(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, i[0]] = torch.arange(12.0).view(3, 4)
    y[:, 1, i[1]] = 0.5
    return y


def masked(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[y > 0] = 3.0
    return y


def test_in_place_writes_and_indices() -> None:
    i = torch.tensor([[2, 0, -1], [1, 1, 0]])
    check_functions(
        {
            "in_place": lambda x, i: in_place(x),
            "take": lambda x, i: x[:, i],
            "two": lambda x, i: x[:, i.abs(), i.abs()],
            "apart": lambda x, i: x[i.abs() % 2, :, i.abs()],
            "front": lambda x, i: x[torch.tensor([0, 1, 0]), torch.tensor([2, 1, 0])],
            "gather": lambda x, i: torch.gather(x, 1, i.abs().unsqueeze(-1).expand(2, 3, 4)),
            "gather_nothing": lambda x, i: x.gather(0, torch.zeros(2, 0, dtype=torch.long)),
            "index_select": lambda x, i: torch.index_select(x, 1, i[1]),
            "embedding": lambda x, i: F.embedding(i.abs(), x[0]),
            "scatter": lambda x, i: torch.scatter(x, 1, i.abs().unsqueeze(-1), 9.0),
            "scatter_src": lambda x, i: torch.scatter(x, 1, i.abs()[:, :1, None], x * 2),
            "scatter_add": lambda x, i: x.scatter_add(1, i.abs().unsqueeze(-1).expand(2, 3, 4), x),
            "scatter_reduce": lambda x, i: x.scatter_reduce(1, i.abs().unsqueeze(-1).expand(2, 3, 4), x, "amax"),
            "index_add": lambda x, i: x.index_add(1, i[1], x, alpha=2),
            "index_put": lambda x, i: x.index_put((torch.tensor([0, 1]), torch.tensor([1, 2])), torch.ones(2, 4)),
            "assign_rows": assigned,
            "masked_assign": lambda x, i: masked(x),
            "mask_put": lambda x, i: x.masked_fill(x > 0, -1),
            "mask_index_put": lambda x, i: torch.where(x > 0, 0.0, x),
            "one_hot": lambda x, i: F.one_hot(i.abs(), 4),
            "select_scatter": lambda x, i: x.select_scatter(x[:, 0] * 3, 1, 2),
            "diag_embed": lambda x, i: torch.diag_embed(x[0]),
        },
        X, i,
    )  # fmt: skip


def test_sources() -> None:
    check_functions(
        {
            "arange": lambda x: torch.arange(5) + x.sum() * 0,
            "arange_float": lambda x: torch.arange(0.5, 3.0, 0.25) + x.sum() * 0,
            "arange_back": lambda x: torch.arange(7, -1, -2) + x.sum() * 0,
            "full": lambda x: torch.full((2, 2), 3) * x[0, :2, :2],
            "zeros_ones": lambda x: torch.zeros_like(x) + x.new_ones(4),
            "linspace": lambda x: torch.linspace(-1, 2, 7) + x.sum() * 0,
            "linspace_of_integers": lambda x: torch.linspace(4.3, 0, 50, dtype=torch.int64) + x.sum() * 0,
            "linspace_of_tensors": lambda x: torch.linspace(torch.tensor(4.3), 1, 50, dtype=torch.int64) + x.sum() * 0,
            "eye": lambda x: torch.eye(3, 4) * x,
            "scalar": lambda x: x * torch.tensor(2.5),
        },
        X,
    )


def test_contractions() -> None:
    a, b, v = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(4)
    weight, bias = torch.randn(6, 4), torch.randn(6)
    check_functions(
        {
            "mm": lambda a, b, v: a[0] @ b[0],
            "bmm": lambda a, b, v: torch.bmm(a, b),
            "broadcast": lambda a, b, v: a.unsqueeze(1) @ b,
            "mv": lambda a, b, v: a[0] @ v,
            "vm": lambda a, b, v: v @ b,
            "dot": lambda a, b, v: v @ v,
            "outer": lambda a, b, v: torch.outer(v, v),
            "addmm": lambda a, b, v: torch.addmm(b[0, :3], a[0], b[0], beta=0.5, alpha=2),
            "baddbmm": lambda a, b, v: torch.baddbmm(b[:, :3], a, b),
            "linear": lambda a, b, v: F.linear(a, weight, bias),
            "linear_1d": lambda a, b, v: F.linear(v, weight),
            "einsum": lambda a, b, v: torch.einsum("bij,bjk->kbi", a, b),
            "ints": lambda a, b, v: (a * 3).long()[0] @ (b * 3).long()[0],
            "int8": lambda a, b, v: torch._int_mm((a[0] * 40).to(torch.int8), (b[0] * 40).to(torch.int8)),
            "cdist": lambda a, b, v: torch.cdist(a, a, compute_mode="donot_use_mm_for_euclid_dist"),
        },
        a, b, v,
    )  # fmt: skip


def test_convolutions() -> None:
    w, dw, b = torch.randn(6, 4, 3, 3), torch.randn(4, 1, 3, 3), torch.randn(6)
    check_functions(
        {
            "conv2d": lambda x: F.conv2d(x, w, b, padding=1),
            "strided": lambda x: F.conv2d(x, w, stride=(2, 1), dilation=(1, 2)),
            "depthwise": lambda x: F.conv2d(x, dw, groups=4, padding="same"),
            "conv1d": lambda x: F.conv1d(x[:, :, 0], w[:, :, 0], b, stride=2),
            "conv3d": lambda x: F.conv3d(x.unsqueeze(2), w.unsqueeze(2), b),
            "unbatched": lambda x: F.conv2d(x[0], w, b),
            "transposed": lambda x: F.conv_transpose2d(x, w.transpose(0, 1), b, stride=2, padding=1, output_padding=1),
            "transposed_groups": lambda x: F.conv_transpose2d(x, dw, groups=4, dilation=2),
            "transposed1d": lambda x: F.conv_transpose1d(x[:, :, 0], w.transpose(0, 1)[:, :, 0], stride=3),
        },
        IMAGE, rtol=1e-4,
    )  # fmt: skip


def test_pools() -> None:
    check_functions(
        {
            "max": lambda x: F.max_pool2d(x, 3, 2, 1),
            "max_ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
            "max_dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
            "max_indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
            "max1d": lambda x: F.max_pool1d(x[:, :, 0], 2),
            "avg": lambda x: F.avg_pool2d(x, 3, 2, 1),
            "avg_inside": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            "avg_ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            "avg_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
            "avg1d": lambda x: F.avg_pool1d(x[:, :, 0], 2),
            "avg3d": lambda x: F.avg_pool3d(x, 2),
            "global": lambda x: F.adaptive_avg_pool2d(x, 1),
            "global_max": lambda x: F.adaptive_max_pool2d(x, 1),
            "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
            "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
            "adaptive_max": lambda x: F.adaptive_max_pool2d(x, (3, 2)),
            "lrn": lambda x: F.local_response_norm(x, 3),
        },
        IMAGE,
    )


def test_resampling_and_blocks() -> None:
    check_functions(
        {
            "nearest": lambda x: F.interpolate(x, scale_factor=2),
            "nearest_size": lambda x: F.interpolate(x, size=(5, 11)),
            "nearest_fraction": lambda x: F.interpolate(x, scale_factor=1.7),
            "nearest_exact": lambda x: F.interpolate(x, size=(5, 11), mode="nearest-exact"),
            "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "bilinear_down": lambda x: F.interpolate(x, size=(4, 5), mode="bilinear"),
            "bilinear_aligned": lambda x: F.interpolate(x, size=(12, 5), mode="bilinear", align_corners=True),
            "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
            "linear": lambda x: F.interpolate(x[:, :, 0], scale_factor=2, mode="linear"),
            "bilinear_smoothed": lambda x: F.interpolate(x, size=(4, 11), mode="bilinear", antialias=True),
            "bicubic_smoothed": lambda x: F.interpolate(x, scale_factor=0.4, mode="bicubic", antialias=True),
            "bicubic_smoothed_aligned": lambda x: F.interpolate(x, (4, 3), None, "bicubic", True, antialias=True),
            "shuffle": lambda x: F.pixel_shuffle(x, 2),
            "unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :8], 2),
            "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
        },
        IMAGE,
    )


def test_norms() -> None:
    w, b = torch.rand(4) + 0.5, torch.randn(4)
    rows, tail = torch.randn(9, 8), torch.rand(8) + 0.5
    check_functions(
        {
            "batch": lambda x: F.batch_norm(x, b * 0.1, w, w, b),
            "batch_plain": lambda x: F.batch_norm(x, b * 0.1, w),
            "batch_own_statistics": lambda x: F.batch_norm(x, None, None, w, b, training=True),
            "layer": lambda x: F.layer_norm(x, (8,), tail, tail - 1),
            "layer_two": lambda x: F.layer_norm(x, (9, 8), rows, rows),
            "layer_no_bias": lambda x: F.layer_norm(x, (8,), tail),
            "layer_plain": lambda x: F.layer_norm(x, (8,)),
            "rms": lambda x: F.rms_norm(x, (8,), tail, 1e-5),
            "rms_plain": lambda x: F.rms_norm(x, (8,)),
            "group": lambda x: F.group_norm(x, 2, w, b),
            "group_plain": lambda x: F.group_norm(x, 4),
            "instance": lambda x: F.instance_norm(x, weight=w, bias=b),
        },
        IMAGE,
    )


def test_attention() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6)
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[0, 0, 2] = False
    attend = F.scaled_dot_product_attention
    check_functions(
        {
            "grouped": lambda q, k, v: attend(q, k, v, enable_gqa=True),
            "causal": lambda q, k, v: attend(q, k[:, [0, 0, 1, 1]], v[:, [0, 0, 1, 1]], is_causal=True),
            "masked": lambda q, k, v: attend(q[:, :2], k, v, mask),
            "additive": lambda q, k, v: attend(q[:, :2], k, v, mask * 2.0, scale=0.3),
            "three_axes": lambda q, k, v: attend(q[:, 0], k[:, 0], v[:, 0]),
        },
        q, k, v,
    )  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}]
)
def test_recurrent_layers(kind: str, options: dict[str, object]) -> None:
    layer = getattr(torch.nn, kind)(5, 6, **options)
    check_functions({"first": layer}, torch.randn(3, 4, 5))


@pytest.mark.parametrize("options", [{"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False}])
def test_projected_lstm(options: dict[str, object]) -> None:
    layer = torch.nn.LSTM(5, 6, proj_size=3, **options)
    check_functions({"first": layer}, torch.randn(3, 4, 5))


def test_histograms() -> None:
    weights, edges = torch.rand(24), torch.tensor([-1.0, -0.2, 0.3, 2.0])
    check_functions(
        {
            "own_range": lambda x: torch.histogram(x, 5),
            "given_range": lambda x: torch.histogram(x, 4, range=(-1.0, 0.5), weight=weights.view(2, 3, 4)),
            "density": lambda x: torch.histogram(x, edges, density=True),
            "equal_values": lambda x: torch.histogram(x * 0 + 2, 3),
            "two_dimensions": lambda x: torch.histogramdd(x.view(12, 2), [3, 2]).hist,
            "edges": lambda x: torch.histogramdd(x.view(12, 2), [edges, edges + 0.1], weight=weights[:12]).hist,
        },
        X,
    )


def _samplers(n_axes: int) -> dict[str, object]:
    modes = ("bilinear", "nearest", "bicubic") if n_axes == 2 else ("bilinear", "nearest")
    return {
        f"{mode}_{padding}_{align}": lambda x, g, m=mode, p=padding, a=align: F.grid_sample(x, g, m, p, a)
        for mode in modes
        for padding in ("zeros", "border", "reflection")
        for align in (False, True)
    }


def test_sampling_at_coordinates() -> None:
    grid = torch.rand(2, 5, 7, 2) * 5 - 2.5
    check_functions(_samplers(2), IMAGE, grid, rtol=1e-4)
    check_functions(_samplers(3), torch.randn(2, 3, 4, 5, 6), torch.rand(2, 3, 4, 5, 3) * 3 - 1.5, rtol=1e-4)


EVERY_SAMPLER = pytest.param(1, marks=pytest.mark.slow)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("step", [5, EVERY_SAMPLER])
@pytest.mark.parametrize("n_channels", [8, 20])
def test_sampling_rows_of_channels(n_channels: int, step: int) -> None:
    """Many points of many channels: two images, one read of all channels for each element.

    Steps of five samplers have every mode and every padding.
    """
    grid, image = torch.rand(2, 6, 9, 2) * 3 - 1.5, torch.randn(2, n_channels, 5, 7)
    module = Several(dict(list(_samplers(2).items())[::step]))
    graph = check(module, (image, grid), rtol=1e-4)
    assert any(n.op is ops.gather for n in graph.nodes())


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, EVERY_SAMPLER])  # of seven has every mode
def test_sampling_of_symbolic_sizes(step: int) -> None:
    sizes = {0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=2), 3: torch.export.Dim("w", min=2)}
    points = {0: sizes[0], 1: torch.export.Dim("rows"), 2: torch.export.Dim("columns")}
    module = Several(dict(list(_samplers(2).items())[::step]))
    graph = check(module, (IMAGE, torch.rand(2, 5, 7, 2) * 3 - 1.5), {"args": (sizes, points)}, rtol=1e-4)
    compare(graph, module, (torch.randn(3, 4, 6, 11), torch.rand(3, 4, 3, 2) * 3 - 1.5), rtol=1e-4)


@pytest.mark.parametrize(("size", "step"), [(40, 16), (7, 9), (64, 64), (30, 30), (2, 1), (20, 1), (64, 7)])
def test_windows_of_a_sequence(size: int, step: int) -> None:
    check_functions({"unfold": lambda x: x.unfold(-1, size, step)}, torch.randn(3, 2, 65))


def test_order_statistics_of_long_rows() -> None:
    x = torch.randn(3, 130, 2)
    x[0, :5, 0], x[1, 7, 1], x[2, :4, 0] = x[0, 9, 0], float("nan"), torch.tensor([0.0, -0.0, torch.inf, -torch.inf])
    edges, wide = torch.sort(x[0, :, 1])[0].contiguous(), torch.randint(-50, 50, (3, 130, 2))
    check_functions(
        {
            "kth": lambda x, e, i: torch.kthvalue(x, 7, 1)[0],
            "last": lambda x, e, i: torch.kthvalue(x, 130, 1)[0],
            "integers": lambda x, e, i: torch.kthvalue(i, 40, 1)[0],
            "bytes": lambda x, e, i: torch.median(i.to(torch.int8), 1)[0],
            "halves": lambda x, e, i: torch.median(x.half(), 1)[0],
            "median": lambda x, e, i: torch.median(x, 1),
            "all": lambda x, e, i: torch.median(x[0]),
            "nanmedian": lambda x, e, i: torch.nanmedian(x, 1)[0],
            "doubles": lambda x, e, i: torch.nanmedian(x.double(), 1)[0],
            "left": lambda x, e, i: torch.searchsorted(e, torch.cat([x[0], e.view(65, 2)])),
            "right": lambda x, e, i: torch.bucketize(torch.cat([x[2], e.view(65, 2)]), e, right=True),
            "rows": lambda x, e, i: torch.searchsorted(i.sort(1)[0].mT.contiguous(), i.mT.contiguous()),
            "repeated": lambda x, e, i: torch.repeat_interleave(i[0].abs(), 3, 0),
        },
        x,
        edges,
        wide,
    )


def test_running_sums_of_exponentials() -> None:
    x = torch.randn(3, 70, 2) * 30
    x[0, :3, 0], x[1, 5, 1], x[2, 7, 0], x[2, 60, 1] = -torch.inf, torch.inf, torch.nan, -torch.inf
    functions = {f"axis_{k}": lambda x, k=k: torch.logcumsumexp(x, k) for k in range(3)}
    check_functions(functions | {"f64": lambda x: x[:, :, 0].double().logcumsumexp(1)}, x, rtol=1e-4)


def test_running_sums_of_no_places() -> None:
    check_functions({"none": lambda x: torch.logcumsumexp(x, 1)}, torch.randn(3, 0))


def test_pooling_of_symbolic_sizes() -> None:
    h, w = torch.export.Dim("h", min=5, max=99), torch.export.Dim("w", min=5, max=99)
    module = Several(
        {
            "average": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
            "greatest": lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True),
            "half": lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2, 2)),
            "rounded_up": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
            "padded": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            "places": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True),
            "means": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            "row": lambda x: F.adaptive_max_pool1d(x[:, :, 0], 3),
        }
    )
    graph = check(module, (torch.randn(2, 3, 11, 14),), {"args": ({2: h, 3: w},)})
    for size in ((5, 6), (12, 7), (9, 23)):
        compare(graph, module, (torch.randint(-3, 3, (2, 3, *size)).float(),))
