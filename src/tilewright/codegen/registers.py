"""Register buffers: arrays whose elements are SSA values, in groups of lanes.

In: reads and writes at constant offsets. Out: values. Not its business: which buffers are registers (``analysis``),
phis (``loops`` makes them from ``state``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.codegen.arith import Arith
from tilewright.codegen.types import VALUE_TYPE
from tilewright.codegen.writer import Val
from tilewright.core.compute import Buffer
from tilewright.core.types import DType


@dataclass(frozen=True)
class Slot:
    """A group's present value. Lanes outside ``mask`` (a mask's text) were never written and don't matter."""

    value: Val
    mask: str | None = None


Key = tuple[int, int]


class Registers:
    """All register buffers of one function. ``groups`` gives each buffer's lanes per slot (0 for scalars)."""

    def __init__(self, arith: Arith, groups: dict[int, int]) -> None:
        self.arith = arith
        self.groups = groups
        self.state: dict[Key, Slot] = {}
        self.dtypes: dict[int, DType] = {}

    def forget(self, buffer: Buffer) -> None:
        """The buffer's life starts anew: nothing is defined."""
        for key in [k for k in self.state if k[0] == id(buffer)]:
            del self.state[key]

    def read(self, buffer: Buffer, offset: int, pattern: tuple[int, ...] | None) -> Val:
        """The element at ``offset``, or the elements at ``offset + pattern``."""
        lanes = self.groups[id(buffer)]
        if pattern is None:
            slot = self._value(buffer, offset // max(lanes, 1))
            return self.arith.extract(slot, VALUE_TYPE[buffer.dtype], offset % max(lanes, 1))
        if lanes == len(pattern) and offset % lanes == 0 and pattern == tuple(range(lanes)):
            return self._value(buffer, offset // lanes)
        return self._collect(buffer, [offset + p for p in pattern])

    def write(self, buffer: Buffer, offset: int, pattern: tuple[int, ...] | None, value: Val, mask: Val | None) -> None:
        """Define the element at ``offset``, or those at ``offset + pattern`` where ``mask`` holds."""
        lanes = self.groups[id(buffer)]
        element = VALUE_TYPE[buffer.dtype]
        if pattern is None:
            self._write_lane(buffer, offset, value)
            return
        value = self.arith.splat(value, element, len(pattern))
        if lanes == len(pattern) and offset % lanes == 0 and pattern == tuple(range(lanes)):
            self._write_slot(buffer, offset // lanes, value, mask)
            return
        for lane, p in enumerate(pattern):
            new = self.arith.extract(value, element, lane)
            if mask is not None:
                keep = self.read(buffer, offset + p, None)
                new = self.arith.choose(self.arith.extract(mask, "i1", lane), new, keep, element)
            self._write_lane(buffer, offset + p, new)

    def _write_slot(self, buffer: Buffer, slot: int, value: Val, mask: Val | None) -> None:
        key = (id(buffer), slot)
        self.dtypes[id(buffer)] = buffer.dtype
        old = self.state.get(key)
        if mask is None:
            self.state[key] = Slot(value)
        elif old is None or old.mask == mask.text:
            self.state[key] = Slot(value, mask.text)
        else:
            kept = self.arith.choose(mask, value, old.value, VALUE_TYPE[buffer.dtype])
            self.state[key] = replace(old, value=kept)

    def _write_lane(self, buffer: Buffer, offset: int, value: Val) -> None:
        lanes = self.groups[id(buffer)]
        self.dtypes[id(buffer)] = buffer.dtype
        if not lanes:
            self.state[id(buffer), offset] = Slot(value)
            return
        element, key = VALUE_TYPE[buffer.dtype], (id(buffer), offset // lanes)
        old = self._value(buffer, offset // lanes)
        level = max(old.level, value.level)
        ty = f"<{lanes} x {element}>"
        text = f"insertelement {ty} {old.text}, {element} {value.text}, i64 {offset % lanes}"
        self.state[key] = Slot(Val(self.arith.writer.pure(text, level), level, lanes))

    def _value(self, buffer: Buffer, slot: int) -> Val:
        found = self.state.get((id(buffer), slot))
        return found.value if found else Val("poison", 0, self.groups[id(buffer)])

    def _collect(self, buffer: Buffer, offsets: list[int]) -> Val:
        lanes, element = max(self.groups[id(buffer)], 1), VALUE_TYPE[buffer.dtype]
        slots = sorted({o // lanes for o in offsets})
        if self.groups[id(buffer)] and len(slots) <= 2:
            first = self._value(buffer, slots[0])
            other = self._value(buffer, slots[-1]) if len(slots) == 2 else None
            return self.arith.pick(
                first, element, [o % lanes + lanes * slots.index(o // lanes) for o in offsets], other
            )
        result = Val("poison", 0, len(offsets))
        ty = f"<{len(offsets)} x {element}>"
        for lane, o in enumerate(offsets):
            part = self.read(buffer, o, None)
            level = max(result.level, part.level)
            text = f"insertelement {ty} {result.text}, {element} {part.text}, i64 {lane}"
            result = Val(self.arith.writer.pure(text, level), level, len(offsets))
        return result
