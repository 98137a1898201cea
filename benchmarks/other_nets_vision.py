"""Nets for images that are not in the zoo, with random weights; ``NETS[name]()`` gives a module and its inputs.

In: nothing. Out: modules and tensors. Not its business: measuring (``benchmarks/other_nets.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
import transformers
from benchmarks.interleaved import Lambda, Tensors
from torch import Tensor, nn, randn

Net = Callable[[], tuple[nn.Module, Tensors]]


def conv(
    c: int, out: int, k: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1,
    act: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    """Convolution, batch norm, activation."""
    layer = nn.Conv2d(c, out, k, stride, dilation * (k // 2), groups=groups, dilation=dilation, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out), act())


class Fire(nn.Module):
    """SqueezeNet's block."""

    def __init__(self, c: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze, self.one = nn.Conv2d(c, squeeze, 1), nn.Conv2d(squeeze, expand, 1)
        self.three = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


def squeezenet() -> tuple[nn.Module, Tensors]:
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool(), Fire(64, 16, 64), Fire(128, 16, 64), pool(),
        Fire(128, 32, 128), Fire(256, 32, 128), pool(), Fire(256, 48, 192), Fire(384, 64, 256),
        nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return net, (randn(1, 3, 224, 224),)


def shuffled(x: Tensor) -> Tensor:
    """Channels of two halves in turn."""
    batch, c, h, w = x.shape
    return x.view(batch, 2, c // 2, h, w).transpose(1, 2).reshape(batch, c, h, w)


class Shuffle(nn.Module):
    """ShuffleNet's unit: half of the channels go through three convolutions; with stride 2 both halves do."""

    def __init__(self, c: int, out: int) -> None:
        super().__init__()
        half, stride = out // 2, 1 if c == out else 2
        source = half if c == out else c
        self.main = nn.Sequential(
            conv(source, half, 1), conv(half, half, 3, stride, half, act=nn.Identity), conv(half, half, 1)
        )
        down = nn.Sequential(conv(c, c, 3, 2, c, act=nn.Identity), conv(c, half, 1))
        self.down = None if c == out else down

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1) if self.down is None else (self.down(x), x)
        return shuffled(torch.cat([a, self.main(b)], 1))


def shufflenet() -> tuple[nn.Module, Tensors]:
    widths = [24, *[116] * 4, *[232] * 8, *[464] * 4]
    units = [Shuffle(c, out) for c, out in pairwise(widths)]
    head = [conv(464, 1024, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000)]
    return nn.Sequential(conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1), *units, *head), (randn(1, 3, 224, 224),)


class SqueezeExcite(nn.Module):
    """Channels scaled by what two layers make of their means."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(c, c // 4, 1), nn.Conv2d(c // 4, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """MobileNetV3's block."""

    def __init__(self, c: int, wide: int, out: int, k: int, stride: int, excite: bool) -> None:
        super().__init__()
        self.main = nn.Sequential(
            conv(c, wide, 1, act=nn.Hardswish), conv(wide, wide, k, stride, wide, act=nn.Hardswish),
            SqueezeExcite(wide) if excite else nn.Identity(), conv(wide, out, 1, act=nn.Identity),
        )  # fmt: skip
        self.is_residual = stride == 1 and c == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.main(x) if self.is_residual else self.main(x)


def mobilenet_v3() -> tuple[nn.Module, Tensors]:
    rows = [
        (16, 64, 24, 3, 2, False), (24, 72, 24, 3, 1, False), (24, 72, 40, 5, 2, True), (40, 120, 40, 5, 1, True),
        (40, 240, 80, 3, 2, False), (80, 200, 80, 3, 1, False), (80, 480, 112, 3, 1, True),
        (112, 672, 160, 5, 2, True), (160, 960, 160, 5, 1, True),
    ]  # fmt: skip
    blocks = [Inverted(*row) for row in rows]
    head = [conv(160, 960, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1000)]
    return nn.Sequential(conv(3, 16, 3, 2, act=nn.Hardswish), *blocks, *head), (randn(1, 3, 224, 224),)


def convnext() -> tuple[nn.Module, Tensors]:
    return transformers.ConvNextModel(transformers.ConvNextConfig(depths=[1, 1, 3, 1])), (randn(1, 3, 224, 224),)


def swin() -> tuple[nn.Module, Tensors]:
    return transformers.SwinModel(transformers.SwinConfig(depths=[2, 2, 2, 2])), (randn(1, 3, 224, 224),)


