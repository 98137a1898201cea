"""Are weights what they were? Asked before each call, of PyTorch's tensors in this machine's memory.

In: tensors and where they stand among a call's arguments. Out: a function of the arguments that says True in a few
microseconds where nothing changed, and a closer look where it says False. Not its business: what is made of weights.

Any tensor of a module may be written at any time, also where PyTorch counts no version (``p.data``, NumPy). So a quick
look compares, in native code (``watch_ir``):

* each tensor's object, storage, offset, address and version: what replaces a tensor, and what PyTorch counts;
* a few words of each tensor: its ends, its least and greatest element, which any ``clamp_`` meets first, the smallest
  that is not 0, which pruning meets first, and some between. A write of new values over a whole tensor changes some;
* one 4 KiB piece, in turn, so that every write is noticed in the end;
* where the system tracks pages (``pages``), whether any page that holds weights was written.

A closer look compares the digests of all that may have changed. Pages that weights share with other data are written
again and again; after ``FALSE_ALARMS`` such writes their pieces are compared in each call instead.

Threads: the quick look holds the interpreter's lock and reads one ``_Memory``; a closer look takes ``_looking`` and
publishes another ``_Memory``, complete. A watch that has found a change keeps saying so: the closer look has made the
system forget which pages were written, so that nobody could find the change again.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.cpu.linker import LinkedLibrary, link_text
from tilewright.runtime.cpu.watch_ir import PYTHON_SYMBOLS, TensorLayout, watch_ir
from tilewright.runtime.once import ForkLock, in_forked_child, once
from tilewright.runtime.plain import dataclass
from tilewright.runtime.python.built_in import ONE_ARGUMENT, MethodDef, built_in
from tilewright.runtime.python.pages import (
    PAGEMAP_SCAN,
    SCAN_WORDS,
    Range,
    forget_pages,
    page_ranges,
    page_tracker,
    question,
)
from tilewright.runtime.python.tensor_layout import tensor_layout
from tilewright.runtime.values import Array

PIECE_BYTES = 4096
WORD_BYTES = 8
WHOLE_WORDS = 8
"""A tensor of so many words or fewer is compared whole."""
SPREAD = 3
"""Elements of a larger tensor that are compared, besides its ends and extremes."""
PRUNED_AMONG = 1 << 16
"""Elements among which the smallest that is not 0 is searched for."""
FALSE_ALARMS = 2
GAP_BYTES = 1 << 20
"""Of memory between weights: to walk past it takes the system as long as another question would."""

WRITTEN, FORKED, CHANGED = 1, 2, 3
"""Alarms: another watch took note of written pages; this is another process, whose pages are not watched yet; a closer
look has found a change."""

_FIELDS = (
    "weights", "words", "pieces", "ranges", "ioctl", "n_weights", "n_words", "n_pieces", "n_ranges", "turn", "file",
    "request", "alarm", "hot", "n_hot",
)  # fmt: skip

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Identity:
    """Where tensors are and how often they were written, as Python tells (``stamp``), and as their objects hold it."""

    stamps: list[Stamp]
    rows: list[tuple[int, ...]]


def stamp(position: int, tensor: Any) -> Stamp:
    """What changes when a tensor is replaced, or written to where PyTorch counts it."""
    return position, id(tensor), tensor.data_ptr(), tensor._version


_looking = ForkLock()
"""Held by closer looks of all watches: they tell each other of written pages. Calls without a change never take it."""


class _Memory(bytearray):
    """What the native function reads, and the arrays that it leads to."""

    keeps: tuple[object, ...] = ()


class Watch:
    """Keeps an eye on tensors, which it holds."""

    def __init__(self, tensors: Sequence[tuple[int, Any]]) -> None:
        """Remember what the tensors are now; ``tensors`` have their positions among the arguments of calls."""
        self._tensors = list(tensors)
        self._library, self._layout = _code()
        self._memory = _Memory()
        self._fields = np.empty(0, np.int64)
        self._false_alarms: Counter[int] = Counter()
        self._hot_pages: set[int] = set()
        self._unsettled: list[Range] = []
        self._ranges: list[Range] = []
        self._pieces: Array = np.empty((0, 3), np.int64)
        self._questions: Array = np.empty((0, SCAN_WORDS + 2), np.uint64)
        self._answers: list[Array] = []
        self._rooms: list[Array] = []
        self.unchanged: Callable[[tuple[Any, ...]], bool]
        """Of a call's arguments: is everything as it was, as far as a quick look tells?"""
        with _looking.lock:
            self._remember()
            _live.add(self)

    def look(self, args: tuple[Any, ...]) -> bool:
        """The closer look, where the quick one failed: is the content what it was? What is new is then remembered.

        Once it is False it stays so.
        """
        with _looking.lock:
            if self._get("alarm") == CHANGED:
                return False
            held = _held([(i, args[i]) for i, _ in self._tensors])
            identity = self._identity(args)
            is_same = [s[:3] for s in identity.stamps] == [s[:3] for s in self._seen.stamps] and self._is_same(identity)
            del held
            if not is_same:
                self._set(alarm=CHANGED)
            return is_same

    def is_untouched(self) -> bool:
        """Have the tensors, as far as anybody can tell, not even been written to and back?

        Unlike ``look`` this takes a write that PyTorch counted for one, whatever it wrote, and one to a page that holds
        nothing else.
        """
        with _looking.lock:
            held = _held(self._tensors)
            identity = self._identity(_at_positions(self._tensors))
            if self._get("alarm") == CHANGED or identity != self._seen:
                return False
            written = self._written_pieces() if self._ranges else np.empty(0, np.int64)
            has_own = bool((self._pieces[written, 1] == mmap.PAGESIZE).any())
            is_untouched = not has_own and self._first_changed(self._pieces) == len(self._pieces)
            self._publish(alarm=0 if is_untouched else CHANGED)
            del held
            return is_untouched

    def _is_same(self, identity: _Identity) -> bool:
        """Is the content what it was? Of tensors that lie where they lay."""
        if self._get("alarm") == FORKED:
            self._start_pages()
        only_pages = self._only_pages_differ(identity)
        written = self._written_pieces()  # in any case, so that they are seen anew
        suspects = written if only_pages else np.arange(len(self._pieces))
        if self._first_changed(self._pieces[suspects]) != len(suspects):
            return False
        self._seen = identity
        self._publish(alarm=0)
        return True

    def _only_pages_differ(self, identity: _Identity) -> bool:
        """Is all that the quick look found that pages were written?"""
        n_ranges, alarm, turn = self._get("n_ranges"), self._get("alarm"), self._get("turn")
        if n_ranges == 0 or identity.stamps != self._seen.stamps or alarm == FORKED:
            return False
        again = _Memory(self._memory)
        fields = np.frombuffer(again, np.int64)
        fields[_FIELDS.index("n_ranges")] = fields[_FIELDS.index("alarm")] = 0
        fields[_FIELDS.index("turn")] = turn - 1 if turn else max(len(self._pieces) - 1, 0)
        return self._looker(again)(tuple(_at_positions(self._tensors)))

    def _written_pieces(self) -> Array:
        """The pieces on pages that were written; what is written from now on is seen anew."""
        tracker = page_tracker()
        if tracker is None:
            return np.arange(len(self._pieces))
        written, self._unsettled = self._unsettled, []
        try:
            written += [(int(a), int(b)) for r in self._ranges for a, b, _ in tracker.written(r)]
        except OSError:  # memory is gone: nothing is known
            return np.arange(len(self._pieces))
        is_new = _lie_in(self._pages, written) & ~np.isin(self._pages, sorted(self._hot_pages))
        found = [int(p) for p in self._pages[is_new]]
        self._false_alarms.update(found)
        self._hot_pages |= {p for p in found if self._false_alarms[p] >= FALSE_ALARMS}
        size, settled = mmap.PAGESIZE, [p for p in found if p not in self._hot_pages]
        self._protect(page_ranges([(p * size, (p + 1) * size) for p in settled], size))
        self._fill_pages()
        return np.flatnonzero(np.isin(self._page_of_piece, found))

    def _protect(self, ranges: Sequence[Range]) -> None:
        """Let pages count as not written, of which all are told who watch them, too."""
        tracker = page_tracker()
        if tracker is None:
            return
        for written in filter(None, map(tracker.take, ranges)):
            for other in list(_live):
                if other is not self:
                    other.alarm(written)

    def alarm(self, written: Sequence[Range]) -> None:
        """Pages that may be watched here, too, were written, and somebody else has taken note of it."""
        own = [w for w in written if any(w[0] < end and w[1] > start for start, end in self._ranges)]
        if own:
            self._unsettled += own
            self._set(alarm=max(self._get("alarm"), WRITTEN))

    def forget_pages(self) -> None:
        """In a forked child: nothing is known of its pages."""
        self._ranges = []
        self._hot_pages.clear()
        self._set(n_ranges=0, alarm=max(self._get("alarm"), FORKED))

    def _remember(self) -> None:
        args = _at_positions(self._tensors)
        self._seen = self._identity(args)
        held = [h for h in _held(self._tensors) if h.numel() and h.data_ptr()]
        self._spans = [_span(h) for h in held]
        self._pieces = _pieces(self._spans)
        self._page_of_piece = self._pieces[:, 0] // mmap.PAGESIZE
        self._pages = np.unique(self._page_of_piece)
        self._start_pages()  # first: what is written from now on is seen
        self._words = _words(held)
        self._call("tw_digests", self._pieces)
        self._fill_pages()
        is_still = self._identity(args) == self._seen  # else another thread has moved a tensor while it was read
        self._publish(alarm=0 if is_still else CHANGED)

    def _identity(self, args: Sequence[Any]) -> _Identity:
        """What PyTorch and its objects say of the tensors, to be asked before their content is read."""
        layout = self._layout
        rows = [_weight(layout, i, args[i]) for i, _ in self._tensors] if layout is not None else []
        return _Identity([stamp(i, args[i]) for i, _ in self._tensors], rows)

    def _publish(self, alarm: int) -> None:
        """Have quick looks compare with what is known now."""
        weights = np.array(self._seen.rows, np.uint64).reshape(-1, 8)
        is_hot = np.isin(self._page_of_piece, sorted(self._hot_pages))
        hot = np.ascontiguousarray(self._pieces[is_hot])
        tracker = page_tracker() if len(self._questions) else None
        turn = self._get("turn") if self._memory else 0
        memory = _Memory(8 * len(_FIELDS))
        memory.keeps = weights, hot, self._words, self._pieces, self._questions, self._answers, self._rooms
        self._fields, self._memory = np.frombuffer(memory, np.int64), memory
        self._set(
            weights=weights.ctypes.data, n_weights=len(weights), words=self._words.ctypes.data,
            n_words=len(self._words), pieces=self._pieces.ctypes.data, n_pieces=len(self._pieces),
            hot=hot.ctypes.data, n_hot=len(hot), turn=turn, alarm=alarm,
        )  # fmt: skip
        if tracker is not None:
            ioctl = ctypes.cast(tracker.libc.ioctl, ctypes.c_void_p).value or 0
            self._set(ranges=self._questions.ctypes.data, ioctl=ioctl, file=tracker.file, request=PAGEMAP_SCAN)
            self._set(n_ranges=len(self._questions))
        self.unchanged = self._looker(memory)

    def _looker(self, memory: _Memory) -> Callable[[tuple[Any, ...]], bool]:
        """The quick look at ``memory``; where PyTorch's objects are not known, Python looks at them."""
        quick: Callable[[tuple[Any, ...]], bool] = built_in(_method(self._library.addresses["tw_unchanged"]), memory)
        return quick if self._layout is not None else lambda args: self._identity(args) == self._seen and quick(args)

    def _start_pages(self) -> None:
        """Have the system remember writes to the weights' pages, as far as it can."""
        tracker = page_tracker()
        self._ranges = []
        if tracker is None:
            return
        for wide in page_ranges(self._spans, mmap.PAGESIZE, GAP_BYTES):
            inside = [s for s in self._spans if wide[0] <= s[0] < wide[1]]
            narrow = [wide] if tracker.register(wide) else page_ranges(inside, mmap.PAGESIZE)
            self._ranges += [r for r in narrow if r == wide or tracker.register(r)]
        watched = [s for s in self._spans if any(a <= s[0] and s[1] <= b for a, b in self._ranges)]
        self._protect(page_ranges(watched, mmap.PAGESIZE))

    def _fill_pages(self) -> None:
        """Take what the system says of the ranges now. What was written already is compared in each call."""
        tracker = page_tracker()
        self._questions, self._answers, self._rooms = self._questions[:0], [], []
        if tracker is None or not self._ranges:
            return
        try:
            self._answers = [tracker.written(r) for r in self._ranges]
        except OSError:
            self._ranges = []
            return
        found = [(int(a), int(b)) for answer in self._answers for a, b, _ in answer]
        self._hot_pages |= set(self._pages[_lie_in(self._pages, found)].tolist())
        self._rooms = [np.empty((len(answer) + 1, 3), np.uint64) for answer in self._answers]
        rows = [
            [*question(r, room), answer.ctypes.data, len(answer)]
            for r, room, answer in zip(self._ranges, self._rooms, self._answers, strict=True)
        ]
        self._questions = np.array(rows, np.uint64)

    def _first_changed(self, pieces: Array) -> int:
        return self._call("tw_first_changed", np.ascontiguousarray(pieces))

    def _call(self, name: str, pieces: Array) -> int:
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(self._library.addresses[name])
        return int(function(pieces.ctypes.data, len(pieces)))

    def _get(self, name: str) -> int:
        return int(self._fields[_FIELDS.index(name)])

    def _set(self, **values: int) -> None:
        for name, value in values.items():
            self._fields[_FIELDS.index(name)] = value


