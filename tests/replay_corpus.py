"""The models whose code `make replay` compares: a name for each, and its graph.

In: nothing. Out: ``CORPUS``, functions that make graphs, by name. One of each kind of nest, quantised ones and control
flow among them; the zoo's nets at small sizes, fixed and dynamic; layers of odd shapes, recurrent ones too; seeded
random graphs, which hold control flow, symbolic sizes, sizes that data decide, every dtype and quantised ops; ``full/``
nets at full size, which only a run that names them takes.
Not its business: emitting and comparing (``replay``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from benchmarks import odd_shapes, zoo

from contractions import contraction
from graphs import random_graph
from nests import NESTS
from networks import network
from replay import FULL
from tilewright.core.graph import Graph
from tilewright.frontend.torch.export import import_module

RANDOM_GRAPHS = 60
RANDOM_NETWORKS = 40
RANDOM_CONTRACTIONS = 40


def _zoo(name: str, *, small: bool, dynamic: bool = False) -> Graph:
    model = zoo.build(name, small=small)
    return import_module(model.module, model.inputs, model.dynamic_shapes() if dynamic else None)


def _layer(family: odd_shapes.Family, shape: tuple[int, ...]) -> Graph:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, inputs, _ = family.build(*shape)
    return import_module(module.eval(), inputs)


def _corpus() -> Mapping[str, Callable[[], Graph]]:
    found: dict[str, Callable[[], Graph]] = {f"nest/{name}": make for name, make in NESTS.items()}
    for name in zoo.MODELS:
        found[f"zoo/{name}"] = partial(_zoo, name, small=True)
        found[f"dynamic/{name}"] = partial(_zoo, name, small=True, dynamic=True)
        found[f"{FULL}{name}"] = partial(_zoo, name, small=False)
    for family in odd_shapes.FAMILIES:
        for odd, _ in family.pairs:
            found[f"odd/{family.name}-{'x'.join(map(str, odd))}"] = partial(_layer, family, odd)
    for kind, make, count in (
        ("graph", random_graph, RANDOM_GRAPHS),
        ("network", network, RANDOM_NETWORKS),
        ("contraction", contraction, RANDOM_CONTRACTIONS),
    ):
        for seed in range(count):
            found[f"random/{kind}-{seed}"] = partial(_random, make, seed)
    return found


def _random(make: Callable[[int], object], seed: int) -> Graph:
    made: Any = make(seed)
    return made.graph if hasattr(made, "graph") else made


CORPUS = _corpus()