def segformer() -> tuple[nn.Module, Tensors]:
    config = transformers.SegformerConfig()
    return transformers.SegformerForSemanticSegmentation(config), (randn(1, 3, 256, 256),)


def mobilevit() -> tuple[nn.Module, Tensors]:
    return transformers.MobileViTModel(transformers.MobileViTConfig()), (randn(1, 3, 256, 256),)


def regnet() -> tuple[nn.Module, Tensors]:
    config = transformers.RegNetConfig(
        depths=[1, 2, 4, 2], hidden_sizes=[48, 120, 336, 888], groups_width=24, embedding_size=32
    )
    return transformers.RegNetModel(config), (randn(1, 3, 224, 224),)


class MixerBlock(nn.Module):
    """Layers along the tokens, then along the channels."""

    def __init__(self, tokens: int, c: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(c), nn.LayerNorm(c)])
        self.tokens = nn.Sequential(nn.Linear(tokens, tokens * 2), nn.GELU(), nn.Linear(tokens * 2, tokens))
        self.channels = nn.Sequential(nn.Linear(c, c * 4), nn.GELU(), nn.Linear(c * 4, c))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


def mixer() -> tuple[nn.Module, Tensors]:
    patches = [nn.Conv2d(3, 256, 16, 16), nn.Flatten(2), Lambda(lambda x: x.transpose(1, 2))]
    return nn.Sequential(*patches, *[MixerBlock(196, 256) for _ in range(4)]), (randn(1, 3, 224, 224),)


def espcn() -> tuple[nn.Module, Tensors]:
    """Super-resolution by a factor of 3 with sub-pixel convolution."""
    layers = [nn.Conv2d(1, 64, 5, padding=2), nn.Conv2d(64, 32, 3, padding=1), nn.Conv2d(32, 9, 3, padding=1)]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2], nn.PixelShuffle(3)), (
        randn(1, 1, 120, 120),
    )


def srcnn() -> tuple[nn.Module, Tensors]:
    layers = [nn.Conv2d(1, 64, 9, padding=4), nn.Conv2d(64, 32, 5, padding=2), nn.Conv2d(32, 1, 5, padding=2)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]), (randn(1, 1, 128, 128),)


class DilatedHead(nn.Module):
    """Convolutions of three dilations side by side, then upsampling: the head of DeepLab."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([conv(c, 64, 1), conv(c, 64, dilation=6), conv(c, 64, dilation=12)])
        self.out = nn.Conv2d(192, 21, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.out(torch.cat([branch(x) for branch in self.branches], 1))
        return F.interpolate(x, scale_factor=8, mode="bilinear", align_corners=False)


def deeplab() -> tuple[nn.Module, Tensors]:
    stem = [conv(3, 32, 3, 2), conv(32, 64, 3, 2), conv(64, 128, 3, 2)]
    return nn.Sequential(*stem, DilatedHead(128)), (randn(1, 3, 256, 256),)


class TransposedUnet(nn.Module):
    """A UNet of one level that goes up by a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(conv(1, 32), conv(32, 32))
        self.bottom = nn.Sequential(conv(32, 64), conv(64, 64))
        self.up = nn.ConvTranspose2d(64, 32, 2, 2)
        self.out = nn.Sequential(conv(64, 32), conv(32, 32), nn.Conv2d(32, 1, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.out(torch.cat([x, self.up(self.bottom(F.max_pool2d(x, 2)))], 1))


def unet_transposed() -> tuple[nn.Module, Tensors]:
    return TransposedUnet(), (randn(1, 1, 128, 128),)


class Crnn(nn.Module):
    """Text in a picture: convolutions, an LSTM both ways along the width, log-probabilities of characters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv(1, 64), nn.MaxPool2d(2), conv(64, 128), nn.MaxPool2d(2), conv(128, 256), nn.MaxPool2d((2, 1)),
            conv(256, 256), nn.MaxPool2d((4, 1)),
        )  # fmt: skip
        self.lstm = nn.LSTM(256, 128, bidirectional=True, batch_first=True)
        self.out = nn.Linear(256, 37)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).squeeze(2).transpose(1, 2)
        return self.out(self.lstm(x)[0]).log_softmax(2)


def crnn() -> tuple[nn.Module, Tensors]:
    return Crnn(), (randn(1, 1, 32, 128),)


NETS: dict[str, Net] = {
    net.__name__: net
    for net in (
        squeezenet, shufflenet, mobilenet_v3, convnext, swin, segformer, mobilevit, regnet, mixer, espcn, srcnn,
        deeplab, unet_transposed, crnn,
    )
}  # fmt: skip
