"""Nets that we quantise: our code for the QDQ file beside our f32 code, ONNX Runtime and OpenVINO on the same file.

    python -m benchmarks.quantised                              every net, one thread
    python -m benchmarks.quantised resnet50 mobilenet_v2 -t 2   some nets, two threads
    python -m benchmarks.quantised resnet50 --prepare           write the files, and time nothing
    python -m benchmarks.quantised --bits 7                     weights of 7 bits, whose pairs no CPU saturates
    python -m benchmarks.quantised --own-time             where other work shares the core
    python -m benchmarks.quantised --digits                     accuracy on digits beside ONNX Runtime's quantiser

In: names from ``benchmarks.zoo``. Out: a line for each net: milliseconds of our int8 code; the time of our f32 code,
of ONNX Runtime and of OpenVINO over it; decibels of the f32 results over what int8 changes, for us and for ONNX
Runtime. All are called in turn in one process, and the shortest call of each counts. Weights are random and the net's
own inputs are the calibration data, so decibels say whether two engines compute the same, not what a trained net loses.
Not its business: single layers (``benchmarks/integers.py``), f32 peers (``benchmarks/latency.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks import zoo
from benchmarks.engines import Run
from benchmarks.interleaved import best_times, geometric_mean, onnxruntime_session
from benchmarks.other_nets import TURN

import tilewright
from tilewright.graph.quantize.encoding import decibels

NETS = (
    "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121", "yolo", "unet", "bert_base", "vit_b16",
    "whisper_tiny_encoder", "lstm",
)  # fmt: skip
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
OUR_QUANTISERS: Mapping[str, Mapping[str, Any]] = {
    "ours": {},
    "ours, 7-bit weights": {"weight_bits": 7},
    "ours, one scale for all weights": {"weights": "per-tensor"},
}


def prepare(name: str, folder: Path, small: bool, bits: int) -> tuple[Path, Path, dict[str, Any]]:
    """Write the net as ONNX in f32 and quantised, unless they are there; the two files and the net's inputs."""
    stem = f"{name}_small" if small else name
    plain, quantised, inputs = (folder / f"{stem}{ending}" for ending in (".onnx", f".int{bits}.onnx", ".npz"))
    if not quantised.exists():
        model = zoo.build(name, small=small)
        onnx.save(zoo.to_onnx(model), plain)
        arrays = {k: v.numpy() for k, v in model.named_inputs.items()}
        np.savez(inputs, **arrays)
        tilewright.quantize(plain, [arrays], weight_bits=bits).save(quantised)
    with np.load(inputs) as file:
        return plain, quantised, {k: file[k] for k in file.files}


def onnxruntime_call(path: Path, feeds: Mapping[str, Any], threads: int) -> Run:
    session = onnxruntime_session(str(path), threads)
    return partial(session.run, None, dict(feeds))


def openvino_call(path: Path, feeds: Mapping[str, Any], threads: int) -> Run:
    import openvino

    config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(path, "CPU", config).create_infer_request()
    return lambda: request.infer(list(feeds.values()), share_inputs=True, share_outputs=True)


Clock = Callable[[], float]
PEERS: Mapping[str, Callable[[Path, Mapping[str, Any], int], Run]] = {
    "onnxruntime": onnxruntime_call,
    "openvino": openvino_call,
}


def measure(
    name: str, folder: Path, clock: Clock = time.perf_counter, *, small: bool, bits: int, threads: int, seconds: float
) -> dict[str, Any]:
    """A row of the table."""
    plain, quantised, feeds = prepare(name, folder, small, bits)
    runs: dict[str, Run] = {}
    for title, path in (("f32", plain), ("int8", quantised)):
        runs[title] = partial(tilewright.compile(path, threads=threads), *feeds.values())
    for title, call in PEERS.items():
        with contextlib.suppress(ImportError):
            runs[title] = call(quantised, feeds, threads)
    times = dict(zip(runs, best_times(list(runs.values()), seconds, TURN, clock), strict=True))
    wanted = runs["f32"]()
    row: dict[str, Any] = {"net": name, "threads": threads, "ms": times["int8"] * 1e3}
    row |= {title: times[title] / times["int8"] for title in ("f32", *PEERS) if title in times}
    row |= {f"{title} dB": _decibels(wanted, runs[title]()) for title in ("int8", "onnxruntime") if title in runs}
    return row


def _decibels(wanted: Any, found: Any) -> float:
    """The power of one engine's results over that of what another's differ by."""
    pairs = [(np.asarray(a, np.float64), np.asarray(b)) for a, b in zip(_flat(wanted), _flat(found), strict=True)]
    return decibels(sum(float((a**2).sum()) for a, _ in pairs), sum(float(((a - b) ** 2).sum()) for a, b in pairs))


