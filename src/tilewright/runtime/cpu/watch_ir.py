"""Whether weights are what they were, in native code, as LLVM IR text: about 2 us for 200 of them.

In: where a PyTorch tensor keeps what tells of its memory. Out: the text of one module, which ``watch`` links. Not its
business: which memory is looked at, and what a difference leads to.

``tw_unchanged`` is a ``PyCFunction`` of ``METH_O``: its self is a bytearray, the memory of a ``%watch_t``; its argument
is the tuple of a call's arguments. ``tw_digests`` fills in the digests of pieces of memory, ``tw_first_changed`` finds
the first piece with another digest.
"""

from __future__ import annotations

import string

from tilewright.runtime.plain import dataclass


@dataclass(frozen=True)
class TensorLayout:
    """Byte offsets in objects of PyTorch."""

    impl: int
    """In a tensor's Python object: its ``TensorImpl``."""
    storage: int
    """In that: the ``StorageImpl``."""
    offset: int
    """The storage offset."""
    counter: int
    """The version counter."""
    data: int
    """In a ``StorageImpl``: where its memory begins."""
    n_bytes: int
    """There, too: how long it is."""
    version: int
    """In a version counter: the number, of 32 bits."""


PYTHON_SYMBOLS = ("PyByteArray_AsString", "Py_IncRef", "_Py_TrueStruct", "_Py_FalseStruct")
"""What the module takes from the interpreter."""


def watch_ir(layout: TensorLayout, items: int) -> str:
    """The text; ``items`` is where a tuple keeps its items."""
    return _IR.substitute(vars(layout), items=items)


