"""Vision models of the zoo in plain ``torch.nn``: ResNet-50, MobileNetV2, EfficientNet-B0, ViT-B/16, a diffusion UNet.

In: ``small``. Out: (module, inputs by name, axes that may vary). Not its business: weights' statistics (``zoo.build``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]]]
BATCH = {0: "batch"}


def _image(small: bool, size: int) -> dict[str, Tensor]:
    return {"image": torch.randn(2 if small else 1, 3, size, size)}


def _conv_norm(
    c_in: int, c_out: int, kernel: int, stride: int, act: nn.Module | None, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), *([act] if act else []))


def _channels(c: float) -> int:
    """The nearest multiple of 8, not more than 10 % below ``c``: the rule of the MobileNet papers."""
    rounded = max(8, int(c + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * c else rounded


# --- ResNet-50 ------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """1x1, 3x3 (strided), 1x1 with a residual."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        c_out = 4 * width
        self.body = nn.Sequential(
            _conv_norm(c_in, width, 1, 1, nn.ReLU(inplace=True)),
            _conv_norm(width, width, 3, stride, nn.ReLU(inplace=True)),
            _conv_norm(width, c_out, 1, 1, None),
        )
        self.shortcut = _conv_norm(c_in, c_out, 1, stride, None) if stride != 1 or c_in != c_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """Stem, four stages of bottlenecks, global pool, classifier."""

    def __init__(self, depths: tuple[int, ...], width: int, n_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv_norm(3, width, 7, 2, nn.ReLU(inplace=True)), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        c = width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(Bottleneck(c, width << stage, 2 if i == 0 and stage else 1))
                c = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(c, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


def resnet50(small: bool) -> Built:
    module = ResNet((1, 1, 1, 1), 8, 10) if small else ResNet((3, 4, 6, 3), 64, 1000)
    return module, _image(small, 64 if small else 224), {"image": BATCH}


def resnet50_batch16(small: bool) -> Built:
    module, _, axes = resnet50(small)
    return module, {"image": torch.randn(2, 3, 64, 64) if small else torch.randn(16, 3, 224, 224)}, axes


# --- MobileNetV2 ----------------------------------------------------------------------------------------------------


class InvertedResidual(nn.Module):
    """Expand, depthwise, project."""

    def __init__(self, c_in: int, c_out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = c_in * expand
        layers = [_conv_norm(c_in, hidden, 1, 1, nn.ReLU6(inplace=True))] if expand != 1 else []
        layers.append(_conv_norm(hidden, hidden, 3, stride, nn.ReLU6(inplace=True), groups=hidden))
        layers.append(_conv_norm(hidden, c_out, 1, 1, None))
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


_MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(small: bool) -> Built:
    width = 0.25 if small else 1.0
    c = _channels(32 * width)
    layers: list[nn.Module] = [_conv_norm(3, c, 3, 2, nn.ReLU6(inplace=True))]
    for expand, channels, n, stride in _MOBILENET:
        c_out = _channels(channels * width)
        for i in range(1 if small else n):
            layers.append(InvertedResidual(c, c_out, stride if i == 0 else 1, expand))
            c = c_out
    last = 64 if small else 1280
    layers.append(_conv_norm(c, last, 1, 1, nn.ReLU6(inplace=True)))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, 10 if small else 1000))
    return nn.Sequential(*layers, head), _image(small, 64 if small else 224), {"image": BATCH}


# --- EfficientNet-B0 ------------------------------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    """Per-channel gates from the global mean."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(self.pool(x)))))


class MBConv(nn.Module):
    """Inverted residual with squeeze-and-excite."""

    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = c_in * expand
        layers: list[nn.Module] = [_conv_norm(c_in, hidden, 1, 1, nn.SiLU(inplace=True))] if expand != 1 else []
        layers.append(_conv_norm(hidden, hidden, kernel, stride, nn.SiLU(inplace=True), groups=hidden))
        layers.append(SqueezeExcite(hidden, max(1, c_in // 4)))
        layers.append(_conv_norm(hidden, c_out, 1, 1, None))
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


_EFFICIENTNET = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip


def efficientnet_b0(small: bool) -> Built:
    width = 0.25 if small else 1.0
    c = _channels(32 * width)
    layers: list[nn.Module] = [_conv_norm(3, c, 3, 2, nn.SiLU(inplace=True))]
    for expand, channels, n, stride, kernel in _EFFICIENTNET:
        c_out = _channels(channels * width)
        for i in range(1 if small else n):
            layers.append(MBConv(c, c_out, kernel, stride if i == 0 else 1, expand))
            c = c_out
    last = 64 if small else 1280
    layers.append(_conv_norm(c, last, 1, 1, nn.SiLU(inplace=True)))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, 10 if small else 1000))
    return nn.Sequential(*layers, head), _image(small, 64 if small else 224), {"image": BATCH}


# --- ViT-B/16 -------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head attention; ``context`` gives keys and values for cross-attention."""

    def __init__(self, width: int, heads: int, context_width: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(context_width or width, width, bias=bias)
        self.value = nn.Linear(context_width or width, width, bias=bias)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = self.query(x), self.key(source), self.value(source)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, encoder layers, a linear head on the class token."""

    def __init__(self, size: int, patch: int, width: int, heads: int, depth: int, n_classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


def vit_b16(small: bool) -> Built:
    size = 32 if small else 224
    module = VisionTransformer(32, 16, 48, 4, 2, 10) if small else VisionTransformer(224, 16, 768, 12, 12, 1000)
    return module, _image(small, size), {"image": BATCH}


# --- a diffusion UNet -----------------------------------------------------------------------------------------------


class ResBlock(nn.Module):
    """Group norm, SiLU, convolution, twice, with the time embedding added between."""

    def __init__(self, c_in: int, c_out: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, c_in), nn.GroupNorm(8, c_out)
        self.conv1, self.conv2 = nn.Conv2d(c_in, c_out, 3, padding=1), nn.Conv2d(c_out, c_out, 3, padding=1)
        self.time = nn.Linear(time_width, c_out)
        self.shortcut = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.shortcut(x)


class SpatialTransformer(nn.Module):
    """Self-attention, cross-attention to the text, and a gated MLP over the pixels."""

    def __init__(self, channels: int, heads: int, text_width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.self_attention = Attention(channels, heads, bias=False)
        self.cross_attention = Attention(channels, heads, text_width, bias=False)
        self.gate, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = y + self.self_attention(self.norms[0](y))
        y = y + self.cross_attention(self.norms[1](y), text)
        value, gate = self.gate(self.norms[2](y)).chunk(2, dim=-1)
        y = y + self.down(value * F.gelu(gate))
        return x + y.transpose(1, 2).reshape(b, c, h, w)


class Stage(nn.Module):
    """A residual block, and attention where the resolution is low enough."""

    def __init__(self, c_in: int, c_out: int, time_width: int, text_width: int, attend: bool) -> None:
        super().__init__()
        self.res = ResBlock(c_in, c_out, time_width)
        self.attention = SpatialTransformer(c_out, 4, text_width) if attend else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = self.res(x, time)
        return x if self.attention is None else self.attention(x, text)


class UNet(nn.Module):
    """Noise prediction in the style of Stable Diffusion: latent, time step and text states in, noise out."""

    def __init__(self, widths: tuple[int, ...], text_width: int) -> None:
        super().__init__()
        self.width, time = widths[0], 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.down = nn.ModuleList(Stage(a, b, time, text_width, i > 0) for i, (a, b) in enumerate(pairs))
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = Stage(widths[-1], widths[-1], time, text_width, True)
        self.up = nn.ModuleList(Stage(2 * b, a, time, text_width, i > 0) for i, (a, b) in reversed([*enumerate(pairs)]))
        self.grow = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in reversed(widths[:-1]))
        self.norm = nn.GroupNorm(8, widths[0])
        self.last = nn.Conv2d(widths[0], 4, 3, padding=1)

    def embed_time(self, step: Tensor) -> Tensor:
        half = self.width // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=step.device) / half)
        angles = step.float()[:, None] * frequencies[None]
        return self.time(torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.last.weight.dtype))

    def forward(self, latent: Tensor, step: Tensor, text: Tensor) -> Tensor:
        time = self.embed_time(step)
        x = self.first(latent)
        skips = []
        for i, stage in enumerate(self.down):
            x = stage(x, time, text)
            skips.append(x)
            if i < len(self.shrink):
                x = self.shrink[i](x)
        x = self.middle(x, time, text)
        for i, stage in enumerate(self.up):
            x = stage(torch.cat([x, skips.pop()], dim=1), time, text)
            if i < len(self.grow):
                x = self.grow[i](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(x)))


def unet(small: bool) -> Built:
    module = UNet((16, 32), 24) if small else UNet((128, 256, 512), 512)
    batch, size, tokens = (2, 8, 5) if small else (1, 64, 77)
    inputs = {
        "latent": torch.randn(batch, 4, size, size),
        "step": torch.arange(37, 37 + batch),
        "text": torch.randn(batch, tokens, 24 if small else 512),
    }
    return module, inputs, {"latent": BATCH, "step": BATCH, "text": BATCH}
