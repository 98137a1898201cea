"""The whole mapping from ATen overloads to converters.

In: the tables of each family. Out: ``CONVERTERS``, by the overload's name without the ``aten.`` in front, and the
names nearest to an unknown one. Not its business: what a converter does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from tilewright.frontend.torch.aten import (
    adaptive,
    antialias,
    backward,
    contract,
    elementwise,
    encoder,
    histogram,
    index,
    linalg,
    loss,
    movement,
    norm,
    order,
    places,
    pool,
    pool_backward,
    quantized,
    random,
    reduce,
    resample,
    rnn,
    sample,
    scatter,
    source,
    special,
)
from tilewright.frontend.torch.aten.call import AtenCall, Result

FAMILIES: Mapping[str, Mapping[str, Callable[[AtenCall], Result]]] = {
    "element-wise": elementwise.TABLE,
    "reduction": reduce.TABLE,
    "movement": movement.TABLE,
    "index": index.TABLE,
    "index by mask": places.TABLE,
    "source": source.TABLE,
    "random": random.TABLE,
    "contraction": contract.TABLE,
    "adaptive pooling": adaptive.TABLE,
    "pooling": pool.TABLE,
    "resampling": resample.TABLE,
    "antialiased resampling": antialias.TABLE,
    "normalisation and attention": norm.TABLE,
    "backward": backward.TABLE,
    "backward of pools": pool_backward.TABLE,
    "encoder layer": encoder.TABLE,
    "recurrence": rnn.TABLE,
    "special function": special.TABLE,
    "order and search": order.TABLE,
    "quantisation": quantized.TABLE,
    "histogram": histogram.TABLE,
    "scatter": scatter.TABLE,
    "linear algebra": linalg.TABLE,
    "sampling and segments": sample.TABLE,
    "loss": loss.TABLE,
}
CONVERTERS: Mapping[str, Callable[[AtenCall], Result]] = {
    name: convert for table in FAMILIES.values() for name, convert in table.items()
}

KEPT_WHOLE = (
    "linear.default", "layer_norm.default", "group_norm.default", "instance_norm.default", "rms_norm.default",
    "scaled_dot_product_attention.default", "gelu.default", "silu.default", "mish.default", "hardswish.default",
    "hardsigmoid.default", "softplus.default", "leaky_relu.default", "elu.default", "celu.default", "prelu.default",
    "log_sigmoid.default", "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "pixel_shuffle.default",
    "pixel_unshuffle.default", "softmax.int", "log_softmax.int", "logsumexp.default", "stack.default",
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec", "upsample_linear1d.vec",
    "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec", "pad.default", "roll.default",
    "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec",
    "adaptive_avg_pool1d.default", "avg_pool1d.default", "addcmul.default", "addcdiv.default", "lerp.Scalar",
    "eye.default", "linspace.default", "index_add.default", "baddbmm.default", "mv.default", "dot.default",
    "unfold.default", "masked_fill.Scalar", "masked_fill.Tensor", "isinf.default", "square.default",
    "select_scatter.default",
    "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor",
    "multilabel_margin_loss.default",
)  # fmt: skip
"""Overloads that PyTorch would take apart and that we want whole."""

TAKEN_APART = frozenset({
    "_native_batch_norm_legit_functional.default", "_batch_norm_with_update_functional.default",
    "narrow_copy.default", "unbind_copy.int", "tril_indices.default",
    "triu_indices.default", "ldexp.Tensor", "split_copy.Tensor",
    "addbmm.default", "unfold_backward.default",
})  # fmt: skip
"""Calls that the core set keeps, and for which PyTorch has a decomposition all the same."""


def nearest(name: str) -> list[str]:
    """Supported overloads closest to ``name``: other overloads of the same op first."""
    packet = name.split(".", maxsplit=1)[0]
    same = [n for n in CONVERTERS if n.split(".")[0] == packet]
    return same or difflib.get_close_matches(name, CONVERTERS, 2, 0.85)
