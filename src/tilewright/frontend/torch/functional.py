"""Exported programs without writes: functional core ATen, with the composites that have a form here kept whole.

In: an ``ExportedProgram``. Out: one that computes the same in functional calls. Not its business: which programs need
that, and what the calls mean (``export.py``).

PyTorch keeps a composite call whole by giving it other kernels while it traces. ``run_decompositions`` does so for
every composite of every library, anew in each call, which takes longer than following a small module does. A composite
that is to be taken apart as ever needs no other kernel, and which ones do follows from the tables alone, so it is found
once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.core.diag import ImportFailed
from tilewright.frontend.torch.aten.table import KEPT_WHOLE, TAKEN_APART
from tilewright.frontend.torch.custom_ops import DECOMPOSITIONS
from tilewright.frontend.torch.examples import TRANSFORMS
from tilewright.frontend.torch.foreach import decompositions as on_lists
from tilewright.frontend.torch.tracing import tracing

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Decompositions: TypeAlias = Mapping[Any, Callable[..., Any]]

COMPOSITE = "CompositeImplicitAutograd"
"""PyTorch's key of kernels that are made of other calls."""


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """Functional core ATen with our composites kept whole; ``ImportFailed`` where PyTorch can't make it so."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.export.exported_program import _decompose_exported_program

    try:
        with tracing(), torch.no_grad(), unset_fake_temporarily():
            kernels, table = _kernels_and_table_now()
            functional: ExportedProgram = _decompose_exported_program(
                program,
                cia_to_decomp=dict(kernels),
                python_decomp_table=dict(table),
                joint_loss_index=None,
                decompose_custom_triton_ops=False,
            )
    except Exception as e:  # whatever tracing raises
        # torch.export took what a transform of torch.func differentiates for constants
        is_transformed = any(getattr(held, "requires_grad", False) for held in program.constants.values())
        remedy = TRANSFORMS if is_transformed else "see PyTorch's message"
        raise ImportFailed(f"PyTorch can't make the program functional: {e}", remedy=remedy) from e
    return functional


@contextmanager
def taking_apart(program: ExportedProgram) -> Iterator[Decompositions]:
    """While single calls of a program are followed: composites do what they do in ``decomposed``; what other calls do
    is in the table that this gives."""
    import torch
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import TracingContext, detect_fake_mode
    from torch._guards import tracing as in_context
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.export.exported_program import _override_composite_implicit_decomp

    mode: Any = detect_fake_mode([n.meta.get("val") for n in program.graph.nodes])
    with tracing(), torch.no_grad(), unset_fake_temporarily():
        kernels, table = _kernels_and_table_now()
        with (
            mode,  # what calls make of numbers alone has no memory, either
            _override_composite_implicit_decomp(dict(kernels)),
            in_context(TracingContext(mode)),
            enable_python_dispatcher(),
        ):
            yield table


def _kernels_and_table_now() -> tuple[Decompositions, Decompositions]:
    import torch

    # a library that registers composites later changes the answer
    composites = tuple(torch._C._dispatch_get_registrations_for_dispatch_key(COMPOSITE))
    return _kernels_and_table(composites, tuple(DECOMPOSITIONS.items()))


@functools.lru_cache(1)
def _kernels_and_table(
    composites: tuple[str, ...], ours: tuple[tuple[Any, Callable[..., Any]], ...]
) -> tuple[Decompositions, Decompositions]:
    """What composites do instead of coming apart as ever, and how all other calls are taken apart.

    ``composites`` are all that PyTorch knows now, ``ours`` what users say of their own calls.
    """
    import torch
    from torch._decomp import decomposition_table
    from torch.export.exported_program import _split_decomp_table_to_cia_and_python_decomp

    table = torch.export.default_decompositions()
    for kept in KEPT_WHOLE:
        packet, overload = kept.split(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    table.update({op: f for op, f in decomposition_table.items() if str(op).removeprefix("aten.") in TAKEN_APART})
    table.update(on_lists())
    table.update(dict(ours))
    kernels, rest = _split_decomp_table_to_cia_and_python_decomp(table.materialize())
    return {op: how for op, how in kernels.items() if not _is_own(op, how)}, rest


def _is_own(op: Any, how: Callable[..., Any]) -> bool:
    """Is that the composite's own kernel, in the wrapper that PyTorch puts around it?"""
    return isinstance(how, functools.partial) and how.keywords == {"kernel": op}
