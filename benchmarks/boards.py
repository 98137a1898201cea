"""Small nets on microcontrollers in int8 beside f32: bytes of flash, bytes of RAM, instructions of a call under QEMU.

    PYTHONPATH=tests:. python -m benchmarks.boards                            both nets on every board
    PYTHONPATH=tests:. python -m benchmarks.boards keywords -t cortex-m4     one net on one board
    PYTHONPATH=tests:. python -m benchmarks.boards --keep FOLDER              leave objects and programs there

In: ``aot.emulated`` of the tests, which links for such machines and imitates them; QEMU with plugins, ziglang and a C
compiler. Out: for each board and net the three numbers in both forms, int8 over f32, and multiply-adds for each
instruction. Weights and calibration data are seeded random numbers. Flash is the exported object with its weights; RAM
what a call needs, the stack included. The int8 net reads and gives f32, as the f32 net does. Not its business: time,
which QEMU does not imitate; accuracy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import tilewright as tw
from aot.emulated.platforms import HERE, PLATFORMS

BOARDS = ("cortex-m4", "cortex-m7", "cortex-m55", "armv7")
F32_BYTES = 4


def _block(n_in: int, n_out: int, kernel: int | tuple[int, int], stride: int = 1, groups: int = 1) -> nn.Sequential:
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    pads = (width - 1) // 2, width // 2, (height - 1) // 2, height // 2
    conv = nn.Conv2d(n_in, n_out, (height, width), stride, groups=groups, bias=False)
    return nn.Sequential(nn.ZeroPad2d(pads), conv, nn.BatchNorm2d(n_out), nn.ReLU())


def _separable(n_in: int, n_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(_block(n_in, n_in, 3, stride, n_in), _block(n_in, n_out, 1))


def _classified(features: list[nn.Sequential], channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def keywords() -> tuple[nn.Module, tuple[int, ...]]:
    """DS-CNN S for 12 words (Zhang et al., Hello Edge, 2017): 49 frames of 10 coefficients."""
    return _classified([_block(1, 64, (10, 4), 2), *[_separable(64, 64) for _ in range(4)]], 64, 12), (1, 1, 49, 10)


def mobile() -> tuple[nn.Module, tuple[int, ...]]:
    """MobileNet of a quarter of the channels on 96x96 pixels, two classes: MLPerf Tiny's person detection."""
    sizes = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)]
    layers, channels = [_block(3, 8, 3, 2)], 8
    for n_out, stride in sizes:
        layers.append(_separable(channels, n_out, stride))
        channels = n_out
    return _classified(layers, channels, 2), (1, 3, 96, 96)


NETS = {"keywords": keywords, "mobile": mobile}


class Numbers(NamedTuple):
    """What a net takes on a board."""

    flash: int
    ram: int
    instructions: int


def prepared(name: str) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """The net in both forms, and an input."""
    torch.manual_seed(0)
    module, shape = NETS[name]()
    rng = np.random.default_rng(0)
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.weight.data.uniform_(0.5, 1.5)
            m.bias.data.normal_(0, 0.2)
    data = rng.standard_normal((32, *shape[1:])).astype(np.float32)
    with torch.no_grad():
        module.train()(torch.from_numpy(data))  # statistics of the norms
    module.eval()
    example = (torch.from_numpy(data[:1]),)
    return {"f32": (module, example), "int8": (tw.quantize(module, data, example_inputs=example), None)}, data[:1]


def measured(made: Any, x: np.ndarray[Any, Any], board: str, plugin: Path, folder: Path) -> tuple[Numbers, Any]:
    """A form of a net on a board, and its answer to ``x``."""
    folder.mkdir(parents=True)
    source, example = made
    exported = tw.export(source, folder, example_inputs=example, name="m", target=board)
    record = json.loads(exported.record.read_text())
    n_out = int(np.prod(record["outputs"][0]["shape"])) * F32_BYTES
    sizes = [f"-DINPUT_BYTES={x.nbytes}", f"-DOUTPUT_BYTES={n_out}"]
    platform = PLATFORMS[board]
    program = platform.link([exported.object], folder, "repeated.c", sizes)
    counts = []
    for times in (1, 2):
        answer = platform.run(program, bytes([times]) + x.tobytes(), plugin)
        counts.append(int((folder / "instructions.txt").read_text()))
    flash = sum(part["n_bytes"] for part in record["sizes"] if part["kind"] != "file")
    ram = sum(record["memory"][f"{part}_bytes"] for part in ("arena", "handle", "scratch", "stack"))
    return Numbers(flash, ram, counts[1] - counts[0]), np.frombuffer(answer, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {', '.join(NETS)}")
    parser.add_argument("-t", "--targets", nargs="+", choices=BOARDS, default=BOARDS)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        plugin = folder / "instructions.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(HERE / "instructions.c"), "-o", str(plugin)], check=True)
        for name in options.nets or NETS:
            forms, x = prepared(name)
            for board in options.targets:
                if missing := PLATFORMS[board].missing():
                    print(f"{board}: {missing}")
                    continue
                for form in forms:
                    shutil.rmtree(folder / f"{name}-{board}-{form}", ignore_errors=True)
                (plain, wanted), (few, found) = (
                    measured(forms[form], x, board, plugin, folder / f"{name}-{board}-{form}") for form in forms
                )
                off = float(np.abs(found - wanted).max() / np.abs(wanted).max())
                shares = [a / b for a, b in zip(few, plain, strict=True)]
                rows.append([name, board, *plain, *few, *shares])
                print(f"{name} on {board}: " + ", ".join(
                    f"{what} {b:,} f32, {a:,} int8, {a / b:.2f}"
                    for what, a, b in zip(Numbers._fields, few, plain, strict=True)
                ) + f"; results differ by {off:.1%}", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
