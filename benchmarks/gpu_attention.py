"""Attention on a GPU beside PyTorch's own: ``python -m benchmarks.gpu_attention``.

In: a GPU, and PyTorch with CUDA. Out: a row for each shape: how fast each of PyTorch's back ends is, in 10**12
operations a second, how fast ours is, its ratio to the best of them, and errors of ours and of PyTorch's flash back end
against double precision. Not its business: other ops (``benchmarks.gpu``).

Inputs are random; times are medians over calls that the GPU's own events measure, with its caches flushed between.
Operations are counted as usual: two for each multiply-add of both products, half of them where rows see no later keys.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright.integrations.torch_compile.backend import backend

TOKENS, WIDTH = 16384, 2048
"""All sequences together, and all heads."""
PEERS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WARMUPS, CALLS = 3, 15
CACHE_BYTES = 256 << 20
"""More than any cache of a GPU holds."""


@dataclass(frozen=True)
class Attention:
    """Sequences of ``length`` tokens, heads of ``depth``."""

    dtype: torch.dtype
    depth: int
    length: int
    causal: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, length and depth."""
        return max(TOKENS // self.length, 1), WIDTH // self.depth, self.length, self.depth

    @property
    def n_operations(self) -> float:
        """What both products take."""
        batch, heads, length, depth = self.shape
        return 4 * batch * heads * length * length * depth / (2 if self.causal else 1)

    def of(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The op itself."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def cases(dtype: torch.dtype, lengths: Sequence[int]) -> Iterator[Attention]:
    """Heads of both usual depths."""
    for depth in (64, 128):
        for length in lengths:
            yield from (Attention(dtype, depth, length, causal) for causal in (False, True))


def ms_of(call: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]) -> float:
    """The median time of a call in milliseconds, each with cold caches."""
    flushed = torch.empty(CACHE_BYTES, device="cuda", dtype=torch.int8)
    for _ in range(WARMUPS):
        call(*inputs)
    pairs = []
    for _ in range(CALLS):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(*inputs)
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) for begin, end in pairs))


def row(case: Attention) -> str:
    """A line of the table."""
    torch._dynamo.reset()
    inputs = [torch.randn(case.shape, device="cuda", dtype=case.dtype) for _ in range(3)]
    exact = case.of(*[x[-1:, :2].double() for x in inputs])

    def error(call: Callable[..., torch.Tensor]) -> float:
        return float((call(*inputs)[-1:, :2].double() - exact).abs().max())

    rates: list[float] = []
    for peer in PEERS.values():
        with sdpa_kernel(peer):
            rates.append(case.n_operations / ms_of(case.of, inputs) / 1e9)
    with sdpa_kernel(PEERS["flash"]):
        error_of_flash = error(case.of)
    ours = torch.compile(case.of, backend=backend, options={"fallback": False})
    error_of_ours = error(ours)
    rate = case.n_operations / ms_of(ours, inputs) / 1e9
    found = " | ".join(f"{r:.0f}" for r in (*rates, rate))
    name = f"{str(case.dtype).removeprefix('torch.')} | {case.depth} | {case.length}"
    sees = "earlier keys" if case.causal else "all keys"
    return f"| {name} | {sees} | {found} | {rate / max(rates):.2f} | {error_of_ours:.1e} | {error_of_flash:.1e} |"


def main(dtype: str, lengths: Sequence[int]) -> int:
    """Print a row for each case; 1 where there is no GPU."""
    if not torch.cuda.is_available():
        print("there is no GPU that PyTorch could use")
        return 1
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    print(f"| dtype | depth | length | sees | {' | '.join(PEERS)} | ours | of the best | error | flash's |")
    print("|---" * (len(PEERS) + 8) + "|")
    for case in cases(getattr(torch, dtype), lengths):
        print(row(case), flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    given = parser.parse_args()
    raise SystemExit(main(given.dtype, given.lengths))
