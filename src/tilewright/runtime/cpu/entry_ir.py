"""A model's call in native code, as LLVM IR text: arguments in, kernels run, results out, in half a microsecond.

In: the few numbers that differ between builds of Python. Out: the text of one module, which ``entry`` links with the
functions of CPython that it calls. Not its business: anything but the common case, for which the answer is None.

``tw_call`` is a ``PyCFunction`` of ``METH_FASTCALL``. Its self is a bytearray, the memory of a ``%call_t``, which
one call has at a time: the interpreter's lock is held wherever ``busy`` is read or set. The arguments must be what the
call was prepared for, exactly: type, dtype, shape, contiguous, aligned.

* NumPy arrays are read as NumPy's C API lets every extension read them (``PyArrayObject_fields`` in ``ndarraytypes.h``,
  the same in NumPy 1 and 2).
* PyTorch's tensors are read by a function that ``torch.Tensor`` hands out for this, in ``DLPackExchangeAPI`` of DLPack
  1.3 (``dlpack.h``). What it tells does not say whether a tensor is to be negated, so that is asked, nor how long its
  storage is, so that is read where PyTorch keeps it (``tensor_layout``). Results are not made by the functions beside
  it: PyTorch could not make such a tensor larger.
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
; name "is_neg", function dltensor_from_py_object of DLPackExchangeAPI;
; numbers of inputs, outputs, dimensions; threads, busy; where a tensor has its TensorImpl, where that has its
; StorageImpl, and where that has its memory and how long it is
%call_t = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64, i64, i64, i32, i32, [4 x i64] }

; dlpack.h: data; device's type and number, rank, dtype; shape, strides, offset in bytes
%dltensor_t = type { ptr, i32, i32, i32, i32, ptr, ptr, i64 }

; A tensor as it must be. Type, another type that will do, NumPy's dtype or null for PyTorch, alignment - 1; what makes
; a new one, and its three arguments; DLPack's description; bytes of all elements
%tensor_t = type { ptr, ptr, ptr, i64, ptr, [3 x ptr], %dltensor_t, i64 }

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

; The StorageImpl of a PyTorch tensor, or null.
define internal ptr @storage(ptr %call, ptr %value) {
  %impl_at_p = getelementptr %call_t, ptr %call, i64 0, i32 16, i64 0
  %impl_at = load i64, ptr %impl_at_p
  %impl_p = getelementptr i8, ptr %value, i64 %impl_at
  %impl = load ptr, ptr %impl_p
  %storage_at_p = getelementptr %call_t, ptr %call, i64 0, i32 16, i64 1
  %storage_at = load i64, ptr %storage_at_p
  %storage_p = getelementptr i8, ptr %impl, i64 %storage_at
  %storage = load ptr, ptr %storage_p
  ret ptr %storage
}

; Where a storage's memory begins.
define internal i64 @start(ptr %call, ptr %storage) {
  %data_at_p = getelementptr %call_t, ptr %call, i64 0, i32 16, i64 2
  %data_at = load i64, ptr %data_at_p
  %data_p = getelementptr i8, ptr %storage, i64 %data_at
  %data = load i64, ptr %data_p
  ret i64 %data
}

; Does a PyTorch tensor's storage reach as far as its elements do, from address on? DLPack doesn't tell how long it is.
define internal i1 @has_memory(ptr %call, ptr %value, i64 %address, ptr %want) {
  %storage = call ptr @storage(ptr %call, ptr %value)
  %has_storage = icmp ne ptr %storage, null
  br i1 %has_storage, label %look, label %no
look:
  %data = call i64 @start(ptr %call, ptr %storage)
  %n_bytes_at_p = getelementptr %call_t, ptr %call, i64 0, i32 16, i64 3
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
  %read_p = getelementptr %call_t, ptr %call, i64 0, i32 10
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

; The same for a result that was just made: a tensor's memory begins where its storage's does, and one of PyTorch's
; modes makes all tensors without memory.
define internal i64 @fresh(ptr %call, ptr %value, ptr %want) {
  %dtype_p = getelementptr %tensor_t, ptr %want, i64 0, i32 2
  %dtype = load ptr, ptr %dtype_p
  %type_p = getelementptr i8, ptr %value, i64 $type
  %type = load ptr, ptr %type_p
  %wanted = load ptr, ptr %want
  %is_array = icmp ne ptr %dtype, null
  %is_other = icmp ne ptr %type, %wanted
  %is_any = or i1 %is_array, %is_other
  br i1 %is_any, label %any, label %tensor
any:
  %found = call i64 @address(ptr %call, ptr %value, ptr %want)
  ret i64 %found
tensor:
  %storage = call ptr @storage(ptr %call, ptr %value)
  %has_storage = icmp ne ptr %storage, null
  br i1 %has_storage, label %look, label %no
look:
  %data = call i64 @start(ptr %call, ptr %storage)
  ret i64 %data
no:
  ret i64 0
}

; Let go of the first results.
define internal void @drop(ptr %call, i64 %n) {
entry:
  %results_p = getelementptr %call_t, ptr %call, i64 0, i32 8
  %results = load ptr, ptr %results_p
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %look]
  %is_end = icmp eq i64 %k, %n
  br i1 %is_end, label %out, label %look
look:
  %k1 = add i64 %k, 1
  %result_p = getelementptr ptr, ptr %results, i64 %k
  %result = load ptr, ptr %result_p
  call void @Py_DecRef(ptr %result)
  br label %next
out:
  ret void
}

define ptr @tw_call(ptr %self, ptr %given, i64 %n_given) {
entry:
  %call = call ptr @PyByteArray_AsString(ptr %self)
  %busy_p = getelementptr %call_t, ptr %call, i64 0, i32 15
  %busy = load i32, ptr %busy_p
  %n_inputs_p = getelementptr %call_t, ptr %call, i64 0, i32 11
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
  %n_outputs_p = getelementptr %call_t, ptr %call, i64 0, i32 12
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
  %o = phi i64 [0, %next_input], [%o1, %placed]
  %all_made = icmp eq i64 %o, %n_outputs
  br i1 %all_made, label %go, label %output
output:
  %o1 = add i64 %o, 1
  %like = getelementptr %tensor_t, ptr %outputs, i64 %o
  %result_p = getelementptr ptr, ptr %results, i64 %o
  %maker_p = getelementptr %tensor_t, ptr %like, i64 0, i32 4
  %maker = load ptr, ptr %maker_p
  %maker_args = getelementptr %tensor_t, ptr %like, i64 0, i32 5
  %object = call ptr @PyObject_Vectorcall(ptr %maker, ptr %maker_args, i64 3, ptr null)
  %raised = icmp eq ptr %object, null
  br i1 %raised, label %raise, label %made
made:
  store ptr %object, ptr %result_p
  %result_place = call i64 @fresh(ptr %call, ptr %object, ptr %like)
  %is_unfit = icmp eq i64 %result_place, 0
  br i1 %is_unfit, label %unfit, label %placed
placed:
  %result_index = add i64 %n_inputs, %o
  %result_slot = getelementptr i64, ptr %table, i64 %result_index
  store i64 %result_place, ptr %result_slot
  br label %next_output

go:
  %dims_p = getelementptr %call_t, ptr %call, i64 0, i32 4
  %dims = load ptr, ptr %dims_p
  %start_p = getelementptr %call_t, ptr %call, i64 0, i32 5
  %start = load ptr, ptr %start_p
  %n_dims_p = getelementptr %call_t, ptr %call, i64 0, i32 13
  %n_dims = load i64, ptr %n_dims_p
  %n_bytes = mul i64 %n_dims, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %dims, ptr %start, i64 %n_bytes, i1 false)
  %run = load ptr, ptr %call
  %weights_p = getelementptr %call_t, ptr %call, i64 0, i32 1
  %weights = load ptr, ptr %weights_p
  %arena_p = getelementptr %call_t, ptr %call, i64 0, i32 2
  %arena = load ptr, ptr %arena_p
  %threads_p = getelementptr %call_t, ptr %call, i64 0, i32 14
  %threads = load i32, ptr %threads_p
  %thread = call ptr @PyEval_SaveThread()
  %code = call i32 %run(ptr %table, ptr %dims, ptr %weights, ptr %arena, i32 %threads)
  call void @PyEval_RestoreThread(ptr %thread)
  %is_right = icmp eq i32 %code, 0
  br i1 %is_right, label %hand_over, label %failed
failed:
  %is_stopped = icmp eq i32 %code, -1  ; a signal's handler raised
  br i1 %is_stopped, label %stopped, label %give_up_all
stopped:
  call void @drop(ptr %call, i64 %n_outputs)
  store i32 0, ptr %busy_p
  %nothing = call ptr @tw_stopped()
  ret ptr %nothing

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
  br i1 %no_tuple, label %raise_all, label %next_item
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

raise_all:
  call void @drop(ptr %call, i64 %n_outputs)
  store i32 0, ptr %busy_p
  ret ptr null
raise:
  call void @drop(ptr %call, i64 %o)
  store i32 0, ptr %busy_p
  ret ptr null
unfit:
  call void @drop(ptr %call, i64 %o1)
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
