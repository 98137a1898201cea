"""The stages of a scan over time that all recurrent cells share, step after step or panel by panel.

In: the buffers of a scan (``ops.recurrence``); each cell's own stages, as functions of a step. Out: loops over time.
Not its business: what a cell computes.

Shapes: ``xp[time, batch, gates * hidden]``, ``rt[hidden, gates * hidden]`` or, in panels, ``rt[panels, hidden, gates *
panel]``, states ``[batch, hidden]``, ``y[time, batch, hidden]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    IndexLike,
    Inside,
    Load,
    Reduction,
    Select,
    Serial,
    Stage,
    Value,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.expr import Dim, Sym, floordiv, maximum, mod
from tilewright.core.graph import Attrs
from tilewright.core.indices import chosen
from tilewright.ops.cells import Activation
from tilewright.ops.stages import Items, as_i64, write


@dataclass(frozen=True)
class PanelPass:
    """One pass over the panels: ``states[old]`` is the state before its step, ``states[1 - old]`` the one behind it.

    ``carry[panel, old]`` has what the pass before summed up for this step; ``carry[panel, 1 - old]`` gets what this
    one sums up for the next.
    """

    states: Buffer
    carry: Buffer
    old: int


@dataclass(frozen=True)
class Scan:
    """One step of a scan as stages over batch ``b`` and hidden units ``first + j``: all units, or a panel's."""

    xp: Buffer
    rt: Buffer
    y: Buffer
    h: Buffer
    lengths: Buffer | None
    attrs: Attrs
    step: Dim = 0
    part: str = ""
    first: Dim = 0
    within: PanelPass | None = None

    @property
    def units(self) -> Dim:
        """How many hidden units the cell's stages are about."""
        n: Dim = self.attrs.panel
        return n or self.h.shape[1]

    @property
    def n_gates(self) -> Dim:
        return floordiv(self.xp.shape[2], self.h.shape[1])

    @property
    def cell_axes(self) -> tuple[Axis, ...]:
        return axes_for((self.h.shape[0], self.units))

    def temp(self, name: str, n_gates: int) -> Buffer:
        return Buffer(f"{self.y.name}_{name}{self.part}", self.y.dtype, (self.h.shape[0], self.units * n_gates))

    def before(self, b: Sym, j: Sym) -> Load:
        """The hidden state before this step."""
        at = (b, self.first + j)
        return self.h[at] if self.within is None else self.within.states[self.within.old, *at]

    def after(self, b: Sym, j: Sym) -> Load:
        """The hidden state after this step, once it is there."""
        at = (b, self.first + j)
        return self.h[at] if self.within is None else self.within.states[1 - self.within.old, *at]

    def running(self, b: Sym) -> Value | None:
        """Whether row ``b`` still runs; None when every row always does."""
        if self.lengths is None:
            return None
        return Binary("lt", Index(self.step), as_i64(self.lengths[b]))

    def at(self, b: Sym) -> IndexLike:
        """The time that row ``b`` reads and writes at this step."""
        t, n = self.step, self.xp.shape[0]
        running = self.running(b)
        if not self.attrs.reverse:
            return t
        if running is None or self.lengths is None:
            return n - 1 - t
        end = Binary("min", as_i64(self.lengths[b]), Index(n))
        return Select(running, Binary("sub", end, Index(t + 1)), Index(t))

    def projected(self, b: Sym, column: Dim) -> Load:
        return Load(self.xp, (self.at(b), b, column))

    def product(self, out: Buffer, state: Buffer, first: Dim, init: Callable[[Sym, Dim], Value]) -> tuple[Stage, ...]:
        """``out[b, j] = init(b, first + j) + sum_k state[b, k] * rt[k, first + j]``, of a rounded state if need be.

        Registers that multiply narrow elements are filled with rows of memory, so what is computed is written first.
        """
        axes = axes_for(out.shape)
        b, j = syms(axes)
        hidden = self.h.shape[1]
        k = _axis("k", hidden)
        start = init(b, first + j)
        weight: Value = Load(self.rt, (k.sym, first + j))
        if self.rt.dtype is out.dtype:
            return (Stage((out,), axes, (b, j), (state[b, k.sym] * weight,), Reduction((k,), "add", (start,))),)
        narrow = Buffer(f"{out.name}_in", self.rt.dtype, state.shape)
        at = syms(state_axes := axes_for(state.shape))
        before = [write(narrow, state_axes, at, Cast(state[at], self.rt.dtype))]
        if not isinstance(start, Load) or chosen(start.index):
            begun = Buffer(f"{out.name}_start", out.dtype, out.shape)
            before.append(write(begun, axes, (b, j), start))
            start = begun[b, j]
        term = Cast(narrow[b, k.sym], out.dtype) * Cast(weight, out.dtype)
        return *before, Stage((out,), axes, (b, j), (term,), Reduction((k,), "add", (start,)))

    def update(self, state: Callable[[Sym, Sym], Load], new: Callable[[Sym, Sym], Value]) -> Stage:
        """``state(b, j) = new(b, j)`` for rows that still run."""
        axes = self.cell_axes
        b, j = syms(axes)
        running, value, to = self.running(b), new(b, j), state(b, j)
        return write(to.buffer, axes, to.index, value if running is None else Select(running, value, to))

    def emit(self) -> Stage:
        """``y[time] = h``, or 0 after a row's end."""
        axes = self.cell_axes
        b, j = syms(axes)
        running, h = self.running(b), self.after(b, j)
        value = h if running is None else Select(running, h, Const(0, h.dtype))
        return write(self.y, axes, (self.at(b), b, self.first + j), value)

    def over_time(self, stages: Callable[[Scan], tuple[Stage, ...]], ahead: tuple[Buffer, Buffer] | None) -> Items:
        """``stages`` of every step in order; ``ahead``: the next layer's weights, and where its projection goes.

        The first steps run alone, so that behind every later one a whole block of rows is there to be projected.
        """
        n, behind = self.xp.shape[0], self.attrs.behind
        if ahead is None:
            t = _axis("t", n)
            return [Serial(t, stages(replace(self, step=t.sym)))]
        blocks = maximum(floordiv(n, behind) - 1, 0)
        alone = n - blocks * behind
        t, q, r, rest = _axis("t", alone), _axis("q", blocks), _axis("r", behind), _axis("r", behind)
        items: Items = [Serial(t, stages(replace(self, step=t.sym)))]
        if blocks != 0:
            at = replace(self, step=alone + q.sym * behind + r.sym, part="_b")
            beside = (*at.project(*ahead, q.sym * behind, behind, r.sym), *stages(at))
            items.append(Serial(q, (Serial(r, beside),)))
        last = self.project(*ahead, blocks * behind, alone, rest.sym)
        return [*items, Serial(rest, last)]

    def project(self, wn: Buffer, z: Buffer, first: Dim, n_steps: Dim, chunk: Sym) -> tuple[Stage, Stage]:
        """A chunk of the columns of ``z = y @ wn``, for what the steps from ``first`` on have written."""
        hidden, width = self.h.shape[1], floordiv(wn.shape[1], self.attrs.behind)
        out = Buffer(f"{z.name}_ahead{self.part}", z.dtype, (n_steps, self.h.shape[0], width))
        axes, k = axes_for(out.shape), _axis("k", hidden)
        i, b, j = syms(axes)
        row: Dim = self.xp.shape[0] - 1 - (first + i) if self.attrs.reverse else first + i
        term = Load(self.y, (row, b, k.sym)) * Load(wn, (k.sym, chunk * width + j))
        made = Stage((out,), axes, (i, b, j), (term,), Reduction((k,), "add", (Const(0, z.dtype),)))
        return made, write(z, axes, (row, b, chunk * width + j), out[i, b, j])

    def in_panels(self, init: Init, cell: Callable[[Scan, Buffer], tuple[Stage, ...]]) -> Items:
        """All steps with every weight read once for two of them, in passes that go forth and back over the panels.

        A pass forth finishes step ``t``, panel after panel. Of a panel's weights it reads the rows of the units up to
        its own: the rest of the step was summed up by the pass before. The same rows, its own not, multiply what the
        pass has made of step ``t`` so far, for step ``t + 1``. The pass back finishes that one from the other end, with
        the other rows. ``init(s, b, column)`` is what the sums of a step start from, ``cell`` its stages behind them.
        """
        n, (batch, hidden) = self.xp.shape[0], self.h.shape
        states = Buffer(f"{self.y.name}_states", self.y.dtype, (2, batch, hidden))
        carry = Buffer(f"{self.y.name}_carry", self.y.dtype, (self.rt.shape[0], 2, batch, self.n_gates * self.units))
        forth, back = PanelPass(states, carry, 0), PanelPass(states, carry, 1)
        pair, last = _axis("t", floordiv(n, 2)), _axis("t", mod(n, 2))
        axes = axes_for(self.h.shape)
        b, j = syms(axes)
        before = replace(self, step=-1, part="_0", within=back)
        first = replace(self, step=pair.sym * 2, part="_1", within=forth)
        second = replace(self, step=pair.sym * 2 + 1, part="_2", within=back)
        end = replace(self, step=n - 1 + last.sym, part="_3", within=forth)
        return [
            write(states, axes, (0, b, j), self.h[b, j]),
            before.over_panels(init, None),
            Serial(pair, (first.over_panels(init, cell), second.over_panels(init, cell))),
            *([Serial(last, (end.over_panels(init, cell),))] if last.extent != 0 else []),
            write(self.h, axes, (b, j), states[mod(n, 2), b, j]),
        ]

    def over_panels(self, init: Init, cell: Callable[[Scan, Buffer], tuple[Stage, ...]] | None) -> Serial:
        """One pass; without ``cell`` it sums up for the next step only."""
        assert self.within is not None
        states, carry, old = self.within.states, self.within.carry, self.within.old
        (n_panels, hidden, _), width = self.rt.shape, self.n_gates * self.units
        p = _axis("p", n_panels)
        panel: Dim = n_panels - 1 - p.sym if old else p.sym
        own = panel * self.units
        one = replace(self, first=own)
        r, b, j = syms(axes := axes_for((2 if cell else 1, self.h.shape[0], width)))
        row: Dim = r if cell else 1 - old
        k = _axis("k", p.sym * self.units)
        at: Dim = hidden - 1 - k.sym if old else k.sym
        sums = Buffer(f"{carry.name}_sums{self.part}", carry.dtype, tuple(a.extent for a in axes))
        term = Load(states, (row, b, at)) * Load(self.rt, (panel, at, j))
        summed = Stage((sums,), axes, (r, b, j), (term,), Reduction((k,), "add", (carry[panel, row, b, j],)))
        ahead = sums[1 - old if cell else 0, b, j]
        stages = [one.started(init, panel), summed, write(carry, axes[1:], (panel, 1 - old, b, j), ahead)]
        if cell:
            gates = Buffer(f"{carry.name}_gates{self.part}", carry.dtype, (self.h.shape[0], width))
            k = _axis("k", self.units)
            term = Load(states, (old, b, own + k.sym)) * Load(self.rt, (panel, own + k.sym, j))
            all_of = Stage((gates,), axes[1:], (b, j), (term,), Reduction((k,), "add", (sums[old, b, j],)))
            stages += [all_of, *cell(one, gates)]
        return Serial(p, tuple(stages))

    def started(self, init: Init, panel: Dim) -> Stage:
        """What the sums of the next step start from, for one panel; nothing behind the last step."""
        assert self.within is not None
        carry, hidden, n = self.within.carry, self.h.shape[1], self.xp.shape[0]
        b, g, j = syms(axes := axes_for((self.h.shape[0], self.n_gates, self.units)))
        value = init(replace(self, step=self.step + 1), b, g * hidden + self.first + j)
        kept = Select(Inside((n - 2 - self.step,)), value, Const(0, value.dtype))
        return write(carry, axes, (panel, 1 - self.within.old, b, g * self.units + j), kept)

    def activate(self, function: Activation, x: Value) -> Value:
        clip = self.attrs.clip
        if clip:
            x = Binary("max", Binary("min", x, Const(clip, x.dtype)), Const(-clip, x.dtype))
        return function.value(x)


Init = Callable[[Scan, Sym, Dim], Value]


def _axis(name: str, extent: Dim) -> Axis:
    return Axis(loop_symbol(name, extent), extent)
