"""What one compile for all sizes costs: nets of the zoo with symbolic sizes beside the same nets compiled for a size.

    python -m benchmarks.sizes                          every net, 1 and 2 threads
    python -m benchmarks.sizes mlp bert_base -t 1       some, 1 thread
    python -m benchmarks.sizes mlp --prepare            write the ONNX files and compile, and time nothing
    python -m benchmarks.sizes --json sizes.json        go on with a record: what it has is not measured again

In: names from ``benchmarks.zoo``, of nets that have a dimension that may vary. Out: a line for each size and number of
threads: milliseconds of the code for all sizes, its time over that of code for this size alone, ONNX Runtime's time
over it, the largest difference between our two results. All three read one dynamic ONNX file and are called in turn
in one process; the shortest call of each counts. Compiled models come from the disk cache where it has them.
Not its business: nets without symbolic sizes (``benchmarks/latency.py``, ``benchmarks/other_nets.py``).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from benchmarks import zoo
from benchmarks.engines import Run
from benchmarks.interleaved import best_times, geometric_mean, onnxruntime_session
from benchmarks.other_nets import TURN

import tilewright

Sizes = dict[str, int]

ROWS = (1, 2, 7, 33, 128)
"""Batches of nets whose input is one row of numbers for each item."""
IMAGES = (1, 2, 3, 5, 8)
"""Batches of nets whose items are images or series."""
TOKENS = ((1, 16), (1, 77), (2, 33), (4, 64), (1, 128))
"""Batch and length of nets that read tokens."""


def sizes_of(model: zoo.ZooModel) -> list[Sizes]:
    """Five sizes of a net by the names of its dimensions; none where it has no dimension that may vary."""
    names = list(dict.fromkeys(name for axes in model.axes.values() for name in axes.values()))
    if len(names) == 1:
        ranks = [x.dim() for name, x in model.named_inputs.items() if model.axes.get(name)]
        is_rows = max(ranks) == 2 and model.inputs[0].is_floating_point()
        return [{names[0]: n} for n in (ROWS if is_rows else IMAGES)]
    return [dict(zip(names, pair, strict=True)) for pair in TOKENS] if len(names) == 2 else []


def resized(model: zoo.ZooModel, sizes: Mapping[str, int]) -> zoo.ZooModel:
    """The net with inputs of these sizes: those that it has, again and again along each axis."""

    def input_of(name: str, x: torch.Tensor) -> torch.Tensor:
        for axis, dim in model.axes.get(name, {}).items():
            at = torch.arange(sizes[dim]) % x.shape[axis]
            x = x.index_select(axis, at)
        return x.contiguous()

    return replace(model, named_inputs={name: input_of(name, x) for name, x in model.named_inputs.items()})


def dynamic_file(model: zoo.ZooModel, path: Path) -> None:
    """Write the net once for all sizes, unless it is there. Sizes of 1 would be fixed by the exporter."""
    if path.exists():
        return
    names = {name for axes in model.axes.values() for name in axes.values()}
    onnx.save(zoo.to_onnx(resized(model, {name: 3 + k for k, name in enumerate(sorted(names))}), dynamic=True), path)


def prepare(path: Path, all_sizes: list[Sizes], threads: int) -> None:
    """Leave the code for all sizes and for each in the disk cache."""
    for fixed in (None, *all_sizes):
        tilewright.compile(path, threads=threads, fix_dims=fixed)


def measure(
    model: zoo.ZooModel, path: Path, all_sizes: list[Sizes], threads: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """A row for each size."""
    torch.set_num_threads(threads)
    session = onnxruntime_session(str(path), threads)
    general = tilewright.compile(path, threads=threads)
    for sizes in all_sizes:
        arrays: list[Any] = [x.numpy() for x in resized(model, sizes).inputs]
        feed = {i.name: x for i, x in zip(session.get_inputs(), arrays, strict=True)}
        own = tilewright.compile(path, threads=threads, fix_dims=sizes)
        runs: list[Run] = [partial(general, *arrays), partial(own, *arrays), partial(session.run, None, feed)]
        ours, fixed, peer = best_times(runs, seconds, TURN)
        pairs = zip(_flat(runs[0]()), _flat(runs[1]()), strict=True)
        error = max(float(abs(a - b).max() / max(abs(b).max(), 1e-9)) for a, b in pairs)
        yield {
            "net": model.name, "sizes": "x".join(map(str, sizes.values())), "threads": threads,
            "ms": ours * 1e3, "over_fixed": ours / fixed, "peer_over": peer / ours, "difference": error,
        }  # fmt: skip


def _flat(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="*", help="names of nets (default: all that have symbolic sizes)")
    parser.add_argument("-t", "--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--small", action="store_true", help="the zoo's small forms")
    parser.add_argument("--seconds", type=float, default=1.5, help="time for each size")
    parser.add_argument("--folder", type=Path, help="where ONNX files are kept (default: for this run only)")
    parser.add_argument("--prepare", action="store_true", help="only write files and compile")
    parser.add_argument("--json", type=Path, help="a record to go on with")
    a = parser.parse_args()
    if unknown := set(a.nets) - zoo.MODELS.keys():
        parser.error(f"no net {', '.join(sorted(unknown))}; there are {', '.join(zoo.MODELS)}")
    rows: list[dict[str, Any]] = json.loads(a.json.read_text()) if a.json and a.json.exists() else []
    done = {(r["net"], r["threads"]) for r in rows}
    print(f"{'net':<22} {'sizes':>8} {'threads':>7} {'ms':>9} {'/ fixed':>8} {'ORT / ours':>10} {'difference':>10}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in a.nets or zoo.MODELS:
            wanted = [n for n in a.threads if (name, n) not in done]
            model = zoo.build(name, small=a.small)
            all_sizes = sizes_of(model)
            if not wanted or not all_sizes:
                continue
            path = folder / f"{name}{'_small' if a.small else ''}.onnx"
            try:
                dynamic_file(model, path)
                for threads in wanted:
                    if a.prepare:
                        prepare(path, all_sizes, threads)
                        continue
                    for row in measure(model, path, all_sizes, threads, a.seconds):
                        rows.append(row)
                        print(line_of(row), flush=True)
            except Exception as e:
                print(f"{name:<22} fails: {type(e).__name__}: {str(e).splitlines()[0][:90]}", flush=True)
            if a.json:
                a.json.write_text(json.dumps(rows, indent=1) + "\n")
    ratios = [r["over_fixed"] for r in rows]
    if ratios:
        print(
            f"all sizes / fixed: geometric mean {geometric_mean(ratios):.2f}, most {max(ratios):.2f}, "
            f"{sum(x > 1.1 for x in ratios)} of {len(ratios)} above 1.10; "
            f"ONNX Runtime / ours: least {min(r['peer_over'] for r in rows):.2f}"
        )


def line_of(row: Mapping[str, Any]) -> str:
    mark = " <- slower" if row["over_fixed"] > 1.1 or row["peer_over"] < 1 else ""
    return (
        f"{row['net']:<22} {row['sizes']:>8} {row['threads']:>7} {row['ms']:9.3f} {row['over_fixed']:8.2f} "
        f"{row['peer_over']:10.2f} {row['difference']:10.1e}{mark}"
    )


if __name__ == "__main__":
    main()
