"""StableHLO's own interpreter tests: how many of them a compiled program passes.

    git clone https://github.com/openxla/stablehlo
    python -m benchmarks.stablehlo_suite stablehlo/stablehlo/tests/interpret
    python -m benchmarks.stablehlo_suite stablehlo/stablehlo/testdata --match "scatter_add" --jobs 2
    python -m benchmarks.stablehlo_suite stablehlo/stablehlo/tests/math --json FILE

In: a folder of ``.mlir`` files. Each may hold several programs, apart by ``// -----``. A program checks its own results
by ``check.expect_*``: against a constant, or against what another function of it gives. Out: the share of the programs
whose results are the expected ones, and a line for every other: wrong, refused with the reason, or an error.
Not its business: tests of what a wrong program says, of the interpreter's printing, and of several devices (``ALONE``).

A program of this suite holds its inputs as constants, which a compiler would fold. So they become the arguments of
the compiled function; where the program needs them as numbers (sizes), it is compiled as it is.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.interpreters import mlir

import tilewright as tw

ALONE = re.compile(
    r"all_gather|all_reduce|all_to_all|collective|reduce_scatter|send|recv|infeed|outfeed|partition_id|replica_id"
    r"|interpreter\.\w|quant\.uniform|quantized"
)
"""Programs for several devices or for the interpreter's own tools, and quantised types, which no op here has."""

NEAR = "near: "
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}
"""What counts as near where a check of units in the last place fails: as our tests compare with JAX."""

CLOSE_ULPS, CLOSE = 3, 1e-4
"""What the suite's checks allow where they say nothing: units in the last place, and a difference."""

