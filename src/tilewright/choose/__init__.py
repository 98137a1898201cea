"""How a computation gets its schedule.

In: a computation and a machine. Out: steps of ``tile.schedule``. ``default`` is the entry: ``normalize`` brings axes
into an order (with ``collapse``, ``relayout``, ``extremes``), ``clusters`` tells which stages go together,
``strategies`` has the rules, ``cost`` what they are judged by. Not its business: is a step legal (``tile.schedule``).
"""