_IR = string.Template(r"""
; weights, words, pieces, ranges of pages, ioctl; the numbers of the first four; the piece to look at next; pagemap's
; file, the request PAGEMAP_SCAN; not 0 where something asks for a closer look; pieces to look at in each call, how many
%watch_t = type { ptr, ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, i64, i64, i64, ptr, i64 }
; position, object, TensorImpl, StorageImpl, storage offset, data, version counter, version
%weight_t = type { i64, ptr, ptr, ptr, i64, ptr, ptr, i64 }
; address, bits that belong to the weight, what they were
%word_t = type { ptr, i64, i64 }
; address, bytes, digest
%piece_t = type { ptr, i64, i64 }
; struct pm_scan_arg of linux/fs.h, whose sixth word is where answers go; the answer there was, how many regions it had
%range_t = type { [12 x i64], ptr, i64 }

@_Py_TrueStruct = external global i8
@_Py_FalseStruct = external global i8
declare ptr @PyByteArray_AsString(ptr)
declare void @Py_IncRef(ptr)
declare <8 x i64> @llvm.fshl.v8i64(<8 x i64>, <8 x i64>, <8 x i64>)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Eight sums of 64-bit words, turned by 5 bits between words, so that their order counts; then one number of the sums.
define internal i64 @digest(ptr %p, i64 %n) {
entry:
  %rest_block = alloca [64 x i8], align 64
  %full = and i64 %n, -64
  %rest = and i64 %n, 63
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %block]
  %sum = phi <8 x i64> [zeroinitializer, %entry], [%sum1, %block]
  %is_end = icmp eq i64 %k, %full
  br i1 %is_end, label %tail, label %block
block:
  %k1 = add i64 %k, 64
  %at = getelementptr i8, ptr %p, i64 %k
  %words = load <8 x i64>, ptr %at, align 1
  %turned = call <8 x i64> @llvm.fshl.v8i64(<8 x i64> %sum, <8 x i64> %sum, <8 x i64> splat (i64 5))
  %sum1 = add <8 x i64> %turned, %words
  br label %next
tail:
  %has_rest = icmp ne i64 %rest, 0
  br i1 %has_rest, label %last, label %fold
last:
  call void @llvm.memset.p0.i64(ptr %rest_block, i8 0, i64 64, i1 false)
  %rest_at = getelementptr i8, ptr %p, i64 %full
  call void @llvm.memcpy.p0.p0.i64(ptr %rest_block, ptr %rest_at, i64 %rest, i1 false)
  %rest_words = load <8 x i64>, ptr %rest_block
  %rest_turned = call <8 x i64> @llvm.fshl.v8i64(<8 x i64> %sum, <8 x i64> %sum, <8 x i64> splat (i64 5))
  %rest_sum = add <8 x i64> %rest_turned, %rest_words
  br label %fold
fold:
  %sums = phi <8 x i64> [%sum, %tail], [%rest_sum, %last]
  br label %lane
lane:
  %i = phi i64 [0, %fold], [%i1, %lane]
  %h = phi i64 [%n, %fold], [%h1, %lane]
  %i1 = add i64 %i, 1
  %one = extractelement <8 x i64> %sums, i64 %i
  %mixed = mul i64 %h, -7046029254386353131
  %h1 = add i64 %mixed, %one
  %done = icmp eq i64 %i1, 8
  br i1 %done, label %out, label %lane
out:
  ret i64 %h1
}

define internal i64 @piece_digest(ptr %piece) {
  %p = load ptr, ptr %piece
  %n_p = getelementptr %piece_t, ptr %piece, i64 0, i32 1
  %n = load i64, ptr %n_p
  %h = call i64 @digest(ptr %p, i64 %n)
  ret i64 %h
}

define void @tw_digests(ptr %pieces, i64 %n) {
entry:
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %look]
  %is_end = icmp sge i64 %k, %n
  br i1 %is_end, label %out, label %look
look:
  %k1 = add i64 %k, 1
  %piece = getelementptr %piece_t, ptr %pieces, i64 %k
  %h = call i64 @piece_digest(ptr %piece)
  %to = getelementptr %piece_t, ptr %piece, i64 0, i32 2
  store i64 %h, ptr %to
  br label %next
out:
  ret void
}

; The first piece with another digest, or n.
define i64 @tw_first_changed(ptr %pieces, i64 %n) {
entry:
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %look]
  %is_end = icmp sge i64 %k, %n
  br i1 %is_end, label %out, label %look
look:
  %k1 = add i64 %k, 1
  %piece = getelementptr %piece_t, ptr %pieces, i64 %k
  %h = call i64 @piece_digest(ptr %piece)
  %was_p = getelementptr %piece_t, ptr %piece, i64 0, i32 2
  %was = load i64, ptr %was_p
  %same = icmp eq i64 %h, %was
  br i1 %same, label %next, label %out
out:
  ret i64 %k
}

define internal i1 @same_tensor(ptr %weight, ptr %args) {
entry:
  %position = load i64, ptr %weight
  %item_p = getelementptr ptr, ptr %args, i64 %position
  %item = load ptr, ptr %item_p
  %object_p = getelementptr %weight_t, ptr %weight, i64 0, i32 1
  %object = load ptr, ptr %object_p
  %same_object = icmp eq ptr %item, %object
  br i1 %same_object, label %a, label %no
a:
  %impl_p = getelementptr %weight_t, ptr %weight, i64 0, i32 2
  %impl = load ptr, ptr %impl_p
  %found_impl_p = getelementptr i8, ptr %item, i64 $impl
  %found_impl = load ptr, ptr %found_impl_p
  %same_impl = icmp eq ptr %found_impl, %impl
  br i1 %same_impl, label %b, label %no
b:
  %storage_p = getelementptr %weight_t, ptr %weight, i64 0, i32 3
  %storage = load ptr, ptr %storage_p
  %found_storage_p = getelementptr i8, ptr %impl, i64 $storage
  %found_storage = load ptr, ptr %found_storage_p
  %same_storage = icmp eq ptr %found_storage, %storage
  %offset_p = getelementptr %weight_t, ptr %weight, i64 0, i32 4
  %offset = load i64, ptr %offset_p
  %found_offset_p = getelementptr i8, ptr %impl, i64 $offset
  %found_offset = load i64, ptr %found_offset_p
  %same_offset = icmp eq i64 %found_offset, %offset
  %counter_p = getelementptr %weight_t, ptr %weight, i64 0, i32 6
  %counter = load ptr, ptr %counter_p
  %found_counter_p = getelementptr i8, ptr %impl, i64 $counter
  %found_counter = load ptr, ptr %found_counter_p
  %same_counter = icmp eq ptr %found_counter, %counter
  %same0 = and i1 %same_storage, %same_offset
  %same1 = and i1 %same0, %same_counter
  br i1 %same1, label %c, label %no
c:
  %data_p = getelementptr %weight_t, ptr %weight, i64 0, i32 5
  %data = load ptr, ptr %data_p
  %found_data_p = getelementptr i8, ptr %storage, i64 $data
  %found_data = load ptr, ptr %found_data_p
  %same_data = icmp eq ptr %found_data, %data
  %version_p = getelementptr %weight_t, ptr %weight, i64 0, i32 7
  %version = load i64, ptr %version_p
  %found_version_p = getelementptr i8, ptr %counter, i64 $version
  %found_version_32 = load i32, ptr %found_version_p
  %found_version = zext i32 %found_version_32 to i64
  %same_version = icmp eq i64 %found_version, %version
  %same = and i1 %same_data, %same_version
  ret i1 %same
no:
  ret i1 false
}

define internal i1 @unchanged(ptr %watch, ptr %args) {
entry:
  %alarm_p = getelementptr %watch_t, ptr %watch, i64 0, i32 12
  %alarm = load i64, ptr %alarm_p
  %is_quiet = icmp eq i64 %alarm, 0
  br i1 %is_quiet, label %start, label %no
start:
  %weights = load ptr, ptr %watch
  %n_weights_p = getelementptr %watch_t, ptr %watch, i64 0, i32 5
  %n_weights = load i64, ptr %n_weights_p
  %words_p = getelementptr %watch_t, ptr %watch, i64 0, i32 1
  %words = load ptr, ptr %words_p
  %n_words_p = getelementptr %watch_t, ptr %watch, i64 0, i32 6
  %n_words = load i64, ptr %n_words_p
  br label %next_weight
next_weight:
  %w = phi i64 [0, %start], [%w1, %weight]
  %all_weights = icmp sge i64 %w, %n_weights
  br i1 %all_weights, label %next_word, label %weight
weight:
  %w1 = add i64 %w, 1
  %weight_p = getelementptr %weight_t, ptr %weights, i64 %w
  %is_same_tensor = call i1 @same_tensor(ptr %weight_p, ptr %args)
  br i1 %is_same_tensor, label %next_weight, label %no

next_word:  ; the memory is where it was, so its words can be read
  %d = phi i64 [0, %next_weight], [%d1, %word]
  %difference = phi i64 [0, %next_weight], [%difference1, %word]
  %all_words = icmp sge i64 %d, %n_words
  br i1 %all_words, label %compared, label %word
word:
  %d1 = add i64 %d, 1
  %word_p = getelementptr %word_t, ptr %words, i64 %d
  %word_at = load ptr, ptr %word_p
  %mask_p = getelementptr %word_t, ptr %word_p, i64 0, i32 1
  %mask = load i64, ptr %mask_p
  %was_p = getelementptr %word_t, ptr %word_p, i64 0, i32 2
  %was = load i64, ptr %was_p
  %is = load i64, ptr %word_at
  %masked = and i64 %is, %mask
  %differs = xor i64 %masked, %was
  %difference1 = or i64 %difference, %differs
  br label %next_word
compared:
  %is_same_words = icmp eq i64 %difference, 0
  br i1 %is_same_words, label %piece, label %no

piece:
  %n_pieces_p = getelementptr %watch_t, ptr %watch, i64 0, i32 7
  %n_pieces = load i64, ptr %n_pieces_p
  %turn_p = getelementptr %watch_t, ptr %watch, i64 0, i32 9
  %turn = load i64, ptr %turn_p
  %turn1 = add i64 %turn, 1
  %is_last = icmp sge i64 %turn1, %n_pieces
  %turn2 = select i1 %is_last, i64 0, i64 %turn1
  store i64 %turn2, ptr %turn_p
  %has_pieces = icmp sgt i64 %n_pieces, 0
  br i1 %has_pieces, label %look, label %pages
look:
  %pieces_p = getelementptr %watch_t, ptr %watch, i64 0, i32 2
  %pieces = load ptr, ptr %pieces_p
  %piece_p = getelementptr %piece_t, ptr %pieces, i64 %turn
  %changed_at = call i64 @tw_first_changed(ptr %piece_p, i64 1)
  %is_same_piece = icmp eq i64 %changed_at, 1
  br i1 %is_same_piece, label %pages, label %no

pages:
  %hot_p = getelementptr %watch_t, ptr %watch, i64 0, i32 13
  %hot = load ptr, ptr %hot_p
  %n_hot_p = getelementptr %watch_t, ptr %watch, i64 0, i32 14
  %n_hot = load i64, ptr %n_hot_p
  %hot_changed_at = call i64 @tw_first_changed(ptr %hot, i64 %n_hot)
  %is_same_hot = icmp eq i64 %hot_changed_at, %n_hot
  br i1 %is_same_hot, label %written, label %no
written:
  %ranges_p = getelementptr %watch_t, ptr %watch, i64 0, i32 3
  %ranges = load ptr, ptr %ranges_p
  %n_ranges_p = getelementptr %watch_t, ptr %watch, i64 0, i32 8
  %n_ranges = load i64, ptr %n_ranges_p
  %ioctl_p = getelementptr %watch_t, ptr %watch, i64 0, i32 4
  %ioctl = load ptr, ptr %ioctl_p
  %file_p = getelementptr %watch_t, ptr %watch, i64 0, i32 10
  %file_64 = load i64, ptr %file_p
  %file = trunc i64 %file_64 to i32
  %request_p = getelementptr %watch_t, ptr %watch, i64 0, i32 11
  %request = load i64, ptr %request_p
  br label %next_range
next_range:
  %r = phi i64 [0, %written], [%r1, %next_answer]
  %all_ranges = icmp sge i64 %r, %n_ranges
  br i1 %all_ranges, label %yes, label %range
range:
  %r1 = add i64 %r, 1
  %range_p = getelementptr %range_t, ptr %ranges, i64 %r
  %n_written = call i32 (i32, i64, ...) %ioctl(i32 %file, i64 %request, ptr %range_p)
  %n_found = sext i32 %n_written to i64
  %n_were_p = getelementptr %range_t, ptr %range_p, i64 0, i32 2
  %n_were = load i64, ptr %n_were_p
  %same_number = icmp eq i64 %n_found, %n_were
  br i1 %same_number, label %compare, label %no
compare:
  %found_p = getelementptr %range_t, ptr %range_p, i64 0, i32 0, i64 5
  %found = load ptr, ptr %found_p
  %were_p = getelementptr %range_t, ptr %range_p, i64 0, i32 1
  %were = load ptr, ptr %were_p
  %n_answer = mul i64 %n_found, 3
  br label %next_answer
next_answer:
  %e = phi i64 [0, %compare], [%e1, %answer]
  %all_answers = icmp sge i64 %e, %n_answer
  br i1 %all_answers, label %next_range, label %answer
answer:
  %e1 = add i64 %e, 1
  %new_p = getelementptr i64, ptr %found, i64 %e
  %new = load i64, ptr %new_p
  %old_p = getelementptr i64, ptr %were, i64 %e
  %old = load i64, ptr %old_p
  %same_answer = icmp eq i64 %new, %old
  br i1 %same_answer, label %next_answer, label %no

yes:
  ret i1 true
no:
  ret i1 false
}

define ptr @tw_unchanged(ptr %self, ptr %tuple) {
  %watch = call ptr @PyByteArray_AsString(ptr %self)
  %args = getelementptr i8, ptr %tuple, i64 $items
  %same = call i1 @unchanged(ptr %watch, ptr %args)
  %answer = select i1 %same, ptr @_Py_TrueStruct, ptr @_Py_FalseStruct
  call void @Py_IncRef(ptr %answer)
  ret ptr %answer
}
""")
