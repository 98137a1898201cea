"""A model's call from XLA's own run time, as LLVM IR text: buffers in, code run, an error or nothing out.

In: a CPU's float mode. Out: the text of one module, whose one function XLA calls as a custom call of its typed
foreign function interface (``xla/ffi/api/c_api.h``, which comes with jaxlib). Not its business: whether the buffers are
what the model was made for, which XLA's compiler has seen to (``integrations.jax.native``).

A call says by its only attribute, a number of 64 bits, where the ``%foreign_t`` of its model lies. Any number of calls
may run at once: one of them has the arena that belongs to the model, and every other takes memory of its own. XLA calls
with denormal numbers flushed, so they are counted again, and a model that flushes them says so itself.
"""

from __future__ import annotations

import string

from tilewright.runtime.cpu.float_mode import FloatMode
from tilewright.runtime.cpu.stop_ir import STOPPED

FAILED = "a function of tilewright.jax.jit failed; call it with arguments that are ready, and the error says why"
HALTED = "tilewright.jax.jit was stopped by a signal"
"""The texts of errors: of a model that reports a failure, and of one that a signal's handler stopped."""
API_VERSION = 0, 3


def foreign_ir(mode: FloatMode) -> str:
    """The module's text; its function is ``tw_foreign``."""
    major, minor = API_VERSION
    whole, back = mode.switched(flushes=False), mode.back()
    sizes = {"failed_size": len(FAILED) + 1, "halted_size": len(HALTED) + 1}
    return _IR.substitute(
        failed=FAILED, halted=HALTED, major=major, minor=minor, stopped=STOPPED, whole=whole, back=back,
        declared=mode.declared, **sizes,
    )  # fmt: skip


