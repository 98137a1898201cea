"""StableHLO programs: what JAX exports gives JAX's own results, files are read, and what has no form is named.

Integers and keys are equal bit by bit; floats are within the tolerance of their type.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from typer.testing import CliRunner

import tilewright as tw
from frontend.jax_methods import CASES
from tilewright.cli.main import app
from tilewright.frontend.stablehlo import walk
from tilewright.frontend.stablehlo.importer import import_exported, import_module
from tilewright.frontend.stablehlo.nesting import MOST_LEVELS, too_deep

TOLERANCE = {np.dtype(np.float16): 2e-3, np.dtype(jnp.bfloat16): 2e-2}


def assert_equal(got, want):
    """Trees of one structure with equal leaves."""
    got, want = jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want)
    for ours, theirs in zip(got, map(np.asarray, want), strict=True):
        ours = np.asarray(ours)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if theirs.dtype.kind in "iub":
            np.testing.assert_array_equal(ours, theirs)
        else:
            wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
            tolerance = TOLERANCE.get(theirs.dtype, 2e-5)
            np.testing.assert_allclose(ours.astype(wide), theirs.astype(wide), rtol=tolerance, atol=tolerance)


def exported(function, *arguments):
    return export.export(jax.jit(function, keep_unused=True))(*arguments)


@pytest.mark.one_in(80)
@pytest.mark.parametrize("name", CASES)
def test_gives_what_jax_gives(name: str) -> None:
    function, arguments = CASES[name]
    model = tw.compile(exported(function, *arguments), threads=1, cache=False)
    assert_equal(model(*arguments), jax.jit(function)(*arguments))


def test_trees_of_arguments_and_results() -> None:
    def f(params, x):
        return {"y": x @ params["w"] + params["b"], "parts": (x, [x * 2])}

    params, x = {"w": np.eye(3, dtype=np.float32), "b": np.ones(3, np.float32)}, np.ones((2, 3), np.float32)
    model = tw.compile(exported(f, params, x), cache=False)
    made = model(params, x)
    assert set(made) == {"y", "parts"} and isinstance(made["parts"], tuple) and isinstance(made["parts"][1], list)
    assert_equal(made, f(params, x))
    assert [s.name for s in model.inputs] == ["params_b", "params_w", "x"]


def test_symbolic_sizes_stay_symbolic() -> None:
    n, m = export.symbolic_shape("n, m")

    def f(x):
        return jnp.concatenate([x, x * 2]).reshape(-1).sum() + jnp.ones((x.shape[0], 3)) * x.shape[1]

    model = tw.compile(export.export(jax.jit(f))(jax.ShapeDtypeStruct((n, m), np.float32)), cache=False)
    assert [str(d) for d in model.inputs[0].shape] == ["n", "m"]
    for shape in ((2, 3), (5, 4)):
        x = np.ones(shape, np.float32)
        assert_equal(model(x), f(x))


def test_what_an_export_says_of_sizes_is_checked_by_every_call() -> None:
    """JAX took the branch that its constraints allow, so that other sizes would get another program's results."""
    b, _ = export.symbolic_shape("b, c", constraints=("b >= 4", "b <= c", "mod(c, 3) == 0"))
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, c", scope=b.scope), np.float32)
    model = tw.compile(export.export(jax.jit(lambda x: x * (2 if x.shape[0] > 3 else 3)))(shape), cache=False)
    assert (model(np.ones((4, 6), np.float32)) == 2).all()
    for sizes, rule in (((3, 6), "b must be at least 4"), ((6, 3), "c >= b must hold"), ((5, 7), "a multiple of 3")):
        with pytest.raises(tw.InputError, match=rule):
            model(np.ones(sizes, np.float32))


