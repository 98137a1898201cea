"""What is known of machines.

In: nothing, or a name. Out: rows of facts, a file for each instruction set (``isa`` has their type), and the ``Target``
that a user's name or this computer gives. ``tile`` is what schedules are judged by. Not its business: choosing by them.
"""
