"""Damaged StableHLO programs by seed, texts and bytecode: what must become of each is what ``damage`` says.

``python -m damage_stablehlo FIRST LAST`` checks a range in its own process, as ``python -m damage`` does.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

import damage
import tilewright as tw
from tilewright.core.graph import Graph
from tilewright.frontend.stablehlo.importer import import_file

NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "5",
    "64",
    "2147483647",
    "-2147483648",
    "1099511627776",
    "-9223372036854775808",
    "?",
)
TYPES = ("f32", "f64", "bf16", "f16", "i1", "i8", "i32", "i64", "ui8", "ui32", "complex<f32>", "f8E4M3FN", "index")
OPS = (
    "add multiply divide maximum dot_general convolution reduce reduce_window reshape transpose broadcast_in_dim slice "
    "dynamic_slice gather scatter sort while concatenate pad select compare convert bitcast_convert iota fft tanh "
    "cholesky triangular_solve reverse dynamic_update_slice optimization_barrier custom_call"
).split()
TOKEN = re.compile(r"(?P<name>%[\w#:]+)|(?P<op>stablehlo\.\w+)|(?P<number>-?\b\d+\b)|(?P<type>\b(?:[fbui]+\d+)\b)")


def _image(w, x):
    y = lax.conv_general_dilated(
        x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
    )
    y = lax.reduce_window(jax.nn.gelu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
    return jnp.pad(y.mean((1, 2)), ((0, 0), (1, 2)))[:, ::-1]


def _steps(w, xs, n):
    hs = lax.scan(lambda h, x: (jnp.tanh(x @ w + h),) * 2, jnp.zeros(4), xs)[1]
    last = lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 0.5), (0, hs[-1]))[1]
    return hs, lax.cond(n > 2, lambda v: v + 1, lambda v: v - 1, last)


def _places(x, at):
    order = jnp.argsort(x, axis=-1)
    return (
        x.at[at, 1].add(2.0)[:, order[0]],
        jnp.take(x, at, axis=0),
        lax.dynamic_slice(x, (at[0], 0), (2, 3)),
        jnp.cumsum(x),
    )


def _numbers(x, key):
    z = jnp.fft.rfft(x)
    solved = jnp.linalg.solve(x @ x.T + 4 * jnp.eye(4), x)
    bits = jax.random.bits(jax.random.wrap_key_data(key), (3,))
    return jnp.abs(z), solved, bits, lax.bitcast_convert_type(x, jnp.int32)


@cache
def originals() -> tuple[bytes, ...]:
    """Programs of images, control flow, indices and linear algebra, each as text and as bytecode; one of a symbol."""
    f32, i32 = np.float32, np.int32
    arguments = {
        _image: [((2, 2, 3), 0), ((1, 6, 5, 4), 0)],
        _steps: [((4, 4), 0), ((5, 4), 0), ((), 1)],
        _places: [((4, 6), 0), ((3,), 1)],
        _numbers: [((4, 6), 0), ((2,), 2)],
    }
    arguments[_image][0] = ((2, 3, 2, 4), 0)
    kinds = (f32, i32, np.uint32)
    made = []
    n_frames = jax.config.jax_traceback_in_locations_limit
    # Else a seed's damage would depend on where these files lie, and on who calls this.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    for function, shapes in arguments.items():
        program = export.export(jax.jit(function))(*(jax.ShapeDtypeStruct(s, kinds[k]) for s, k in shapes))
        made += [program.mlir_module().encode(), program.mlir_module_serialized]
    (n,) = export.symbolic_shape("n")
    program = export.export(jax.jit(lambda x: jax.nn.softmax(x) @ x.T))(jax.ShapeDtypeStruct((n, 4), f32))
    jax.config.update("jax_traceback_in_locations_limit", n_frames)
    return (*made, program.mlir_module().encode())


def damaged(seed: int) -> bytes:
    """One of the originals: cut short, with bytes changed, or with words of the text changed."""
    rng = np.random.default_rng(seed)
    data = originals()[seed % len(originals())]
    kind = rng.integers(8)
    is_text = not data.startswith(b"ML")
    if kind == 0:
        return data[: rng.integers(len(data))]
    if kind <= 2 or not is_text:
        changed = bytearray(data)
        for _ in range(rng.integers(1, 6)):
            changed[rng.integers(len(data))] = rng.integers(256)
        return bytes(changed)
    text = data.decode()
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        text = word_changed(text, rng)
    return text.encode()


def word_changed(text: str, rng: np.random.Generator) -> str:
    """A name, an operation, a number or a type becomes another one of the program or of the lists; or a line goes."""
    if rng.random() < 0.1:
        lines = text.splitlines()
        del lines[rng.integers(len(lines))]
        return "\n".join(lines)
    tokens = list(TOKEN.finditer(text))
    kinds = {name: [m for m in tokens if m.lastgroup == name] for name in ("name", "op", "number", "type")}
    found = kinds[str(rng.choice([k for k, v in kinds.items() if v]))]
    m = found[rng.integers(len(found))]
    others = {"op": [f"stablehlo.{op}" for op in OPS], "number": NUMBERS, "type": TYPES, "name": [x[0] for x in found]}
    choices = others[str(m.lastgroup)]
    return text[: m.start()] + choices[rng.integers(len(choices))] + text[m.end() :]


def check(seed: int) -> str:
    """Import, compile and run a damaged program; says how it ended. Anything but that raises."""

    def made() -> tuple[Graph, tw.CompiledModel]:
        graph = import_file(Path("program.mlir"), damaged(seed)).graph
        return graph, tw.compile(graph, cache=False, threads=1 + seed % 2)

    return damage.judged(made, seed)


if __name__ == "__main__":
    damage.main(int(sys.argv[1]), int(sys.argv[2]), check)