@pytest.mark.parametrize("around", ["if", "while"])
def test_what_a_region_asserts_of_sizes_binds_who_runs_it(around: str, tmp_path: Path) -> None:
    asserted = """
      %s = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      %four = stablehlo.constant dense<4> : tensor<i32>
      %ok = stablehlo.compare GE, %s, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.custom_call @shape_assertion(%ok) {has_side_effect = true} : (tensor<i1>) -> ()"""
    choice = f"""
    %r = "stablehlo.if"(%c) ({{{asserted}
      %y = stablehlo.add %x, %x : tensor<?xf32>
      stablehlo.return %y : tensor<?xf32>
    }}, {{ stablehlo.return %x : tensor<?xf32> }}) : (tensor<i1>) -> tensor<?xf32>"""
    loop = f"""
    %r, %last = "stablehlo.while"(%x, %c) ({{
    ^bb0(%z: tensor<?xf32>, %go: tensor<i1>): stablehlo.return %go : tensor<i1>
    }}, {{
    ^bb0(%z: tensor<?xf32>, %go: tensor<i1>):{asserted}
      %y = stablehlo.add %z, %z : tensor<?xf32>
      %no = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %y, %no : tensor<?xf32>, tensor<i1>
    }}) : (tensor<?xf32>, tensor<i1>) -> (tensor<?xf32>, tensor<i1>)"""
    (tmp_path / "m.mlir").write_text(
        "module { func.func public @main(%x: tensor<?xf32>, %c: tensor<i1>) -> tensor<?xf32> {"
        + (choice if around == "if" else loop) + "\n    return %r : tensor<?xf32>\n} }"
    )  # fmt: skip
    model = tw.compile(tmp_path / "m.mlir", cache=False)
    assert (model(np.ones(4, np.float32), np.True_) == 2).all()
    assert (model(np.ones(3, np.float32), np.False_) == 1).all()
    with pytest.raises(tw.TilewrightError, match="4"):
        model(np.ones(3, np.float32), np.True_)


def windows(start, op, dims, strides, pads="VALID", dtype=np.float32):
    return lambda x: lax.reduce_window(x.astype(dtype), dtype(start), op, dims, strides, pads)


def convolved(stride, pads, **options):
    kernel = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    numbers = ("NWC", "WIO", "NWC")
    return lambda x: lax.conv_general_dilated(x[..., None] * x[:2].sum(), kernel[:, :1], (stride,), pads, **options,
                                              dimension_numbers=numbers)  # fmt: skip


OF_A_SYMBOLIC_SIZE = {
    "cumulative": lambda x: (jnp.cumsum(x, 1), lax.cumprod(x, 1, reverse=True), lax.cummax(x, 0), lax.cummin(x, 1)),
    "cumulative, integers": lambda x: lax.cumsum(x.astype(jnp.int32), 1, reverse=True),
    "products": windows(1, lax.mul, (1, 3), (1, 1)),
    "minima": windows(np.inf, lax.min, (1, 3), (1, 2), ((0, 0), (1, 1))),
    "integers": windows(-(2**31), lax.max, (1, 3), (1, 1), "SAME", np.int32),
    "strides": windows(-np.inf, lax.max, (1, 1), (1, 2)),
    "cropped": windows(-np.inf, lax.max, (1, 2), (1, 1), ((0, 0), (-1, 0))),
    "padding that follows": windows(0, lax.add, (1, 3), (1, 2), "SAME"),
    "gradient": jax.grad(lambda x: jnp.sum(windows(-np.inf, lax.max, (1, 3), (1, 1), "SAME")(x) ** 2)),
    "convolution": convolved(2, "SAME"),
    "spread convolution": convolved(1, ((2, 2),), lhs_dilation=(2,)),
    "quotients": lambda x: (x[:, : x.shape[1] // 2], x[:, x.shape[1] % 3 :], x[:, -(-x.shape[1] // 2) :]),
    "turned": lambda x: jnp.roll(x, -1, 1),
    "edges": lambda x: jnp.pad(x, ((0, 0), (1, 1)), mode="edge"),
    "extremes": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1)),
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", OF_A_SYMBOLIC_SIZE)
def test_windows_and_sizes_that_follow_from_a_symbol(name: str) -> None:
    """Also for sizes for which no window fits."""
    function, n = OF_A_SYMBOLIC_SIZE[name], export.symbolic_shape("n")[0]
    model = tw.compile(exported(function, jax.ShapeDtypeStruct((2, n), np.float32)), cache=False)
    for size in (1, 2, 3, 8):
        x = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32) * 3
        assert_equal(model(x), function(x))


