"""The model zoo: real architectures with seeded random weights, at full size and small, for tests and measurements.

In: a model's name. Out: a ``ZooModel``: an ``nn.Module`` in evaluation mode, example inputs, and the dimensions that
may vary; ``to_onnx`` gives the same net as an ONNX model. Needs torch, and transformers for the language models.
Not its business: measuring or comparing anything.
"""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from benchmarks import zoo_convnets, zoo_language, zoo_sequence, zoo_vision

if TYPE_CHECKING:
    import onnx

Build = Callable[[bool], tuple[torch.nn.Module, dict[str, torch.Tensor], dict[str, dict[int, str]]]]
"""``build(small)`` gives the module, its inputs by name, and per input the axes that may vary with their names."""

MODELS: Mapping[str, Build] = {
    "mlp": zoo_sequence.mlp,
    "lstm": zoo_sequence.lstm,
    "whisper_tiny_encoder": zoo_sequence.whisper_tiny_encoder,
    "resnet50": zoo_vision.resnet50,
    "mobilenet_v2": zoo_vision.mobilenet_v2,
    "efficientnet_b0": zoo_vision.efficientnet_b0,
    "vit_b16": zoo_vision.vit_b16,
    "unet": zoo_vision.unet,
    "bert_base": zoo_language.bert_base,
    "gpt2": zoo_language.gpt2_prefill,
    "gpt2_decode": zoo_language.gpt2_decode,
    "llama": zoo_language.llama,
    "llama_decode": zoo_language.llama_decode,
    "t5_encoder": zoo_language.t5_encoder,
    "resnet50_batch16": zoo_vision.resnet50_batch16,
    "vgg16": zoo_convnets.vgg16,
    "densenet121": zoo_convnets.densenet121,
    "resnext50": zoo_convnets.resnext50,
    "inception": zoo_convnets.inception,
    "yolo": zoo_convnets.yolo,
    "video_resnet": zoo_convnets.video_resnet,
    "bert_base_batch8": zoo_language.bert_base_batch8,
    "albert_base": zoo_language.albert_base,
    "bart_decoder": zoo_language.bart_decoder,
    "wav2vec2": zoo_sequence.wav2vec2,
    "temporal_cnn": zoo_sequence.temporal_cnn,
    "gru": zoo_sequence.gru,
    "mlp_micro": zoo_sequence.mlp_micro,
}


@dataclass(frozen=True)
class ZooModel:
    """A module in evaluation mode with example inputs by name; ``axes[name][axis]`` names a dimension that may vary."""

    name: str
    module: torch.nn.Module
    named_inputs: dict[str, torch.Tensor]
    axes: dict[str, dict[int, str]]

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.named_inputs.values())

    def expected(self) -> tuple[torch.Tensor, ...]:
        """What eager PyTorch answers, as a flat tuple."""
        with torch.no_grad():
            result = self.module(*self.inputs)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """The ``dynamic_shapes`` of ``torch.export`` for the arguments: axes of one name share one dimension.

        An axis whose example has size 1 stays fixed: PyTorch would specialise it.
        """
        names = {name for axes in self.axes.values() for name in axes.values()}
        dims = {name: torch.export.Dim(name, min=2, max=512) for name in names}
        specs: list[Any] = [
            {a: dims[n] for a, n in self.axes.get(name, {}).items() if tensor.shape[a] > 1}
            for name, tensor in self.named_inputs.items()
        ]
        for i, p in enumerate(inspect.signature(self.module.forward).parameters.values()):
            if p.kind is p.VAR_POSITIONAL:
                return (*specs[:i], tuple(specs[i:])) if specs[i:] else tuple(specs)
        return tuple(specs)


def build(name: str, *, small: bool = False, seed: int = 0) -> ZooModel:
    """The model called ``name`` with weights and inputs drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module, inputs, axes = MODELS[name](small)
        module.eval().requires_grad_(False)
        if any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in module.modules()):
            calibrate_batch_norm(module, tuple(inputs.values()))
    return ZooModel(name, module, inputs, axes)


def calibrate_batch_norm(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Give every batch norm the statistics of ``inputs`` and uneven affine factors, as training would have done.

    Without it random nets of 50 layers overflow or die out, and comparing their outputs would prove nothing.
    """
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for m in norms:
        m.weight.uniform_(0.6, 1.2)
        m.bias.normal_(0, 0.1)

    def measure(m: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        dims = [0, *range(2, args[0].dim())]
        m.running_mean.copy_(args[0].mean(dims))
        m.running_var.copy_(args[0].var(dims, unbiased=False) + 0.05)

    handles = [m.register_forward_pre_hook(measure) for m in norms]
    module(*inputs)
    for handle in handles:
        handle.remove()


def to_onnx(model: ZooModel, *, dynamic: bool = False) -> onnx.ModelProto:
    """The same net through PyTorch's own ONNX exporter (needs onnx and onnxscript)."""
    import onnx  # only callers who want ONNX need it installed

    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.module,
            model.inputs,
            dynamo=True,
            input_names=list(model.named_inputs),
            dynamic_shapes=model.dynamic_shapes() if dynamic else None,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    program.save(buffer)
    return onnx.load_from_string(buffer.getvalue())
