"""Train the digit classifier and write it as ONNX; `digits.onnx` beside this file is what it wrote.

Needs PyTorch for the training (the `torch` and `dev` extras, which `make test` installs); the demo does not. Seeded,
a minute or so on one core. The ONNX file is built by hand, node by node, so that it holds the network and nothing else.

    python examples/digits/train.py
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from digits_data import Digits, load

MODEL_PATH = Path(__file__).with_name("digits.onnx")
SEED = 20
N_EPOCHS = 40
BATCH_SIZE = 64
OPSET = 17
IR_VERSION = 8


def build_network() -> nn.Sequential:
    """Three 3x3 convolutions, two poolings, one linear layer: 26,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 10),
    )


def shifted(images: torch.Tensor) -> torch.Tensor:
    """The batch moved by up to one pixel each way, zeros entering: hands place their digits differently."""
    dy, dx = torch.randint(0, 3, (2,)).tolist()
    return nn.functional.pad(images, (1, 1, 1, 1))[:, :, dy : dy + 8, dx : dx + 8]


def train(network: nn.Sequential, digits: Digits) -> None:
    """Minimise cross-entropy with AdamW under a one-cycle learning rate."""
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    n_batches = -(-len(labels) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=N_EPOCHS * n_batches)
    network.train()
    for _ in range(N_EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH_SIZE):
            loss = nn.functional.cross_entropy(network(shifted(images[batch])), labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()


def predict(network: nn.Sequential, digits: Digits) -> torch.Tensor:
    """The scores `[n, 10]` of every image."""
    with torch.no_grad():
        scores: torch.Tensor = network(torch.from_numpy(digits.images))
    return scores


def to_onnx(network: nn.Sequential) -> onnx.ModelProto:
    """The network as ONNX, one node a layer, named by its place; the batch dimension is symbolic."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "image"

    def weight(name: str, tensor: torch.Tensor | None) -> str:
        assert tensor is not None
        weights.append(numpy_helper.from_array(tensor.detach().numpy().astype(np.float32), name))
        return name

    def add(op_type: str, name: str, inputs: list[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, [value, *inputs], [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    for i, layer in enumerate(network):
        match layer:
            case nn.Conv2d():
                kernel = weight(f"conv{i}.weight", layer.weight)
                value = add("Conv", f"conv{i}", [kernel], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
            case nn.BatchNorm2d():
                affine = [weight(f"norm{i}.scale", layer.weight), weight(f"norm{i}.bias", layer.bias)]
                statistics = [weight(f"norm{i}.mean", layer.running_mean), weight(f"norm{i}.var", layer.running_var)]
                value = add("BatchNormalization", f"norm{i}", affine + statistics, epsilon=layer.eps)
            case nn.ReLU():
                value = add("Relu", f"relu{i}", [])
            case nn.MaxPool2d():
                value = add("MaxPool", f"pool{i}", [], kernel_shape=[2, 2], strides=[2, 2])
            case nn.Flatten():
                value = add("Flatten", f"flatten{i}", [], axis=1)
            case nn.Linear():
                names = [weight(f"linear{i}.weight", layer.weight), weight(f"linear{i}.bias", layer.bias)]
                value = add("Gemm", f"linear{i}", names, transB=1)
            case _:
                raise TypeError(f"no ONNX spelling here for layer {i}: {layer}")

    nodes[-1].output[0] = "scores"
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, producer_name="tilewright", opset_imports=[opset], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, say how well it went on the held-out digits, write the file."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    training, held_out = load()
    network = build_network()
    train(network, training)
    for name, digits in {"training": training, "held-out": held_out}.items():
        n_right = int((predict(network, digits).argmax(1).numpy() == digits.labels).sum())
        print(f"{name}: {n_right} of {len(digits.labels)} right ({n_right / len(digits.labels):.2%})")
    onnx.save_model(to_onnx(network), MODEL_PATH)
    print(f"wrote {MODEL_PATH.name}: {MODEL_PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