NARROW = {
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz", "f8E8M0FNU": "float8_e8m0fnu", "f8E4M3": "float8_e4m3", "f8E3M4": "float8_e3m4",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz", "f4E2M1FN": "float4_e2m1fn", "f6E2M3FN": "float6_e2m3fn",
    "f6E3M2FN": "float6_e3m2fn", "bf16": "bfloat16", "i4": "int4", "ui4": "uint4", "i2": "int2", "ui2": "uint2",
}  # fmt: skip
PLAIN = {
    "i1": "bool", "f16": "float16", "f32": "float32", "f64": "float64", "complex<f32>": "complex64",
    "complex<f64>": "complex128", **{f"{u}i{bits}": f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


@dataclass
class Outcome:
    """``how`` is one of ``passed``, ``passed, folded``, ``near`` (``TOLERANCE``), ``wrong``, ``refused``, ``error``,
    ``left out`` (``ALONE``)."""

    name: str
    how: str
    why: str = ""


@dataclass
class Case:
    """A program without its checks: its text, arguments, and for each result what is expected and by which rule."""

    text: str
    arguments: list[np.ndarray] = field(default_factory=list)
    checks: list[tuple[str, dict[str, float], np.ndarray | None]] = field(default_factory=list)
    """A rule, its limits, and the expected array; None where the next result is what is expected."""


# --- reading --------------------------------------------------------------------------------------------------------

_TYPE = r"tensor<[^<>]*(?:<[^<>]*>)?[^<>]*>"
_TYPES = rf"({_TYPE}(?:,\s*{_TYPE})*)"
_CHECK = re.compile(rf"check\.(expect_\w+)\s+([^:]*?)\s*:\s*{_TYPES}(?:\s*{{tolerance = ([\d.]+) : f64}})?")


def programs(path: Path) -> Iterator[tuple[str, str]]:
    """Each program of a file with its name."""
    for k, text in enumerate(re.split(r"^// -----.*$", path.read_text(), flags=re.M)):
        found = re.search(r"func\.func[^@]*@(\w+)", text)
        if found and "check." in text:
            name = "" if found.group(1) == "main" else f" {found.group(1)}"
            yield f"{path.name}{name or (f' {k}' if k else '')}", text


def _in_generic_form(found: re.Match[str]) -> str:
    """A check as MLIR parses it without knowing its dialect."""
    rule, body, types, tolerance = found.groups()
    operands = re.findall(r"%[\w#]+", body)
    stated = [x.strip() for x in re.findall(_TYPE, types)]
    attributes = [f"{k} = {v}" for k, v in re.findall(r"(\w+) = ([\d.]+)", body)]
    attributes += [f"tolerance = {tolerance}"] if tolerance else []
    if rule.endswith("_const"):
        attributes.append(f"value = {body[body.index('dense') :]} : {stated[0]}")
    stated = (stated * 2)[: len(operands)]
    return f'"check.{rule}"({", ".join(operands)}) {{{", ".join(attributes)}}} : ({", ".join(stated)}) -> ()'


def _elements(kind: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, NARROW[kind])) if kind in NARROW else np.dtype(PLAIN[kind])


def array_of(op: Any) -> np.ndarray:
    """The array of a constant's or a check's text, read without the importer, so that a fault of it shows."""
    body, kind, shape = _parts(op.get_asm())
    dtype = _elements(kind)
    if body.startswith('"0x'):
        raw = bytes.fromhex(body[3:-1])
        flat = np.frombuffer(raw, dtype)
        if kind == "i1" and len(raw) < np.prod(shape):
            flat = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[: int(np.prod(shape))].astype(bool)
    else:
        flat = np.array([_number(x, dtype) for x in re.findall(r"\([^)]*\)|[-+\w.]+", body)], dtype)
    return (np.full(shape, flat[0]) if flat.size == 1 else flat.reshape(shape)).astype(dtype)


def _parts(text: str) -> tuple[str, str, tuple[int, ...]]:
    """What is within ``dense<...>``, the type of elements, and the shape."""
    found = re.search(r"dense<(.*?)>\s*:\s*tensor<((?:\d+x)*)(complex<\w+>|\w+)>", text, re.S)
    if found is None:
        raise ValueError(f"no elements in {text[:60]}")
    return found.group(1), found.group(3), tuple(int(n) for n in found.group(2).split("x") if n)


def _number(text: str, dtype: np.dtype) -> Any:
    if text.startswith("("):
        real, imaginary = text[1:-1].split(",")
        part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        return dtype.type(complex(_number(real.strip(), part), _number(imaginary.strip(), part)))
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("0x"):
        return np.frombuffer(int(text, 16).to_bytes(dtype.itemsize, "little"), dtype)[0]
    return dtype.type(float(text) if dtype.kind in "fV" and not np.issubdtype(dtype, np.integer) else int(text, 0))


def read(text: str, *, has_arguments: bool) -> Case:
    """A program as one function whose results are what it checks."""
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(_CHECK.sub(_in_generic_form, text))
        named = [f.operation for f in module.body.operations if "sym_name" in f.attributes]
        functions = {f.attributes["sym_name"].value: f for f in named}
        main = next(f for f in functions.values() if any(_rule(op) for op in _operations(f)))
        block, made = main.regions[0].blocks[0], Case("")
        results = []
        for op in list(_operations(main)):
            rule = _rule(op)
            if rule:
                results += _checked(op, rule, made, functions)
                op.erase()
        for op in list(_operations(main)) if has_arguments else ():
            source = _source(op, functions)
            for result, value in zip(op.results, source, strict=True) if source else ():
                made.arguments.append(value)
                result.replace_all_uses_with(block.add_argument(result.type, ir.Location.unknown()))
        block.operations[len(block.operations) - 1].operation.erase()
        with ir.InsertionPoint(block):
            ir.Operation.create("func.return", operands=results)
        types = ir.FunctionType.get([a.type for a in block.arguments], [x.type for x in results])
        for op in list(_operations(main)):
            if op.name == "stablehlo.constant" and not any(list(r.uses) for r in op.results):
                op.erase()
        main.attributes["function_type"] = ir.TypeAttr.get(types)
        for name in ("res_attrs", "arg_attrs", "sym_visibility"):
            if name in main.attributes:
                del main.attributes[name]
        for name, function in functions.items():
            if function is not main and any(_rule(op) for op in _operations(function)):
                function.erase()  # a program of its own, which nothing calls
            elif function is not main:
                function.attributes["sym_visibility"] = ir.StringAttr.get("private")
            elif name != "main":
                function.attributes["sym_name"] = ir.StringAttr.get("main")
        made.text = str(module)
    return made


def _operations(function: Any) -> list[Any]:
    return [op.operation for op in function.regions[0].blocks[0].operations] if function.regions[0].blocks else []


def _rule(op: Any) -> str:
    """The check that an operation is, or nothing."""
    name = op.attributes["call_target_name"].value if op.name == "stablehlo.custom_call" else op.name
    return str(name).removeprefix("check.") if str(name).startswith("check.") else ""


def _checked(op: Any, rule: str, made: Case, functions: dict[str, Any]) -> list[Any]:
    """The operands of a check that the program shall give; notes what is expected of them."""
    limits = {k: float(op.attributes[k].value) for k in ("tolerance", "max_ulp_difference") if k in op.attributes}
    got, *others = op.operands
    if rule.endswith("_const"):
        made.checks.append((rule.removesuffix("_const"), limits, array_of(op)))
        return [got]
    source = _source(others[0].owner, functions) if isinstance(others[0].owner, ir.Operation | ir.OpView) else []
    if source:
        made.checks.append((rule, limits, source[others[0].result_number]))
        return [got]
    made.checks += [(rule, limits, None), (rule, limits, None)]
    return [got, others[0]]


def _source(op: Any, functions: dict[str, Any]) -> list[np.ndarray]:
    """The arrays that an operation gives which is a constant, or calls a function of constants alone."""
    op = op.operation
    if op.name == "stablehlo.constant":
        return [array_of(op)]
    if op.name != "func.call" or op.operands:
        return []
    *inside, last = _operations(functions[op.attributes["callee"].value])
    if any(o.name != "stablehlo.constant" for o in inside):
        return []
    return [array_of(x.owner.operation) for x in last.operands]


# --- running --------------------------------------------------------------------------------------------------------


def run(text: str, name: str, *, has_arguments: bool) -> Outcome:
    """Compile one program and compare."""
    case = read(text, has_arguments=has_arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.mlir"
        path.write_text(case.text)
        model = tw.compile(path, threads=1, cache=False)
    made = model(*case.arguments)
    results = [np.asarray(x) for x in (made if isinstance(made, tuple | list) else [made])]
    k, whys = 0, []
    for rule, limits, want in case.checks:
        got, k = results[k], k + 1
        if want is None:
            want, k = results[k], k + 1
        why = difference(rule, limits, got, want)
        if why:
            whys.append(why)
    if whys:
        return Outcome(name, "near" if all(x.startswith(NEAR) for x in whys) else "wrong", "; ".join(whys))
    return Outcome(name, "passed" if has_arguments else "passed, folded")


def difference(rule: str, limits: dict[str, float], got: np.ndarray, want: np.ndarray) -> str:
    """What the check ``rule`` finds wrong, or nothing."""
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    if want.dtype.kind in "iub" or np.issubdtype(want.dtype, np.integer):
        same = got.astype(object) == want.astype(object)
        return "" if same.all() else _first(same, got, want)
    if want.dtype.kind == "c":
        parts = [difference(rule, limits, getattr(got, p), getattr(want, p)) for p in ("real", "imag")]
        near = NEAR if all(not p or p.startswith(NEAR) for p in parts) and any(parts) else ""
        return near + "; ".join(p.removeprefix(NEAR) for p in parts if p)
    wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (wide_got == wide_want) | (np.isnan(wide_got) & np.isnan(wide_want))
        if rule == "expect_almost_eq":
            same |= np.abs(wide_got - wide_want) <= limits.get("tolerance", CLOSE)
        if rule == "expect_close":
            same |= _ulps(got, want) <= limits.get("max_ulp_difference", CLOSE_ULPS)
        if same.all():
            return ""
        tolerance = TOLERANCE.get(want.dtype.name, 0)
        is_near = same | (np.abs(wide_got - wide_want) <= tolerance * (1 + np.abs(wide_want)))
    return (NEAR if is_near.all() else "") + _first(same, got, want)


def _ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """How many numbers of the type lie between."""
    kind = np.dtype(f"i{want.dtype.itemsize}")
    places = []
    for x in (got.astype(want.dtype), want):
        bits = np.ascontiguousarray(x).view(kind).astype(object)
        places.append(np.where(bits < 0, -(bits & (2 ** (8 * kind.itemsize - 1) - 1)), bits))
    apart = np.abs(places[0] - places[1])
    finite = np.isfinite(got.astype(np.float64)) & np.isfinite(want.astype(np.float64))
    return np.where(finite, apart, 1 << 64).astype(np.float64)


def _first(same: np.ndarray, got: np.ndarray, want: np.ndarray) -> str:
    at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
    a, b = np.atleast_1d(got)[at], np.atleast_1d(want)[at]
    return f"{int((~same).sum())} of {same.size} differ; at {at} {a} where {b} is expected"


def outcome(case: tuple[str, str]) -> Outcome:
    """What becomes of one program."""
    name, text = case
    if ALONE.search(text):
        return Outcome(name, "left out")
    said = Outcome(name, "error", "not run")
    for has_arguments in (True, False):
        try:
            return run(text, name, has_arguments=has_arguments)
        except tw.TilewrightError as e:
            said = Outcome(name, "refused", " ".join(str(e).split())[:400])
        except Exception as e:  # any other exception is a finding
            said = Outcome(name, "error", f"{type(e).__name__}: {' '.join(str(e).split())[:400]}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="", help="only files whose name this regular expression finds")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    paths = sorted(p for p in a.folder.rglob("*.mlir") if re.search(a.match, p.name))
    cases = [c for p in paths for c in programs(p)][:: a.every]
    with ProcessPoolExecutor(a.jobs) as pool:
        outcomes = []
        for found in pool.map(outcome, cases):
            outcomes.append(found)
            if found.why:
                print(f"{found.how:8} {found.name}: {found.why}", flush=True)
    counts = Counter(o.how for o in outcomes)
    tried = len(outcomes) - counts["left out"]
    passed = counts["passed"] + counts["passed, folded"]
    kinds = ", ".join(f"{n} {how}" for how, n in sorted(counts.items()))
    print(f"{passed} of {tried} programs pass ({passed / max(1, tried):.1%}): {kinds}")
    if a.json:
        a.json.write_text(json.dumps([vars(o) for o in outcomes], indent=1))
    sys.exit(any(o.how in ("wrong", "error") for o in outcomes))


if __name__ == "__main__":
    main()
