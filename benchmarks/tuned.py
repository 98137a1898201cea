"""What tuning gains on nets and kernels that nobody tuned for, beside a random search and on a mistaken machine.

    python -m benchmarks.tuned --nets 8 --kernels 60 --seconds 60     what issue 24 asks for
    python -m benchmarks.tuned --nets 4 --kernels 6 --seconds 15      in a tenth of the time
    python -m benchmarks.tuned --seed 5 --json rows.json              other ones, with the rows of a figure

In: a seed. Out: a line for each net and each lone layer: how many times as fast as the chooser's code are the code of
a search of so many seconds, and that of as many trials in random order; on a machine with wrong numbers
(``benchmarks/mistaken.py``) the chooser's code and what a search makes of it; below it each kernel that a search looks
at, its seconds now beside the least that any schedule could take. All codes are measured anew, in turn in one process.
Not its business: faults of candidates (``tests/fuzz_search.py``), how well schedules are ranked (``fit_ranking``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks import random_layers
from benchmarks.interleaved import Tensors, best_times, geometric_mean
from benchmarks.mistaken import mistaken
from torch import nn

import tilewright
from tilewright.build.options import Options
from tilewright.choose.default import Scheduled
from tilewright.tile.schedule import Schedule
from tilewright.tools import search
from tilewright.tools.debug.compare import load_source
from tilewright.tools.guide import Guide, Near
from tilewright.tools.search import Tuned

Case = tuple[str, nn.Module, Tensors]
PATIENCE = 3
"""A random search has so many times the other one's seconds for as many trials, since each round compiles anew."""


# --- nets -----------------------------------------------------------------------------------------------------------


