"""A language model of Llama's shape with seeded weights: tokens per second at each precision, beside llama.cpp.

    python -m benchmarks.tokens                       16 layers, a thousand million weights; int4 and int8
    python -m benchmarks.tokens --layers 4 --precisions int4 fp32 --threads 1
    python -m benchmarks.tokens --peer --folder F     llama.cpp too, Q4_0 and Q8_0; models are kept in F

In: nothing. Out: a table, a line for each precision and number of threads: prefill of 512 tokens, decoding, bytes of
weights a token reads, and their share of what memory gives in the same run. Programs take turns. Not its business:
accuracy (``benchmarks.characters``).
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from benchmarks import llama_peer

import tilewright
from tilewright.codegen.cpu.calibrate import Calibrator
from tilewright.target.target import Target
from tilewright.tools.tokens import STEPS, TURNS, TokenRates, product_bytes

SHAPE = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True)
class Contestant:
    """A program for a model: ``prefill`` reads tokens from the first place on, ``step`` one at a place."""

    name: str
    weights_bytes: int
    prefill: Callable[[Any], object]
    step: Callable[[int, int], object]


def seeded(layers: int) -> Any:
    """A Llama of ``layers`` layers whose weights are made once, in place."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(num_hidden_layers=layers, **SHAPE)
    return transformers.LlamaForCausalLM(config).eval()


class Models:
    """Files of one seeded model, made where they are missing: measuring needs neither weights in f32 nor a compile."""

    def __init__(self, folder: Path, layers: int, places: int) -> None:
        self.folder, self.layers, self.places = folder, layers, places
        self._model: Any = None

    def model(self) -> Any:
        """The module, made on first use."""
        if self._model is None:
            self._model = seeded(self.layers)
        return self._model

    def path(self, name: str) -> Path:
        """Where a form of the model lies."""
        return self.folder / f"llama-{self.layers}-{self.places}-{name}"

    def decoder_file(self, name: str) -> Path:
        """Ours; ``name`` is the precision of weights, or ``int4/int8`` where the cache has one as well."""
        path = self.path(f"{name.replace('/', '-')}.tw")
        if not path.exists():
            start = time.perf_counter()
            precision, _, kept = name.partition("/")
            compiled = partial(tilewright.decoder, precision=precision, kv_cache_precision=kept or "fp32", cache=False)
            made = compiled(self.model(), max_length=self.places)
            made.save(path)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(f"{name}: compiled in {time.perf_counter() - start:.0f} s, {peak:.2f} GB at most", flush=True)
        return path

    def peer_file(self, kind: str) -> Path:
        path = self.path(f"{kind}.gguf")
        if not path.exists():
            llama_peer.write(path, self.model(), kind)
        return path


def contestants(models: Models, precisions: list[str], peers: list[str], threads: int) -> Iterator[Contestant]:
    """Ours at each precision, and llama.cpp's in each of its formats."""
    shapes = torch.device("meta")
    with shapes:
        sized = seeded(models.layers)
    for name in precisions:
        made = tilewright.load_decoder(models.decoder_file(name), threads=threads)
        yield Contestant(name, product_bytes(sized, name.partition("/")[0]), made.prefill, made.step)
    for kind in peers:
        peer = llama_peer.Peer(models.peer_file(kind), models.places, threads)
        yield Contestant(f"llama.cpp {kind}", llama_peer.product_bytes(sized, kind), peer.prefill, peer.step)


def rates_of(found: list[Contestant], threads: int, n_prompt: int, behind: int) -> dict[str, TokenRates]:
    """The shortest times of turns: in each memory, then every program's prompt and some tokens one by one.

    These tokens stand ``behind`` so many of the prompt, at most all of them.
    """
    prompt = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], n_prompt)
    meter, read = Calibrator(Target.host(), seconds=0.2), 0.0
    prefill, decode = ({c.name: float("inf") for c in found} for _ in range(2))
    for _ in range(TURNS):
        read = max(read, meter.memory_gb_per_s(threads))
        for c in found:
            start = time.perf_counter()
            c.prefill(prompt)
            prefill[c.name] = min(prefill[c.name], time.perf_counter() - start)
            if behind < n_prompt:
                c.prefill(prompt[:behind])
            c.step(0, behind)
            middle = time.perf_counter()
            for k in range(1, STEPS + 1):
                c.step(k, behind + k)
            decode[c.name] = min(decode[c.name], time.perf_counter() - middle)
    return {
        c.name: TokenRates(n_prompt / prefill[c.name], STEPS / decode[c.name], c.weights_bytes, read) for c in found
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--precisions", nargs="+", default=["int4", "int8"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--behind", type=int, help="decode behind so many tokens of the prompt (all of them)")
    parser.add_argument("--peer", nargs="*", help="formats of llama.cpp (Q4_0 and Q8_0), where llama-cpp-python is")
    parser.add_argument("--folder", type=Path, help="keep the models' files here, and use those that are there")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    peers = [] if options.peer is None else options.peer or ["Q4_0", "Q8_0"]
    rows = []
    with tempfile.TemporaryDirectory() as own:
        models = Models(options.folder or Path(own), options.layers, options.prompt + 64)
        for threads in options.threads:
            found = list(contestants(models, options.precisions, peers, threads))
            behind = min(options.prompt if options.behind is None else options.behind, options.prompt)
            for name, rates in rates_of(found, threads, options.prompt, behind).items():
                rows.append({"name": name, "threads": threads, **asdict(rates), "share": rates.share})
                print(
                    f"{name}, {threads} threads: prompt {rates.prefill_per_s:.1f}, then {rates.decode_per_s:.2f} "
                    f"tokens/s; {rates.weights_bytes / 1e6:.0f} MB a token, {rates.share:.2f} of "
                    f"{rates.read_gb_per_s:.1f} GB/s", flush=True,
                )  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps({"layers": options.layers, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
