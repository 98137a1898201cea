"""A kernel's statements as LLVM text, as far as all processors do it alike.

In: a scheduled ``tile.ir.Kernel`` and what the machine can do (``target.instructions``). Out: functions' text.
Not its business: entry points, threads and what only one kind of processor has (``codegen.cpu``).

Read in this order: ``function`` (statements), ``loops`` with ``split`` and ``shared``, ``values``, ``addresses`` and
``memory`` with ``lanes``, ``registers`` with ``sums``, ``index`` (what is known of integers), ``arith`` and ``convert``
(what operations mean), ``analysis`` (what is known before), ``writer`` and ``types`` (text), ``refusals``.
"""
