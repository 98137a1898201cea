"""Loop programs in plain Python: what they compute is what Python computes, and exact dependences are told of them.

The functions below are read from their text, which a file has for Python to run.
"""

import ast
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.language.program import functions_in, read_program
from tilewright.tools.loop_report import ANY_ORDER, loop_report
from tilewright.tools.loop_run import beside_python, imported, program_graph

N = 9
with_poly = pytest.mark.skipif(find_spec("islpy") is None, reason="the extra poly is not installed")


TEXT = """from math import sqrt


def seidel(a: "f64[n, n]", n, steps):
    for t in range(steps):
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                a[i, j] = (a[i - 1, j] + a[i, j - 1] + a[i, j] + a[i, j + 1] + a[i + 1, j]) / 5


def lu(a):
    n = len(a)
    for k in range(n):
        for i in range(k + 1, n):
            a[i][k] /= a[k][k]
            for j in range(k + 1, n):
                a[i][j] -= a[i][k] * a[k][j]


def trisolv(l, x, b):
    n = l.shape[0]
    for i in range(n):
        s = b[i]
        for j in range(i):
            s -= l[i, j] * x[j]
        x[i] = s / l[i, i]


def cholesky(a: "f64[n, n]"):
    n, m = a.shape
    for i in range(n):
        for j in range(i):
            for k in range(j):
                a[i, j] -= a[i, k] * a[j, k]
            a[i, j] /= a[j, j]
        for k in range(i):
            a[i, i] -= a[i, k] * a[i, k]
        a[i, i] = sqrt(a[i, i])


def backwards(x: "f32[n]", scale=2.0):
    n = len(x)
    for i in range(n - 2, -1, -2):
        x[i] = max(x[i], x[i + 1] * scale, -abs(x[i])) if i > 2 else min(x[i], 0.5)


def branches(x, y: "i64[n]", limit):
    n = len(x)
    count = 0
    for i in range(n):
        if x[i] > limit and not i == 3:
            x[i] = limit
            count += 1
        elif x[i] < 1.0:
            x[i] = x[i] + i / 2
        else:
            y[i] += i % 3
    for i in range(n):
        x[i] += count


def no_order(a, b, c: "f64[n, n]"):
    n = len(c)
    for i in range(n):
        for j in range(n):
            for k in range(n):
                c[i, j] += a[i, k] * b[k, j]


def rows(a: "f64[n, m]", b: "f64[n, m]"):
    for i in range(len(a)):
        for j in range(1, len(a[0])):
            b[i, j] += a[i, j - 1] + len(b[i])


def halves(x):
    for i in range(len(x)):
        i /= 2
        x[0] += i
"""
FILE = Path("programs.py")
FUNCTIONS = functions_in(TEXT, FILE)
SIZES = {"n": N, "steps": 3}


def read(function, **sizes):
    return read_program(FUNCTIONS[function], FILE, sizes)


def drawn(program):
    rng = np.random.default_rng(3)
    made = []
    for x in program.traced.computation.inputs:
        y = rng.random(x.shape) + (4 * np.eye(N) if x.shape == (N, N) else 0.5)
        made.append((y + y.T if x.shape == (N, N) else y).astype(x.dtype.numpy))
    return made


@pytest.mark.one_in(3)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_program_computes_what_python_computes(function, tmp_path):
    first = read(function)
    program = read(function, **{x: SIZES.get(x, N) for x in first.names - first.constants.keys()})
    given = drawn(program)
    made = tw.compile(program_graph(program), cache=False)(*given)
    arrays = {p: x.copy() for p, x in zip(program.parameters, given, strict=True)}
    file = tmp_path / "programs.py"
    file.write_text(TEXT)
    imported(file, function)(**arrays, **program.constants)
    for name, x in zip(program.written, made if isinstance(made, tuple) else (made,), strict=True):
        np.testing.assert_allclose(x, arrays[name], rtol=1e-6, err_msg=name)


def test_bools_and_numbers_without_a_sign_are_compared_with_python(tmp_path):
    file = tmp_path / "signs.py"
    file.write_text('def f(a: "bool_[n]", b: "u8[n]"):\n    for i in range(len(a)):\n        a[i] = b[i] > 3\n')
    program = read_program(functions_in(file.read_text(), file)["f"], file, {"n": N})
    assert beside_python(program, file, 0)["largest_difference"] == 0


def test_what_parameters_are_follows_from_their_use():
    program = read("branches")
    assert program.parameters == ("x", "y", "limit") and program.written == ("x", "y") and not program.free
    assert read("seidel").free == ("steps",) and read("seidel").names == {"n", "steps"}
    assert [str(b) for b in read("cholesky").traced.computation.inputs] == ["a_in: f64[n, n]"]


