"""A model's call in native code, as LLVM IR text: arguments in, kernels run, results out, in half a microsecond.

In: the few numbers that differ between builds of Python. Out: the text of one module, which ``entry`` links with the
functions of CPython that it calls. Not its business: anything but the common case, for which the answer is None.

``tw_call`` is a ``PyCFunction`` of ``METH_FASTCALL``. Its self is a bytearray, the memory of a ``%call_t``, which
one call has at a time: the interpreter's lock is held wherever ``busy`` is read or set. The arguments must be what the
call was prepared for, exactly: type, dtype, shape, contiguous, aligned.

* NumPy arrays are read as NumPy's C API lets every extension read them (``PyArrayObject_fields`` in ``ndarraytypes.h``,
  the same in NumPy 1 and 2).
* PyTorch's tensors are read and made by functions that ``torch.Tensor`` hands out for this, ``DLPackExchangeAPI`` of
  DLPack 1.3 (``dlpack.h``). What these tell does not say whether a tensor is to be negated, so that is asked, nor how
  long its storage is, so that is read where PyTorch keeps it (``tensor_layout``).
"""

from __future__ import annotations

import string

PYTHON_SYMBOLS = (
    "PyByteArray_AsString", "PyObject_Vectorcall", "PyObject_VectorcallMethod", "PyEval_SaveThread",
    "PyEval_RestoreThread", "PyTuple_New", "PyTuple_SetItem", "PyErr_Clear", "Py_IncRef", "Py_DecRef",
    "_Py_NoneStruct", "_Py_FalseStruct",
)  # fmt: skip
"""What the module takes from the interpreter."""


def entry_ir(head: int) -> str:
    """The text for an interpreter whose objects begin with ``head`` bytes, the last of which are their type."""
    return _IR.substitute(
        type=head - 8, data=head, rank=head + 8, dims=head + 16, dtype=head + 40, flags=head + 48
    )  # fmt: skip


