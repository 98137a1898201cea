"""Generating text: a decoder's program, its cache, and the loop that draws one token after another.

In: a loaded model of one step of a decoder, tokens of a prompt. Out: tokens. Not its business: compiling the step
(``build.decoder``), words (tokenizers are the user's).

The step takes tokens, where they stand, which of them is asked for, and the cache; it gives logits and the cache with
their keys and values. Its results are written over the cache itself, which changes in those places only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime import artifact
from tilewright.runtime.errors import ArtifactError, InputError
from tilewright.runtime.manifest import DecodingSpec
from tilewright.runtime.once import ForkLock
from tilewright.runtime.python.model import CompiledModel, LoadedModel

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
N_PLAIN = 3
"""Inputs before the cache: tokens, the place of the first one, the number of the one whose logits are wanted."""


def load_decoder(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    key: str | os.PathLike[str] | None = None,
    copy: bool | None = None,
) -> Decoder:
    """The decoder that :meth:`Decoder.save` wrote, with an empty cache; options and errors are those of ``load``.

    Its weights are used where they lie in the file, so that several processes share them. ``ArtifactError`` for a file
    that holds another model.
    """
    made = artifact.load(path, key=key, copy=copy)
    found = made.manifest.decoding
    if found is None:
        raise ArtifactError(f"{os.fspath(path)} holds no decoder", remedy="read it with tilewright.load")
    model = LoadedModel(made.manifest, made.objects, made.weights, threads=threads)
    if len(model.inputs) <= N_PLAIN or len(model.outputs) != 1 + len(model.inputs) - N_PLAIN:
        raise ArtifactError("the decoder's step has no cache", remedy="compile the model again")
    return Decoder(model, found.chunk, found.max_length)


class Decoder:
    """A compiled decoder with a cache for ``max_length`` tokens, prompt and answer together; generating takes turns.

    A prompt goes through ``chunk`` tokens at a time, the last of them filled up with tokens that nothing looks at: each
    of their places is overwritten before a token behind it is computed.
    """

    def __init__(self, model: LoadedModel, chunk: int, max_length: int) -> None:
        self.model, self.chunk, self.max_length = model, chunk, max_length
        specs = model.inputs[N_PLAIN:]
        self._places = -(-max_length // chunk) * chunk
        shapes = [(self._places, *[d for d in s.shape[1:] if isinstance(d, int)]) for s in specs]
        self._cache = [np.zeros(shape, spec.dtype) for shape, spec in zip(shapes, specs, strict=True)]
        shape = tuple(d for d in model.outputs[0].shape if isinstance(d, int))
        self._logits = np.zeros(shape, np.float32)
        self._guard = ForkLock()
        self._owner = object()

    def __repr__(self) -> str:
        return f"<Decoder of {self.n_words} words, {self.max_length} tokens, {self.model.threads} threads>"

    @property
    def n_words(self) -> int:
        """How many tokens there are."""
        return self._logits.shape[-1]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.tw`` file, which ``load_decoder`` reads back; ``FileError`` where that can't be written.

        Neither the cache nor its tokens are in it.
        """
        manifest = replace(self.model.manifest, decoding=DecodingSpec(self.chunk, self.max_length))
        CompiledModel(manifest, self.model._objects, self.model._weights).save(path)

    def generate(
        self,
        tokens: Sequence[int] | Tokens,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Sequence[int] = (),
    ) -> Tokens:
        """``tokens`` and those that follow them, i64[n]: at most ``max_new_tokens``, and none behind one of ``stop``.

        With temperature 0 each is the most likely one, of equal ones the first. Otherwise logits are divided by
        ``temperature``; all but the ``top_k`` largest are left out (0: none is); probabilities are sorted, the largest
        first, equal ones in the tokens' order, and cut behind the first that bring their sum to ``top_p``; the token is
        where this sum, scaled to 1, passes the next number of ``numpy.random.default_rng(seed)``. So equal arguments
        give equal tokens. ``InputError`` for tokens and numbers that make no sense, and for a cache too small.
        """
        return np.array([*self._checked(tokens), *self.stream(
            tokens, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
            stop=stop,
        )], np.int64)  # fmt: skip

    def stream(
        self,
        tokens: Sequence[int] | Tokens,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Sequence[int] = (),
    ) -> Iterator[int]:
        """The tokens that :meth:`generate` appends, each as soon as it is known.

        Other threads wait until the last one; what generates in between, in this thread, ends this stream with an
        ``InputError``, because the cache is then the other's.
        """
        prompt = self._checked(tokens)
        if len(prompt) + max_new_tokens > self.max_length or max_new_tokens < 0:
            rule = f"{len(prompt)} tokens and {max_new_tokens} new ones don't fit a cache of {self.max_length}"
            raise InputError(rule, remedy="ask for fewer, or compile with a larger max_length")
        if not temperature >= 0 or top_k < 0 or not 0 < top_p <= 1:
            rule = f"temperature={temperature}, top_k={top_k}, top_p={top_p} choose no token"
            raise InputError(rule, remedy="use a temperature and top_k of 0 or more, and a top_p above 0, at most 1")
        rng = np.random.default_rng(seed)
        with self._guard.lock:
            self._owner = mine = object()
            logits = self.prefill(prompt)
            for place in range(len(prompt), len(prompt) + max_new_tokens):
                token = _drawn(logits, temperature, top_k, top_p, rng)
                yield token
                if token in stop or place + 1 == len(prompt) + max_new_tokens:
                    return
                if self._owner is not mine:
                    rule = "the cache was used for other tokens before this stream ended"
                    raise InputError(rule, remedy="end one stream before the next, or make a decoder for each")
                logits = self.step(token, place)

    def prefill(self, prompt: Tokens) -> Logits:
        """Fill the cache with a prompt from the first place on; the logits behind its last token, f32[words]."""
        for start in range(0, len(prompt), self.chunk):
            part = np.zeros((1, self.chunk), np.int64)
            n = min(len(prompt) - start, self.chunk)
            part[0, :n] = prompt[start : start + n]
            self._run(part, start, n - 1)
        return self._logits.reshape(-1)

    def step(self, token: int, place: int) -> Logits:
        """Append one token at a place of the cache; the logits behind it, f32[words]."""
        self._run(np.array([[token]], np.int64), place, 0)
        return self._logits.reshape(-1)

    def _run(self, tokens: Tokens, start: int, last: int) -> None:
        plain = [tokens, np.array(start, np.int64), np.array([last], np.int64)]
        # Attention reads what it gets: the places up to the last token, in steps, so that few sizes are planned for.
        end = min(-(-(start + tokens.shape[1]) // self.chunk) * self.chunk, self._places)
        seen = [x[:end] for x in self._cache]
        self.model.run_over([*plain, *seen], [self._logits, *seen])

    def _checked(self, tokens: Any) -> Tokens:
        prompt = np.asarray(tokens)
        if prompt.ndim != 1 or not prompt.size or prompt.dtype.kind not in "iu":
            raise InputError(f"a prompt is a row of whole numbers, not {tokens!r:.80}", remedy="pass tokens' numbers")
        if prompt.min() < 0 or prompt.max() >= self.n_words:
            wrong = prompt[(prompt < 0) | (prompt >= self.n_words)][0]
            raise InputError(f"there is no token {wrong}", remedy=f"tokens are 0 to {self.n_words - 1}")
        return prompt.astype(np.int64)


def _drawn(logits: Logits, temperature: float, top_k: int, top_p: float, rng: np.random.Generator) -> int:
    """The next token, by the order that :meth:`Decoder.generate` states."""
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")[: top_k or None]
    weights = np.exp(scaled[order] - scaled[order[0]])
    sums = np.cumsum(weights / weights.sum())
    kept = int(np.searchsorted(sums, top_p)) + 1
    sums = sums[:kept] / sums[:kept][-1]
    return int(order[min(int(np.searchsorted(sums, rng.random(), side="right")), kept - 1)])
