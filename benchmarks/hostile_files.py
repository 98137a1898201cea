"""Sound files of every format that Tilewright reads, how each is damaged, and how it is opened.

In: nothing. Out: ``FORMATS``. Not its business: the changes themselves (``benchmarks.mutations``), and what must become
of a damaged file (``benchmarks.hostile``).

A format's file may have others beside it, which are damaged as well. Models are compiled, and called where that takes
little; other files are read to their end, and used.
"""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from benchmarks.mutations import Damage, change_value, in_archive, in_bytes, in_json, in_text
from numpy.random import Generator
from onnx import TensorProto
from safetensors.torch import save as safetensors

import damage
import damage_stablehlo
import tilewright as tw
from frontend.gguf_build import model_of, write
from frontend.onnx_build import info, model, node
from frontend.test_tflite import network
from frontend.test_tflite_models import MODELS as TFLITE
from tilewright import ops
from tilewright.build.found_schedules import FoundSchedules
from tilewright.build.options import Options
from tilewright.build.refit import refit
from tilewright.build.texts import read_graph, schedules
from tilewright.core.text import load_graph, save_graph
from tilewright.frontend.weights.decoders import decoder_of
from tilewright.frontend.weights.gguf_file import open_gguf
from tilewright.runtime.errors import TilewrightError

MOST_ELEMENTS = 1e6
"""Of the arguments of a model that is called."""
CALL_SECONDS = 5.0
"""Processor time of a call, after which a signal ends it."""

Files = Mapping[str, bytes]
"""What lies in a folder by name; the first is the one that is opened."""


@dataclass(frozen=True)
class Format:
    """``originals`` are sound; ``damages`` is how a file of each suffix changes, which is ``in_bytes`` else."""

    originals: Callable[[], list[Files]]
    opened: Callable[[Path], None]
    damages: Mapping[str, Damage] = field(default_factory=dict)

    def damaged(self, seed: int) -> Files:
        """One of the originals, in which one file is damaged, rarely more."""
        rng, sound = np.random.default_rng(seed), _kept(self.originals)
        files = dict(sound[seed % len(sound)])
        names = list(files)
        for _ in range(int(rng.choice([1, 1, 1, 2]))):
            name = names[0] if rng.random() < 0.7 else names[int(rng.integers(len(names)))]
            others = [f[n] for f in sound for n in f if Path(n).suffix == Path(name).suffix]
            files[name] = self.damages.get(Path(name).suffix, in_bytes)(files[name], others, rng)
        return files


@cache
def _kept(make: Callable[[], list[Files]]) -> list[Files]:
    return make()


# --- models ---------------------------------------------------------------------------------------------------------


def compiled(path: Path) -> None:
    """Compile a model and call it."""
    called(tw.compile(path, cache=False, threads=1))


def called(made: Any) -> None:
    """Call a model on ones, where these are few; every size that a call decides is 2.

    A loop may go round for ever, as its file says; then a signal must end the call.
    """
    sizes = [[d if isinstance(d, int) else 2 for d in t.shape] for t in made.inputs]
    if sum(np.prod(s, dtype=float) for s in sizes) > MOST_ELEMENTS:
        return
    arguments = [np.ones(s, dtype_of_name(t.dtype)) for s, t in zip(sizes, made.inputs, strict=True)]
    before = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CALL_SECONDS)
    try:
        with contextlib.suppress(_Stopped):
            made(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class _Stopped(Exception):
    """A call took longer than ``CALL_SECONDS``, and a signal ended it."""


def _stop(number: int, frame: object) -> None:
    raise _Stopped


def dtype_of_name(name: str) -> Any:
    """The type of NumPy, or of ``ml_dtypes``, of this name."""
    import ml_dtypes

    return getattr(ml_dtypes, name, None) or np.dtype(name)


def in_proto(data: bytes, others: Any, rng: Generator) -> bytes:
    """An ONNX model's bytes change, or fields so that it stays readable: attributes, operands, sizes, places."""
    try:
        m = onnx.ModelProto.FromString(data)
    except Exception:  # damaged before
        return in_bytes(data, others, rng)
    if rng.random() < 0.4 or not m.graph.node or not m.graph.initializer:
        return in_bytes(data, others, rng)
    outside = [t for t in m.graph.initializer if t.external_data]
    if outside and rng.random() < 0.7:
        said = {e.key: e.value for e in outside[0].external_data}
        change_value(said, rng)
        del outside[0].external_data[:]
        for key, value in said.items():
            outside[0].external_data.add(key=key, value=str(value).encode("utf-8", "replace").decode())
    else:
        try:
            damage.change_field(m, rng)
        except (TypeError, ValueError):  # names that an earlier change has left without text
            return in_bytes(data, others, rng)
    return m.SerializeToString()


def onnx_models() -> list[Files]:
    return [{"m.onnx": content} for content in damage.originals()]


def onnx_outside() -> list[Files]:
    numbers = np.arange(64, dtype=np.float32).reshape(8, 8)
    made = []
    for entries in ({"location": "w.bin"}, {"location": "w.bin", "offset": "64", "length": "256"}):
        m = model(
            [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])], [info("x", ["N", 8])], ["y"], {"b": [1.0]}
        )
        t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 8], data_location=TensorProto.EXTERNAL)
        for key, value in entries.items():
            t.external_data.add(key=key, value=value)
        m.graph.initializer.append(t)
        made.append(
            {"m.onnx": m.SerializeToString(), "w.bin": bytes(64 if len(entries) > 1 else 0) + numbers.tobytes()}
        )
    return made