def test_an_extreme_s_place_is_one_op() -> None:
    """Of two NaN JAX takes the first, in order, without a look at their places."""
    for function, op in ((jnp.argmax, "argmax"), (jnp.argmin, "argmin")):
        program = exported(function, np.zeros(4, np.float32))
        assert op in {node.op.name for node in import_exported(program).graph.nodes()}
        model = tw.compile(program, cache=False)
        for values in ([np.nan, 1, 2, np.nan], [1, np.nan, 0, np.nan], [-np.inf] * 4, [np.inf] * 4, [0.0, -0.0, 0, 0]):
            x = np.array(values, np.float32)
            assert_equal(model(x), function(x))


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc"])
def test_files(tmp_path: Path, suffix: str) -> None:
    program = exported(lambda x: jnp.tanh(x) @ x.T, np.ones((2, 3), np.float32))
    path = tmp_path / f"model{suffix}"
    if suffix == ".mlir":
        path.write_text(program.mlir_module())
    else:
        path.write_bytes(program.mlir_module_serialized)
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 6
    assert_equal(tw.compile(path)(x), np.tanh(x) @ x.T)
    ran = CliRunner().invoke(app, ["compile", str(path), "-o", str(tmp_path / "model.tw")])
    assert ran.exit_code == 0, ran.output
    assert_equal(tw.load(tmp_path / "model.tw")(x), np.tanh(x) @ x.T)


MODULE = """module {
  func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.add %x, %x : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
"""
BROKEN = {
    "empty": b"",
    "no text": b"\xff\xfe\x00",
    "cut": MODULE[:90].encode(),
    "another dialect": MODULE.replace("stablehlo.add", "nowhere.add").encode(),
    "wrong types": MODULE.replace("-> tensor<2x3xf32> {", "-> tensor<9xf32> {").encode(),
    "no main": MODULE.replace("func.func @main", "func.func private @other").encode(),
    "declared only": b"module { func.func private @main(tensor<f32>) -> tensor<f32> }",
    "bytecode cut": b"ML\xefR\x0dStableHLO_v1.15",
}


