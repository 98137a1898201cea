"""Memory of a caller's that a call writes to: arrays given as ``out=``, and inputs that the model changes.

In: arguments as they were given. Out: ``Written`` places, all checked before the model runs; or one ``InputError``.
Not its business: reading inputs (``arguments``), running (``model``).

PyTorch would run the steps of a program on memory that two arguments share, one after the other. A compiled model has
computed every result from the arguments as they came, so that it can't give PyTorch's answer where an argument that it
writes to overlaps another: such calls are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.errors import Violation
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.plain import dataclass
from tilewright.runtime.plan import OutputPlan, input_error
from tilewright.runtime.values import Array, address_of, is_tensor, memory_of, tensor_types, to_tensor

OVERLAP_EFFORT = 10_000
"""Cases that NumPy may try to tell whether two strided arrays share an element, about a millisecond's work; a pair that
needs more counts as sharing one."""
MOST_COUNTED = 1 << 20
"""Elements of an array of odd strides whose places are compared one by one, some milliseconds' work."""


@dataclass(frozen=True)
class Written:
    """An argument to write to, and the array on its memory (of a tensor that is filled, itself)."""

    argument: Any
    memory: Any

    def fill(self, value: Array) -> None:
        """Let the argument have these elements."""
        if type(self.argument) is not np.ndarray and is_tensor(self.argument):
            self.argument.detach().copy_(to_tensor(value))  # a detached tensor counts versions with its origin
        else:
            self.memory[...] = value

    def tell(self) -> None:
        """Let PyTorch's gradients know that native code has written to the memory."""
        if type(self.argument) is not np.ndarray and is_tensor(self.argument) and not self.argument.is_inference():
            tell_tensors(self.argument)


def tell_tensors(tensors: Any) -> None:
    """Let PyTorch's gradients know of native code that has written to a tensor, or to several."""
    sys.modules["torch"].autograd.graph.increment_version(tensors)


def written_inputs(given: Sequence[Any], specs: Sequence[TensorSpec], indices: Sequence[int]) -> list[Written]:
    """The inputs with these ``indices``, which a model writes to; ``given`` have been read as arrays before."""
    if _are_apart([(k in indices, value) for k, value in enumerate(given)]):
        return [Written(given[k], given[k]) for k in indices]
    memory = [memory_of(value, spec) for value, spec in zip(given, specs, strict=True)]
    wrong = [found for k in indices if (found := _unwritable(given[k], memory[k], specs[k])) is not None]
    named = {k: (specs[k].name, m) for k, m in enumerate(memory) if isinstance(m, np.ndarray)}
    for one, other in overlapping(named, set(indices)):
        rule = f"the model writes to {specs[one].name}, which shares memory with {specs[other].name}"
        wrong.append(Violation(specs[one].name, "overlaps another argument", rule, "pass a copy of one of them"))
    if wrong:
        raise input_error(wrong)
    return [Written(given[k], memory[k]) for k in indices]


def read_outputs(
    given: Any, specs: Sequence[TensorSpec], plans: Sequence[OutputPlan], inputs: Mapping[str, Any]
) -> list[Written]:
    """The user's arrays to write into, each of which must fit its output exactly.

    ``inputs`` are the call's, by name.
    """
    arrays = _listed(given, len(specs))
    values = [*((True, value) for value in arrays), *((False, value) for value in inputs.values())]
    # what nearly every call is; the rest finds words for what is wrong, or takes longer to see that nothing is
    if _are_apart(values) and all(map(_is_output, arrays, plans)):
        memory = [v if type(v) is np.ndarray else memory_of(v, s) for v, s in zip(arrays, specs, strict=True)]
        if not any(isinstance(m, Violation) for m in memory):
            return [Written(value, m) for value, m in zip(arrays, memory, strict=True)]
    found: dict[int, tuple[str, Array]] = {}
    wrong: list[Violation] = []
    for k, (value, spec, plan) in enumerate(zip(arrays, specs, plans, strict=True)):
        array = memory_of(value, TensorSpec(f"out: {spec.name}", spec.dtype, spec.shape))
        problem = array if isinstance(array, Violation) else _misfit(value, array, spec, plan)
        if problem is not None:
            wrong.append(problem)
        elif isinstance(array, np.ndarray):
            found[k] = f"out: {spec.name}", array
    everything = dict(found)
    for k, (name, value) in enumerate(inputs.items(), len(specs)):
        array = memory_of(value, TensorSpec(name, "", ()))  # only its place matters, so any dtype and shape will do
        if isinstance(array, np.ndarray):
            everything[k] = name, array
    for one, other in overlapping(everything, set(found)):
        rule = f"outputs have memory of their own, this shares some with {everything[other][0]}"
        wrong.append(Violation(found[one][0], "overlaps another argument", rule, "pass another array"))
    if wrong:
        raise input_error(wrong)
    return [Written(value, found[k][1]) for k, value in enumerate(arrays)]