_IR = string.Template(r"""
; run, weights, arena, what the table of dimensions begins with; its length, bytes of the arena, calls that have ended
; well; threads, whether a call has the arena
%foreign_t = type { ptr, ptr, ptr, ptr, i64, i64, i64, i32, i32 }

; c_api.h, each type with its size and its extensions first: dtype, memory, rank and sizes; number of buffers, their
; kinds, buffers; the same of attributes, with names; a number's dtype and place
%buffer_t = type { i64, ptr, i32, ptr, i64, ptr }
%buffers_t = type { i64, ptr, i64, ptr, ptr }
%attributes_t = type { i64, ptr, i64, ptr, ptr, ptr }
%scalar_t = type { i32, ptr }
; functions of the interface, context, stage, arguments, results, attributes, what is awaited
%frame_t = type { i64, ptr, ptr, ptr, i32, %buffers_t, %buffers_t, %attributes_t, ptr }
; the interface's version and private part, and its first function, which makes an error
%version_t = type { i64, ptr, i32, i32 }
%api_t = type { i64, ptr, %version_t, ptr, ptr }
; an extension has its size, kind and follower first; the only kind asks for the version that is understood
%asked_t = type { i64, i32, ptr, ptr }
%metadata_t = type { i64, %version_t, i32, i64 }
; text and code of an error
%error_t = type { i64, ptr, ptr, i32 }

@failed = internal constant [$failed_size x i8] c"$failed\00"
@halted = internal constant [$halted_size x i8] c"$halted\00"
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
$declared
; The places of buffers, into a table.
define internal void @read(ptr %buffers, ptr %table) {
entry:
  %n_p = getelementptr %buffers_t, ptr %buffers, i64 0, i32 2
  %n = load i64, ptr %n_p
  %items_p = getelementptr %buffers_t, ptr %buffers, i64 0, i32 4
  %items = load ptr, ptr %items_p
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %item]
  %is_end = icmp eq i64 %k, %n
  br i1 %is_end, label %out, label %item
item:
  %k1 = add i64 %k, 1
  %item_p = getelementptr ptr, ptr %items, i64 %k
  %buffer = load ptr, ptr %item_p
  %data_p = getelementptr %buffer_t, ptr %buffer, i64 0, i32 3
  %data = load ptr, ptr %data_p
  %slot = getelementptr ptr, ptr %table, i64 %k
  store ptr %data, ptr %slot
  br label %next
out:
  ret void
}

define ptr @tw_foreign(ptr %frame) {
entry:
  %error = alloca %error_t
  %extension_p = getelementptr %frame_t, ptr %frame, i64 0, i32 1
  %extension = load ptr, ptr %extension_p
  %is_call = icmp eq ptr %extension, null
  br i1 %is_call, label %call, label %ask
ask:
  %metadata_p = getelementptr %asked_t, ptr %extension, i64 0, i32 3
  %metadata = load ptr, ptr %metadata_p
  %major_p = getelementptr %metadata_t, ptr %metadata, i64 0, i32 1, i32 2
  store i32 $major, ptr %major_p
  %minor_p = getelementptr %metadata_t, ptr %metadata, i64 0, i32 1, i32 3
  store i32 $minor, ptr %minor_p
  ret ptr null

call:
  %attributes_p = getelementptr %frame_t, ptr %frame, i64 0, i32 7, i32 5
  %attributes = load ptr, ptr %attributes_p
  %attribute = load ptr, ptr %attributes
  %number_p = getelementptr %scalar_t, ptr %attribute, i64 0, i32 1
  %number = load ptr, ptr %number_p
  %model = load ptr, ptr %number
  %inputs = getelementptr %frame_t, ptr %frame, i64 0, i32 5
  %outputs = getelementptr %frame_t, ptr %frame, i64 0, i32 6
  %n_inputs_p = getelementptr %buffers_t, ptr %inputs, i64 0, i32 2
  %n_inputs = load i64, ptr %n_inputs_p
  %n_outputs_p = getelementptr %buffers_t, ptr %outputs, i64 0, i32 2
  %n_outputs = load i64, ptr %n_outputs_p
  %n_slots = add i64 %n_inputs, %n_outputs
  %table = alloca ptr, i64 %n_slots
  %results = getelementptr ptr, ptr %table, i64 %n_inputs
  call void @read(ptr %inputs, ptr %table)
  call void @read(ptr %outputs, ptr %results)
  %start_p = getelementptr %foreign_t, ptr %model, i64 0, i32 3
  %start = load ptr, ptr %start_p
  %n_dims_p = getelementptr %foreign_t, ptr %model, i64 0, i32 4
  %n_dims = load i64, ptr %n_dims_p
  %dims = alloca i64, i64 %n_dims
  %dims_bytes = mul i64 %n_dims, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %dims, ptr %start, i64 %dims_bytes, i1 false)
  %busy_p = getelementptr %foreign_t, ptr %model, i64 0, i32 8
  %busy = atomicrmw xchg ptr %busy_p, i32 1 acquire
  %has_arena = icmp eq i32 %busy, 0
  br i1 %has_arena, label %own, label %take
own:
  %arena_p = getelementptr %foreign_t, ptr %model, i64 0, i32 2
  %arena = load ptr, ptr %arena_p
  br label %run
take:
  %wanted_p = getelementptr %foreign_t, ptr %model, i64 0, i32 5
  %wanted = load i64, ptr %wanted_p
  %with_edge = add i64 %wanted, 64
  %taken = call ptr @malloc(i64 %with_edge)
  %no_memory = icmp eq ptr %taken, null
  br i1 %no_memory, label %fail, label %align
align:
  %taken_at = ptrtoint ptr %taken to i64
  %beyond = add i64 %taken_at, 63
  %aligned = and i64 %beyond, -64
  %aligned_p = inttoptr i64 %aligned to ptr
  br label %run

run:
  %memory = phi ptr [%arena, %own], [%aligned_p, %align]
  %to_free = phi ptr [null, %own], [%taken, %align]
  %run_code = load ptr, ptr %model
  %weights_p = getelementptr %foreign_t, ptr %model, i64 0, i32 1
  %weights = load ptr, ptr %weights_p
  %threads_p = getelementptr %foreign_t, ptr %model, i64 0, i32 7
  %threads = load i32, ptr %threads_p
${whole}  %code = call i32 %run_code(ptr %table, ptr %dims, ptr %weights, ptr %memory, i32 %threads)
${back}  br i1 %has_arena, label %leave, label %let_go
leave:
  store atomic i32 0, ptr %busy_p release, align 4
  br label %ended
let_go:
  call void @free(ptr %to_free)
  br label %ended
ended:
  %is_right = icmp eq i32 %code, 0
  br i1 %is_right, label %count, label %fail
count:
  %n_ended_p = getelementptr %foreign_t, ptr %model, i64 0, i32 6
  %before = atomicrmw add ptr %n_ended_p, i64 1 release
  ret ptr null

fail:
  %how = phi i32 [1, %take], [%code, %ended]
  %is_stopped = icmp eq i32 %how, $stopped
  %text = select i1 %is_stopped, ptr @halted, ptr @failed
  %size_p = getelementptr %error_t, ptr %error, i64 0, i32 0
  store i64 32, ptr %size_p
  %none_p = getelementptr %error_t, ptr %error, i64 0, i32 1
  store ptr null, ptr %none_p
  %text_p = getelementptr %error_t, ptr %error, i64 0, i32 2
  store ptr %text, ptr %text_p
  %code_p = getelementptr %error_t, ptr %error, i64 0, i32 3
  store i32 13, ptr %code_p  ; INTERNAL
  %api_p = getelementptr %frame_t, ptr %frame, i64 0, i32 2
  %api = load ptr, ptr %api_p
  %make_p = getelementptr %api_t, ptr %api, i64 0, i32 4
  %make = load ptr, ptr %make_p
  %made = call ptr %make(ptr %error)
  ret ptr %made
}
""")
