"""What other quantisers make of a PyTorch module and the same data: ONNX Runtime's, and NNCF's where it is installed.

In: a module, inputs by name, calibration batches. Out: functions from a batch's arrays to the first result, by what
they are called. Not its business: what is counted (``benchmarks.ranking``, ``benchmarks.characters``), speed.

NNCF is no dependency: ``pip install nncf`` beside OpenVINO, which runs what it makes, in f32 where that is f32.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

Run = Callable[..., Any]
GROUP = 32


def peers(module: Any, example: Mapping[str, Any], data: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Run]]:
    """Each quantised model, one after the other; ``example`` has the inputs by name, ``data`` batches in that order."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.onnx"
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                tuple(example.values()),
                dynamo=True,
                input_names=list(example),
                external_data=False,
                verbose=False,
            )
        assert program is not None
        program.save(plain)
        yield from _onnxruntime(plain, list(example), data)
        if importlib.util.find_spec("nncf") is not None:
            yield from _nncf(plain, list(example), data)


def _onnxruntime(plain: Path, names: Sequence[str], data: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Run]]:
    from onnxruntime import quantization
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]  # its package has no types
        def __init__(self) -> None:
            self.batches = iter(data)

        def get_next(self) -> dict[str, Any] | None:
            return next((dict(zip(names, arrays, strict=True)) for arrays in self.batches), None)

    ready, made = plain.with_name("ready.onnx"), plain.with_name("made.onnx")
    model = onnx.load(plain)
    del model.graph.value_info[:]  # shapes that the exporter left of what it has rewritten since
    onnx.save(model, ready)
    quantization.quantize_dynamic(ready, made, per_channel=True, weight_type=quantization.QuantType.QInt8)
    yield "ONNX Runtime, dynamic int8", partial(_run, _session(made), names)
    quantization.quantize_static(
        ready, made, Samples(), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    yield "ONNX Runtime, static int8", partial(_run, _session(made), names)
    for bits in (8, 4):
        quantiser = MatMulNBitsQuantizer(onnx.load(plain), bits=bits, block_size=GROUP, is_symmetric=True)
        quantiser.process()
        quantiser.model.save_model_to_file(str(made))
        yield f"ONNX Runtime, weights int{bits}", partial(_run, _session(made), names)


def _session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, names: Sequence[str], *arrays: Any) -> Any:
    return session.run(None, dict(zip(names, arrays, strict=True)))[0]


def _nncf(plain: Path, names: Sequence[str], data: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Run]]:
    import nncf
    import openvino

    core = openvino.Core()

    def calibration() -> Any:
        return nncf.Dataset([dict(zip(names, arrays, strict=True)) for arrays in data])

    def compiled(model: Any) -> Run:
        ready = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda *arrays: np.array(ready(dict(zip(names, arrays, strict=True)))[0])

    modes = nncf.CompressWeightsMode
    quantised = nncf.quantize(core.read_model(plain), calibration(), model_type=nncf.ModelType.TRANSFORMER)
    yield "NNCF, static int8", compiled(quantised)
    yield "NNCF, weights int8", compiled(nncf.compress_weights(core.read_model(plain), mode=modes.INT8_ASYM))
    for what, options in (("", {}), (", GPTQ", {"gptq": True}), (", AWQ", {"awq": True})):
        given = {"dataset": calibration(), **options} if options else {}
        try:
            made = nncf.compress_weights(
                core.read_model(plain), mode=modes.INT4_SYM, ratio=1.0, group_size=GROUP, all_layers=True, **given
            )
        except RuntimeError as e:  # its GPTQ does not take each form of product
            print(f"NNCF, weights int4{what}: {e}", flush=True)
            continue
        yield f"NNCF, weights int4{what}", compiled(made)