LEVELS = 100_000
DEEP = {
    "an open bracket": "module attributes {a.b = " + "[" * LEVELS,
    "dictionaries": "module attributes {a.b = " + "{a = " * LEVELS + "1" + "}" * (LEVELS + 1) + " {}",
    "types": "module attributes {a.b = " + "tuple<" * LEVELS + "i32" + ">" * LEVELS + "} {}",
    "regions": "module {" * LEVELS + "}" * LEVELS,
    "signs": f"module attributes {{a.b = affine_map<(d0) -> ({'-' * LEVELS}d0)>}} {{}}",
    "names of types": "!t0 = i32\n"
    + "".join(f"!t{k} = tuple<!t{k - 1}>\n" for k in range(1, LEVELS))
    + f"module {{ func.func @main(%x: !t{LEVELS - 1}) {{ return }} }}",
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_nested_deeper_than_a_stack_is_refused(tmp_path: Path, name: str) -> None:
    """MLIR's reader recurses without a limit, and a hundred thousand brackets ended the process."""
    path = tmp_path / "model.mlir"
    path.write_text(DEEP[name])
    with pytest.raises(tw.ImportFailed, match=r"line \d+ is inside more than 200 brackets"):
        tw.compile(path, cache=False)


def test_brackets_in_texts_remarks_and_signs_are_none() -> None:
    arrows = "() -> (i32) >= <= " * MOST_LEVELS
    assert too_deep('"' + "[" * 300 + '\\"<" // ' + "(" * 300 + "\n" + arrows) is None
    assert too_deep("[" * MOST_LEVELS + "]" * MOST_LEVELS) is None
    assert too_deep("\n" + "[" * (MOST_LEVELS + 1)) == 2
    chain = "".join(f"#a{k} = [#a{k - 1},\n  1]\n" for k in range(1, MOST_LEVELS))
    assert too_deep(f"#a0 = 1\n{chain}module attributes {{a.b = #a{MOST_LEVELS - 1}}}\n{{ #a0 }}") is None
    assert too_deep(f"#a0 = 1\n{chain}module attributes {{a.b = [#a{MOST_LEVELS - 1}]}}") is not None
    assert too_deep(chain.replace("= [", "= loc(").replace("]", ")") * 9) is None  # tracebacks


def test_branches_deeper_than_passes_recurse(tmp_path: Path) -> None:
    body = "stablehlo.return %x : tensor<f32>"
    for k in range(180):
        condition = "cond { stablehlo.return %p : tensor<i1> }"
        loop = f"%c{k} = stablehlo.while(%i{k} = %x) : tensor<f32> {condition} do {{ {body} }}"
        body = f"{loop} stablehlo.return %c{k} : tensor<f32>"
    body = f"{loop} return %c179 : tensor<f32>"
    path = tmp_path / "model.mlir"
    path.write_text(f"module {{ func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {{ {body} }} }}")
    with pytest.raises(tw.ImportFailed, match="control flow inside 100 other regions"):
        tw.compile(path, cache=False)


def test_functions_that_each_call_the_next_one_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 62nd would have 2^60 additions; what is read of them is bounded, and one problem names the bound."""
    monkeypatch.setattr(walk, "MOST_CALLED", 1000)
    twice = "%a = call @f{0}(%x) : (tensor<f32>) -> tensor<f32> %b = call @f{0}(%a) : (tensor<f32>) -> tensor<f32>"
    bodies = [twice.format(k) for k in range(1, 62)] + ["%b = stablehlo.add %x, %x : tensor<f32>"]
    of = "(%x: tensor<f32>) -> tensor<f32>"
    path = tmp_path / "model.mlir"
    for depth, problem in ((7, None), (62, "called functions have more than 1000 operations")):
        kept = [*bodies[: depth - 1], bodies[-1]]
        functions = "".join(
            f"func.func private @f{k}{of} {{ {b} return %b : tensor<f32> }} " for k, b in enumerate(kept)
        )
        path.write_text(f"module {{ {functions.replace('private @f0', '@main')} }}")
        if problem is None:
            assert tw.compile(path, cache=False)(np.float32(1)) == 2.0 ** (2 ** (depth - 1))
            continue
        with pytest.raises(tw.ImportFailed) as failed:
            tw.compile(path, cache=False)
        assert [p.rule for p in failed.value.problems] == [problem]


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_import_failures(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.mlir"
    path.write_bytes(BROKEN[name])
    with pytest.raises(tw.ImportFailed, match="StableHLO module"):
        tw.compile(path, cache=False)


@pytest.mark.parametrize(
    ("element", "number"), [("f32", "1.5"), ("bf16", "1.5"), ("i8", "-3"), ("complex<f32>", "(1.0,2.0)")]
)
def test_a_number_in_more_places_than_memory_has(element: str, number: str, tmp_path: Path) -> None:
    """Its array would have up to 64 TB: one number is kept, and only what is read of the others is made."""
    many = f"tensor<{1 << 40}x8x{element}>"
    path = tmp_path / "many.mlir"
    path.write_text(f"""func.func @main() -> tensor<2x1x{element}> {{
      %many = stablehlo.constant dense<{number}> : {many}
      %two = stablehlo.slice %many [0:2, 1:2] : ({many}) -> tensor<2x1x{element}>
      return %two : tensor<2x1x{element}>
    }}""")
    got = np.asarray(tw.compile(path, cache=False)())
    assert got.shape == (2, 1) and (got == (1 + 2j if "complex" in element else float(number))).all()


def test_all_that_has_no_form_is_named_with_the_line() -> None:
    def f(x):
        x = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return lax.rng_uniform(0.0, 1.0, (3,)), x

    program = jax.jit(f).lower(np.ones(3, np.float32)).compiler_ir("stablehlo")
    path = Path(__file__)
    with pytest.raises(tw.ImportFailed) as failed:
        import_module(program, "f")
    ops = [p.op for p in failed.value.problems]
    assert ops == ["stablehlo.custom_call", "stablehlo.rng"]
    assert failed.value.problems[0].loc.file == str(path) and "in " in failed.value.problems[0].loc.text
    assert all(p.remedy for p in failed.value.problems)


def test_a_scan_copies_no_rows() -> None:
    """The stack of a scan's results is the loop's own, not a tensor that each trip copies."""
    graph = import_exported(exported(*[CASES["scan"][0], *CASES["scan"][1]])).graph
    (loop,) = [n for n in graph.nodes() if n.op.name == "loop"]
    assert loop.attrs.n_carried == 1 and loop.attrs.length == 4