def _is_output(value: Any, plan: OutputPlan) -> bool:
    """Is an array or tensor that can be written to like an output?"""
    if plan.sizes is not None:
        return False
    wanted = plan.dtype if type(value) is np.ndarray else tensor_types([plan.dtype])[0][0]
    return bool(value.dtype == wanted and value.shape == plan.shape)


def _is_plain_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.is_cpu:
        return False
    if value.is_nested or value.layout is not torch.strided or not value.is_contiguous():
        return False
    return bool(value.data_ptr()) and not value.is_neg() and not value.is_conj()


def _are_apart(values: Sequence[tuple[bool, Any]]) -> bool:
    """Are all values plain, can those be written to that are, and do these share nothing with others?

    With each value comes whether it is written to. The answer is quick: False may only mean that it takes longer.
    """
    ranges = []
    for is_written, value in values:
        if type(value) is np.ndarray:
            if not (value.flags.carray if is_written else value.flags.c_contiguous):
                return False
            start, n_bytes = address_of(value), value.nbytes
        elif _is_plain_tensor(value) and not (is_written and _may_refuse_writes(value)):
            start, n_bytes = value.data_ptr(), value.nbytes
        else:
            return False
        if n_bytes:
            ranges.append((start, start + n_bytes, is_written))
    return _do_not_meet(ranges)


def plain_are_apart(addresses: Sequence[int], values: Sequence[Any], is_written: Sequence[bool]) -> bool:
    """Do those of plain arrays or tensors (``values.Places``) that are written to share nothing with any other?

    False too for a tensor that is written to and that PyTorch may not let be, which takes a closer look.
    """
    ranges = []
    for start, value, writes in zip(addresses, values, is_written, strict=True):
        if writes and type(value) is not np.ndarray and _may_refuse_writes(value):
            return False
        ranges.append((start, start + value.nbytes, writes))
    return _do_not_meet(ranges)


def _do_not_meet(ranges: list[tuple[int, int, bool]]) -> bool:
    """Whether no range of bytes (its first, the one behind its last) that is written to meets another."""
    ranges.sort()
    end, last_written_end = 0, 0
    for start, stop, is_written in ranges:
        if start < (end if is_written else last_written_end):
            return False
        end = max(end, stop)
        if is_written:
            last_written_end = stop
    return True


def _listed(given: Any, n: int) -> Sequence[Any]:
    """``out=`` as a sequence of ``n`` arrays."""
    if n == 1 and not isinstance(given, tuple | list):
        return [given]
    rule = f"the model has {n} outputs"
    if not isinstance(given, tuple | list):
        kind = type(given).__qualname__
        raise input_error([Violation("out", f"a {kind}", rule, "pass a tuple or list of that many arrays")])
    if len(given) != n:
        raise input_error([Violation("out", f"{len(given)} arrays", rule, "pass that many")])
    return given


def _unwritable(value: Any, memory: Array | Violation, spec: TensorSpec) -> Violation | None:
    """What keeps an input from being written to."""
    if isinstance(memory, Violation):
        return memory
    rule, remedy = f"the model writes to {spec.name}", "pass an array that can be written"
    if not memory.flags.writeable:
        return Violation(spec.name, "read-only", rule, remedy)
    if is_tensor(value) and (refused := _refused_by_pytorch(value)) is not None:
        return Violation(spec.name, refused[0], rule, refused[1])
    if not has_places_of_its_own(memory):
        rule += ", elements of which share a place here"
        return Violation(spec.name, "overlaps itself", rule, "pass a copy, as x.clone() or x.copy()")
    return None


