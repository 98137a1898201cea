"""One GGUF file, two programs: ``tilewright.decoder`` of it and llama.cpp, for each type of blocks.

    PYTHONPATH=tests:. python -m benchmarks.gguf_files Q4_0 Q4_K Q8_0
    PYTHONPATH=tests:. python -m benchmarks.gguf_files Q6_K --layers 2 --folder F --threads 1 --json

In: types of blocks. Out: a row for each: milliseconds of a token behind the prompt and of the prompt, shortest of turns
in which both read the same tokens, and their ratios. A Llama of random blocks, whose embedding is the head too.
llama.cpp is ``llama-cpp-python``'s, or the library in the package ``xllamacpp``. Not its business: logits
(``tests/frontend/test_gguf_logits.py``), precisions that are chosen anew (``benchmarks.tokens``).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from benchmarks.llama_peer import Peer

import tilewright
from frontend.test_gguf_logits import blocks

WIDTH, INNER, WORDS, HEADS, GROUPS = 2048, 8192, 32000, 32, 8
STEPS, TURNS = 12, 12


def write(path: Path, kind: str, layers: int) -> None:
    """The file, without a vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "context_length": 2048, "embedding_length": WIDTH, "block_count": layers, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": GROUPS, "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": WORDS,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("none")
    narrow = WIDTH // HEADS * GROUPS
    own = {"attn_q": (WIDTH, WIDTH), "attn_k": (narrow, WIDTH), "attn_v": (narrow, WIDTH)}
    own |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH)}
    own |= {"ffn_down": (WIDTH, INNER)}
    matrices = {"token_embd": (WORDS, WIDTH)}
    matrices |= {f"blk.{k}.{name}": shape for k in range(layers) for name, shape in own.items()}
    rng = np.random.default_rng(0)
    for name, shape in matrices.items():
        stored, _ = blocks(rng, shape, kind)
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=gguf.GGMLQuantizationType[kind])
    norms = [f"blk.{k}.{name}_norm" for k in range(layers) for name in ("attn", "ffn")]
    for name in ("output_norm", *norms):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()


def times(programs: dict[str, Any], n_prompt: int) -> dict[str, tuple[float, float]]:
    """Shortest milliseconds of a token and of the prompt, by program."""
    prompt = np.random.default_rng(0).integers(0, WORDS, n_prompt)
    found = {name: (np.inf, np.inf) for name in programs}
    for _ in range(TURNS):
        for name, program in programs.items():
            token, whole = found[name]
            begin = time.perf_counter()
            program.prefill(prompt)
            whole = min(whole, 1e3 * (time.perf_counter() - begin))
            for k in range(STEPS):
                begin = time.perf_counter()
                program.step(int(prompt[k]), n_prompt + k)
                token = min(token, 1e3 * (time.perf_counter() - begin))
            found[name] = token, whole
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", metavar="KIND", help="types of blocks, as GGUF calls them")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep files here, and use those that are there")
    parser.add_argument("--json", action="store_true", help="rows as of a figure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        for kind in options.kinds:
            path = (options.folder or Path(own)) / f"{kind}-{options.layers}.gguf"
            compiled = path.with_suffix(".tw")
            if not path.exists():
                write(path, kind, options.layers)
            if not compiled.exists():
                tilewright.decoder(path, max_length=options.prompt + 64, cache=False).save(compiled)
            if options.threads == 1:
                os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
            decoder = tilewright.load_decoder(compiled, threads=options.threads)
            programs = {"ours": decoder, "llama.cpp": Peer(path, options.prompt + 64, options.threads)}
            found = times(programs, options.prompt)
            pairs = [(found["ours"][at], found["llama.cpp"][at]) for at in (0, 1)]
            rounded = [kind, *(round(x, 2) for ours, theirs in pairs for x in (ours, theirs, theirs / ours))]
            print(json.dumps(rounded) if options.json else "  ".join(map(str, rounded)), flush=True)


if __name__ == "__main__":
    main()
