"""More convolutional nets in plain ``torch.nn``: VGG-16, DenseNet-121, ResNeXt-50, Inception, a detector, a 3-D net.

In: ``small``. Out: (module, inputs by name, axes that may vary). They have what the nets of ``zoo_vision`` have not:
long chains of 3x3 windows, concatenation of everything before, groups, 1x7 and 7x1 windows, several outputs, volumes.
Not its business: weights' statistics (``zoo.build``).
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from benchmarks.zoo_vision import BATCH, Built, _image
from torch import Tensor, nn


class ConvNorm(nn.Sequential):
    """Convolution that keeps the size (divided by the stride), batch norm, activation."""

    def __init__(
        self,
        c_in: int,
        c_out: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        groups: int = 1,
        act: type[nn.Module] = nn.ReLU,
    ) -> None:
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        conv = nn.Conv2d(c_in, c_out, kernel, stride, padding, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(c_out), act())


class Classifier(nn.Sequential):
    """Global mean and a linear layer."""

    def __init__(self, c: int, n_classes: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, n_classes))


# --- VGG-16 ---------------------------------------------------------------------------------------------------------


def vgg16(small: bool) -> Built:
    depths = ((8, 1), (16, 1)) if small else ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    layers: list[nn.Module] = []
    c = 3
    for width, depth in depths:
        for _ in range(depth):
            layers += [nn.Conv2d(c, width, 3, padding=1), nn.ReLU(inplace=True)]
            c = width
        layers.append(nn.MaxPool2d(2))
    hidden, n_classes, side = (32, 10, 16) if small else (4096, 1000, 7)
    layers += [nn.Flatten(), nn.Linear(c * side * side, hidden), nn.ReLU(inplace=True)]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, n_classes)]
    return nn.Sequential(*layers), _image(small, 64 if small else 224), {"image": BATCH}


# --- DenseNet-121 ---------------------------------------------------------------------------------------------------


class DenseLayer(nn.Module):
    """Norm and activation first, 1x1, 3x3; the result joins what came in."""

    def __init__(self, c_in: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(c_in)
        self.squeeze = ConvNorm(c_in, 4 * growth)
        self.conv = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.squeeze(F.relu(self.norm(x))))], dim=1)


def densenet121(small: bool) -> Built:
    width, growth, depths = (16, 8, (2, 2)) if small else (64, 32, (6, 12, 24, 16))
    layers: list[nn.Module] = [ConvNorm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = width
    for i, depth in enumerate(depths):
        for _ in range(depth):
            layers.append(DenseLayer(c, growth))
            c += growth
        layers += [nn.BatchNorm2d(c), nn.ReLU()]
        if i + 1 < len(depths):
            layers += [nn.Conv2d(c, c // 2, 1, bias=False), nn.AvgPool2d(2)]
            c //= 2
    return (
        nn.Sequential(*layers, Classifier(c, 10 if small else 1000)),
        _image(small, 64 if small else 224),
        {"image": BATCH},
    )


# --- ResNeXt-50 32x4d -----------------------------------------------------------------------------------------------


class GroupedBottleneck(nn.Module):
    """1x1, a 3x3 in groups, 1x1, with a residual."""

    def __init__(self, c_in: int, width: int, c_out: int, stride: int, groups: int) -> None:
        super().__init__()
        last = [nn.Conv2d(width, c_out, 1, bias=False), nn.BatchNorm2d(c_out)]
        self.body = nn.Sequential(ConvNorm(c_in, width), ConvNorm(width, width, 3, stride, groups), *last)
        same = stride == 1 and c_in == c_out
        self.shortcut = nn.Identity() if same else ConvNorm(c_in, c_out, 1, stride, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnext50(small: bool) -> Built:
    depths, width, groups, c = ((1, 1), 16, 4, 16) if small else ((3, 4, 6, 3), 128, 32, 64)
    layers: list[nn.Module] = [ConvNorm(3, c, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for stage, depth in enumerate(depths):
        for i in range(depth):
            inner, c_out = width << stage, (2 * width) << stage
            layers.append(GroupedBottleneck(c, inner, c_out, 2 if i == 0 and stage else 1, groups))
            c = c_out
    return (
        nn.Sequential(*layers, Classifier(c, 10 if small else 1000)),
        _image(small, 64 if small else 224),
        {"image": BATCH},
    )


# --- Inception ------------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Every branch reads the input; their results are joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _square(c: int, w: int) -> Branches:
    """5x5 and two 3x3 beside a 1x1 and a pool: 224 w / 64 channels."""
    return Branches(
        ConvNorm(c, w),
        nn.Sequential(ConvNorm(c, 3 * w // 4), ConvNorm(3 * w // 4, w, 5)),
        nn.Sequential(ConvNorm(c, w), ConvNorm(w, 3 * w // 2, 3), ConvNorm(3 * w // 2, 3 * w // 2, 3)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(c, w)),
    )


def _factored(c: int, mid: int, w: int) -> Branches:
    """7x7 windows as 1x7 and 7x1."""
    a, b = (1, 7), (7, 1)
    return Branches(
        ConvNorm(c, w),
        nn.Sequential(ConvNorm(c, mid), ConvNorm(mid, mid, a), ConvNorm(mid, w, b)),
        nn.Sequential(
            ConvNorm(c, mid), ConvNorm(mid, mid, b), ConvNorm(mid, mid, a), ConvNorm(mid, mid, b), ConvNorm(mid, w, a)
        ),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(c, w)),
    )


def inception(small: bool) -> Built:
    w, n_square, mids = (8, 1, (8,)) if small else (64, 3, (128, 160, 160, 192))
    stem = [
        ConvNorm(3, w // 2, 3, 2),
        ConvNorm(w // 2, w, 3),
        nn.MaxPool2d(3, 2),
        ConvNorm(w, 3 * w, 3),
        nn.MaxPool2d(3, 2),
    ]
    layers: list[nn.Module] = [*stem]
    c = 3 * w
    for _ in range(n_square):
        layers.append(_square(c, w))
        c = w + w + 3 * w // 2 + w
    layers.append(Branches(nn.Sequential(ConvNorm(c, 6 * w, 3, 2)), nn.MaxPool2d(3, 2, 1)))
    c += 6 * w
    for mid in mids:
        layers.append(_factored(c, mid, 3 * w))
        c = 12 * w
    return (
        nn.Sequential(*layers, Classifier(c, 10 if small else 1000)),
        _image(small, 64 if small else 299),
        {"image": BATCH},
    )


# --- a detector in the style of YOLO --------------------------------------------------------------------------------


class CrossStage(nn.Module):
    """Half of the channels pass through bottlenecks, all intermediate results are joined (the C2f block)."""

    def __init__(self, c_in: int, c_out: int, n: int, residual: bool) -> None:
        super().__init__()
        self.half, self.residual = c_out // 2, residual
        self.enter = ConvNorm(c_in, c_out, act=nn.SiLU)
        pairs = (
            nn.Sequential(
                ConvNorm(self.half, self.half, 3, act=nn.SiLU), ConvNorm(self.half, self.half, 3, act=nn.SiLU)
            )
            for _ in range(n)
        )
        self.steps = nn.ModuleList(pairs)
        self.leave = ConvNorm((2 + n) * self.half, c_out, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, dim=1))
        for step in self.steps:
            y = step(parts[-1])
            parts.append(parts[-1] + y if self.residual else y)
        return self.leave(torch.cat(parts, dim=1))


class PyramidPool(nn.Module):
    """Three max pools after each other, all joined (SPPF)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.enter, self.leave = ConvNorm(c, c // 2, act=nn.SiLU), ConvNorm(2 * c, c, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.leave(torch.cat(parts, dim=1))


class Detector(nn.Module):
    """Backbone, top-down and bottom-up pyramid, boxes and class scores of all cells of three scales."""

    def __init__(self, w: int, n: int, n_classes: int) -> None:
        super().__init__()
        widths = (w, 2 * w, 4 * w, 8 * w, 16 * w)
        self.stem = ConvNorm(3, w, 3, 2, act=nn.SiLU)
        self.down = nn.ModuleList(ConvNorm(a, b, 3, 2, act=nn.SiLU) for a, b in itertools.pairwise(widths))
        self.stages = nn.ModuleList(
            CrossStage(c, c, n if i in (0, 3) else 2 * n, True) for i, c in enumerate(widths[1:])
        )
        self.pool = PyramidPool(widths[4])
        p3, p4, p5 = widths[2:]
        self.up4, self.up3 = CrossStage(p5 + p4, p4, n, False), CrossStage(p4 + p3, p3, n, False)
        self.shrink3, self.shrink4 = ConvNorm(p3, p3, 3, 2, act=nn.SiLU), ConvNorm(p4, p4, 3, 2, act=nn.SiLU)
        self.out4, self.out5 = CrossStage(p3 + p4, p4, n, False), CrossStage(p4 + p5, p5, n, False)
        self.heads = nn.ModuleList(
            nn.Sequential(ConvNorm(c, p3, 3, act=nn.SiLU), nn.Conv2d(p3, 4 + n_classes, 1)) for c in (p3, p4, p5)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        levels = []
        for down, stage in zip(self.down, self.stages, strict=True):
            x = stage(down(x))
            levels.append(x)
        p3, p4, p5 = levels[1], levels[2], self.pool(levels[3])
        m4 = self.up4(torch.cat([F.interpolate(p5, scale_factor=2.0, mode="nearest"), p4], dim=1))
        m3 = self.up3(torch.cat([F.interpolate(m4, scale_factor=2.0, mode="nearest"), p3], dim=1))
        n4 = self.out4(torch.cat([self.shrink3(m3), m4], dim=1))
        n5 = self.out5(torch.cat([self.shrink4(n4), p5], dim=1))
        cells = torch.cat([head(p).flatten(2) for head, p in zip(self.heads, (m3, n4, n5), strict=True)], dim=2)
        return cells[:, :4].exp(), cells[:, 4:].sigmoid()


def yolo(small: bool) -> Built:
    return Detector(4, 1, 3) if small else Detector(16, 1, 80), _image(small, 64 if small else 640), {"image": BATCH}


# --- a 3-D net ------------------------------------------------------------------------------------------------------


class VolumeBlock(nn.Module):
    """Two 3x3x3 convolutions with a residual."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        first = [nn.Conv3d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm3d(c_out), nn.ReLU()]
        self.body = nn.Sequential(*first, nn.Conv3d(c_out, c_out, 3, 1, 1, bias=False), nn.BatchNorm3d(c_out))
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv3d(c_in, c_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def video_resnet(small: bool) -> Built:
    widths, frames, size = ((8, 16), 4, 16) if small else ((64, 128, 256), 8, 56)
    stem = [nn.Conv3d(3, widths[0], (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(widths[0]), nn.ReLU()]
    blocks = [VolumeBlock(widths[0], widths[0], 1)]
    blocks += [VolumeBlock(a, b, 2) for a, b in itertools.pairwise(widths)]
    head = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(widths[-1], 10 if small else 400)]
    clip = torch.randn(2 if small else 1, 3, frames, 2 * size, 2 * size)
    return nn.Sequential(*stem, *blocks, *head), {"clip": clip}, {"clip": BATCH}