def _may_refuse_writes(tensor: Any) -> bool:
    return bool(tensor.is_inference() or tensor.requires_grad)


def _refused_by_pytorch(tensor: Any) -> tuple[str, str] | None:
    """What a tensor is that PyTorch would not let be written to, or not without a gradient; and the remedy."""
    torch = sys.modules["torch"]
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "a tensor of inference mode", "pass tensor.clone(), or call within torch.inference_mode()"
    if tensor.requires_grad and torch.is_grad_enabled():
        return "a tensor that requires grad", "call within torch.no_grad(), or pass tensor.detach()"
    return None


def _misfit(value: Any, array: Array, spec: TensorSpec, plan: OutputPlan) -> Violation | None:
    name = f"out: {spec.name}"
    if plan.sizes is not None:
        return Violation(name, "given", "the data decide the shape of this output", "leave out=")
    if array.dtype != plan.dtype or array.shape != plan.shape:
        rule = f"the output is {spec.dtype} of shape {plan.shape}"
        return Violation(name, f"{array.dtype} of shape {array.shape}", rule, "pass an array like that")
    if is_tensor(value) and (value.is_neg() or value.is_conj()):
        rule = "what is written there would be read with another sign"
        return Violation(name, "a view that negates or conjugates", rule, "pass tensor.clone(), or torch.empty(...)")
    if is_tensor(value) and (refused := _refused_by_pytorch(value)) is not None:
        return Violation(name, refused[0], "PyTorch would not let it be written to", refused[1])
    if not array.flags.carray:
        return Violation(name, "not a plain array", "outputs are writable and C-contiguous", "pass numpy.empty(...)")
    return None


def overlapping(arrays: Mapping[int, tuple[str, Array]], written: set[int]) -> Iterator[tuple[int, int]]:
    """Pairs of numbers of arrays that share an element, the first of which is written to.

    A sweep over the arrays by their first byte compares only those whose ranges of bytes meet.
    """
    ranges = sorted((*_bounds(array), k) for k, (_, array) in arrays.items() if array.size)
    open_: list[tuple[int, int]] = []
    for start, end, k in ranges:
        open_ = [(e, j) for e, j in open_ if e > start]
        for _, j in open_:
            one, other = (k, j) if k in written else (j, k)
            if one in written and _share(arrays[one][1], arrays[other][1]):
                yield one, other
        open_.append((end, k))


def _bounds(array: Array) -> tuple[int, int]:
    """The first byte of an array's elements, and the one behind the last."""
    start = end = address_of(array) if array.flags.c_contiguous else array.ctypes.data
    for n, stride in zip(array.shape, array.strides, strict=True):
        start, end = start + min((n - 1) * stride, 0), end + max((n - 1) * stride, 0)
    return start, end + array.itemsize


def _share(a: Array, b: Array) -> bool:
    try:
        return np.shares_memory(a, b, max_work=OVERLAP_EFFORT)  # type: ignore[arg-type]  # the stubs know 0 and -1
    except np.exceptions.TooHardError:
        return True


def has_places_of_its_own(array: Array) -> bool:
    """Whether each element of an array has a place of its own."""
    if array.flags.c_contiguous or array.size < 2:
        return True
    covered = array.itemsize  # bytes from the first element's to the last one's end, by the strides so far
    for stride, n in sorted((abs(s), n) for n, s in zip(array.shape, array.strides, strict=True) if n > 1):
        if stride < covered:
            return _are_distinct(array)
        covered += (n - 1) * stride
    return True


def _are_distinct(array: Array) -> bool:
    if array.size > MOST_COUNTED or 0 in [s for n, s in zip(array.shape, array.strides, strict=True) if n > 1]:
        return False
    places = np.zeros((), np.int64)
    for n, stride in zip(array.shape, array.strides, strict=True):
        places = places[..., None] + np.arange(n, dtype=np.int64) * stride
    found = np.sort(places, axis=None)
    return bool((found[1:] - found[:-1] >= array.itemsize).all())
