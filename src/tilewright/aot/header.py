"""The C header of an exported model: declarations, and the documentation of everything a caller must know.

In: an ``Interface`` and a ``System``. Out: C text, valid as C99 and as C++. Not its business: what the functions do
(``glue``). The first part is the same for all models of an ABI version, so two headers may be included together.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from tilewright.aot.empty import begins_with_one
from tilewright.aot.interface import ABI_VERSION, ALIGNMENT, DTYPES, STATUS, Interface, unique_macros
from tilewright.aot.system import System
from tilewright.runtime.manifest import COMPLEX, TensorSpec

C_TYPES = {
    "bool": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t", "float16": "uint16_t",
    "bfloat16": "uint16_t", "float32": "float", "float64": "double", "complex64": "float", "complex128": "double",
}  # fmt: skip
"""What a C program holds an element in; of types that C lacks, the bits. The others are ``uint8_t``."""

_COMMON = string.Template("""\
#ifndef TILEWRIGHT_ABI_VERSION
#define TILEWRIGHT_ABI_VERSION $version

/* How a call ended: 0, or a kind in the low 8 bits and in the others a number of the model's own. */
typedef int32_t tw_status;
#define TW_STATUS_KIND(status) ((status) & 255)
$status

/* Types of elements. Those narrower than a byte take a byte each. bool is 0 or 1 in a byte. */
$dtypes

typedef struct tw_tensor_info {
  const char *name;
  int32_t dtype; /* TW_FLOAT32, ... */
  int32_t rank;
  const int64_t *shape;    /* rank sizes, -1 where a size is symbolic */
  const char *const *dims; /* rank texts: numbers, or expressions over symbols such as "2*n + 1" */
} tw_tensor_info;

typedef struct tw_symbol_info {
  const char *name;
  int64_t lowest;
  int64_t highest; /* INT64_MAX where there is no limit */
} tw_symbol_info;

/* What a model keeps from call to call: an input, and the output that is its value for the next call. */
typedef struct tw_state_info {
  int32_t input;
  int32_t output;
} tw_state_info;

typedef struct tw_model_info {
  uint32_t abi_version;
  uint32_t struct_bytes; /* later versions may add fields at the end */
  int32_t n_inputs;
  int32_t n_outputs;
  int32_t n_symbols;
  int32_t max_threads;
  const char *name;
  const char *compiler_version;
  const char *target;
  const char *cpu;
  const char *fingerprint; /* of the weights: a weights file belongs to the object with the same one */
  const tw_tensor_info *inputs;
  const tw_tensor_info *outputs;
  const tw_symbol_info *symbols;
  int64_t alignment;
  int64_t weights_bytes;
  const tw_state_info *state;
  int32_t n_state;
} tw_model_info;
#elif TILEWRIGHT_ABI_VERSION != $version
#error "two models were exported with different versions of the interface: export them again with one Tilewright"
#endif
""")

_BODY = string.Template("""\
/* $title
 *
 * Written by Tilewright $compiler for $target, CPU $cpu.$features
 *
$facts
 *
 * Use: bind (or fill in dims), workspace, create, run as often as you like, destroy. Link $link.
 * A handle runs one call at a time. Any number of handles may run at once; they share code and weights.
 * Running allocates nothing. Results do not depend on the number of threads.
 */
#ifndef TILEWRIGHT_MODEL_${name}_H
#define TILEWRIGHT_MODEL_${name}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

$common
$numbers

typedef struct ${name}_model ${name}_model;

/* The facts above as data; never NULL. */
const tw_model_info *${name}_info(void);

/* Sizes from shapes: shapes[i] are the sizes of input i (anything where it has none). Writes ${macro}_N_SYMBOLS values
 * to dims, or refuses shapes that the model is not compiled for. */
tw_status ${name}_bind(const int64_t *const *shapes, int64_t *dims);

/* How many bytes ${name}_create needs for calls with these sizes. dims may be NULL where there are no symbols. */
tw_status ${name}_workspace(const int64_t *dims, int64_t *bytes);

/* The shape of an input, and of an output (the most that there can be, where the data decide). */
tw_status ${name}_input_shape(const int64_t *dims, int32_t index, int64_t *shape);
tw_status ${name}_output_shape(const int64_t *dims, int32_t index, int64_t *shape);

/* Make a handle in `memory`, `bytes` bytes that start on a multiple of $alignment and stay yours$heap
 * `weights`: $weights
 * `threads`: the most that a call uses, 0 for $threads. */
