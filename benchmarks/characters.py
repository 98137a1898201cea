"""Perplexity of a small character model in few bits: trained here on the Python standard library's own text.

    python -m benchmarks.characters                   train (about ten minutes), then measure each precision
    python -m benchmarks.characters --steps 50        a quick look
    python -m benchmarks.characters --weights m.npz   keep what was trained there, and read it the next time
    python -m benchmarks.characters --peers           ONNX Runtime's quantisers, and NNCF's where it is installed

In: the installed standard library. Out: a table: perplexity on text that was not trained on, and how far it
is above f32's. Not its business: speed (``benchmarks.tokens``).
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from benchmarks.few_bit_peers import peers

import tilewright

LENGTH, BATCH, WORDS = 128, 16, 128
PRECISIONS = ("fp32", "fp16", "int8", "fp8", "fp8e5m2", "int4", "nf4", "fp4")
IN_BYTES: dict[str, dict[str, Any]] = {
    "int8, dynamic": {"mode": "dynamic", "smooth": None, "rounding": "nearest"}, "int8, static": {},
    "int8, static, plain": {"smooth": None, "rounding": "nearest"},
}  # fmt: skip
"""Activations in 8 bits, too; plain are operands as they are and the nearest weights."""
CALIBRATION, HELD_OUT = 24, 40
"""Batches."""


def text() -> np.ndarray[Any, np.dtype[np.int64]]:
    """The standard library's modules as ASCII codes, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts = [p.read_bytes() for p in sorted(folder.glob("*.py"))]
    return np.array([c for c in b"\n".join(parts) if c < WORDS], np.int64)


class Logits(torch.nn.Module):
    """A model's logits for whole rows."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.model(input_ids=tokens, use_cache=False).logits


def trained(codes: Any, steps: int, kept: Path | None) -> Any:
    """A Llama of a few million weights after so many steps, or as an earlier run has ``kept`` it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    if kept is not None and kept.exists():
        with np.load(kept) as file:
            model.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files})
        return model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    rng = np.random.default_rng(0)
    for step in range(steps):
        rows = torch.tensor(batch(codes, rng))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    if kept is not None:
        np.savez(kept, **{name: x.numpy() for name, x in model.state_dict().items()})
    return model.eval()


def batch(codes: Any, rng: np.random.Generator) -> Any:
    starts = rng.integers(0, len(codes) - LENGTH, BATCH)
    return np.stack([codes[s : s + LENGTH] for s in starts])


def perplexity(run: Callable[[Any], Any], batches: list[Any]) -> float:
    total = n = 0.0
    for rows in batches:
        logits = torch.tensor(np.asarray(run(rows)))[:, :-1].reshape(-1, WORDS)
        total += torch.nn.functional.cross_entropy(
            logits, torch.tensor(rows[:, 1:].reshape(-1)), reduction="sum"
        ).item()
        n += len(logits)
    return float(np.exp(total / n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--weights", type=Path, help="what was trained, kept for the next time")
    parser.add_argument("--peers", action="store_true", help="other quantisers on the same data")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    codes = text()
    cut = len(codes) * 9 // 10
    module = Logits(trained(codes[:cut], options.steps, options.weights))
    rng = np.random.default_rng(1)
    held_out = [batch(codes[cut:], rng) for _ in range(HELD_OUT)]
    data = [(batch(codes[:cut], rng),) for _ in range(CALIBRATION)]
    example = (torch.tensor(held_out[0]),)

    def ours() -> Iterator[tuple[str, Callable[..., Any]]]:
        for p in PRECISIONS:
            yield p, tilewright.compile(module, example, precision=p, cache=False)
        for form, method in (("int8", "gptq"), ("int4", "gptq"), ("int4", "awq"), ("nf4", "gptq"), ("fp4", "gptq")):
            graph = tilewright.quantize_weights(module, data, example_inputs=example, codes=form, method=method)
            yield f"{form}, {method.upper()}", tilewright.compile(graph, cache=False)
        for name, how in IN_BYTES.items():
            graph = tilewright.quantize(module, data, example_inputs=example, **how)
            yield name, tilewright.compile(graph, cache=False)

    others = peers(module, {"tokens": example[0]}, data) if options.peers else ()
    found: dict[str, float] = {}
    for name, run in chain(ours(), others):
        value = found[name] = perplexity(run, held_out)
        print(f"{name:28} {value:.4f}  {value / found['fp32']:.4f} of fp32", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"steps": options.steps, "perplexity": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
