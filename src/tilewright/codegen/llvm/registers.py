"""Register buffers: arrays whose elements are SSA values, in groups of lanes.

In: reads and writes at constant offsets. Out: values. Not its business: which buffers are registers (``analysis``),
phis (``loops`` makes them from ``state``).

A group of which only the first lanes are ever touched is held in a narrower register. Its width is that of its first
write; a later write that is wider raises ``NarrowError``, and the kernel is emitted again without narrow registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.types import VALUE_TYPE
from tilewright.codegen.llvm.writer import Val
from tilewright.core.compute import Buffer
from tilewright.core.types import DType


class NarrowError(Exception):
    """A group that began in a narrow register is needed in full."""


@dataclass(frozen=True)
class Slot:
    """A group's present value, of all its lanes or the first ones.

    Lanes outside ``mask`` (a mask's text) were never written and don't matter.
    """

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

    def are_whole(self, buffer: Buffer) -> bool:
        """Are all groups that were written ones of all lanes, each of them defined?"""
        slots, lanes = [slot for (b, _), slot in self.state.items() if b == id(buffer)], self.groups[id(buffer)]
        return bool(slots) and lanes > 0 and all(s.mask is None and s.value.lanes == lanes for s in slots)

    def read(self, buffer: Buffer, offset: int, pattern: tuple[int, ...] | None) -> Val:
        """The element at ``offset``, or the elements at ``offset + pattern``."""
        lanes = self.groups[id(buffer)]
        if pattern is None:
            slot = self._value(buffer, offset // max(lanes, 1))
            return self.arith.extract(slot, VALUE_TYPE[buffer.dtype], offset % max(lanes, 1))
        if self._starts_group(lanes, offset, pattern):
            return self._first_lanes(buffer, offset // lanes, len(pattern))
        return self._collect(buffer, [offset + p for p in pattern])

    def write(self, buffer: Buffer, offset: int, pattern: tuple[int, ...] | None, value: Val, mask: Val | None) -> None:
        """Define the element at ``offset``, or those at ``offset + pattern`` where ``mask`` holds."""
        lanes = self.groups[id(buffer)]
        element = VALUE_TYPE[buffer.dtype]
        if pattern is None:
            self._write_lane(buffer, offset, value)
            return
        value = self.arith.splat(value, element, len(pattern))
        if self._starts_group(lanes, offset, pattern):
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
        if old is not None and old.value.lanes != value.lanes:
            if old.value.lanes < value.lanes:
                raise NarrowError
            if mask is not None:
                kept = self._first_lanes(buffer, slot, value.lanes)
                value = self.arith.choose(mask, value, kept, VALUE_TYPE[buffer.dtype])
            n, element = old.value.lanes, VALUE_TYPE[buffer.dtype]
            behind = list(range(n + value.lanes, 2 * n))
            wide = self._resized(value, element, n)
            self.state[key] = Slot(self.arith.pick(wide, element, [*range(value.lanes), *behind], old.value))
        elif mask is None:
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
        if key in self.state and self.state[key].value.lanes < lanes:
            raise NarrowError
        old = self._value(buffer, offset // lanes)
        level = max(old.level, value.level)
        ty = f"<{lanes} x {element}>"
        text = f"insertelement {ty} {old.text}, {element} {value.text}, i64 {offset % lanes}"
        self.state[key] = Slot(Val(self.arith.writer.pure(text, level), level, lanes))

    @staticmethod
    def _starts_group(lanes: int, offset: int, pattern: tuple[int, ...]) -> bool:
        """Are these the first lanes of a group, in order?"""
        n = len(pattern)
        return 0 < n <= lanes and offset % lanes == 0 and pattern == tuple(range(n))

    def _value(self, buffer: Buffer, slot: int) -> Val:
        return self._first_lanes(buffer, slot, self.groups[id(buffer)])

    def _first_lanes(self, buffer: Buffer, slot: int, n: int) -> Val:
        found = self.state.get((id(buffer), slot))
        return self._resized(found.value, VALUE_TYPE[buffer.dtype], n) if found else Val("poison", 0, n)

    def _resized(self, v: Val, element: str, n: int) -> Val:
        """The first ``n`` lanes, undefined where ``v`` has fewer."""
        return v if v.lanes == n else self.arith.pick(v, element, [k if k < v.lanes else -1 for k in range(n)])

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
