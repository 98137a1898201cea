"""Writes the archive of TFLite models that ``test_tflite_models.py`` reads: small nets by TensorFlow's converter.

In: the path of the archive. Out: each net as ``float/NAME.tflite``, ``int8/NAME.tflite`` (codes throughout, calibrated
on random images), and some as ``int16/`` (activations of 16 bits) and ``dynamic/`` (weights in codes, activations in
floats). Not its business: what the nets give, which LiteRT says when the tests run.

TensorFlow is no dependency of Tilewright: run this where it is installed, ``python tflite_models.py ARCHIVE``.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

K = tf.keras
L = K.layers


def conv(n: int, size: int = 3, **more: Any) -> Any:
    return L.Conv2D(n, size, padding=more.pop("padding", "same"), **more)


def normed(x: Any, act: str | None = "relu") -> Any:
    x = L.BatchNormalization()(x)
    return L.Activation(act)(x) if act else x


def image(f: Callable[[Any], Any], *size: int) -> Any:
    given = K.Input(size or (12, 12, 3), batch_size=1)
    return K.Model(given, f(given))


def head(x: Any, n: int = 5) -> Any:
    return L.Softmax()(L.Dense(n)(L.GlobalAveragePooling2D()(x)))


def lenet(x: Any) -> Any:
    x = L.MaxPool2D(2)(conv(6, 5, activation="relu")(x))
    x = L.Flatten()(L.MaxPool2D(2)(conv(8, 5, activation="relu", padding="valid")(x)))
    return L.Dense(5)(L.Dense(16, activation="relu")(x))


def vgg(x: Any) -> Any:
    for n in (8, 12):
        x = L.MaxPool2D(2)(conv(n, activation="relu")(conv(n, activation="relu")(x)))
    return head(x)


def resnet(x: Any) -> Any:
    x = normed(conv(8)(x))
    for n, stride in ((8, 1), (12, 2)):
        y = normed(conv(n, strides=stride)(x))
        y = normed(conv(n)(y), None)
        x = L.ReLU()(L.Add()([y, x if stride == 1 else normed(conv(n, 1, strides=stride)(x), None)]))
    return head(x)


def mobile(x: Any, act: str = "relu6") -> Any:
    x = normed(conv(8, strides=2)(x), act)
    for n in (8, 12):
        x = normed(L.DepthwiseConv2D(3, padding="same")(x), act)
        x = normed(conv(n, 1)(x), act)
    return head(x)


def mobile_v2(x: Any) -> Any:
    x = normed(conv(8)(x), "relu6")
    y = normed(conv(24, 1)(x), "relu6")
    y = normed(L.DepthwiseConv2D(3, padding="same")(y), "relu6")
    return head(L.Add()([x, normed(conv(8, 1)(y), None)]))


def squeezed(x: Any, gate: str) -> Any:
    y = L.Reshape((1, 1, 8))(L.GlobalAveragePooling2D()(x))
    y = conv(8, 1, activation=gate)(conv(4, 1, activation="relu")(y))
    return L.Multiply()([x, y])


def mobile_v3(x: Any) -> Any:
    x = L.Activation("hard_swish")(normed(conv(8)(x), None))
    x = squeezed(L.DepthwiseConv2D(5, padding="same")(x), "hard_sigmoid")
    return head(L.Activation("hard_swish")(x))


def efficient(x: Any) -> Any:
    x = normed(conv(8)(x), "swish")
    return head(normed(conv(8)(squeezed(x, "sigmoid")), "swish"))


def inception(x: Any) -> Any:
    x = conv(8, activation="relu")(x)
    parts = [conv(4, 1)(x), conv(4, 3)(conv(3, 1)(x)), conv(4, 1)(L.MaxPool2D(3, 1, "same")(x))]
    return head(L.Concatenate()(parts))


def dense_net(x: Any) -> Any:
    for _ in range(3):
        x = L.Concatenate()([x, normed(conv(4)(x))])
    return head(L.AveragePooling2D(2)(x))


def shuffled(x: Any) -> Any:
    x = conv(8, 1, activation="relu")(x)
    x = L.Permute((1, 2, 4, 3))(L.Reshape((12, 12, 2, 4))(x))
    return head(L.DepthwiseConv2D(3, padding="same")(L.Reshape((12, 12, 8))(x)))


def unet(x: Any) -> Any:
    top = conv(6, activation="relu")(x)
    low = conv(8, activation="relu")(L.MaxPool2D(2)(top))
    up = L.Conv2DTranspose(6, 2, strides=2, padding="same")(low)
    return conv(2, 1)(L.Concatenate()([top, up]))


def fcn(x: Any) -> Any:
    x = conv(8, strides=2, activation="relu")(x)
    return L.UpSampling2D(2, interpolation="bilinear")(conv(4, 3, dilation_rate=2)(x))


def upscaled(x: Any) -> Any:
    y = L.Reshape((12, 12, 2, 2, 3))(conv(12)(conv(8, activation="relu")(x)))
    return L.Reshape((24, 24, 3))(L.Permute((1, 3, 2, 4, 5))(y))


def dilated(x: Any) -> Any:
    return head(conv(8, dilation_rate=3)(conv(8, dilation_rate=2, activation="relu")(x)))


def leaky(x: Any) -> Any:
    x = L.LeakyReLU(0.1)(conv(8)(x))
    return conv(4, 1)(L.UpSampling2D(2)(conv(6)(x)))


def curves(x: Any) -> Any:
    return head(L.Activation("sigmoid")(conv(6)(L.Activation("tanh")(conv(6)(L.Activation("gelu")(conv(6)(x)))))))


def padded(x: Any) -> Any:
    x = conv(6, padding="valid")(L.ZeroPadding2D(((1, 0), (2, 1)))(x))
    return head(L.Cropping2D(2)(x))


def pooled(x: Any) -> Any:
    return head(L.MaxPool2D(3, 2)(conv(6)(L.AveragePooling2D(3, 1, "same")(x))))


def arithmetic(x: Any) -> Any:
    y = conv(3)(x)
    z = L.Multiply()([L.Subtract()([x, y]), L.Maximum()([x, y])])
    return L.Add()([L.Minimum()([z, y]), L.GlobalAveragePooling2D(keepdims=True)(z)])


def mlp(x: Any) -> Any:
    return L.Dense(7, activation="sigmoid")(L.Dense(24, activation="relu")(L.Dense(24, activation="tanh")(x)))


def mixer(x: Any) -> Any:
    y = L.Permute((2, 1))(L.Dense(16, activation="relu")(L.Permute((2, 1))(x)))
    return L.Dense(4)(L.Dense(16, activation="relu")(y))


def normed_rows(x: Any) -> Any:
    return L.Dense(4)(L.LayerNormalization()(L.Dense(16)(x)))


def attention(x: Any) -> Any:
    q, k, v = (L.Dense(8)(x) for _ in range(3))
    share = L.Softmax()(K.ops.matmul(q, K.ops.transpose(k, (0, 2, 1))) / 3.0)
    return L.Dense(4)(K.ops.matmul(share, v) + x)


def sequence(x: Any) -> Any:
    x = L.Conv1D(8, 3, padding="causal", activation="relu")(x)
    return L.Dense(4)(L.Conv1D(8, 3, dilation_rate=2, padding="same")(x)[:, 2:10:2])


NETS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "lenet": (lenet, (16, 16, 1)), "vgg": (vgg, ()), "resnet": (resnet, ()), "mobile": (mobile, ()),
    "mobile_v2": (mobile_v2, ()), "mobile_v3": (mobile_v3, ()), "efficient": (efficient, ()),
    "inception": (inception, ()), "dense_net": (dense_net, ()), "shuffled": (shuffled, ()), "unet": (unet, ()),
    "fcn": (fcn, ()), "upscaled": (upscaled, ()), "dilated": (dilated, ()), "leaky": (leaky, ()),
    "curves": (curves, ()), "padded": (padded, ()), "pooled": (pooled, ()), "arithmetic": (arithmetic, ()),
    "mlp": (mlp, (20,)), "mixer": (mixer, (9, 8)), "normed_rows": (normed_rows, (6, 12)),
    "attention": (attention, (7, 8)), "sequence": (sequence, (12, 4)), "logits": (L.Dense(5), (40,)),
    "wide_softmax": (lambda x: L.Softmax()(L.Dense(300)(x)), (10,)),
    "mean_of_rows": (lambda x: K.ops.mean(L.Dense(6)(x), axis=1), (11, 5)),
}  # fmt: skip
SHORT = ("lenet", "resnet", "mlp", "curves", "unet", "mobile_v2", "wide_softmax")
DYNAMIC = ("lenet", "resnet", "mlp", "mobile", "attention", "sequence")
UNREFERENCED = ("leaky",)
"""Nets whose codes LiteRT's reference kernels do not run: they lack the version of TILE that the converter writes."""


def converted(model: Any, kind: str) -> bytes:
    """The model in one of the four kinds."""

    def calibration() -> Iterator[list[np.ndarray]]:
        for seed in range(30):
            yield [np.random.default_rng(seed).normal(size=model.input_shape).astype(np.float32)]

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if kind != "float":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind in ("int8", "int16"):
        converter.representative_dataset = calibration
        short = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8 if kind == "int8" else short]
        converter.inference_input_type = converter.inference_output_type = getattr(tf, kind)
    return bytes(converter.convert())


def main(path: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (f, size) in NETS.items():
            tf.random.set_seed(len(name))
            model = image(f, *size)
            kinds = ["float"]
            kinds += [k for k, names in (("int16", SHORT), ("dynamic", DYNAMIC)) if name in names]
            kinds += ["int8"] if name not in UNREFERENCED else []
            for kind in kinds:
                try:
                    content = converted(model, kind)
                except tf.errors.OpError as error:  # some layers have no form in 16 bits
                    print(name, kind, str(error)[:300], file=sys.stderr)
                else:
                    archive.writestr(f"{kind}/{name}.tflite", content)


if __name__ == "__main__":
    main(sys.argv[1])