@with_poly
def test_loops_are_told_by_the_variables_of_the_text():
    found = loop_report(read("seidel"), "x86-64-v3")
    (tiled,) = found.nests
    assert tiled.step.startswith("resequence(") and not tiled.why_not
    (statement,) = found.statements
    assert statement.domain == (
        "[n, steps] -> { S0[t, i, j] : n > 0 and steps > 0 and 0 <= t < steps and 0 < i <= -2 + n and 0 < j <= -2 + n }"
    )
    assert statement.line == FUNCTIONS["seidel"].lineno + 4
    pairs = {(d.kind, tuple(d.before.values()), tuple(d.after.values())) for d in found.dependences}
    assert ("flow", (0, 1, 1), (0, 1, 2)) in pairs and ("flow", (0, 2, 1), (1, 1, 1)) in pairs


@with_poly
def test_every_dependence_is_one_that_running_the_loops_shows():
    """The pair of iterations that is shown touches one element, in this order, and one of the two writes."""
    found = loop_report(read("lu", n=5, a_1=5), "x86-64-v3")
    touched = {
        "S0": lambda k, i: ({(i, k)}, {(i, k), (k, k)}),
        "S1": lambda k, i, j: ({(i, j)}, {(i, j), (i, k), (k, j)}),
    }
    assert len(found.dependences) >= 8
    for d in found.dependences:
        (writes, reads), (writes_after, reads_after) = (
            touched[s](**at) for s, at in ((d.source, d.before), (d.target, d.after))
        )
        meeting = {"flow": writes & reads_after, "anti": reads & writes_after, "output": writes & writes_after}
        assert meeting[d.kind]
        place = [(at["k"], at["i"], name, at.get("j", 0)) for name, at in ((d.source, d.before), (d.target, d.after))]
        assert place[0] < place[1]


@with_poly
def test_an_order_is_found_where_order_counts_alone():
    (free,) = loop_report(read("no_order"), "x86-64-v3").nests
    assert not free.step and free.why_not == ANY_ORDER


# --- what is refused ------------------------------------------------------------------------------------------------

REFUSED = {
    "while True:\n    pass": (2, "the statement while True"),
    "for x in a:\n    a[0] = x": (2, "a loop over a"),
    "for i in range(len(a)):\n    a[i:] = 0": (3, "a slice"),
    "for i in range(len(a)):\n    a[i + 1] = 0": (3, "may be over the last"),
    "for i in range(len(a)):\n    a[i] = unknown(i)": (3, r"the call unknown\(i\)"),
    "for i in range(len(a)):\n    a[i] = b": (3, "b has no value here"),
    "for i in range(a[0]):\n    a[0] = 0": (2, "no sum of loops and sizes"),
    "a[0], a[1] = 1, 2": (2, "at once"),
    "a[0] @= 2": (2, r"the expression a\[0\] @ 2"),
    "x = a[0]": (1, "no array is written to"),
    "for i in range(a.shape[3]):\n    a[i] = 0": (2, "a has 1 dimensions, and no size 3"),
    "for i in range(0, 4, a):\n    a[0] = 1": (2, "no sum of loops"),
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda x: x.split("\n")[-1].strip())
def test_what_is_no_loop_program_is_refused_at_its_line(body):
    text = "def f(a):\n" + "\n".join(f"    {x}" for x in body.split("\n")) + "\n"
    line, match = REFUSED[body]
    with pytest.raises(tw.CompileError, match=match) as raised:
        read_program(ast.parse(text).body[0], Path("f.py"), {})
    (problem,) = raised.value.problems
    assert problem.loc.line == line and problem.remedy


@with_poly
def test_an_index_that_is_not_affine_is_refused_at_its_line():
    header = 'def f(a: "f64[4]", n):\n    for i in range(1, 4):\n        for j in range(n):\n'
    text = header + "            a[0] = a[min(i * j, 3)]\n"
    program = read_program(ast.parse(text).body[0], Path("f.py"), {})
    with pytest.raises(tw.CompileError, match="no affine expression") as raised:
        loop_report(program, "x86-64-v3")
    assert raised.value.problems[0].loc.line == 4


def test_a_wrong_type_of_a_parameter_names_the_function():
    with pytest.raises(tw.CompileError, match="the kernel f is not right") as raised:
        read_program(ast.parse('def f(a: "f99[n]"):\n    a[0] = 0').body[0], Path("f.py"), {})
    assert raised.value.problems[0].loc.line == 1


def test_a_file_that_is_no_python():
    with pytest.raises(tw.CompileError, match="it is no Python") as raised:
        functions_in("def f(:", Path("f.py"))
    assert str(raised.value).count("line 1") == 0 and "f.py:1" in str(raised.value)