def images(r: random.Random) -> Case:
    """Blocks of convolutions, some of them depthwise, whose channels grow as the image shrinks."""
    side, channels, layers = r.choice([32, 48, 56, 64]), r.choice([16, 24, 32, 40]), list[nn.Module]()
    layers += [nn.Conv2d(3, channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.ReLU()]
    for _ in range(n_blocks := r.randint(2, 4)):
        wider, kernel = channels * r.choice([1, 2]), r.choice([3, 5])
        act = r.choice([nn.ReLU, nn.SiLU, nn.Hardswish])
        if r.random() < 0.4:
            layers += [nn.Conv2d(channels, channels, kernel, 1, kernel // 2, groups=channels), act()]
            layers += [nn.Conv2d(channels, wider, 1)]
        else:
            layers += [nn.Conv2d(channels, wider, kernel, r.choice([1, 2]), kernel // 2)]
        layers += [nn.BatchNorm2d(wider), act()]
        channels = wider
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100)]
    return f"images {side} of {n_blocks} blocks", nn.Sequential(*layers), (torch.randn(1, 3, side, side),)


def words(r: random.Random) -> Case:
    """Layers of attention and a perceptron."""
    heads, size, rows, n = r.choice([4, 6, 8]), r.choice([32, 48, 64]), r.choice([33, 64, 96, 128]), r.randint(1, 3)
    layer = nn.TransformerEncoderLayer(
        heads * size, heads, heads * size * r.choice([2, 4]), activation="gelu", batch_first=True,
        norm_first=r.random() < 0.5,
    )  # fmt: skip
    net = nn.TransformerEncoder(layer, n, enable_nested_tensor=False)
    return f"words {rows}x{heads}x{size} in {n} layers", net, (torch.randn(1, rows, heads * size),)


def numbers(r: random.Random) -> Case:
    """Perceptrons."""
    rows, widths = r.choice([1, 8, 50, 128]), [r.choice([96, 128, 200, 256, 384, 512]) for _ in range(r.randint(3, 6))]
    layers = [x for a, b in itertools.pairwise(widths) for x in (nn.Linear(a, b), r.choice([nn.ReLU, nn.GELU])())]
    return f"numbers {rows} by {len(widths) - 1} layers", nn.Sequential(*layers), (torch.randn(rows, widths[0]),)


def signals(r: random.Random) -> Case:
    """Convolutions along time."""
    first, n, layers = r.choice([24, 32, 64, 80]), r.choice([200, 400, 1000]), list[nn.Module]()
    channels = first
    for k in range(depth := r.randint(3, 5)):
        wider = r.choice([32, 64, 96, 128])
        layers += [nn.Conv1d(channels, wider, r.choice([3, 5, 7]), padding="same", dilation=2 ** (k % 3)), nn.ReLU()]
        channels = wider
    return f"signals {n} of {depth} layers", nn.Sequential(*layers), (torch.randn(1, first, n),)


NETS = (images, words, numbers, signals)


def nets(n: int, seed: int) -> Iterator[Case]:
    """So many random nets, of all kinds in turn."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    yield from (NETS[k % len(NETS)](r) for k in range(n))


def kernels(n: int, seed: int) -> Iterator[Case]:
    """So many random layers, of all families in turn, each of them known by its seed and number."""
    r, families = random.Random(seed), list(random_layers.FAMILIES.values())
    torch.manual_seed(seed)
    yield from (families[k % len(families)](r) for k in range(n))


# --- searches -------------------------------------------------------------------------------------------------------


class Blind(Guide):
    """A search of ``left`` trials in random order: it expects nothing, and learns nothing."""

    def __init__(self, left: int, seed: int) -> None:
        self.left, self.random = left, random.Random(seed)

    def ordered(self, name: str, found: Iterable[Scheduled]) -> list[Schedule]:
        made = [one.schedule for one in found]
        self.random.shuffle(made)
        return made[: self.left]

    def best_of(self, near: Near) -> Schedule | None:
        found = next(near.source, None) if self.left > 0 else None
        return None if found is None else found.schedule

    def learn(self, name: str, schedule: Schedule, beside: Schedule, ratio: float) -> None:
        self.left -= 1


@dataclass(frozen=True)
class Row:
    """What was found for a net or a layer: how many times as fast as the chooser's each code is."""

    label: str
    tuned: float
    blind: float
    wrong: float
    recovered: float
    n_trials: tuple[int, int, int]
    found: Tuned

    def __str__(self) -> str:
        trials = "/".join(map(str, self.n_trials))
        cells = f"{self.tuned:6.3f} {self.blind:6.3f} {self.wrong:6.3f} {self.recovered:6.3f}  {trials:>11}"
        lines = [f"{self.label:<52} {cells}  at most {self.found.most_gain:.1f}"]
        lines += [f"    {x.label:<60} {x.now * 1e6:9.1f} us, least {x.least * 1e6:9.1f}" for x in self.found.left]
        return "\n".join([*lines, *(f"    {x}" for x in self.found.faults)])


def measured(case: Case, seconds: float, seed: int, again: float) -> Row:
    """Search three times, then time all five codes in turn for ``again`` seconds."""
    label, module, inputs = case
    module.eval()
    graph, arrays = load_source(module, inputs)

    def searched(budget: float, guide: Guide | None = None) -> Tuned:
        return search.search(graph, arrays, Options(), threads=1, budget=budget, seed=seed, guide=guide)

    found = searched(seconds)
    blind = searched(PATIENCE * seconds, Blind(found.n_candidates, seed))
    with mistaken():
        anew = searched(seconds)
    with tempfile.TemporaryDirectory() as folder:

        def code(tuned: Tuned | None, *, is_mistaken: bool = False) -> Callable[[], Any]:
            file = Path(folder) / "found.schedule"
            file.write_text(tuned.text if tuned else "")
            with mistaken() if is_mistaken else nullcontext():
                made = tilewright.compile(
                    graph, threads=1, cache=False, schedule=file if tuned and tuned.text else None
                )
            return lambda: made(*arrays)

        codes = [code(None), code(found), code(blind), code(None, is_mistaken=True), code(anew, is_mistaken=True)]
    usual, *times = best_times(codes, again, TURN)
    # Where nothing was found the code is the same, and so is its time.
    tuned, at_random, wrong, recovered = (usual / t for t in times)
    return Row(
        label, tuned if found.text else 1.0, at_random if blind.text else 1.0, wrong,
        recovered if anew.text else wrong, (found.n_candidates, blind.n_candidates, anew.n_candidates), found,
    )  # fmt: skip


TURN = 2e-3
"""Seconds of each code's turn."""
HEAD = f"{'times as fast as the chooser, by':<52} {'search':>6} {'random':>6} {'wrong':>6} {'anew':>6}  {'trials':>11}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", type=int, default=8)
    parser.add_argument("--kernels", type=int, default=60, help="single layers")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search, of which there are three")
    parser.add_argument("--again", type=float, default=4.0, help="seconds of measuring what was found anew")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the rows of a figure go")
    a = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows: dict[str, list[Row]] = {"nets": [], "kernels": []}
    print(HEAD)
    for kind, cases in (("nets", nets(a.nets, a.seed)), ("kernels", kernels(a.kernels, a.seed))):
        for case in cases:
            rows[kind].append(measured(case, a.seconds, a.seed, a.again))
            print(rows[kind][-1], flush=True)
            if a.json:
                a.json.write_text(json.dumps(table(rows), indent=1) + "\n")
    for kind, found in rows.items():
        if found:
            means = [geometric_mean([get(x) for x in found]) for get in COLUMNS]
            print(f"{kind + ', mean':<52} " + " ".join(f"{x:6.3f}" for x in means))
            print(f"{kind + ', least':<52} " + " ".join(f"{min(map(get, found)):6.3f}" for get in COLUMNS))


def table(rows: dict[str, list[Row]]) -> list[list[object]]:
    """The rows of a figure."""
    found = [(kind, x) for kind, of_kind in rows.items() for x in of_kind]
    return [[kind, x.label, *(round(get(x), 3) for get in COLUMNS), *x.n_trials] for kind, x in found]


COLUMNS: Sequence[Callable[[Row], float]] = (
    lambda x: x.tuned, lambda x: x.blind, lambda x: x.wrong, lambda x: x.recovered,
)  # fmt: skip


if __name__ == "__main__":
    main()
