"""``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` in evaluation, whose fused calls PyTorch keeps whole."""

import warnings
from typing import Any

import pytest
import torch

from tilewright.integrations.torch_compile.capture import FallbackWarning


def check(f: Any, *calls: tuple[Any, ...], dynamic: bool = False) -> None:
    """Nothing falls back, and every call gives what eager gives, NaN included."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for args in calls:
            torch.testing.assert_close(compiled(*args), f(*args), rtol=1e-4, atol=1e-5, equal_nan=True)


def layer(**options: Any) -> torch.nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, **options).eval()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_layer(activation: str, norm_first: bool) -> None:
    net = layer(activation=activation, norm_first=norm_first)
    check(net, *((torch.randn(n, length, 16),) for n, length in ((2, 5), (3, 9))), dynamic=True)


CAUSAL = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("mask", "padding"), [
    (CAUSAL, None), (torch.zeros(5, 5).masked_fill(CAUSAL, float("-inf")), None), (None, PADDED), (CAUSAL, PADDED),
    (torch.randn(5, 5) * (torch.rand(5, 5) > 0.5), None), (None, torch.tensor([[False] * 5, [True] * 5])),
], ids=["causal", "causal of floats", "padding", "both", "any floats", "nothing to see"])  # fmt: skip
def test_masks(mask: torch.Tensor | None, padding: torch.Tensor | None) -> None:
    net = layer()
    check(lambda x: net(x, src_mask=mask, src_key_padding_mask=padding), (torch.randn(2, 5, 16),))


def test_an_encoder() -> None:
    net = torch.nn.TransformerEncoder(layer(), 2, norm=torch.nn.LayerNorm(16), enable_nested_tensor=False).eval()
    check(net, (torch.randn(2, 5, 16),))
    check(lambda x, p: net(x, src_key_padding_mask=p), (torch.randn(2, 5, 16), PADDED))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [
    {"need_weights": False}, {}, {"average_attn_weights": False}, {"key_padding_mask": PADDED}, {"attn_mask": CAUSAL},
])  # fmt: skip
def test_attention_with_its_projections(options: dict[str, Any]) -> None:
    net = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    check(lambda x: net(x, x, x, **options), (torch.randn(2, 5, 16),))


def test_nested_tensors_are_left_to_pytorch_by_name() -> None:
    net, x = layer(), torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)])
    torch._dynamo.reset()
    with torch.no_grad(), pytest.warns(FallbackWarning, match="(?i)nested"):
        got = torch.compile(net, backend="tilewright")(x)
        for a, b in zip(got.unbind(), net(x).unbind(), strict=True):
            torch.testing.assert_close(a, b)