def _flat(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


COLUMNS = ("f32", *PEERS, "int8 dB", "onnxruntime dB")


def line_of(row: Mapping[str, Any]) -> str:
    cells = [f"{row[c]:9.2f}" if c in row else f"{'':9}" for c in COLUMNS[:3]]
    cells += [f"{row[c]:9.1f}" if c in row else f"{'':9}" for c in COLUMNS[3:]]
    slower = " <- slower" if min(row.get(c, np.inf) for c in COLUMNS[:3]) < 1 else ""
    return f"{row['net']:<22} {row['threads']:>7} {row['ms']:9.3f} {' '.join(cells)}{slower}"


# --- digits ---------------------------------------------------------------------------------------------------------


def digits() -> Iterator[tuple[str, float, float]]:
    """Each quantiser's name, its share of right answers on held-out digits, and decibels over the f32 scores.

    All are calibrated on the same 256 training digits. The last two are ONNX Runtime's, which runs its own file.
    """
    sys.path.insert(0, str(DIGITS))
    from digits_data import load

    training, held_out = load()
    path, samples = DIGITS / "digits.onnx", training.images[:256]
    scores = np.asarray(tilewright.compile(path)(held_out.images))

    def line(name: str, found: Any) -> tuple[str, float, float]:
        right = float((np.asarray(found).argmax(1) == held_out.labels).mean())
        return name, right, _decibels(scores, found)

    yield line("f32", scores)
    for name, options in OUR_QUANTISERS.items():
        yield line(name, tilewright.compile(tilewright.quantize(path, samples, **options))(held_out.images))
    with tempfile.TemporaryDirectory() as folder:
        for name, per_channel in (("ONNX Runtime's, per channel", True), ("ONNX Runtime's, per tensor", False)):
            made = Path(folder) / "theirs.onnx"
            _quantised_by_onnxruntime(path, made, samples, per_channel)
            (found,) = onnxruntime_session(str(made)).run(None, {"image": held_out.images})
            yield line(name, found)


def _quantised_by_onnxruntime(path: Path, made: Path, samples: Any, per_channel: bool) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Samples(CalibrationDataReader):  # type: ignore[misc]  # its package has no types
        def __init__(self) -> None:
            self.batches = iter(np.array_split(samples, 8))

        def get_next(self) -> dict[str, Any] | None:
            return next(({"image": batch} for batch in self.batches), None)

    quantize_static(
        path, made, Samples(), quant_format=QuantFormat.QDQ, per_channel=per_channel,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="*", default=NETS, help="names of nets (default: the ten that are compared)")
    parser.add_argument("-t", "--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--small", action="store_true", help="the zoo's small forms")
    parser.add_argument("--bits", type=int, choices=(7, 8), default=8, help="of weights")
    parser.add_argument("--seconds", type=float, default=4, help="time for each net")
    parser.add_argument("--own-time", action="store_true", help="count a process's time on its core alone (one thread)")
    parser.add_argument("--folder", type=Path, help="where files are kept (default: for this run only)")
    parser.add_argument("--prepare", action="store_true", help="only write files and compile")
    parser.add_argument("--json", type=Path, help="where to write the table")
    parser.add_argument("--digits", action="store_true", help="accuracy on digits")
    a = parser.parse_args()
    if a.digits:
        for name, right, db in digits():
            print(f"{name:32} {right:8.2%} {db:8.1f} dB")
        return
    if unknown := set(a.nets) - zoo.MODELS.keys():
        parser.error(f"no net {', '.join(sorted(unknown))}; there are {', '.join(zoo.MODELS)}")
    clock = time.process_time if a.own_time else time.perf_counter
    rows: list[dict[str, Any]] = []
    print(f"{'net':<22} {'threads':>7} {'int8 ms':>9} {'f32':>9} {'ORT':>9} {'OpenVINO':>9} {'dB':>9} {'ORT dB':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in a.nets:
            if a.prepare:
                for path in prepare(name, folder, a.small, a.bits)[:2]:
                    for threads in a.threads:
                        tilewright.compile(path, threads=threads)
                continue
            for threads in a.threads:
                row = measure(name, folder, clock, small=a.small, bits=a.bits, threads=threads, seconds=a.seconds)
                rows.append(row)
                print(line_of(row), flush=True)
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")
    for column in COLUMNS[:3]:
        ratios = [row[column] for row in rows if column in row]
        if ratios:
            print(f"{column} over ours: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