tw_status ${name}_create(${name}_model **model, void *memory, int64_t bytes, const void *weights, int32_t threads);

/* inputs and outputs: a pointer to each tensor's elements, densely packed, last dimension fastest, aligned as
 * the element type wants. Only an empty tensor's may be NULL. Outputs overlap nothing else. */
tw_status ${name}_run(${name}_model *model, const int64_t *dims, const void *const *inputs, void *const *outputs);

/* An output's shape as the latest run left it: where the data decide, less than ${name}_output_shape says. */
tw_status ${name}_result_shape(const ${name}_model *model, int32_t index, int64_t *shape);

/* Free what create allocated, if anything. NULL is allowed. */
void ${name}_destroy(${name}_model *model);

/* What a status means, in words; never NULL. */
const char *${name}_status_text(tw_status status);
$more
#ifdef __cplusplus
}
#endif

#endif
""")

_STATE = string.Template("""
/* What the model keeps from call to call begins with these values, one for each row of ${name}_info()->state: dense,
 * aligned, part of the weights. Pass it as that input of the first call; of later calls, what the last one wrote to the
 * output. NULL for an index that there is not. */
const void *${name}_initial_state(const ${name}_model *model, int32_t index);
""")
_FILES = string.Template("""
/* Map the weights file, read-only and shared between processes, for create; refuses another model's file.
 * `path` is what fopen would take. */
