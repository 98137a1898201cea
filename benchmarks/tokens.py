"""A language model of Llama's shape with seeded weights: tokens per second at each precision.

    python -m benchmarks.tokens                       16 layers, a thousand million weights; int4 and int8
    python -m benchmarks.tokens --layers 4 --precisions int4 fp32 --threads 1

In: nothing. Out: a table, a line for each precision and number of threads: prefill of 512 tokens, decoding, bytes of
weights a token reads, and their share of what memory gives in the same run. Not its business: accuracy.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

import tilewright
from tilewright.runtime.python.decoder import Decoder
from tilewright.runtime.python.model import LoadedModel
from tilewright.tools.tokens import product_bytes, token_rates

SHAPE = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip


def seeded(layers: int) -> Any:
    """A Llama of ``layers`` layers whose weights are made once, in place."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(num_hidden_layers=layers, **SHAPE)
    return transformers.LlamaForCausalLM(config).eval()


def with_threads(made: Decoder, threads: int) -> Decoder:
    """The same code and weights for another number of threads."""
    m = made.model
    return Decoder(LoadedModel(m.manifest, m._objects, m._weights, threads=threads), made.chunk, made.max_length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--precisions", nargs="+", default=["int4", "int8"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    model = seeded(options.layers)
    rows = []
    for precision in options.precisions:
        start = time.perf_counter()
        made = tilewright.decoder(model, max_length=options.prompt + 64, precision=precision, cache=False)
        print(f"{precision}: compiled in {time.perf_counter() - start:.0f} s", flush=True)
        for threads in options.threads:
            rates = token_rates(with_threads(made, threads), product_bytes(model, precision), options.prompt)
            rows.append({"precision": precision, "threads": threads, **asdict(rates), "share": rates.share})
            print(
                f"{precision}, {threads} threads: prompt {rates.prefill_per_s:.1f}, then {rates.decode_per_s:.2f} "
                f"tokens/s; {rates.weights_bytes / 1e6:.0f} MB a token, {rates.share:.2f} of "
                f"{rates.read_gb_per_s:.1f} GB/s", flush=True,
            )  # fmt: skip
        del made
    if options.json:
        options.json.write_text(json.dumps({"layers": options.layers, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
