"""Converter of ONNX Runtime's LSTM over quantised weights.

In: a ``Call``. Out: nodes of the graph IR: the inputs' products at once, then a scan whose state is quantised anew in
each step, as the op says; the step is written in ONNX's own ops. Not its business: the float LSTM (``onnx.ops.rnn``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import f32, i32
from tilewright.frontend.onnx.call import Call, Results, Table
from tilewright.frontend.onnx.ops.contract import centred
from tilewright.frontend.onnx.ops.rnn import attributes, begun

FORMS = {
    "Elu": "Elu<alpha={alpha}>", "HardSigmoid": "HardSigmoid<alpha={alpha}, beta={beta}>",
    "LeakyRelu": "LeakyRelu<alpha={alpha}>", "Relu": "Relu", "Sigmoid": "Sigmoid", "Softplus": "Softplus",
    "Softsign": "Softsign", "Tanh": "Tanh", "ThresholdedRelu": "ThresholdedRelu<alpha={alpha}>",
}  # fmt: skip
NUMBERS = {"Elu": (1.0, 0.0), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, 0.0), "ThresholdedRelu": (1.0, 0.0)}

SCAN = """<opset_import: ["" : 17], domain: "step"> lstm (x, h0, c0, r, r_scale, r_zero, p_i, p_o, p_f, lengths, one)
=> (y, h, c) {{
  {before}
  start = Constant <value = int32 {{0}}> ()
  h, c, last, rows = Scan <num_scan_inputs = 1, body = step (hp, cp, at, xt) => (hn, cn, after, row) {{
    quantised, scale, zero = DynamicQuantizeLinear (hp)
    whole = MatMulInteger (quantised, r, zero, r_zero)
    real = Cast <to = 1> (whole)
    factor = Mul (scale, r_scale)
    product = Mul (real, factor)
    sum = Add (xt, product)
    gi, go, gf, gc = Split <axis = 1> (sum)
    {gates}
    kept = Mul (f, cp)
    new = Mul (i, g)
    ct = Add (kept, new)
    {output}
    shown = {h} (ct)
    ht = Mul (o, shown)
    after = Add (at, one)
    {state}
  }}> (h0, c0, start, xs)
  {after}
}}"""


def _lstm(c: Call) -> Results:
    x, w, r, bias = c.x(0), c.x(1), c.x(2), c.opt(3)
    attrs = attributes(c, "LSTM")
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[attrs["direction"]]
    hidden, batch, length = r.shape[1], x.shape[1], x.shape[0]
    if c.int_("hidden_size", known(hidden, 0)) != hidden:
        c.refuse(f"hidden_size differs from the recurrence weights' {hidden}")
    inputs, scale, zero = c.results(c(ops.dynamic_quantize_linear, x))
    rows = c.reshape(centred(c, inputs, zero, 0), (length * batch, x.shape[2]))
    found = []
    for d, reverse in enumerate(backwards):
        number = c(ops.mul, scale, _of(c, c.x(8), d))
        product = c(ops.matmul, rows, centred(c, _of(c, w, d), _of(c, c.x(9), d), 1))
        sums = c(ops.mul, c.cast(product, f32), number)
        if bias is not None:
            b = _of(c, bias, d)
            half = expr.floordiv(b.shape[0], 2)
            sums = c(ops.add, sums, c(ops.add, c.slice_axis(b, 0, 0, half), c.slice_axis(b, 0, half, 2 * half)))
        steps = c.reshape(sums, (length, batch, r.shape[2]))
        found.append(_direction(c, d, steps, (batch, hidden), attrs, reverse))
    return [
        c(ops.concat, *(c.reshape(t, (*t.shape[:at], 1, *t.shape[at:])) for t in parts), axis=at)
        for parts, at in zip(zip(*found, strict=True), (1, 0, 0), strict=True)
    ]


def _of(c: Call, x: Node, d: int) -> Node:
    """What ``x`` holds for direction ``d``."""
    return c.reshape(c.slice_axis(x, 0, d, d + 1), x.shape[1:])


def _direction(c: Call, d: int, x: Node, state: Sequence[Dim], attrs: dict[str, Any], reverse: bool) -> Sequence[Node]:
    lengths, peepholes = c.opt(4), c.opt(7)
    initial = [c.full(0, f32, state) if c.opt(i) is None else _of(c, c.x(i), d) for i in (5, 6)]
    if lengths is not None:
        initial = [begun(c, s, lengths, 0) for s in initial]
    hidden = state[1]
    peep = [] if peepholes is None else [
        c.slice_axis(_of(c, peepholes, d), 0, k * hidden, (k + 1) * hidden) for k in range(3)
    ]  # fmt: skip
    operands = [x, *initial, _of(c, c.x(2), d), _of(c, c.x(10), d), _of(c, c.x(11), d)]
    operands += peep or [c.const(0, f32)] * 3
    operands += [c.const(0, i32) if lengths is None else c.cast(lengths, i32), c.const(1, i32)]
    text = _text(c, attrs, d, reverse=reverse, peep=bool(peep), lengths=lengths is not None)
    made = c.host.call(text, operands)
    return [n for n in made if isinstance(n, Node)]


def _text(c: Call, attrs: dict[str, Any], d: int, *, reverse: bool, peep: bool, lengths: bool) -> str:
    """The scan of one direction in ONNX's text form."""
    names = attrs["activations"][3 * d : 3 * d + 3]
    numbers = [tuple(attrs[k][3 * d : 3 * d + 3]) for k in ("alpha", "beta")]
    for name in names:
        if name not in FORMS:
            c.refuse(f"activation {name} is not supported", f"supported: {', '.join(FORMS)}")
    f, g, h = (
        FORMS[n].format(
            alpha=numbers[0][k] if numbers[0] else NUMBERS.get(n, (0.0, 0.0))[0],
            beta=numbers[1][k] if numbers[1] else NUMBERS.get(n, (0.0, 0.0))[1],
        )
        for k, n in enumerate(names)
    )
    clip = attrs["clip"]

    def gate(result: str, function: str, cell: str) -> list[str]:
        made, at = list[str](), f"g{result}" if result != "g" else "gc"  # ONNX calls the cell's gate c, as the state
        if peep and cell:  # the cell's gate has no peephole
            made += [f"p{result} = Mul ({cell}, p_{result})", f"q{result} = Add ({at}, p{result})"]
            at = f"q{result}"
        if clip:
            made += [
                f"low{result} = Constant <value = float {{-{clip}}}> ()",
                f"high{result} = Constant <value = float {{{clip}}}> ()",
                f"k{result} = Clip ({at}, low{result}, high{result})",
            ]
            at = f"k{result}"
        return [*made, f"{result} = {function} ({at})"]

    # input and forget gate may be coupled: f = 1 - i
    forget = ["unit = Constant <value = float {1}> ()", "f = Sub (unit, i)"] if attrs["input_forget"] else (
        gate("f", f, "cp")
    )  # fmt: skip
    state = ["hn = Identity (ht)", "cn = Identity (ct)", "row = Identity (ht)"]
    if lengths:  # behind a row's end its state stays as it is, and its output is 0
        state = [
            "short = Less (at, lengths)",
            "ends = Constant <value = int64[1] {1}> ()",
            "live = Unsqueeze (short, ends)",
            "nothing = Constant <value = float {0}> ()",
            "hn = Where (live, ht, hp)",
            "cn = Where (live, ct, cp)",
            "row = Where (live, ht, nothing)",
        ]
    turn = "ReverseSequence <batch_axis = 1, time_axis = 0>"
    wide = "long = Cast <to = 7> (lengths)"  # ReverseSequence takes lengths of 64 bits
    before, after = ["xs = Identity (x)"], ["y = Identity (rows)"]
    # each row is turned within its own length, which the scan's directions can't say
    if reverse and lengths:
        before, after = [wide, f"xs = {turn} (x, long)"], [f"y = {turn} (rows, long)"]
    gates = [*gate("i", f, "cp"), *forget, *gate("g", g, "")]
    text = SCAN.format(
        before="\n".join(before), after="\n".join(after), gates="\n".join(gates),
        output="\n".join(gate("o", f, "ct")), h=h, state="\n".join(state),
    )  # fmt: skip
    if reverse and not lengths:
        text = text.replace("num_scan_inputs = 1,", "num_scan_inputs = 1, scan_input_directions = [1],")
        text = text.replace("scan_input_directions", "scan_output_directions = [1], scan_input_directions")
    return text


TABLE: Table = {"DynamicQuantizeLSTM": _lstm}