def onnx_forests() -> list[Files]:
    from skl2onnx import to_onnx
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    y = x[:, 0] + x[:, 1] * x[:, 2]
    models = (RandomForestClassifier(3, max_depth=3, random_state=0).fit(x, y > 0),
              GradientBoostingRegressor(n_estimators=3, random_state=0).fit(x, y))  # fmt: skip
    return [{"m.onnx": to_onnx(m, x[:1], options={"zipmap": False} if k == 0 else None).SerializeToString()}
            for k, m in enumerate(models)]  # fmt: skip


def onnx_codes() -> list[Files]:
    """Codes with steps and zero points, as quantisers write them."""
    rng = np.random.default_rng(0)
    codes = {
        "w": rng.integers(-9, 9, (8, 3, 3, 3)).astype(np.int8), "s": np.float32(0.1), "z": np.int8(1),
        "ws": np.full(8, 0.05, np.float32), "wz": np.zeros(8, np.int8), "b": np.arange(8, dtype=np.int32),
    }  # fmt: skip
    plain = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "s", "z", "b"], ["c"]),
        node("DequantizeLinear", ["c", "s", "z"], ["y"]),
    ]  # fmt: skip
    around = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0), node("Conv", ["f", "wf"], ["c"]),
        node("QuantizeLinear", ["c", "s", "z"], ["cq"]), node("DequantizeLinear", ["cq", "s", "z"], ["y"]),
    ]  # fmt: skip
    products = [
        node("DynamicQuantizeLinear", ["m"], ["q", "s1", "z1"]), node("MatMulInteger", ["q", "k", "z1"], ["i"]),
        node("Cast", ["i"], ["y"], to=1), node("DequantizeLinear", ["k4", "s4"], ["l"], axis=0, block_size=4),
        node("MatMul", ["m", "l"], ["y4"]),
    ]  # fmt: skip
    few = onnx.helper.make_tensor("k4", TensorProto.INT4, [8, 4], rng.integers(-8, 8, 32))
    image, rows = [info("x", ["N", 3, 6, 6])], [info("m", ["N", 8])]
    constants = {"k": rng.integers(0, 9, (8, 4)).astype(np.uint8), "s4": np.full((2, 4), 0.1, np.float32)}
    last = model(products, rows, ["y", "y4"], constants, opset=21)
    last.graph.initializer.append(few)
    made = (model(plain, image, ["y"], codes), model(around, image, ["y"], codes), last)
    return [{"m.onnx": m.SerializeToString()} for m in made]


def exported_programs() -> list[Files]:
    import io

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)
            self.register_buffer("n", torch.zeros(4))

        def forward(self, x: Any, scale: float = 2.0) -> Any:
            return self.out(torch.relu(self.conv(x)).mean((2, 3))) * scale + self.n

    made = []
    for batch in (None, torch.export.Dim("n", min=1, max=64)):
        shapes = None if batch is None else {"x": {0: batch}, "scale": None}
        program = torch.export.export(Net().eval(), (torch.ones(2, 3, 8, 8), 2.0), dynamic_shapes=shapes)
        file = io.BytesIO()
        torch.export.save(program, file)
        made.append({"m.pt2": file.getvalue()})
    return made