_live: weakref.WeakSet[Watch] = weakref.WeakSet()


@in_forked_child
def _in_child() -> None:
    forget_pages()
    for watch in list(_live):
        watch.forget_pages()


def _at_positions(tensors: Sequence[tuple[int, Any]]) -> list[Any]:
    found: list[Any] = [None] * (max(i for i, _ in tensors) + 1)
    for i, t in tensors:
        found[i] = t
    return found


def _held(tensors: Sequence[tuple[int, Any]]) -> list[Any]:
    """Other names of tensors' memory: it stays while they live, also where a thread gives a tensor other memory."""
    return [t.detach() for _, t in tensors]


def _lie_in(pages: Array, ranges: Sequence[Range]) -> Array:
    """Which of some page numbers lie in ranges of addresses?"""
    whole = np.array(page_ranges(ranges, mmap.PAGESIZE), np.int64).reshape(-1, 2) // mmap.PAGESIZE
    if not len(whole):
        return np.zeros(len(pages), np.bool_)
    at = np.searchsorted(whole[:, 0], pages, "right") - 1
    inside: Array = (at >= 0) & (pages < whole[at, 1])
    return inside


def _span(tensor: Any) -> Range:
    """From a tensor's first element to its last; what else lies between is looked at, too."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _pieces(spans: Sequence[Range]) -> Array:
    """Address, bytes and room for a digest of each piece; none crosses a page's border."""
    parts = [np.empty((0, 3), np.int64)]
    for start, end in spans:
        cuts = np.arange(start - start % PIECE_BYTES, end + PIECE_BYTES, PIECE_BYTES, dtype=np.int64).clip(start, end)
        firsts, n_bytes = cuts[:-1], np.diff(cuts)
        rows = np.stack([firsts, n_bytes, np.zeros_like(firsts)], 1)
        parts.append(rows[n_bytes > 0])
    return np.ascontiguousarray(np.concatenate(parts))


