"""How a long call notices Ctrl-C, as LLVM IR text behind the thread pool's.

In: nothing. Out: text that needs ``@now`` of ``pool`` and ``PYTHON_SYMBOLS``. Not its business: where a program asks
(``codegen.cpu.program``), what becomes of the exception (``model``, ``entry_ir``).

``i32 tw_poll(ptr due)`` is called between two kernels; ``due`` is a word of the call's own that begins with 0. The
signal's handler in C has only left a note in the interpreter, and that can't be read without the interpreter's lock. So
in the main thread, the only one that runs Python's handlers, and every tenth of a second, this takes the lock and lets
them run. Where one raises, the exception is kept, the program returns at once, and whoever called it lets
``tw_stopped`` raise it. Anywhere else it costs a comparison.
``i32 tw_poll_kernel()`` is the same for a kernel that takes long; what it said then ``i32 tw_kernel_stopped()`` says to
the rest of the kernel and to the program, without a look at the clock.
"""

from __future__ import annotations

import platform
import string

from tilewright.runtime.cpu.float_mode import FloatMode

PYTHON_SYMBOLS = (
    "PyThread_get_thread_ident", "PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch",
    "PyErr_Restore",
)  # fmt: skip
EXPORTS = ("tw_poll", "tw_poll_kernel", "tw_kernel_stopped", "tw_poll_main", "tw_stopped")
STOPPED = -1
"""What a program returns that was stopped."""
EVERY_NS = 100_000_000


def has_python_symbols() -> bool:
    """Can native code call the interpreter?"""
    return platform.python_implementation() == "CPython"


def stop_ir(mode: FloatMode) -> str:
    """The text for this interpreter; where it can't be called, nothing is ever stopped.

    Handlers run with denormal numbers, whatever the program that asks does with them. Of ``mode`` the functions are
    declared elsewhere.
    """
    if not has_python_symbols():
        return _NEVER
    whole, back = mode.switched(flushes=False), mode.back()
    return _IR.substitute(every=EVERY_NS, stopped=STOPPED, whole=whole, back=back)


_IR = string.Template(r"""
@main_thread = internal global i64 0
@stopped = internal global [3 x ptr] zeroinitializer
@kernel_due = internal global i64 0
declare i64 @PyThread_get_thread_ident()
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)

define i32 @tw_poll(ptr %due) {
entry:
  %main = load atomic i64, ptr @main_thread monotonic, align 8
  %me = call i64 @PyThread_get_thread_ident()
  %is_main = icmp eq i64 %main, %me
  br i1 %is_main, label %look, label %go
look:
  %time = call i64 @now()
  %limit = load i64, ptr %due
  %is_first = icmp eq i64 %limit, 0
  br i1 %is_first, label %later, label %compare
compare:
  %is_early = icmp slt i64 %time, %limit
  br i1 %is_early, label %go, label %ask
ask:
${whole}  %state = call i32 @PyGILState_Ensure()
  %code = call i32 @PyErr_CheckSignals()
  %is_raised = icmp ne i32 %code, 0
  br i1 %is_raised, label %keep, label %let_go
keep:
  %value_p = getelementptr ptr, ptr @stopped, i64 1
  %trace_p = getelementptr ptr, ptr @stopped, i64 2
  call void @PyErr_Fetch(ptr @stopped, ptr %value_p, ptr %trace_p)
  br label %let_go
let_go:
  call void @PyGILState_Release(i32 %state)
${back}  %end = call i64 @now()
  br label %later
later:
  %from = phi i64 [ %time, %look ], [ %end, %let_go ]
  %answer = phi i32 [ 0, %look ], [ %code, %let_go ]
  %next = add i64 %from, $every
  store i64 %next, ptr %due
  ret i32 %answer
go:
  ret i32 0
}

; Only the main thread stops, and what it keeps is raised before it begins anything else.
define i32 @tw_kernel_stopped() {
entry:
  %main = load atomic i64, ptr @main_thread monotonic, align 8
  %me = call i64 @PyThread_get_thread_ident()
  %is_main = icmp eq i64 %main, %me
  br i1 %is_main, label %look, label %go
look:
  %kept = load ptr, ptr @stopped
  %is_stopped = icmp ne ptr %kept, null
  %answer = select i1 %is_stopped, i32 $stopped, i32 0
  ret i32 %answer
go:
  ret i32 0
}

define i32 @tw_poll_kernel() {
entry:
  %known = call i32 @tw_kernel_stopped()
  %is_stopped = icmp ne i32 %known, 0
  br i1 %is_stopped, label %leave, label %ask
ask:
  %answer = call i32 @tw_poll(ptr @kernel_due)
  ret i32 %answer
leave:
  ret i32 $stopped
}

; Raise what was kept; for whoever holds the interpreter's lock. Only the main thread keeps anything.
define ptr @tw_stopped() {
  %type = load ptr, ptr @stopped
  %value = load ptr, ptr getelementptr (ptr, ptr @stopped, i64 1)
  %trace = load ptr, ptr getelementptr (ptr, ptr @stopped, i64 2)
  store [3 x ptr] zeroinitializer, ptr @stopped
  call void @PyErr_Restore(ptr %type, ptr %value, ptr %trace)
  ret ptr null
}

define void @tw_poll_main(i64 %thread) {
  store atomic i64 %thread, ptr @main_thread monotonic, align 8
  ret void
}
""")

_NEVER = """
define i32 @tw_poll(ptr %due) {
  ret i32 0
}
define i32 @tw_poll_kernel() {
  ret i32 0
}
define i32 @tw_kernel_stopped() {
  ret i32 0
}
define ptr @tw_stopped() {
  ret ptr null
}
define void @tw_poll_main(i64 %thread) {
  ret void
}
"""
