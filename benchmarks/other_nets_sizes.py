"""The zoo's nets at sizes, lengths and batches that nothing was tuned for.

In: nothing. Out: ``NETS[name]()`` gives a module and its inputs. Not its business: measuring (``other_nets.py``).
"""

from __future__ import annotations

from functools import partial

import torch
from benchmarks import zoo
from benchmarks.interleaved import Tensors
from benchmarks.other_nets_vision import Net
from torch import Tensor, nn, randint, randn

IMAGES = {
    "mobilenet_v2": ((1, 160), (8, 224), (1, 512)),
    "efficientnet_b0": ((4, 224), (1, 380)),
    "resnet50": ((1, 160), (4, 256), (1, 512)),
    "densenet121": ((4, 224),),
    "vgg16": ((4, 224),),
    "resnext50": ((4, 224),),
    "inception": ((2, 299),),
    "yolo": ((1, 416),),
    "vit_b16": ((4, 224),),
}
"""Batch and side of images by net."""
TOKENS = {
    "bert_base": ((1, 16), (4, 64), (1, 384)),
    "gpt2": ((4, 64), (1, 512)),
    "t5_encoder": ((4, 37),),
    "albert_base": ((2, 256),),
    "llama": ((1, 500),),
}
"""Batch and length of sequences by net."""


def _images(name: str, batch: int, side: int) -> tuple[nn.Module, Tensors]:
    return zoo.build(name).module, (randn(batch, 3, side, side),)


def _tokens(name: str, batch: int, length: int) -> tuple[nn.Module, Tensors]:
    model = zoo.build(name)
    return model.module, tuple(_resized(x, batch, length) for x in model.inputs)


def _resized(x: Tensor, batch: int, length: int) -> Tensor:
    """Identifiers below the largest of ``x``; a mask that hides nothing."""
    most = int(x.max())
    return randint(0, most, (batch, length)) if most > 1 else torch.ones(batch, length, dtype=x.dtype)


NETS: dict[str, Net] = {
    f"{name}_b{batch}_{size}": partial(make, name, batch, size)
    for make, sizes in ((_images, IMAGES), (_tokens, TOKENS))
    for name, pairs in sizes.items()
    for batch, size in pairs
}