def _words(tensors: Sequence[Any]) -> Array:
    """Address, mask and content of the words that are compared in each call."""
    found: dict[int, int] = {}
    for tensor in tensors:
        start, end = _span(tensor)
        if end - start <= WHOLE_WORDS * WORD_BYTES:
            addresses = set(range(start - start % WORD_BYTES, end, WORD_BYTES))
        else:
            addresses = {a - a % WORD_BYTES for a in _telling(tensor)}
        for at in sorted(addresses):
            first, last = max(start - at, 0), min(end - at, WORD_BYTES)
            found[at] = found.get(at, 0) | ((1 << 8 * last) - (1 << 8 * first))
    rows = [(at, mask, ctypes.c_uint64.from_address(at).value & mask) for at, mask in found.items()]
    return np.array(rows, np.uint64).reshape(-1, 3)


def _telling(tensor: Any) -> list[int]:
    """Addresses of elements that a write to the tensor is likely to change."""
    torch = sys.modules["torch"]
    with torch.no_grad():
        plain = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
        elements = plain.resolve_neg().reshape(-1)
        elements = elements.to(torch.float64 if plain.element_size() == 8 else torch.float32)
        step = -(-len(elements) // PRUNED_AMONG)
        some = elements[::step].abs()
        at = [
            int(elements.argmax()),
            int(elements.argmin()),
            step * int(some.masked_fill(some == 0, torch.inf).argmin()),
        ]
    at += np.linspace(0, len(elements) - 1, SPREAD + 2).astype(np.int64).tolist()
    parts = 2 if tensor.is_complex() else 1
    steps = [np.unravel_index(k // parts, tuple(tensor.shape)) for k in at]
    width = tensor.element_size()
    first: int = tensor.data_ptr()
    places = [first + width * int(np.dot(s, tensor.stride())) for s in steps]
    return [p + k % parts * (width // parts) for p, k in zip(places, at, strict=True)]


def _weight(layout: TensorLayout, position: int, tensor: Any) -> tuple[int, ...]:
    storage = tensor.untyped_storage()
    counter = ctypes.c_uint64.from_address(tensor._cdata + layout.counter).value
    return (
        position, id(tensor), tensor._cdata, storage._cdata, tensor.storage_offset(), storage.data_ptr(), counter,
        tensor._version,
    )  # fmt: skip


@once
def _code() -> tuple[LinkedLibrary, TensorLayout | None]:
    layout = tensor_layout()
    text = watch_ir(layout or TensorLayout(0, 0, 0, 0, 0, 0, 0), tuple.__basicsize__)
    symbols = {name: ctypes.c_void_p.in_dll(ctypes.pythonapi, name) for name in PYTHON_SYMBOLS}
    imports = {name: ctypes.addressof(symbol) for name, symbol in symbols.items()}
    library = link_text("watch", text, ("tw_unchanged", "tw_digests", "tw_first_changed"), imports)
    library.keep_forever()
    return library, layout


@once
def _method(address: int) -> MethodDef:
    return MethodDef(b"tw_unchanged", address, ONE_ARGUMENT, None)