def stablehlo_texts() -> list[Files]:
    return [{"m.mlir": c} for c in damage_stablehlo.originals() if not c.startswith(b"ML")]


def stablehlo_bytecode() -> list[Files]:
    return [{"m.mlirbc": c} for c in damage_stablehlo.originals() if c.startswith(b"ML")]


def in_program(data: bytes, others: Any, rng: Generator) -> bytes:
    """A StableHLO text's words change, or one for another of the dialect's."""
    if rng.random() < 0.5:
        return in_text(data, others, rng)
    return damage_stablehlo.word_changed(data.decode("utf-8", "replace"), rng).encode("utf-8", "replace")


def tflite_of(*kinds: str) -> list[Files]:
    chosen = [c for name, c in TFLITE.items() if name.split("/")[0] in kinds]
    return [{"m.tflite": c} for c in sorted(chosen, key=len)[:6]]


def tflite_floats() -> list[Files]:
    return [{"m.tflite": network()[0]}, *tflite_of("float")]


def tflite_codes() -> list[Files]:
    return tflite_of("int8", "int16", "dynamic")


# --- weights --------------------------------------------------------------------------------------------------------


def gguf_files() -> list[Files]:
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, of in (("llama", "F32"), ("qwen2", "Q8_0"), ("gemma", "Q4_0")):
            write(path := Path(folder) / "m.gguf", kind, model_of(kind), of)
            made.append({"m.gguf": path.read_bytes()})
    return made


def gguf_opened(path: Path) -> None:
    """Every tensor's numbers, and the model that the file describes."""
    file = open_gguf(path)
    for tensor in file.tensors.values():
        tensor.numbers()
    for keeps_codes in (False, True):
        decoder_of(file, keeps_codes=keeps_codes)


def layer() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def safetensors_files() -> list[Files]:
    return [{"m.safetensors": safetensors(dict(layer().state_dict()), {"format": "pt"})}]


def in_header(data: bytes, others: Any, rng: Generator) -> bytes:
    """The JSON in front of a safetensors file changes and its length is right; or the bytes change."""
    n = int.from_bytes(data[:8], "little")
    if rng.random() < 0.4 or not 0 < n <= len(data) - 8:
        return in_bytes(data, others, rng)
    try:
        head = in_json(data[8 : 8 + n], others, rng)
    except ValueError:  # damaged before
        return in_bytes(data, others, rng)
    return len(head).to_bytes(8, "little") + head + data[8 + n :]


def safetensors_opened(path: Path) -> None:
    """The layer with the file's numbers."""
    with torch.no_grad():
        tw.with_weights(layer(), path)(torch.ones(1, 4))


# --- Tilewright's own files -----------------------------------------------------------------------------------------


