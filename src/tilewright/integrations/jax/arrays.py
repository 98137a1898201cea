"""Arrays between JAX and a compiled model: their memory, and what tells one signature from another.

In: leaves of a call's arguments; a model's results. Out: NumPy arrays over the leaves' memory; JAX's arrays over the
results'. Not its business: which model a call runs (``jit``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tilewright.core.types import Array

try:
    # 10 us less for each result than jax.dlpack.from_dlpack, which does the same after checks of other devices
    from jaxlib._jax import dlpack_managed_tensor_to_buffer as _adopt
except ImportError:
    _adopt = None
_array_of: Any = None
"""JAX's own class, which alone makes an array weakly typed in 2 us; other JAX versions give strong types."""
with contextlib.suppress(ImportError):
    from jax._src.array import ArrayImpl

    _array_of = ArrayImpl

trace_context: Callable[[], Any]
"""JAX's settings that decide what a function is traced to: a tuple that can be a key, made in 0.4 us."""
try:
    from jax._src.config import trace_context
except ImportError:

    def trace_context() -> Any:
        return jax.config.read("jax_enable_x64")


is_top_level: Callable[[], bool]
"""Is no transformation of JAX at work? As good as never in versions of JAX that can't be asked."""
try:
    from jax._src.core import trace_state_clean as is_top_level
except ImportError:

    def is_top_level() -> bool:
        return False


Give = Callable[[Array], Any]
_arrays: set[type[Any]] = set()
"""JAX's own classes of arrays that have been seen: to ask each array anew what it is takes longer."""
_key_arrays: set[type[Any]] = set()
"""The same of arrays of random keys."""
_IN_DLPACK = "biuf"
"""NumPy's kinds that its own DLPack knows."""


def kind_of(leaf: Any) -> Any:
    """What a function is traced for: shape, element type, and whether a number yields to other types."""
    kind = type(leaf)
    if kind in _arrays:
        return leaf.shape, leaf.dtype, leaf.weak_type
    if kind is np.ndarray:
        return leaf.shape, leaf.dtype
    if kind in (bool, int, float, complex):
        return kind
    if kind in _key_arrays:
        return leaf.shape, leaf.dtype
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        if is_keys(leaf.dtype):
            _key_arrays.add(kind)
            return leaf.shape, leaf.dtype
        if hasattr(leaf, "weak_type"):
            _arrays.add(kind)
            return leaf.shape, leaf.dtype, leaf.weak_type
    return tuple(np.shape(leaf)), jax.numpy.result_type(leaf)


def is_keys(dtype: Any) -> bool:
    """Are these JAX's random keys?"""
    return bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


def taker(dtype: np.dtype[Any], is_complex: bool) -> Callable[[Any], Array]:
    """What makes an argument of a leaf: its memory; complex numbers as their parts along a last axis."""

    def numbers(leaf: Any) -> Array:
        return np.asarray(leaf, dtype)

    def keys_or_numbers(leaf: Any) -> Array:
        if type(leaf) in _key_arrays:
            # The numbers of keys where they lie; jax.random.key_data copies them in a call of its own, 10 us.
            lying = getattr(leaf, "_base_array", None)
            return np.asarray(jax.random.key_data(leaf) if lying is None else lying, dtype)
        return np.asarray(leaf, dtype)

    def parts(leaf: Any) -> Array:
        whole = np.asarray(leaf, np.result_type(dtype, np.complex64), order="C")
        return whole[..., None].view(dtype)

    return parts if is_complex else keys_or_numbers if dtype == np.uint32 else numbers


def giver(info: Any, is_complex: bool) -> Give:
    """What makes JAX's array of a result, over its memory where JAX takes it; ``info`` is the type that JAX traced."""
    give = _strong_giver(info.dtype, is_complex)
    if not info.weak_type or _array_of is None:
        return give

    def yielding(a: Array) -> Any:
        whole = give(a)
        return _array_of(info, whole.sharding, [whole], committed=False, _skip_checks=True)

    return yielding


def _strong_giver(dtype: Any, is_complex: bool) -> Give:
    device = jax.local_devices(backend="cpu")[0]

    def copied(a: Array) -> Any:
        return jax.device_put(a, device)

    def adopted(a: Array) -> Any:
        return _adopt(a.__dlpack__(), device, None) if a.size else copied(a)

    if is_keys(dtype):
        implementation = jax.random.key_impl(jax.random.key(0)) if str(dtype) == "key<fry>" else str(dtype)[4:-1]
        return lambda a: jax.random.wrap_key_data(copied(a), impl=implementation)
    if is_complex:
        return lambda a: copied(a.view(np.dtype(dtype)).reshape(a.shape[:-1]))
    own = np.dtype(dtype)
    is_exchanged = own.kind in _IN_DLPACK and own.isbuiltin == 1  # float8_e5m2 calls itself "f" too
    return adopted if _adopt is not None and is_exchanged else copied