tw_status ${name}_map_weights(const char *path, const void **weights);
void ${name}_unmap_weights(const void *weights);
""")
_POOL = string.Template("""
/* Call in a child process after fork() if the parent ran a model: threads do not survive a fork. */
void ${name}_after_fork(void);
""")


_EMBEDDED = "NULL: they are in the object."


def header_text(of: Interface, system: System) -> str:
    """The header."""
    m = of.manifest
    features = f"\n * Needs the CPU features {' '.join(m.target.features)}." if m.target.features else ""
    has_file = not of.embedded and of.weights_bytes > 0
    maps_file = has_file and system.files != ""  # without files the caller brings the weights into memory
    more = _STATE.substitute(name=of.name) if of.state else ""
    more += _FILES.substitute(name=of.name) if maps_file else ""
    more += _POOL.substitute(name=of.name) if of.max_threads > 1 else ""
    return _BODY.substitute(
        title=f"{of.name}: a compiled model.",
        compiler=m.tilewright_version,
        target=m.target.triple,
        cpu="any" if of.is_source else m.report["target"],
        features=_wrapped(features),
        facts="\n".join(f" * {line}".rstrip() for line in _facts(of)),
        link=f"with {of.name}.{'c' if of.is_source else 'o'}" + _libraries(of, system, maps_file),
        macro=of.name.upper(),
        name=of.name,
        common=common_text(),
        numbers=_numbers(of),
        alignment=ALIGNMENT,
        heap=",\n * or NULL for memory of malloc's." if system.has_heap else ".",
        weights=f"the data of {of.name}.safetensors, on a multiple of {ALIGNMENT}." if has_file else _EMBEDDED,
        threads=of.max_threads,
        more=more,
    )


def _libraries(of: Interface, system: System, maps_file: bool) -> str:
    if of.is_source:
        return ", libc and libm"
    if system.object_format == "COFF":
        return ", the C library and kernel32" if of.max_threads > 1 or maps_file else " and the C library"
    if not system.has_libc:
        return ", which brings what it calls, and the compiler's own run-time library where the CPU lacks an operation"
    return ", libc, libm and pthread" if of.max_threads > 1 else " and libc"


def common_text() -> str:
    """What every header of this ABI version has."""
    status = "\n".join(f"#define {name} {number} /* {text} */" for name, (number, text) in STATUS.items())
    dtypes = "\n".join(f"#define TW_{name.upper()} {number}" for name, number in DTYPES.items())
    return _COMMON.substitute(version=ABI_VERSION, status=status, dtypes=dtypes)


def _facts(of: Interface) -> list[str]:
    m = of.manifest
    lines = [*_tensors("inputs", m.inputs), *_tensors("outputs", m.outputs)]
    if m.symbols:
        lines.append("symbols, in the order of dims:")
        from_one = begins_with_one(m)
        for k, s in enumerate(m.symbols):
            limit = f"at least {s.lo}" if s.hi is None else f"{s.lo} to {s.hi}"
            limit += ", or 0 where every output is then empty" if s.name in from_one else ""
            lines.append(f"  {k}  {_comment(s.name)}: {limit}")
        lines += [f"  where {_comment(c.rule)}" for c in m.constraints]
    lines += [f"state: output {o} is input {i} of the next call" for i, o, _ in of.state]
    if m.computed:
        names = ", ".join(_comment(s.name) for s in m.computed)
        lines.append(f"sizes that the data decide (see result_shape): {names}")
    scratch = f", {of.scratch_bytes} of the kernels' own" if of.scratch_bytes else ""
    lines.append(f"working memory: {_comment(str(of.arena_bytes))} bytes{scratch}, and {of.scratch_at} for the handle")
    for row in (m.report or {}).get("exact_sizes", ()):
        sizes = ", ".join(f"{_comment(name)} = {size}" for name, size in row["sizes"].items())
        lines.append(f"  {_comment(str(row['arena_bytes']))} bytes where {sizes}, for which there is other code")
    lines.append(f"weights: {of.weights_bytes} bytes")
    lines.append(_stack(of))
    return [line for long in lines for line in _split(long)]


def _stack(of: Interface) -> str:
    besides = f", and what {', '.join(of.stack_foreign)} take" if of.stack_foreign else ""
    threads = "; other threads need no more" if of.max_threads > 1 else ""
    most = "a number that depends on the CPU" if of.stack_bytes is None else f"at most {of.stack_bytes} bytes"
    return f"stack: {most}, whichever function is called{besides}{threads}"


def _tensors(title: str, specs: Sequence[TensorSpec]) -> list[str]:
    lines = [f"{title}:"]
    for k, spec in enumerate(specs):
        c_type = C_TYPES.get(spec.dtype, "uint8_t")
        shape = "".join(f"[{d}]" for d in spec.shape) or " (one element)"
        kind = spec.dtype if c_type in ("float", "double") or spec.dtype in c_type else f"{spec.dtype} as {c_type}"
        pairs = f", pairs of {c_type}: real part, imaginary part" if spec.dtype in COMPLEX else ""
        lines.append(f"  {k}  {_comment(spec.name)}: {kind}{_comment(shape)}{pairs}")
    return lines if specs else [f"{title}: none"]


def _numbers(of: Interface) -> str:
    """Macros: numbers of inputs, outputs and symbols, sizes of what has a fixed size."""
    macro, m = of.name.upper(), of.manifest
    rows = [
        (f"{macro}_N_INPUTS", len(m.inputs)), (f"{macro}_N_OUTPUTS", len(m.outputs)),
        (f"{macro}_N_SYMBOLS", len(m.symbols)), (f"{macro}_ALIGNMENT", ALIGNMENT),
        (f"{macro}_WEIGHTS_BYTES", of.weights_bytes),
    ]  # fmt: skip
    if of.state:
        rows.append((f"{macro}_N_STATE", len(of.state)))
    for kind, names in (
        ("INPUT", [t.name for t in m.inputs]),
        ("OUTPUT", [t.name for t in m.outputs]),
        ("DIM", [s.name for s in m.symbols]),
    ):
        rows += [(f"{macro}_{kind}_{name}", k) for k, name in enumerate(unique_macros(names))]
    if of.stack_bytes is not None:
        rows.append((f"{macro}_STACK_BYTES", of.stack_bytes))
    if of.workspace_bytes is not None:
        rows.append((f"{macro}_WORKSPACE_BYTES", of.workspace_bytes))
    return "\n".join(f"#define {name} {value}" for name, value in rows)


def _comment(text: str) -> str:
    """A text that cannot end a comment, nor be read as more than one line."""
    plain = text.encode("ascii", "backslashreplace").decode().replace("*/", "* /").replace("/*", "/ *")
    return "".join(c if c.isprintable() else "?" for c in plain)


def _split(line: str, width: int = 110) -> list[str]:
    """A long line as several."""
    if len(line) <= width:
        return [line]
    found, rest = [], line
    while len(rest) > width:
        cut = rest.rfind(" ", width // 2, width)
        cut = width if cut < 0 else cut
        found.append(rest[:cut])
        rest = "    " + rest[cut:].lstrip()
    return [*found, rest]


def _wrapped(text: str) -> str:
    return "\n".join(f" * {line.strip()}" if k else line for k, line in enumerate(_split(text)))