@cache
def own_files() -> dict[str, bytes]:
    """A compiled model with its recipe, the text of a graph with its constants, schedules, and what a search found."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        rng = np.random.default_rng(0)
        weight = rng.standard_normal((40, 96)).astype(np.float32)
        nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("Softmax", ["r"], ["y"])]
        source = model(nodes, [info("x", [7, 40])], ["y"], {"w": weight})
        (folder / "m.onnx").write_bytes(source.SerializeToString())
        tw.compile(folder / "m.onnx", cache=False, threads=1).save(folder / "m.tw", refit=True)
        graph = read_graph(folder / "m.onnx")
        save_graph(graph, folder / "m.txt")
        text = schedules(graph, Options())
        (folder / "m.schedule").write_text(text)
        found = FoundSchedules(folder / "m.db")
        found.put("here", found_of(text))
        (folder / "found.txt").write_text(found.exported())
        (folder / "new.safetensors").write_bytes(safetensors({"w": torch.from_numpy(weight)}))
        return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def found_of(text: str) -> Any:
    from tilewright.build.found_schedules import FoundSchedule

    return [FoundSchedule(f"k_{k}", line, 2.0, 1.0) for k, line in enumerate(text.splitlines())]


def of_own(*names: str) -> Callable[[], list[Files]]:
    return cache(lambda: [{name: own_files()[name] for name in names}])


def graph_opened(path: Path) -> None:
    compiled_graph = load_graph(path, ops.by_name)
    called(tw.compile(compiled_graph, cache=False, threads=1))


def schedule_opened(path: Path) -> None:
    called(tw.compile(path.with_name("m.onnx"), schedule=path, cache=False, threads=1))


def found_opened(path: Path) -> None:
    book = FoundSchedules(path)
    names = [found.kernel for _, found in book.all()]
    book.get("here", names), book.trials("here", names), book.every("here"), book.exported()
    FoundSchedules(path.with_name("other.db")).merge(path)


def text_of_found_opened(path: Path) -> None:
    FoundSchedules(path.with_name("other.db")).take(path.read_text(encoding="utf-8", errors="replace"))


def refit_opened(path: Path) -> None:
    refit(path.with_name("m.tw"), path.with_name("new.safetensors"), path.with_name("out.tw"))
    called(tw.load(path.with_name("out.tw"), threads=1))


# --- boosted trees --------------------------------------------------------------------------------------------------


def _trained() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int)


def xgboost_dumps() -> list[Files]:
    import xgboost

    x, y = _trained()
    kinds = (
        xgboost.XGBClassifier(n_estimators=3, max_depth=3, n_jobs=1),
        xgboost.XGBRegressor(booster="gblinear", n_estimators=3),
    )
    return [{"m.json": bytes(m.fit(x, y).get_booster().save_raw("json"))} for m in kinds]


def xgboost_opened(path: Path) -> None:
    import xgboost

    class Given(xgboost.Booster):  # type: ignore[misc]
        def save_raw(self, raw_format: str = "ubj") -> bytearray:
            return bytearray(path.read_bytes())

    tw.from_xgboost(Given(), cache=False, threads=1)


def lightgbm_dumps() -> list[Files]:
    import lightgbm

    x, y = _trained()
    made = lightgbm.LGBMClassifier(n_estimators=3, max_depth=3, n_jobs=1, verbose=-1).fit(x, y)
    return [{"m.json": json.dumps(made.booster_.dump_model()).encode()}]


def lightgbm_opened(path: Path) -> None:
    import lightgbm

    class Given(lightgbm.Booster):  # type: ignore[misc]
        best_iteration = -1

        def __init__(self) -> None: ...
        def __del__(self) -> None: ...
        def dump_model(self, *args: Any, **options: Any) -> Any:
            try:
                return json.loads(path.read_bytes())
            except (ValueError, RecursionError) as e:
                raise TilewrightError("the library itself has no JSON that can't be read", remedy="") from e

    tw.from_lightgbm(Given(), cache=False, threads=1)


FORMATS: Mapping[str, Format] = {
    "onnx": Format(onnx_models, compiled, {".onnx": in_proto}),
    "onnx, numbers outside": Format(onnx_outside, compiled, {".onnx": in_proto}),
    "onnx, codes": Format(onnx_codes, compiled, {".onnx": in_proto}),
    "onnx, forests": Format(onnx_forests, compiled, {".onnx": in_proto}),
    "pt2": Format(exported_programs, compiled, {".pt2": in_archive}),
    "stablehlo text": Format(stablehlo_texts, compiled, {".mlir": in_program}),
    "stablehlo bytecode": Format(stablehlo_bytecode, compiled),
    "tflite": Format(tflite_floats, compiled),
    "tflite, codes": Format(tflite_codes, compiled),
    "gguf": Format(gguf_files, gguf_opened),
    "safetensors": Format(safetensors_files, safetensors_opened, {".safetensors": in_header}),
    "tw": Format(of_own("m.tw"), lambda path: called(tw.load(path, threads=1)), {".tw": in_header}),
    "refit": Format(of_own("m.refit", "m.tw", "new.safetensors"), refit_opened, {".refit": in_archive}),
    "graph text": Format(of_own("m.txt", "m.npz"), graph_opened, {".txt": in_text, ".npz": in_archive}),
    "schedule": Format(of_own("m.schedule", "m.onnx"), schedule_opened, {".schedule": in_text}),
    "found schedules": Format(of_own("m.db"), found_opened),
    "found schedules, text": Format(of_own("found.txt"), text_of_found_opened, {".txt": in_text}),
    "xgboost": Format(xgboost_dumps, xgboost_opened, {".json": in_json}),
    "lightgbm": Format(lightgbm_dumps, lightgbm_opened, {".json": in_json}),
}  # fmt: skip


def put(files: Files, folder: Path) -> Path:
    """Write the files into a folder; the path of the one that is opened."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / next(iter(files))


def total_bytes(files: Files) -> int:
    """The size of all of them."""
    return sum(map(len, files.values()))