_IR = string.Template(r"""
; run, weights, arena, table of arguments, table of dimensions, what that holds before a call, inputs, outputs, results,
; name "is_neg", functions of DLPackExchangeAPI: allocator, to_py_object, dltensor_from_py_object;
; numbers of inputs, outputs, dimensions; threads, busy; where a tensor has its TensorImpl, where that has its
; StorageImpl, and where that has its memory and how long it is
%call_t = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64, i64, i64, i32, i32, [4 x i64] }

; dlpack.h: data; device's type and number, rank, dtype; shape, strides, offset in bytes
%dltensor_t = type { ptr, i32, i32, i32, i32, ptr, ptr, i64 }

; dlpack.h: version, context, deleter, flags, tensor
%managed_t = type { i64, ptr, ptr, i64, %dltensor_t }

; A tensor as it must be. Type, another type that will do, NumPy's dtype or null for PyTorch, alignment - 1; what makes
; a new one, null for the allocator, and its two arguments; DLPack's description; bytes of all elements
%tensor_t = type { ptr, ptr, ptr, i64, ptr, [2 x ptr], %dltensor_t, i64 }

@_Py_NoneStruct = external global i8
@_Py_FalseStruct = external global i8
declare ptr @PyByteArray_AsString(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_VectorcallMethod(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @tw_stopped()

define internal i1 @same_shape(ptr %found, ptr %wanted, i32 %rank) {
entry:
  %n = sext i32 %rank to i64
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %look]
  %is_end = icmp eq i64 %k, %n
  br i1 %is_end, label %out, label %look
look:
  %found_p = getelementptr i64, ptr %found, i64 %k
  %wanted_p = getelementptr i64, ptr %wanted, i64 %k
  %a = load i64, ptr %found_p
  %b = load i64, ptr %wanted_p
  %k1 = add i64 %k, 1
  %same = icmp eq i64 %a, %b
  br i1 %same, label %next, label %out
out:
  ret i1 %is_end
}

; Do the elements lie one behind the other? For a tensor of two or more elements.
define internal i1 @is_dense(ptr %shape, ptr %strides, i32 %rank) {
entry:
  %n = sext i32 %rank to i64
  br label %next
next:
  %k = phi i64 [%n, %entry], [%k1, %step]
  %dense = phi i64 [1, %entry], [%dense1, %step]
  %is_end = icmp eq i64 %k, 0
  br i1 %is_end, label %out, label %look
look:
  %k1 = add i64 %k, -1
  %shape_p = getelementptr i64, ptr %shape, i64 %k1
  %stride_p = getelementptr i64, ptr %strides, i64 %k1
  %size = load i64, ptr %shape_p
  %stride = load i64, ptr %stride_p
  %fits = icmp eq i64 %stride, %dense
  %is_one = icmp eq i64 %size, 1
  %fine = or i1 %fits, %is_one
  br i1 %fine, label %step, label %out
step:
  %dense1 = mul i64 %dense, %size
  br label %next
out:
  ret i1 %is_end
}

; Where the elements of a NumPy array lie, 0 unless it is as wanted. The flags are NPY_ARRAY_C_CONTIGUOUS and _ALIGNED.
define internal i64 @array(ptr %value, ptr %want) {
  %dtype_p = getelementptr i8, ptr %value, i64 $dtype
  %dtype = load ptr, ptr %dtype_p
  %wanted_dtype_p = getelementptr %tensor_t, ptr %want, i64 0, i32 2
  %wanted_dtype = load ptr, ptr %wanted_dtype_p
  %is_dtype = icmp eq ptr %dtype, %wanted_dtype
  %flags_p = getelementptr i8, ptr %value, i64 $flags
  %flags = load i32, ptr %flags_p
  %flags_set = and i32 %flags, 257
  %is_plain = icmp eq i32 %flags_set, 257
  %rank_p = getelementptr i8, ptr %value, i64 $rank
  %rank = load i32, ptr %rank_p
  %wanted_rank_p = getelementptr %tensor_t, ptr %want, i64 0, i32 6, i32 3
  %wanted_rank = load i32, ptr %wanted_rank_p
  %is_rank = icmp eq i32 %rank, %wanted_rank
  %fine0 = and i1 %is_dtype, %is_plain
  %fine = and i1 %fine0, %is_rank
  br i1 %fine, label %look, label %no
look:
  %shape_p = getelementptr i8, ptr %value, i64 $dims
  %shape = load ptr, ptr %shape_p
  %wanted_shape_p = getelementptr %tensor_t, ptr %want, i64 0, i32 6, i32 5
  %wanted_shape = load ptr, ptr %wanted_shape_p
  %is_shape = call i1 @same_shape(ptr %shape, ptr %wanted_shape, i32 %rank)
  br i1 %is_shape, label %yes, label %no
yes:
  %data_p = getelementptr i8, ptr %value, i64 $data
  %data = load i64, ptr %data_p
  ret i64 %data
no:
  ret i64 0
}

; Does a PyTorch tensor's storage reach as far as its elements do, from address on? DLPack doesn't tell how long it is.
define internal i1 @has_memory(ptr %call, ptr %value, i64 %address, ptr %want) {
  %impl_at_p = getelementptr %call_t, ptr %call, i64 0, i32 18, i64 0
  %impl_at = load i64, ptr %impl_at_p
  %impl_p = getelementptr i8, ptr %value, i64 %impl_at
  %impl = load ptr, ptr %impl_p
  %storage_at_p = getelementptr %call_t, ptr %call, i64 0, i32 18, i64 1
  %storage_at = load i64, ptr %storage_at_p
  %storage_p = getelementptr i8, ptr %impl, i64 %storage_at
  %storage = load ptr, ptr %storage_p
  %has_storage = icmp ne ptr %storage, null
  br i1 %has_storage, label %look, label %no
look:
  %data_at_p = getelementptr %call_t, ptr %call, i64 0, i32 18, i64 2
  %data_at = load i64, ptr %data_at_p
  %data_p = getelementptr i8, ptr %storage, i64 %data_at
  %data = load i64, ptr %data_p
  %n_bytes_at_p = getelementptr %call_t, ptr %call, i64 0, i32 18, i64 3
  %n_bytes_at = load i64, ptr %n_bytes_at_p
  %n_bytes_p = getelementptr i8, ptr %storage, i64 %n_bytes_at
  %n_bytes = load i64, ptr %n_bytes_p
  %end = add i64 %data, %n_bytes
  %wanted_p = getelementptr %tensor_t, ptr %want, i64 0, i32 7
  %wanted = load i64, ptr %wanted_p
  %last = add i64 %address, %wanted
  %fits = icmp ule i64 %last, %end
  ret i1 %fits
no:
  ret i1 false
}

; The same as array for a PyTorch tensor, on device 1, the CPU.
define internal i64 @tensor(ptr %call, ptr %value, ptr %want) {
  %found = alloca %dltensor_t
  %owned = alloca ptr
  %read_p = getelementptr %call_t, ptr %call, i64 0, i32 12
  %read = load ptr, ptr %read_p
  %code = call i32 %read(ptr %value, ptr %found)
  %is_read = icmp eq i32 %code, 0
  br i1 %is_read, label %compare, label %failed
compare:
  %device_p = getelementptr %dltensor_t, ptr %found, i64 0, i32 1
  %device = load i32, ptr %device_p
  %rank_p = getelementptr %dltensor_t, ptr %found, i64 0, i32 3
  %rank = load i32, ptr %rank_p
  %dtype_p = getelementptr %dltensor_t, ptr %found, i64 0, i32 4
  %dtype = load i32, ptr %dtype_p
  %wanted_rank_p = getelementptr %tensor_t, ptr %want, i64 0, i32 6, i32 3
  %wanted_rank = load i32, ptr %wanted_rank_p
  %wanted_dtype_p = getelementptr %tensor_t, ptr %want, i64 0, i32 6, i32 4
  %wanted_dtype = load i32, ptr %wanted_dtype_p
  %is_cpu = icmp eq i32 %device, 1
  %is_rank = icmp eq i32 %rank, %wanted_rank
  %is_dtype = icmp eq i32 %dtype, %wanted_dtype
  %fine0 = and i1 %is_cpu, %is_rank
  %fine = and i1 %fine0, %is_dtype
  br i1 %fine, label %look, label %no
look:
  %shape_p = getelementptr %dltensor_t, ptr %found, i64 0, i32 5
  %shape = load ptr, ptr %shape_p
  %strides_p = getelementptr %dltensor_t, ptr %found, i64 0, i32 6
  %strides = load ptr, ptr %strides_p
  %wanted_shape_p = getelementptr %tensor_t, ptr %want, i64 0, i32 6, i32 5
  %wanted_shape = load ptr, ptr %wanted_shape_p
  %is_shape = call i1 @same_shape(ptr %shape, ptr %wanted_shape, i32 %rank)
  %is_dense = call i1 @is_dense(ptr %shape, ptr %strides, i32 %rank)
  %is_plain = and i1 %is_shape, %is_dense
  br i1 %is_plain, label %ask, label %no
ask:
  store ptr %value, ptr %owned
  %name_p = getelementptr %call_t, ptr %call, i64 0, i32 9
  %name = load ptr, ptr %name_p
  %is_neg = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %owned, i64 1, ptr null)
  %raised = icmp eq ptr %is_neg, null
  br i1 %raised, label %failed, label %asked
asked:
  call void @Py_DecRef(ptr %is_neg)  ; True and False never die
  %is_itself = icmp eq ptr %is_neg, @_Py_FalseStruct
  br i1 %is_itself, label %place, label %no
place:
  %data = load i64, ptr %found
  %offset_p = getelementptr %dltensor_t, ptr %found, i64 0, i32 7
  %offset = load i64, ptr %offset_p
  %address = add i64 %data, %offset
  %mask_p = getelementptr %tensor_t, ptr %want, i64 0, i32 3
  %mask = load i64, ptr %mask_p
  %odd = and i64 %address, %mask
  %is_aligned = icmp eq i64 %odd, 0
  %has_memory = call i1 @has_memory(ptr %call, ptr %value, i64 %address, ptr %want)
  %is_fine = and i1 %is_aligned, %has_memory
  br i1 %is_fine, label %yes, label %no
yes:
  ret i64 %address
failed:
  call void @PyErr_Clear()
  ret i64 0
no:
  ret i64 0
}

define internal i64 @address(ptr %call, ptr %value, ptr %want) {
  %type_p = getelementptr i8, ptr %value, i64 $type
  %type = load ptr, ptr %type_p
  %wanted = load ptr, ptr %want
  %other_p = getelementptr %tensor_t, ptr %want, i64 0, i32 1
  %other = load ptr, ptr %other_p
  %is_type = icmp eq ptr %type, %wanted
  %is_other = icmp eq ptr %type, %other
  %fine = or i1 %is_type, %is_other
  br i1 %fine, label %look, label %no
look:
  %dtype_p = getelementptr %tensor_t, ptr %want, i64 0, i32 2
  %dtype = load ptr, ptr %dtype_p
  %is_tensor = icmp eq ptr %dtype, null
  br i1 %is_tensor, label %tensor, label %array
tensor:
  %t = call i64 @tensor(ptr %call, ptr %value, ptr %want)
  ret i64 %t
array:
  %a = call i64 @array(ptr %value, ptr %want)
  ret i64 %a
no:
  ret i64 0
}

; The allocator tells through this what went wrong. It goes without saying: the other way of calling meets it again.
define internal void @ignore(ptr %context, ptr %kind, ptr %message) {
  ret void
}

; Let go of the first results. Those of the allocator are no objects yet.
define internal void @drop(ptr %call, i64 %n) {
entry:
  %outputs_p = getelementptr %call_t, ptr %call, i64 0, i32 7
  %outputs = load ptr, ptr %outputs_p
  %results_p = getelementptr %call_t, ptr %call, i64 0, i32 8
  %results = load ptr, ptr %results_p
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %dropped]
  %is_end = icmp eq i64 %k, %n
  br i1 %is_end, label %out, label %look
look:
  %k1 = add i64 %k, 1
  %result_p = getelementptr ptr, ptr %results, i64 %k
  %result = load ptr, ptr %result_p
  %maker_p = getelementptr %tensor_t, ptr %outputs, i64 %k, i32 4
  %maker = load ptr, ptr %maker_p
  %is_managed = icmp eq ptr %maker, null
  br i1 %is_managed, label %managed, label %object
managed:
  %deleter_p = getelementptr %managed_t, ptr %result, i64 0, i32 2
  %deleter = load ptr, ptr %deleter_p
  call void %deleter(ptr %result)
  br label %dropped
object:
  call void @Py_DecRef(ptr %result)
  br label %dropped
dropped:
  br label %next
out:
  ret void
}

define ptr @tw_call(ptr %self, ptr %given, i64 %n_given) {
entry:
  %managed_at = alloca ptr
  %call = call ptr @PyByteArray_AsString(ptr %self)
  %busy_p = getelementptr %call_t, ptr %call, i64 0, i32 17
  %busy = load i32, ptr %busy_p
  %n_inputs_p = getelementptr %call_t, ptr %call, i64 0, i32 13
  %n_inputs = load i64, ptr %n_inputs_p
  %is_free = icmp eq i32 %busy, 0
  %is_full = icmp eq i64 %n_given, %n_inputs
  %fine = and i1 %is_free, %is_full
  br i1 %fine, label %take, label %decline
take:
  store i32 1, ptr %busy_p
  %table_p = getelementptr %call_t, ptr %call, i64 0, i32 3
  %table = load ptr, ptr %table_p
  %inputs_p = getelementptr %call_t, ptr %call, i64 0, i32 6
  %inputs = load ptr, ptr %inputs_p
  %outputs_p = getelementptr %call_t, ptr %call, i64 0, i32 7
  %outputs = load ptr, ptr %outputs_p
  %results_p = getelementptr %call_t, ptr %call, i64 0, i32 8
  %results = load ptr, ptr %results_p
  %n_outputs_p = getelementptr %call_t, ptr %call, i64 0, i32 14
  %n_outputs = load i64, ptr %n_outputs_p
  br label %next_input

next_input:
  %i = phi i64 [0, %take], [%i1, %read]
  %all_read = icmp eq i64 %i, %n_inputs
  br i1 %all_read, label %next_output, label %input
input:
  %i1 = add i64 %i, 1
  %value_p = getelementptr ptr, ptr %given, i64 %i
  %value = load ptr, ptr %value_p
  %want = getelementptr %tensor_t, ptr %inputs, i64 %i
  %place = call i64 @address(ptr %call, ptr %value, ptr %want)
  %is_wrong = icmp eq i64 %place, 0
  br i1 %is_wrong, label %release, label %read
read:
  %slot = getelementptr i64, ptr %table, i64 %i
  store i64 %place, ptr %slot
  br label %next_input

next_output:
  %o = phi i64 [0, %next_input], [%o1, %made]
  %all_made = icmp eq i64 %o, %n_outputs
  br i1 %all_made, label %go, label %output
output:
  %o1 = add i64 %o, 1
  %like = getelementptr %tensor_t, ptr %outputs, i64 %o
  %result_p = getelementptr ptr, ptr %results, i64 %o
  %maker_p = getelementptr %tensor_t, ptr %like, i64 0, i32 4
  %maker = load ptr, ptr %maker_p
  %is_managed = icmp eq ptr %maker, null
  br i1 %is_managed, label %allocate, label %make
allocate:
  %allocator_p = getelementptr %call_t, ptr %call, i64 0, i32 10
  %allocator = load ptr, ptr %allocator_p
  %prototype = getelementptr %tensor_t, ptr %like, i64 0, i32 6
  %allocated = call i32 %allocator(ptr %prototype, ptr %managed_at, ptr null, ptr @ignore)
  %is_allocated = icmp eq i32 %allocated, 0
  br i1 %is_allocated, label %managed, label %give_up
managed:
  %managed_result = load ptr, ptr %managed_at
  store ptr %managed_result, ptr %result_p
  %memory_p = getelementptr %managed_t, ptr %managed_result, i64 0, i32 4
  %memory = load i64, ptr %memory_p
  %memory_offset_p = getelementptr %managed_t, ptr %managed_result, i64 0, i32 4, i32 7
  %memory_offset = load i64, ptr %memory_offset_p
  %managed_place = add i64 %memory, %memory_offset
  %is_empty = icmp eq i64 %managed_place, 0  ; one of PyTorch's modes makes all tensors without memory
  br i1 %is_empty, label %unfit, label %made
make:
  %maker_args = getelementptr %tensor_t, ptr %like, i64 0, i32 5
  %object = call ptr @PyObject_Vectorcall(ptr %maker, ptr %maker_args, i64 2, ptr null)
  %raised = icmp eq ptr %object, null
  br i1 %raised, label %raise, label %object_made
object_made:
  store ptr %object, ptr %result_p
  %object_place = call i64 @address(ptr %call, ptr %object, ptr %like)
  %is_unfit = icmp eq i64 %object_place, 0
  br i1 %is_unfit, label %unfit, label %made
made:
  %result_place = phi i64 [%managed_place, %managed], [%object_place, %object_made]
  %result_index = add i64 %n_inputs, %o
  %result_slot = getelementptr i64, ptr %table, i64 %result_index
  store i64 %result_place, ptr %result_slot
  br label %next_output

go:
  %dims_p = getelementptr %call_t, ptr %call, i64 0, i32 4
  %dims = load ptr, ptr %dims_p
  %start_p = getelementptr %call_t, ptr %call, i64 0, i32 5
  %start = load ptr, ptr %start_p
  %n_dims_p = getelementptr %call_t, ptr %call, i64 0, i32 15
  %n_dims = load i64, ptr %n_dims_p
  %n_bytes = mul i64 %n_dims, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %dims, ptr %start, i64 %n_bytes, i1 false)
  %run = load ptr, ptr %call
  %weights_p = getelementptr %call_t, ptr %call, i64 0, i32 1
  %weights = load ptr, ptr %weights_p
  %arena_p = getelementptr %call_t, ptr %call, i64 0, i32 2
  %arena = load ptr, ptr %arena_p
  %threads_p = getelementptr %call_t, ptr %call, i64 0, i32 16
  %threads = load i32, ptr %threads_p
  %thread = call ptr @PyEval_SaveThread()
  %code = call i32 %run(ptr %table, ptr %dims, ptr %weights, ptr %arena, i32 %threads)
  call void @PyEval_RestoreThread(ptr %thread)
  %is_right = icmp eq i32 %code, 0
  br i1 %is_right, label %next_result, label %failed
failed:
  %is_stopped = icmp eq i32 %code, -1  ; a signal's handler raised
  br i1 %is_stopped, label %stopped, label %give_up_all
stopped:
  call void @drop(ptr %call, i64 %n_outputs)
  store i32 0, ptr %busy_p
  %nothing = call ptr @tw_stopped()
  ret ptr %nothing

next_result:
  %r = phi i64 [0, %go], [%r1, %wrapped]
  %all_wrapped = icmp eq i64 %r, %n_outputs
  br i1 %all_wrapped, label %hand_over, label %wrap
wrap:
  %r1 = add i64 %r, 1
  %wrap_p = getelementptr ptr, ptr %results, i64 %r
  %done_maker_p = getelementptr %tensor_t, ptr %outputs, i64 %r, i32 4
  %done_maker = load ptr, ptr %done_maker_p
  %is_object = icmp ne ptr %done_maker, null
  br i1 %is_object, label %wrapped, label %import
import:
  %to_import = load ptr, ptr %wrap_p
  %import_p = getelementptr %call_t, ptr %call, i64 0, i32 11
  %import_function = load ptr, ptr %import_p
  %imported = call i32 %import_function(ptr %to_import, ptr %wrap_p)
  %is_imported = icmp eq i32 %imported, 0
  br i1 %is_imported, label %wrapped, label %leak
wrapped:
  br label %next_result
leak:  ; there was no memory for an object: the exception says so, and what can't be told apart now is left
  store i32 0, ptr %busy_p
  ret ptr null

hand_over:
  %is_single = icmp eq i64 %n_outputs, 1
  br i1 %is_single, label %single, label %several
single:
  %only = load ptr, ptr %results
  store i32 0, ptr %busy_p
  ret ptr %only
several:
  %tuple = call ptr @PyTuple_New(i64 %n_outputs)
  %no_tuple = icmp eq ptr %tuple, null
  br i1 %no_tuple, label %leak, label %next_item
next_item:
  %t = phi i64 [0, %several], [%t1, %item]
  %all_set = icmp eq i64 %t, %n_outputs
  br i1 %all_set, label %whole, label %item
item:
  %t1 = add i64 %t, 1
  %item_p = getelementptr ptr, ptr %results, i64 %t
  %item_value = load ptr, ptr %item_p
  call i32 @PyTuple_SetItem(ptr %tuple, i64 %t, ptr %item_value)
  br label %next_item
whole:
  store i32 0, ptr %busy_p
  ret ptr %tuple

raise:
  call void @drop(ptr %call, i64 %o)
  store i32 0, ptr %busy_p
  ret ptr null
unfit:
  call void @drop(ptr %call, i64 %o1)
  br label %release
give_up:
  call void @drop(ptr %call, i64 %o)
  br label %release
give_up_all:
  call void @drop(ptr %call, i64 %n_outputs)
  br label %release
release:
  store i32 0, ptr %busy_p
  br label %decline
decline:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
""")
